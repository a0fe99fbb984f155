"""Fit the default calibration to the published runs.

Run ``python -m benchmarks.fit_steps``: writes ``planner/presets/calibrations/default.json``.
The kernel and communication constants keep their own fits (``fit_kernels``,
``fit_collectives``); here only what a step adds to them is fitted.
"""

from dataclasses import replace
from pathlib import Path

from planner.calibration import save_calibration
from planner.fit import Fit, fit
from planner.runs import read_runs

RUNS = Path(__file__).parent / "published" / "runs.csv.gz"
CALIBRATION = Path(__file__).parents[1] / "planner" / "presets" / "calibrations" / "default.json"
ROWS_PER_SOURCE = 16


def fit_published(path: Path = RUNS) -> Fit:
    """The default calibration and how far to trust it."""
    return fit(read_runs(path).runs, name="default", per_group=ROWS_PER_SOURCE)


def main() -> None:
    """Fit, print what was found, write the preset."""
    found = fit_published()
    calibration = replace(
        found.calibration,
        source=f"python -m benchmarks.fit_steps: {found.calibration.source}, "
        "benchmarks/published/runs.csv.gz",
    )
    save_calibration(calibration, CALIBRATION)
    print(f"{found.constants} constants, {found.rows} rows")
    print(f"median error {found.median_error:.1%}, held out {found.held_out_error:.1%}")
    for group, error in found.residuals.items():
        print(f"  {group:12} {error:+.1%}")
    for line in found.unidentified:
        print(line)


if __name__ == "__main__":
    main()
