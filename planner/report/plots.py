"""Figures: each function takes a result and returns a matplotlib ``Figure``.

Colours are Okabe and Ito's, which colour-blind readers can tell apart.
"""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.figure import Figure

from planner.appraisal import Appraisal
from planner.compare import Comparison
from planner.cost.memory import MemoryCurve, memory_over_time
from planner.cost.step import play_estimate
from planner.files import write_bytes

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all.

    Raises:
        ValueError: If the path cannot be written.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=144, bbox_inches="tight")
    write_bytes(path, buffer.getvalue())


def comparison_figure(comparison: Comparison) -> Figure:
    """Seconds by part, memory and speedup: two bars each."""
    panels = [
        ("seconds", "seconds", 1.0),
        ("bytes", "GiB", 2.0**30),
        ("times", "speedup over one device", 1.0),
    ]
    panels = [p for p in panels if any(line.unit == p[0] for line in comparison.lines)]
    widths = [max(sum(line.unit == p[0] for line in comparison.lines), 1) for p in panels]
    figure = Figure(figsize=(2.2 * sum(widths) + 1.5, 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for axis, (unit, label, scale) in zip(axes, panels, strict=True):
        lines = [line for line in comparison.lines if line.unit == unit]
        for offset, side, colour in ((-0.2, "predicted", 0), (0.2, "measured", 1)):
            heights = [getattr(line, side) / scale for line in lines]
            places = [index + offset for index in range(len(lines))]
            axis.bar(places, heights, width=0.4, color=PALETTE[colour], label=side)
        if unit == "seconds":
            step = next(i for i, line in enumerate(lines) if line.name == "step")
            middle = lines[step].predicted
            spread = [[middle - comparison.low_seconds], [comparison.high_seconds - middle]]
            axis.errorbar([step - 0.2], [middle], yerr=spread, color="black", capsize=4)
        names = [line.name.replace(" ", "\n", 1) for line in lines]
        axis.set_xticks(range(len(lines)), names)
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    return figure


def memory_figure(appraisal: Appraisal) -> Figure:
    """Memory by category of every pipeline rank, and of the heaviest one over the step."""
    stages = appraisal.stages
    extra = ("fragmentation", "communicators", "context")
    names = [n for n in stages[0].categories if any(s.categories[n] for s in stages)]
    width = max(2.5, 0.5 * min(len(stages), 16))
    figure = Figure(figsize=(width + 7.5, 4.5), layout="constrained")
    axis, over_time = figure.subplots(1, 2, sharey=True, width_ratios=[width, 4.0])
    _draw_curve(over_time, appraisal)
    base = np.zeros(len(stages))
    for index, name in enumerate([*names, *extra]):
        heights = (
            np.array([s.categories[name] if name in names else getattr(s, name) for s in stages])
            / 2.0**30
        )
        colour = PALETTE[index % len(PALETTE)]
        hatch = "" if index < len(PALETTE) else "//"
        axis.bar(
            [s.rank for s in stages], heights, bottom=base, label=name, color=colour,
            hatch=hatch, edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        base += heights
    total = appraisal.setting.cluster.device.memory_bytes / 2.0**30
    axis.axhline(total, color="black", linestyle="--", linewidth=1)
    axis.annotate(
        "device", (1.0, total), xycoords=("axes fraction", "data"), va="bottom", ha="right"
    )
    axis.set_xlabel("pipeline rank")
    axis.set_ylabel("GiB per rank")
    axis.set_xticks([s.rank for s in stages][:: max(1, len(stages) // 16)])
    axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return figure


CURVE_MICROBATCHES = 4
"""Times the stages: enough to fill the pipeline, reach its steady state and drain it."""


def _draw_curve(axis: Any, appraisal: Appraisal) -> None:
    """Allocated bytes of the heaviest rank over a (shortened) step, from the timeline."""
    curve = memory_curve(appraisal)
    axis.step(curve.seconds, curve.allocated_bytes / 2.0**30, where="post", color=PALETTE[0])
    axis.axhline(curve.reserved_bytes / 2.0**30, color=PALETTE[5], linestyle=":", linewidth=1)
    axis.annotate("reserved", (0, curve.reserved_bytes / 2.0**30), va="bottom", fontsize="small")
    axis.set_xlabel(f"seconds, pipeline rank {curve.rank}, first microbatches of a step")
    axis.spines[["top", "right"]].set_visible(False)


def memory_curve(appraisal: Appraisal) -> MemoryCurve:
    """Memory of the heaviest rank over a step cut to a few microbatches a stage."""
    layout = appraisal.layout
    fewest = CURVE_MICROBATCHES * layout.num_stages
    shown = replace(layout, microbatches=min(layout.microbatches, fewest))
    return memory_over_time(play_estimate(shown, appraisal.time), appraisal.heaviest)
