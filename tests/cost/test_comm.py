"""Properties of collective times, and what published measurements say about their order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalogue import list_presets, load_cluster
from planner.cluster import span
from planner.cost.comm import (
    KINDS,
    CommunicationConstants,
    LinkConstants,
    algorithm_seconds,
    collective_seconds,
    default_communication,
    read_communication,
    send_recv_seconds,
    supports_switch_reduction,
)

CONSTANTS = default_communication()
CLUSTERS = [
    "h100-8x400g",
    "a100-80g-8x200g",
    "gb200-nvl72",
    "p5.48xlarge",
    "mi300x-8x400g",
    "nc96ads-a100-v4",
    "v100-32g-1x100g-ethernet",
    "rtx4090-1gpu-25g",
    "tpu-v5p",
]


def seconds(kind, buffer_bytes, *, cluster, degree, stride=1, world_size=0, constants=CONSTANTS):
    lies = span(cluster, degree=degree, stride=stride, world_size=world_size)
    return collective_seconds(kind, buffer_bytes, span=lies, cluster=cluster, constants=constants)


def bus_rate(cluster, degree, stride=1, buffer_bytes=4e9):
    """All-reduce as nccl-tests states it, in bytes per second."""
    time = seconds("all_reduce", buffer_bytes, cluster=cluster, degree=degree, stride=stride)
    return 2 * (degree - 1) / degree * buffer_bytes / float(time)


@given(
    st.sampled_from(KINDS),
    st.sampled_from(CLUSTERS),
    st.sampled_from([2, 3, 4, 6, 8, 16, 64, 512]),
    st.sampled_from([1, 2, 8, 16]),
    st.lists(st.floats(1, 1e11), min_size=2, max_size=20),
)
def test_time_never_falls_with_bytes(kind, name, degree, stride, sizes):
    cluster = load_cluster(name)
    times = seconds(kind, np.sort(sizes), cluster=cluster, degree=degree, stride=stride)
    assert np.all(times > 0)
    assert np.all(np.isfinite(times))
    assert np.all(np.diff(times) >= -1e-12 * times[1:])


@given(st.sampled_from(KINDS), st.sampled_from(CLUSTERS), st.floats(1e3, 1e10))
def test_time_does_not_fall_with_nodes(kind, name, buffer_bytes):
    cluster = load_cluster(name)
    degree = np.minimum(cluster.devices_per_node, 8) * np.array([2, 4, 8, 16, 32, 64])
    times = seconds(kind, buffer_bytes, cluster=cluster, degree=degree)
    assert np.all(np.diff(times) >= -1e-12)


@given(st.sampled_from(CLUSTERS), st.floats(1e3, 1e10), st.sampled_from([1, 2, 8]))
def test_an_all_reduce_costs_no_less_than_a_reduce_scatter(name, buffer_bytes, stride):
    cluster = load_cluster(name)
    plain = replace(CONSTANTS, kind_rate_fractions={}, own_block_cost=0.0)
    degree = np.array([2, 4, 8, 16, 64])
    whole, half = (
        seconds(k, buffer_bytes, cluster=cluster, degree=degree, stride=stride, constants=plain)
        for k in ("all_reduce", "reduce_scatter")
    )
    ring = algorithm_seconds(
        "all_reduce", buffer_bytes, span=span(cluster, degree=degree, stride=stride),
        cluster=cluster, constants=plain,
    )["ring"]  # fmt: skip
    assert np.all(ring >= half)
    assert np.all(whole <= ring)


@pytest.mark.parametrize("name", list_presets("clusters"))
def test_every_catalogued_cluster_is_priced(name):
    cluster = load_cluster(name)
    for kind in KINDS:
        times = seconds(kind, 1e8, cluster=cluster, degree=[2, 8, 64], stride=[[1], [8]])
        assert np.all(np.isfinite(times))
        assert np.all(times > 0)


def test_one_rank_and_no_bytes_cost_nothing():
    cluster = load_cluster("h100-8x400g")
    assert not np.any(seconds("all_reduce", 1e9, cluster=cluster, degree=[1, 1]))
    assert not np.any(seconds("all_to_all", 0.0, cluster=cluster, degree=[8, 64]))
    assert not np.any(send_recv_seconds(0.0, stride=8, cluster=cluster, constants=CONSTANTS))


def test_scalars_are_the_case_of_no_axes():
    cluster = load_cluster("h100-8x400g")
    together = seconds("all_reduce", [[1e6], [1e9]], cluster=cluster, degree=[8, 16], stride=1)
    assert together.shape == (2, 2)
    for row, size in enumerate((1e6, 1e9)):
        for column, degree in enumerate((8, 16)):
            alone = seconds("all_reduce", size, cluster=cluster, degree=degree)
            assert alone == pytest.approx(together[row, column], rel=1e-12)


def test_an_ideal_ring_is_the_textbook_formula():
    ideal = CommunicationConstants(
        other=LinkConstants(rate_fraction=1.0, hop_factor=1.0, fill_factor=0.0),
        base_seconds={"ring": 0.0},
        own_block_cost=0.0,
        degradation_exponent=0.0,
    )
    cluster = load_cluster("a100-80g-8x200g")
    lies = span(cluster, degree=16, stride=1)
    times = algorithm_seconds("all_reduce", 1e9, span=lies, cluster=cluster, constants=ideal)
    # 15 hops a pass: 14 inside nodes of 8 and 1 across; 200 GB/s between the two nodes.
    hops = 2 * (14 * 3.4e-6 + 14e-6)
    assert float(times["ring"]) == pytest.approx(hops + 2 * 15 / 16 * 1e9 / 200e9)


def test_strided_groups_share_the_cards_of_their_node():
    # Galvatron's profile of two nodes of A100 class: 150 GB/s inside, 8.1 strided over nodes.
    cluster = load_cluster("a800-4x200g")
    inside, strided = bus_rate(cluster, 2), bus_rate(cluster, 2, stride=8)
    assert 8 < inside / strided < 25
    # One pair alone is bound by its card, not by the eighth of the node's four.
    alone = span(cluster, degree=2, stride=8)
    alone = replace(alone, sharers=tuple(np.ones_like(s) for s in alone.sharers))
    time = collective_seconds("all_reduce", 4e9, span=alone, cluster=cluster, constants=CONSTANTS)
    assert 4e9 / float(time) == pytest.approx(25e9, rel=0.15)


def test_leaving_an_nvlink_pair_costs_an_order_of_magnitude():
    # nccl-tests#178: 208 GB/s on 2 A100 PCIe joined by a bridge, 20 on 3.
    cluster = load_cluster("nc96ads-a100-v4")
    assert 6 < bus_rate(cluster, 2) / bus_rate(cluster, 4) < 15


def test_the_switch_reduces_from_five_or_six_ranks_on():
    # ml-engineering's sweep: ring up to 4 of 8 H200, NVLS from 5; 6 on B200.
    for name in ("h200-8x400g", "b200-8x400g"):
        cluster = load_cluster(name)
        quickest = []
        for degree in (2, 4, 6, 7, 8):
            times = algorithm_seconds(
                "all_reduce", 4e9, span=span(cluster, degree=degree, stride=1),
                cluster=cluster, constants=CONSTANTS,
            )  # fmt: skip
            quickest.append(min(times, key=lambda a: float(times[a])))
        assert quickest[0] == "ring", name
        assert quickest[3:] == ["nvls"] * 2, name


def test_switch_reduction_needs_hopper_and_a_switch():
    assert supports_switch_reduction(load_cluster("h100-8x400g"))
    assert not supports_switch_reduction(load_cluster("a100-80g-8x200g"))
    assert not supports_switch_reduction(load_cluster("rtx4090-8gpu"))
    assert not supports_switch_reduction(load_cluster("mi300x-8x400g"))


def test_gloo_knows_only_the_ring():
    cluster = load_cluster("laptop")
    lies = span(cluster, degree=4, stride=1)
    times = algorithm_seconds("all_reduce", 1e6, span=lies, cluster=cluster, constants=CONSTANTS)
    assert list(times) == ["ring"]


def test_ranks_that_share_cores_wait_for_each_other():
    laptop = load_cluster("laptop")
    box = replace(laptop.tiers[0], size=4, link="gloo", bytes_per_second=1e9, latency_seconds=1e-4)
    cluster = replace(laptop, tiers=(box,))
    for size in (1.0, 1e8):
        alone, crowded = (
            float(seconds("all_gather", size, cluster=cluster, degree=2, world_size=world))
            for world in (2, 4)
        )
        assert crowded > 1.5 * alone


def test_a_pipeline_pays_for_the_widest_boundary_it_crosses():
    cluster = load_cluster("h100-8x400g")

    def send(stride, degree):
        times = send_recv_seconds(
            1e8, stride=stride, degree=degree, cluster=cluster, constants=CONSTANTS
        )
        return float(times)

    assert send(1, 8) < send(1, 16)
    assert send(1, 16) <= send(8, 2)
    assert send(4, 2) < send(4, 4)


def test_a_shared_fabric_is_an_explicit_input():
    # The Ultra-Scale Playbook's cluster: all-reduce from 362 to 33 GB/s between 2 and 64 nodes.
    clean = load_cluster("p5.48xlarge")
    shared = replace(clean, fabric_degradation_exponent=0.6)
    assert bus_rate(clean, 16, buffer_bytes=2**28) == pytest.approx(362e9, rel=0.2)
    assert bus_rate(shared, 512, buffer_bytes=2**28) == pytest.approx(33e9, rel=0.2)
    assert bus_rate(clean, 512, buffer_bytes=2**28) > 4 * 33e9
    # Inside a node there is no fabric to share.
    assert bus_rate(shared, 8) == bus_rate(clean, 8)


def test_constants_survive_their_file():
    assert read_communication(CONSTANTS.to_dict()) == CONSTANTS


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"links": {"nvlnk": {}}}, "nvlnk"),
        ({"base_seconds": {"rings": 1e-6}}, "rings"),
        ({"kind_rate_fractions": {"gather": 1.0}}, "gather"),
        ({"half": 1}, "half"),
        ({"links": {"nvlink": {"rate_fraction": 0}}}, "rate_fraction"),
        ({"links": {"nvlink": {"hop_factor": -1}}}, "hop_factor"),
    ],
)
def test_wrong_constants_are_named(table, word):
    with pytest.raises(ValueError, match=word):
        read_communication(table)


def test_an_unknown_collective_is_named():
    with pytest.raises(ValueError, match="gather_all"):
        seconds("gather_all", 1.0, cluster=load_cluster("h100-8x400g"), degree=2)
