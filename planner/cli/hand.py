"""``export``, ``import``, ``trace``, ``report``: plans to and from other programs and eyes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.common import (
    BatchOption,
    CalibrationOption,
    ClusterOption,
    JsonOption,
    LengthOption,
    PlanArgument,
    check_writable,
    console,
    print_json,
    say,
)

if TYPE_CHECKING:
    from planner.appraisal import Appraisal
    from planner.exports.advice import Advice
    from planner.exports.importing import Imported


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(export)
    app.command(name="import")(import_)
    app.command()(trace)
    app.command()(report)


def export(
    plan: PlanArgument,
    to: Annotated[
        str, typer.Option("--to", help="megatron-lm, megatron-bridge, deepspeed, accelerate, "
                          "torchtitan-0.2, torchtitan-0.3, nanotron or executor.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The main file; others lie beside it.")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option("--launcher", help="Also torchrun, slurm or kubernetes.")
    ] = None,
    image: Annotated[
        str, typer.Option("--image", help="Container image of --launcher kubernetes.")
    ] = "pytorch/pytorch:latest",
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Drop what the target cannot say, and list it.")
    ] = False,
) -> None:  # fmt: skip
    """Write a plan as another framework's arguments or files, and how to start it.

    Example: planner export plan.json --to megatron-lm --launcher slurm
    """
    from planner.exports.exporting import export_plan
    from planner.files import write_text
    from planner.plan import read_plan

    check_writable(output)
    result = export_plan(read_plan(plan), to, launcher=launcher, image=image, lossy=lossy,
                         main_name=output.name if output else "")  # fmt: skip
    for line in result.unsaid:
        say(f"not said: {line}")
    for line in result.remarks:
        say(line)
    if output is None:
        for name, text in result.files.items():
            if len(result.files) > 1:
                print(f"# ---- {name} ----")
            sys.stdout.write(text)
        return
    for name in result.files:
        check_writable(output.with_name(name))
    for name, text in result.files.items():
        write_text(output.with_name(name), text)
        say(f"wrote {output.with_name(name)}")


def import_(
    files: Annotated[
        list[Path], typer.Argument(help="A configuration; several if they are of one run.")
    ],
    source: Annotated[
        str | None, typer.Option("--from", help="A target of 'export', or hf-trainer; by "
                                 "default it is recognised.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the file does not hold it.")
    ] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", "-n", help="Ranks, where the file does not say.")
    ] = 0,
    cluster: ClusterOption = None,
    global_batch: BatchOption = None,
    sequence_length: LengthOption = None,
    framework: Annotated[
        str | None, typer.Option("--framework", help="Profile; by default the target's own.")
    ] = None,
    calibration: CalibrationOption = "default",
    advise: Annotated[
        bool, typer.Option("--advise", help="Search, and list the options to change.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the plan goes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Read an existing run's configuration: what it costs, and what would be better.

    Example: planner import pretrain.sh --gpus 32 --advise
    """
    from planner.api import calibration_of
    from planner.appraisal import appraise, plan_of
    from planner.calibration import load_calibration
    from planner.exports.advice import advise as advise_on
    from planner.exports.importing import import_run
    from planner.exports.targets import TARGETS
    from planner.plan import write_plan

    check_writable(output)
    run = import_run(
        files, source=source, model=model, gpus=gpus, cluster=cluster, global_batch=global_batch,
        sequence_length=sequence_length, framework=framework,
    )  # fmt: skip
    constants = load_calibration(calibration_of(run.setting, calibration))
    now = appraise(run.setting, run.layout, constants)
    advice = advise_on(now, TARGETS[run.target], constants) if advise else None
    _print_import(run, now, advice, as_json=as_json)
    if output is not None:
        command = {"command": " ".join(sys.argv[1:])}
        write_plan(output, replace(plan_of(now, calibration=calibration), inputs=command))
    raise typer.Exit(0 if now.fits else 1)


