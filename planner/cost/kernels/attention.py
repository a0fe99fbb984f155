"""Seconds of attention: fused (flash) kernels and the unfused chain."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import DTYPE_BYTES, KernelConstants
from planner.cost.kernels.gemm import gemm_seconds
from planner.cost.kernels.streaming import memory_bound_seconds, traffic_seconds

Seconds = NDArray[np.float64]

_QUERY_TILE = 128
_WIDTH_STEP = 32  # heads are padded to a multiple of this
_BACKWARD_FLOPS = 2.5  # five products instead of two, Dao 2023
_UNFUSED_PASSES = 7
"""Times that the scores are read or written in a forward pass: scale and mask (read, write),
softmax (read, write), dropout (read, write) and its mask at half width, as unfused Megatron."""
_UNFUSED_LAUNCHES = 3


def attention_seconds(
    *,
    batch: ArrayLike,
    heads: ArrayLike,
    query_length: ArrayLike,
    key_length: ArrayLike,
    head_dim: ArrayLike,
    causal: bool,
    fused: bool,
    backward: bool,
    dtype: str,
    device: Device,
    constants: KernelConstants,
    library: str = "native",
) -> Seconds:
    """Seconds of the attention core (scores, softmax, values) of one pass.

    Args:
        batch: Sequences.
        heads: Query heads on this rank.
        query_length: Rows of the score matrix.
        key_length: Columns of the score matrix.
        head_dim: Width of one head.
        causal: Only the lower triangle is needed; only fused kernels profit.
        fused: FlashAttention; otherwise two batched products and softmax passes.
        backward: The gradient pass (with the recomputation inside it, if fused).
        dtype: Of the inputs.
        device: Data sheet.
        constants: Fitted constants.
        library: Of a fused kernel: ``native`` (cuDNN, FlashAttention-3 and newer) or
            ``flash2``.
    """
    batch, heads, query, key, width = (
        np.maximum(np.asarray(x, np.float64), 1.0)
        for x in (batch, heads, query_length, key_length, head_dim)
    )
    core = _fused_seconds if fused else _unfused_seconds
    return core(
        batch=batch,
        heads=heads,
        query=query,
        key=key,
        width=width,
        causal=causal,
        backward=backward,
        dtype=dtype,
        device=device,
        constants=constants,
        library=library,
    )


def _fused_seconds(
    *,
    batch: Seconds,
    heads: Seconds,
    query: Seconds,
    key: Seconds,
    width: Seconds,
    causal: bool,
    backward: bool,
    dtype: str,
    device: Device,
    constants: KernelConstants,
    library: str,
) -> Seconds:
    """Flash attention: exponentials add to the products, a causal mask halves both.

    Reference: Dao, "FlashAttention-2", 2023, section 3.
    """
    padded = np.ceil(query / _QUERY_TILE) * _QUERY_TILE
    pairs = padded * (key * (0.5 if causal else 1.0) + constants.attention_length_half)
    flops = (
        4.0
        * batch
        * heads
        * pairs
        * (np.ceil(width / _WIDTH_STEP) * _WIDTH_STEP + constants.head_dim_half)
    )
    rate = device.peak_flops_per_second(dtype) * constants.attention_fraction[library]
    slots = float(max(device.multiprocessors, 1))
    filled = batch * heads * padded / _QUERY_TILE / slots
    rounded = np.ceil(filled)
    waves = rounded - constants.wave_softness * (rounded - filled)
    compute = flops / rate * np.where(filled < 1.0, 1.0 / filled, waves / filled)
    if backward:
        compute = compute * _BACKWARD_FLOPS / constants.attention_backward_rate
    item = DTYPE_BYTES[dtype] * (2.0 if backward else 1.0)
    moved = item * batch * heads * width * 2.0 * (query + key)
    traffic = traffic_seconds(moved, device=device, constants=constants)
    return constants.attention_launch_seconds + np.maximum(compute, traffic)


def _unfused_seconds(
    *,
    batch: Seconds,
    heads: Seconds,
    query: Seconds,
    key: Seconds,
    width: Seconds,
    causal: bool,
    backward: bool,
    dtype: str,
    device: Device,
    constants: KernelConstants,
    library: str,
) -> Seconds:
    """Batched products and passes over the full score matrix; a mask saves nothing."""
    given: dict[str, Any] = {
        "batch": batch * heads,
        "dtype": dtype,
        "device": device,
        "constants": constants,
    }
    scores = gemm_seconds(query, key, width, **given)
    values = gemm_seconds(query, width, key, **given)
    passes = _UNFUSED_PASSES * DTYPE_BYTES[dtype] * batch * heads * query * key
    softmax = memory_bound_seconds(
        passes, launches=_UNFUSED_LAUNCHES, device=device, constants=constants
    )
    return (2.0 if backward else 1.0) * (scores + values) + softmax
