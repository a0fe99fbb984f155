"""Rules on how many ranks share what: heads, experts, sequence, the world."""

import numpy as np

from planner.layout import Layout
from planner.layout_table import LayoutTable
from planner.model import Experts
from planner.rules.core import Booleans, Question, Rule, divisors, two_nearest


def _none(table: LayoutTable) -> Booleans:
    return np.zeros(len(table), bool)


def _world(table: LayoutTable, question: Question) -> Booleans:
    world = table.dp * table.tp * table.pp * table.cp
    limit = question.cluster.num_devices or question.num_devices
    return (world != question.num_devices) | (world > limit)


def _explain_world(layout: Layout, question: Question) -> str:
    inner = layout.tp * layout.pp * layout.cp
    there = question.num_devices
    if layout.world_size == there:
        there = question.cluster.num_devices
    fits = max(there // inner, 1)
    return (
        f"world size dp {layout.dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = "
        f"{layout.world_size}, but there are {there} devices; use dp={fits} "
        f"({fits * inner} of them) or tp=1,pp=1,cp=1,dp={there}"
    )


def _convolution(table: LayoutTable, question: Question) -> Booleans:
    if question.layers:
        return _none(table)
    return (table.tp > 1) | (table.cp > 1) | (table.ep > 1) | (table.etp > 1)


def _explain_convolution(layout: Layout, question: Question) -> str:
    cut = [
        f"{n}={getattr(layout, n)}" for n in ("tp", "cp", "ep", "etp") if getattr(layout, n) > 1
    ]
    return (
        f"{', '.join(cut)}: {question.model.name} is a conv net, which is cut by dp and pp only; "
        f"use dp={layout.world_size} or pp=2"
    )


def _tensor_parallel(table: LayoutTable, question: Question) -> Booleans:
    if question.framework.runs_tensor_parallel:
        return _none(table)
    return table.tp > 1


def _explain_tensor_parallel(layout: Layout, question: Question) -> str:
    return (
        f"tp={layout.tp}: {question.framework.name} has no tensor parallelism; use "
        f"dp={layout.dp * layout.tp} with zero=3, or a framework that has (megatron-lm)"
    )


def _heads(table: LayoutTable, question: Question) -> Booleans:
    broken = _none(table)
    for width in question.divides_heads:
        broken |= width % table.tp != 0
    return broken


def legal_tensor_degrees(question: Question) -> list[int]:
    """Every ``tp`` that heads, key and value heads and widths allow."""
    gcd = int(np.gcd.reduce(question.divides_heads)) if question.layers else 1
    return [t for t in divisors(gcd) if _kv_fits(t, question)]


def _kv_fits(tp: int, question: Question) -> bool:
    replicates = question.framework.replicates_kv_heads
    return all(
        a.kv_heads % tp == 0 or (replicates and tp % a.kv_heads == 0) for a in question.attentions
    )


def _explain_heads(layout: Layout, question: Question) -> str:
    width = next(w for w in question.divides_heads if w % layout.tp)
    heads = {a.heads for a in question.attentions}
    what = "attention heads" if width in heads else "feed-forward channels"
    legal = legal_tensor_degrees(question)
    return (
        f"tp={layout.tp}: the {width} {what} of {question.model.name} must be divisible by tp; "
        f"legal tp: {', '.join(map(str, legal))}; use tp={two_nearest(legal, layout.tp)} and "
        "more dp or pp"
    )


def _kv_heads(table: LayoutTable, question: Question) -> Booleans:
    broken = _none(table)
    for attention in question.attentions:
        kv = attention.kv_heads
        wrong = kv % table.tp != 0
        if question.framework.replicates_kv_heads:
            wrong &= table.tp % kv != 0
        broken |= wrong
    return broken


def _explain_kv_heads(layout: Layout, question: Question) -> str:
    kv = min(a.kv_heads for a in question.attentions)
    replicates = question.framework.replicates_kv_heads
    rule = "divide tp or be divisible by it" if replicates else "be divisible by tp"
    legal = legal_tensor_degrees(question)
    name = question.framework.name
    habit = f"{name} repeats them" if replicates else f"{name} does not repeat them"
    return (
        f"tp={layout.tp}: the {kv} key and value heads of {question.model.name} must {rule} "
        f"({habit}); legal tp: {', '.join(map(str, legal))}; use "
        f"tp={two_nearest(legal, layout.tp)} and more dp or pp"
    )


def _experts(table: LayoutTable, question: Question) -> Booleans:
    several = (table.ep > 1) | (table.etp > 1)
    if not question.experts or not question.framework.runs_expert_parallel:
        return several
    broken = (table.dp * table.cp * table.tp) % (table.ep * table.etp) != 0
    for part in question.experts:
        broken |= (part.num_experts % table.ep != 0) | (part.ffn_hidden % table.etp != 0)
    return broken


def _explain_experts(layout: Layout, question: Question) -> str:
    said = f"ep={layout.ep}, etp={layout.etp}"
    if not question.experts:
        return (
            f"{said}: {question.model.name} is dense, expert parallelism needs experts; "
            f"use ep=1,etp=1 or tp={two_nearest(legal_tensor_degrees(question), layout.ep)}"
        )
    if not question.framework.runs_expert_parallel:
        return (
            f"{said}: {question.framework.name} has no expert parallelism; use ep=1,etp=1 "
            "or a framework that has (megatron-lm, torchtitan)"
        )
    return _explain_expert_degrees(layout, question.experts[0], said)


def _explain_expert_degrees(layout: Layout, part: Experts, said: str) -> str:
    ranks = layout.dp * layout.cp * layout.tp
    legal = [d for d in divisors(part.num_experts) if ranks % d == 0]
    least = layout.pp * max(layout.tp * layout.cp, layout.ep * layout.etp)
    return (
        f"{said}: {part.num_experts} experts must be divisible by ep, their {part.ffn_hidden} "
        f"channels by etp, and ep x etp must divide the dp x cp x tp = {ranks} ranks of a stage "
        f"(at least {least} devices in all); use etp=1 with ep={two_nearest(legal, layout.ep)}"
    )


def _sequence(table: LayoutTable, question: Question) -> Booleans:
    length = question.job.sequence_length
    parts = np.where(table.ulysses | (table.cp == 1), table.cp, 2 * table.cp)
    streams = np.where(table.sequence_parallel, table.cp * table.tp, 1)
    return (length % parts != 0) | (length % streams != 0)


def _explain_sequence(layout: Layout, question: Question) -> str:
    length = question.job.sequence_length
    zigzag = layout.cp_kind == "ring" and layout.cp > 1
    if zigzag and length % (2 * layout.cp):
        field, value, parts = "cp", layout.cp, 2 * layout.cp
        rule = "divisible by 2 x cp (ring attention gives each rank an early and a late part)"
        legal = [d // 2 for d in divisors(length) if d % 2 == 0]
    elif length % layout.cp:
        field, value, parts = "cp", layout.cp, layout.cp
        rule, legal = "divisible by cp", list(divisors(length))
    else:
        field, value, parts = "tp", layout.tp, layout.tp * layout.cp
        rule = "divisible by tp x cp under sequence parallelism"
        legal = [d // layout.cp for d in divisors(length) if d % layout.cp == 0]
    above = -(-length // parts) * parts
    return (
        f"{field}={value}: sequence length {length} must be {rule}; use "
        f"{field}={two_nearest(legal, value)}, or a sequence length of {above - parts or above} "
        f"or {above}"
    )


def _ulysses(table: LayoutTable, question: Question) -> Booleans:
    broken = _none(table)
    ranks = table.tp * table.cp
    for attention in question.attentions:
        wrong = attention.heads % ranks != 0
        kv = attention.kv_heads % ranks != 0
        if question.framework.replicates_kv_heads:
            kv &= ranks % attention.kv_heads != 0
        broken |= table.ulysses & (wrong | kv)
    return broken


def _explain_ulysses(layout: Layout, question: Question) -> str:
    heads = min(a.heads for a in question.attentions)
    kv = min(a.kv_heads for a in question.attentions)
    legal = [d // layout.tp for d in divisors(int(np.gcd(heads, kv))) if d % layout.tp == 0]
    nearest = two_nearest(legal, layout.cp) or "1"
    return (
        f"cp={layout.cp}: Ulysses shares {heads} heads and {kv} key and value heads over tp x cp "
        f"= {layout.tp * layout.cp} ranks, which must divide both; use "
        f"cp={nearest} or cp_kind=ring"
    )


def _context(table: LayoutTable, question: Question) -> Booleans:
    framework = question.framework
    several = table.cp > 1
    if not framework.runs_ulysses:
        several &= table.ulysses | (not framework.runs_ring_attention)
    elif not framework.runs_ring_attention:
        several &= ~table.ulysses
    else:
        several &= False
    return several


def _explain_context(layout: Layout, question: Question) -> str:
    framework = question.framework
    runs = [kind for kind, can in (("ring", framework.runs_ring_attention),
                                   ("ulysses", framework.runs_ulysses)) if can]  # fmt: skip
    instead = f"cp_kind={runs[0]} or cp=1" if runs else f"cp=1 or tp={layout.cp}"
    return (
        f"cp={layout.cp}, cp_kind={layout.cp_kind}: {framework.name} does not have this context "
        f"parallelism; use {instead}"
    )


DEGREE_RULES: tuple[Rule, ...] = (
    Rule(name="world", broken=_world, reason=_explain_world),
    Rule(name="convolution", broken=_convolution, reason=_explain_convolution),
    Rule(name="tensor parallelism", broken=_tensor_parallel, reason=_explain_tensor_parallel),
    Rule(name="heads", broken=_heads, reason=_explain_heads),
    Rule(name="kv heads", broken=_kv_heads, reason=_explain_kv_heads),
    Rule(name="experts", broken=_experts, reason=_explain_experts),
    Rule(name="context parallelism", broken=_context, reason=_explain_context),
    Rule(name="sequence", broken=_sequence, reason=_explain_sequence),
    Rule(name="ulysses heads", broken=_ulysses, reason=_explain_ulysses),
)
