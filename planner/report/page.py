"""``planner report``: one HTML file that opens offline: words, diagrams, tables, sources."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from planner import __version__
from planner.appraisal import Appraisal
from planner.compare import Comparison
from planner.cost.step import play_estimate
from planner.layout import format_layout
from planner.plan import Plan
from planner.report.diagrams import (
    MOST_NODES,
    bars_diagram,
    layers_of_rank,
    layout_diagram,
    ranks_of_stages,
    scatter_diagram,
    timeline_diagram,
)
from planner.report.words import layout_in_words
from planner.search import SearchResult
from planner.units import GIB, format_bytes, format_count, format_seconds

COMMUNICATION = ("tp", "cp", "ep", "dp", "pp")
STYLE = """
body{font:16px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem}
body{color:#111;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #bbb}
svg{max-width:100%;height:auto;font:11px system-ui,sans-serif}
table{border-collapse:collapse;margin:.6rem 0}
td,th{padding:.15rem .7rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td.n,th{white-space:nowrap}td.n{text-align:right;font-variant-numeric:tabular-nums}
figure{margin:.8rem 0}figcaption{color:#444}.answer{font-weight:600}code{font-size:.92em}
@media print{h2{break-after:avoid}figure,table{break-inside:avoid}body{margin:0;max-width:none}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the page is made of."""

    plan: Plan
    appraisal: Appraisal
    result: SearchResult | None = None
    """Of the same question; without it the page has no Pareto front."""
    scaling: tuple[SearchResult, ...] = ()
    """Answers to the same question on other numbers of devices, in order; each fits."""
    comparison: Comparison | None = None


def report_page(report: Report) -> str:
    """The whole page: no script, no font, no picture from elsewhere."""
    plan, appraisal = report.plan, report.appraisal
    title = (
        f"{plan.model.name} on {plan.layout.world_size} x {appraisal.setting.cluster.device.name}"
    )
    sections = [
        _answer(report), _placement(appraisal), _memory(appraisal), _timeline(appraisal),
        _communication(appraisal), *_pareto(report), *_scaling(report),
        *_measured(report.comparison), _assumptions(appraisal), _sources(report),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, numbers_from: int = 1) -> str:
    """A table whose columns from ``numbers_from`` on are numbers, set to the right."""
    first = "".join(f"<th>{escape(name)}</th>" for name in head)
    classes = [' class="n"' if i >= numbers_from else "" for i in range(len(head))]
    lines = (
        "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{first}</tr>{body}</table>"


def figure(picture: str, caption: str) -> str:
    """A picture with its words below."""
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _answer(report: Report) -> str:
    one, time = report.appraisal, report.appraisal.time
    words = layout_in_words(one.layout, one.setting)
    fits = "fits" if one.fits else "does not fit"
    unit = "tokens" if one.setting.job.sequence_length > 1 else "images"
    speed = (f"{format_seconds(time.step_seconds)} a step (80 % interval "
             f"{format_seconds(time.low_seconds)} to {format_seconds(time.high_seconds)}), "
             f"{format_count(one.tokens_per_second)} {unit}/s, MFU {one.mfu:.1%}; it {fits}: "
             f"{format_bytes(one.heaviest.reserved)} of {format_bytes(one.usable_bytes)} usable "
             "on the heaviest rank.")  # fmt: skip
    return (
        f'<p class="answer">{escape(words[:1].upper() + words[1:])}.</p><p>{escape(speed)}</p>'
        f"<p>As a layout: <code>{escape(format_layout(one.layout))}</code></p>"
    )


def _placement(one: Appraisal) -> str:
    layout, setting = one.layout, one.setting
    each = setting.cluster.devices_per_node
    picture = layout_diagram(layout, devices_per_node=each, num_layers=setting.model.num_layers)
    nodes = -(-layout.world_size // each)
    more = f" The first {MOST_NODES} of {nodes} nodes are drawn." if nodes > MOST_NODES else ""
    caption = (f"A square is a rank: s is its pipeline stage, d its replica.{more} Hover for its "
               "shard.")  # fmt: skip
    held = ranks_of_stages(layout)
    rows = [
        (f"s{stage}", layers_of_rank(layout, setting.model.num_layers, stage),
         f"every {layout.tp} of tensor parallelism holds 1/{layout.tp} of each"
         if layout.tp > 1 else "whole layers",
         held[stage])
        for stage in range(layout.pp)
    ]  # fmt: skip
    stages = table(("stage", "layers", "shard", "ranks"), rows, numbers_from=9)
    return f"<h2>Who holds what</h2>{figure(picture, caption)}{stages}"


def _memory(one: Appraisal) -> str:
    from planner.report.plots import memory_figure

    picture = _inline(memory_figure(one), "memory")
    stages = {stage.allocated: stage for stage in (one.heaviest, *one.stages[:1])}.values()
    rows = []
    for category in one.heaviest.categories:
        amounts = [stage.categories[category] for stage in stages]
        if any(amounts):
            rows.append((category, *map(format_bytes, amounts)))
    for name in ("allocated", "reserved", "device"):
        rows.append((name, *(format_bytes(getattr(stage, name)) for stage in stages)))
    head = ("memory", *(f"pipeline rank {stage.rank}" for stage in stages))
    caption = "Predicted memory of one device of every pipeline rank, by what it is for."
    return f"<h2>Memory</h2>{figure(picture, caption)}{table(head, rows)}"


def _timeline(one: Appraisal) -> str:
    played = play_estimate(one.layout, one.time)
    picture, caption = timeline_diagram(played, pp=one.layout.pp)
    return f"<h2>The step in time</h2>{figure(picture, caption[:1].upper() + caption[1:] + '.')}"


def _communication(one: Appraisal) -> str:
    step = one.time.step_seconds
    rows = [
        (f"{name} (communication)" if name in COMMUNICATION else name, seconds,
         f"{format_seconds(seconds)} ({seconds / step:.1%})")
        for name, seconds in one.time.parts.items()
        if seconds > 5e-4 * step
    ]  # fmt: skip
    caption = "Where the step goes; communication counts only where nothing hides it."
    return f"<h2>Parts of the step</h2>{figure(bars_diagram(rows, 'parts'), caption)}"


def _pareto(report: Report) -> list[str]:
    result, one = report.result, report.appraisal
    if result is None or not result.pareto:
        return []
    front = result.pareto[:12]
    points = [(one.time.step_seconds, one.heaviest.device / GIB, "this plan")]
    points += [(c.step_seconds, c.device_bytes / GIB, format_layout(c.layout)) for c in front]
    words = (f"Of {format_count(result.considered)} layouts considered, the circles are those "
             "that no other beats in time and memory; the square is this plan.")  # fmt: skip
    picture = scatter_diagram(points, across="seconds a step", up="GiB")
    rows = [
        (format_layout(c.layout), format_seconds(c.step_seconds), format_bytes(c.device_bytes))
        for c in front
    ]
    head = ("layout", "step", "device memory")
    return [f"<h2>Time against memory</h2>{figure(picture, words)}{table(head, rows)}"]


def _scaling(report: Report) -> list[str]:
    if len(report.scaling) < 2:
        return []
    rows = [
        (str(point.num_devices), format_seconds(point.best.step_seconds),
         f"{format_seconds(point.best.low_seconds)} to {format_seconds(point.best.high_seconds)}",
         format_layout(point.best.layout))
        for point in report.scaling
        if point.best is not None
    ]  # fmt: skip
    caption = ("The same global batch on fewer and more devices, each with its own best layout; "
               "the words are the 80 % interval.")  # fmt: skip
    bars = [
        (f"{devices} devices", report.scaling[i].best.step_seconds, f"{step} ({interval})")  # type: ignore[union-attr]
        for i, (devices, step, interval, _) in enumerate(rows)
    ]
    head = ("devices", "step", "80 % interval", "layout")
    return [f"<h2>Scaling</h2>{figure(bars_diagram(bars, 'scaling'), caption)}"
            f"{table(head, rows, numbers_from=9)}"]  # fmt: skip


def _measured(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    from planner.report.plots import comparison_figure

    shown = {"seconds": format_seconds, "bytes": format_bytes, "times": "{:.2f}".format}
    rows = [
        (line.name, shown[line.unit](line.predicted), shown[line.unit](line.measured),
         f"{line.error:+.1%}")
        for line in comparison.lines
    ]  # fmt: skip
    verdict = "within" if comparison.within else "beyond"
    caption = f"Predicted beside measured: {verdict} {comparison.tolerance:.0%}."
    picture = figure(_inline(comparison_figure(comparison), "compared"), caption)
    head = ("", "predicted", "measured", "error")
    return [f"<h2>Predicted and measured</h2>{picture}{table(head, rows)}"]


def _assumptions(one: Appraisal) -> str:
    rows = [(a.name, a.value, a.flag) for a in one.setting.assumptions]
    return f"<h2>Assumptions</h2>{table(('what', 'value', 'change with'), rows, numbers_from=9)}"


def _sources(report: Report) -> str:
    setting = report.appraisal.setting
    rows = [
        ("model", setting.model.source), ("cluster", setting.cluster.source),
        ("device", setting.cluster.device.source), ("framework", setting.framework.source),
        ("calibration", report.plan.calibration),
        ("asked by", report.plan.inputs.get("command", "")),
        ("written by", f"parallel-planner {__version__}"),
    ]  # fmt: skip
    known = [row for row in rows if row[1]]
    return f"<h2>Sources</h2>{table(('of', 'source'), known, numbers_from=9)}"


def _inline(drawn: object, name: str) -> str:
    """A matplotlib figure as SVG inside the page; ids carry its name, so that none collide."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})  # type: ignore[attr-defined]
    picture = buffer.getvalue()
    return picture[picture.index("<svg") :].replace(
        "<svg ", f'<svg role="img" aria-label="{name}" ', 1
    )
