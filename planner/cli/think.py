"""``recommend``, ``estimate``: what to do, and what a given layout would cost."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    check_writable,
    console,
    print_json,
)

if TYPE_CHECKING:
    from planner.appraisal import Appraisal
    from planner.search import SearchResult
    from planner.setting import Setting


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(recommend)
    app.command()(estimate)


def recommend(
    model: ModelOption,
    gpus: GpusOption,
    cluster: ClusterOption = None,
    global_batch: BatchOption = None,
    sequence_length: LengthOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = None,
    framework: FrameworkOption = None,
    calibration: CalibrationOption = "default",
    fixed: Annotated[str, typer.Option("--set", help="Fix fields, such as tp=8,sp.")] = "",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Allow some values, such as zero=1,3.")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option("--forbid", help="Rule out, such as pp or recompute=full.")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", help="Of one device, such as 60GiB.")
    ] = None,
    top: Annotated[int, typer.Option("--top", help="Layouts to list.")] = 6,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the plan goes.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best way to train a model on so many devices.

    Example: planner recommend --model llama-7b --gpus 32 -o plan.json
    """
    from planner.calibration import load_calibration
    from planner.search import search
    from planner.setting import resolve
    from planner.units import parse_bytes

    check_plot(plot)
    check_writable(output)
    if top < 1:
        raise ValueError(f"--top must be at least 1, got {top}")
    setting = resolve(
        model=model, num_devices=gpus, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, precision=precision, optimizer=optimizer,
        framework=framework,
    )  # fmt: skip
    result = search(
        setting.model, setting.job, setting.cluster, setting.framework,
        load_calibration(calibration), num_devices=setting.num_devices, fixed=fixed,
        only=only or [], forbid=forbid or [], top=top,
        max_memory_bytes=parse_bytes(max_memory) if max_memory else 0,
    )  # fmt: skip
    best = _appraise_best(setting, result, calibration)
    _print_recommendation(setting, result, best, as_json=as_json)
    if best is None:
        raise typer.Exit(1)
    if output is not None:
        _write_plan(output, result, best, calibration)
    if plot is not None:
        from planner.report.plots import memory_figure, save

        save(memory_figure(best), plot)


def _appraise_best(
    setting: "Setting", result: "SearchResult", calibration: str
) -> "Appraisal | None":
    from planner.appraisal import appraise
    from planner.calibration import load_calibration

    if result.best is None:
        return None
    return appraise(setting, result.best.layout, load_calibration(calibration))


def _print_recommendation(
    setting: "Setting", result: "SearchResult", best: "Appraisal | None", *, as_json: bool
) -> None:
    from planner.report.recommendation import (
        considered_line,
        recommendation_document,
        recommendation_group,
        remedy_lines,
    )

    if as_json:
        print_json(recommendation_document(setting, result, best))
    elif best is not None:
        console().print(recommendation_group(setting, result, best))
    if best is None:
        print(f"nothing fits: {setting.model.name} on {setting.num_devices} x "
              f"{setting.cluster.device.name}", file=sys.stderr)  # fmt: skip
        for line in remedy_lines(result.remedies):
            print(line, file=sys.stderr)
        print(considered_line(result.considered, result.rejected, result), file=sys.stderr)


def _write_plan(path: Path, result: "SearchResult", best: "Appraisal", calibration: str) -> None:
    from planner.appraisal import plan_of
    from planner.plan import write_plan

    reference = result.reference
    alone = reference.step_seconds * result.reference_devices if reference else 0.0
    plan = plan_of(
        best, calibration=calibration, one_device_seconds=alone,
        baseline_devices=result.reference_devices, inputs={"command": " ".join(sys.argv[1:])},
    )  # fmt: skip
    write_plan(path, plan)


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
