"""How many microbatches a pipeline rank holds activations for, by schedule."""

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import SCHEDULES, LayoutTable
from planner.ops import Array
from planner.schedules import SCHEDULE_CODES
from planner.schedules.closed_form import held_chunks

_CODES = np.array([SCHEDULE_CODES[name] for name in SCHEDULES])  # type: ignore[index]


def microbatches_in_flight(table: LayoutTable, rank: Array) -> NDArray[np.float64]:
    """Microbatches whose activations a rank holds at its peak, in units of its whole share.

    A chunk of an interleaved rank counts ``1 / vpp``.
    """
    chunks = held_chunks(
        _CODES[table.schedule],
        pp=table.pp, vpp=table.vpp, microbatches=table.microbatches, rank=rank,
    )  # fmt: skip
    return chunks / table.vpp
