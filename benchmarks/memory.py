"""Estimated memory against published runs, by source group, and verdicts of fit.

    python -m benchmarks.memory [--report benchmarks/reports/memory.md] [--write-margin]

Every run is predicted in the sense (allocated, reserved, device) and on the pipeline rank
that its source measured. With ``--write-margin`` the error distribution becomes the margin
that ``recommend`` keeps free (``planner/presets/memory_margin.toml``).
"""

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.calibration import load_calibration
from planner.predict_runs import Predictions, predict_runs
from planner.runs import Run, read_runs

RUNS = Path(__file__).parent / "published" / "runs.csv.gz"
MARGIN = Path(__file__).parents[1] / "planner" / "presets" / "memory_margin.toml"

MEASURED: dict[str, str] = {
    "usp": "global rank 0 (first stage), torch max allocated as printed by nanotron",
    "simumax": "heaviest rank, torch max allocated",
    "mcg": "last rank (last stage), torch max allocated, exact bytes",
    "mlmgold": "the logging rank (last stage), torch max allocated",
    "bloom": "first and last nodes, nvidia-smi",
    "tt": "heaviest rank, torch max reserved",
    "bsL": "heaviest stage, torch max allocated (the column says device)",
}
"""Which rank and which sense each source of the targets measured."""
TARGETS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("usp", "simumax", "mcg", "mlmgold"), (0.03, 0.10)),
    **dict.fromkeys(("bloom", "tt", "bsL"), (0.06, 0.15)),
}
"""Median and 90th percentile of the absolute relative error."""
MARGIN_QUANTILE = 0.9
"""Of runs, that stay within what was promised plus the margin."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Signed relative errors of one source group in one sense."""

    group: str
    sense: str
    errors: NDArray[np.float64]

    def line(self) -> str:
        """One row of the report's table."""
        size = np.abs(self.errors)
        median, tail = np.median(size), np.quantile(size, 0.9)
        target = TARGETS.get(self.group)
        verdict = ""
        if target:
            met = median <= target[0] and tail <= target[1]
            verdict = f"{target[0]:.0%} / {target[1]:.0%}: {'met' if met else 'missed'}"
        return (
            f"| {self.group} | {self.sense} | {len(size)} | {median:.1%} | {tail:.1%} "
            f"| {np.median(self.errors):+.1%} | {verdict} | {MEASURED.get(self.group, '')} |"
        )


def scores(runs: list[Run], found: Predictions) -> list[Scores]:
    """Errors by source group and sense."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run, predicted in zip(runs, found.peak_bytes, strict=True):
        if run.peak_bytes is not None and np.isfinite(predicted):
            errors[run.group, run.memory_kind].append(predicted / run.peak_bytes - 1)
    return [
        Scores(group=group, sense=sense, errors=np.array(values))
        for (group, sense), values in sorted(errors.items())
    ]


def verdicts(runs: list[Run], found: Predictions) -> list[str]:
    """Shares of runs called feasible, by what happened."""
    outcome = np.array([run.outcome for run in runs])
    group = np.array([run.group for run in runs])
    known = np.isin(group, list(TARGETS))
    lines = []
    for name, mask, wanted in (
        ("ran, all groups", outcome == "ran", "feasible"),
        ("ran, groups of the targets", (outcome == "ran") & known, "feasible"),
        ("out of memory", outcome == "oom", "rejected"),
        ("uspfail (crash or out of memory)", group == "uspfail", "rejected"),
    ):
        good = found.fits[mask] if wanted == "feasible" else ~found.fits[mask]
        lines.append(f"| {name} | {mask.sum()} | {good.mean():.1%} {wanted} |")
    return lines


def margin(all_scores: list[Scores]) -> float:
    """Share that real use exceeds the estimate by, at most, in ``MARGIN_QUANTILE`` of runs.

    Groups count alike, however many runs each has.
    """
    excess = [
        np.quantile(1 / (1 + score.errors) - 1, MARGIN_QUANTILE)
        for score in all_scores
        if score.group in TARGETS
    ]
    return float(max(np.median(excess), 0.0))


def report(all_scores: list[Scores], verdict_lines: list[str]) -> str:
    """Markdown."""
    lines = [
        "# Memory: estimate against published runs",
        "",
        "No constant is fitted to a run or a model. Errors are estimate / measured - 1.",
        "",
        "| group | sense | runs | median | 90th percentile | bias | target | measured |",
        "|---|---|---:|---:|---:|---:|---|---|",
        *(score.line() for score in all_scores),
        "",
        "| runs | number | share |",
        "|---|---:|---:|",
        *verdict_lines,
        "",
        f"Margin that covers {MARGIN_QUANTILE:.0%} of the runs of the median group: "
        f"{margin(all_scores):.1%} of the estimate.",
    ]
    return "\n".join(lines) + "\n"


def write_margin(path: Path, share: float) -> None:
    """The margin as a preset."""
    text = (
        "# Share of an estimate that is kept free on the device. Written by\n"
        "# python -m benchmarks.memory --write-margin from the error distribution over\n"
        "# benchmarks/published/runs.csv.gz; not chosen.\n"
        f"quantile = {MARGIN_QUANTILE}\n"
        f"share = {share:.3f}\n"
    )
    path.write_text(text, encoding="utf-8")


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--write-margin", action="store_true")
    options = parser.parse_args()
    runs = list(read_runs(RUNS).runs)
    found = predict_runs(runs, load_calibration("default"))
    all_scores = scores(runs, found)
    text = report(all_scores, verdicts(runs, found))
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    if options.write_margin:
        write_margin(MARGIN, margin(all_scores))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
