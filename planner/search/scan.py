"""Through the whole space once: reject, price, keep what may still win.

The running bound is the exact step of the best layout played so far. Whatever cannot beat it
(by the least step of its schedule, and with every axis as if its ranks were neighbours) is
counted and dropped; everything else stays.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.step import StepTable
from planner.layout_table import LayoutTable
from planner.rules import RULES, broken_rules
from planner.search.bounds import bounds_of
from planner.search.constraints import Constraints
from planner.search.exact import least_steps, played
from planner.search.modes import (
    Fitting,
    fitting_modes,
    layers_per_rank,
    modes,
    recomputes_some,
)
from planner.search.orders import allowed_orders, ideal, with_orders
from planner.search.pricing import Priced, Pricing, steps, timed
from planner.search.rank import leaders, merge, ordered
from planner.search.space import Space

SLACK = 1.02
"""A chunk's best is played if it comes this close to the bound by the closed form."""
REACH = 2.0
"""Slower than this many times the best is not priced at all, however little it needs."""
LARGE_SPACE, LARGE_REACH = 2**20, 1.05
"""The same for a space of so many layouts."""
DEGREE_RULES = ("world", "convolution", "tensor parallelism", "heads", "kv heads", "experts")
"""Rules that degrees alone decide, asked before anything is written out."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """What is left of a space, and what happened to the rest."""

    pricing: Pricing
    constraints: Constraints
    counts: Counter[str] = field(default_factory=Counter)
    """Rejected layouts by reason; each k of "full recompute of k layers" is one layout."""
    considered: int = 0
    priced: int = 0
    """Layouts whose time was worked out."""
    bound: float = np.inf
    """Exact step of the best layout so far."""
    reach: float = REACH
    kept: list[Priced] = field(default_factory=list)
    unplaced: list[Priced] = field(default_factory=list)
    """What another axis order may bring to the top."""

    outpaced: int = 0
    """Legal layouts whose bare work alone is beyond reach; their memory was not asked."""

    @property
    def fitting(self) -> int:
        """Layouts that break no rule and fit into memory."""
        return self.considered - sum(self.counts.values()) - self.outpaced

    def run(self, space: Space) -> Priced | None:
        """Scan a space; what may win, and the leaders of every chunk, with all axis orders."""
        space = self._reject_degrees(space)
        if np.isfinite(self.bound):
            self.reach = 1.0
        if len(space) > LARGE_SPACE:
            self.reach = LARGE_REACH
            space = space.take(_some_of_all_first(len(space.degrees)))
        for table in space.chunks():
            self._scan_chunk(table)
        if near := [n for n in map(self._still_near, self.unplaced) if len(n)]:
            for table, source in self._other_orders(merge(near)):
                priced, found = timed(table, self.pricing, source.peak_bytes, source.device_bytes)
                self._keep(priced, found)
        if not self.kept:
            return None
        orders = allowed_orders(self.constraints)
        return merge([replace(p, table=replace(p.table, orders=orders)) for p in self.kept])

    def _reject_degrees(self, space: Space) -> Space:
        heads = space.heads()
        broken = np.zeros(len(heads), bool)
        layers = -(-self.pricing.question.model.num_layers // heads.pp)
        sizes = space.sizes * self._ways(layers)
        for rule in (r for r in RULES if r.name in DEGREE_RULES):
            found = rule.broken(heads, self.pricing.question) & ~broken
            if number := int(sizes[found].sum()):
                self.counts[rule.name] += number
                self.considered += number
            broken |= found
        return space.take(~broken)

    def _ways(self, layers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Recompute policies of a layout with so many layers on a rank."""
        policies = len(modes(self.pricing, self.constraints))
        some = recomputes_some(self.pricing, self.constraints)
        return policies + np.maximum(layers - 1, 0) * some

    def _scan_chunk(self, table: LayoutTable) -> None:
        question = self.pricing.question
        weights = self._ways(layers_per_rank(table, question.model.num_layers))
        self.considered += int(weights.sum())
        broken, found = broken_rules(table, question, weights=weights)
        self.counts.update(found)
        table = self._in_reach(table.take(~broken))
        if len(table):
            for fit in fitting_modes(table, self.pricing, self.constraints, self.counts):
                if len(fit.table):
                    self._price(fit)

    def _in_reach(self, table: LayoutTable) -> LayoutTable:
        """The layouts whose bare states fit and whose bare work is in reach."""
        if not len(table):
            return table
        least = bounds_of(table, self.pricing)
        ways = self._ways(layers_per_rank(table, self.pricing.question.model.num_layers))
        small = least.state_bytes <= self.pricing.limit_bytes
        near = least.seconds <= self.reach * self.bound
        self.counts["memory"] += int(ways[~small].sum())
        self.outpaced += int(ways[small & ~near].sum())
        return table.take(small & near)

    def _price(self, fit: Fitting) -> None:
        priced, found = timed(fit.table, self.pricing, fit.peak_bytes, fit.device_bytes)
        self._keep(priced, found)
        compute: Any = sum(priced.parts[name] for name in ("forward", "backward", "recompute"))
        near = priced.take(compute <= self.bound)
        if len(near) and len(allowed_orders(self.constraints)) > 1:
            found = steps(ideal(near.table), self.pricing)
            near = replace(near, least_seconds=found.step_seconds - found.parts["bubble"])
            self.unplaced.append(self._still_near(near))

    def _still_near(self, priced: Priced) -> Priced:
        return priced.take(priced.least_seconds <= self.bound)

    def _keep(self, priced: Priced, found: StepTable) -> None:
        """Keep the leaders and all that may beat the bound, after lowering it."""
        self.priced += len(priced)
        best = priced.take(ordered(priced)[:1])
        if best.step_seconds[0] < SLACK * self.bound:
            self.bound = min(self.bound, float(played(best, self.pricing).step_seconds[0]))
        close = np.flatnonzero(priced.least_seconds <= self.bound)
        least = priced.least_seconds.copy()
        least[close] = least_steps(priced.table, found, self.pricing, close)
        priced = replace(priced, least_seconds=least)
        self.kept.append(leaders(priced, also=np.flatnonzero(least <= self.bound)))

    def _other_orders(self, near: Priced) -> Iterator[tuple[LayoutTable, Priced]]:
        """Every other axis order of the layouts that one may bring to the top."""
        orders = allowed_orders(self.constraints)
        table, owner = with_orders(near.table, self.pricing.question.cluster, orders)
        self.considered += len(table)
        if len(table):
            yield table, near.take(owner)


def _some_of_all_first(rows: int) -> NDArray[np.int64]:
    """Every eighth row first, so that a good bound is met early."""
    numbers = np.arange(rows)
    return np.argsort(numbers % 8 != 0, kind="stable").astype(np.int64)


def finalists(kept: Priced, pricing: Pricing, most: int) -> Priced:
    """The layouts that may be the best, and the most promising others, all played.

    The best ``most`` by the closed form are played; then, in the order of their least steps,
    all others until none can beat the best.
    """
    promising = ordered(kept)[:most]
    done = [played(kept.take(promising), pricing)]
    best = float(done[0].step_seconds.min())
    order = np.argsort(kept.least_seconds, kind="stable")
    rest = order[~np.isin(order, promising)]
    for start in range(0, len(rest), most):
        batch = rest[start : start + most]
        batch = batch[kept.least_seconds[batch] < best]
        if not len(batch):
            break
        done.append(played(kept.take(batch), pricing))
        best = min(best, float(done[-1].step_seconds.min()))
    return merge(done)
