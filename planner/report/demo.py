"""The table and the plot of ``planner demo``."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from rich.console import Group
from rich.text import Text

from planner.demo import Trial
from planner.report.plots import PALETTE
from planner.report.tables import grid
from planner.units import format_bytes, format_seconds


def demo_table(trials: Sequence[Trial]) -> Group:
    """Predicted and measured step, speedup and memory of every executed layout."""
    table = grid(
        "predicted and measured", "layout", "step predicted", "measured", "error",
        "speedup predicted", "measured", "peak predicted", "measured", right=1,
    )  # fmt: skip
    for trial in trials:
        promised, seen = trial.prediction, trial.measurement
        table.add_row(
            trial.name,
            format_seconds(promised.step_seconds),
            format_seconds(seen.step_seconds),
            f"{trial.step_error:+.1%}",
            f"{trial.predicted_speedup:.2f}x",
            f"{seen.speedup:.2f}x",
            format_bytes(promised.peak_bytes),
            format_bytes(seen.peak_bytes),
        )
    first = trials[0]
    alone = Text(
        f"one rank: {format_seconds(first.prediction.one_device_seconds)} predicted, "
        f"{format_seconds(first.measurement.baseline_seconds)} measured"
    )
    return Group(table, alone)


def demo_figure(trials: Sequence[Trial]) -> Figure:
    """Step and speedup over one rank: predicted with interval, measured with spread."""
    figure = Figure(figsize=(3.2 * len(trials) + 1, 4), layout="constrained")
    steps, speedups = figure.subplots(1, 2)
    places = range(len(trials))
    for offset, colour, label in ((-0.2, PALETTE[0], "predicted"), (0.2, PALETTE[1], "measured")):
        where = [place + offset for place in places]
        if label == "predicted":
            middle = [t.prediction.step_seconds for t in trials]
            low = [t.prediction.low_seconds for t in trials]
            high = [t.prediction.high_seconds for t in trials]
            gains = [t.predicted_speedup for t in trials]
        else:
            middle = [t.measurement.step_seconds for t in trials]
            low = [t.measurement.step_seconds_low for t in trials]
            high = [t.measurement.step_seconds_high for t in trials]
            gains = [t.measurement.speedup for t in trials]
        spread = [
            [max(m - x, 0) for m, x in zip(middle, low, strict=True)],
            [max(x - m, 0) for m, x in zip(middle, high, strict=True)],
        ]
        steps.bar(where, middle, width=0.4, color=colour, label=label)
        steps.errorbar(where, middle, yerr=spread, fmt="none", color="black", capsize=3)
        speedups.bar(where, gains, width=0.4, color=colour, label=label)
    speedups.axhline(1.0, color="black", linewidth=0.8)
    for axis, title in ((steps, "step, seconds"), (speedups, "speedup over one rank")):
        axis.set_ylabel(title)
        names = [t.name.replace(": ", "\n").replace(",", "\n") for t in trials]
        axis.set_xticks(list(places), names, fontsize="small")
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*steps.get_legend_handles_labels(), loc="outside upper right", ncols=2,
                  frameon=False)  # fmt: skip
    return figure
