"""Spans against counting ranks one by one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalogue import load_cluster
from planner.cluster import Cluster, Tier, span
from planner.layout import DEFAULT_AXIS_ORDER, Layout
from planner.placement import GROUPS, group_axes, place

POWERS = st.sampled_from([1, 2, 4, 8])


def nest(*sizes: int) -> Cluster:
    device = load_cluster("h100-8x400g").device
    tiers = [
        Tier(
            name=f"tier {size}", size=size, link="nvlink", bytes_per_second=1e9, latency_seconds=0
        )
        for size in (*sizes, 0)
    ]
    return Cluster(name="nest", device=device, tiers=tuple(tiers))


@st.composite
def layouts(draw):
    tp, cp, dp, pp = (draw(POWERS) for _ in range(4))
    etp = draw(st.sampled_from([d for d in (1, 2, 4, 8) if tp % d == 0]))
    ep = draw(st.sampled_from([d for d in (1, 2, 4, 8, 16) if (tp * cp * dp) % (d * etp) == 0]))
    shard = draw(st.sampled_from([d for d in (1, 2, 4, 8) if (dp * cp) % d == 0]))
    return Layout(
        tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp,
        zero_stage=1, zero_group=shard,
        axis_order=tuple(draw(st.permutations(DEFAULT_AXIS_ORDER))),
    )  # fmt: skip


def coordinates(layout: Layout, rank: int) -> dict[str, int]:
    degrees = {axis: getattr(layout, axis) for axis in DEFAULT_AXIS_ORDER}
    found = {}
    for axis in layout.axis_order:
        rank, found[axis] = divmod(rank, degrees[axis])
    return found


def counted(layout: Layout, rank: int, axes: tuple[str, ...]) -> int:
    """Position of a rank among the ranks of some axes, innermost axis first."""
    where, number, inner = coordinates(layout, rank), 0, 1
    for axis in layout.axis_order:
        if axis in axes:
            number += where[axis] * inner
            inner *= getattr(layout, axis)
    return number


def group_of(layout: Layout, rank: int, group: str) -> tuple:
    """A name for the group that a rank belongs to, from its coordinates alone."""
    where = coordinates(layout, rank)
    if group in DEFAULT_AXIS_ORDER:
        return tuple(v for axis, v in where.items() if axis != group)
    replicas = ("cp", "dp")
    if group in ("gradient", "shard", "replicate"):
        others = (where["tp"], where["pp"])
        number, low, high = counted(layout, rank, replicas), 1, layout.dp * layout.cp
    else:
        others = (where["pp"],)
        number = counted(layout, rank, ("tp", "cp", "dp"))
        low, high = 1, layout.tp * layout.cp * layout.dp
    experts = layout.etp * layout.ep
    low, high = {
        "gradient": (low, high),
        "shard": (1, layout.shard_group),
        "replicate": (layout.shard_group, high),
        "etp": (1, layout.etp),
        "ep": (layout.etp, experts),
        "expert_gradient": (experts, high),
    }[group]
    return (*others, number % low, number // high)


@given(layouts(), st.sampled_from([(2, 8), (4, 16), (8,), (2, 4, 32)]))
def test_members_and_sharers_are_those_counted_rank_by_rank(layout, sizes):
    spans = place(layout, nest(*sizes))
    for group in GROUPS:
        lies = spans[group]
        names = [group_of(layout, rank, group) for rank in range(layout.world_size)]
        assert set(Counter(names).values()) == {int(lies.degree)}
        for index, size in enumerate(sizes):
            domain = Counter(names[:size])
            assert set(domain.values()) == {int(lies.members[index])}, (group, size)
            assert len(domain) == int(lies.sharers[index]), (group, size)
        assert int(lies.members[-1]) == int(lies.degree)


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([4, 6, 8]))
def test_groups_that_do_not_divide_a_node_are_not_taken_for_inside(degree, stride, size):
    world = degree * stride * size
    lies = span(nest(size), degree=degree, stride=stride, world_size=world)
    names = [(rank // (degree * stride), rank % stride) for rank in range(world)]
    nodes_of = {}
    for rank, name in enumerate(names):
        nodes_of.setdefault(name, set()).add(rank // size)
    crosses = any(len(nodes) > 1 for nodes in nodes_of.values())
    assert bool(lies.outermost_tier > 0) == crosses


def test_a_table_of_layouts_is_placed_at_once():
    from planner.layout_table import tabulate

    layouts = [
        Layout(tp=2, dp=8),
        Layout(tp=8, dp=2),
        Layout(cp=4, dp=4, axis_order=("dp", "cp", "tp", "pp")),
    ]
    cluster = load_cluster("h100-8x400g")
    together = place(tabulate(layouts), cluster)
    for index, layout in enumerate(layouts):
        alone = place(layout, cluster)
        for group in GROUPS:
            assert together[group].degree[index] == alone[group].degree
            assert together[group].members[0][index] == alone[group].members[0]
            assert together[group].sharers[0][index] == alone[group].sharers[0]


@pytest.mark.parametrize(
    ("order", "tier"), [(("tp", "cp", "dp", "pp"), 0), (("dp", "cp", "pp", "tp"), 1)]
)
def test_tensor_ranks_leave_the_node_only_if_they_are_put_outside(order, tier):
    layout = Layout(tp=8, dp=4, axis_order=order)
    assert int(place(layout, load_cluster("h100-8x400g"))["tp"].outermost_tier) == tier


def test_the_shards_of_a_node_stay_in_it():
    layout = Layout(dp=32, zero_stage=3, zero_group=8)
    spans = place(layout, load_cluster("h100-8x400g"))
    assert int(spans["shard"].outermost_tier) == 0
    assert int(spans["replicate"].degree) == 4
    assert int(spans["replicate"].members[0]) == 1
    assert int(spans["replicate"].sharers[0]) == 8


def test_a_machine_of_known_size_is_taken_to_work_as_a_whole():
    box = load_cluster("rtx4090:8")
    assert int(span(box, degree=2, stride=1).sharers[0]) == 4
    assert int(span(box, degree=2, stride=1, world_size=2).sharers[0]) == 1
    assert int(span(nest(8), degree=2, stride=1).sharers[0]) == 1


def test_axes_of_a_group_multiply_to_its_size():
    layout = Layout(tp=4, cp=2, dp=6, ep=8, etp=2)
    for group, size in {"gradient": 12, "ep": 8, "etp": 2, "expert_gradient": 3}.items():
        assert np.prod([degree for degree, _ in group_axes(layout, group)]) == size
