"""Play a schedule: when every action runs, how long the step takes, what is held meanwhile."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.schedules.action import Action
from planner.schedules.program import ActionLists, Program, compile_program

Floats = NDArray[np.float64]


class Event(NamedTuple):
    """One action of a played schedule."""

    rank: int
    action: Action
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A played schedule. Arrays run over the program's events."""

    program: Program
    start_seconds: Floats
    end_seconds: Floats

    @property
    def makespan_seconds(self) -> float:
        """From the first action's start to the last one's end."""
        return float(self.end_seconds.max())

    @property
    def busy_seconds(self) -> Floats:
        """Time that each rank computes."""
        durations = self.end_seconds - self.start_seconds
        return np.bincount(
            self.program.rank, weights=durations, minlength=self.program.num_ranks
        ).astype(float)

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time in which they do not compute: 1 - utilisation."""
        return 1.0 - float(self.busy_seconds.mean()) / self.makespan_seconds

    def events(self) -> list[Event]:
        """Every action with its times, by rank and start."""
        program = self.program
        by_rank = np.lexsort((program.place, program.rank))
        columns = (program.rank, program.place, self.start_seconds, self.end_seconds)
        rows = zip(*(column[by_rank].tolist() for column in columns), strict=True)
        return [Event(rank, program.lists[rank][place], start, end)
                for rank, place, start, end in rows]  # fmt: skip

    def in_flight(self, stage: int) -> tuple[Floats, NDArray[np.intp]]:
        """Times at which the number of microbatches held by a stage changes, and to what.

        Held from the start of the forward to the end of the (weight-gradient) backward.
        """
        steps = [
            (event.start_seconds, 1) if event.action.kind == "F" else (event.end_seconds, -1)
            for event in self.events()
            if event.action.stage == stage and event.action.kind != "I"
        ]
        steps.sort()
        times, changes = (np.array(column) for column in zip(*steps, strict=True))
        return times, np.cumsum(changes)

    def critical_path(self) -> list[Event]:
        """The chain of actions, each waiting for the one before, that sets the makespan."""
        program = self.program
        event = int(np.argmax(self.end_seconds))
        chain = []
        ends = np.append(self.end_seconds, -np.inf)
        while event < program.num_events:
            chain.append(event)
            before, needed = int(program.before[event]), int(program.needed[event])
            event = needed if ends[needed] > ends[before] else before
        return [
            Event(
                int(program.rank[e]),
                program.lists[program.rank[e]][program.place[e]],
                float(self.start_seconds[e]),
                float(self.end_seconds[e]),
            )
            for e in reversed(chain)
        ]


def play(
    actions: ActionLists | Program,
    *,
    forward_seconds: ArrayLike,
    input_gradient_seconds: ArrayLike,
    weight_gradient_seconds: ArrayLike,
    send_seconds: ArrayLike = 0.0,
    overlap: bool = True,
    merged_forward_seconds: ArrayLike | None = None,
    merged_backward_seconds: ArrayLike | None = None,
) -> Timeline:
    """Time every action of a schedule.

    A whole backward (``B``) lasts as long as its two halves together.

    Args:
        actions: One list per rank, or a program made of them (faster when played again).
        forward_seconds: Of one microbatch on each stage; one number stands for all stages.
        input_gradient_seconds: Likewise.
        weight_gradient_seconds: Likewise.
        send_seconds: Of one microbatch's activations, or of their gradient, over each boundary
            between stages of different ranks; a boundary inside one rank costs nothing.
        overlap: Sends run beside the sender's next action; if not, they keep the sender.
        merged_forward_seconds: Of a forward that runs together with a backward; by default
            no faster than alone.
        merged_backward_seconds: Of a backward (whole) that runs together with a forward.

    Raises:
        ValueError: For action lists that cannot be played: a deadlock names who waits for what.

    Example: 4 equal stages, 8 microbatches, backward twice the forward: (m + p - 1)(f + b).

    >>> from planner.schedules import schedule_actions
    >>> actions = schedule_actions("1f1b", pp=4, microbatches=8)
    >>> timeline = play(actions, forward_seconds=1, input_gradient_seconds=1,
    ...                 weight_gradient_seconds=1)
    >>> timeline.makespan_seconds, round(timeline.bubble_fraction, 4)
    (33.0, 0.2727)
    """
    program = actions if isinstance(actions, Program) else compile_program(actions)
    halves = (input_gradient_seconds, weight_gradient_seconds)
    merged = (merged_forward_seconds, merged_backward_seconds)
    table, _ = _durations(program.num_stages, forward_seconds, halves, merged)
    if table.shape[1:] != (1,):
        raise ValueError("play times one candidate; use makespan_seconds for many at once")
    sends = _sends(send_seconds, program.num_stages, ())
    ends = _end_seconds(program, table, sends, overlap=overlap)[:, 0]
    return Timeline(
        program=program,
        start_seconds=ends - table[program.duration_row, 0],
        end_seconds=ends,
    )


def makespan_seconds(
    actions: ActionLists | Program,
    *,
    forward_seconds: ArrayLike,
    input_gradient_seconds: ArrayLike,
    weight_gradient_seconds: ArrayLike,
    send_seconds: ArrayLike = 0.0,
    overlap: bool = True,
    merged_forward_seconds: ArrayLike | None = None,
    merged_backward_seconds: ArrayLike | None = None,
) -> Floats:
    """``play``'s makespan for many candidates of one schedule at once.

    Args as for ``play``, each of shape (stages, *candidates), or (stages - 1, *candidates)
    for ``send_seconds``; a leading axis of 1 stands for all stages, candidate axes broadcast.

    Returns:
        Seconds of each candidate, of the broadcast candidate shape.
    """
    program = actions if isinstance(actions, Program) else compile_program(actions)
    halves = (input_gradient_seconds, weight_gradient_seconds)
    merged = (merged_forward_seconds, merged_backward_seconds)
    table, candidates = _durations(program.num_stages, forward_seconds, halves, merged)
    sends = _sends(send_seconds, program.num_stages, candidates)
    ends = _end_seconds(program, table, sends, overlap=overlap)
    return ends.max(axis=0).reshape(candidates)


def _durations(
    num_stages: int,
    forward: ArrayLike,
    halves: tuple[ArrayLike, ArrayLike],
    merged: tuple[ArrayLike | None, ArrayLike | None],
) -> tuple[Floats, tuple[int, ...]]:
    """The table of durations, (rows, flat candidates), and the shape of the candidates."""
    f, i, w = (np.asarray(part, float) for part in (forward, *halves))
    backward = i + w
    merged_f = f if merged[0] is None else np.asarray(merged[0], float)
    merged_b = backward if merged[1] is None else np.asarray(merged[1], float)
    parts = [np.atleast_1d(part) for part in (f, backward, i, w, merged_f, merged_b)]
    wrong = [part.shape[0] for part in parts if part.shape[0] not in (1, num_stages)]
    if wrong:
        raise ValueError(f"durations of {wrong[0]} stages, but the schedule has {num_stages}")
    if min(part.min(initial=0.0) for part in parts) < 0:
        raise ValueError("durations must not be negative")
    candidates = np.broadcast_shapes(*(part.shape[1:] for part in parts))
    rows = [_spread(part, num_stages, candidates) for part in parts]
    return np.stack(rows).reshape(len(rows) * num_stages, -1), candidates


def _spread(part: Floats, length: int, candidates: tuple[int, ...]) -> Floats:
    """Broadcast (1 or length, *fewer candidate axes) to (length, *candidates)."""
    padding = (1,) * (len(candidates) - part.ndim + 1)
    return np.broadcast_to(
        part.reshape(part.shape[:1] + padding + part.shape[1:]), (length, *candidates)
    )


def _sends(send: ArrayLike, num_stages: int, candidates: tuple[int, ...]) -> Floats:
    """Seconds per boundary, (num_stages, flat candidates); the last row is no boundary: 0."""
    table = np.zeros((num_stages, *candidates))
    table[:-1] = _spread(np.atleast_1d(np.asarray(send, float)), num_stages - 1, candidates)
    return table.reshape(num_stages, -1)


def _end_seconds(program: Program, table: Floats, sends: Floats, *, overlap: bool) -> Floats:
    """End of every event, (events, candidates), level by level."""
    count, candidates = program.num_events, table.shape[1]
    ends = np.zeros((count + 1, candidates))
    frees = ends if overlap else np.zeros_like(ends)
    first = 0
    for last in program.level_ends:
        level = slice(first, last)
        starts = ends[program.needed[level]]
        starts += sends[program.arrives_over[level]]
        np.maximum(starts, frees[program.before[level]], out=starts)
        np.add(starts, table[program.duration_row[level]], out=ends[level])
        if not overlap:
            np.add(ends[level], sends[program.sends_over[level]], out=frees[level])
        first = last
    return ends[:count]
