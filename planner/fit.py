"""Fit the few constants of the step model to measured runs: bounded, regularised, validated.

Every constant has a prior and a width; a constant that the data say nothing about stays at
its prior and is named, with the run that would settle it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.calibration import Calibration, Spread, StepConstants
from planner.cost.compute import generation_of
from planner.predict_runs import predict_runs
from planner.robust_fit import LARGEST_SHIFT, held_out_errors, linearise, solve
from planner.runs import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One number to fit: where it lives, what is believed, and what would measure it."""

    name: str
    prior: float
    width: float
    """Standard deviation of the belief, in units of the number's logarithm."""
    measure: str
    """The run that settles it."""


CONSTANTS = (
    Constant(name="overlap_slowdown", prior=0.15, width=0.3,
             measure="the same layout with and without overlapped gradient reduction"),
    Constant(name="straggler_growth", prior=0.01, width=0.25,
             measure="weak scaling of one layout from one node to many"),
    Constant(name="host_operation_seconds", prior=8e-6, width=0.5,
             measure="a small model at microbatch 1, where the host is the bottleneck"),
    Constant(name="host_microbatch_seconds", prior=5e-4, width=0.7,
             measure="one layout at several numbers of microbatches"),
    Constant(name="optimizer_bytes", prior=30.0, width=0.2,
             measure="one layout with few microbatches and without ZeRO"),
)  # fmt: skip
RATE_WIDTH = 0.05
"""Belief about a generation's rate inside a step: within 5 % of the kernel benchmarks."""
UNMEASURED_RATE_WIDTH = 0.15
"""The same for 4-bit products, of which there are hardly any benchmarks."""
LEAST_SOURCE = 8  # rows
LEAST_SHIFT = 0.1
"""A constant whose uncertainty shrank by less than this share was not identified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A calibration and how far to trust it."""

    calibration: Calibration
    rows: int
    constants: int
    median_error: float
    """Absolute, of the rows that were fitted."""
    held_out_error: float
    """The same with each source group predicted by the others' constants."""
    residuals: dict[str, float]
    """Median signed error by group."""
    unidentified: tuple[str, ...]


