"""Collective algorithms over a ``Route``: how many hops, how many bytes over which tier."""

import numpy as np

from planner.cost.collectives.closed_forms import (
    all_to_all_wire_seconds,
    chain_wire_seconds,
    ring_wire_seconds,
    switch_wire_seconds,
    tree_wire_seconds,
)
from planner.cost.collectives.route import Path, Route


def ring_seconds(buffer_bytes, route: Route, *, passes: int):
    """A ring through the whole group, its slowest link carrying the stream.

        t = base + message(passes * (n - 1) / n * buffer / slowest rate + own block)

    Each rank also copies its own block from input to output inside the node.

    Args:
        buffer_bytes: The whole array.
        route: The tiers that the group meets.
        passes: 1 for an all-gather or a reduce-scatter, 2 for an all-reduce.
    """
    wire = ring_wire_seconds(
        buffer_bytes,
        ranks=route.ranks,
        passes=passes,
        bytes_per_second=route.slowest_bytes_per_second,
    )
    hops = [passes * p.crossings for p in route.paths]
    wire = wire + _own_block_seconds(buffer_bytes, route)
    return route.message_seconds(wire, hops=hops, algorithm="ring")


def _own_block_seconds(buffer_bytes, route: Route):
    """Copying a rank's own block from input to output, where the inner link sets the pace."""
    own = route.constants.own_block_cost * buffer_bytes / route.ranks
    return np.where(route.paths[0].used, own / route.line_bytes_per_second, 0.0)


def tree_seconds(buffer_bytes, route: Route):
    """A double binary tree over the domains, fed by chains inside the innermost ones.

        t = base + message(buffer over the worst tier), 2 (chain + log2(domains)) hops

    Reference: NCCL ``src/graph/tuning.cc``, tree latency.
    """
    inner, outer = route.paths[0], route.paths[1:]
    wire = chain_wire_seconds(
        buffer_bytes, members=inner.members, bytes_per_second=inner.bytes_per_second
    )
    wire = np.maximum(wire, _tree_wire(buffer_bytes, outer)) / route.constants.tree_rate_fraction
    hops = [2 * (inner.domains - 1), *(2 * _depth(p) for p in outer)]
    return route.message_seconds(wire, hops=hops, algorithm="tree")


def switch_seconds(buffer_bytes, route: Route):
    """A reduction inside the switch (NVLS), and a tree over the domains if there are several.

        t = base + message(buffer over the worst tier), log2(members) + 2 log2(domains) hops

    The switch reduces only among ranks that it joins: infinite for one rank per domain.
    """
    inner, outer = route.paths[0], route.paths[1:]
    inside = switch_wire_seconds(
        buffer_bytes, members=inner.members, bytes_per_second=route.switch_bytes_per_second
    )
    across = _tree_wire(buffer_bytes, outer) / route.constants.tree_rate_fraction
    hops = [_depth(inner), *(2 * _depth(p) for p in outer)]
    wire = np.maximum(inside, across)
    times = route.message_seconds(wire, hops=hops, algorithm="nvls", low_latency=False)
    return np.where(inner.used, times, np.inf)


def _depth(path: Path):
    return np.log2(np.maximum(path.domains, 1))


def _tree_wire(buffer_bytes, outer: tuple[Path, ...]):
    wire = np.zeros(())
    for p in outer:
        crossing = tree_wire_seconds(
            buffer_bytes, domains=p.domains, bytes_per_second=p.bytes_per_second
        )
        wire = np.maximum(wire, crossing)
    return wire


def hierarchical_seconds(buffer_bytes, route: Route):
    """Reduce-scatter inside, all-reduce of the shards across, all-gather inside, one by one.

        t = base + sum over tiers of message(2 passes of a ring over buffer / ranks inside)

    Each tier works on what the tier inside it has scattered: ``buffer / inside`` per rank,
    all the ranks of a domain sending side by side. Infinite for a group on one tier, where
    it would be the ring.

    Reference: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on
    heterogeneous network hierarchy", MLSys 2019.
    """
    total = np.zeros(())
    for p in route.paths:
        wire = ring_wire_seconds(
            buffer_bytes, ranks=p.domains, passes=2, bytes_per_second=p.bytes_per_second
        )
        hops = [2 * (q.domains - 1) * (q is p) for q in route.paths]
        total = total + p.used * route.message_seconds(wire, hops=hops, algorithm="ring")
    levels = sum(p.used * 1 for p in route.paths)
    return np.where(levels > 1, total + _own_block_seconds(buffer_bytes, route), np.inf)


def all_to_all_seconds(buffer_bytes, route: Route):
    """Every rank sends a block to every other; only what leaves a domain loads its uplink.

        t = base + (n - 1) * peer + message(worst tier)

    Transfers over different tiers run at once, so the worst one counts.
    """
    wire = np.zeros(())
    for p in route.paths:
        crossing = all_to_all_wire_seconds(
            buffer_bytes,
            ranks=route.ranks,
            inside=p.inside,
            domain_bytes_per_second=p.bytes_per_second,
        )
        wire = np.maximum(wire, np.where(p.used, crossing, 0.0))
    wire = wire + _own_block_seconds(buffer_bytes, route)
    peers = (route.ranks - 1) * route.constants.peer_seconds * route.startup_factor
    hops = [2.0 * p.used for p in route.paths]
    return peers + route.message_seconds(wire, hops=hops, algorithm="all_to_all")


def broadcast_seconds(buffer_bytes, route: Route):
    """A chunked chain through all ranks, or a tree of domains: the quicker one.

        t = base + message(buffer / slowest rate)

    A rank of a binary tree sends twice, so the tree wins only where start-ups rule.
    """
    wire = buffer_bytes / route.slowest_bytes_per_second
    crossings = [p.crossings for p in route.paths]
    chain = route.message_seconds(wire, hops=crossings, algorithm="ring")
    tree = route.message_seconds(2 * wire, hops=[_depth(p) for p in route.paths], algorithm="tree")
    return np.minimum(chain, tree)


def message_seconds(buffer_bytes, route: Route):
    """One message to one neighbour over the widest tier between them.

        t = base + message(buffer / slowest rate), one hop

    Both directions of a link are free at once, so sending and receiving cost one of them.
    """
    wire = buffer_bytes / route.slowest_bytes_per_second
    hops = [1.0 * p.used for p in route.paths]
    return route.message_seconds(wire, hops=hops, algorithm="send_recv")
