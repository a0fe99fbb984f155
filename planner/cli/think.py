"""``recommend``, ``estimate``: what to do, and what a given layout would cost."""

from typing import Annotated

import typer

from planner.cli.common import (
    BatchOption,
    CalibrationOption,
    ClusterOption,
    FrameworkOption,
    GpusOption,
    JsonOption,
    LengthOption,
    ModelOption,
    OptimizerOption,
    PlotOption,
    PrecisionOption,
    check_plot,
    console,
    print_json,
)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(estimate)


def estimate(
    model: ModelOption,
    gpus: GpusOption,
    layout: Annotated[
        str, typer.Option("--layout", help="Such as tp=4,pp=2,zero=1,sp; the rest is filled in.")
    ] = "",
    cluster: ClusterOption = None,
    global_batch: BatchOption = None,
    sequence_length: LengthOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = None,
    framework: FrameworkOption = None,
    calibration: CalibrationOption = "default",
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict time and memory of one layout; exit code 1 if it does not fit.

    Example: planner estimate --model llama-7b --gpus 8 --layout tp=4,pp=2,zero=1
    """
    from planner.appraisal import appraise, complete_layout
    from planner.calibration import load_calibration
    from planner.layout import parse_layout_settings
    from planner.report.describe import appraisal_document, setting_document
    from planner.setting import resolve

    check_plot(plot)
    setting = resolve(
        model=model, num_devices=gpus, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, precision=precision, optimizer=optimizer,
        framework=framework,
    )  # fmt: skip
    chosen = complete_layout(parse_layout_settings(layout), setting)
    result = appraise(setting, chosen, load_calibration(calibration))
    if as_json:
        print_json({**setting_document(setting), **appraisal_document(result)})
    else:
        from planner.report.appraisal import appraisal_group, assumptions_table

        console().print(assumptions_table(setting), appraisal_group(result))
    if plot is not None:
        from planner.report.plots import memory_figure, save

        save(memory_figure(result), plot)
    raise typer.Exit(0 if result.fits else 1)
