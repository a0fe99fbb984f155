"""Closed forms over arrays of layouts: least step time and held microbatches.

Every time here is a true lower bound of the timeline (tests hold it to that on random stages
for every schedule), so a search may drop what is already slower than a timed layout. Where
stages are equal the bound is the timeline itself for GPipe, 1F1B, interleaved and ZB-H1, and
for ZB-V and DualPipe when forward, input and weight gradient last equally long.

Schedules are the codes of ``schedules.SCHEDULE_CODES``; all arguments broadcast.

References: Narayanan et al., SC 2021, section 2.2 (bubble of 1F1B and interleaved); Qi et
al., "Zero bubble pipeline parallelism", ICLR 2024, table 1; the path arguments are ours.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.layout import ScheduleName
from planner.schedules import SCHEDULE_CODES, stage_ranks

Floats = NDArray[np.float64]
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZBV, DUALPIPE = range(6)
_BLOCK = 16384  # layouts whose columns stay in the cache together


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSums:
    """What the bounds need to know of the stages, per microbatch; arrays that broadcast.

    ``largest`` is the slowest rank, all its chunks together; ``last`` the rank ``pp - 1``;
    ``fill`` the stages before that rank's first, stages 0 .. pp - 2.
    """

    total_seconds: Floats
    """Forward and backward of all stages."""
    largest_seconds: Floats
    last_forward_seconds: Floats
    last_input_gradient_seconds: Floats
    last_weight_gradient_seconds: Floats
    fill_forward_seconds: Floats
    fill_input_gradient_seconds: Floats
    fill_weight_gradient_seconds: Floats
    first_weight_gradient_seconds: Floats
    """Of stage 0 alone."""
    last_chunk_weight_gradient_seconds: Floats
    """Of the slowest single chunk of rank ``pp - 1``."""
    total_weight_gradient_seconds: Floats
    """Of all stages."""
    largest_unsplit_seconds: Floats
    """Forward and input gradient of the rank where they last longest (all its chunks)."""
    largest_weight_gradient_seconds: Floats
    """Of the same rank; the least of them where several tie."""


_SUM_NAMES = tuple(field.name for field in fields(StageSums))


def stage_sums(
    schedule: ScheduleName,
    *,
    pp: int,
    vpp: int,
    forward_seconds: ArrayLike,
    input_gradient_seconds: ArrayLike,
    weight_gradient_seconds: ArrayLike,
) -> StageSums:
    """``StageSums`` of explicit stages, (stages, *candidates) each."""
    ranks = np.array(stage_ranks(schedule, pp=pp, vpp=vpp))
    f, i, w = (
        np.asarray(part, float)
        for part in (forward_seconds, input_gradient_seconds, weight_gradient_seconds)
    )
    stage_seconds = f + i + w
    rank_weight = np.stack([w[ranks == rank].sum(axis=0) for rank in range(pp)])
    rank_unsplit = np.stack([(f + i)[ranks == rank].sum(axis=0) for rank in range(pp)])
    unsplit = rank_unsplit.max(axis=0)
    last, fill = ranks == pp - 1, slice(0, pp - 1)
    return StageSums(
        total_seconds=stage_seconds.sum(axis=0),
        largest_seconds=(rank_unsplit + rank_weight).max(axis=0),
        last_forward_seconds=f[last].sum(axis=0),
        last_input_gradient_seconds=i[last].sum(axis=0),
        last_weight_gradient_seconds=w[last].sum(axis=0),
        fill_forward_seconds=f[fill].sum(axis=0),
        fill_input_gradient_seconds=i[fill].sum(axis=0),
        fill_weight_gradient_seconds=w[fill].sum(axis=0),
        first_weight_gradient_seconds=w[0],
        last_chunk_weight_gradient_seconds=w[last].max(axis=0),
        total_weight_gradient_seconds=w.sum(axis=0),
        largest_unsplit_seconds=unsplit,
        largest_weight_gradient_seconds=np.where(rank_unsplit == unsplit, rank_weight, np.inf).min(
            axis=0
        ),
    )


def least_seconds(
    schedule: ArrayLike,
    sums: StageSums,
    *,
    pp: ArrayLike,
    vpp: ArrayLike,
    microbatches: ArrayLike,
    send_seconds: ArrayLike = 0.0,
) -> Floats:
    """A time that no playing of the schedule can beat.

    The slowest rank works ``m`` times; the last rank cannot start before the stages before it
    have run one forward, nor can the step end before they have run its last backward. For
    DualPipe take for every duration the lesser of alone and merged.

    Args:
        schedule: Codes.
        sums: Of the stages.
        pp: Pipeline ranks.
        vpp: Chunks per rank.
        microbatches: Per replica and step.
        send_seconds: The least of the boundaries' times, one way.

    >>> from planner.schedules.closed_form import stage_sums
    >>> sums = stage_sums("1f1b", pp=4, vpp=1, forward_seconds=[1.0] * 4,
    ...                   input_gradient_seconds=[1.0] * 4, weight_gradient_seconds=[1.0] * 4)
    >>> float(least_seconds(1, sums, pp=4, vpp=1, microbatches=8))
    33.0
    """
    columns = [getattr(sums, field.name) for field in fields(sums)]
    code, *parts = np.broadcast_arrays(schedule, pp, vpp, microbatches, send_seconds, *columns)
    least = np.empty(code.size)
    flat = [part.reshape(-1) for part in (code, *parts)]
    for first in range(0, code.size, _BLOCK):
        block = [part[first : first + _BLOCK] for part in flat]
        least[first : first + _BLOCK] = _least_of_block(block[0], block[1:])
    return least.reshape(code.shape)


def _least_of_block(code: NDArray[np.int64], parts: list[Floats]) -> Floats:
    forms = (_gpipe, _one_f_one_b, _interleaved, _zero_bubble, _v_shaped, _v_shaped)
    least = np.empty(code.size)
    for number, form in enumerate(forms):
        here = np.flatnonzero(code == number)
        if not len(here):
            continue
        own = parts if len(here) == code.size else [part[here] for part in parts]
        p, v, m, send, *columns = own
        sums = StageSums(**dict(zip(_SUM_NAMES, columns, strict=True)))
        least[here] = np.maximum(
            m * sums.largest_seconds, form(sums, p, v, m, np.where(p > 1, send, 0.0))
        )
    return least


def _last_seconds(sums: StageSums) -> Floats:
    return (
        np.asarray(sums.last_forward_seconds, float)
        + sums.last_input_gradient_seconds
        + sums.last_weight_gradient_seconds
    )


def _gpipe(sums: StageSums, p: Floats, _v: Floats, m: Floats, send: Floats) -> Floats:
    """Two flow shops of equal jobs: sum + (m - 1) slowest, forward and then backward."""
    slowest = np.maximum(sums.largest_seconds, _last_seconds(sums))
    return sums.total_seconds + (m - 1) * slowest + 2 * (p - 1) * send


def _one_f_one_b(sums: StageSums, p: Floats, _v: Floats, m: Floats, send: Floats) -> Floats:
    """The longest of three paths through the actions.

    1. Down to the last rank, all its work, and back up: total + (m - 1) last.
    2. Down and up once, then the slowest rank's work, then once more down and up; what the
       faster ranks behind it leave idle is at most sum over ranks of (largest - their own).
    3. Round trips: a rank holds at most pp microbatches, so microbatch i + pp starts after
       microbatch i has come back; between two trips the rest is done on the last rank.
    """
    total = np.asarray(sums.total_seconds, float)
    largest = np.asarray(sums.largest_seconds, float)
    last = _last_seconds(sums)
    trip = total + 2 * (p - 1) * send
    trips, rest = np.divmod(m - 1, p)
    return np.maximum.reduce(
        [
            trip + (m - 1) * last,
            np.where(m > p, trip + (m - 1) * largest - (p * largest - total), 0.0),
            (trips + 1) * trip + rest * last,
        ]
    )


def _interleaved(sums: StageSums, p: Floats, _v: Floats, m: Floats, send: Floats) -> Floats:
    """Fill the first chunks before the last rank, all its work, and the same way back."""
    fill = (
        np.asarray(sums.fill_forward_seconds, float)
        + sums.fill_input_gradient_seconds
        + sums.fill_weight_gradient_seconds
    )
    return fill + m * _last_seconds(sums) + 2 * (p - 1) * send


def _zero_bubble(sums: StageSums, p: Floats, v: Floats, m: Floats, send: Floats) -> Floats:
    """The longest of two paths, neither of which waits for the weight gradients of the drain.

    1. The last rank ends its input gradients with ``pp`` weight gradients to go; the other
       ranks' input gradients follow.
    2. With one chunk: down and up, the widest rank's work, down and up, as for 1F1B.
    """
    drain = (
        np.asarray(sums.fill_input_gradient_seconds)
        + (p - 1) * send
        + sums.first_weight_gradient_seconds
        - p * np.asarray(sums.last_chunk_weight_gradient_seconds)
    )
    last = _fill_and_work(sums, p, m, send) + np.where(p > 1, np.maximum(0.0, drain), 0.0)
    widest = np.asarray(sums.largest_unsplit_seconds)
    unsplit = np.asarray(sums.total_seconds) - sums.total_weight_gradient_seconds
    trips = (
        2 * unsplit
        + 2 * (p - 1) * send
        + (m - 1 - p) * widest
        + (m - p) * np.asarray(sums.largest_weight_gradient_seconds)
        + sums.first_weight_gradient_seconds
    )
    return np.maximum(last, np.where((v == 1) & (m > p) & (p > 1), trips, 0.0))


def _v_shaped(sums: StageSums, p: Floats, _v: Floats, m: Floats, send: Floats) -> Floats:
    """Only the fill is sure: weight gradients may cover the whole way back."""
    return _fill_and_work(sums, p, m, send)


def _fill_and_work(sums: StageSums, p: Floats, m: Floats, send: Floats) -> Floats:
    return sums.fill_forward_seconds + (p - 1) * send + m * _last_seconds(sums)


def held_chunks(
    schedule: ArrayLike,
    *,
    pp: ArrayLike,
    vpp: ArrayLike,
    microbatches: ArrayLike,
    rank: ArrayLike,
) -> NDArray[np.int64]:
    """Microbatches held at a rank's worst moment, counted once per chunk.

    Divide by vpp for microbatches of a whole rank. Exact for the schedules as generated here:

    GPipe m; 1F1B min(m, p - r); interleaved min(m v, (v - 1) g + 2 (p - 1 - r) + 1) with
    g microbatches per round; ZB-H1 min(m v, (v - 1) g + p); ZB-V
    min(m, 2 p - 1 - r) + min(m, r + 1), so 2 p on every rank of a filled V; DualPipe 2 p + 1.

    >>> held_chunks(1, pp=4, vpp=1, microbatches=8, rank=[0, 1, 2, 3]).tolist()
    [4, 3, 2, 1]
    """
    code, p, v, m, r = np.broadcast_arrays(
        *(np.asarray(a, dtype=np.int64) for a in (schedule, pp, vpp, microbatches, rank))
    )
    per_round = m // np.maximum(1, m // p)
    forms = [
        m,
        np.minimum(m, p - r),
        np.minimum(m * v, (v - 1) * per_round + 2 * (p - 1 - r) + 1),
        np.minimum(m * v, (v - 1) * per_round + p),
        np.minimum(m, 2 * p - 1 - r) + np.minimum(m, r + 1),
        np.minimum(2 * m, 2 * p + 1),
    ]
    return np.select([code == number for number in range(6)], forms)


assert list(SCHEDULE_CODES.values()) == [GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZBV, DUALPIPE]
