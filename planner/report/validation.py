"""``validate`` for people: figures by source group, and a picture of every row."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from rich.console import Group
from rich.text import Text

from planner.report.tables import grid
from planner.validate import Validation

RATIO_TICKS = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 4)
PERCENTS = ("median_abs_error", "mean_abs_error", "p90_abs_error", "bias")


def validation_group(document: dict[str, Any]) -> Group:
    """Step time, ranking, memory and verdicts; rows that were not scored, by reason."""
    groups = {"overall": document["overall"], **document["groups"]}
    time = grid(
        "step time", "group", "rows", "median", "mean", "p90", "bias", "spearman", "tau",
        "mean regret", "max regret", "coverage", right=1,
    )  # fmt: skip
    memory = grid("peak memory", "group", "rows", "median", "mean", "p90", "bias", right=1)
    verdicts = grid("verdicts", "group", "ran", "called feasible", "out of memory", "rejected",
                    "failed", "rejected", right=1)  # fmt: skip
    for name, figures in groups.items():
        if figures["scored"]:
            time.add_row(
                name, str(figures["scored"]), *(_percent(figures[key]) for key in PERCENTS),
                _number(figures["spearman"]), _number(figures["kendall_tau"]),
                _percent(figures["mean_regret"]), _percent(figures["max_regret"]),
                _percent(figures["interval_coverage"]),
            )  # fmt: skip
        if figures["memory"]:
            found = figures["memory"]
            memory.add_row(name, str(found["scored"]), *(_percent(found[k]) for k in PERCENTS))
        if found := figures["verdicts"]:
            verdicts.add_row(
                name, str(found["ran"]), _percent(found["ran_feasible"]),
                str(found["oom"]), _percent(found["oom_rejected"]),
                str(found["failed"]), _percent(found["failed_rejected"]),
            )  # fmt: skip
    reasons = [Text(f"not scored: {n} rows: {r}") for r, n in document["unscored"].items()]
    return Group(time, memory, verdicts, *reasons)


def fit_group(document: dict[str, Any]) -> Group:
    """What a fit found, what it could not identify, and how to use it."""
    lines = [f"fitted {', '.join(document['names'])} to {document['rows']} measurements"]
    if "constants" in document:
        lines.append(
            f"{document['constants']} constants; median error {document['median_abs_error']:.1%}, "
            f"{document['held_out_median_abs_error']:.1%} on sources held out"
        )
        lines += [f"  {group}: {e:+.1%}" for group, e in document["residuals"].items()]
        lines.append(f"use it with --calibration {document['names'][0]}")
    else:
        lines.append("'planner recommend --cluster here' uses them from now on")
    return Group(*map(Text, lines), *(Text(f"note: {note}") for note in document["notes"]))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def validation_figure(validation: Validation) -> Figure:
    """Predicted over measured against measured step time, one point per row."""
    from planner.report.plots import PALETTE

    measured, ratio = validation.measured, validation.errors + 1.0
    groups = np.array([run.group for run in validation.runs])
    seen = np.isfinite(ratio)
    names = sorted(set(groups[seen]), key=lambda name: -int((groups[seen] == name).sum()))
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    markers = "osD^v<>P"
    for index, name in enumerate(names[:16]):
        rows = seen & (groups == name)
        axis.scatter(
            measured[rows], ratio[rows], s=12, alpha=0.6, label=f"{name} ({rows.sum()})",
            color=PALETTE[index % 8], marker=markers[index % 8 if index < 8 else 7 - index % 8],
        )  # fmt: skip
    axis.axhspan(0.9, 1.1, color="black", alpha=0.08)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_yticks(RATIO_TICKS, [f"{tick:g}" for tick in RATIO_TICKS])
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("measured step, seconds")
    axis.set_ylabel("predicted / measured (band: 10 %)")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure
