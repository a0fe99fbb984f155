"""Timings of single kernels, and what the kernel model says about them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost.kernels.attention import attention_seconds
from planner.cost.kernels.constants import KernelConstants
from planner.cost.kernels.convolution import convolution_seconds
from planner.cost.kernels.gemm import gemm_seconds, grouped_gemm_seconds
from planner.cost.kernels.streaming import memory_bound_seconds, traffic_seconds


def _attention_step(**given: Any) -> NDArray[np.float64]:
    """Forward and backward pass, for timings that do not tell them apart."""
    given.pop("backward")
    return attention_seconds(backward=False, **given) + attention_seconds(backward=True, **given)


_OPERATIONS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "gemm": gemm_seconds,
    "grouped_gemm": grouped_gemm_seconds,
    "attention": attention_seconds,
    "attention_step": _attention_step,
    "convolution": convolution_seconds,
    "streaming": memory_bound_seconds,
    "traffic": traffic_seconds,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSample:
    """One timed kernel."""

    operation: str
    """gemm, grouped_gemm, attention, convolution, streaming (one operator) or traffic (ideal)."""
    shape: Mapping[str, Any]
    """Arguments of the function that prices the operation, without device and constants."""
    seconds: float
    device: Device
    burst: bool = False
    """A short run, or one on constant data: clocks are higher than in training."""
    graph: bool = False
    """Kernels replayed from a captured graph, not launched one by one."""
    looped: bool = False
    """Issued one by one from Python: the host may have been slower than the device."""
    extra_bytes: float = 0.0
    """Memory-bound work that was timed along (copies into a cache)."""
    weight: float = 1.0
    group: str = ""
    """Who measured it."""

    def __post_init__(self) -> None:
        if self.operation not in _OPERATIONS:
            known = ", ".join(_OPERATIONS)
            raise ValueError(f"unknown operation {self.operation!r}; known are {known}")
        if not self.seconds > 0:
            raise ValueError(f"a kernel takes positive time, got {self.seconds}")


def predict_seconds(
    samples: Sequence[KernelSample], constants: KernelConstants
) -> NDArray[np.float64]:
    """Seconds of every sample, priced together by operation and device."""
    return SampleBatches(samples).seconds(constants)


class SampleBatches:
    """Samples stacked into arrays, so that a fit prices them in a few calls."""

    def __init__(self, samples: Sequence[KernelSample]) -> None:
        rows: dict[Any, list[int]] = defaultdict(list)
        devices: dict[str, Device] = {}
        for index, sample in enumerate(samples):
            devices[sample.device.name] = sample.device
            condition = (sample.burst, sample.graph, sample.looped)
            rows[(sample.operation, sample.device.name, condition, *_fixed(sample.shape))].append(
                index
            )
        self.size = len(samples)
        self.extra_bytes = np.array([sample.extra_bytes for sample in samples])
        self.batches = []
        for (operation, name, condition, *_), indices in rows.items():
            first = samples[indices[0]].shape
            arguments = {
                key: value
                if isinstance(value, bool | str)
                else np.array([samples[i].shape[key] for i in indices], np.float64)
                for key, value in first.items()
            }
            self.batches.append(
                (_OPERATIONS[operation], arguments, devices[name], condition, indices)
            )

    def seconds(self, constants: KernelConstants) -> NDArray[np.float64]:
        """Predicted seconds, in the order of the samples."""
        result = np.empty(self.size)
        for price, arguments, device, (burst, graph, looped), indices in self.batches:
            now = constants.under(burst=burst, graph=graph)
            seconds = price(**arguments, device=device, constants=now)
            floor = constants.host_launch_seconds if looped else 0.0
            result[indices] = np.maximum(seconds, floor)
            result[indices] += self.extra_bytes[indices] / (
                device.memory_bytes_per_second * now.memory_fraction
            )
        return result


def _fixed(shape: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return tuple(
        (key, value if isinstance(value, bool | str) else None)
        for key, value in sorted(shape.items())
    )
