"""Seconds of convolutions, as the matrix products they are computed by."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import DTYPE_BYTES, KernelConstants
from planner.cost.kernels.gemm import busy_seconds, product_seconds

Pixels = NDArray[np.float64]


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
) -> Pixels:
    """Seconds of a 2-d convolution ("same" padding) by implicit matrix product.

    Forward is a product of ``batch * out_height * out_width`` rows, ``out_channels`` columns
    and inner dimension ``in_channels * kernel**2``; backward is the input gradient (input
    pixels, input channels, ``out_channels * kernel**2 / stride**2``) and the weight gradient
    (output channels, ``in_channels * kernel**2``, output pixels). Traffic counts every tensor
    once: windows overlap in the cache. In float32, 3 x 3 windows of stride 1 are computed
    with 2.25 times fewer multiplications (Winograd).

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

    Reference: Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014; Lavin
    and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
    """
    batch, in_channels, out_channels, height, width, kernel, stride, groups = (
        np.asarray(x, np.float64)
        for x in (batch, in_channels, out_channels, height, width, kernel, stride, groups)
    )
    pixels_in = batch * height * width
    pixels_out = batch * np.ceil(height / stride) * np.ceil(width / stride)
    sources, targets, window = in_channels / groups, out_channels / groups, kernel**2
    given: dict[str, Any] = {"dtype": dtype, "device": device, "constants": constants}
    rate = _convolution_rate(kernel, stride, dtype, constants)
    moved = (pixels_in * in_channels + pixels_out * out_channels) * DTYPE_BYTES[dtype]

    def one(rows: Pixels, columns: Pixels, inner: Pixels) -> Pixels:
        compute = product_seconds(rows, columns, inner, groups, **given) / rate
        busy = busy_seconds(compute, moved, device=device, constants=constants)
        return constants.launch_seconds + busy

    if backward:
        input_gradient = one(pixels_in, sources, targets * window / stride**2)
        return input_gradient + one(targets, sources * window, pixels_out)
    return one(pixels_out, targets, sources * window)


def _convolution_rate(
    kernel: NDArray[np.float64],
    stride: NDArray[np.float64],
    dtype: str,
    constants: KernelConstants,
) -> NDArray[np.float64] | float:
    """Rate relative to the matrix product of the same shape.

    Matrix units wait for windows to be gathered; float32 vector units do not, and save
    multiplications by F(2x2, 3x3).
    """
    if dtype != "fp32":
        return constants.convolution_fraction
    return np.where((kernel == 3) & (stride == 1), 2.25, 1.0)
