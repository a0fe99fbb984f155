"""Algorithms over the tiers of a cluster: from a ``Span`` to hops, rates and seconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster, Span
from planner.cost.collectives.closed_forms import (
    all_to_all_wire_seconds,
    chain_wire_seconds,
    pipelined_seconds,
    ring_wire_seconds,
    switch_wire_seconds,
    tree_wire_seconds,
)
from planner.cost.collectives.constants import CommunicationConstants

FIRST_SWITCH_REDUCTION_CAPABILITY = 9.0
"""NVLS needs the multicast of third-generation NVSwitch and Hopper (NVIDIA NCCL notes 2.17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What one group meets on one tier; arrays over groups."""

    inside: NDArray
    """Ranks of the group in one inner domain, which enter the tier together."""
    members: NDArray
    """Ranks of the group in one domain of the tier."""
    domains: NDArray
    """Inner domains that the group joins here; 1 where it does not use the tier."""
    crossings: NDArray
    """Links of this tier on a ring through the whole group (less the one that closes it)."""
    bytes_per_second: NDArray
    """What the ranks of one inner domain send over the tier together."""
    hop_seconds: float
    fill_seconds: float

    @property
    def used(self) -> NDArray:
        """Where the group crosses this tier at all."""
        return self.domains > 1


def paths(
    span: Span, cluster: Cluster, constants: CommunicationConstants, *, kind: str = ""
) -> list[Path]:
    """One path per tier, innermost first, with the rates that a collective sustains on it.

    The ranks of an inner domain send over a tier at most what their own cards carry, and at
    most their share of the domain's uplink, which the groups that run side by side divide:

        rate = min(inside * rank rate, uplink / sharers) * sustained fraction

    A link to one single peer bounds a group that has few peers (full mesh, cube mesh).
    """
    found = []
    inside, sharers = np.ones_like(span.degree), np.ones_like(span.degree)
    for index, tier in enumerate(cluster.tiers):
        link = constants.link(tier.link)
        members = span.members[index]
        domains = -(-members // inside)
        outer_domains = 1 if index == len(cluster.tiers) - 1 else -(-span.degree // members)
        rate = inside * tier.bytes_per_second
        if tier.peer_bytes_per_second > 0:
            rate = np.minimum(rate, np.maximum(domains - 1, 1) * tier.peer_bytes_per_second)
        if index > 0 and tier.uplink_bytes_per_second > 0:
            rate = np.minimum(rate, tier.uplink_bytes_per_second / sharers)
        if index > 0:
            rate = rate * (np.maximum(domains, 2) / 2.0) ** -constants.degradation_exponent
        found.append(
            Path(
                inside=inside,
                members=members,
                domains=domains,
                crossings=(domains - 1) * outer_domains,
                bytes_per_second=rate * link.rate_fraction * constants.rate_fraction(kind),
                hop_seconds=tier.latency_seconds * link.hop_factor,
                fill_seconds=tier.latency_seconds * link.fill_factor,
            )
        )
        inside, sharers = members, span.sharers[index]
    return found


def ring_seconds(buffer_bytes, route: list[Path], constants, *, passes, kind=""):
    """A ring through the whole group, its slowest link carrying the stream.

        t = base + passes * sum of hops + pipelined(passes * (n - 1) / n * buffer / slowest rate)

    Args:
        buffer_bytes: The whole array.
        route: The tiers that the group meets.
        constants: Rates and start-ups.
        passes: 1 for an all-gather or a reduce-scatter, 2 for an all-reduce.
        kind: The collective, for its own start-up if the constants name one.
    """
    slowest = np.minimum.reduce([np.where(p.used, p.bytes_per_second, np.inf) for p in route])
    hops = sum(p.crossings * p.hop_seconds for p in route)
    fill = sum(p.crossings * p.fill_seconds for p in route)
    wire = ring_wire_seconds(
        buffer_bytes, ranks=route[-1].members, passes=passes, bytes_per_second=slowest
    )
    latency = constants.base("ring", kind) + passes * hops
    return pipelined_seconds(wire, latency_seconds=latency, fill_seconds=passes * fill)


def tree_seconds(buffer_bytes, route: list[Path], constants):
    """A double binary tree over the domains, fed by chains inside the innermost ones.

    t = base + 2 (chain hops + log2(domains) tree hops) + pipelined(buffer over the worst tier)

    Reference: NCCL ``src/graph/tuning.cc``, tree latency.
    """
    inner, outer = route[0], route[1:]
    wire = chain_wire_seconds(
        buffer_bytes, members=inner.members, bytes_per_second=inner.bytes_per_second
    )
    steps, fill = _chain(inner)
    return _tree(buffer_bytes, outer, constants, "tree", (wire, steps, fill))


def switch_seconds(buffer_bytes, route: list[Path], constants, *, line_bytes_per_second):
    """A reduction inside the switch (NVLS), and a tree over the domains if there are several.

        t = base + 2 log2(domains) tree hops + pipelined(buffer over the worst tier)

    Args:
        buffer_bytes: The whole array.
        route: The tiers that the group meets.
        constants: Rates and start-ups.
        line_bytes_per_second: Data-sheet rate of one rank to the switch.
    """
    inner, outer = route[0], route[1:]
    rate = line_bytes_per_second * constants.switch_rate_fraction
    wire = switch_wire_seconds(buffer_bytes, members=inner.members, bytes_per_second=rate)
    fill = inner.used * inner.fill_seconds
    return _tree(buffer_bytes, outer, constants, "nvls", (wire, inner.used * 0.0, 2 * fill))


def _chain(inner: Path):
    return (inner.domains - 1) * inner.hop_seconds, (inner.domains - 1) * inner.fill_seconds


def _tree(buffer_bytes, outer, constants, algorithm, inner_terms):
    wire, steps, fill = inner_terms
    if algorithm == "tree":
        wire = wire / constants.tree_rate_fraction
    for p in outer:
        depth = np.log2(np.maximum(p.domains, 1))
        rate = p.bytes_per_second * constants.tree_rate_fraction
        crossing = tree_wire_seconds(buffer_bytes, domains=p.domains, bytes_per_second=rate)
        wire = np.maximum(wire, crossing)
        steps = steps + depth * p.hop_seconds
        fill = fill + depth * p.fill_seconds
    latency = constants.base(algorithm) + 2 * steps
    return pipelined_seconds(wire, latency_seconds=latency, fill_seconds=2 * fill)


def hierarchical_seconds(buffer_bytes, route: list[Path], constants):
    """Reduce-scatter inside, all-reduce of the shards across, all-gather inside, one by one.

        t = base + sum over tiers of 2 passes of a ring over buffer / ranks inside

    Each tier works on what the tier inside it has scattered: ``buffer / inside`` per rank,
    all the ranks of a domain sending side by side.

    Reference: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on
    heterogeneous network hierarchy", MLSys 2019.
    """
    total = constants.base("ring")
    for p in route:
        hops = 2 * (p.domains - 1)
        wire = ring_wire_seconds(
            buffer_bytes, ranks=p.domains, passes=2, bytes_per_second=p.bytes_per_second
        )
        total = total + pipelined_seconds(
            wire, latency_seconds=hops * p.hop_seconds, fill_seconds=hops * p.fill_seconds
        )
    return total


def all_to_all_seconds(buffer_bytes, route: list[Path], constants):
    """Every rank sends a block to every other; only what leaves a domain loads its uplink.

    t = base + (n - 1) * peer + deepest hop + pipelined(worst tier)

    Transfers over different tiers run at once, so the worst one counts.
    """
    ranks = route[-1].members
    wire, hop, fill = 0.0, 0.0, 0.0
    for p in route:
        crossing = all_to_all_wire_seconds(
            buffer_bytes,
            ranks=ranks,
            inside=p.inside,
            domain_bytes_per_second=p.bytes_per_second,
        )
        wire = np.maximum(wire, np.where(p.used, crossing, 0.0))
        hop = np.maximum(hop, p.used * p.hop_seconds)
        fill = np.maximum(fill, p.used * p.fill_seconds)
    latency = constants.base("all_to_all") + (ranks - 1) * constants.peer_seconds + hop
    return pipelined_seconds(wire, latency_seconds=latency, fill_seconds=2 * fill)


def broadcast_seconds(buffer_bytes, route: list[Path], constants):
    """A chunked chain through all ranks, or a tree of domains: the quicker one.

    t = base + hops + pipelined(buffer / slowest rate)
    """
    slowest = np.minimum.reduce([np.where(p.used, p.bytes_per_second, np.inf) for p in route])
    wire = buffer_bytes / slowest
    hops = sum(p.crossings * p.hop_seconds for p in route)
    fill = sum(p.crossings * p.fill_seconds for p in route)
    chain = pipelined_seconds(
        wire, latency_seconds=constants.base("ring") + hops, fill_seconds=fill
    )
    depths = [np.log2(np.maximum(p.domains, 1)) for p in route]
    hops = sum(d * p.hop_seconds for d, p in zip(depths, route, strict=True))
    fill = sum(d * p.fill_seconds for d, p in zip(depths, route, strict=True))
    latency = constants.base("tree") + hops
    tree = pipelined_seconds(2 * wire, latency_seconds=latency, fill_seconds=fill)
    return np.minimum(chain, tree)


def send_recv_path_seconds(buffer_bytes, route: list[Path], constants):
    """One message to one neighbour over the widest tier between them.

    t = base + hop + pipelined(buffer / slowest rate)
    """
    slowest = np.minimum.reduce([np.where(p.used, p.bytes_per_second, np.inf) for p in route])
    hop = np.maximum.reduce([p.used * p.hop_seconds for p in route])
    fill = np.maximum.reduce([p.used * p.fill_seconds for p in route])
    latency = constants.base("send_recv") + hop
    return pipelined_seconds(buffer_bytes / slowest, latency_seconds=latency, fill_seconds=fill)
