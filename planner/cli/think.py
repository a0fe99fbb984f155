"""``recommend``, ``estimate``: what to do, and what a given layout would cost."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from planner.cli.config import ConfigOption, asked

if TYPE_CHECKING:
    from planner.api import Recommendation


OptionalModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Preset, or a Hugging Face config.json or its folder."),
]
OptionalGpusOption = Annotated[
    int | None,
    typer.Option("--gpus", "-n", help="Devices to plan for; 0 for all that the cluster has."),
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(recommend)
    app.command()(estimate)


def recommend(
    context: typer.Context,
    model: OptionalModelOption = None,
    gpus: OptionalGpusOption = None,
    source: Annotated[
        list[Path] | None,
        typer.Option("--from", help="An existing run's configuration, instead of the flags."),
    ] = None,
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
    executable: Annotated[
        bool, typer.Option("--executable", help="Only what 'planner execute' runs.")
    ] = False,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", help="Of one device, such as 60GiB.")
    ] = None,
    top: Annotated[int, typer.Option("--top", help="Layouts to list.")] = 6,
    teach: Annotated[
        bool, typer.Option("--teach", help="Walk the rule of thumb with this job's numbers.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the plan goes.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Find the best way to train a model on so many devices.

    Example: planner recommend --model llama-7b --gpus 32 -o plan.json
    """
    from planner.api import recommend as ask
    from planner.units import parse_bytes

    check_plot(plot)
    check_writable(output)
    if top < 1:
        raise ValueError(f"--top must be at least 1, got {top}")
    question = _question(
        source, model=model, gpus=gpus, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, precision=precision, optimizer=optimizer,
        framework=framework,
    )  # fmt: skip
    answer = ask(
        **question, calibration=calibration, fixed=fixed, only=only or [],
        forbid=forbid or [], top=top, executable=executable or cluster == "here",
        max_memory_bytes=parse_bytes(max_memory) if max_memory else 0,
    )  # fmt: skip
    _print_recommendation(answer, as_json=as_json)
    if teach and not as_json:
        from planner.report.why import lesson_group

        console().print(lesson_group(answer.lesson()))
    if answer.best is None:
        raise typer.Exit(1)
    if output is not None:
        from planner.plan import write_plan

        write_plan(output, answer.plan(inputs=asked(context)))
    if plot is not None:
        from planner.report.plots import memory_figure, save

        save(memory_figure(answer.best), plot)


def _question(source: list[Path] | None, **flags: Any) -> dict[str, Any]:
    """The question of the flags; what they leave open is read from a configuration.

    Raises:
        ValueError: If nothing names the model or the devices.
    """
    if source:
        from planner.exports.importing import import_run

        names = ("model", "cluster", "global_batch", "sequence_length", "framework")
        run = import_run(source, gpus=flags["gpus"] or 0, **{name: flags[name] for name in names})
        setting, job = run.setting, run.setting.job
        found = {
            "model": setting.model, "gpus": setting.num_devices, "global_batch": job.global_batch,
            "sequence_length": job.sequence_length, "precision": job.precision,
            "optimizer": job.optimizer, "framework": job.framework,
        }  # fmt: skip
        flags = {name: found.get(name) if value is None else value
                 for name, value in flags.items()}  # fmt: skip
    for name in ("model", "gpus"):
        if flags[name] is None:
            raise ValueError(f"--{name} is missing; or name a run's configuration by --from FILE")
    return flags


def _print_recommendation(answer: "Recommendation", *, as_json: bool) -> None:
    from planner.report.recommendation import (
        considered_line,
        recommendation_document,
        recommendation_group,
        remedy_lines,
    )

    setting, result, best = answer.setting, answer.result, answer.best
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
    config: ConfigOption = None,
) -> None:
    """Predict time and memory of one layout; exit code 1 if it does not fit.

    Example: planner estimate --model llama-7b --gpus 8 --layout tp=4,pp=2,zero=1
    """
    from planner.api import estimate as ask
    from planner.report.describe import appraisal_document, setting_document

    check_plot(plot)
    result = ask(
        model, gpus=gpus, layout=layout, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, precision=precision, optimizer=optimizer,
        framework=framework, calibration=calibration,
    )  # fmt: skip
    setting = result.setting
    if as_json:
        print_json({**setting_document(setting), **appraisal_document(result)})
    else:
        from planner.report.appraisal import appraisal_group, assumptions_table

        console().print(assumptions_table(setting), appraisal_group(result))
    if plot is not None:
        from planner.report.plots import memory_figure, save

        save(memory_figure(result), plot)
    raise typer.Exit(0 if result.fits else 1)
