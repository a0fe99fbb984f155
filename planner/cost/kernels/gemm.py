"""Seconds of matrix products: tiles, waves, traffic, launch."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import DTYPE_BYTES, KernelConstants
from planner.cost.kernels.streaming import memory_bound_seconds, traffic_seconds

Seconds = NDArray[np.float64]

_TILES = ((256, 128, 0.0), (128, 256, 0.0), (128, 128, 0.35), (64, 64, 1.0))
"""Rows, columns and how much of ``small_tile_rate`` applies."""
_MIN_SPLIT_K = 512  # a shorter slice of the inner dimension is not worth a reduction


def gemm_seconds(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    batch: ArrayLike = 1,
    dtype: str,
    device: Device,
    constants: KernelConstants,
    accumulate: bool = False,
    quantise: bool = False,
) -> Seconds:
    """Seconds of ``batch`` products of an ``m x k`` with a ``k x n`` matrix in one kernel.

        t = launch + max(c, b) + overlap_loss * min(c, b)
        c = waves * tile_flops / (sustained peak per multiprocessor), b = bytes / memory rate

    Args:
        m: Rows of the result.
        n: Columns of the result.
        k: Inner dimension.
        batch: Independent products in the same kernel.
        dtype: Of the inputs.
        device: Data sheet.
        constants: Fitted constants of the device's generation.
        accumulate: The result is added to a float32 buffer (weight gradients).
        quantise: Both inputs are first cast from 16 bits to ``dtype`` (fp8, fp4).

    Reference: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave
    quantisation); Osama et al., "Stream-K", PPoPP 2023.
    """
    m, n, k, batch = (np.maximum(np.asarray(x, np.float64), 1.0) for x in (m, n, k, batch))
    compute = _compute_seconds(m, n, k, batch, dtype=dtype, device=device, constants=constants)
    traffic = traffic_seconds(
        batch * _gemm_bytes(m, n, k, dtype, accumulate), device=device, constants=constants
    )
    seconds = (
        constants.launch_seconds
        + np.maximum(compute, traffic)
        + constants.overlap_loss * np.minimum(compute, traffic)
    )
    if quantise:
        cast_bytes = (2 + DTYPE_BYTES[dtype]) * batch * k * (m + n)
        seconds = seconds + memory_bound_seconds(
            constants.quantise_passes * cast_bytes, device=device, constants=constants
        )
    return seconds


def _gemm_bytes(m: Seconds, n: Seconds, k: Seconds, dtype: str, accumulate: bool) -> Seconds:
    """Each input read once; the result written in 16 bits, or read and written in 32."""
    item = DTYPE_BYTES[dtype]
    result_item = 8.0 if accumulate else max(item, 2.0)
    return item * k * (m + n) + result_item * m * n


def _compute_seconds(
    m: Seconds,
    n: Seconds,
    k: Seconds,
    batch: Seconds,
    *,
    dtype: str,
    device: Device,
    constants: KernelConstants,
) -> Seconds:
    """Arithmetic alone: the fastest of a few tile shapes, as a library would choose."""
    rate = device.peak_flops_per_second(dtype) * constants.sustained(dtype)
    depth = _aligned(k, dtype) + constants.k_half
    if device.multiprocessors <= 0:
        return 2.0 * batch * m * n * depth / rate
    slots = float(device.multiprocessors)
    best = None
    for rows, columns, smallness in _TILES:
        tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
        waves = _waves(tiles / slots, k, constants.wave_softness)
        tile_rate = rate * constants.small_tile_rate**smallness
        seconds = waves * (2.0 * rows * columns * slots / tile_rate)
        best = seconds if best is None else np.minimum(best, seconds)
    return best * depth


def _waves(filled: Seconds, k: Seconds, softness: float) -> Seconds:
    """Waves of tiles: rounded up, softened; below one wave the inner dimension is split."""
    rounded = np.ceil(filled)
    soft = rounded - softness * (rounded - filled)
    split = np.clip(np.floor(1.0 / filled), 1.0, np.maximum(k / _MIN_SPLIT_K, 1.0))
    return np.where(filled < 1.0, np.sqrt(1.0 / split) * 1.0, soft)


def _aligned(k: Seconds, dtype: str) -> Seconds:
    """Inner dimension padded to what one matrix instruction takes (64 bytes).

    Odd strides also break wide loads: a dimension that is no multiple of 16 bytes runs on
    slower paths, about a quarter slower (NVIDIA, "Tensor Core requirements").
    """
    item = DTYPE_BYTES[dtype]
    step = 64.0 / item
    vector = 16.0 / item
    padded = np.ceil(k / step) * step
    return padded * np.where(np.mod(k, vector) == 0, 1.0, 1.3)


def linear_seconds(
    tokens: ArrayLike,
    out_features: ArrayLike,
    in_features: ArrayLike,
    *,
    dtype: str,
    device: Device,
    constants: KernelConstants,
    accumulate: bool = True,
) -> tuple[Seconds, Seconds, Seconds]:
    """Seconds of a linear layer: forward, input gradient, weight gradient.

    Args:
        tokens: Rows of the input.
        out_features: Columns of the result.
        in_features: Inner dimension of the forward product.
        dtype: Of the inputs.
        device: Data sheet.
        constants: Fitted constants.
        accumulate: The weight gradient is added to a float32 buffer.
    """
    given = {"dtype": dtype, "device": device, "constants": constants}
    given["quantise"] = dtype in ("fp8", "fp4")
    return (
        gemm_seconds(tokens, out_features, in_features, **given),
        gemm_seconds(tokens, in_features, out_features, **given),
        gemm_seconds(out_features, in_features, tokens, accumulate=accumulate, **given),
    )


def grouped_gemm_seconds(
    groups: ArrayLike,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    dtype: str,
    device: Device,
    constants: KernelConstants,
    accumulate: bool = False,
    quantise: bool = False,
) -> Seconds:
    """Seconds of one product per expert in one grouped kernel, ``m`` rows each."""
    return gemm_seconds(
        m,
        n,
        k,
        batch=groups,
        dtype=dtype,
        device=device,
        constants=constants,
        accumulate=accumulate,
        quantise=quantise,
    )
