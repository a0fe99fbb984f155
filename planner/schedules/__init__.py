"""In which order the stages work: one generator of actions per schedule, and its player.

A schedule is, for every pipeline rank, a list of actions in PyTorch's letters (``2F0``: stage
2, forward, microbatch 0). Stages are virtual stages in model order: ``pp * vpp`` of them.

Orders
    ``SCHEDULES[name](rank, pp=, vpp=, microbatches=)``  iterator of ``Action`` of one rank
    ``schedule_actions(name, pp=, vpp=, microbatches=)``  tuple of tuples, cached
    ``stage_ranks(name, pp=, vpp=)``        rank of every stage (loop or V)
    ``why_not(name, pp=, vpp=, microbatches=, backend="any")``  reason or None
    ``to_texts``, ``from_texts``            one rank's list as PyTorch writes it
    ``SCHEDULE_CODES``                      name -> small int, for arrays of layouts

Time, exactly (``program.py``, ``timeline.py``)
    ``program_of(name, pp=, vpp=, microbatches=) -> Program``  checked and laid out, cached
    ``compile_program(lists) -> Program``   the same for any lists; names deadlocks
    ``play(lists or Program, forward_seconds=, input_gradient_seconds=,
    weight_gradient_seconds=, send_seconds=0, overlap=True) -> Timeline``
    ``makespan_seconds(Program, the same with trailing candidate axes) -> array``

Memory, exactly (``held.py``)
    ``peak_in_flight(lists)``               per stage, at its rank's worst moment
    ``peak_held(lists, stage_amount)``      per rank, in bytes if the amounts are bytes

Closed forms over arrays of layouts (``closed_form.py``)
    ``least_seconds(codes, StageSums, pp=, vpp=, microbatches=, send_seconds=0)``  lower bound
    ``stage_sums(name, pp=, vpp=, forward_seconds=, ...) -> StageSums``
    ``held_chunks(codes, pp=, vpp=, microbatches=, rank=)``  exact, counted once per chunk
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from planner.layout import ScheduleName
from planner.schedules.action import Action, from_texts, parse_action, to_texts
from planner.schedules.dualpipe import dualpipe
from planner.schedules.gpipe import gpipe
from planner.schedules.interleaved import interleaved
from planner.schedules.one_f_one_b import one_f_one_b
from planner.schedules.rules import Backend, why_not
from planner.schedules.zb_h1 import zb_h1
from planner.schedules.zbv import zbv

__all__ = [
    "SCHEDULES",
    "SCHEDULE_CODES",
    "SPLIT_BACKWARD",
    "V_SHAPED",
    "Action",
    "Backend",
    "from_texts",
    "parse_action",
    "schedule_actions",
    "stage_ranks",
    "to_texts",
    "why_not",
]

SCHEDULES: dict[ScheduleName, Callable[..., Iterator[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zbv": zbv,
    "dualpipe": dualpipe,
}
SCHEDULE_CODES: dict[ScheduleName, int] = {name: code for code, name in enumerate(SCHEDULES)}
V_SHAPED: frozenset[ScheduleName] = frozenset({"zbv", "dualpipe"})
"""Schedules whose ranks hold stages ``rank`` and ``2 pp - 1 - rank``."""
SPLIT_BACKWARD: frozenset[ScheduleName] = frozenset({"zb-h1", "zbv", "dualpipe"})
"""Schedules that run input and weight gradients apart."""


@lru_cache(maxsize=64)
def schedule_actions(
    name: ScheduleName, *, pp: int, vpp: int = 1, microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    """The actions of every rank, in order.

    Raises:
        ValueError: If the schedule cannot run so; the line says why and what could.

    >>> [str(a) for a in schedule_actions("1f1b", pp=2, microbatches=2)[1]]
    ['1F0', '1B0', '1F1', '1B1']
    """
    if reason := why_not(name, pp=pp, vpp=vpp, microbatches=microbatches):
        raise ValueError(reason)
    generate = SCHEDULES[name]
    return tuple(
        tuple(generate(rank, pp=pp, vpp=vpp, microbatches=microbatches)) for rank in range(pp)
    )


def stage_ranks(name: ScheduleName, *, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """The rank of every stage: round and round, or down and up again.

    >>> stage_ranks("interleaved", pp=3, vpp=2), stage_ranks("zbv", pp=3, vpp=2)
    ((0, 1, 2, 0, 1, 2), (0, 1, 2, 2, 1, 0))
    """
    stages = range(pp * vpp)
    if name in V_SHAPED:
        return tuple(min(stage, 2 * pp - 1 - stage) for stage in stages)
    return tuple(stage % pp for stage in stages)
