"""GPipe: all forwards, then all backwards.

Reference: Huang et al., "GPipe: Efficient training of giant neural networks using pipeline
parallelism", NeurIPS 2019.
"""

from collections.abc import Iterator

from planner.schedules.action import Action


def gpipe(rank: int, *, pp: int, vpp: int, microbatches: int) -> Iterator[Action]:
    """Actions of one rank: fill, then drain.

    >>> [str(a) for a in gpipe(1, pp=2, vpp=1, microbatches=2)]
    ['1F0', '1F1', '1B0', '1B1']
    """
    for microbatch in range(microbatches):
        yield Action(rank, "F", microbatch)
    for microbatch in range(microbatches):
        yield Action(rank, "B", microbatch)
