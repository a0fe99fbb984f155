"""What ``explain``, ``sweep`` and ``recommend --teach`` say, as documents and tables."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from planner.layout import format_layout
from planner.report.recommendation import candidate_document
from planner.report.tables import grid
from planner.search.explain import Explanation, Rival
from planner.search.teach import Lesson
from planner.sweep import SweepPoint, SweepSummary
from planner.units import format_bytes, format_seconds
from planner.why import Answer


def explanation_document(answer: Answer) -> dict[str, Any]:
    """``planner explain --json``."""
    explained = answer.explanation
    return {
        "candidate": candidate_document(explained.candidate),
        "shares": dict(explained.shares),
        "binds": explained.binds,
        "rivals": [_rival_document(rival) for rival in explained.rivals],
        "knobs": [
            {"field": k.field, "before": k.before, "after": k.after, **_rival_document(k.rival)}
            for k in explained.knobs
        ],
        "crossings": [
            {"quantity": c.quantity, "factor": c.factor, "layout": format_layout(c.layout)}
            for c in explained.crossings
        ],
        "remedies": [
            {
                "change": priced.remedy.change,
                "saved_bytes": priced.remedy.saved_bytes,
                "device_bytes": priced.remedy.device_bytes,
                "step_seconds": priced.step_seconds,
                "slower": priced.slower,
            }
            for priced in answer.remedies
        ],
        "faster": None if answer.faster is None else candidate_document(answer.faster),
        "considered": answer.considered,
    }


def _rival_document(rival: Rival) -> dict[str, Any]:
    return {
        "layout": format_layout(rival.layout),
        "step_seconds": None if rival.candidate is None else rival.candidate.step_seconds,
        "loses_in": None if rival.loss is None else rival.loss.term,
        "loss_seconds": None if rival.loss is None else rival.loss.seconds,
        "rejected": [rejected.reason for rejected in rival.rejected],
    }


def explanation_group(answer: Answer) -> Group:
    """``planner explain`` for a terminal."""
    explained, now = answer.explanation, answer.explanation.candidate
    shares = ", ".join(f"{n} {s:.1%}" for n, s in explained.shares.items() if s > 0.001)
    head = [
        Text(f"{format_layout(now.layout)}: step {format_seconds(now.step_seconds)}",
             style="bold"),
        Text(f"of it {shares}; what binds is {explained.binds}"),
    ]  # fmt: skip
    if answer.faster is not None:
        gain = now.step_seconds / answer.faster.step_seconds
        head.append(
            Text(
                f"of {answer.considered:,} layouts the best is {gain:.2f}x as fast: "
                f"{format_layout(answer.faster.layout)}"
            )
        )
    parts: list[RenderableType] = [*head, Text()]
    if explained.rivals:
        parts.append(_rivals_table(explained))
    parts.append(_knobs_table(explained))
    parts += [
        Text(f"with {c.factor:.3g} times the {c.quantity}, {format_layout(c.layout)} would win")
        for c in explained.crossings
    ]
    if answer.remedies:
        parts += [Text(), _remedies_table(answer)]
    return Group(*parts)


def _outcome(rival: Rival, now_seconds: float) -> tuple[str, str, str]:
    if rival.candidate is None:
        return "", "", "; ".join(rejected.reason for rejected in rival.rejected)
    seconds = rival.candidate.step_seconds
    term = "" if rival.loss is None or seconds <= now_seconds else f"loses in {rival.loss.term}"
    return format_seconds(seconds), f"{seconds / now_seconds - 1:+.1%}", term


def _rivals_table(explained: Explanation) -> RenderableType:
    table = grid("rivals", "layout", "step", "slower", "")
    table.columns[0].overflow = "fold"
    for rival in explained.rivals:
        said = _outcome(rival, explained.candidate.step_seconds)
        table.add_row(format_layout(rival.layout).replace(",", " "), *said)
    return table


def _knobs_table(explained: Explanation) -> RenderableType:
    table = grid("one step in each knob", "knob", "now", "then", "step", "slower", "")
    for knob in explained.knobs:
        said = _outcome(knob.rival, explained.candidate.step_seconds)
        table.add_row(knob.field, str(knob.before), str(knob.after), *said)
    return table


def _remedies_table(answer: Answer) -> RenderableType:
    table = grid("to save memory, cheapest first", "change", "saves", "then", "slower", right=1)
    for priced in answer.remedies:
        table.add_row(
            priced.remedy.change,
            format_bytes(priced.remedy.saved_bytes),
            format_bytes(priced.remedy.device_bytes),
            "cannot run" if priced.slower is None else f"{priced.slower:+.1%}",
        )
    return table


def lesson_group(lesson: Lesson) -> Group:
    """``recommend --teach``: the checklist with this job's numbers, and where it errs."""
    parts: list[RenderableType] = [Text(), Text("the rule of thumb, step by step", style="bold")]
    for branch in lesson.branches:
        numbers = ", ".join(f"{name} {value}" for name, value in branch.numbers.items())
        answer = "yes" if branch.answer else "no"
        parts.append(Text(f"- {branch.question} {answer} ({numbers}): {branch.advice}"))
    if lesson.rule_of_thumb is None:
        parts.append(Text("the layouts of the rule of thumb do not fit"))
    elif not lesson.differences:
        parts.append(Text("the computed optimum is what the rule of thumb says"))
    else:
        parts.append(Text(f"the computed optimum is {lesson.gain:.2f}x as fast and differs in"))
        parts += [
            Text(f"  {d.field}: {d.rule_of_thumb} by the rule, {d.optimum} computed")
            for d in lesson.differences
        ]
    return Group(*parts)


