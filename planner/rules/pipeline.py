"""Rules of the pipeline: stages, chunks, schedules, tied weights."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.framework import Framework
from planner.layout import Layout
from planner.layout_table import SCHEDULES, LayoutTable
from planner.rules.core import Booleans, Question, Rule, divisors, two_nearest
from planner.schedules import SPLIT_BACKWARD, why_not
from planner.split_rules import centred_split


def with_split(layout: Layout, question: Question) -> Layout:
    """The layout with its split made explicit where it has none."""
    if layout.num_stages == 1 or layout.stage_layers:
        return layout
    layers = centred_split(question.model.num_layers, stages=layout.num_stages)
    return replace(layout, stage_layers=layers)


def explain_split(layout: Layout, question: Question) -> str | None:
    """What is wrong with an explicit split, or None."""
    total, stages = question.model.num_layers, layout.num_stages
    if not layout.stage_layers:
        even = question.framework.stage_rule == "even"
        return _explain_layers(layout, question) if even and total % stages else None
    split = "-".join(map(str, layout.stage_layers))
    legal = "-".join(map(str, centred_split(total, stages=stages)))
    instead = f"use split={legal}, or leave split out"
    if len(layout.stage_layers) != stages:
        return (
            f"split={split} has {len(layout.stage_layers)} stages, but pp {layout.pp} x vpp "
            f"{layout.vpp} makes {stages}; {instead}"
        )
    if sum(layout.stage_layers) != total:
        return (
            f"split={split} holds {sum(layout.stage_layers)} layers, but {question.model.name} "
            f"has {total}; {instead}"
        )
    if min(layout.stage_layers) < 0:
        return f"split={split}: a stage cannot hold fewer than 0 layers; {instead}"
    return None


def _no_pipeline(table: LayoutTable, question: Question) -> Booleans:
    return (table.pp > 1) & (not question.framework.runs_pipeline)


def _explain_no_pipeline(layout: Layout, question: Question) -> str:
    return (
        f"pp={layout.pp}: {question.framework.name} has no pipeline; use "
        f"dp={layout.dp * layout.pp} with pp=1, or a framework that has (megatron-lm, torchtitan)"
    )


def _layers(table: LayoutTable, question: Question) -> Booleans:
    stages = table.pp * table.vpp
    broken = stages > max(question.model.num_layers, 1)
    if not question.framework.takes_uneven_stages:
        explicit = np.array([_is_uneven(s.layers) for s in table.splits])
        broken |= (question.model.num_layers % stages != 0) | explicit[table.split]
    return broken


def _is_uneven(layers: tuple[int, ...]) -> bool:
    return len(set(layers)) > 1


def _explain_layers(layout: Layout, question: Question) -> str:
    total, name = question.model.num_layers, question.model.name
    legal = [d // layout.vpp for d in divisors(total) if d % layout.vpp == 0]
    said = f"pp={layout.pp}, vpp={layout.vpp}"
    if layout.num_stages > total:
        return (
            f"{said}: {total} layers of {name} cannot fill {layout.num_stages} stages; "
            f"use pp={two_nearest(legal, layout.pp) or '1'}"
        )
    split = "-".join(map(str, centred_split(total, stages=layout.num_stages)))
    return (
        f"{said}: {question.framework.name} makes equal stages, but {total} layers of {name} are "
        f"not divisible by pp x vpp = {layout.num_stages}; use "
        f"pp={two_nearest(legal, layout.pp) or '1'}, or split={split} where it can be given"
    )


def _chunks(table: LayoutTable, question: Question) -> Booleans:
    return (table.pp == 1) & (table.vpp > 1)


def _explain_chunks(layout: Layout, question: Question) -> str:
    return f"vpp={layout.vpp}: virtual stages need a pipeline, pp is 1; use vpp=1 or pp=2"


def _schedule(table: LayoutTable, question: Question) -> Booleans:
    """``why_not`` once for each distinct (schedule, pp, vpp, microbatches)."""
    several = table.pp > 1
    code = table.schedule.astype(np.int64)
    for column in (table.pp, table.vpp, table.microbatches):
        code = code * (int(column.max(initial=0)) + 1) + column
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    wrong = [_schedule_reason(table, int(i), question.framework) is not None for i in first]
    return several & np.asarray(wrong, bool)[inverse]


def _schedule_reason(table: LayoutTable, i: int, framework: Framework) -> str | None:
    return why_not(
        SCHEDULES[int(table.schedule[i])],  # type: ignore[arg-type]
        pp=int(table.pp[i]),
        vpp=int(table.vpp[i]),
        microbatches=int(table.microbatches[i]),
        backend=framework.backend,
    )


def _explain_schedule(layout: Layout, question: Question) -> str:
    reason = why_not(
        layout.schedule, pp=layout.pp, vpp=layout.vpp, microbatches=layout.microbatches,
        backend=question.framework.backend,
    )  # fmt: skip
    assert reason is not None
    return reason


def _tied(table: LayoutTable, question: Question) -> Booleans:
    refuses = question.model.tied and question.framework.ties_across_stages == "refuses"
    first = np.array([int(s.rank_of_stage()[0]) for s in table.splits])
    last = np.array([int(s.rank_of_stage()[-1]) for s in table.splits])
    apart: NDArray[np.bool_] = (first != last)[table.split]
    return apart & refuses


def _explain_tied(layout: Layout, question: Question) -> str:
    return (
        f"pp={layout.pp}: {question.model.name} ties its embedding to its head, and "
        f"{question.framework.name} cannot share weights between stages; use pp=1, or untie them "
        f"({question.model.vocabulary * question.model.hidden} more parameters)"
    )


_SPLITTING = np.array([name in SPLIT_BACKWARD for name in SCHEDULES])


def cannot_recompute(table: LayoutTable, question: Question) -> Booleans:
    """PyTorch computes the two halves of a split backward from one saved graph.

    Recomputation rebuilds that graph in the first half only, and FSDP2 frees what the second
    would need.
    """
    apart: Booleans = _SPLITTING[table.schedule] & (table.pp > 1)
    return apart & (question.framework.backend == "torch")


def _splits(table: LayoutTable, question: Question) -> Booleans:
    wanted: Booleans = (table.recompute > 0) | (table.zero_stage >= 2)
    return cannot_recompute(table, question) & wanted


def _explain_splits(layout: Layout, question: Question) -> str:
    if layout.recompute != "none":
        return (
            f"recompute={layout.recompute}: {layout.schedule} splits backward, which PyTorch "
            "cannot recompute; use recompute=none or schedule=1f1b"
        )
    return (
        f"zero={layout.zero_stage}: FSDP2 cannot follow the split backward of {layout.schedule}; "
        "use zero=1 or schedule=1f1b"
    )


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(name="pipeline", broken=_no_pipeline, reason=_explain_no_pipeline),
    Rule(name="virtual stages", broken=_chunks, reason=_explain_chunks),
    Rule(name="layers", broken=_layers, reason=_explain_layers),
    Rule(name="schedule", broken=_schedule, reason=_explain_schedule),
    Rule(name="split backward", broken=_splits, reason=_explain_splits),
    Rule(name="tied weights", broken=_tied, reason=_explain_tied),
)
