"""ZB-V: two chunks per rank in a V (stages ``rank`` and ``2 pp - 1 - rank``).

Loss and its gradient meet on rank 0, so no rank waits for a backward to travel up, and with
forward = input gradient = weight gradient there is no bubble after the fill.

Reference: Qi et al., "Zero bubble pipeline parallelism", ICLR 2024, section 6; "Pipeline
parallelism with controllable memory", NeurIPS 2024.
"""

from collections.abc import Iterator

from planner.schedules.action import Action, ActionKind


def zbv(rank: int, *, pp: int, vpp: int, microbatches: int) -> Iterator[Action]:
    """Actions of one rank; as in PyTorch, a short run is a long one with cells left out.

    >>> [str(a) for a in zbv(0, pp=1, vpp=2, microbatches=1)]
    ['0F0', '1F0', '1I0', '1W0', '0I0', '0W0']
    """
    down, up = rank, 2 * pp - 1 - rank
    done: dict[tuple[int, ActionKind], int] = {}
    # fewer than 2 pp - 1 would not fill the V
    enough = max(2 * pp - 1, microbatches)
    for stage, kind in _cells(rank, pp=pp, down=down, up=up, microbatches=enough):
        microbatch = done.get((stage, kind), 0)
        done[stage, kind] = microbatch + 1
        if microbatch < microbatches:
            yield Action(stage, kind, microbatch)


def _cells(
    rank: int, *, pp: int, down: int, up: int, microbatches: int
) -> Iterator[tuple[int, ActionKind]]:
    """(stage, kind) in order; each runs on its own next microbatch."""
    backward_up: tuple[tuple[int, ActionKind], ...] = ((up, "I"), (up, "W"))
    backward_down: tuple[tuple[int, ActionKind], ...] = ((down, "I"), (down, "W"))
    for _ in range(2 * (pp - rank) - 1):
        yield down, "F"
    for _ in range(rank):
        yield up, "F"
        yield down, "F"
    for _ in range(pp - rank):
        yield up, "F"
        yield from backward_up
    started = 2 * pp - 1 - rank  # forwards on the way down so far; pp on the way up
    for step in range(microbatches - pp):
        if started + step < microbatches:
            yield down, "F"
        yield from backward_down
        yield up, "F"
        yield from backward_up
    for _ in range(rank):
        yield down, "I"
        yield up, "I"
    for _ in range(pp - rank):
        yield from backward_down
    for _ in range(rank):
        yield up, "W"
    for _ in range(rank):
        yield down, "W"
