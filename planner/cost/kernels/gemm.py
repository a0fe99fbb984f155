"""Seconds of matrix products: tiles, waves, traffic, launch."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import DTYPE_BYTES, KernelConstants
from planner.cost.kernels.streaming import traffic_seconds

Seconds = NDArray[np.float64]

_TILES = ((256, 128), (128, 256), (128, 128), (64, 128), (64, 64))
"""Rows and columns of the result that one multiprocessor computes at a time."""
_LARGEST_TILE, _SMALLEST_TILE = _TILES[0], _TILES[-1]
_MIN_SLICE = 256  # a shorter slice of the inner dimension is not worth a reduction


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
    accumulator_bytes: ArrayLike = 4.0,
    quantise: bool = False,
    grouped: bool = False,
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
        accumulate: The result is added to a buffer (weight gradients).
        accumulator_bytes: Of one number in that buffer, usually float32.
        quantise: The ``m x k`` input is first cast from 16 bits to ``dtype`` (fp8, fp4).
        grouped: The products are of experts, in a grouped kernel.

    Reference: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave
    quantisation); Osama et al., "Stream-K", PPoPP 2023.
    """
    m, n, k, batch = (np.maximum(np.asarray(x, np.float64), 1.0) for x in (m, n, k, batch))
    given: dict[str, Any] = {"dtype": dtype, "device": device, "constants": constants}
    rate = _alignment_rate(m, n, k, dtype=dtype, accumulate=accumulate, constants=constants)
    if accumulate:
        rate = rate * constants.accumulate_rate
    compute = product_seconds(m, n, k, batch, **given) / rate
    item = DTYPE_BYTES[dtype]
    result_item = 2.0 * np.asarray(accumulator_bytes) if accumulate else max(item, 2.0)
    moved = batch * (item * k * (m + n) + result_item * m * n)
    busy = busy_seconds(compute, moved, device=device, constants=constants)
    if grouped:
        busy = busy / constants.grouped_rate
    seconds = constants.launch_seconds + busy
    if quantise:
        cast = traffic_seconds((2.0 + item) * batch * m * k, device=device, constants=constants)
        seconds = seconds + constants.quantise_seconds + cast / constants.quantise_rate
    return seconds


def busy_seconds(
    compute: Seconds, moved_bytes: Seconds, *, device: Device, constants: KernelConstants
) -> Seconds:
    """Arithmetic and traffic together: the longer, and what of the shorter it does not hide."""
    traffic = traffic_seconds(moved_bytes, device=device, constants=constants)
    return np.maximum(compute, traffic) + constants.overlap_loss * np.minimum(compute, traffic)


def product_seconds(
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
    rate = constants.sustained_flops_per_second(device, dtype)
    depth = _padded(k, dtype)
    if device.kind == "cpu" or device.multiprocessors <= 0:
        return 2.0 * batch * m * n * (depth + constants.k_half) / rate
    slots = float(device.multiprocessors)
    best: Seconds = np.array(np.inf)
    for rows, columns in _TILES:
        filled = batch * np.ceil(m / rows) * np.ceil(n / columns) / slots
        work = _waves(filled, k, constants) * _depth(filled, depth, constants)
        scale = 2.0 * rows * columns * slots / (rate * _tile_rate(rows, columns, constants))
        best = np.minimum(best, work * scale)
    return best


def _tile_rate(rows: int, columns: int, constants: KernelConstants) -> float:
    """Rate of a tile relative to the largest: it falls with the loads per multiply-add.

    A tile loads ``1/rows + 1/columns`` elements for each; time grows linearly between the
    largest tile (rate 1) and the smallest (rate ``small_tile_rate``).
    """
    most, least, here = (
        1.0 / a + 1.0 / b for a, b in (_SMALLEST_TILE, _LARGEST_TILE, (rows, columns))
    )
    return 1.0 / (1.0 + (1.0 / constants.small_tile_rate - 1.0) * (here - least) / (most - least))


def _waves(filled: Seconds, k: Seconds, constants: KernelConstants) -> Seconds:
    """Waves of tiles: rounded up, but a long inner dimension is split to fill the last one.

    The part of the rounding that remains is ``1 / (1 + (k / split_k) ** 2)``.
    """
    remains = (1.0 - constants.wave_softness) / (1.0 + (k / constants.split_k) ** 2)
    whole = np.ceil(filled)
    return np.where(filled < 1.0, 1.0, filled + remains * (whole - filled))


def _depth(filled: Seconds, depth: Seconds, constants: KernelConstants) -> Seconds:
    """Multiply-adds that one multiprocessor does for each element of a tile.

    The inner dimension, and what filling and draining the pipeline costs. If the tiles are
    fewer than the multiprocessors, the inner dimension is cut into slices that run side by
    side; adding them up costs ``slice_overhead`` more.
    """
    slices = np.maximum(np.minimum(1.0 / filled, depth / _MIN_SLICE), 1.0)
    return depth / slices + constants.k_half + constants.slice_overhead * (1.0 - 1.0 / slices)


def _padded(k: Seconds, dtype: str) -> Seconds:
    """Inner dimension rounded up to one load of a tile, 64 bytes."""
    step = 64.0 / DTYPE_BYTES[dtype]
    return np.ceil(k / step) * step


def _alignment_rate(
    m: Seconds,
    n: Seconds,
    k: Seconds,
    *,
    dtype: str,
    accumulate: bool,
    constants: KernelConstants,
) -> Seconds:
    """Rows that are no multiple of 16 bytes cannot be loaded or stored in full width.

    Rows are ``k`` or ``n`` long; in a weight gradient also ``m``.

    Reference: NVIDIA, "Matrix Multiplication Background User's Guide", section on
    Tensor Core requirements; Bekman, "ML Engineering", SwiGLU width search.
    """
    vector = 16.0 / DTYPE_BYTES[dtype]
    odd = (np.mod(k, vector) != 0) | (np.mod(n, vector) != 0)
    if accumulate:
        odd = odd | (np.mod(m, vector) != 0)
    return np.where(odd, constants.misaligned_rate, 1.0)


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
    given: dict[str, Any] = {"dtype": dtype, "device": device, "constants": constants}
    cast = dtype in ("fp8", "fp4")  # casting also stores the transpose for the weight gradient
    return (
        gemm_seconds(tokens, out_features, in_features, quantise=cast, **given),
        gemm_seconds(tokens, in_features, out_features, quantise=cast, **given),
        gemm_seconds(out_features, in_features, tokens, accumulate=accumulate, **given),
    )


def grouped_gemm_seconds(
    groups: ArrayLike, m: ArrayLike, n: ArrayLike, k: ArrayLike, **given: Any
) -> Seconds:
    """Seconds of one product per expert in one grouped kernel, ``m`` rows each.

    Takes the keywords of ``gemm_seconds``.
    """
    return gemm_seconds(m, n, k, batch=groups, grouped=True, **given)
