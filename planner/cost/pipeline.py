"""Idle time of a pipeline in closed form, for arrays of layouts."""

import numpy as np
from numpy.typing import NDArray

from planner.cost.stages import StageCosts
from planner.layout_table import SCHEDULES, LayoutTable

Floats = NDArray[np.float64]


def bubble_seconds(
    table: LayoutTable, stages: StageCosts, *, exposed_send: Floats, send: Floats
) -> Floats:
    """Time in which the slowest rank waits, beyond its own work.

        1F1B, GPipe    sum over stages (F + B) - slowest (F + B)
        interleaved    the same over v: one chunk of every rank fills and drains
        ZB-H1          as 1F1B with F + I - W in place of F + B
        ZBV            (p - 1) (F + I - 2 W) / 2, at least one pass of a chunk
        DualPipe       (p / 2 - 1) (F + B - 3 W), at least one pass of a chunk

    Reference: Narayanan et al. 2021, section 2; Qi et al. 2024, table 1; DeepSeek-AI 2024,
    "DeepSeek-V3", table 2.
    """
    pair = stages.inverse
    total = stages.forward_sum[pair] + stages.backward_sum[pair]
    slowest = stages.slowest_forward[pair] + stages.slowest_backward[pair]
    weight = stages.weight_gradient[pair]
    hops = np.where(table.pp > 1, table.pp - 1, 0)
    fill = np.maximum(total - slowest, 0.0) / table.vpp
    travel = 2.0 * hops * np.maximum(exposed_send, send)
    # A chunk of another rank as slow as an average one; W fills part of the wait.
    one = np.maximum(slowest - 2.0 * weight, 0.0)
    zero = np.maximum(slowest - 3.0 * weight, 0.0)
    by_schedule = {
        "gpipe": fill,
        "1f1b": fill,
        "interleaved": fill,
        "zb-h1": np.maximum(fill - hops * 2.0 * weight, hops * one * 0.0),
        "zbv": hops * zero / 2.0,
        "dualpipe": np.maximum(hops / 2.0 - 0.5, 0.0) * zero,
    }
    codes = [by_schedule[name] for name in SCHEDULES]
    bubble = np.choose(table.schedule, codes)
    return np.where(table.pp > 1, bubble + travel, 0.0)
