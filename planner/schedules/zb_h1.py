"""ZB-H1: 1F1B whose weight gradients wait until the rank would idle; no more memory than 1F1B.

With ``vpp > 1`` the same idea over interleaved chunks (PyTorch's InterleavedZeroBubble).

Reference: Qi et al., "Zero bubble pipeline parallelism", ICLR 2024, section 2 (ZB1P in code).
"""

from collections.abc import Iterator

from planner.schedules.action import Action
from planner.schedules.interleaved import chunk_order, microbatches_per_round


def zb_h1(rank: int, *, pp: int, vpp: int, microbatches: int) -> Iterator[Action]:
    """Actions of one rank: each weight gradient comes ``rank`` input gradients late.

    >>> [str(a) for a in zb_h1(1, pp=2, vpp=1, microbatches=2)]
    ['1F0', '1I0', '1F1', '1I1', '1W0', '1W1']
    """
    per_round = microbatches_per_round(pp=pp, microbatches=microbatches)
    order = chunk_order(vpp=vpp, per_round=per_round, microbatches=microbatches)
    total = len(order)
    forwards = [Action(chunk * pp + rank, "F", i) for chunk, i in order]
    inputs = [Action((vpp - 1 - chunk) * pp + rank, "I", i) for chunk, i in order]
    warmup = min((vpp - 1) * per_round + pp - 1 - rank, total)
    late = rank
    yield from forwards[:warmup]
    for step in range(total):
        if warmup + step < total:
            yield forwards[warmup + step]
        yield inputs[step]
        if step >= late:
            yield inputs[step - late]._replace(kind="W")
    for step in range(max(0, total - late), total):
        yield inputs[step]._replace(kind="W")
