"""Rules of what saves memory: sequence parallelism, ZeRO, recompute, offload, fused loss."""

import numpy as np

from planner.layout import Layout
from planner.layout_table import RECOMPUTES, LayoutTable
from planner.rules.core import Booleans, Question, Rule, divisors, two_nearest

FULL = RECOMPUTES.index("full")


def _sequence_parallel(table: LayoutTable, question: Question) -> Booleans:
    return table.sequence_parallel & (table.tp == 1)


def _explain_sequence_parallel(layout: Layout, question: Question) -> str:
    return (
        "sp=on: sequence parallelism spreads the stream over the tensor-parallel ranks, but tp is "
        "1; use sp=off or tp=2"
    )


def _zero(table: LayoutTable, question: Question) -> Booleans:
    framework = question.framework
    alone = (table.zero_stage > 0) & (table.dp * table.cp == 1)
    most = np.where(
        table.pp > 1, framework.largest_zero_stage_with_pipeline, framework.largest_zero_stage
    )
    return alone | (table.zero_stage > np.minimum(most, framework.largest_zero_stage))


def _explain_zero(layout: Layout, question: Question) -> str:
    framework = question.framework
    if layout.dp * layout.cp == 1:
        return (
            f"zero={layout.zero_stage}: ZeRO shards over dp x cp replicas, and there is 1; "
            "use zero=0 or dp=2"
        )
    if layout.zero_stage > framework.largest_zero_stage:
        return (
            f"zero={layout.zero_stage}: {framework.name} goes up to "
            f"zero={framework.largest_zero_stage}; use that or zero=0"
        )
    return (
        f"zero={layout.zero_stage}: {framework.name} goes up to "
        f"zero={framework.largest_zero_stage_with_pipeline} with a pipeline; use that, or pp=1"
    )


def _group(table: LayoutTable, question: Question) -> Booleans:
    replicas = table.dp * table.cp
    group = np.maximum(table.shard_group, 1)
    broken = replicas % group != 0
    if not question.framework.shards_in_groups:
        broken |= (table.zero_stage > 0) & (group != replicas)
    return broken


def _explain_group(layout: Layout, question: Question) -> str:
    replicas, group = layout.dp * layout.cp, layout.shard_group
    if replicas % group:
        return (
            f"zero_group={group}: it must divide the dp x cp = {replicas} replicas; use "
            f"zero_group={two_nearest(divisors(replicas), group)}"
        )
    return (
        f"zero_group={group}: {question.framework.name} shards over all {replicas} replicas; use "
        f"zero_group={replicas} or zero=0"
    )


def _recompute(table: LayoutTable, question: Question) -> Booleans:
    stages = np.array([_smallest_rank(s.layers, s.pp, question.model.num_layers)
                       for s in table.splits])  # fmt: skip
    some = table.recompute_layers > 0
    broken = some & (table.recompute_layers > stages[table.split])
    broken |= some & (table.recompute != FULL)
    if not question.framework.recomputes_some_layers:
        broken |= some
    return broken


def _smallest_rank(layers: tuple[int, ...], pp: int, total: int) -> int:
    """Most layers that any pipeline rank holds: beyond that, fewer are recomputed than asked."""
    if len(layers) == 1:
        return total
    return max(sum(layers[rank::pp]) for rank in range(pp))


def _explain_recompute(layout: Layout, question: Question) -> str:
    k = layout.recompute_layers
    most = -(-question.model.num_layers // layout.pp)
    if layout.recompute != "full":
        return f"recompute_layers={k}: only recompute=full counts layers; use recompute=full or 0"
    if not question.framework.recomputes_some_layers:
        return (
            f"recompute_layers={k}: {question.framework.name} recomputes all layers or none; "
            "use recompute_layers=0 or recompute=none"
        )
    return (
        f"recompute_layers={k}: a pipeline rank holds at most {most} of "
        f"{question.model.num_layers} layers; use {most} or 0 for all"
    )


def _offload(table: LayoutTable, question: Question) -> Booleans:
    framework = question.framework
    if not framework.offloads_optimizer:
        return table.offload_optimizer.copy()
    if not framework.offloads_with_pipeline:
        return table.offload_optimizer & (table.pp > 1)
    return np.zeros(len(table), bool)


def _explain_offload(layout: Layout, question: Question) -> str:
    name = question.framework.name
    if question.framework.offloads_optimizer:
        return f"offload=on: {name} does not offload with a pipeline; use offload=off or pp=1"
    return f"offload=on: {name} keeps optimizer states on the device; use offload=off or zero=1"


def _fused_loss(table: LayoutTable, question: Question) -> Booleans:
    framework = question.framework
    if framework.chooses_fused_loss:
        return np.zeros(len(table), bool)
    return table.fused_loss != framework.fused_loss


def _explain_fused_loss(layout: Layout, question: Question) -> str:
    habit = "on" if question.framework.fused_loss else "off"
    return (
        f"fused_loss={'off' if habit == 'on' else 'on'}: {question.framework.name} has it always "
        f"{habit}; use fused_loss={habit} or leave it out"
    )


SAVER_RULES: tuple[Rule, ...] = (
    Rule(
        name="sequence parallelism", broken=_sequence_parallel, reason=_explain_sequence_parallel
    ),
    Rule(name="zero", broken=_zero, reason=_explain_zero),
    Rule(name="zero group", broken=_group, reason=_explain_group),
    Rule(name="recompute", broken=_recompute, reason=_explain_recompute),
    Rule(name="offload", broken=_offload, reason=_explain_offload),
    Rule(name="fused loss", broken=_fused_loss, reason=_explain_fused_loss),
)
