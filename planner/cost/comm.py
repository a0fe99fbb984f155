"""Communication time: seconds of collectives and of pipeline neighbours on a cluster.

A library such as NCCL picks the quickest of its algorithms for each size, and so does this
module: every legal algorithm is priced and the least time counts. Each time grows with the
bytes, so the least one does too.
"""

from typing import Literal, get_args

import numpy as np

from planner.cluster import Cluster, Span
from planner.cluster import span as span_of
from planner.cost.collectives.algorithms import (
    all_to_all_seconds,
    broadcast_seconds,
    hierarchical_seconds,
    message_seconds,
    ring_seconds,
    switch_seconds,
    tree_seconds,
)
from planner.cost.collectives.constants import (
    CommunicationConstants,
    LinkConstants,
    default_communication,
    read_communication,
)
from planner.cost.collectives.route import Route, route_of

__all__ = [
    "KINDS",
    "Collective",
    "CommunicationConstants",
    "LinkConstants",
    "algorithm_seconds",
    "collective_seconds",
    "default_communication",
    "read_communication",
    "send_recv_seconds",
    "supports_switch_reduction",
]

FIRST_SWITCH_REDUCTION_CAPABILITY = 9.0
"""NVLS needs the multicast of third-generation NVSwitch and Hopper (NVIDIA NCCL notes 2.17)."""

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
KINDS: tuple[Collective, ...] = get_args(Collective)


def collective_seconds(
    kind: Collective,
    buffer_bytes,
    *,
    span: Span,
    cluster: Cluster,
    constants: CommunicationConstants,
):
    """Seconds of one collective of every group of a parallel axis, all groups at once.

    Args:
        kind: One of ``KINDS``.
        buffer_bytes: The whole array: the gathered output of an all-gather, the full input
            of a reduce-scatter, one rank's send buffer of an all-to-all. Broadcasts.
        span: Where the groups lie; groups of one rank cost nothing.
        cluster: The nest of tiers.
        constants: Fitted rates and start-ups.

    Raises:
        ValueError: For an unknown kind.

    >>> from planner.catalogue import load_cluster
    >>> cluster = load_cluster("h100-sxm5-80gb:8")
    >>> inside = span_of(cluster, degree=[1, 8], stride=1)
    >>> times = collective_seconds(
    ...     "all_reduce", 1e9, span=inside, cluster=cluster, constants=default_communication()
    ... )
    >>> times.shape, float(times[0])
    ((2,), 0.0)
    """
    times = algorithm_seconds(
        kind, buffer_bytes, span=span, cluster=cluster, constants=constants
    ).values()
    return np.minimum.reduce([*times])


def algorithm_seconds(
    kind: Collective,
    buffer_bytes,
    *,
    span: Span,
    cluster: Cluster,
    constants: CommunicationConstants,
) -> dict[str, np.ndarray]:
    """Seconds by each algorithm that may carry a collective; infinite where it may not.

    Arguments and errors are those of ``collective_seconds``, which takes the least of these.
    """
    if kind not in KINDS:
        raise ValueError(f"a collective is one of {', '.join(KINDS)}, got {kind!r}")
    buffers = np.asarray(buffer_bytes, float)
    route = route_of(span, cluster, constants, kind=kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = _candidates(kind, buffers, route, cluster)
    nothing_to_do = (span.degree <= 1) | (buffers <= 0)
    return {name: np.where(nothing_to_do, 0.0, seconds) for name, seconds in times.items()}


def _candidates(
    kind: Collective, buffers: np.ndarray, route: Route, cluster: Cluster
) -> dict[str, np.ndarray]:
    if kind == "all_to_all":
        return {"all_to_all": all_to_all_seconds(buffers, route)}
    if kind == "broadcast":
        return {"broadcast": broadcast_seconds(buffers, route)}
    if kind in ("all_gather", "reduce_scatter"):
        return {"ring": ring_seconds(buffers, route, passes=1)}
    ring = {"ring": ring_seconds(buffers, route, passes=2)}
    if cluster.device.kind == "cpu":
        # Gloo has a ring and nothing else for more than a handful of bytes.
        return ring
    times = {
        **ring,
        "tree": tree_seconds(buffers, route),
        "hierarchical": hierarchical_seconds(buffers, route),
    }
    if supports_switch_reduction(cluster):
        times["nvls"] = switch_seconds(buffers, route)
    return times


def supports_switch_reduction(cluster: Cluster) -> bool:
    """Whether the innermost switch adds by itself (NVLink SHARP, Hopper and later)."""
    tier = cluster.tiers[0]
    try:
        capability = float(cluster.device.compute_capability)
    except ValueError:
        return False
    return (
        tier.link == "nvlink"
        and tier.switched
        and tier.size > 2
        and capability >= FIRST_SWITCH_REDUCTION_CAPABILITY
    )


def send_recv_seconds(
    buffer_bytes, *, stride, cluster: Cluster, constants: CommunicationConstants, degree=2
):
    """Seconds in which every pipeline stage passes one message to its neighbour.

    A pipeline that leaves the node somewhere waits for that slowest boundary, so the widest
    tier that ``degree`` stages cross is charged.

    Args:
        buffer_bytes: One message. Broadcasts.
        stride: Distance in ranks between neighbouring stages.
        cluster: The nest of tiers.
        constants: Fitted rates and start-ups.
        degree: Stages of the pipeline.
    """
    buffers = np.asarray(buffer_bytes, float)
    strides, degrees = np.asarray(stride, np.int64), np.asarray(degree, np.int64)
    lies = span_of(cluster, degree=degrees, stride=strides)
    # Two neighbours on either side of a boundary: one member in each narrower domain.
    outermost = lies.outermost_tier
    members = tuple(
        np.where((outermost > i) | (lies.degree < 2), 1, 2) for i in range(len(cluster.tiers))
    )
    pair = Span(degree=np.minimum(lies.degree, 2), members=members, sharers=lies.sharers)
    route = route_of(pair, cluster, constants, kind="send_recv")
    with np.errstate(divide="ignore", invalid="ignore"):
        times = message_seconds(buffers, route)
    return np.where((pair.degree > 1) & (buffers > 0), times, 0.0)
