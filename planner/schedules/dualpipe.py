"""DualPipe in its V form: microbatches travel down and up at once, F and B of a rank overlap.

Stages lie in a V as for ZB-V, and a forward of one direction runs merged with a backward of
the other, so that each hides the other's communication (expert all-to-all). The two-ended
DualPipe of the paper on ``2 n`` ranks is two mirrored copies of this one on ``n`` ranks: the
same order, bubble and activations per rank, each rank with the same two stages. What the
paper calls twice the parameters is here one more data-parallel copy.

Reference: DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1; the V form is
DualPipeV of DeepSeek's DualPipe repository and of PyTorch.
"""

from collections.abc import Iterator

from planner.schedules.action import Action


class _Rank:
    """Counts microbatches per stage and keeps the weight gradients that wait."""

    def __init__(self) -> None:
        self.forwards: dict[int, int] = {}
        self.backwards: dict[int, int] = {}
        self.waiting: list[Action] = []

    def forward(self, stage: int, *, merged: bool = False) -> Action:
        microbatch = self.forwards.get(stage, 0)
        self.forwards[stage] = microbatch + 1
        return Action(stage, "F", microbatch, merged)

    def backward(self, stage: int, *, split: bool = False) -> Action:
        microbatch = self.backwards.get(stage, 0)
        self.backwards[stage] = microbatch + 1
        if split:
            self.waiting.append(Action(stage, "W", microbatch))
        return Action(stage, "I" if split else "B", microbatch)

    def weight(self) -> Iterator[Action]:
        if self.waiting:
            yield self.waiting.pop(0)


def dualpipe(rank: int, *, pp: int, vpp: int, microbatches: int) -> Iterator[Action]:
    """Actions of one rank; ``merged`` forwards run together with the backward after them.

    >>> [str(a) for a in dualpipe(0, pp=1, vpp=2, microbatches=2)]
    ['0F0', '1F0', '0F1', '1B0', '1F1', '0B0', '1B1', '0I1', '0W1']
    """
    down, up, state = rank, 2 * pp - 1 - rank, _Rank()
    yield from _fill(state, rank, pp=pp, down=down, up=up)
    for step in range(microbatches - 2 * pp + rank + 1):
        # the turning point of the V has nothing to overlap its first pair with
        yield state.forward(down, merged=not (step == 0 and rank == pp - 1))
        yield state.backward(up)
        yield state.forward(up, merged=True)
        yield state.backward(down)
    for _ in range(pp - 1 - rank):
        yield state.backward(up)
        yield state.forward(up, merged=True)
        yield state.backward(down)
    yield from _drain(state, rank, pp=pp, down=down, up=up)


def _fill(state: _Rank, rank: int, *, pp: int, down: int, up: int) -> Iterator[Action]:
    for _ in range(2 * (pp - 1 - rank)):
        yield state.forward(down)
    for _ in range(rank + 1):
        yield state.forward(down)
        yield state.forward(up)
    for _ in range(pp - 1 - rank):
        yield state.backward(up, split=True)
        yield from state.weight()
        yield state.forward(up)


def _drain(state: _Rank, rank: int, *, pp: int, down: int, up: int) -> Iterator[Action]:
    # the second half keeps its weight gradients for the bubble at the end
    half = rank + 1
    for step in range(rank + 1):
        yield state.backward(up, split=2 * step >= half)
        yield state.backward(down, split=2 * step + 1 >= half)
    for _ in range(pp - 1 - rank):
        yield from state.weight()
        yield state.backward(down, split=True)
    for _ in range(rank + 1):
        yield from state.weight()
