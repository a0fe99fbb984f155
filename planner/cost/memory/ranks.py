"""Which pipeline ranks can be the heaviest, and what each of them holds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import LayoutTable, Split
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
    for turn in range(max(len(ranks) for ranks, _, _, _ in plans)):
        chosen = [turn if turn < len(ranks) else 0 for ranks, _, _, _ in plans]
        columns = [
            np.array([plan[part][i] for plan, i in zip(plans, chosen, strict=True)])
            for part in range(4)
        ]
        rank, layers, embedding, head = (column[table.split] for column in columns)
        yield Holding(rank=rank, layers=layers.T, has_embedding=embedding, has_head=head)


def _candidates(
    split: Split, model: Model, *, every_rank: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
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
    return chosen, layers[chosen], chosen == first, chosen == last
