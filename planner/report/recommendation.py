"""The answer of ``recommend``: as a document for ``--json``, and as tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.appraisal import Appraisal
from planner.layout import format_layout
from planner.report.appraisal import appraisal_group, assumptions_table
from planner.report.describe import appraisal_document, layout_document, setting_document
from planner.report.tables import grid
from planner.search import Candidate, Loss, Remedy, SearchResult
from planner.search.result import loss_of
from planner.setting import Setting
from planner.units import format_bytes, format_count, format_seconds


def recommendation_document(
    setting: Setting, result: SearchResult, best: Appraisal | None
) -> dict[str, Any]:
    """Everything that was found."""
    losses = [{"term": loss.term, "seconds": loss.seconds} for loss in result.losses]
    ranked = [candidate_document(candidate) for candidate in result.ranked]
    for document, loss in zip(ranked, losses, strict=False):
        document["loses_in"] = loss
    return {
        **setting_document(setting),
        "best": None if best is None else appraisal_document(best),
        "ranked": ranked,
        "ties": [candidate_document(candidate) for candidate in result.ties],
        "pareto": [candidate_document(candidate) for candidate in result.pareto],
        "default": None if result.default is None else candidate_document(result.default),
        "gain_over_default": result.gain,
        "reference": None if result.reference is None else candidate_document(result.reference),
        "reference_devices": result.reference_devices,
        "speedup": result.speedup,
        "scaling_efficiency": result.efficiency,
        "remedies": [_remedy_document(remedy) for remedy in result.remedies],
        "considered": result.considered,
        "fitting": result.fitting,
        "rejected": dict(result.rejected),
        "search_seconds": result.search_seconds,
    }


def candidate_document(candidate: Candidate) -> dict[str, Any]:
    """One priced layout."""
    return {
        "layout": layout_document(candidate.layout),
        "step_seconds": candidate.step_seconds,
        "low_seconds": candidate.low_seconds,
        "high_seconds": candidate.high_seconds,
        "parts": dict(candidate.parts),
        "peak_bytes": candidate.peak_bytes,
        "device_bytes": candidate.device_bytes,
        "usd_per_step": candidate.usd_per_step,
    }


def _remedy_document(remedy: Remedy) -> dict[str, Any]:
    priced = None if remedy.candidate is None else candidate_document(remedy.candidate)
    return {"change": remedy.change, "num_devices": remedy.num_devices, "candidate": priced}


def recommendation_group(setting: Setting, result: SearchResult, best: Appraisal) -> Group:
    """The whole answer, for a terminal."""
    parts: list[RenderableType] = [
        assumptions_table(setting),
        appraisal_group(best),
        Text(),
        Text(_speedup_line(result)),
        Text(),
        rivals_table(result),
    ]
    if result.ties:
        parts.append(Text(_ties_line(result)))
    parts += [Text(line) for line in remedy_lines(result.remedies)]
    parts += [Text(), Text(considered_line(result.considered, result.rejected, result))]
    return Group(*parts)


def _speedup_line(result: SearchResult) -> str:
    said = []
    if result.reference is not None and result.num_devices > 1:
        of = "one device" if result.reference_devices == 1 else (
            f"one device, taken from {result.reference_devices}, the fewest that hold the job"
        )  # fmt: skip
        said.append(
            f"speedup {result.speedup:.1f}x over {of}: scaling efficiency {result.efficiency:.0%}"
        )
    if result.default is not None:
        said.append(
            f"{result.gain:.2f}x the speed of the obvious default "
            f"({format_layout(result.default.layout)})"
        )
    else:
        said.append("the obvious defaults do not fit")
    return "; ".join(said)


def rivals_table(result: SearchResult) -> Table:
    """The runners-up and the default, each with the one term in which it loses."""
    table = grid(
        "the best of each combination of degrees, and the obvious default",
        "", "layout", "step", "slower", "loses in", "peak memory",
    )  # fmt: skip
    table.columns[1].overflow = "fold"
    for column in (2, 3, 5):
        table.columns[column].no_wrap = True
    assert result.best is not None
    rows = [(str(i + 1), c) for i, c in enumerate(result.ranked)]
    terms = [_term(loss) for loss in result.losses]
    if result.default is not None:
        rows.append(("default", result.default))
        terms.append(_term(loss_of(result.default, result.best)))
    for index, ((name, candidate), term) in enumerate(zip(rows, terms, strict=True)):
        slower = candidate.step_seconds / result.best.step_seconds - 1
        tight = " (tight)" if candidate.is_tight else ""
        table.add_row(
            name,
            short_layout(candidate).replace(",", " "),
            format_seconds(candidate.step_seconds),
            f"{slower:+.1%}",
            "" if index == 0 or slower <= 0 else term,
            format_bytes(candidate.peak_bytes) + tight,
        )
    return table


def _term(loss: Loss) -> str:
    return f"{loss.term} (+{format_seconds(loss.seconds)})"


def short_layout(candidate: Candidate) -> str:
    """A layout without its split and number of microbatches, which follow from the rest."""
    words = format_layout(candidate.layout).split(",")
    return ",".join(w for w in words if not w.startswith(("split=", "microbatches=")))


def _ties_line(result: SearchResult) -> str:
    return (
        f"{len(result.ties)} of these are within the error of the best; a short trial settles "
        "it: planner execute --top 3"
    )


def remedy_lines(remedies: tuple[Remedy, ...]) -> list[str]:
    """What would fit, or fit better."""
    lines = []
    for remedy in remedies:
        if remedy.candidate is None:
            lines.append(f"hint: {remedy.change}")
        else:
            step = format_seconds(remedy.candidate.step_seconds)
            lines.append(f"hint: {remedy.change}: {short_layout(remedy.candidate)}, step {step}")
    return lines


def considered_line(considered: int, rejected: Mapping[str, int], result: SearchResult) -> str:
    """How many layouts were looked at, and why the rest were not taken."""
    reasons = ", ".join(
        f"{name} {format_count(number)}"
        for name, number in sorted(rejected.items(), key=lambda item: -item[1])
    )
    return (
        f"considered {considered:,} layouts in {result.search_seconds:.2f} s, "
        f"{result.fitting:,} can run and fit; rejected by {reasons or 'nothing'}"
    )
