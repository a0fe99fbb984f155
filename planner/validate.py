"""Lay predictions beside a whole table of measured runs, and say how good they are."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.calibration import Calibration, load_calibration
from planner.files import write_csv
from planner.predict_runs import Predictions, predict_runs
from planner.runs import Run, Unscored, read_runs

Floats = NDArray[np.float64]

LEAST_SWEEP = 8
"""Layouts from which a rank correlation says something."""
LEAST_REGRET_SWEEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Layouts of one model on one machine with one batch: what a planner chooses among."""

    group: str
    size: int
    spearman: float | None
    """None where all times are equal, or there are fewer than ``LEAST_SWEEP`` layouts."""
    kendall_tau: float | None
    regret: float
    """How much slower than the best measured layout is the one that the planner picks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """A scored table."""

    runs: tuple[Run, ...]
    predictions: Predictions
    unscored: tuple[Unscored, ...]
    sweeps: tuple[Sweep, ...]
    calibration: str

    def to_dict(self) -> dict[str, Any]:
        """Figures overall, by source group, and the reasons of what was not scored."""
        groups = sorted({run.group for run in self.runs})
        return {
            "overall": self.figures(None),
            "groups": {group: self.figures(group) for group in groups},
            "unscored": dict(Counter(row.reason for row in self.unscored).most_common()),
        }

    def figures(self, group: str | None) -> dict[str, Any]:
        """Figures of one group, or of all rows; None where nothing could be scored."""
        chosen = [i for i, run in enumerate(self.runs) if group in (None, run.group)]
        timed = [i for i in chosen if self._is_timed(i)]
        sweeps = [sweep for sweep in self.sweeps if group in (None, sweep.group)]
        errors = self.errors[timed]
        low, high = self.predictions.low_seconds, self.predictions.high_seconds
        inside = [low[i] <= self.measured[i] <= high[i] for i in timed]
        return {
            "scored": len(timed),
            **_error_figures(errors),
            "spearman": _median([s.spearman for s in sweeps]),
            "kendall_tau": _mean([s.kendall_tau for s in sweeps]),
            "mean_regret": _mean([s.regret for s in sweeps]),
            "max_regret": max((s.regret for s in sweeps), default=None),
            "interval_coverage": _mean([float(x) for x in inside]),
            "memory": self._memory_figures(chosen),
            "verdicts": self._verdicts(chosen),
        }

    @property
    def measured(self) -> Floats:
        """Step seconds as measured; not a number where there are none."""
        return np.array([np.nan if r.step_seconds is None else r.step_seconds for r in self.runs])

    @property
    def errors(self) -> Floats:
        """Predicted over measured, less one."""
        return self.predictions.step_seconds / self.measured - 1.0

    def _is_timed(self, index: int) -> bool:
        run = self.runs[index]
        return run.step_seconds is not None and run.outcome == "ran"

    def _memory_figures(self, chosen: list[int]) -> dict[str, Any] | None:
        rows = [i for i in chosen if self.runs[i].peak_bytes and self.runs[i].outcome == "ran"]
        if not rows:
            return None
        measured = np.array([self.runs[i].peak_bytes for i in rows], float)
        errors = self.predictions.peak_bytes[rows] / measured - 1.0
        return {"scored": len(rows), **_error_figures(errors)}

    def _verdicts(self, chosen: list[int]) -> dict[str, Any] | None:
        if not chosen:
            return None
        figures: dict[str, Any] = {"scored": len(chosen)}
        for outcome, wanted in (("ran", True), ("oom", False), ("failed", False)):
            rows = [i for i in chosen if self.runs[i].outcome == outcome]
            figures[outcome] = len(rows)
            right = [bool(self.predictions.fits[i]) == wanted for i in rows]
            figures[f"{outcome}_{'feasible' if wanted else 'rejected'}"] = _mean(
                [float(x) for x in right]
            )
        return figures


def validate(path: Path, *, calibration: str | Calibration = "default") -> Validation:
    """Read a run table, predict every row and score the predictions.

    Args:
        path: CSV, see ``planner.runs``.
        calibration: A name, a path or the constants themselves.

    Raises:
        ValueError: If the file or the calibration cannot be read. A bad row never raises.
    """
    constants = load_calibration(calibration) if isinstance(calibration, str) else calibration
    table = read_runs(path)
    return score(table.runs, table.unscored, constants)


def score(
    runs: Sequence[Run], unscored: Sequence[Unscored], calibration: Calibration
) -> Validation:
    """Predict and score runs that were read already."""
    predictions = predict_runs(runs, calibration)
    missing = [
        Unscored(id=run.id, group=run.group, reason="no step time", detail="nothing to compare")
        for run in runs
        if run.step_seconds is None and run.peak_bytes is None and run.outcome == "ran"
    ]
    return Validation(
        runs=tuple(runs),
        predictions=predictions,
        unscored=(*unscored, *missing),
        sweeps=tuple(find_sweeps(runs, predictions.step_seconds)),
        calibration=calibration.name,
    )


def find_sweeps(runs: Sequence[Run], predicted: Floats) -> list[Sweep]:
    """Sweeps of at least two layouts: same source, model, job, machine and device count."""
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.step_seconds is not None and run.outcome == "ran":
            job = replace(run.job, global_batch=1)
            key = (run.group, id(run.model), job, run.job.global_batch, id(run.cluster),
                   run.framework, run.num_devices)  # fmt: skip
            together[key].append(index)
    sweeps = []
    for rows in together.values():
        layouts = {runs[i].layout for i in rows}
        if len(layouts) >= LEAST_REGRET_SWEEP:
            measured = np.array([runs[i].step_seconds for i in rows], float)
            sweeps.append(_sweep(runs[rows[0]].group, measured, predicted[rows]))
    return sweeps


def _sweep(group: str, measured: Floats, predicted: Floats) -> Sweep:
    from scipy.stats import kendalltau, rankdata

    tau = kendalltau(predicted, measured).statistic if len(measured) > 2 else np.nan
    spearman = np.nan
    if len(measured) >= LEAST_SWEEP and np.ptp(measured) > 0 and np.ptp(predicted) > 0:
        spearman = np.corrcoef(rankdata(predicted), rankdata(measured))[0, 1]
    pick = measured[int(np.argmin(predicted))]
    return Sweep(
        group=group, size=len(measured), regret=float(pick / measured.min() - 1.0),
        spearman=None if np.isnan(spearman) else float(spearman),
        kendall_tau=None if np.isnan(tau) else float(tau),
    )  # fmt: skip


def _error_figures(errors: Floats) -> dict[str, float | None]:
    if not len(errors):
        return dict.fromkeys(("mean_abs_error", "median_abs_error", "p90_abs_error", "bias"))
    size = np.abs(errors)
    return {
        "mean_abs_error": float(size.mean()),
        "median_abs_error": float(np.median(size)),
        "p90_abs_error": float(np.quantile(size, 0.9)),
        "bias": float(errors.mean()),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


REPORT_COLUMNS = (
    "id", "predicted_step_seconds", "low", "high", "measured_step_seconds", "error",
    "predicted_peak_bytes", "verdict", "reason",
)  # fmt: skip


def write_report(validation: Validation, path: Path) -> None:
    """One CSV line per row of the table, scored or not.

    Raises:
        ValueError: If the file cannot be written.
    """
    found = validation.predictions
    lines: list[dict[str, object]] = []
    for i, run in enumerate(validation.runs):
        timed = run.step_seconds is not None and run.outcome == "ran"
        lines.append({
            "id": run.id,
            "predicted_step_seconds": f"{found.step_seconds[i]:.6g}",
            "low": f"{found.low_seconds[i]:.6g}",
            "high": f"{found.high_seconds[i]:.6g}",
            "measured_step_seconds": f"{run.step_seconds:.6g}" if timed else "",
            "error": f"{validation.errors[i]:.4f}" if timed else "",
            "predicted_peak_bytes": f"{found.peak_bytes[i]:.0f}",
            "verdict": "fits" if found.fits[i] else "out of memory",
            "reason": "" if timed or run.outcome != "ran" else "no step time",
        })  # fmt: skip
    done = {run.id for run in validation.runs}
    lines += [
        {"id": row.id, "reason": f"{row.reason}: {row.detail}"}
        for row in validation.unscored
        if row.id not in done or row.reason == "duplicate id"
    ]
    write_csv(path, REPORT_COLUMNS, lines)
