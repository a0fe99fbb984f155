"""Kernel time: seconds of matrix products, attention, convolutions and memory-bound work."""

from planner.cost.kernels.attention import attention_seconds
from planner.cost.kernels.constants import (
    DTYPE_BYTES,
    KernelConstants,
    default_constants,
    generation_of,
)
from planner.cost.kernels.convolution import convolution_seconds
from planner.cost.kernels.gemm import gemm_seconds, grouped_gemm_seconds, linear_seconds
from planner.cost.kernels.streaming import eager_seconds, memory_bound_seconds, traffic_seconds

__all__ = [
    "DTYPE_BYTES",
    "KernelConstants",
    "attention_seconds",
    "convolution_seconds",
    "default_constants",
    "eager_seconds",
    "gemm_seconds",
    "generation_of",
    "grouped_gemm_seconds",
    "linear_seconds",
    "memory_bound_seconds",
    "traffic_seconds",
]
