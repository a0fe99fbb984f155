"""Fit of the communication constants to measured collectives: bounded, regularised, in logs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from planner.cluster import Cluster, span
from planner.cost.collectives.constants import (
    CommunicationConstants,
    LinkConstants,
    default_communication,
)
from planner.cost.comm import (
    Collective,
    algorithm_seconds,
    send_recv_seconds,
    supports_switch_reduction,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSample:
    """One measured collective, or one message between neighbours (``send_recv``)."""

    kind: Collective | Literal["send_recv"]
    buffer_bytes: float
    seconds: float
    degree: int
    stride: int = 1
    groups: int = 0
    """Groups that worked at once inside one node: 1 for a benchmark that ran alone; 0 for as
    many as the cluster has room for."""
    algorithm: str = ""
    """The one that the library was made to use; empty for its own choice."""
    weight: float = 1.0


def predicted_seconds(
    samples: Sequence[CollectiveSample], cluster: Cluster, constants: CommunicationConstants
) -> np.ndarray:
    """What the model says of each sample, priced in batches of the same collective."""
    batches: dict[tuple, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        batches[sample.kind, sample.algorithm, sample.groups].append(index)
    seconds = np.empty(len(samples))
    for (kind, algorithm, groups), rows in batches.items():
        buffers = np.array([samples[i].buffer_bytes for i in rows], float)
        degree = np.array([samples[i].degree for i in rows])
        stride = np.array([samples[i].stride for i in rows])
        if kind == "send_recv":
            seconds[rows] = send_recv_seconds(
                buffers, stride=stride, cluster=cluster, constants=constants
            )
            continue
        lies = span(cluster, degree=degree, stride=stride)
        if groups:
            lies = replace(lies, sharers=tuple(np.minimum(s, groups) for s in lies.sharers))
        times = algorithm_seconds(kind, buffers, span=lies, cluster=cluster, constants=constants)
        seconds[rows] = times[algorithm] if algorithm else np.minimum.reduce([*times.values()])
    return seconds


class Range(NamedTuple):
    """Bounds of one fitted number."""

    lowest: float
    highest: float
    log_spread: float
    """How far the prior lets the number wander: one standard deviation of its logarithm."""


_LINK_RANGES = {
    "rate_fraction": Range(0.02, 1.0, 0.3),
    "hop_factor": Range(0.01, 20.0, 1.0),
    "fill_factor": Range(0.001, 100.0, 1.5),
    "saturation_factor": Range(0.1, 1e4, 1.5),
}
_CROWDING = Range(0.01, 2.0, 0.7)
_SOFT_RATE = Range(0.01, 50.0, 1.0)
"""Of links without a line rate to fall short of: memory and sockets between processes."""
_BASE = Range(1e-6, 5e-3, 0.7)
_KIND_RATE = Range(0.2, 1.3, 0.2)
_SOFT_KIND_RATE = Range(0.1, 5.0, 0.7)
_STARTUP = Range(0.3, 3.0, 0.3)
_OTHERS = {
    "own_block_cost": Range(0.05, 2.0, 0.5),
    "tree_rate_fraction": Range(0.5, 1.0, 0.1),
    "switch_rate_fraction": Range(0.4, 1.0, 0.1),
    "peer_seconds": Range(1e-9, 1e-3, 1.5),
    "degradation_exponent": Range(1e-3, 1.0, 0.7),
}
Place = tuple[str, ...]
LEAST_ROWS = 6
"""Samples that a link kind or an architecture must have before its own numbers are fitted."""


def unknowns_of(
    sets: Sequence[tuple[Sequence[CollectiveSample], Cluster]], prior: CommunicationConstants
) -> dict[Place, Range]:
    """Where each number lives that these samples can move; nothing else is touched."""
    kinds: set[str] = {sample.kind for samples, _ in sets for sample in samples}
    found: dict[Place, Range] = {}
    for link in sorted(_links_crossed(sets)):
        found |= {("links", link, name): r for name, r in _LINK_RANGES.items()}
        if link == "gloo":
            found["links", link, "rate_fraction"] = _SOFT_RATE
        for name in ("crowding_exponent", "startup_crowding_exponent"):
            if getattr(prior.link(link), name) > 0:
                found["links", link, name] = _CROWDING
    rings = {"all_reduce", "all_gather", "reduce_scatter"}
    reductions = "all_reduce" in kinds
    switched = any(supports_switch_reduction(cluster) for _, cluster in sets)
    on_cpus = all(cluster.device.kind == "cpu" for _, cluster in sets)
    bases = ["ring"] * bool(kinds & rings) + ["tree"] * reductions
    bases += ["nvls"] * (reductions and switched) + sorted(kinds - rings - {"broadcast"})
    if on_cpus:
        # Gloo's collectives are programs of their own, not variations of one ring.
        bases = sorted(kinds)
    found |= {("base_seconds", name): _BASE for name in bases}
    kind_rate = _SOFT_KIND_RATE if on_cpus else _KIND_RATE
    found |= {("kind_rate_fractions", k): kind_rate for k in sorted(kinds - {"all_reduce"})}
    rows: Counter[str] = Counter()
    for samples, cluster in sets:
        rows[cluster.device.architecture] += len(samples)
    common = sorted(name for name, count in rows.items() if count >= LEAST_ROWS)
    if len(common) > 1:
        found |= {("startup_factors", name): _STARTUP for name in common}
    wanted = {
        "own_block_cost": bool(kinds & rings),
        "tree_rate_fraction": reductions and not on_cpus,
        "switch_rate_fraction": reductions and switched,
        "peer_seconds": "all_to_all" in kinds,
        "degradation_exponent": len(sets) > 1,
    }
    return found | {(name,): _OTHERS[name] for name, is_wanted in wanted.items() if is_wanted}


def _links_crossed(sets: Iterable[tuple[Sequence[CollectiveSample], Cluster]]) -> set[str]:
    """Link kinds that enough samples use."""
    rows: Counter[str] = Counter()
    for samples, cluster in sets:
        for sample in samples:
            lies = span(cluster, degree=sample.degree, stride=sample.stride)
            inner = (np.ones((), np.int64), *lies.members)
            rows.update(
                {
                    tier.link
                    for tier, narrow, wide in zip(cluster.tiers, inner, lies.members, strict=False)
                    if wide > narrow
                }
            )
    return {link for link, count in rows.items() if count >= LEAST_ROWS}


def fit_collectives(
    samples: Sequence[CollectiveSample],
    cluster: Cluster,
    *,
    prior: CommunicationConstants | None = None,
) -> CommunicationConstants:
    """Constants of one machine from collectives measured on it.

    Args:
        samples: A dozen is enough: what they cannot tell stays at the prior.
        cluster: The machine on which they ran.
        prior: Where the fit starts and what pulls at it; the shipped constants by default.

    Raises:
        ValueError: If there is no sample, or one whose size or time is not positive.
    """
    return fit_clusters([(samples, cluster)], prior=prior, scatter=0.05)


def fit_clusters(
    sets: Sequence[tuple[Sequence[CollectiveSample], Cluster]],
    *,
    prior: CommunicationConstants | None = None,
    scatter: float = 0.2,
) -> CommunicationConstants:
    """Constants common to several machines: least squares of the logs of time.

    Minimises the sum over samples of ``weight * loss(log(predicted / measured) / scatter)``,
    a soft absolute loss, plus ``(log(unknown / prior) / spread) ** 2`` for each unknown.

    Args:
        sets: Samples by the machine on which they ran.
        prior: Where the fit starts and what pulls at it; the shipped constants by default.
        scatter: What one sample may be off by, as a share: 0.2 between public sources, 0.05
            between repetitions on one machine.

    Raises:
        ValueError: If there is no sample, or one whose size or time is not positive.
    """
    from scipy.optimize import least_squares

    start = prior or default_communication()
    flat = _checked(sets)
    unknowns = unknowns_of(sets, start)
    measured = np.log([sample.seconds for sample in flat])
    weights = np.sqrt([sample.weight for sample in flat])
    centre = np.log([_get(start, place) for place in unknowns])
    lowest, highest, spread = np.array([*unknowns.values()]).T
    bounds = np.log([lowest, highest])

    def misses(logs):
        constants = _with_values(start, unknowns, np.exp(logs))
        predicted = np.concatenate([predicted_seconds(s, c, constants) for s, c in sets])
        return np.log(predicted) - measured

    def residuals(logs):
        softened = _soften(misses(logs) / scatter)
        return np.concatenate([weights * softened, (logs - centre) / spread])

    inside = np.clip(centre, bounds[0] + 1e-6, bounds[1] - 1e-6)
    found = least_squares(residuals, inside, bounds=tuple(bounds), x_scale=spread, max_nfev=80)
    return replace(
        _with_values(start, unknowns, np.exp(found.x)),
        rows=len(flat),
        median_error=float(np.median(np.abs(np.expm1(misses(found.x))))),
    )


def _checked(
    sets: Sequence[tuple[Sequence[CollectiveSample], Cluster]],
) -> list[CollectiveSample]:
    flat = [sample for samples, _ in sets for sample in samples]
    if not flat:
        raise ValueError("a fit needs at least one measured collective, got none")
    for sample in flat:
        if sample.buffer_bytes <= 0 or sample.seconds <= 0 or sample.degree < 2:
            raise ValueError(f"a sample needs positive bytes and seconds, 2 ranks: got {sample}")
    return flat


def _soften(misses):
    """Signed square root of the soft absolute loss ``2 (sqrt(1 + x**2) - 1)``."""
    return np.sign(misses) * np.sqrt(2 * (np.sqrt(1 + misses**2) - 1))


def _get(constants: CommunicationConstants, place: Place) -> float:
    match place:
        case ("links", link, name):
            return getattr(constants.link(link), name)
        case ("base_seconds", name):
            return constants.base(name)
        case (table, name):
            return getattr(constants, table).get(name, 1.0)
    return getattr(constants, place[0])


def _with_values(
    constants: CommunicationConstants, places: Iterable[Place], values: np.ndarray
) -> CommunicationConstants:
    links: dict[str, LinkConstants] = dict(constants.links)
    changed: dict[str, Any] = {}
    for place, value in zip(places, values.tolist(), strict=True):
        match place:
            case ("links", link, name):
                links[link] = replace(links.get(link, constants.other), **{name: value})
            case (table, name):
                changed.setdefault(table, dict(getattr(constants, table)))[name] = value
            case (name,):
                changed[name] = value
    return replace(constants, links=links, **changed)