def _print_import(
    run: "Imported", now: "Appraisal", advice: "Advice | None", *, as_json: bool
) -> None:
    from planner.report.appraisal import appraisal_group, assumptions_table
    from planner.report.describe import appraisal_document, setting_document

    if as_json:
        document: dict[str, Any] = {
            "target": run.target, "notes": list(run.notes),
            **setting_document(run.setting), **appraisal_document(now),
        }  # fmt: skip
        if advice is not None:
            document["advice"] = _advice_document(advice, now)
        print_json(document)
        return
    for note in run.notes:
        say(f"note: {note}")
    screen = console()
    screen.print(assumptions_table(run.setting), appraisal_group(now))
    if advice is not None:
        _print_advice(advice, now, run.target)


def _advice_document(advice: "Advice", now: "Appraisal") -> dict[str, Any]:
    from planner.report.describe import appraisal_document

    return {
        "gain": advice.gain(now),
        "changes": [{"option": c.option, "now": c.now, "best": c.best} for c in advice.changes],
        "not_said": list(advice.unsaid),
        "best": appraisal_document(advice.best) if advice.best else None,
    }


def _print_advice(advice: "Advice", now: "Appraisal", target: str) -> None:
    from rich.table import Table

    from planner.layout import format_layout
    from planner.units import format_bytes, format_seconds

    best, screen = advice.best, console()
    if best is None:
        screen.print("nothing fits on these devices, whatever the layout")
        return
    if best is now:
        screen.print(f"no layout that {target} can say is more than 1 % faster: keep this one")
        return
    step, peak = best.time.step_seconds, best.peak_bytes
    faster = f"{advice.gain(now):.2f} times as fast" if now.fits else "it fits, this one does not"
    screen.print(f"better: {format_layout(best.layout)}: {format_seconds(step)} instead of "
                 f"{format_seconds(now.time.step_seconds)} ({faster}), "
                 f"{format_bytes(peak)} instead of {format_bytes(now.peak_bytes)}")  # fmt: skip
    table = Table("option", "now", "better", title="to change", title_justify="left", box=None)
    for change in advice.changes:
        table.add_row(change.option, *(_shown(value) for value in (change.now, change.best)))
    screen.print(table)
    for line in advice.unsaid:
        screen.print(f"{target} cannot say: {line}")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        value = " ".join(map(str, value))
    text = "on" if value is True else "off" if value is False else str(value)
    return text if len(text) <= 48 else text[:45] + "..."


def trace(
    plan: PlanArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the trace goes.")
    ] = Path("trace.json"),
    cluster: ClusterOption = None,
) -> None:  # fmt: skip
    """Write the predicted step as a Chrome trace, which ui.perfetto.dev opens.

    Example: planner trace plan.json -o trace.json
    """
    import json

    from planner.exports.trace import trace_plan
    from planner.files import write_text
    from planner.plan import read_plan

    check_writable(output)
    write_text(output, json.dumps(trace_plan(read_plan(plan), cluster=cluster)) + "\n")
    say(f"wrote {output}: open it at ui.perfetto.dev")


def report(
    plan: PlanArgument,
    measurement: Annotated[
        Path | None, typer.Argument(help="Written by 'planner execute' for the same plan.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the page goes.")
    ] = Path("report.html"),
    cluster: ClusterOption = None,
) -> None:  # fmt: skip
    """Write one HTML page on a plan, which opens offline.

    Example: planner report plan.json -o report.html
    """
    from planner.compare import compare
    from planner.files import write_text
    from planner.measurement import read_measurement
    from planner.plan import read_plan
    from planner.report.gather import gather
    from planner.report.page import report_page

    check_writable(output)
    one = read_plan(plan)
    measured = None
    if measurement is not None:
        measured = compare(one, read_measurement(measurement), plan_path=plan)
    write_text(output, report_page(gather(one, cluster=cluster, comparison=measured)))
    say(f"wrote {output}")
