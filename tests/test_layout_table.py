import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.job import Job
from planner.layout import Layout
from planner.layout_table import Split, tabulate
from tests.models import llama

LAYOUTS = st.builds(
    Layout,
    dp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 8]),
    cp=st.sampled_from([1, 2]),
    microbatch=st.sampled_from([1, 2, 4]),
    zero_stage=st.sampled_from([0, 1, 3]),
    recompute=st.sampled_from(["none", "full"]),
    fused_loss=st.booleans(),
    axis_order=st.permutations(["tp", "cp", "dp", "pp"]).map(tuple),
)


@given(st.lists(LAYOUTS, min_size=1, max_size=12))
def test_rows_read_back_as_the_layouts_that_went_in(layouts):
    table = tabulate(layouts)
    assert [table.layout(i) for i in range(len(table))] == layouts


@given(st.lists(LAYOUTS, min_size=1, max_size=12))
def test_strides_agree_with_the_single_layout(layouts):
    table = tabulate(layouts)
    for axis in ("tp", "cp", "dp", "pp"):
        assert table.stride(axis).tolist() == [layout.stride(axis) for layout in layouts]


@given(st.lists(LAYOUTS, min_size=1, max_size=12))
def test_each_layout_finds_its_own_shard(layouts):
    shard, inverse = tabulate(layouts).shards(Job(global_batch=8, sequence_length=128))
    assert len(shard.tp) <= len(layouts)
    for layout, index in zip(layouts, inverse, strict=True):
        assert (shard.tp[index], shard.cp[index], shard.microbatch[index]) == (
            layout.tp,
            layout.cp,
            layout.microbatch,
        )


def test_a_split_must_hold_every_layer():
    with pytest.raises(ValueError, match="sums to 30, but llama-32x4096 has 32 layers"):
        Split(pp=2, vpp=1, layers=(15, 15)).kind_counts(llama())


def test_a_pipeline_needs_a_split():
    with pytest.raises(ValueError, match="pp 4 has no stage_layers"):
        tabulate([Layout(pp=4)])


def test_unpipelined_stage_holds_all_layers():
    table = tabulate([Layout(dp=2)])
    assert np.array_equal(table.splits[0].kind_counts(llama()), [[32]])
