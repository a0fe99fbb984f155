"""``explain`` and ``sweep``: why this one, and what if the question were another."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.common import (
    BatchOption,
    CalibrationOption,
    FrameworkOption,
    JsonOption,
    LengthOption,
    OptimizerOption,
    PlanArgument,
    PlotOption,
    PrecisionOption,
    check_plot,
    check_writable,
    console,
    print_json,
    say,
)

if TYPE_CHECKING:
    from planner.setting import Setting
    from planner.sweep import SweepPoint


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(explain)
    app.command()(sweep)


def explain(
    plan: PlanArgument,
    against: Annotated[
        list[str] | None, typer.Option("--against", help="A rival layout, such as tp=8,pp=4.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where the plan's is not known by name.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a plan's layout: what binds, how rivals lose, when the answer turns.

    Example: planner explain plan.json --against tp=8,pp=4
    """
    from planner.plan import read_plan
    from planner.report.why import explanation_document, explanation_group
    from planner.setting import setting_of
    from planner.why import explain_plan

    read = read_plan(plan)
    answer = explain_plan(read, setting_of(read, cluster=cluster), against=against or [])
    if as_json:
        print_json(explanation_document(answer))
    else:
        console().print(explanation_group(answer))


def sweep(
    model: Annotated[list[str], typer.Option("--model", "-m", help="One or several.")],
    gpus: Annotated[str, typer.Option("--gpus", "-n", help="Such as 8,16,32,64.")],
    cluster: Annotated[
        list[str] | None, typer.Option("--cluster", "-c", help="One or several.")
    ] = None,
    global_batch: BatchOption = None,
    sequence_length: LengthOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = None,
    framework: FrameworkOption = None,
    calibration: CalibrationOption = "default",
    tokens: Annotated[str, typer.Option(help="To train in all, such as 1T.")] = "1T",
    deadline: Annotated[
        float | None, typer.Option(help="Days in which all tokens must be trained.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="US dollars for all tokens.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A CSV with every point.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Scaling over device counts, clusters and models; the cheapest way to train T tokens.

    Example: planner sweep --model llama-7b --gpus 8,16,32,64 --tokens 1T --deadline 60
    """
    from planner.calibration import load_calibration
    from planner.report.why import sweep_document, sweep_group
    from planner.setting import resolve
    from planner.sweep import summarise
    from planner.units import parse_count

    check_plot(plot)
    check_writable(output)
    wanted = parse_count(tokens)
    machines: list[str | None] = [*cluster] if cluster else [None]
    settings = [
        resolve(
            model=name, num_devices=count, cluster=machine, global_batch=global_batch,
            sequence_length=sequence_length, precision=precision, optimizer=optimizer,
            framework=framework,
        )
        for name in model
        for machine in machines
        for count in _counts(gpus)
    ]  # fmt: skip
    points = list(_points(settings, load_calibration(calibration)))
    summary = summarise(
        points, tokens=wanted,
        deadline_seconds=float("inf") if deadline is None else 86400 * deadline,
        budget_usd=float("inf") if budget is None else budget,
    )  # fmt: skip
    document = sweep_document(points, summary, wanted)
    if as_json:
        print_json(document)
    else:
        console().print(sweep_group(document))
    if output is not None:
        from planner.files import write_csv

        done = document["points"]
        write_csv(output, list(done[0]) if done else ["model"], done)
    if plot is not None:
        from planner.report.plots import save
        from planner.report.why import sweep_figure

        save(sweep_figure(document), plot)
    raise typer.Exit(0 if summary.cheapest is not None else 1)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(f"--gpus {text!r} is not a list of device counts such as 8,16,32")
    return counts


def _points(settings: "list[Setting]", calibration: Any) -> "Iterator[SweepPoint]":
    """Points as they are found; Ctrl-C keeps those that are done."""
    from planner.sweep import sweep as sweep_settings

    found = sweep_settings(settings, calibration)
    for number, setting in enumerate(settings, start=1):
        say(f"[{number}/{len(settings)}] {setting.model.name} on {setting.num_devices} x "
            f"{setting.cluster.device.name} ({setting.cluster.name})")  # fmt: skip
        try:
            yield next(found)
        except KeyboardInterrupt:
            print(f"interrupted: {number - 1} of {len(settings)} points are kept", file=sys.stderr)
            return
