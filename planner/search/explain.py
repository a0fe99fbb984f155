"""Why this layout: what binds, how rivals lose, what one step in each knob does, when it turns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.memory import memory
from planner.layout import Layout, Rejected
from planner.layout_table import tabulate
from planner.rules import explain_rules
from planner.rules.core import divisors
from planner.rules.pipeline import with_split
from planner.search.exact import played
from planner.search.pricing import Pricing, timed
from planner.search.result import COMMUNICATION, Candidate, Loss, loss_of
from planner.units import format_bytes

WORK = ("forward", "backward", "recompute", "optimizer")
CROSSING_FACTORS = tuple(float(f) for f in np.geomspace(1 / 16, 16, 65))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Another layout, and how it loses; or why it cannot run."""

    layout: Layout
    candidate: Candidate | None
    loss: Loss | None
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One step in one field, all else kept (the microbatches follow)."""

    field: str
    before: object
    after: object
    rival: Rival


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A change of the machine at which another of the ranked layouts becomes the best."""

    quantity: str
    factor: float
    """On today's value: 0.5 for half the bandwidth."""
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What can be said about one layout."""

    candidate: Candidate
    shares: Mapping[str, float]
    """Of the step: work, each kind of exposed communication, bubble, the rest."""
    binds: str
    """What costs most beside the work itself, or ``memory`` where little room is left."""
    rivals: tuple[Rival, ...] = ()
    knobs: tuple[Knob, ...] = ()
    crossings: tuple[Crossing, ...] = ()


def price(layouts: Iterable[Layout], pricing: Pricing) -> list[Candidate | tuple[Rejected, ...]]:
    """Each layout's exact price, or every reason why it cannot run, memory included."""
    return [_price_one(layout, pricing) for layout in layouts]


def _price_one(layout: Layout, pricing: Pricing) -> Candidate | tuple[Rejected, ...]:
    q = pricing.question
    layout = with_split(layout, q)
    rejected = explain_rules(
        layout, q.model, q.job, q.cluster, q.framework, num_devices=q.num_devices
    )
    if rejected:
        return tuple(rejected)
    table = tabulate([layout], fused_loss_habit=q.framework.fused_loss)
    found = memory(q.model, q.job, q.framework, table, device=q.cluster.device)
    if found.device[0] > pricing.limit_bytes:
        reason = (
            f"needs {format_bytes(int(found.device[0]))} of {format_bytes(pricing.limit_bytes)} "
            f"on pipeline rank {int(found.rank[0])}"
        )
        return (Rejected(layout=layout, rule="memory", reason=reason),)
    priced, _ = timed(table, pricing, found.allocated, found.device)
    return played(priced, pricing).candidate(0, pricing)


def explain(
    layout: Layout,
    pricing: Pricing,
    *,
    against: Iterable[Layout] = (),
    ranked: Iterable[Candidate] = (),
) -> Explanation:
    """What binds a layout, how others lose against it, and when the answer turns.

    Args:
        layout: The one to explain.
        pricing: The question and its constants.
        against: Rivals of the user's own.
        ranked: The search's next best, for the crossing points.

    Raises:
        ValueError: If the layout itself cannot run; the line says why.
    """
    candidate = _price_one(layout, pricing)
    if not isinstance(candidate, Candidate):
        raise ValueError("; ".join(r.reason for r in candidate))
    shares = _shares(candidate)
    return Explanation(
        candidate=candidate,
        shares=shares,
        binds=_binds(candidate, shares),
        rivals=tuple(_rival(other, candidate, pricing) for other in against),
        knobs=tuple(_knobs(candidate, pricing)),
        crossings=tuple(_crossings(candidate, [c.layout for c in ranked], pricing)),
    )


def _rival(layout: Layout, best: Candidate, pricing: Pricing) -> Rival:
    found = _price_one(layout, pricing)
    if isinstance(found, Candidate):
        return Rival(layout=found.layout, candidate=found, loss=loss_of(found, best))
    return Rival(layout=layout, candidate=None, loss=None, rejected=found)


def _shares(candidate: Candidate) -> dict[str, float]:
    parts, step = candidate.parts, candidate.step_seconds
    shares = {"work": sum(parts.get(name, 0.0) for name in WORK) / step}
    shares |= {name: parts.get(name, 0.0) / step for name in (*COMMUNICATION, "bubble")}
    shares["other"] = 1.0 - sum(shares.values())
    return shares


def _binds(candidate: Candidate, shares: Mapping[str, float]) -> str:
    if candidate.is_tight:
        return "memory"
    return max((n for n in shares if n != "work"), key=lambda name: shares[name])


