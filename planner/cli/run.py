"""``execute``, ``compare``, ``probe``, ``dry-run``, ``demo``: plans meet the machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.child import run_executor
from planner.cli.common import (
    JsonOption,
    PlanArgument,
    PlotOption,
    check_plot,
    check_writable,
    console,
    print_json,
)

if TYPE_CHECKING:
    from planner.plan import Plan


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(execute)
    app.command()(compare)
    app.command(name="dry-run")(dry_run)
    app.command()(probe)
    app.command()(demo)


def execute(
    plan: PlanArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the measurement goes.")
    ] = Path("measurement.json"),
    steps: Annotated[int, typer.Option(help="Measured steps.")] = 5,
    warmup: Annotated[int, typer.Option(help="Steps before them.")] = 2,
    data: Annotated[
        Path | None, typer.Option(help="Text to train on, byte by byte; else synthetic tokens.")
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also run the same job on one device.")
    ] = False,
    top: Annotated[
        int, typer.Option("--top", help="Also run the plan's runners-up, and name the fastest.")
    ] = 1,
    nnodes: Annotated[str | None, typer.Option(help="Passed to torchrun.")] = None,
    rdzv_endpoint: Annotated[str | None, typer.Option(help="Passed to torchrun.")] = None,
) -> None:
    """Run a plan under torchrun on this machine's devices and measure it.

    Example: planner execute plan.json --baseline -o measurement.json
    """
    from planner.plan import read_plan

    read = read_plan(plan)
    check_writable(output)
    words = ["--steps", str(steps), "--warmup", str(warmup)]
    if data is not None:
        words += ["--data", str(data)]
    if baseline:
        words.append("--baseline")
    for flag, value in (("--nnodes", nnodes), ("--rdzv-endpoint", rdzv_endpoint)):
        if value is not None:
            words += [flag, value]
    if top == 1:
        raise typer.Exit(run_executor("launch", str(plan), "--output", str(output), *words))
    raise typer.Exit(_try_several(read, top, output, words))


def _try_several(plan: "Plan", top: int, output: Path, words: list[str]) -> int:
    from planner.report.tables import trial_table
    from planner.trial import run_trial

    def run(path: Path, measured: Path) -> int:
        return run_executor("launch", str(path), "--output", str(measured), *words)

    tried, code = run_trial(plan, top=top, output=output, run=run)
    if tried:
        console().print(trial_table(tried))
    return code


def compare(
    plan: PlanArgument,
    measurement: Annotated[Path, typer.Argument(help="Written by 'planner execute'.")],
    tolerance: Annotated[
        float, typer.Option(help="Largest relative error of step, memory and speedup.")
    ] = 0.25,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lay predicted beside measured; exit code 1 beyond the tolerance.

    Example: planner compare plan.json measurement.json --plot compared.png
    """
    from planner.compare import compare as compare_runs
    from planner.measurement import read_measurement
    from planner.plan import read_plan
    from planner.report.describe import comparison_document

    check_plot(plot)
    result = compare_runs(
        read_plan(plan), read_measurement(measurement), tolerance=tolerance, plan_path=plan
    )
    if as_json:
        print_json(comparison_document(result))
    else:
        from planner.report.tables import comparison_table

        console().print(comparison_table(result))
    if plot is not None:
        from planner.report.plots import comparison_figure, save

        save(comparison_figure(result), plot)
    raise typer.Exit(0 if result.within else 1)


def dry_run(
    plan: PlanArgument,
    rank: Annotated[int, typer.Option(help="Which rank of the plan.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Count one rank's tensors exactly, with no device and no network, beside the estimate.

    Example: planner dry-run plan.json --rank 0
    """
    from planner.dry_run import dry_run as count_rank
    from planner.plan import read_plan
    from planner.report.tables import dry_run_document, dry_run_table

    result = count_rank(read_plan(plan), plan, rank)
    if isinstance(result, int):
        raise typer.Exit(result)
    if as_json:
        print_json(dry_run_document(result))
    else:
        console().print(dry_run_table(result))


def probe(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the samples go.")] = Path(
        "probe.json"
    ),
    world_sizes: Annotated[str, typer.Option(help="Ranks to probe, such as 1,2,4.")] = "1,2,4",
) -> None:
    """Time kernels and collectives on this machine, for 'planner fit'.

    Example: planner probe -o probe.json
    """
    check_writable(output)
    raise typer.Exit(run_executor("probe", "--world-sizes", world_sizes, "--output", str(output)))


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", help="Where plans, measurements and the plot go.")
    ] = Path("planner-demo"),
) -> None:
    """Probe this machine, plan a small llama on 2 and 4 ranks, run it, compare.

    Example: planner demo
    """
    from planner.demo import run_demo

    raise typer.Exit(run_demo(folder))
