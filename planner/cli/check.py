"""``validate``, ``fit``: is it true, and what would make it truer."""

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli.common import (
    CalibrationOption,
    JsonOption,
    PlotOption,
    check_plot,
    check_writable,
    console,
    print_json,
)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(validate)
    app.command()(fit)


def validate(
    runs: Annotated[Path, typer.Argument(help="A CSV of measured runs.")],
    calibration: CalibrationOption = "default",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A CSV with every row's prediction.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict every run of a table and say how far off the predictions are.

    Example: planner validate runs.csv -o report.csv
    """
    from planner.validate import validate as validate_runs
    from planner.validate import write_report

    check_plot(plot)
    check_writable(output)
    result = validate_runs(runs, calibration=calibration)
    document = result.to_dict()
    if as_json:
        print_json(document)
    else:
        from planner.report.validation import validation_group

        console().print(validation_group(document))
    if output is not None:
        write_report(result, output)
    if plot is not None:
        from planner.report.plots import save
        from planner.report.validation import validation_figure

        save(validation_figure(result), plot)


def fit(
    sources: Annotated[
        list[Path], typer.Argument(help="Run tables (.csv), or one probe file (.json).")
    ],
    name: Annotated[
        str, typer.Option("--name", help="Of the calibration; a probe names its own.")
    ] = "my-cluster",
    as_json: JsonOption = False,
) -> None:
    """Fit a calibration to measured runs, or to a probe of this machine.

    Example: planner fit runs.csv --name my-cluster
    """
    probes = [path for path in sources if path.suffix == ".json"]
    if probes and len(sources) > 1:
        raise ValueError("fit takes either one probe file or any number of run tables")
    document = _fit_probe(probes[0]) if probes else _fit_runs(sources, name)
    if as_json:
        print_json(document)
        return
    from planner.report.validation import fit_group

    console().print(fit_group(document))


def _fit_probe(path: Path) -> dict[str, Any]:
    from planner.machine import read_and_calibrate

    found = read_and_calibrate(path)
    return {
        "names": [calibration.name for calibration in found],
        "rows": sum(calibration.rows for calibration in found),
        "notes": [f"{c.name}: {note}" for c in found for note in c.notes],
    }


def _fit_runs(sources: list[Path], name: str) -> dict[str, Any]:
    from planner.calibration import calibration_path, save_calibration
    from planner.fit import fit as fit_runs
    from planner.runs import read_runs

    calibration_path(name)  # an impossible name is said before the work
    runs = [run for path in sources for run in read_runs(path).runs]
    found = fit_runs(runs, name=name)
    save_calibration(found.calibration)
    return {
        "names": [name],
        "rows": found.rows,
        "constants": found.constants,
        "median_abs_error": found.median_error,
        "held_out_median_abs_error": found.held_out_error,
        "residuals": found.residuals,
        "notes": list(found.unidentified),
    }
