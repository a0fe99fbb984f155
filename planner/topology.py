"""Machines that are not a regular nest: unlike hosts, islands joined by a slow link.

A ``Topology`` is a graph of hosts and switches. What two hosts can exchange is set by the
slowest link of the best path between them, so that all such rates are those of one spanning
tree; merging hosts from its fastest link to its slowest lays them out in the order in which a
chain of pipeline stages crosses every slow link only once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from planner.cluster import Cluster, Device, LinkKind

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine (or NVLink domain) of equal devices."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    device: Device
    num_devices: int

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"host {self.name}: needs at least 1 device, got {self.num_devices}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A link between two hosts, between a host and a switch, or between two switches."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    ends: tuple[str, str]
    bytes_per_second: float
    """One direction, for all devices of a host together."""
    link: LinkKind = "ethernet"

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0:
            raise ValueError(f"wire {'-'.join(self.ends)}: needs a positive rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts and the wires between them; names that are not hosts are switches."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    hosts: tuple[Host, ...]
    wires: tuple[Wire, ...]

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"topology {self.name}: needs hosts with different names")

    def graph(self) -> "nx.Graph":
        """The wires as a networkx graph; parallel wires add up, hosts carry ``host``.

        Raises:
            ValueError: If some host cannot be reached from another.
        """
        import networkx as nx

        graph = nx.Graph()
        for host in self.hosts:
            graph.add_node(host.name, host=host)
        for wire in self.wires:
            already = graph.get_edge_data(*wire.ends, {"bytes_per_second": 0.0})
            rate = already["bytes_per_second"] + wire.bytes_per_second
            graph.add_edge(*wire.ends, bytes_per_second=rate)
        parts = [sorted(part) for part in nx.connected_components(graph)]
        if len(parts) > 1:
            raise ValueError(f"topology {self.name}: nothing joins {parts[0][0]} to {parts[1][0]}")
        return graph


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """On which host each pipeline stage runs, in pipeline order."""

    hosts: tuple[str, ...]
    boundary_bytes_per_second: tuple[float, ...]
    """Between a stage and the next; infinite inside one host."""
    speeds: tuple[float, ...]
    """Peak rate of one device of each stage, for a split by speed (``optimal_split``)."""

    @property
    def crossings(self) -> int:
        """Stage boundaries that leave a host."""
        return sum(a != b for a, b in zip(self.hosts, self.hosts[1:], strict=False))

    def boundary_seconds(self, message_bytes: float) -> float:
        """Time of one message over every boundary, one after the other."""
        return sum(message_bytes / rate for rate in self.boundary_bytes_per_second)


def topology_of(cluster: Cluster, *, num_hosts: int) -> Topology:
    """A regular cluster as a graph: one switch per domain of each tier beyond the host."""
    inner = cluster.devices_per_node
    hosts = [f"host {i}" for i in range(num_hosts)]
    wires, below, size = [], hosts, inner
    for level, tier in enumerate(cluster.tiers[1:], 1):
        domains = -(-len(below) * size // tier.size) if tier.size else 1
        switches = [f"{tier.name} {level}.{i}" for i in range(domains)]
        rate = tier.uplink_bytes_per_second or size * tier.bytes_per_second
        per_switch = -(-len(below) // domains)
        wires += [
            Wire(ends=(name, switches[i // per_switch]), bytes_per_second=rate, link=tier.link)
            for i, name in enumerate(below)
        ]
        below, size = switches, tier.size
    return Topology(
        name=cluster.name,
        hosts=tuple(Host(name=h, device=cluster.device, num_devices=inner) for h in hosts),
        wires=tuple(wires),
    )


def chain_of_hosts(topology: Topology) -> list[tuple[str, float]]:
    """Hosts in the order that crosses slow links least, each with the rate to the one before.

    The widest paths of a graph lie on its maximum spanning tree (Hu, "The maximum capacity
    route problem", Operations Research 9(6), 1961). Joining its edges from the fastest to the
    slowest, each time end to end, gives a chain whose boundaries are exactly those edges: as
    no chain can do without as many slow boundaries as the tree has, none is better.

    Raises:
        ValueError: If some host cannot be reached from another.
    """
    import networkx as nx

    graph = topology.graph()
    order = {host.name: number for number, host in enumerate(topology.hosts)}
    parts = {n: _Part([n], [(n, math.inf)] if n in order else []) for n in graph}
    tree = nx.maximum_spanning_tree(graph, weight="bytes_per_second")
    edges = tree.edges(data="bytes_per_second")
    for a, b, rate in sorted(edges, key=lambda edge: -edge[2]):
        left, right = parts[a], parts[b]
        if _first(right, order) < _first(left, order):
            left, right = right, left
        if left.chain and right.chain:
            right.chain[0] = (right.chain[0][0], rate)
        left.members.extend(right.members)
        left.chain.extend(right.chain)
        parts.update(dict.fromkeys(right.members, left))
    return parts[topology.hosts[0].name].chain


class _Part(NamedTuple):
    """Hosts and switches joined so far, and the hosts among them as a chain."""

    members: list[str]
    chain: list[tuple[str, float]]


def _first(part: _Part, order: dict[str, int]) -> float:
    return order[part.chain[0][0]] if part.chain else math.inf


def place_stages(
    topology: Topology, *, stages: int, devices_per_stage: int = 1, dtype: str = "bf16"
) -> StagePlacement:
    """Put the stages of one pipeline on hosts so that messages cross the fewest slow links.

    Stages fill the hosts of ``chain_of_hosts`` one after the other. If not all hosts are
    needed, the run of the chain with the least time on its boundaries is taken.

    Args:
        topology: The machine.
        stages: Pipeline stages.
        devices_per_stage: Devices of one stage (tp * cp * dp), all on one host.
        dtype: Whose peak rate counts as a device's speed.

    Raises:
        ValueError: If the hosts have no room for so many stages.
    """
    chain = chain_of_hosts(topology)
    hosts = {host.name: host for host in topology.hosts}
    room = {name: host.num_devices // devices_per_stage for name, host in hosts.items()}
    if sum(room.values()) < stages:
        raise ValueError(
            f"{stages} stages of {devices_per_stage} devices do not fit: the hosts have room for "
            f"{sum(room.values())}; use fewer stages or fewer devices in each"
        )
    runs = [_fill(chain[start:], room, stages) for start in range(len(chain))]
    names, rates = min((run for run in runs if run), key=lambda run: sum(1 / r for r in run[1]))
    return StagePlacement(
        hosts=tuple(names),
        boundary_bytes_per_second=tuple(rates),
        speeds=tuple(hosts[name].device.peak_flops_per_second(dtype) for name in names),
    )


def _fill(
    chain: Sequence[tuple[str, float]], room: dict[str, int], stages: int
) -> tuple[list[str], list[float]] | None:
    """Stages on a run of hosts and the rates between them; None if the run is too short."""
    names: list[str] = []
    rates: list[float] = []
    slowest = math.inf
    for name, rate in chain:
        slowest = min(slowest, rate) if names else math.inf
        count = min(room[name], stages - len(names))
        if count:
            rates += [slowest] * bool(names) + [math.inf] * (count - 1)
            names += [name] * count
            slowest = math.inf
        if len(names) == stages:
            return names, rates
    return None
