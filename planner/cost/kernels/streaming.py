"""Seconds of work that is bound by memory traffic or by launching it."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import KernelConstants


def traffic_seconds(
    num_bytes: ArrayLike, *, device: Device, constants: KernelConstants
) -> NDArray[np.float64]:
    """Seconds to move bytes to and from device memory: bytes / (rate * memory_fraction)."""
    rate = device.memory_bytes_per_second * constants.memory_fraction
    return np.asarray(num_bytes, np.float64) / rate


def memory_bound_seconds(
    num_bytes: ArrayLike,
    *,
    launches: ArrayLike = 1,
    device: Device,
    constants: KernelConstants,
) -> NDArray[np.float64]:
    """Seconds of norms, activations, casts, optimizer steps: launch floor plus traffic.

        t = launches * launch_seconds + bytes / (memory rate * memory_fraction * operator_rate)

    Args:
        num_bytes: All bytes read and written.
        launches: Kernels that do it.
        device: Data sheet.
        constants: Fitted constants.
    """
    floor = np.asarray(launches, np.float64) * constants.launch_seconds
    traffic = traffic_seconds(num_bytes, device=device, constants=constants)
    return floor + traffic / constants.operator_rate


def eager_seconds(
    device_seconds: ArrayLike, *, launches: ArrayLike, constants: KernelConstants
) -> NDArray[np.float64]:
    """Seconds of a chain of eager kernels: the host may be slower than the device.

    t = max(device_seconds, launches * host_launch_seconds)
    """
    host = np.asarray(launches, np.float64) * constants.host_launch_seconds
    return np.maximum(device_seconds, host)
