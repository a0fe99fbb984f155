"""Through the whole space once: reject, price, keep what may still win.

The running bound is the exact step of the best layout played so far. Whatever cannot beat it
(by the least step of its schedule, and with every axis as if its ranks were neighbours) is
counted and dropped; everything else stays.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import LayoutTable
from planner.rules import RULES
from planner.search.constraints import Constraints
from planner.search.exact import played, with_least
from planner.search.modes import Fitting, fitting_modes, layers_per_rank, modes
from planner.search.orders import allowed_orders, ideal, with_orders
from planner.search.pricing import Priced, Pricing, legal, steps, timed
from planner.search.rank import leaders, merge, ordered
from planner.search.space import Space

SLACK = 1.05
"""Kept beside what may win: what is this close to it, for the list of the next best."""
DEGREE_RULES = ("world", "convolution", "tensor parallelism", "heads", "kv heads", "experts")
"""Rules that degrees alone decide, asked before anything is written out."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """What is left of a space, and what happened to the rest."""

    pricing: Pricing
    constraints: Constraints
    counts: Counter[str] = field(default_factory=Counter)
    considered: int = 0
    fitting: int = 0
    bound: float = np.inf
    """Exact step of the best layout so far."""
    kept: list[Priced] = field(default_factory=list)
    unplaced: list[Priced] = field(default_factory=list)
    """What another axis order may bring to the top."""

    def run(self, space: Space) -> Priced | None:
        """Scan a space; what may win, and the leaders of every chunk, with all axis orders."""
        for table in self._reject_degrees(space).chunks():
            self._scan_chunk(table)
        for table, source in self._replaced():
            self._keep(timed(table, self.pricing, source.peak_bytes, source.device_bytes))
        if not self.kept:
            return None
        orders = allowed_orders(self.constraints)
        return merge([replace(p, table=replace(p.table, orders=orders)) for p in self.kept])

    def _reject_degrees(self, space: Space) -> Space:
        heads = space.heads()
        broken = np.zeros(len(heads), bool)
        ways = self._ways(np.array([self.pricing.question.model.num_layers]))
        self.considered += int(len(space) * ways[0])
        for rule in (r for r in RULES if r.name in DEGREE_RULES):
            found = rule.broken(heads, self.pricing.question) & ~broken
            if number := int(space.sizes[found].sum() * ways[0]):
                self.counts[rule.name] += number
            broken |= found
        return space.take(~broken)

    def _ways(self, layers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Recompute policies of a layout, every k of "full recompute of k layers" counted."""
        return np.full(len(layers), len(modes(self.pricing, self.constraints)), np.int64)

    def _scan_chunk(self, table: LayoutTable) -> None:
        table = legal(table, self.pricing.question, self.counts)
        for fit in fitting_modes(table, self.pricing, self.constraints, self.counts):
            if len(fit.table):
                self.fitting += len(fit.table)
                self._price(fit)

    def _price(self, fit: Fitting) -> None:
        priced = timed(fit.table, self.pricing, fit.peak_bytes, fit.device_bytes)
        self._keep(priced)
        compute = sum(priced.parts[name] for name in ("forward", "backward", "recompute"))
        near = priced.take(compute <= self.bound)
        if len(near):
            found = steps(ideal(near.table), self.pricing)
            least = found.step_seconds - found.parts["bubble"]
            near = near.take(least <= self.bound)
            self.unplaced.append(replace(near, least_seconds=least[least <= self.bound]))

    def _keep(self, priced: Priced) -> None:
        """Keep the leaders and all that may beat the bound, after lowering it."""
        best = priced.take(ordered(priced)[:1])
        if best.step_seconds[0] < SLACK * self.bound:
            self.bound = min(self.bound, float(played(best, self.pricing).step_seconds[0]))
        close = priced.least_seconds <= self.bound
        self.kept.append(leaders(priced, also=np.flatnonzero(close)))

    def _replaced(self) -> Iterator[tuple[LayoutTable, Priced]]:
        """Every other axis order of the layouts that one may bring to the top."""
        orders = allowed_orders(self.constraints)
        for near in self.unplaced:
            near = near.take(near.least_seconds <= self.bound)
            if not len(near) or len(orders) < 2:
                continue
            table, owner = with_orders(near.table, self.pricing.question.cluster, orders)
            self.considered += len(table)
            if len(table):
                yield table, near.take(owner)


def finalists(kept: Priced, pricing: Pricing, most: int) -> Priced:
    """The layouts that may be the best, and the most promising others, all played.

    Played in the order of their least steps until no other can beat the best, and at least
    ``most`` of the best by the closed form.
    """
    sharper = sharpened(kept, pricing)
    order = np.argsort(sharper.least_seconds, kind="stable")
    promising = ordered(sharper)[:most]
    done = [played(sharper.take(promising), pricing)]
    best = float(done[0].step_seconds.min())
    rest = order[~np.isin(order, promising)]
    for start in range(0, len(rest), most):
        batch = rest[start : start + most]
        batch = batch[sharper.least_seconds[batch] < best]
        if not len(batch):
            break
        done.append(played(sharper.take(batch), pricing))
        best = min(best, float(done[-1].step_seconds.min()))
    return merge(done)


def sharpened(kept: Priced, pricing: Pricing) -> Priced:
    """The same layouts with the least step of their schedules."""
    return with_least(kept, steps(kept.table, pricing), pricing)


__all__ = ["Scan", "finalists", "layers_per_rank", "sharpened"]
