"""The same question over devices, clusters, batches, lengths or models."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.calibration import Calibration
from planner.search import Candidate, search
from planner.setting import Setting

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """The best layout of one setting."""

    model: str
    cluster: str
    num_devices: int
    global_batch: int
    sequence_length: int
    best: Candidate | None
    """None if nothing fits."""
    speedup: float
    """Over one device (or the fewest that fit, scaled); 0 if unknown."""
    efficiency: float
    usd_per_device_hour: float

    @property
    def tokens_per_second(self) -> float:
        """Of the whole machine; 0 if nothing fits."""
        if self.best is None:
            return 0.0
        return self.global_batch * self.sequence_length / self.best.step_seconds

    def seconds_for(self, tokens: float) -> float:
        """Time to train so many tokens; infinite if nothing fits."""
        rate = self.tokens_per_second
        return tokens / rate if rate else float("inf")

    def usd_for(self, tokens: float) -> float:
        """Price of training so many tokens; infinite if nothing fits or no price is known."""
        if not self.usd_per_device_hour or self.best is None:
            return float("inf")
        return self.seconds_for(tokens) / HOUR * self.usd_per_device_hour * self.num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """What a sweep says as a whole."""

    fastest: SweepPoint | None
    cheapest: SweepPoint | None
    """In price, within deadline and budget; in device time where prices are not known."""
    slower_from: tuple[SweepPoint, ...]
    """Points that are slower in tokens per second than one with fewer devices."""


def sweep(
    settings: Iterable[Setting], calibration: Calibration, **words: object
) -> Iterator[SweepPoint]:
    """One point after the other, so that what is done is kept when the rest is not waited for.

    Args:
        settings: The questions.
        calibration: Fitted constants.
        **words: ``fixed``, ``only``, ``forbid`` and so on, as for ``search``.
    """
    for setting in settings:
        found = search(
            setting.model, setting.job, setting.cluster, setting.framework, calibration,
            num_devices=setting.num_devices, **words,  # type: ignore[arg-type]
        )  # fmt: skip
        yield SweepPoint(
            model=setting.model.name,
            cluster=setting.cluster.name,
            num_devices=setting.num_devices,
            global_batch=setting.job.global_batch,
            sequence_length=setting.job.sequence_length,
            best=found.best,
            speedup=found.speedup,
            efficiency=found.efficiency,
            usd_per_device_hour=setting.cluster.usd_per_device_hour,
        )


def summarise(
    points: Iterable[SweepPoint],
    *,
    tokens: float,
    deadline_seconds: float = float("inf"),
    budget_usd: float = float("inf"),
) -> SweepSummary:
    """The fastest point, the cheapest that is in time and in budget, and where more is slower.

    Args:
        points: Of a sweep.
        tokens: To train in all.
        deadline_seconds: From start to end.
        budget_usd: Points without a known price are kept unless a budget is set.
    """
    fitting = [p for p in points if p.best is not None]
    able = [
        p
        for p in fitting
        if p.seconds_for(tokens) <= deadline_seconds
        and (p.usd_for(tokens) <= budget_usd or budget_usd == float("inf"))
    ]
    fastest = min(fitting, key=lambda p: p.seconds_for(tokens), default=None)
    cheapest = min(
        able,
        key=lambda p: (p.usd_for(tokens), p.num_devices * p.seconds_for(tokens)),
        default=None,
    )
    return SweepSummary(fastest=fastest, cheapest=cheapest, slower_from=_slower(fitting))


def _slower(points: list[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Points beaten in tokens per second by fewer devices of the same sweep line."""
    found = []
    for point in points:
        line = (point.model, point.cluster, point.sequence_length)
        fewer = [
            p.tokens_per_second
            for p in points
            if (p.model, p.cluster, p.sequence_length) == line
            and p.num_devices < point.num_devices
        ]
        if fewer and max(fewer) > point.tokens_per_second:
            found.append(point)
    return tuple(found)
