"""What a device holds besides the framework's tensors, and how much of it can be used."""

from dataclasses import dataclass

import numpy as np

from planner.framework import Framework
from planner.layout_table import LayoutTable
from planner.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Bytes outside the allocator's live tensors, per layout."""

    fragmentation: Array
    """Rounding and fragmentation: reserved less allocated."""
    communicators: Array
    """NCCL buffers."""
    context: Array
    """Device context, libraries and their workspaces."""


def communicators(table: LayoutTable) -> Array:
    """NCCL communicators that one rank belongs to: one per axis with more than one member.

    The pipeline has one to either neighbour, and the data axis one more where ``cp`` joins it.
    """
    groups = [table.tp, table.cp, table.ep, table.dp, table.pp]
    return sum((np.asarray(group) > 1).astype(float) for group in groups)


def overheads(framework: Framework, table: LayoutTable, allocated: Array) -> Overheads:
    """What comes on top of ``allocated``."""
    return Overheads(
        fragmentation=framework.fragmentation * np.asarray(allocated),
        communicators=framework.communicator_bytes * communicators(table),
        context=float(framework.context_bytes),
    )


def usable_bytes(device_bytes: float, framework: Framework, table: LayoutTable) -> Array:
    """Capacity left for the allocator: the device's less context and communicators."""
    other = framework.context_bytes + framework.communicator_bytes * communicators(table)
    return device_bytes - other
