"""``validate``, ``fit``: is it true, and what would make it truer."""

from pathlib import Path
from typing import Annotated

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
