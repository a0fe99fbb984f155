import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layout import Layout, format_layout, parse_layout_settings

DEGREES = st.integers(1, 16)


@given(dp=DEGREES, tp=DEGREES, pp=DEGREES, cp=DEGREES)
def test_world_size_is_the_product_of_the_degrees(dp, tp, pp, cp):
    layout = Layout(dp=dp, tp=tp, pp=pp, cp=cp)
    assert layout.world_size == dp * tp * pp * cp
    assert layout.stride("pp") * pp == layout.world_size  # the outermost axis by default


@given(
    dp=DEGREES,
    zero=st.sampled_from([0, 1, 2, 3]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    sequence_parallel=st.booleans(),
    order=st.permutations(["tp", "cp", "dp", "pp"]),
)
def test_written_layouts_read_back_the_same(dp, zero, recompute, sequence_parallel, order):
    layout = Layout(
        dp=dp,
        zero_stage=zero,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        axis_order=tuple(order),
        stage_layers=(3, 4),
    )
    assert Layout(**parse_layout_settings(format_layout(layout))) == layout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpp=4", "no 'tpp'"),
        ("tp=four", "tp must be a whole number, got 'four'"),
        ("zero=5", "zero_stage is 0, 1, 2 or 3, got 5"),
        ("recompute=some", "recompute is one of none, selective, full"),
        ("sp=maybe", "sequence_parallel is on or off"),
    ],
)
def test_wrong_settings_name_the_field_and_the_rule(text, words):
    with pytest.raises(ValueError, match=words):
        parse_layout_settings(text)


@pytest.mark.parametrize("field", ["dp", "tp", "pp", "cp", "microbatch", "microbatches"])
def test_a_degree_of_zero_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        Layout(**{field: 0})


def test_the_shard_group_is_all_replicas_unless_hsdp_says_otherwise():
    assert Layout(dp=8, cp=2, zero_stage=1).shard_group == 16
    assert Layout(dp=8, zero_stage=3, zero_group=4).shard_group == 4
    assert Layout(dp=8).shard_group == 1
