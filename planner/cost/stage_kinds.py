"""What is alike in a split, so that a stage is priced once per kind and not once per place."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.layout_table import Split
from planner.model import Model

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKinds:
    """The unlike stages and the unlike ranks of a split, in order of first appearance."""

    blocks: Integers
    """(kinds, blocks): embedding, layers by kind, head."""
    of_stage: Integers
    ranks: Integers
    """(unlike ranks, kinds): stages of each kind that a rank holds."""
    same_ranks: Integers
    """How many ranks are like each of them."""


@lru_cache(maxsize=4096)
def stage_kinds(split: Split, model: Model) -> StageKinds:
    """Long pipelines have few unlike stages: both ends, and one or two kinds between."""
    layers = split.kind_counts(model)
    blocks = np.zeros((len(layers), layers.shape[1] + 2), np.int64)
    blocks[:, 1:-1] = layers
    blocks[0, 0] = blocks[-1, -1] = 1
    kinds, of_stage, _ = _in_order(blocks)
    members = np.zeros((split.pp, len(kinds)), np.int64)
    np.add.at(members, (split.rank_of_stage(), of_stage), 1)
    ranks, _, same = _in_order(members)
    return StageKinds(blocks=kinds, of_stage=of_stage, ranks=ranks, same_ranks=same)


def _in_order(rows: Integers) -> tuple[Integers, Integers, Integers]:
    """Distinct rows by first appearance, each row's distinct one, and how often each comes."""
    _, first, inverse, counts = np.unique(
        rows, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return rows[first[order]], number[np.ravel(inverse)], counts[order]
