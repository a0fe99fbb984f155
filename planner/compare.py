"""Predicted beside measured, for one executed plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.measurement import Measurement
from planner.plan import Plan, Prediction

Unit = Literal["seconds", "bytes", "times"]

# Which predicted parts and which measured parts mean the same. The executor cannot tell
# recomputation from backward, nor the host's own time from the compute that it delays.
COMPUTE = ("forward", "backward", "recompute", "host")
BUBBLE = ("bubble",)
OPTIMIZER = ("optimizer",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity, promised and seen."""

    name: str
    unit: Unit
    predicted: float
    measured: float
    judged: bool = False
    """Whether the tolerance applies: step, memory and speedup, not the parts."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1 if self.measured else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All lines of one run."""

    lines: tuple[Line, ...]
    tolerance: float
    low_seconds: float
    high_seconds: float

    @property
    def worst(self) -> Line:
        """The judged line with the largest error."""
        return max((line for line in self.lines if line.judged), key=lambda line: abs(line.error))

    @property
    def within(self) -> bool:
        """Whether every judged line is inside the tolerance."""
        return abs(self.worst.error) <= self.tolerance


def compare(
    plan: Plan, measurement: Measurement, *, tolerance: float = 0.25, plan_path: Path | None = None
) -> Comparison:
    """Lay a plan's promise beside what happened.

    Args:
        plan: With its prediction.
        measurement: Of that very plan.
        tolerance: Largest relative error of step time, peak memory and speedup.
        plan_path: The plan's file, to check that the measurement is of it.

    Raises:
        ValueError: If the plan has no prediction, or the measurement is of another plan.
    """
    if plan.prediction is None:
        raise ValueError("the plan holds no prediction to compare with")
    if not tolerance > 0:
        raise ValueError(f"--tolerance must be positive, got {tolerance}")
    if plan_path is not None:
        _check_same(plan_path, measurement)
    if measurement.world_size != plan.layout.world_size:
        raise ValueError(
            f"the measurement ran on {measurement.world_size} ranks, the plan needs "
            f"{plan.layout.world_size}"
        )
    prediction = plan.prediction
    step = Line(
        name="step", unit="seconds", predicted=prediction.step_seconds,
        measured=measurement.step_seconds, judged=True,
    )  # fmt: skip
    memory = Line(
        name="peak memory", unit="bytes", predicted=prediction.peak_bytes,
        measured=measurement.peak_bytes, judged=True,
    )  # fmt: skip
    lines = [step, *_part_lines(prediction, measurement), memory]
    if measurement.baseline_seconds and prediction.one_device_seconds:
        lines.append(
            Line(
                name="speedup over one device", unit="times", judged=True,
                predicted=prediction.one_device_seconds / prediction.step_seconds,
                measured=measurement.speedup,
            )
        )  # fmt: skip
    return Comparison(
        lines=tuple(lines),
        tolerance=tolerance,
        low_seconds=prediction.low_seconds,
        high_seconds=prediction.high_seconds,
    )


def _check_same(plan_path: Path, measurement: Measurement) -> None:
    from planner.plan import digest

    if digest(plan_path) != measurement.plan_digest:
        raise ValueError(
            f"the measurement is of another plan than {plan_path} (digests differ)\n"
            "hint: run 'planner execute' on this plan again"
        )


def _part_lines(prediction: Prediction, measurement: Measurement) -> list[Line]:
    """Step parts of the slowest rank, grouped into what both sides can tell apart."""
    parts = prediction.parts
    measured = _busiest(measurement)
    communication = sum(
        seconds for name, seconds in parts.items() if name not in (*COMPUTE, *BUBBLE, *OPTIMIZER)
    )
    pairs = {
        "forward and backward": (
            sum(parts.get(name, 0.0) for name in COMPUTE),
            measured.get("forward", 0.0) + measured.get("backward", 0.0),
        ),
        "communication": (communication, measured.get("communication", 0.0)),
        "optimizer": (parts.get("optimizer", 0.0), measured.get("optimizer", 0.0)),
        "idle (bubble)": (parts.get("bubble", 0.0), measured.get("idle", 0.0)),
    }
    return [
        Line(name=name, unit="seconds", predicted=predicted, measured=seen)
        for name, (predicted, seen) in pairs.items()
        if predicted or seen
    ]


def _busiest(measurement: Measurement) -> dict[str, float]:
    """Parts of the rank that computes longest: the one whose stage sets the pace."""

    def busy(seconds: dict[str, float]) -> float:
        return seconds.get("forward", 0.0) + seconds.get("backward", 0.0)

    return max((rank.seconds for rank in measurement.ranks), key=busy)
