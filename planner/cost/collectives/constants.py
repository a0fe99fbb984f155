"""The few physical numbers of communication, read from a calibration file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, get_args

from planner.cluster import LinkKind

ALGORITHMS = ("ring", "tree", "nvls")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
LINK_KINDS: tuple[str, ...] = get_args(LinkKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConstants:
    """How a kind of link behaves under a collective library, relative to its data sheet."""

    rate_fraction: float = 0.8
    """Sustained share of the line rate for large messages."""
    hop_factor: float = 0.25
    """Start-up of one hop of a tiny message, as a share of the tier's latency (low-latency
    protocols need less than the Simple protocol that the tier's figure describes)."""
    fill_factor: float = 0.25
    """Start-up of one hop of a chunked message that has to be filled, as a share of the same:
    sets the size at which half of the rate is reached."""
    saturation_factor: float = 20.0
    """Wire time per hop, in tier latencies, from which on chunks are as large as they get."""
    crowding_exponent: float = 0.0
    """The rate of a rank falls as ``(ranks at work in the domain / 2) ** -exponent``: host
    bridges, sockets and cores that ranks share; 0 for a switch."""
    startup_crowding_exponent: float = 0.0
    """Start-ups grow as ``(ranks at work in the domain / 2) ** exponent``: processes that wait
    for a core."""

    def __post_init__(self) -> None:
        if self.rate_fraction <= 0:
            raise ValueError(f"rate_fraction must be positive, got {self.rate_fraction}")
        for name in (
            "crowding_exponent",
            "startup_crowding_exponent",
            "hop_factor",
            "fill_factor",
            "saturation_factor",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationConstants:
    """What a collective library adds to the data sheet of a cluster."""

    links: Mapping[str, LinkConstants] = field(default_factory=dict)
    """By link kind; a kind that is not named takes ``other``."""
    other: LinkConstants = LinkConstants()
    base_seconds: Mapping[str, float] = field(default_factory=dict)
    """Launch and handshake of one call by algorithm, or by collective where that differs."""
    other_base_seconds: float = 6e-6
    startup_factors: Mapping[str, float] = field(default_factory=dict)
    """Start-ups of a device architecture, launches and hops inside the node alike, relative to
    the rest; 1 if not named."""
    own_block_cost: float = 0.45
    """A ring also copies each rank's own block: its time in blocks sent over the inner link."""
    tree_rate_fraction: float = 0.95
    """What a tree sustains of the ring's rate."""
    switch_rate_fraction: float = 0.7
    """Buffer bytes per second of a switch reduction (NVLS) over line rate times efficiency."""
    switch_efficiencies: Mapping[str, float] = field(default_factory=dict)
    """NCCL's own efficiency of NVLS by device architecture; 1 if not named."""
    kind_rate_fractions: Mapping[str, float] = field(default_factory=dict)
    """What each collective sustains of the link's rate; 1 if not named. An all-to-all has many
    small peers, a library may have written one collective with less care than another."""
    peer_seconds: float = 3e-7
    """Start-up per peer of an all-to-all."""
    degradation_exponent: float = 0.02
    """The rate between domains falls as ``(domains / 2) ** -exponent``: collisions of flows in
    the fabric and stragglers. A cluster with its own measured exponent takes that. Clean
    fabrics: about 0.01-0.03 (arXiv 2411.13055, 4 to 512 nodes); a shared, untuned one: 0.6
    (Ultra-Scale Playbook, 2 to 64 nodes)."""
    source: str = ""
    rows: int = 0
    """Measurements behind the numbers; 0 for priors."""
    median_error: float = 0.0
    """Median absolute relative residual over those rows."""

    def link(self, kind: str) -> LinkConstants:
        """Constants of a link kind."""
        return self.links.get(kind, self.other)

    def base(self, algorithm: str, kind: str = "") -> float:
        """Launch and handshake of one call, of the collective if named, else of its algorithm."""
        seconds = self.base_seconds
        return seconds.get(kind, seconds.get(algorithm, self.other_base_seconds))

    def rate_fraction(self, kind: str) -> float:
        """What a collective sustains of the link's rate."""
        return self.kind_rate_fractions.get(kind, 1.0)

    def startup_factor(self, architecture: str) -> float:
        """Start-ups of a device architecture relative to the rest."""
        return self.startup_factors.get(architecture, 1.0)

    def switch_rate(self, architecture: str) -> float:
        """Buffer bytes per second of a switch reduction over the line rate of one rank."""
        return self.switch_rate_fraction * self.switch_efficiencies.get(architecture, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for a JSON file."""
        return asdict(self)


def read_communication(table: Mapping[str, Any]) -> CommunicationConstants:
    """Constants from the plain numbers of a JSON file; refuses unknown keys.

    Raises:
        ValueError: Naming the key, link kind or algorithm that is not known.

    >>> read_communication({"links": {"nvlink": {"rate_fraction": 0.8}}}).link("nvlink").hop_factor
    0.25
    """
    table = dict(table)
    links = table.pop("links", {})
    unknown = [kind for kind in links if kind not in LINK_KINDS]
    unknown += [n for n in table.get("base_seconds", {}) if n not in ALGORITHMS + KINDS]
    unknown += [n for n in table.get("kind_rate_fractions", {}) if n not in KINDS]
    if unknown:
        raise ValueError(f"communication constants: unknown link or algorithm {unknown[0]!r}")
    try:
        if "other" in table:
            table["other"] = LinkConstants(**table["other"])
        table["links"] = {kind: LinkConstants(**values) for kind, values in links.items()}
        return CommunicationConstants(**table)
    except TypeError as error:
        raise ValueError(f"communication constants: {error}") from None


@lru_cache(maxsize=1)
def default_communication() -> CommunicationConstants:
    """The fit to published measurements that ships with the planner."""
    path = resources.files("planner") / "presets" / "calibrations" / "communication.json"
    return read_communication(json.loads(path.read_text(encoding="utf-8"))["constants"])
