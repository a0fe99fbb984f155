"""Predict many runs at once: one table per model, machine, numbers and framework."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.calibration import Calibration
from planner.cost.memory.device import usable_bytes
from planner.cost.memory.table import MemoryTable, memory
from planner.cost.step import step
from planner.layout import Layout
from planner.layout_table import tabulate
from planner.runs import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One entry per run; not a number where the part was not asked for."""

    step_seconds: Floats
    low_seconds: Floats
    high_seconds: Floats
    parts: dict[str, Floats]
    peak_bytes: Floats
    """In the sense that the run measured; allocated where it says none."""
    fits: NDArray[np.bool_]
    """Whether the planner would call the layout feasible."""


def batches(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of runs that differ in nothing but their layout and batch."""
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        job = replace(run.job, global_batch=1)
        together[id(run.model), job, id(run.cluster), run.framework].append(index)
    return [*together.values()]


def predict_runs(
    runs: Sequence[Run], calibration: Calibration, *, with_memory: bool = True
) -> Predictions:
    """Step time and memory of every run.

    Args:
        runs: Read by ``read_runs``.
        calibration: Constants of the time model.
        with_memory: False leaves ``peak_bytes`` empty and calls everything feasible.
    """
    count = len(runs)
    seconds = np.full((3, count), np.nan)
    parts: dict[str, Floats] = {}
    peak, fits = np.full(count, np.nan), np.ones(count, bool)
    for rows in batches(runs):
        first = runs[rows[0]]
        table = tabulate(
            [runs[i].layout for i in rows], fused_loss_habit=first.framework.fused_loss
        )
        found = step(first.model, first.job, first.cluster, first.framework, table, calibration)
        seconds[:, rows] = found.step_seconds, found.low_seconds, found.high_seconds
        for name, value in found.parts.items():
            parts.setdefault(name, np.zeros(count))[rows] = value
        if with_memory:
            device = first.cluster.device
            held = memory(first.model, first.job, first.framework, table, device=device)
            peak[rows] = _as_measured([runs[i] for i in rows], held)
            room = usable_bytes(device.memory_bytes, first.framework, table, device)
            fits[rows] = held.allocated <= room
            leanest = tabulate(
                [_leanest(runs[i]) for i in rows], fused_loss_habit=first.framework.fused_loss
            )
            lean = memory(first.model, first.job, first.framework, leanest, device=device)
            fits[rows] |= lean.allocated <= room
    return Predictions(
        step_seconds=seconds[0], low_seconds=seconds[1], high_seconds=seconds[2],
        parts=parts, peak_bytes=peak, fits=fits,
    )  # fmt: skip


def _leanest(run: Run) -> Layout:
    """The run with whatever its source leaves open set to what needs least memory."""
    changes: dict[str, Any] = {}
    if "recompute" in run.unstated:
        changes["recompute"] = "full"
    if "zero_stage" in run.unstated:
        piped = run.framework.largest_zero_stage_with_pipeline
        changes["zero_stage"] = piped if run.layout.pp > 1 else run.framework.largest_zero_stage
    return replace(run.layout, **changes)


def _as_measured(runs: list[Run], held: MemoryTable) -> Floats:
    """In the sense, and of the pipeline rank, that each run measured."""
    senses = ("allocated", "reserved", "device")
    kinds = [run.memory_kind if run.memory_kind in senses else "allocated" for run in runs]
    ranks = [held.of(run.memory_rank) for run in runs]
    return np.array(
        [getattr(r, kind)[i] for i, (r, kind) in enumerate(zip(ranks, kinds, strict=True))]
    )
