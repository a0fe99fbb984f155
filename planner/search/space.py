"""The whole space of layouts, as chunks of a ``LayoutTable``; nothing here prices anything.

Degrees first (thousands at most), then every option that a row's degrees leave open. Axis
orders are left at the usual one: they change no byte, so they are only spread out for layouts
that fit (``orders.py``); recomputation is left out until memory asks for it (``modes.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layout import DEFAULT_AXIS_ORDER, Axis
from planner.layout_table import COLUMNS, LayoutTable, Split
from planner.rules import Question
from planner.search.choices import Choice, choose, cross
from planner.search.constraints import Constraints
from planner.search.degrees import Degrees, all_degrees
from planner.search.options import Options
from planner.search.orders import allowed_orders

CHUNK = 2**17
"""Layouts priced at once: a chunk's columns stay in the cache of one core."""
FLAGS = ("sequence_parallel", "ulysses", "fused_loss", "offload_optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All layouts that a question leaves open, not yet written out."""

    degrees: Degrees
    choices: tuple[Choice, ...]
    splits: tuple[Split, ...]
    order: tuple[Axis, ...]
    """The axis order of all of them."""
    sizes: NDArray[np.int64]
    """Layouts of every row of degrees."""

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def take(self, chosen: NDArray[np.generic]) -> "Space":
        """The rows of degrees that a mask or indices pick."""
        choices = tuple(Choice(lists=c.lists, key=c.key[chosen]) for c in self.choices)
        return Space(
            degrees=self.degrees.take(chosen), choices=choices, splits=self.splits,
            order=self.order, sizes=self.sizes[chosen],
        )  # fmt: skip

    def chunks(self, size: int = CHUNK) -> Iterator[LayoutTable]:
        """The layouts, about ``size`` at a time (a single row of degrees is not cut)."""
        block = np.cumsum(self.sizes) // size
        for number in np.unique(block[self.sizes > 0]):
            yield self.table(np.flatnonzero((block == number) & (self.sizes > 0)))

    def table(self, rows: NDArray[np.int64]) -> LayoutTable:
        """Every layout of some rows of degrees."""
        owner, columns = cross(self.choices, rows)
        columns |= {name: column[owner] for name, column in self.degrees.columns.items()}
        return as_table(columns, self.splits, self.order)

    def heads(self) -> LayoutTable:
        """One layout per row of degrees, its plainest, for rules that ask for no more."""
        columns = dict(self.degrees.columns)
        return as_table(columns, (Split(pp=1, vpp=1, layers=(0,)),))


def as_table(
    columns: dict[str, NDArray[np.int64]],
    splits: tuple[Split, ...],
    order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER,
) -> LayoutTable:
    """A table from the columns given; the others hold what the plain layout holds."""
    rows = len(columns["dp"])
    plain = {"vpp": 1, "ep": 1, "etp": 1, "microbatch": 1, "microbatches": 1, "shard_group": 1}
    whole: dict[str, Any] = {
        name: columns[name] if name in columns else np.full(rows, plain.get(name, 0), np.int64)
        for name in COLUMNS
    }
    whole |= {name: whole[name].astype(bool) for name in FLAGS}
    return LayoutTable(**whole, splits=splits, orders=(order,))


def build_space(question: Question, constraints: Constraints, *, full: bool = True) -> Space:
    """The layouts of a question under the user's constraints.

    Args:
        question: What is given.
        constraints: What the user fixed or forbade.
        full: Also what rarely helps: offloaded optimizer states, shard groups of every size,
            GPipe beside 1F1B, tensor parallelism between nodes, context parallelism of short
            sequences, the loss unfused though it could be fused.
    """
    degrees = all_degrees(question, constraints, full=full)
    options = Options(question=question, constraints=constraints, full=full)
    column = degrees.columns
    several = (column["dp"] * column["cp"], column["cp"], column["pp"])
    choices = (
        choose((column["pp"], column["dp"], column["cp"]), options.pipeline, constraints),
        choose((column["tp"], column["cp"]), options.streams, constraints),
        choose(several, options.zero, constraints),
        choose(column["pp"], options.switches, constraints),
    )
    sizes = np.ones(len(degrees), np.int64)
    for choice in choices:
        sizes = sizes * choice.counts
    return Space(
        degrees=degrees, choices=choices, splits=options.splits,
        order=allowed_orders(constraints)[0], sizes=sizes,
    )  # fmt: skip
