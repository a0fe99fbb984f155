"""Which pipeline ranks can be the heaviest, and what each of them holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import WHOLE, LayoutTable, Split
from planner.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one candidate rank of every layout holds; arrays over layouts."""

    rank: NDArray[np.int64]
    """Pipeline rank."""
    layers: NDArray[np.int64]
    """Layers by kind (rows), all chunks of the rank together."""
    has_embedding: NDArray[np.bool_]
    has_head: NDArray[np.bool_]
    behind: NDArray[np.int64]
    """``behind[i, j]``: layers of kind j behind the rank's last one of kind i, which backward
    has freed when it gets there."""


def rank_layers(split: Split, model: Model) -> NDArray[np.int64]:
    """Layers of each kind that each pipeline rank holds, shape (ranks, kinds)."""
    stages = split.kind_counts(model)
    ranks = np.zeros((split.pp, stages.shape[1]), np.int64)
    np.add.at(ranks, split.rank_of_stage(), stages)
    return ranks


def holdings(model: Model, table: LayoutTable, *, every_rank: bool = False) -> Iterator[Holding]:
    """Candidates for the heaviest rank of every layout, one per turn.

    In every schedule here a later rank holds no more microbatches than an earlier one, so of
    ranks with equal layers only the first can be the heaviest, besides both ends. A split
    with fewer candidates than another repeats its first.
    """
    plans = [_candidates(split, model, every_rank=every_rank) for split in table.splits]
    for turn in range(max(len(plan[0]) for plan in plans)):
        chosen = [turn if turn < len(plan[0]) else 0 for plan in plans]
        columns = [
            np.array([plan[part][i] for plan, i in zip(plans, chosen, strict=True)])
            for part in range(5)
        ]
        rank, layers, embedding, head, behind = (column[table.split] for column in columns)
        yield Holding(
            rank=rank,
            layers=layers.T,
            has_embedding=embedding,
            has_head=head,
            behind=np.moveaxis(behind, 0, -1),
        )


def _candidates(split: Split, model: Model, *, every_rank: bool) -> tuple[NDArray[Any], ...]:
    layers = rank_layers(split, model)
    owners = split.rank_of_stage()
    first, last = int(owners[0]), int(owners[-1])
    if every_rank:
        ranks = list(range(split.pp))
    else:
        _, firsts = np.unique(layers, axis=0, return_index=True)
        inner = {int(r) for r in firsts if 0 < r < split.pp - 1}
        inner |= {1} if split.pp > 2 else set()
        ranks = list(dict.fromkeys([first, last, *sorted(inner)]))
    chosen = np.array(ranks)
    behind = np.stack([_behind(split, model, rank) for rank in ranks])
    return chosen, layers[chosen], chosen == first, chosen == last, behind


def _behind(split: Split, model: Model, rank: int) -> NDArray[np.int64]:
    """Layers of each kind behind the last one of each kind, in the order of one rank."""
    kinds = model.layer_kind_indices()
    sizes = np.array(split.layers if split.layers != WHOLE else (len(kinds),))
    stage_of_layer = np.repeat(np.arange(len(sizes)), sizes)
    own = kinds[split.rank_of_stage()[stage_of_layer] == rank]
    count = len(model.layer_kinds)
    behind = np.zeros((count, count), np.int64)
    for kind in set(own.tolist()):
        tail = own[np.flatnonzero(own == kind)[-1] + 1 :]
        behind[kind] = np.bincount(tail, minlength=count)
    return behind
