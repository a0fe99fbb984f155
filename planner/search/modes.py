"""What is recomputed: nothing, attention scores, everything, or just as much as must be.

More recomputation is slower and never larger, and the bytes of "full recompute of k layers"
are a maximum of straight lines in k. So of all k one is enough: the least that fits, found
between k = 1 and all layers by the chord, which lies above a maximum of straight lines.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory import memory
from planner.layout_table import RECOMPUTES, LayoutTable
from planner.rules.pipeline import cannot_recompute
from planner.search.constraints import Constraints
from planner.search.pricing import Pricing

NONE, SELECTIVE, FULL = (RECOMPUTES.index(name) for name in ("none", "selective", "full"))
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Layouts that fit, with their live and their device bytes."""

    table: LayoutTable
    peak_bytes: Floats
    device_bytes: Floats


def modes(pricing: Pricing, constraints: Constraints) -> tuple[int, ...]:
    """Recompute policies that the framework and the user leave open."""
    question = pricing.question
    open_modes = [NONE, FULL]
    # Fused attention keeps no scores that could be made again.
    if question.layers and not question.framework.fused_attention:
        open_modes.insert(1, SELECTIVE)
    asked = constraints.wanted("recompute")
    if asked:
        open_modes = [RECOMPUTES.index(str(name)) for name in asked]
    keep = constraints.admits("recompute", np.array(open_modes))
    return tuple(code for code, kept in zip(open_modes, keep, strict=True) if kept)


def recomputes_some(pricing: Pricing, constraints: Constraints) -> bool:
    """Whether full recompute of only some layers is open."""
    return (
        FULL in modes(pricing, constraints)
        and pricing.question.framework.recomputes_some_layers
        and not constraints.wanted("recompute_layers")
    )


def layers_per_rank(table: LayoutTable, num_layers: int) -> NDArray[np.int64]:
    """Most layers that any pipeline rank of each layout holds."""
    most = []
    for split in table.splits:
        ranks = np.zeros(split.pp, np.int64)
        layers = (num_layers,) if split.pp * split.vpp == 1 else split.layers
        np.add.at(ranks, split.rank_of_stage(), layers)
        most.append(int(ranks.max()))
    return np.array(most, np.int64)[table.split]


def fitting_modes(
    table: LayoutTable, pricing: Pricing, constraints: Constraints, counts: Counter[str]
) -> Iterator[Fitting]:
    """Every way to recompute that fits and may be of use, for layouts that recompute nothing.

    What does not fit is counted under ``memory``, each k by itself.
    """
    open_modes = modes(pricing, constraints)
    fits: dict[int, NDArray[np.bool_]] = {}
    everything: Floats = np.zeros(0)
    for mode in open_modes:
        asked = constraints.wanted("recompute_layers") if mode == FULL else ()
        layers = int(asked[0]) if asked else 0
        found = _priced(with_mode(table, mode, layers), pricing)
        may = np.ones(len(table), bool)
        if mode != NONE:
            may = ~cannot_recompute(table, pricing.question)
            counts["split backward"] += int((~may).sum())
        fits[mode] = may & (found.device_bytes <= pricing.limit_bytes)
        counts["memory"] += int((may & ~fits[mode]).sum())
        yield _take(found, fits[mode])
        everything = found.device_bytes
    if recomputes_some(pricing, constraints):
        plain = fits.get(NONE, np.zeros(len(table), bool))
        plain = plain | cannot_recompute(table, pricing.question)
        yield _partial(table, pricing, plain=plain, everything=everything, counts=counts)


def with_mode(table: LayoutTable, mode: int, layers: NDArray[np.int64] | int) -> LayoutTable:
    """The same layouts under another policy."""
    return replace(
        table,
        recompute=np.full(len(table), mode, np.int64),
        recompute_layers=np.broadcast_to(np.asarray(layers, np.int64), len(table)),
    )


def _partial(
    table: LayoutTable, pricing: Pricing, *, plain: NDArray[np.bool_], everything: Floats,
    counts: Counter[str],
) -> Fitting:  # fmt: skip
    """The least k that fits, where nothing is too little and everything is enough."""
    most = layers_per_rank(table, pricing.question.model.num_layers)
    enough = everything <= pricing.limit_bytes
    counts["memory"] += int((np.maximum(most - 1, 0) * ~enough).sum())
    mixed = enough & ~plain & (most > 1)
    rows, most, least = table.take(mixed), most[mixed], everything[mixed]
    one = _priced(with_mode(rows, FULL, 1), pricing).device_bytes
    slope = np.maximum((one - least) / np.maximum(most - 1, 1), 1e-9)
    spared = np.minimum(np.floor((pricing.limit_bytes - least) / slope), most - 1)
    layers = most - spared.astype(np.int64)
    counts["memory"] += int((layers - 1).sum())
    found = _priced(with_mode(rows, FULL, np.where(layers < most, layers, 0)), pricing)
    fits = (found.device_bytes <= pricing.limit_bytes) & (layers < most)
    return _take(found, fits)


def _priced(table: LayoutTable, pricing: Pricing) -> Fitting:
    question = pricing.question
    found = memory(
        question.model, question.job, question.framework, table, device=question.cluster.device
    )
    return Fitting(table=table, peak_bytes=found.allocated, device_bytes=found.device)


def _take(found: Fitting, fits: NDArray[np.bool_]) -> Fitting:
    return Fitting(
        table=found.table.take(fits),
        peak_bytes=found.peak_bytes[fits],
        device_bytes=found.device_bytes[fits],
    )
