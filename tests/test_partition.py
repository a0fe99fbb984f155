"""Stage splits: optimal against brute force, and as the field reports them."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.partition import chunked_split, optimal_split
from planner.schedules import stage_ranks
from planner.split_rules import (
    even_split,
    megatron_split,
    nanotron_split,
    torchtitan_split,
)


def all_splits(layers, stages):
    for cuts in combinations(range(1, layers), stages - 1):
        ends = (0, *cuts, layers)
        yield tuple(b - a for a, b in pairwise(ends))


def stage_sums(values, counts):
    ends = np.cumsum((0, *counts))
    return np.array([sum(values[a:b]) for a, b in pairwise(ends)])


def test_bloom_176b_counts_both_embeddings():
    # BigScience tr11-176B: layer 2.47B parameters, tied embedding of 3.60B on both ends
    split = optimal_split([2.47] * 70, stages=12, first_cost=3.60, last_cost=3.60)
    assert split == (5, *(6,) * 10, 5)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [(8, (16, 16, 16, 16, 16, 16, 15, 15)), (16, (8,) * 14 + (7, 7))],
)
def test_126_layers_are_split_and_not_padded(stages, expected):
    assert optimal_split([1.0] * 126, stages=stages) == expected


@pytest.mark.parametrize(
    ("stages", "expected"), [(8, (15, *(16,) * 6, 15)), (16, (7, *(8,) * 14, 7))]
)
def test_126_layers_credit_embedding_and_head(stages, expected):
    assert optimal_split([1.0] * 126, stages=stages, first_cost=0.5, last_cost=0.9) == expected
    assert torchtitan_split(126, stages=stages) == expected


def test_glm_46_layers_are_short_at_both_ends():
    # ms-swift issue 5737 and Megatron-Bridge pull request 5551
    assert optimal_split([1.0] * 46, stages=4, first_cost=0.3, last_cost=0.8) == (11, 12, 12, 11)
    assert optimal_split([1.0] * 92, stages=8, first_cost=1.5, last_cost=1.5) == (
        10, 12, 12, 12, 12, 12, 12, 10,
    )  # fmt: skip


def test_30_layers_on_4_stages_keep_every_layer():
    # Megatron-LM issue 1304: 30 // 4 = 7 would build 28 layers
    assert optimal_split([1.0] * 30, stages=4) == (8, 8, 7, 7)
    assert even_split(30, stages=4) == (8, 8, 7, 7)
    with pytest.raises(ValueError, match=r"30 slots to be a multiple of pp \* vpp = 4.*28 and 32"):
        megatron_split(30, stages=4)


def test_megatron_refuses_80_layers_on_16_times_2_stages():
    # Megatron-LM issue 468: 2.5 layers per stage
    with pytest.raises(ValueError, match="multiple of"):
        megatron_split(80, stages=32)


def test_llama_70b_relieves_the_ends_of_40_chunks():
    # Megatron-Bridge pull request 5391: TP4 PP8 VPP5, embedding + 2 layers ... 1 layer + loss.
    # Head and loss of a 128k vocabulary weigh about 1.2 layers, the embedding little.
    ranks = stage_ranks("interleaved", pp=8, vpp=5)
    split = chunked_split(80, ranks=ranks, first_cost=0.1, last_cost=1.2)
    assert sum(split) == 80
    assert (split[0], split[-1]) == (2, 1)


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.integers(1, 9), min_size=2, max_size=9),
    stages=st.integers(1, 4),
    ends=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    limit=st.integers(3, 40),
)
def test_optimal_split_equals_brute_force(costs, stages, ends, limit):
    stages = min(stages, len(costs))
    sizes = [float(c % 4 + 1) for c in costs]
    room = np.array([limit + 3 * s for s in range(stages)], float)
    extra = np.zeros(stages)
    extra[0] += ends[0]
    extra[-1] += ends[1]
    key = []
    for counts in all_splits(len(costs), stages):
        times = stage_sums(costs, counts) + extra
        if (stage_sums(sizes, counts) <= room).all():
            key.append((times.max(), (times**2).sum()))
    found = optimal_split(
        costs, stages=stages, first_cost=ends[0], last_cost=ends[1],
        layer_bytes=sizes, limit_bytes=room,
    )  # fmt: skip
    if not key:
        assert found is None
        return
    times = stage_sums(costs, found) + extra
    assert (times.max(), (times**2).sum()) == min(key)
    assert (stage_sums(sizes, found) <= room).all()


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 40),
    pp=st.integers(1, 5),
    vpp=st.integers(1, 3),
    ends=st.tuples(st.floats(0, 3), st.floats(0, 3)),
)
def test_chunked_split_is_optimal_for_equal_layers(layers, pp, vpp, ends):
    if layers < pp * vpp:
        with pytest.raises(ValueError, match="at least as many layers"):
            chunked_split(layers, ranks=stage_ranks("interleaved", pp=pp, vpp=vpp))
        return
    ranks = stage_ranks("interleaved", pp=pp, vpp=vpp)
    counts = chunked_split(layers, ranks=ranks, first_cost=ends[0], last_cost=ends[1])
    assert sum(counts) == layers
    assert min(counts) >= 1
    totals = np.bincount(ranks, counts, pp)
    totals[0] += ends[0]
    totals[-1] += ends[1]
    # no layer can move away from the slowest rank without making another at least as slow
    slowest = int(totals.argmax())
    movable = np.bincount(ranks, counts, pp)[slowest] > vpp
    assert not movable or all(
        totals[r] + 1 >= totals[slowest] - 1e-9 for r in range(pp) if r != slowest
    )
    if vpp == 1:
        best = optimal_split([1.0] * layers, stages=pp, first_cost=ends[0], last_cost=ends[1])
        ideal = np.array(best, float)
        ideal[0] += ends[0]
        ideal[-1] += ends[1]
        assert totals.max() == pytest.approx(ideal.max())


def test_memory_of_early_stages_moves_layers_back():
    # 1F1B holds 4, 3, 2, 1 microbatches: 40 bytes hold 10, 13, 20 and 40 layers
    held = np.array([4.0, 3.0, 2.0, 1.0])[:, None]
    split = optimal_split([1.0] * 48, stages=4, layer_bytes=held * np.ones(48), limit_bytes=40.0)
    assert split == (10, 13, 13, 12)
    assert (
        optimal_split([1.0] * 100, stages=4, layer_bytes=held * np.ones(100), limit_bytes=40.0)
        is None
    )


def test_unlike_layers_move_the_cuts():
    # DeepSeek-V3's first 3 layers are dense and cheaper than the 58 with experts
    costs = [1.0] * 3 + [2.0] * 58
    split = optimal_split(costs, stages=4)
    assert split is not None
    assert stage_sums(costs, split).max() == 30.0
    assert split[0] == max(split)


def test_nanotron_llama_3_8b_on_8_stages():
    # as printed by nanotron's own rule in a public write-up on its 3D parallelism (commit
    # 67716392): embedding and 5 layers, 4, 4, 5, 4, 4, 4, then 2 layers, norm, head and loss
    layer = 4.0 * 4096 * 4096 + 3 * 14336 * 4096
    split = nanotron_split([layer] * 32, stages=8, head_cost=128256 * 4096.0)
    assert split == (5, 4, 4, 5, 4, 4, 4, 2)


@pytest.mark.parametrize("bad", [0, 5])
def test_more_stages_than_layers_is_one_clear_line(bad):
    with pytest.raises(ValueError, match="at least as many layers, got 4"):
        optimal_split([1.0] * 4, stages=bad)