def sweep_document(
    points: Sequence[SweepPoint], summary: SweepSummary, tokens: float
) -> dict[str, Any]:
    """``planner sweep --json``."""
    documents = [_point_document(point, tokens) for point in points]

    def named(point: SweepPoint | None) -> dict[str, Any] | None:
        return None if point is None else _point_document(point, tokens)

    return {
        "tokens": tokens,
        "points": documents,
        "fastest": named(summary.fastest),
        "cheapest": named(summary.cheapest),
        "slower_from": [_point_document(point, tokens) for point in summary.slower_from],
    }


def _point_document(point: SweepPoint, tokens: float) -> dict[str, Any]:
    best = point.best
    usd = point.usd_for(tokens)
    return {
        "model": point.model,
        "cluster": point.cluster,
        "num_devices": point.num_devices,
        "global_batch": point.global_batch,
        "sequence_length": point.sequence_length,
        "layout": None if best is None else format_layout(best.layout),
        "step_seconds": None if best is None else best.step_seconds,
        "low_seconds": None if best is None else best.low_seconds,
        "high_seconds": None if best is None else best.high_seconds,
        "tokens_per_second": point.tokens_per_second,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "days": None if best is None else point.seconds_for(tokens) / 86400,
        "usd": usd if math.isfinite(usd) else None,
    }


def sweep_group(document: dict[str, Any]) -> Group:
    """``planner sweep`` for a terminal."""
    table = grid("", "model", "cluster", "devices", "step", "tokens/s", "efficiency", "days",
                 "USD", "layout")  # fmt: skip
    table.columns[8].overflow = "fold"
    for point in document["points"]:
        if point["layout"] is None:
            table.add_row(point["model"], point["cluster"], str(point["num_devices"]),
                          "nothing fits")  # fmt: skip
            continue
        table.add_row(
            point["model"], point["cluster"], str(point["num_devices"]),
            format_seconds(point["step_seconds"]), f"{point['tokens_per_second']:,.0f}",
            f"{point['efficiency']:.0%}", f"{point['days']:.1f}",
            "" if point["usd"] is None else f"{point['usd']:,.0f}",
            point["layout"].replace(",", " "),
        )  # fmt: skip
    lines = [_named("fastest", document["fastest"]), _named("cheapest", document["cheapest"])]
    lines += [
        f"slower than fewer devices: {point['num_devices']} on {point['cluster']}"
        for point in document["slower_from"]
    ]
    return Group(table, *(Text(line) for line in lines))


def _named(word: str, point: dict[str, Any] | None) -> str:
    if point is None:
        return f"{word}: none in time and in budget"
    price = "" if point["usd"] is None else f", ${point['usd']:,.0f}"
    return (
        f"{word}: {point['num_devices']} devices of {point['cluster']}, "
        f"{point['days']:.1f} days{price}"
    )


def sweep_figure(document: dict[str, Any]) -> Any:
    """Tokens per second against devices, with the interval and the ideal line."""
    from matplotlib.figure import Figure

    from planner.report.plots import PALETTE

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in document["points"]:
        if point["layout"] is not None:
            lines.setdefault((point["model"], point["cluster"]), []).append(point)
    for index, (name, points) in enumerate(lines.items()):
        colour = PALETTE[index % len(PALETTE)]
        devices = [p["num_devices"] for p in points]
        rate = [p["tokens_per_second"] for p in points]
        low = [
            r * p["step_seconds"] / p["high_seconds"] for r, p in zip(rate, points, strict=True)
        ]
        high = [
            r * p["step_seconds"] / p["low_seconds"] for r, p in zip(rate, points, strict=True)
        ]
        axis.plot(devices, rate, marker="o", color=colour, label=f"{name[0]} on {name[1]}")
        axis.fill_between(devices, low, high, color=colour, alpha=0.15)
        ideal = [rate[0] / devices[0] * count for count in devices]
        axis.plot(devices, ideal, color=colour, linestyle=":", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = sorted({p["num_devices"] for points in lines.values() for p in points})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel("devices (dotted: linear from the first point)")
    axis.set_ylabel("tokens per second, with the 80 % interval")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize="small")
    return figure
