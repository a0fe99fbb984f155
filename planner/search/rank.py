"""Keep the best: overall, of each combination of degrees, and of the Pareto front."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import COLUMNS, LayoutTable
from planner.search.degrees import DEGREES
from planner.search.pricing import Priced

KEPT = 256
"""Layouts that a chunk passes on, beside the best of each combination of degrees."""
TIE = 1e-9
"""Relative difference of steps below which the simpler layout goes first."""

FLOATS = (
    "step_seconds", "low_seconds", "high_seconds", "peak_bytes", "device_bytes", "least_seconds"
)  # fmt: skip

Integers = NDArray[np.int64]


def complexity(table: LayoutTable) -> Integers:
    """How much machinery a layout needs; of equal layouts the one with the least is taken.

    One for each axis in use and each feature switched on; a deeper feature weighs more.
    """
    used = sum((getattr(table, name) > 1).astype(np.int64) for name in DEGREES[1:])
    features = (
        table.zero_stage + table.recompute + (table.recompute_layers > 0)
        + 2 * table.offload_optimizer + table.sequence_parallel + table.ulysses
        + (table.vpp > 1) + table.schedule // 2 + (table.order > 0)
        + (table.shard_group < table.dp * table.cp) * (table.zero_stage > 0)
    )  # fmt: skip
    return 4 * used + features


def ordered(priced: Priced, objective: NDArray[np.float64] | None = None) -> Integers:
    """Indices from best to worst; ties (to nine digits) go to the simpler layout."""
    value = priced.step_seconds if objective is None else objective
    with np.errstate(divide="ignore"):
        rough = np.round(np.log(np.maximum(value, 1e-300)) / TIE)
    names = ("tp", "pp", "cp", "ep", "microbatch", "schedule", "split", "order", "zero_stage")
    keys = [getattr(priced.table, name) for name in reversed(names)]
    return np.lexsort((*keys, complexity(priced.table), rough))


def degree_codes(table: LayoutTable) -> Integers:
    """One number per combination of degrees."""
    code = np.zeros(len(table), np.int64)
    for name in DEGREES:
        column = getattr(table, name)
        code = code * (int(column.max(initial=0)) + 1) + column
    return code


def best_of_each(keys: Integers, value: NDArray[np.float64]) -> Integers:
    """Index of the least value of every distinct key."""
    order = np.lexsort((value, keys))
    first = np.ones(len(order), bool)
    first[1:] = keys[order][1:] != keys[order][:-1]
    return order[first]


def leaders(priced: Priced, also: Integers) -> Priced:
    """The best of a chunk: overall, of each combination of degrees, in memory; and ``also``."""
    value = priced.step_seconds
    if len(priced) <= KEPT:
        return priced
    costs = np.stack([value, priced.device_bytes], axis=1)
    chosen = [
        also,
        best_of_each(degree_codes(priced.table), value),
        pareto_front(costs),
        np.argpartition(value, KEPT)[:KEPT],
    ]
    return priced.take(np.unique(np.concatenate(chosen)))


def pareto_front(costs: NDArray[np.float64]) -> Integers:
    """Indices of rows that no other row beats in both columns, by the first column.

    >>> pareto_front(np.array([[1.0, 9.0], [2.0, 3.0], [3.0, 5.0], [1.0, 8.0]])).tolist()
    [3, 1]
    """
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    least = np.minimum.accumulate(costs[order, 1])
    first = np.ones(len(order), bool)
    first[1:] = costs[order, 1][1:] < least[:-1]
    return order[first]


def merge(parts: list[Priced]) -> Priced:
    """Several tables as one; they must share splits and orders."""
    head = parts[0]
    columns: dict[str, Any] = {
        n: np.concatenate([getattr(p.table, n) for p in parts]) for n in COLUMNS
    }
    joined = {name: np.concatenate([getattr(p, name) for p in parts]) for name in FLOATS}
    return Priced(
        table=replace(head.table, **columns),
        parts={n: np.concatenate([p.parts[n] for p in parts]) for n in head.parts},
        **joined,
    )
