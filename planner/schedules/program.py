"""Action lists checked for deadlock and laid out as arrays that can be played at once.

An action starts when its rank is free and what it needs has arrived: a forward needs the
forward of the stage before, a backward (or input gradient) the one of the stage after, a
weight gradient its input gradient. So every action waits for at most two others, and all
actions at one depth of that graph (a level) can be timed together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.layout import ScheduleName
from planner.schedules import schedule_actions
from planner.schedules.action import Action

Integers = NDArray[np.intp]
ActionLists = Sequence[Sequence[Action]]

FORWARD, BACKWARD, WEIGHT = range(3)
_ROLES = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
DURATION_ROWS = ("F", "B", "I", "W", "merged F", "merged B")
"""Rows of the table of durations, one block of ``num_stages`` each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A playable schedule. Events are numbered so that each follows what it waits for.

    The number of events stands for "nothing" in ``before`` and ``needed``, and
    ``num_stages - 1`` for "no boundary" in ``arrives_over`` and ``sends_over``; boundary ``s``
    lies between stages ``s`` and ``s + 1``.
    """

    lists: tuple[tuple[Action, ...], ...]
    num_stages: int
    rank: Integers
    place: Integers
    """Place of the event in its rank's list."""
    duration_row: Integers
    """Row of the table of durations: index in ``DURATION_ROWS`` * num_stages + stage."""
    before: Integers
    """Event before this one on its rank."""
    needed: Integers
    """Event of another rank whose result this one waits for."""
    arrives_over: Integers
    sends_over: Integers
    level_ends: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the pipeline."""
        return len(self.lists)

    @property
    def num_events(self) -> int:
        """Actions of all ranks."""
        return len(self.rank)


@lru_cache(maxsize=64)
def program_of(name: ScheduleName, *, pp: int, vpp: int = 1, microbatches: int) -> Program:
    """The program of a known schedule.

    Raises:
        ValueError: If the schedule cannot run so.
    """
    return compile_program(schedule_actions(name, pp=pp, vpp=vpp, microbatches=microbatches))


def compile_program(lists: ActionLists) -> Program:
    """Check action lists and order them for playing.

    Raises:
        ValueError: For an action that appears twice, one that waits for an action that no
            rank runs, or a deadlock; the line says which action waits for what.
    """
    actions = [action for rank_actions in lists for action in rank_actions]
    if not actions:
        raise ValueError("the schedule has no actions")
    num_stages = 1 + max(action.stage for action in actions)
    lengths = [len(rank_actions) for rank_actions in lists]
    needed = _needed(actions, num_stages)
    levels = _levels(lengths, needed.tolist(), actions)
    return _lay_out(lists, actions, num_stages, needed, levels)


def _needed(actions: Sequence[Action], num_stages: int) -> Integers:
    """Flat index of the action that each action needs; -1 for none."""
    microbatches = 1 + max(action.microbatch for action in actions)
    block = num_stages * microbatches
    keys = np.array(
        [(_ROLES[kind] * num_stages + stage) * microbatches + i for stage, kind, i, _ in actions]
    )
    role, stage = keys // block, keys // microbatches % num_stages
    need = np.select(
        [role == FORWARD, (role == BACKWARD) & (stage < num_stages - 1)],
        [np.where(stage > 0, keys - microbatches, -1), keys + microbatches],
        keys - block,
    )
    where = np.full(3 * block + 1, -1)
    where[keys] = np.arange(len(keys))
    if (where[keys] != np.arange(len(keys))).any():
        first = int(np.flatnonzero(where[keys] != np.arange(len(keys)))[0])
        raise ValueError(f"{actions[first]} appears twice in the schedule")
    missing = np.flatnonzero((need >= 0) & (where[need] < 0))
    if len(missing):
        action, key = actions[missing[0]], int(need[missing[0]])
        wanted = f"{key // microbatches % num_stages}{'FBI'[key // block]}{key % microbatches}"
        raise ValueError(f"{action} waits for {wanted}, which no rank runs")
    return np.where(need >= 0, where[need], -1)


def _levels(lengths: Sequence[int], needed: list[int], actions: Sequence[Action]) -> list[int]:
    """Depth of every action: one more than the deepest action that it waits for."""
    ends = np.cumsum(lengths).tolist()
    nexts = [end - length for end, length in zip(ends, lengths, strict=True)]
    levels = [-1] * len(needed) + [-1]  # the last entry is what index -1 finds: nothing
    sleepers: dict[int, int] = {}
    awake = list(range(len(lengths)))
    while awake:
        rank = awake.pop()
        event, end, level = nexts[rank], ends[rank], -1
        if event > end - lengths[rank]:
            level = levels[event - 1]
        while event < end:
            need = needed[event]
            if need >= 0 and levels[need] < 0:
                sleepers[need] = rank
                break
            level = max(level, levels[need]) + 1
            levels[event] = level
            if event in sleepers:
                awake.append(sleepers.pop(event))
            event += 1
        nexts[rank] = event
    if sleepers:
        waits = (f"{actions[nexts[rank]]} on rank {rank} waits for {actions[need]}"
                 for need, rank in sorted(sleepers.items(), key=lambda item: item[1]))  # fmt: skip
        raise ValueError(f"the schedule deadlocks: {'; '.join(waits)}")
    return levels[:-1]


def _lay_out(
    lists: ActionLists,
    actions: Sequence[Action],
    num_stages: int,
    needed: Integers,
    levels: Sequence[int],
) -> Program:
    count = len(actions)
    lengths = [len(rank_actions) for rank_actions in lists]
    rank = np.repeat(np.arange(len(lists)), lengths)
    place = np.concatenate([np.arange(length) for length in lengths])
    stage = np.array([action.stage for action in actions])
    rank_of_stage = _rank_of_stage(stage, rank, num_stages)
    remote = (needed >= 0) & (rank[needed] != rank)
    order = np.argsort(levels, kind="stable")
    number = np.full(count + 1, count)
    number[order] = np.arange(count)
    before = np.where(place > 0, np.arange(count) - 1, count)
    kinds = _duration_kinds(actions)
    forward = np.isin(kinds, (0, 4))
    arriving = np.where(forward, stage - 1, stage)
    leaving = np.where(forward, stage, stage - 1)
    crosses = np.append(rank_of_stage[1:] != rank_of_stage[:-1], False)
    sends = (kinds != 3) & (leaving >= 0) & crosses[leaving]
    nothing = num_stages - 1
    return Program(
        lists=tuple(tuple(rank_actions) for rank_actions in lists),
        num_stages=num_stages,
        rank=rank[order],
        place=place[order],
        duration_row=(kinds * num_stages + stage)[order],
        before=number[before[order]],
        needed=number[np.where(remote, needed, count)[order]],
        arrives_over=np.where(remote, arriving, nothing)[order],
        sends_over=np.where(sends, leaving, nothing)[order],
        level_ends=tuple(np.cumsum(np.bincount(levels)).tolist()),
    )


def _rank_of_stage(stage: Integers, rank: Integers, num_stages: int) -> Integers:
    rank_of_stage = np.full(num_stages, -1)
    rank_of_stage[stage] = rank
    wrong = np.flatnonzero(rank_of_stage[stage] != rank)
    if len(wrong):
        s = int(stage[wrong[0]])
        raise ValueError(f"stage {s} runs on rank {rank[wrong[0]]} and on rank {rank_of_stage[s]}")
    return rank_of_stage


def _duration_kinds(actions: Sequence[Action]) -> Integers:
    """Index in ``DURATION_ROWS`` of every action."""
    merged = [False, *(action.merged for action in actions[:-1])]
    return np.array(
        [
            4 if action.merged else 5 if after_merged else "FBIW".index(action.kind)
            for action, after_merged in zip(actions, merged, strict=True)
        ]
    )
