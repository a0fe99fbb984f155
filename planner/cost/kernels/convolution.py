"""Seconds of convolutions, as the matrix products they are computed by."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import DTYPE_BYTES, KernelConstants
from planner.cost.kernels.gemm import gemm_seconds
from planner.cost.kernels.streaming import traffic_seconds


def convolution_seconds(
    *,
    batch: ArrayLike,
    in_channels: ArrayLike,
    out_channels: ArrayLike,
    height: ArrayLike,
    width: ArrayLike,
    kernel: ArrayLike,
    stride: ArrayLike = 1,
    groups: ArrayLike = 1,
    backward: bool = False,
    dtype: str,
    device: Device,
    constants: KernelConstants,
) -> NDArray[np.float64]:
    """Seconds of a 2-d convolution ("same" padding) by implicit matrix product.

    Forward is a product of ``batch * out_height * out_width`` rows, ``out_channels`` columns
    and inner dimension ``in_channels * kernel**2``; backward is the input and the weight
    gradient, the same product with its dimensions exchanged.

    Args:
        batch: Images.
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        height: Rows of the input.
        width: Columns of the input.
        kernel: Side of the square window.
        stride: Step of the window.
        groups: Independent groups of channels.
        backward: Both gradients instead of the forward pass.
        dtype: Of the inputs.
        device: Data sheet.
        constants: Fitted constants.

    Reference: Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014.
    """
    batch, in_channels, out_channels, height, width, kernel, stride, groups = (
        np.asarray(x, np.float64)
        for x in (batch, in_channels, out_channels, height, width, kernel, stride, groups)
    )
    pixels = batch * np.ceil(height / stride) * np.ceil(width / stride)
    columns, inner = out_channels / groups, in_channels / groups * kernel**2
    given = {"batch": groups, "dtype": dtype, "device": device, "constants": constants}
    if backward:
        product = gemm_seconds(pixels, inner, columns, **given)
        product = product + gemm_seconds(columns, inner, pixels, **given)
    else:
        product = gemm_seconds(pixels, columns, inner, **given)
    moved = batch * in_channels * height * width + pixels * out_channels
    traffic = traffic_seconds(moved * DTYPE_BYTES[dtype], device=device, constants=constants)
    return np.maximum(product / constants.convolution_fraction, traffic)
