"""Fit of the communication constants to measured collectives: bounded, regularised, in logs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cluster import Cluster, span
from planner.cost.collectives.constants import CommunicationConstants, default_communication
from planner.cost.comm import algorithm_seconds, send_recv_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSample:
    """One measured collective, or one message between neighbours (``send_recv``)."""

    kind: str
    buffer_bytes: float
    seconds: float
    degree: int
    stride: int = 1
    groups: int = 0
    """Groups that worked at once inside one node; 0 for as many as fit."""
    algorithm: str = ""
    """The one that the library was made to use; empty for its own choice."""
    weight: float = 1.0


def predicted_seconds(
    samples: Sequence[CollectiveSample], cluster: Cluster, constants: CommunicationConstants
) -> np.ndarray:
    """What the model says of each sample, priced in batches of the same collective."""
    batches = defaultdict(list)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unknown:
    """One fitted number: where it lives, its bounds and how far the prior lets it wander."""

    place: tuple[str, ...]
    lowest: float
    highest: float
    log_spread: float


def _unknowns(
    sets: Iterable[tuple[Sequence[CollectiveSample], Cluster]],
) -> list[_Unknown]:
    """Unknowns that these samples can move; nothing else is touched."""
    kinds, links, switch_links, tiers = set(), set(), False, 0
    for samples, cluster in sets:
        kinds |= {sample.kind for sample in samples}
        for sample in samples:
            lies = span(cluster, degree=sample.degree, stride=sample.stride)
            outermost = int(lies.outermost_tier)
            inner = 0 if int(lies.members[0]) > 1 else outermost
            links |= {cluster.tiers[i].link for i in range(inner, outermost + 1)}
            tiers = max(tiers, int(lies.degree / lies.members[0]))
        switch_links |= any(t.link == "nvlink" for t in cluster.tiers)
    found = []
    for link in sorted(links):
        found += [
            _Unknown(
                place=("links", link, "rate_fraction"), lowest=0.02, highest=1.0, log_spread=0.3
            ),
            _Unknown(
                place=("links", link, "hop_factor"), lowest=0.01, highest=20.0, log_spread=1.0
            ),
            _Unknown(
                place=("links", link, "fill_factor"), lowest=0.001, highest=50.0, log_spread=1.5
            ),
        ]
    for name in _bases(kinds, switch_links):
        place = ("base_seconds", name)
        found.append(_Unknown(place=place, lowest=1e-6, highest=5e-3, log_spread=0.7))
    for kind in sorted(kinds - {"all_reduce"}):
        place = ("kind_rate_fractions", kind)
        found.append(_Unknown(place=place, lowest=0.2, highest=1.3, log_spread=0.2))
    if "all_reduce" in kinds:
        place = ("tree_rate_fraction",)
        found.append(_Unknown(place=place, lowest=0.5, highest=1.0, log_spread=0.1))
        if switch_links:
            place = ("switch_rate_fraction",)
            found.append(_Unknown(place=place, lowest=0.4, highest=0.8, log_spread=0.1))
    if "all_to_all" in kinds:
        place = ("peer_seconds",)
        found.append(_Unknown(place=place, lowest=1e-9, highest=1e-3, log_spread=1.5))
    if tiers > 2:
        place = ("degradation_exponent",)
        found.append(_Unknown(place=place, lowest=1e-3, highest=1.0, log_spread=0.7))
    return found


def _bases(kinds: set[str], switched: bool) -> list[str]:
    rings = {"all_reduce", "all_gather", "reduce_scatter"}
    names = ["ring"] if kinds & rings else []
    if "all_reduce" in kinds:
        names += ["tree", "nvls"] if switched else ["tree"]
    return names + sorted(kinds - rings - {"broadcast"})


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
    return fit_clusters([(samples, cluster)], prior=prior)


def fit_clusters(
    sets: Sequence[tuple[Sequence[CollectiveSample], Cluster]],
    *,
    prior: CommunicationConstants | None = None,
) -> CommunicationConstants:
    """Constants common to several machines: least squares of the logs of time.

    Minimises the sum over samples of ``weight * loss(log(predicted / measured))`` with a soft
    absolute loss beyond 20 %, plus ``(log(unknown / prior) / spread) ** 2`` for each unknown.

    Raises:
        ValueError: If there is no sample, or one whose size or time is not positive.
    """
    from scipy.optimize import least_squares

    start = prior or default_communication()
    flat = [sample for samples, _ in sets for sample in samples]
    if not flat:
        raise ValueError("a fit needs at least one measured collective, got none")
    for sample in flat:
        if sample.buffer_bytes <= 0 or sample.seconds <= 0 or sample.degree < 2:
            raise ValueError(
                f"a sample needs positive bytes and seconds and 2 ranks, got {sample}"
            )
    unknowns = _unknowns(sets)
    measured = np.log([sample.seconds for sample in flat])
    weights = np.sqrt([sample.weight for sample in flat])
    centre = np.log([_get(start, u.place) for u in unknowns])
    spread = np.array([u.log_spread for u in unknowns])
    bounds = np.log([[u.lowest for u in unknowns], [u.highest for u in unknowns]])

    def residuals(logs):
        constants = _with_values(start, unknowns, np.exp(logs))
        predicted = np.concatenate([predicted_seconds(s, c, constants) for s, c in sets])
        misses = weights * _soften((np.log(predicted) - measured) / 0.2)
        return np.concatenate([misses, (logs - centre) / spread])

    inside = np.clip(centre, bounds[0] + 1e-6, bounds[1] - 1e-6)
    found = least_squares(residuals, inside, bounds=tuple(bounds), x_scale=spread, max_nfev=60)
    fitted = _with_values(start, unknowns, np.exp(found.x))
    predicted = np.concatenate([predicted_seconds(s, c, fitted) for s, c in sets])
    error = float(np.median(np.abs(predicted / np.exp(measured) - 1)))
    return replace(fitted, rows=len(flat), median_error=error)


def _soften(misses):
    """Signed square root of the soft absolute loss ``2 (sqrt(1 + x**2) - 1)``."""
    return np.sign(misses) * np.sqrt(2 * (np.sqrt(1 + misses**2) - 1))


def _get(constants: CommunicationConstants, place: tuple[str, ...]) -> float:
    if place[0] == "links":
        return getattr(constants.link(place[1]), place[2])
    if place[0] == "base_seconds":
        return constants.base(place[1])
    if place[0] == "kind_rate_fractions":
        return constants.rate_fraction(place[1])
    return getattr(constants, place[0])


def _with_values(
    constants: CommunicationConstants, unknowns: Sequence[_Unknown], values: np.ndarray
) -> CommunicationConstants:
    links, tables = defaultdict(dict), defaultdict(dict)
    plain = {}
    for unknown, value in zip(unknowns, values.tolist(), strict=True):
        place = unknown.place
        if place[0] == "links":
            links[place[1]][place[2]] = value
        elif len(place) == 2:
            tables[place[0]][place[1]] = value
        else:
            plain[place[0]] = value
    merged = {kind: replace(constants.link(kind), **new) for kind, new in links.items()}
    return replace(
        constants,
        links={**constants.links, **merged},
        **{name: {**getattr(constants, name), **new} for name, new in tables.items()},
        **plain,
    )
