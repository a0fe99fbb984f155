"""How many microbatches a pipeline rank holds activations for, by schedule."""

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import SCHEDULES, LayoutTable
from planner.ops import Array

Numbers = NDArray[np.float64]


def microbatches_in_flight(table: LayoutTable, rank: Array) -> Numbers:
    """Microbatches whose activations a rank holds at its peak, in units of its whole share.

    A chunk of an interleaved rank counts ``1 / vpp``. With ``p`` ranks, ``m`` microbatches and
    rank ``i`` from 0: GPipe ``m``; 1F1B and interleaved's warm-up (Narayanan et al. 2021,
    sections 2.2 and 2.3) ``min(m, p - i)`` and ``min(m v, 2 (p - i - 1) + (v - 1) p + 1) / v``;
    ZB-H1 like 1F1B, its weight gradients deferred within that budget (Qi et al. 2024, section
    2.1); ZBV ``min(m, p)`` (section 6); DualPipe ``min(m, p + 1)`` (DeepSeek-AI 2024, table 2).
    """
    pp, vpp, m = table.pp, table.vpp, table.microbatches
    # Megatron's schedule skips the extra warm-up when there are only pp microbatches to run:
    # then every chunk goes forward before any goes back.
    warmup = 2 * (pp - rank - 1) + (vpp - 1) * pp + 1
    interleaved = np.where(m == pp, m * vpp, np.minimum(m * vpp, warmup)) / vpp
    by_schedule = {
        "gpipe": m,
        "1f1b": np.minimum(m, pp - rank),
        "interleaved": np.where(vpp > 1, interleaved, np.minimum(m, pp - rank)),
        "zb-h1": np.minimum(m, pp - rank),
        "zbv": np.minimum(m, pp),
        "dualpipe": np.minimum(m, pp + 1),
    }
    choices = [by_schedule[name] for name in SCHEDULES]
    return np.choose(table.schedule, [np.asarray(c, float) for c in choices])
