"""From a ``Span`` on a ``Cluster`` to the hops, rates and start-ups that a group meets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster, Span, Tier
from planner.cost.collectives.closed_forms import low_latency_seconds, pipelined_seconds
from planner.cost.collectives.constants import CommunicationConstants


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
    hop_seconds: NDArray | float
    """Start-up of one hop of a tiny message."""
    fill_seconds: NDArray | float
    """Start-up of one hop of a message in chunks."""
    saturation_seconds: NDArray | float
    """Wire time per hop from which on chunks are as large as they get."""

    @property
    def used(self) -> NDArray:
        """Where the group crosses this tier at all."""
        return self.domains > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The tiers that a group meets, innermost first, and what its collective library adds."""

    paths: tuple[Path, ...]
    constants: CommunicationConstants
    kind: str
    startup_factor: float
    line_bytes_per_second: float
    """Data-sheet rate of one rank over the innermost tier."""
    switch_bytes_per_second: float
    """Buffer bytes that the innermost switch reduces for one rank."""

    @property
    def ranks(self) -> NDArray:
        """Ranks of the whole group."""
        return self.paths[-1].members

    @property
    def slowest_bytes_per_second(self) -> NDArray:
        """The rate of the tier that bounds a stream through the whole group."""
        rates = [np.where(p.used, p.bytes_per_second, np.inf) for p in self.paths]
        return np.minimum.reduce(rates)

    def message_seconds(
        self, wire_seconds, *, hops: Sequence, algorithm: str, low_latency: bool = True
    ):
        """Seconds of a message that takes so many hops of each tier in a row.

            t = base + sum of hops * start-up + the quicker of two protocols

        Args:
            wire_seconds: Bytes over the slowest link by its sustained rate.
            hops: Start-ups in a row by tier, innermost first.
            algorithm: Whose launch is paid.
            low_latency: Whether the algorithm also exists in the low-latency protocol.
        """
        terms = list(zip(hops, self.paths, strict=True))
        base = self.constants.base(algorithm, self.kind) * self.startup_factor
        latency = base + sum(h * p.hop_seconds for h, p in terms)
        chunked = pipelined_seconds(
            wire_seconds,
            latency_seconds=latency,
            fill_seconds=sum(h * p.fill_seconds for h, p in terms),
            saturation_seconds=sum(h * p.saturation_seconds for h, p in terms) + 1e-12,
        )
        if not low_latency:
            return chunked
        # Between nodes the flags cost more than they save: NCCL caps the protocol there.
        flagged = low_latency_seconds(wire_seconds, latency_seconds=latency)
        inside = self.paths[0].members >= self.ranks
        return np.where(inside, np.minimum(chunked, flagged), chunked)


def route_of(
    span: Span, cluster: Cluster, constants: CommunicationConstants, *, kind: str = ""
) -> Route:
    """The route of the groups of one axis, with the rates that a collective sustains on it."""
    startup = constants.startup_factor(cluster.device.architecture)
    line = cluster.tiers[0].bytes_per_second
    measured = cluster.fabric_degradation_exponent
    exponent = measured if measured >= 0 else constants.degradation_exponent
    found = []
    inside, sharers = np.ones_like(span.degree), np.ones_like(span.degree)
    for index, tier in enumerate(cluster.tiers):
        link, members = constants.link(tier.link), span.members[index]
        domains = -(-members // inside)
        rate = _rate(tier, inside=inside, domains=domains, sharers=sharers, outer=index > 0)
        unit = tier.latency_seconds * (startup if index == 0 else 1.0)
        if tier.size:
            at_work = np.maximum(members * span.sharers[index], 2) / 2.0
            rate = rate * at_work**-link.crowding_exponent
            unit = unit * at_work**link.startup_crowding_exponent
        if index > 0:
            rate = rate * (np.maximum(domains, 2) / 2.0) ** -exponent
        found.append(
            Path(
                inside=inside,
                members=members,
                domains=domains,
                crossings=(domains - 1) * -(-span.degree // members),
                bytes_per_second=rate * link.rate_fraction * constants.rate_fraction(kind),
                hop_seconds=unit * link.hop_factor,
                fill_seconds=unit * link.fill_factor,
                saturation_seconds=unit * link.saturation_factor,
            )
        )
        inside, sharers = members, span.sharers[index]
    return Route(
        paths=tuple(found),
        constants=constants,
        kind=kind,
        startup_factor=startup,
        line_bytes_per_second=line,
        switch_bytes_per_second=line * constants.switch_rate(cluster.device.architecture),
    )


def _rate(tier: Tier, *, inside, domains, sharers, outer: bool):
    """What the ranks of one inner domain can send over a tier together, by the data sheet.

    At most what their own cards carry, at most their share of the domain's uplink (which the
    groups that run side by side divide), at most the links to the peers that the group has:

        rate = min(inside * rank, uplink / sharers, peers * link to one peer)
    """
    rate = inside * tier.bytes_per_second
    if tier.peer_bytes_per_second > 0:
        rate = np.minimum(rate, np.maximum(domains - 1, 1) * tier.peer_bytes_per_second)
    if outer and tier.uplink_bytes_per_second > 0:
        rate = np.minimum(rate, tier.uplink_bytes_per_second / sharers)
    return rate
