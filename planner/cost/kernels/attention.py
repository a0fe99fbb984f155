"""Seconds of attention: fused (flash) kernels and the unfused chain."""

from typing import Any, NamedTuple

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
_FORWARD_PASSES = 4.5
"""Times that the scores are read or written between the two products: softmax (read, write),
dropout (read, write, and a mask of half the width)."""
_BACKWARD_PASSES = 5.5
"""Dropout (read, mask, write), softmax (read twice, write)."""
_UNFUSED_LAUNCHES = 2


class _Shape(NamedTuple):
    """Sequences, query heads, rows and columns of the scores, width of a head."""

    batch: Seconds
    heads: Seconds
    query: Seconds
    key: Seconds
    width: Seconds


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
    extra_score_passes: ArrayLike = 0.0,
) -> Seconds:
    """Seconds of the attention core (scores, softmax, values) of one pass.

    Args:
        batch: Sequences.
        heads: Query heads on this rank.
        query_length: Rows of the score matrix.
        key_length: Columns of the score matrix.
        head_dim: Width of one head; the mean of both if keys and values differ.
        causal: Only the lower triangle is needed; only fused kernels profit.
        fused: FlashAttention; otherwise two batched products and softmax passes.
        backward: The gradient pass (with the recomputation inside it, if fused).
        dtype: Of the inputs.
        device: Data sheet.
        constants: Fitted constants.
        library: Of a fused kernel: ``native`` (cuDNN, FlashAttention-3 and newer) or
            ``flash2``.
        extra_score_passes: Reads and writes of the scores that an unfused chain makes beside
            one softmax kernel and dropout: 2 for a mask or a scale of its own.
    """
    shape = _Shape(
        *(
            np.maximum(np.asarray(x, np.float64), 1.0)
            for x in (batch, heads, query_length, key_length, head_dim)
        )
    )
    given: dict[str, Any] = {"dtype": dtype, "device": device, "constants": constants}
    if fused:
        return _fused_seconds(shape, causal=causal, backward=backward, library=library, **given)
    passes = (_BACKWARD_PASSES if backward else _FORWARD_PASSES) + np.asarray(extra_score_passes)
    return _unfused_seconds(shape, passes=passes, backward=backward, **given)


def _fused_seconds(
    shape: _Shape,
    *,
    causal: bool,
    backward: bool,
    library: str,
    dtype: str,
    device: Device,
    constants: KernelConstants,
) -> Seconds:
    """Flash attention: exponentials add to the products, a causal mask halves both.

        flops = 4 * batch * heads * query * (keys + length_half) * (width + width_half)
        t = launch + max(flops / rate * waves / filled, bytes / memory rate)

    Reference: Dao, "FlashAttention-2", 2023, section 3.
    """
    keys = shape.key * (0.5 if causal else 1.0) + constants.attention_length_half
    width = np.ceil(shape.width / _WIDTH_STEP) * _WIDTH_STEP + constants.head_dim_half
    blocks = shape.batch * shape.heads * np.ceil(shape.query / _QUERY_TILE)
    filled = blocks / max(device.multiprocessors, 1)
    left_over = (1.0 - constants.wave_softness) * (np.ceil(filled) - filled)
    waves = np.where(filled < 1.0, 1.0, filled + left_over)
    rate = device.peak_flops_per_second(dtype) * constants.attention_fraction[library]
    compute = 4.0 * blocks * _QUERY_TILE * keys * width / rate * waves / filled
    tensors = 2.0  # query and result, as long as keys and values together if lengths are equal
    if backward:
        compute = compute * _BACKWARD_FLOPS / constants.attention_backward_rate
        tensors = 4.0  # and their gradients
    rows = shape.batch * shape.heads * (shape.query + shape.key)
    moved = tensors * DTYPE_BYTES[dtype] * rows * shape.width
    traffic = traffic_seconds(moved, device=device, constants=constants)
    return constants.attention_launch_seconds + np.maximum(compute, traffic)


def _unfused_seconds(
    shape: _Shape,
    *,
    passes: ArrayLike,
    backward: bool,
    dtype: str,
    device: Device,
    constants: KernelConstants,
) -> Seconds:
    """Batched products and passes over the full score matrix; a mask saves nothing.

    Reference: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
    Models", 2022, section 4 (what is read and written between the products).
    """
    given: dict[str, Any] = {"dtype": dtype, "device": device, "constants": constants}
    heads = shape.batch * shape.heads
    scores = gemm_seconds(shape.query, shape.key, shape.width, batch=heads, **given)
    values = gemm_seconds(shape.query, shape.width, shape.key, batch=heads, **given)
    softmax = memory_bound_seconds(
        np.asarray(passes) * DTYPE_BYTES[dtype] * heads * shape.query * shape.key,
        launches=_UNFUSED_LAUNCHES,
        device=device,
        constants=constants,
    )
    return (2.0 if backward else 1.0) * (scores + values) + softmax
