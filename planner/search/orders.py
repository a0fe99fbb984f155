"""Axis orders: which degree sits inside which tier, and what no order can beat.

Most of the 24 orders lay the same groups onto the same links. Of those only the first counts.
"""

from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster
from planner.distinct import distinct_rows
from planner.layout import DEFAULT_AXIS_ORDER, Axis
from planner.layout_table import COLUMNS, LayoutTable
from planner.placement import GROUPS, place
from planner.search.constraints import Constraints

Integers = NDArray[np.int64]
ORDERS: tuple[tuple[Axis, ...], ...] = tuple(
    sorted(permutations(DEFAULT_AXIS_ORDER), key=lambda o: o != DEFAULT_AXIS_ORDER)
)
"""All orders, the usual one first."""
PLACED = ("tp", "cp", "dp", "pp", "ep", "etp", "shard_group")
"""What decides where groups lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealTable(LayoutTable):
    """Layouts as if every axis had neighbouring ranks: no order is cheaper for any of them."""

    def stride(self, axis: Axis) -> Integers:
        """Next to each other."""
        return np.ones_like(self.dp)


def ideal(table: LayoutTable) -> IdealTable:
    """The same layouts, every axis innermost."""
    columns = {name: getattr(table, name) for name in COLUMNS}
    return IdealTable(**columns, splits=table.splits, orders=table.orders)


def allowed_orders(constraints: Constraints) -> tuple[tuple[Axis, ...], ...]:
    """The orders that the user leaves open, the usual one first if it is among them."""
    asked = [tuple(order) for order in constraints.wanted("axis_order")]
    banned = {tuple(o) for o in constraints.forbidden.get("axis_order", ())}
    return tuple(o for o in ORDERS if (not asked or o in asked) and o not in banned)


def with_orders(
    table: LayoutTable, cluster: Cluster, orders: tuple[tuple[Axis, ...], ...]
) -> tuple[LayoutTable, Integers]:
    """Every distinct placement of every layout but the first order's, which callers have.

    Returns:
        The layouts, and for each the row that it comes from.
    """
    first, kind = distinct_rows(getattr(table, name) for name in PLACED)
    few = table.take(first)
    new = _distinct_orders(few, cluster, orders)  # (kinds, orders)
    owner, order = np.nonzero(new[kind])
    spread = replace(table.take(owner), order=order.astype(np.int64), orders=orders)
    return spread, owner.astype(np.int64)


def _distinct_orders(
    few: LayoutTable, cluster: Cluster, orders: tuple[tuple[Axis, ...], ...]
) -> NDArray[np.bool_]:
    """Whether an order lays the groups of a row unlike all orders before it."""
    signatures = []
    for order in orders:
        table = replace(few, order=np.zeros(len(few), np.int64), orders=(order,))
        spans = place(table, cluster, GROUPS)
        parts = []
        for span in spans.values():
            several = span.degree > 1
            parts += [np.where(several, m, 0) for m in (*span.members, *span.sharers)]
        signatures.append(np.stack([np.broadcast_to(p, len(few)) for p in parts], axis=1))
    marks = np.stack(signatures, axis=1)  # (rows, orders, numbers)
    same = (marks[:, :, None, :] == marks[:, None, :, :]).all(axis=3)
    earlier = np.tril(np.ones((len(orders), len(orders)), bool), -1)
    new = ~(same & earlier).any(axis=2)
    new[:, 0] = False
    return new