def _knobs(best: Candidate, pricing: Pricing) -> Iterable[Knob]:
    """One step up and one down in every field, where the result is a layout at all."""
    layout = best.layout
    for field, after, changes in _steps(layout, pricing):
        try:
            other = replace(layout, **changes)  # type: ignore[arg-type]
        except ValueError:
            continue
        if other.num_stages != layout.num_stages:
            other = replace(other, stage_layers=())
        yield Knob(field=field, before=getattr(layout, field), after=after,
                   rival=_rival(other, best, pricing))  # fmt: skip


def _steps(layout: Layout, pricing: Pricing) -> Iterable[tuple[str, object, dict[str, object]]]:
    per_replica = pricing.question.job.global_batch // layout.dp
    for size in (layout.microbatch // 2, layout.microbatch * 2):
        if size and per_replica % size == 0:
            yield "microbatch", size, {"microbatch": size, "microbatches": per_replica // size}
    for field in ("tp", "pp", "cp"):
        yield from _degree_steps(layout, field, pricing)
    for stage in (layout.zero_stage - 1, layout.zero_stage + 1):
        if 0 <= stage <= 3:
            yield "zero_stage", stage, {"zero_stage": stage, "zero_group": 0}
    if layout.tp > 1:
        other = not layout.sequence_parallel
        yield "sequence_parallel", other, {"sequence_parallel": other}
    for mode in ("none", "full"):
        if mode != layout.recompute:
            yield "recompute", mode, {"recompute": mode, "recompute_layers": 0}
    if layout.pp > 1:
        for schedule in ("1f1b", "zb-h1"):
            if schedule != layout.schedule:
                yield "schedule", schedule, {"schedule": schedule, "vpp": 1}


def _degree_steps(
    layout: Layout, field: str, pricing: Pricing
) -> Iterable[tuple[str, object, dict[str, object]]]:
    """Twice or half a degree, paid for by dp, the microbatch kept where it divides."""
    value, batch = getattr(layout, field), pricing.question.job.global_batch
    for after, dp in ((value * 2, layout.dp / 2), (value // 2, layout.dp * 2)):
        if after < 1 or dp != int(dp) or batch % int(dp) or value * layout.dp != after * dp:
            continue
        per_replica = batch // int(dp)
        size = max(d for d in divisors(per_replica) if d <= layout.microbatch)
        changes: dict[str, object] = {
            field: after, "dp": int(dp), "microbatch": size,
            "microbatches": per_replica // size, "zero_group": 0,
        }  # fmt: skip
        if field == "tp":
            changes["sequence_parallel"] = after > 1 and layout.sequence_parallel
        if field == "pp" and after == 1:
            changes |= {"schedule": "1f1b", "vpp": 1}
        if int(dp) * (after if field == "cp" else layout.cp) == 1:
            changes["zero_stage"] = 0
        yield field, after, changes


def _crossings(best: Candidate, rivals: list[Layout], pricing: Pricing) -> Iterable[Crossing]:
    """The nearest factor on each tier's bandwidth at which a ranked rival overtakes."""
    layouts = [best.layout, *(r for r in rivals if r != best.layout)]
    q = pricing.question
    if len(layouts) < 2:
        return
    table = tabulate(layouts, fused_loss_habit=q.framework.fused_loss)
    for place, tier in enumerate(q.cluster.tiers):
        for direction in (-1, 1):
            factors = sorted((f for f in CROSSING_FACTORS if (f - 1) * direction > 1e-9),
                             key=lambda f: abs(np.log(f)))  # fmt: skip
            for factor in factors:
                slower = replace(
                    tier, bytes_per_second=tier.bytes_per_second * factor,
                    uplink_bytes_per_second=tier.uplink_bytes_per_second * factor,
                    peer_bytes_per_second=tier.peer_bytes_per_second * factor,
                )  # fmt: skip
                tiers = (*q.cluster.tiers[:place], slower, *q.cluster.tiers[place + 1 :])
                other = replace(pricing, question=replace(
                    q, cluster=replace(q.cluster, tiers=tiers)))  # fmt: skip
                zeros = np.zeros(len(layouts))
                priced, _ = timed(table, other, zeros, zeros)
                winner = int(np.argmin(priced.step_seconds))
                if priced.step_seconds[winner] < priced.step_seconds[0] * (1 - 1e-9):
                    yield Crossing(
                        quantity=f"bandwidth of {tier.name}", factor=factor,
                        layout=layouts[winner],
                    )  # fmt: skip
                    break
