"""The machine: devices, links and the tiers that a group of ranks crosses.

Every rate is bytes per second in one direction. A cluster is a nest of domains: ``tiers[0]``
is what joins the devices of one node (or NVLink domain), each further tier joins the domains
of the tier before it. Ranks are numbered along the nest, so a group of ``degree`` ranks that
lie ``stride`` apart has a fixed number of members in every domain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

LinkKind = Literal[
    "nvlink",
    "xgmi",
    "pcie",
    "infiniband",
    "roce",
    "efa",
    "ethernet",
    "gloo",
    "ici",
    "hccs",
    "neuronlink",
    "none",
]
DeviceKind = Literal["gpu", "tpu", "npu", "cpu"]
FromMemory = Literal["no", "partial", "yes"]
"""Whether the figures of a preset have a source, lack one in part, or have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one CPU rank), as its vendor describes it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    kind: DeviceKind = "gpu"
    vendor: str = ""
    architecture: str = ""
    """Generation, such as Volta, Ampere, Ada, Hopper, Blackwell, CDNA3, Gaudi2, TPU v5e, CPU."""
    compute_capability: str = ""
    memory_bytes: int
    """What the driver reports as total: the context is still to be taken off."""
    memory_bytes_per_second: float
    flops_per_second: Mapping[str, float] = field(default_factory=dict)
    """Dense peak by dtype: fp32, tf32, fp16, bf16, fp8, fp4 (fp32 accumulation)."""
    multiprocessors: int = 0
    l2_bytes: int = 0
    link: LinkKind = "none"
    """What joins devices of this kind inside one node, PCIe aside."""
    link_bytes_per_second: float = 0.0
    """All links of one device together, one direction."""
    link_domain: int = 0
    """Devices that these links can join: 2 for a bridge over a pair; 0 for all of a node."""
    pcie_bytes_per_second: float = 0.0
    watts: float = 0.0
    source: str = ""
    from_memory: FromMemory = "no"
    notes: str = ""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "memory_bytes_per_second"):
            if getattr(self, name) <= 0:
                raise ValueError(f"device {self.name}: {name} must be positive")
        if not self.flops_per_second or min(self.flops_per_second.values()) <= 0:
            raise ValueError(f"device {self.name}: needs at least one positive peak rate")

    def peak_flops_per_second(self, dtype: str) -> float:
        """Dense peak for a dtype, falling back to the next wider one the device has.

        Raises:
            ValueError: If no rate at least as wide is known.
        """
        widths = {"fp4": 0, "fp8": 1, "bf16": 2, "fp16": 2, "tf32": 3, "fp32": 4}
        if dtype in self.flops_per_second:
            return self.flops_per_second[dtype]
        wider = [d for d in self.flops_per_second if widths.get(d, 9) >= widths.get(dtype, 9)]
        if not wider:
            raise ValueError(f"device {self.name} has no rate for {dtype}")
        return self.flops_per_second[min(wider, key=lambda d: widths[d])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of the nest: ``size`` ranks joined by one kind of link."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    size: int
    """Ranks in one domain of this tier; 0 for the outermost tier: as many as there are."""
    link: LinkKind
    bytes_per_second: float
    """What one rank alone can send over this tier."""
    peer_bytes_per_second: float = 0.0
    """What one rank can send to one single peer; 0 for the whole rate. A full mesh (MI300X) or
    a cube mesh (V100) splits a rank's links among its peers, a switch does not."""
    uplink_bytes_per_second: float = 0.0
    """What all ranks of one *inner* domain can send together (its network cards); 0: no limit."""
    latency_seconds: float
    """Start-up of one hop, software included, as NCCL states it for its Simple protocol: NVLink
    3.4 us, PCIe 5.7, network 14; the cost model scales it by fitted factors per link kind."""
    switched: bool = True
    """Every rank reaches every other at full rate (NVSwitch, fat tree), not only neighbours."""
    generation: str = ""

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"tier {self.name}: size must not be negative, got {self.size}")
        if self.bytes_per_second <= 0 or self.latency_seconds < 0:
            raise ValueError(f"tier {self.name}: needs a positive rate and a latency of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices in nested domains, innermost tier first."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    device: Device
    tiers: tuple[Tier, ...]
    devices_per_host: int = 0
    """Devices under one operating system; 0 for those of the innermost domain (an NVLink
    domain of 72 spans 18 hosts, a pair inside a box does not fill one)."""
    host_memory_bytes: int = 0
    """Of one host; 0 if unknown."""
    usd_per_device_hour: float = 0.0
    """0 if no price was published."""
    price_source: str = ""
    """Date, region and source of the price."""
    num_devices: int = 0
    """Devices that exist; 0 for any number."""
    compute_rate: float = 1.0
    """Rate of this machine's devices over what their kind does elsewhere, as measured: capped
    clocks, slow hosts."""
    pipeline_stall_seconds: float = 0.0
    """Measured delay of each layer and microbatch while a pipeline crosses this fabric."""
    pipeline_stall_rank_seconds: float = 0.0
    """The same, times ``tp ** 1.5``: stalls of a tensor-parallel group add up."""
    pipeline_timeout_seconds: float = 0.0
    """Measured wait per microbatch for a link that times out, in pipelines of jobs that span
    at least ``pipeline_timeout_nodes`` nodes: most of these have such a link."""
    pipeline_timeout_nodes: int = 0
    fabric_degradation_exponent: float = -1.0
    """The rate between domains falls as ``(domains / 2) ** -exponent`` where this fabric was
    measured to be shared or untuned; negative for the calibration's own, of clean fabrics."""
    source: str = ""
    from_memory: FromMemory = "no"
    notes: str = ""

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ValueError(f"cluster {self.name}: needs at least one tier")
        sizes = [tier.size for tier in self.tiers[:-1]]
        if any(size < 1 for size in sizes) or sizes != sorted(sizes):
            raise ValueError(f"cluster {self.name}: tier sizes must grow outwards, got {[*sizes]}")
        sizes += [self.tiers[-1].size] if self.tiers[-1].size else []
        if any(outer % inner for inner, outer in pairwise(sizes)):
            raise ValueError(
                f"cluster {self.name}: each tier must hold whole domains of the one inside it, "
                f"got sizes {sizes}"
            )
        for name in ("devices_per_host", "host_memory_bytes", "usd_per_device_hour"):
            if getattr(self, name) < 0:
                raise ValueError(f"cluster {self.name}: {name} must not be negative")

    @property
    def devices_per_node(self) -> int:
        """Ranks of the innermost domain."""
        return self.tiers[0].size or self.num_devices or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How groups of ranks lie in the nest; every field is an array over groups.

    ``members[i]`` is the number of ranks of one group inside one domain of tier ``i``, so
    ``members[-1]`` is the whole group. ``sharers[i]`` is how many groups of the same kind
    work at once inside one domain of tier ``i``; those that leave it share its uplink to tier
    ``i + 1``.
    """

    degree: NDArray[np.int64]
    members: tuple[NDArray[np.int64], ...]
    sharers: tuple[NDArray[np.int64], ...]

    @property
    def outermost_tier(self) -> NDArray[np.int64]:
        """Index of the widest tier that the group crosses (0 for a group inside a node)."""
        index = np.zeros_like(self.degree)
        for i, inner in enumerate(self.members[:-1]):
            index = np.where(inner < self.degree, i + 1, index)
        return index


def span(cluster: Cluster, *, degree: object, stride: object, world_size: object = 0) -> Span:
    """Where the groups of one parallel axis lie; broadcasts over its array arguments.

    Args:
        cluster: The nest.
        degree: Ranks in one group.
        stride: Distance between neighbours, the product of the inner axes' degrees.
        world_size: Ranks of the whole job; 0 for all that the cluster has, or one set of groups
            (``degree * stride``) on a cluster of any size.

    >>> from planner.catalogue import load_cluster
    >>> lies = span(load_cluster("h100-8x400g"), degree=16, stride=2)
    >>> [int(m) for m in lies.members], [int(s) for s in lies.sharers]
    ([4, 16], [2, 2])
    """
    return span_of_axes(cluster, [(degree, stride)], world_size=world_size)


def span_of_axes(
    cluster: Cluster, axes: Sequence[tuple[object, object]], *, world_size: object = 0
) -> Span:
    """Where the groups over several axes together lie (replicas times context ranks, say).

    A domain of ``size`` ranks holds ``size / stride`` neighbours of an axis (at least one, at
    most all) and the product over the axes of one group; the domain's ranks, divided by that,
    are its groups. A group that would fit into a domain but does not divide it is split by a
    border somewhere, and the split ones set the pace: they count as two halves.

    Args:
        cluster: The nest.
        axes: Degree and stride of each axis; the strides must nest.
        world_size: Ranks of the whole job; 0 for all that the cluster has, or one set of groups
            on a cluster of any size.
    """
    arrays = [np.asarray(value, np.int64) for axis in axes for value in axis]
    worlds, *arrays = np.broadcast_arrays(np.asarray(world_size, np.int64), *arrays)
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    whole = np.prod([degree for degree, _ in pairs], axis=0)
    worlds = np.where(worlds > 0, worlds, cluster.num_devices)
    worlds = np.maximum(worlds, np.max([d * s for d, s in pairs], axis=0))
    members, sharers = [], []
    for tier in cluster.tiers[:-1]:
        inside, borders = np.ones_like(whole), np.zeros_like(whole)
        for degree, stride in pairs:
            fits, split = _inside(tier.size, degree, stride, worlds)
            inside, borders = inside * fits, np.where(split, stride, borders)
        groups = np.maximum(np.minimum(tier.size, worlds) // inside, 1)
        members.append(inside)
        # A border cuts one group per stride, not all those that lie inside.
        sharers.append(np.where(borders > 0, np.minimum(borders, tier.size), groups))
    members.append(whole.copy())
    outer = cluster.tiers[-1].size or np.iinfo(np.int64).max
    sharers.append(np.maximum(np.minimum(outer, worlds) // whole, 1))
    return Span(degree=whole, members=tuple(members), sharers=tuple(sharers))


def _inside(size: int, degree, stride, worlds):
    """Neighbours of one axis inside a domain, and whether its border splits some group."""
    period = degree * stride
    split = (period < size) & (worlds > size) & (size % period != 0)
    inside = np.clip(size // stride, 1, degree)
    return np.where(split, -(-degree // 2), inside), split
