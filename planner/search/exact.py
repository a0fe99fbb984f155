"""Finalists, re-priced by the timeline, many layouts of one schedule at once.

Two numbers for a pipelined layout, beside the closed form: the exact step, whose bubble is
what the timeline finds, and a least step that no playing can beat. A layout whose least step
is above another's exact step cannot be the best, whatever its closed form says; that is what
makes it safe to play only a few hundred (``tests/search`` holds both to it).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.step import StepTable, hides_sends, prices_of, working_seconds
from planner.distinct import distinct_rows
from planner.layout import ScheduleName
from planner.layout_table import SCHEDULES, LayoutTable
from planner.schedules import stage_ranks, why_not
from planner.schedules.closed_form import least_seconds, stage_sums
from planner.schedules.program import program_of
from planner.schedules.timeline import makespan_seconds
from planner.search.pricing import Priced, Pricing, steps

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
ROUNDS = 4
"""Rounds of ``pp`` microbatches after which a pipeline's step grows by equal amounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of a table that share schedule, stages and split."""

    rows: Integers
    schedule: ScheduleName
    pp: int
    vpp: int
    passes: tuple[Floats, Floats, Floats]
    """Forward, input and weight gradient, (stages, rows)."""
    send_seconds: Floats


def groups(
    table: LayoutTable, found: StepTable, pricing: Pricing, *, by_microbatches: bool
) -> Iterator[Group]:
    """The pipelined rows of a table, by what their programs have in common."""
    several = np.flatnonzero(table.pp > 1)
    if not len(several):
        return
    keys = [table.schedule[several], table.split[several]]
    if by_microbatches:
        keys.append(table.microbatches[several])
    first, kind = distinct_rows(keys)
    stages = found.stages
    pair = stages.inverse
    for number, start in enumerate(first):
        rows = several[kind == number]
        split = int(table.split[several[start]])
        place = stages.place[pair[rows]]
        yield Group(
            rows=rows,
            schedule=SCHEDULES[int(table.schedule[several[start]])],  # type: ignore[arg-type]
            pp=table.splits[split].pp,
            vpp=table.splits[split].vpp,
            passes=stages.passes(split, place),
            send_seconds=found.send_seconds[rows] + pricing.calibration.step.pipeline_sync_seconds,
        )


def least_steps(table: LayoutTable, found: StepTable, pricing: Pricing, rows: Integers) -> Floats:
    """The least step that any playing of their schedules can take, of some rows of a table."""
    few = table.take(rows)
    stages = replace(found.stages, inverse=found.stages.inverse[rows])
    parts = {name: seconds[rows] for name, seconds in found.parts.items()}
    fewer = replace(
        found, step_seconds=found.step_seconds[rows], parts=parts, stages=stages,
        low_seconds=found.low_seconds[rows], high_seconds=found.high_seconds[rows],
        send_seconds=found.send_seconds[rows],
    )  # fmt: skip
    bubble = np.zeros(len(rows))
    working = working_seconds(fewer, few)
    for group in groups(few, fewer, pricing, by_microbatches=False):
        sums = stage_sums(
            group.schedule, pp=group.pp, vpp=group.vpp, forward_seconds=group.passes[0],
            input_gradient_seconds=group.passes[1], weight_gradient_seconds=group.passes[2],
        )  # fmt: skip
        least = least_seconds(
            few.schedule[group.rows], sums, pp=group.pp, vpp=group.vpp,
            microbatches=few.microbatches[group.rows], send_seconds=group.send_seconds,
        )  # fmt: skip
        bubble[group.rows] = np.maximum(least - working[group.rows], 0.0)
    return fewer.step_seconds - parts["bubble"] + bubble


def played(priced: Priced, pricing: Pricing) -> Priced:
    """The same layouts with the bubble that the timeline finds."""
    table = priced.table
    found = steps(table, pricing)
    bubble = np.zeros(len(priced))
    working = working_seconds(found, table)
    q = pricing.question
    prices = prices_of(q.model, q.job, q.cluster, q.framework, pricing.calibration)
    hidden = hides_sends(table, prices)
    for group in groups(table, found, pricing, by_microbatches=True):
        seconds = _makespans(
            group, int(table.microbatches[group.rows[0]]), bool(hidden[group.rows[0]])
        )
        bubble[group.rows] = np.maximum(seconds - working[group.rows], 0.0)
    change = bubble - priced.parts["bubble"]
    ratio = 1.0 + change / priced.step_seconds
    total = priced.step_seconds + change
    return replace(
        priced, step_seconds=total, parts={**priced.parts, "bubble": bubble},
        low_seconds=priced.low_seconds * ratio, high_seconds=priced.high_seconds * ratio,
        least_seconds=total,
    )  # fmt: skip


def _makespans(group: Group, microbatches: int, overlap: bool) -> Floats:
    """Of many layouts of one program; long programs by their first rounds.

    Once every rank is busy, ``pp`` more microbatches add ``pp`` times the slowest rank's work
    and nothing less is possible. Where one round adds just that, so do all later ones (tests
    hold this to whole programs); where it does not, or where the schedule refuses so few
    microbatches (equal rounds), the whole program is played.
    """
    short = ROUNDS * group.pp + microbatches % group.pp
    if microbatches <= short + group.pp or not _can_shorten(group, short):
        return _play(group, microbatches, overlap)
    once, twice = (_play(group, short + extra * group.pp, overlap) for extra in range(2))
    round_seconds = group.pp * _slowest_seconds(group, overlap)
    steady = np.isclose(twice - once, round_seconds, rtol=1e-9)
    result = twice + ((microbatches - short) // group.pp - 1) * round_seconds
    rest = np.flatnonzero(~steady)
    if len(rest):
        result[rest] = _play(_rows(group, rest), microbatches, overlap)
    return result


def _can_shorten(group: Group, short: int) -> bool:
    """Whether both shortened programs are legal: a rule may hold for the full count only."""
    return not any(
        why_not(group.schedule, pp=group.pp, vpp=group.vpp, microbatches=count)
        for count in (short, short + group.pp)
    )


def _rows(group: Group, rows: Integers) -> Group:
    return replace(
        group, rows=group.rows[rows], send_seconds=group.send_seconds[rows],
        passes=tuple(p[:, rows] for p in group.passes),  # type: ignore[arg-type]
    )  # fmt: skip


def _slowest_seconds(group: Group, overlap: bool) -> Floats:
    """What one microbatch keeps the busiest rank for; its sends too where they do not overlap."""
    ranks = np.array(stage_ranks(group.schedule, pp=group.pp, vpp=group.vpp))
    leaves = ranks[1:] != ranks[:-1]
    sends = np.append(leaves, False).astype(float) + np.append(False, leaves)
    work: Any = sum(group.passes) + (0.0 if overlap else sends[:, None] * group.send_seconds)
    return np.max([work[ranks == rank].sum(axis=0) for rank in range(group.pp)], axis=0)


def _play(group: Group, microbatches: int, overlap: bool) -> Floats:
    program = program_of(group.schedule, pp=group.pp, vpp=group.vpp, microbatches=microbatches)
    forward, input_gradient, weight_gradient = group.passes
    return makespan_seconds(
        program, forward_seconds=forward, input_gradient_seconds=input_gradient,
        weight_gradient_seconds=weight_gradient, send_seconds=group.send_seconds[None, :],
        overlap=overlap,
    )  # fmt: skip
