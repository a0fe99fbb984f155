"""What a search answers: data only, nothing is printed here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.layout import Layout

COMMUNICATION = ("tp", "cp", "ep", "pp", "dp")
"""Parts of a step that are exposed communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One layout with its price."""

    layout: Layout
    step_seconds: float
    low_seconds: float
    """With ``high_seconds``: the 80 % interval."""
    high_seconds: float
    parts: Mapping[str, float]
    """Seconds by part; they sum to ``step_seconds``."""
    peak_bytes: int
    """Live tensors of the heaviest rank at its peak."""
    device_bytes: int
    """The same as the device sees it: with fragmentation, communicators and context."""
    limit_bytes: int
    """What the device has less the memory model's margin (or ``max_memory_bytes``)."""
    usd_per_step: float = 0.0
    """0 where the cluster states no price."""

    @property
    def is_tight(self) -> bool:
        """Within 5 % of the limit: an estimate cannot promise that it fits."""
        return self.device_bytes > 0.95 * self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Why a rival is slower: its parts against the best one's."""

    term: str
    """The one part in which it loses most."""
    seconds: float
    """By how much in that part."""
    terms: Mapping[str, float]
    """Every part's difference, rival less best; they sum to the difference of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What would make the job fit, or run better: a change and what it gives."""

    change: str
    num_devices: int
    candidate: Candidate | None
    """The best layout after the change; None where it was not priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer to one question."""

    num_devices: int
    best: Candidate | None
    """None if nothing fits."""
    ranked: tuple[Candidate, ...] = ()
    """The best layout of each of the best combinations of degrees, ``best`` first."""
    losses: tuple[Loss, ...] = ()
    """Against ``best``, one per ranked layout; the first is zero."""
    pareto: tuple[Candidate, ...] = ()
    """No other layout is better in time, headroom and cost at once; fastest first."""
    default: Candidate | None = None
    """What a careful user would type without a planner; None if even that does not fit."""
    reference: Candidate | None = None
    """The best layout on one device, or on the fewest on which the job fits."""
    reference_devices: int = 1
    ties: tuple[Candidate, ...] = ()
    """Ranked layouts that the interval of the estimate cannot tell from the best."""
    remedies: tuple[Remedy, ...] = ()
    """If nothing fits, or fewer devices would be faster."""
    considered: int = 0
    """Layouts of the space, those that a rule or a bound spared from pricing included."""
    fitting: int = 0
    """Layouts that break no rule and fit into memory."""
    outpaced: int = 0
    """Legal layouts so slow by their bare work that their memory was not even asked."""
    priced: int = 0
    """Layouts whose time was worked out; the others cannot win, by a bound."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Layouts that cannot run, by the first rule they break."""
    search_seconds: float = 0.0

    @property
    def gain(self) -> float:
        """How many times faster the best is than the obvious default; 0 if unknown."""
        if self.best is None or self.default is None:
            return 0.0
        return self.default.step_seconds / self.best.step_seconds

    @property
    def speedup(self) -> float:
        """Over the reference, scaled to one device's work; 0 if unknown."""
        if self.best is None or self.reference is None:
            return 0.0
        ratio = self.reference.step_seconds / self.best.step_seconds
        return ratio * self.reference_devices

    @property
    def efficiency(self) -> float:
        """Speed-up over the reference divided by the devices used for it."""
        return self.speedup / self.num_devices


def loss_of(rival: Candidate, best: Candidate) -> Loss:
    """The terms in which a rival loses, and the one that costs it most."""
    terms = {name: rival.parts[name] - best.parts.get(name, 0.0) for name in rival.parts}
    term = max(terms, key=lambda name: terms[name])
    return Loss(term=term, seconds=terms[term], terms=terms)
