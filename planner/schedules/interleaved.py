"""Interleaved 1F1B: each rank holds ``vpp`` chunks, stages ``rank``, ``rank + pp``, ...

Reference: Narayanan et al., "Efficient large-scale language model training on GPU clusters
using Megatron-LM", SC 2021, section 2.2.
"""

from collections.abc import Iterator

from planner.schedules.action import Action


def microbatches_per_round(*, pp: int, microbatches: int) -> int:
    """Microbatches that visit one chunk before the rank turns to its next chunk.

    ``pp`` in the paper. PyTorch spreads the microbatches over ``max(1, m // pp)`` equal
    rounds, which is the same where ``m`` is a multiple of ``pp``.

    >>> microbatches_per_round(pp=4, microbatches=8), microbatches_per_round(pp=4, microbatches=10)
    (4, 5)
    """
    return microbatches // max(1, microbatches // pp)


def chunk_order(*, vpp: int, per_round: int, microbatches: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) in the order in which a rank runs its forwards."""
    rounds = range(0, microbatches, per_round)
    return [
        (chunk, microbatch)
        for first in rounds
        for chunk in range(vpp)
        for microbatch in range(first, min(first + per_round, microbatches))
    ]


def interleaved(rank: int, *, pp: int, vpp: int, microbatches: int) -> Iterator[Action]:
    """Actions of one rank: warm up, alternate, drain, over its chunks in turn.

    >>> [str(a) for a in interleaved(1, pp=2, vpp=2, microbatches=2)]
    ['1F0', '1F1', '3F0', '3B0', '3F1', '3B1', '1B0', '1B1']
    """
    per_round = microbatches_per_round(pp=pp, microbatches=microbatches)
    order = chunk_order(vpp=vpp, per_round=per_round, microbatches=microbatches)
    forwards = [Action(chunk * pp + rank, "F", i) for chunk, i in order]
    backwards = [Action((vpp - 1 - chunk) * pp + rank, "B", i) for chunk, i in order]
    warmup = min((vpp - 1) * per_round + 2 * (pp - 1 - rank), len(order))
    yield from forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(order) - warmup :]
