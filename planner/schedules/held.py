"""Microbatches whose activations each rank holds, from the order of its actions alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.schedules.action import Action
from planner.schedules.program import ActionLists, Program

Floats = NDArray[np.float64]


def peak_in_flight(actions: ActionLists | Program) -> NDArray[np.intp]:
    """Microbatches held by each stage at the worst moment of its rank, equal stages assumed.

    A stage holds a microbatch from its forward to its (weight-gradient) backward. Order alone
    decides this, not durations.

    >>> from planner.schedules import schedule_actions
    >>> peak_in_flight(schedule_actions("1f1b", pp=4, microbatches=8)).tolist()
    [4, 3, 2, 1]
    """
    lists = actions.lists if isinstance(actions, Program) else actions
    num_stages = 1 + max(a.stage for rank_actions in lists for a in rank_actions)
    peaks = np.zeros(num_stages, dtype=np.intp)
    for rank_actions in lists:
        held = _held(rank_actions, num_stages)
        stages = sorted({a.stage for a in rank_actions})
        peaks[stages] = held[held.sum(axis=1).argmax(), stages]
    return peaks


def peak_held(actions: ActionLists | Program, stage_amount: ArrayLike) -> Floats:
    """Largest amount that each rank holds, when one microbatch of stage s amounts to so much.

    Args:
        actions: One list per rank, or a program.
        stage_amount: Bytes (or anything that adds up), (stages, *candidates).

    Returns:
        (ranks, *candidates).

    >>> from planner.schedules import schedule_actions
    >>> peak_held(schedule_actions("1f1b", pp=2, microbatches=4), [10.0, 30.0]).tolist()
    [20.0, 30.0]
    """
    lists = actions.lists if isinstance(actions, Program) else actions
    amounts = np.asarray(stage_amount, float)
    return np.stack(
        [np.tensordot(_distinct_held(a, len(amounts)), amounts, axes=1).max(axis=0) for a in lists]
    )


def _held(rank_actions: Sequence[Action], num_stages: int) -> NDArray[np.intp]:
    """(actions, stages): microbatches that each stage holds while each action runs."""
    changes = np.zeros((len(rank_actions) + 1, num_stages), dtype=np.intp)
    for place, (stage, kind, _, _) in enumerate(rank_actions):
        if kind == "F":
            changes[place, stage] += 1
        elif kind != "I":
            changes[place + 1, stage] -= 1
    return np.cumsum(changes[:-1], axis=0)


def _distinct_held(rank_actions: Sequence[Action], num_stages: int) -> NDArray[np.intp]:
    return np.unique(_held(rank_actions, num_stages), axis=0)
