"""1F1B: one forward, one backward, so that at most ``pp`` microbatches are held.

Reference: Narayanan et al., "PipeDream: Generalized pipeline parallelism for DNN training",
SOSP 2019 (the flushing variant: Fan et al., "DAPPLE", PPoPP 2021).
"""

from collections.abc import Iterator

from planner.schedules.action import Action


def one_f_one_b(rank: int, *, pp: int, vpp: int, microbatches: int) -> Iterator[Action]:
    """Actions of one rank: warm up, alternate, drain.

    >>> [str(a) for a in one_f_one_b(0, pp=2, vpp=1, microbatches=3)]
    ['0F0', '0F1', '0B0', '0F2', '0B1', '0B2']
    """
    warmup = min(pp - 1 - rank, microbatches)
    for microbatch in range(warmup):
        yield Action(rank, "F", microbatch)
    for microbatch in range(warmup, microbatches):
        yield Action(rank, "F", microbatch)
        yield Action(rank, "B", microbatch - warmup)
    for microbatch in range(microbatches - warmup, microbatches):
        yield Action(rank, "B", microbatch)
