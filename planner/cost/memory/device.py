"""What a device holds besides the framework's tensors, and how much of it can be used."""

from dataclasses import dataclass

import numpy as np

from planner.cluster import Device
from planner.framework import Framework
from planner.layout_table import LayoutTable
from planner.ops import Array
from planner.units import MIB

CUBLAS_BYTES_BEFORE_HOPPER = 8_519_680  # torch 2.x: :4096:2:16:8, pytorch issue 89027
CUBLAS_BYTES = 32 * MIB  # Hopper and later, and CUBLAS_WORKSPACE_CONFIG=:4096:8
ENGINE_BYTES_BEFORE_HOPPER = 4 * MIB  # cuBLAS's recommendation, taken by Transformer Engine
OLDER_GENERATIONS = ("Volta", "Turing", "Ampere", "Ada")
A100_MULTIPROCESSORS = 108
BLAS_THREADS = 2  # forward and backward run on threads of their own, each with its handle


def workspace_bytes(framework: Framework, device: Device | None) -> float:
    """Workspaces of matrix libraries, which torch takes from its caching allocator.

    One per cuBLAS handle; forward and autograd's backward thread have one each. A device
    that is not a GPU has none.
    """
    if device is not None and device.kind == "cpu":
        return 0.0
    old = device is not None and device.architecture in OLDER_GENERATIONS
    small = old and not framework.deterministic
    cublas = CUBLAS_BYTES_BEFORE_HOPPER if small else CUBLAS_BYTES
    engine = ENGINE_BYTES_BEFORE_HOPPER if old else framework.workspace_bytes
    return float(BLAS_THREADS * cublas + min(engine, framework.workspace_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Bytes outside the allocator's live tensors, per layout."""

    fragmentation: Array
    """Rounding and fragmentation: reserved less allocated."""
    communicators: Array
    """NCCL buffers."""
    context: Array
    """Device context, libraries and their workspaces."""


def context_bytes(framework: Framework, device: Device | None) -> float:
    """Device context and libraries, stated for an A100: it reserves stacks per multiprocessor."""
    if device is None or device.kind == "cpu":
        return 0.0 if device is not None else float(framework.context_bytes)
    share = device.multiprocessors / A100_MULTIPROCESSORS if device.multiprocessors else 1.0
    return framework.context_bytes * share


def communicator_bytes(
    framework: Framework, table: LayoutTable, device: Device | None = None
) -> Array:
    """NCCL buffers of one rank: one communicator per axis with more than one member.

    A channel's connections hold ``3 * (0.5 + 4.7 + 4)`` MiB (NCCL's LL, LL128 and Simple
    buffers for ring and tree), which with Ampere's 24 channels is what was measured; Volta's
    six links make half as many channels.

    The pipeline has one to either neighbour, of two ranks each; a framework may have further
    ones that span the world.
    """
    if device is not None and device.kind == "cpu":
        return np.zeros(np.shape(table.dp))
    halved = device is not None and device.architecture == "Volta"
    total: Array = 0.0
    for axis in (table.tp, table.cp, table.ep, table.dp):
        degree = np.asarray(axis)
        several = np.where(degree > 2, framework.communicator_bytes, 0.0)
        total = total + np.where(degree == 2, framework.pair_communicator_bytes, several)
    total = total + np.where(np.asarray(table.pp) > 1, 2.0 * framework.pair_communicator_bytes, 0)
    world = np.asarray(table.dp) * table.tp * table.pp * table.cp
    extra = framework.extra_communicators * framework.communicator_bytes
    return (total + np.where(world > 2, extra, 0.0)) * (0.5 if halved else 1.0)


def overheads(
    framework: Framework,
    table: LayoutTable,
    device: Device | None,
    *,
    allocated: Array,
    idle: Array,
) -> Overheads:
    """What comes on top of ``allocated``; ``idle`` are whole segments that lie unused."""
    return Overheads(
        fragmentation=framework.fragmentation * np.asarray(allocated) + idle,
        communicators=communicator_bytes(framework, table, device),
        context=context_bytes(framework, device),
    )


def usable_bytes(
    device_bytes: float, framework: Framework, table: LayoutTable, device: Device | None = None
) -> Array:
    """Capacity left for the allocator: the device's less context and communicators."""
    taken = context_bytes(framework, device) + communicator_bytes(framework, table, device)
    return device_bytes - taken
