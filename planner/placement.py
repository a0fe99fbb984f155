"""Which ranks talk to which: every process group of a layout, laid onto a cluster."""

from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster, Span, span_of_axes
from planner.layout import Axis

Group = Literal[
    "tp", "cp", "dp", "pp", "ep", "etp", "gradient", "shard", "replicate", "expert_gradient"
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The axes; the experts' own axes; the replicas that sum one gradient (dp x cp), of which
``shard`` ranks share one copy and ``replicate`` hold equal shards (HSDP); and the replicas of
one expert."""


class Strided(Protocol):
    """A ``Layout`` or a whole ``LayoutTable``."""

    def stride(self, axis: Axis) -> object:
        """Distance in ranks between neighbours of one axis."""


def place(layout: Strided, cluster: Cluster, groups: tuple[Group, ...] = GROUPS) -> dict:
    """Where each process group lies, as one ``Span`` per group.

    Args:
        layout: One layout or a table of many; the spans have the shape of its columns.
        cluster: The nest of tiers.
        groups: Which groups are wanted.

    >>> from planner.catalogue import load_cluster
    >>> from planner.layout import Layout
    >>> spans = place(Layout(tp=4, dp=4, pp=2), load_cluster("a100-80g-8x200g"), ("dp",))
    >>> int(spans["dp"].members[0]), int(spans["dp"].sharers[0])
    (2, 4)
    """
    return {group: _span(layout, cluster, group) for group in groups}


def _span(layout, cluster: Cluster, group: Group) -> Span:
    world = np.asarray(layout.dp) * layout.tp * layout.pp * layout.cp
    return span_of_axes(cluster, group_axes(layout, group), world_size=world)


def group_axes(layout, group: Group) -> list[tuple[NDArray, NDArray]]:
    """Degree and stride of the axes that make up one process group.

    Sharding takes the innermost of the replicas that sum a gradient, ``ep * etp`` the
    innermost of the ranks of one pipeline stage, as Megatron-LM and torchtitan lay them out.
    """
    if group in ("tp", "cp", "dp", "pp"):
        return [(np.asarray(getattr(layout, group)), np.asarray(layout.stride(group)))]
    replicas = np.asarray(layout.dp) * layout.cp
    stage = replicas * layout.tp
    experts = np.asarray(layout.etp) * layout.ep
    table: dict[str, tuple[tuple[Axis, ...], object, object]] = {
        "gradient": (("cp", "dp"), 1, replicas),
        "shard": (("cp", "dp"), 1, layout.shard_group),
        "replicate": (("cp", "dp"), layout.shard_group, replicas),
        "etp": (("tp", "cp", "dp"), 1, layout.etp),
        "ep": (("tp", "cp", "dp"), layout.etp, experts),
        "expert_gradient": (("tp", "cp", "dp"), experts, stage),
    }
    axes, low, high = table[group]
    return _slice(layout, axes, np.asarray(low), np.asarray(high))


def _slice(layout, axes: tuple[Axis, ...], low: NDArray, high: NDArray):
    """The ranks from ``low`` to ``high`` of several axes, counted by growing stride.

    Of the counted ranks ``low`` are further in than the group, ``high`` include the group.
    """
    strides = {axis: np.asarray(layout.stride(axis)) for axis in axes}
    found = []
    for axis in axes:
        degree, stride = np.asarray(getattr(layout, axis)), strides[axis]
        inner = np.ones_like(stride)
        for other in axes:
            closer = strides[other] < stride
            # Axes of degree 1 share the stride of their neighbour and do not count.
            inner = inner * np.where(closer, np.asarray(getattr(layout, other)), 1)
        start, end = np.maximum(inner, low), np.minimum(inner * degree, high)
        found.append((np.maximum(end // start, 1), stride * np.maximum(start // inner, 1)))
    return found
