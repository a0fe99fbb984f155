"""Memory of one pipeline rank over a played step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.table import StageMemory
from planner.schedules.timeline import Event, Timeline

HELD = ("activations",)
PASSING = (
    "logits and loss",
    "recompute workspace",
    "backward workspace",
    "gathered parameters",
    "gradient buckets",
)
"""Categories that live only while a forward or backward runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """A step function: ``allocated_bytes[i]`` holds from ``seconds[i]`` to the next."""

    rank: int
    seconds: NDArray[np.float64]
    allocated_bytes: NDArray[np.float64]
    reserved_bytes: float
    """What the allocator holds all the while, once it has grown."""

    @property
    def peak_bytes(self) -> float:
        """Highest point."""
        return float(self.allocated_bytes.max())


def memory_over_time(timeline: Timeline, stage: StageMemory) -> MemoryCurve:
    """States all the time, activations from forward to backward, the rest while backward runs.

    The microbatches that the rank holds at its busiest share the activations of the estimate's
    peak, so that the curve peaks where the estimate does.
    """
    events = [event for event in timeline.events() if event.rank == stage.rank]
    constant = stage.allocated - sum(stage.categories[name] for name in (*HELD, *PASSING))
    passing = sum(stage.categories[name] for name in PASSING)
    each = sum(stage.categories[name] for name in HELD) / max(_most_held(events), 1)
    changes = []
    for event in events:
        kind = event.action.kind
        if kind == "F":
            changes.append((event.start_seconds, each))
        elif kind != "I":
            changes.append((event.end_seconds, -each))
        if kind != "F":
            changes += [(event.start_seconds, passing), (event.end_seconds, -passing)]
    # Where one action ends as the next begins, free before taking.
    changes.sort(key=lambda change: (change[0], change[1]))
    seconds = np.array([0.0, *(when for when, _ in changes)])
    amounts = constant + np.cumsum([0.0, *(amount for _, amount in changes)])
    return MemoryCurve(
        rank=stage.rank,
        seconds=seconds,
        allocated_bytes=amounts,
        reserved_bytes=float(stage.reserved),
    )


def _most_held(events: list[Event]) -> int:
    held = most = 0
    for event in events:
        if event.action.kind == "F":
            held += 1
            most = max(most, held)
        elif event.action.kind != "I":
            held -= 1
    return most