def fit(
    runs: Sequence[Run], *, name: str, start: Calibration | None = None, per_group: int = 40
) -> Fit:
    """Fit step constants to runs with measured times.

    Args:
        runs: Runs; those without a time, that did not run, or that teach nothing
            (``Run.teaches``) are left out.
        name: Of the new calibration.
        start: Kernel and communication constants to keep; those that ship by default.
        per_group: Rows used of each source, spread over its file order: sources then weigh
            alike, and a sweep of a thousand layouts does not drown a paper's table.

    Raises:
        ValueError: If no run has a time.
    """
    timed = [r for r in runs if r.step_seconds and r.outcome == "ran" and r.teaches]
    chosen = _spread_rows(_large_sources(timed), per_group)
    if not chosen:
        raise ValueError("no run has a step time to fit to")
    base = start or Calibration()
    constants = _constants(chosen)
    groups, everything = np.array([run.group for run in chosen]), np.arange(len(chosen))

    def errors_at(point: Floats) -> Floats:
        return _log_errors(chosen, _with(base, constants, point))

    linear = linearise(errors_at, np.zeros(len(constants)))
    vector, _ = solve(linear, everything, groups)
    linear = linearise(errors_at, vector)
    vector, uncertainty = solve(linear, everything, groups)
    best = _with(base, constants, vector)
    errors = _log_errors(chosen, best)
    held_out = held_out_errors(linear, groups)
    everyone = [run for run in runs if run.step_seconds and run.outcome == "ran"]
    spread = spread_of(_log_errors(everyone, best) if len(everyone) > len(chosen) else held_out)
    unidentified = [
        f"{c.name}: not identified by these runs; measure {c.measure}"
        for c, u in zip(constants, uncertainty, strict=True)
        if u > 1.0 - LEAST_SHIFT
    ]
    fitted = replace(
        best,
        name=name,
        spread=spread,
        rows=len(chosen),
        source=f"fitted to {len(chosen)} runs of {len({r.group for r in chosen})} sources",
        notes=tuple(unidentified),
    )
    return Fit(
        calibration=fitted,
        rows=len(chosen),
        constants=len(constants),
        median_error=float(np.median(np.abs(np.expm1(-errors)))),
        held_out_error=float(np.median(np.abs(np.expm1(-held_out)))),
        residuals=_by_group(chosen, errors),
        unidentified=tuple(unidentified),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidation:
    """Every run predicted by constants from other sources only."""

    log_errors: Floats
    """ln(measured / predicted) of the runs with a time, in their order."""
    coverage: float
    """Share of runs inside the 80 % interval that the other sources' errors give."""
    constants: int


def cross_validate(runs: Sequence[Run], calibration: Calibration) -> CrossValidation:
    """Leave every source out once, starting from fitted constants.

    Args:
        runs: Those without a time, or that did not run, are left out.
        calibration: A fit to these runs; near it the model is linear in its constants.

    Raises:
        ValueError: If no run has a time.
    """
    timed = [run for run in runs if run.step_seconds and run.outcome == "ran"]
    if not timed:
        raise ValueError("no run has a step time to validate on")
    constants = _constants(timed)
    groups = np.array([run.group for run in timed])
    teaches = np.array([run.teaches for run in timed])
    linear = linearise(
        lambda point: _log_errors(timed, _with(calibration, constants, point)),
        _point_of(calibration, constants),
    )
    errors = held_out_errors(linear, groups, teaches)
    inside = np.zeros(len(timed), bool)
    for group in np.unique(groups):
        held = groups == group
        spread = spread_of(errors[~held]) if (~held).any() else calibration.spread
        inside[held] = (errors[held] >= spread.low) & (errors[held] <= spread.high)
    return CrossValidation(
        log_errors=errors, coverage=float(inside.mean()), constants=len(constants)
    )


def _point_of(calibration: Calibration, constants: Sequence[Constant]) -> Floats:
    """Where a calibration lies, in widths from the priors."""
    point = []
    for constant in constants:
        family, _, member = constant.name.partition(".")
        value = getattr(calibration.step, family)
        value = value.get(member, constant.prior) if member else value
        point.append(np.log(value / constant.prior) / constant.width)
    return np.clip(np.array(point), -LARGEST_SHIFT, LARGEST_SHIFT)


def spread_of(log_errors: Floats) -> Spread:
    """The 80 % interval of ln(measured / predicted)."""
    low, high = np.quantile(log_errors, [0.1, 0.9]) if len(log_errors) else (-0.2, 0.25)
    return Spread(low=float(min(low, 0.0)), high=float(max(high, 0.0)))


def _large_sources(runs: Sequence[Run]) -> Sequence[Run]:
    """Runs of sources that vary something; one-row sources only test, where others exist."""
    counts = Counter(run.group for run in runs)
    large = [run for run in runs if counts[run.group] >= LEAST_SOURCE]
    return large or runs


def _spread_rows(runs: Sequence[Run], per_group: int) -> list[Run]:
    counts = Counter(run.group for run in runs)
    seen: Counter[str] = Counter()
    chosen = []
    for run in runs:
        share = per_group / counts[run.group]
        index = seen[run.group]
        seen[run.group] += 1
        if int((index + 1) * share) > int(index * share) or share >= 1:
            chosen.append(run)
    return chosen


def _constants(runs: Sequence[Run]) -> tuple[Constant, ...]:
    generations = sorted({_rate_name(run) for run in runs})
    rates = [
        Constant(name=f"device_rates.{g}", prior=1.0,
                 width=UNMEASURED_RATE_WIDTH if g.endswith("fp4") else RATE_WIDTH,
                 measure=f"any large model on one node of {g} devices")
        for g in generations
    ]  # fmt: skip
    return (*CONSTANTS, *rates)


def _rate_name(run: Run) -> str:
    generation, dtype = generation_of(run.cluster.device), run.job.numbers.compute_dtype
    return f"{generation} {dtype}" if dtype in ("fp8", "fp4") else generation


def _with(base: Calibration, constants: Sequence[Constant], vector: Floats) -> Calibration:
    """The calibration at a point; the vector holds ln(value / prior) over width."""
    values: dict[str, Any] = {}
    rates: dict[str, float] = dict(base.step.device_rates)
    for constant, coordinate in zip(constants, vector, strict=True):
        value = float(constant.prior * np.exp(constant.width * coordinate))
        family, _, member = constant.name.partition(".")
        if member:
            rates[member] = value
        else:
            values[family] = value
    return replace(base, step=replace(base.step, device_rates=rates, **values))


def _log_errors(runs: Sequence[Run], calibration: Calibration) -> Floats:
    """ln(measured / predicted)."""
    predicted = predict_runs(runs, calibration, with_memory=False).step_seconds
    return np.log([float(run.step_seconds or 0) for run in runs]) - np.log(predicted)


def _by_group(runs: Sequence[Run], errors: Floats) -> dict[str, float]:
    groups = sorted({run.group for run in runs})
    return {
        group: float(
            np.median([np.expm1(-e) for run, e in zip(runs, errors, strict=True)
                       if run.group == group])
        )
        for group in groups
    }  # fmt: skip


assert {c.name for c in CONSTANTS} <= set(StepConstants.__slots__)
