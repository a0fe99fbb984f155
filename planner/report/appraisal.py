"""Terminal output of ``estimate`` and the parts that ``recommend`` shares with it."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from planner.appraisal import Appraisal
from planner.layout import Layout, format_layout
from planner.report.tables import grid
from planner.report.words import layout_in_words
from planner.setting import Setting
from planner.units import format_bytes, format_count, format_seconds


def assumptions_table(setting: Setting) -> Table:
    """What was assumed, and the flag that changes each."""
    table = grid("assumed", "", "", "change with")
    table.show_header = False
    for assumption in setting.assumptions:
        table.add_row(assumption.name, assumption.value, assumption.flag)
    return table


def numbers_line(layout: Layout) -> str:
    """The layout in numbers, defaults of the important fields included."""
    split = "-".join(map(str, layout.stage_layers)) or "all layers on one stage"
    recompute: str = layout.recompute
    if layout.recompute_layers:
        recompute += f" ({layout.recompute_layers} layers)"
    sequence = "on" if layout.sequence_parallel else "off"
    return (
        f"dp {layout.dp}  tp {layout.tp}  pp {layout.pp}  cp {layout.cp}  ep {layout.ep}  "
        f"ZeRO {layout.zero_stage}  sequence parallel {sequence}  "
        f"recompute {recompute}  microbatch {layout.microbatch} x {layout.microbatches}  "
        f"schedule {layout.schedule if layout.pp > 1 else '-'}  split {split}"
    )


def appraisal_group(appraisal: Appraisal) -> Group:
    """Layout, time with its parts, memory of every stage."""
    setting = appraisal.setting
    return Group(
        Text(layout_in_words(appraisal.layout, setting), style="bold"),
        Text(numbers_line(appraisal.layout)),
        Text(f"as --layout {format_layout(appraisal.layout)}", style="dim"),
        Text(),
        time_table(appraisal),
        memory_table(appraisal),
    )


def time_table(appraisal: Appraisal) -> Group:
    """Step time and where it goes."""
    time, job = appraisal.time, appraisal.setting.job
    table = grid("step time", "part", "seconds", "share", right=1)
    for name, seconds in time.parts.items():
        if seconds > 5e-4 * time.step_seconds:
            table.add_row(name, format_seconds(seconds), f"{seconds / time.step_seconds:.1%}")
    table.add_section()
    table.add_row("step", format_seconds(time.step_seconds), "100 %")
    unit = "tokens" if job.sequence_length > 1 else "images"
    said = (
        f"80 % interval {format_seconds(time.low_seconds)} to "
        f"{format_seconds(time.high_seconds)}; "
        f"{format_count(appraisal.tokens_per_second)} {unit}/s, MFU {appraisal.mfu:.1%}, "
        f"1T {unit} in {format_seconds(86400 * appraisal.days_for(1e12))}"
        f"{_price(appraisal)}"
    )
    return Group(table, Text(said), Text())


def _price(appraisal: Appraisal) -> str:
    rate = appraisal.setting.cluster.usd_per_device_hour * appraisal.layout.world_size
    if not rate:
        return ""
    return f" for about ${format_count(rate * 24 * appraisal.days_for(1e12))}"


def memory_table(appraisal: Appraisal) -> Group:
    """Memory of every pipeline stage by category; equal stages share a column."""
    columns = _distinct_stages(appraisal)
    table = grid("memory per rank", "", *(name for name, _ in columns), right=1)
    shown = [stage for _, stage in columns]
    for category in shown[0].categories:
        amounts = [stage.categories[category] for stage in shown]
        if any(amounts):
            table.add_row(category, *map(format_bytes, amounts))
    table.add_section()
    for name in ("allocated", "fragmentation", "reserved", "communicators", "context", "device"):
        table.add_row(name, *(format_bytes(getattr(stage, name)) for stage in shown))
    device = appraisal.setting.cluster.device
    verdict = "fits" if appraisal.fits else "DOES NOT FIT"
    said = (
        f"{verdict}: {format_bytes(appraisal.heaviest.reserved)} reserved of "
        f"{format_bytes(appraisal.usable_bytes)} usable ({format_bytes(device.memory_bytes)} less "
        "context and communicators)"
    )
    return Group(table, Text(said))


def _distinct_stages(appraisal: Appraisal) -> list[tuple[str, Any]]:
    """Stages in order, runs of equal ones as one column; at most 8 columns."""
    runs: list[list[Any]] = []
    for stage in appraisal.stages:
        if runs and runs[-1][-1].categories == stage.categories:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    if len(runs) > 8:
        heaviest = max(runs, key=lambda run: run[0].allocated)
        runs = [
            *runs[:3],
            *([heaviest] if heaviest not in (*runs[:3], runs[-1]) else []),
            runs[-1],
        ]
    named = []
    for run in runs:
        first, last = run[0].rank, run[-1].rank
        where = f"stage {first}" if first == last else f"stages {first}-{last}"
        named.append((f"{where}\n{run[0].layers} layers", run[0]))
    return named
