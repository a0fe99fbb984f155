"""The step model: parts sum, tables equal single layouts, closed form equals the timeline."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration import Calibration, StepConstants
from planner.catalogue import load_cluster, load_framework, load_model
from planner.cost.step import estimate, step
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import tabulate
from planner.runs.stages import stage_layers

MODEL = load_model("llama-2-7b")
CLUSTER = load_cluster("a100-80g-8x200g")
FRAMEWORK = load_framework("megatron-core")
JOB = Job(global_batch=128, sequence_length=2048)
CALIBRATION = Calibration()


def make(job: Job = JOB, **settings: object) -> Layout:
    """A layout of the job with an even split."""
    pp, vpp = int(settings.get("pp", 1)), int(settings.get("vpp", 1))
    replicas = int(settings.get("dp", 1)) * int(settings.get("microbatch", 1))
    return Layout(
        **{"stage_layers": stage_layers(MODEL, "even", pp=pp, vpp=vpp), **settings},
        schedule="interleaved" if vpp > 1 else "1f1b",
        microbatches=job.global_batch // replicas,
    )


LAYOUTS = [
    make(dp=8),
    make(dp=8, zero_stage=1),
    make(dp=8, zero_stage=3, microbatch=2),
    make(dp=32, zero_stage=3, zero_group=8),
    make(tp=8, sequence_parallel=True),
    make(tp=2, pp=4, dp=4, zero_stage=1, sequence_parallel=True),
    make(pp=8, dp=2, microbatch=2),
    make(pp=4, vpp=2, dp=4, recompute="full"),
    make(cp=4, tp=2, dp=2, recompute="selective"),
    make(cp=2, dp=4, cp_kind="ulysses"),
    make(dp=8, recompute="full", recompute_layers=10),
]


def steps(layouts, **changes):
    given_ = {"model": MODEL, "job": JOB, "cluster": CLUSTER, "framework": FRAMEWORK,
              "calibration": CALIBRATION} | changes  # fmt: skip
    return step(
        given_["model"], given_["job"], given_["cluster"], given_["framework"],
        tabulate(layouts), given_["calibration"],
    )  # fmt: skip


def test_parts_sum_to_the_step():
    found = steps(LAYOUTS)
    total = np.sum([*found.parts.values()], axis=0)
    np.testing.assert_allclose(total, found.step_seconds)
    assert all((part >= 0).all() for part in found.parts.values())
    assert (found.low_seconds <= found.step_seconds).all()
    assert (found.step_seconds <= found.high_seconds).all()


def test_a_table_equals_its_rows():
    together = steps(LAYOUTS).step_seconds
    alone = [steps([layout]).step_seconds[0] for layout in LAYOUTS]
    np.testing.assert_allclose(together, alone)


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.pp > 1], ids=str)
def test_the_closed_form_agrees_with_the_timeline(layout):
    closed = steps([layout]).step_seconds[0]
    played = estimate(MODEL, JOB, CLUSTER, FRAMEWORK, layout, CALIBRATION)
    assert closed == pytest.approx(played.step_seconds, rel=0.03)
    assert sum(played.parts.values()) == pytest.approx(played.step_seconds)


def test_an_estimate_without_a_pipeline_is_the_closed_form():
    played = estimate(MODEL, JOB, CLUSTER, FRAMEWORK, LAYOUTS[0], CALIBRATION)
    assert played.step_seconds == pytest.approx(float(steps([LAYOUTS[0]]).step_seconds[0]))
    assert len(played.stage_forward_seconds) == 1


def test_work_is_conserved_over_replicas():
    few, many = steps([make(dp=4), make(dp=8)]).parts["forward"]
    assert few == pytest.approx(2 * many)


def test_full_recompute_costs_a_forward():
    found = steps([make(dp=8), make(dp=8, recompute="full")])
    plain, full = found.step_seconds
    layers_share = found.parts["recompute"][1] / found.parts["forward"][1]
    assert 1.2 < full / plain < 1.4
    assert 0.9 < layers_share <= 1.0


def test_some_recomputed_layers_cost_their_share():
    found = steps([make(dp=8, recompute="full"), make(dp=8, recompute="full",
                                                       recompute_layers=8)])  # fmt: skip
    all_layers, some = found.parts["recompute"]
    assert some == pytest.approx(all_layers / 4)


def test_zero_3_gathers_for_every_microbatch():
    job = replace(JOB, global_batch=256)
    slow = load_cluster("a100-80g-1x25g-ethernet")
    once = steps([make(job, dp=16, microbatch=16, zero_stage=3)], job=job, cluster=slow)
    often = steps([make(job, dp=16, microbatch=2, zero_stage=3)], job=job, cluster=slow)
    assert often.parts["dp"][0] > 4 * once.parts["dp"][0]


def test_tensor_parallelism_across_nodes_costs_more_than_inside():
    inside, across = steps([make(tp=8, dp=2), make(tp=16)]).parts["tp"]
    assert across > 3 * inside


def test_sharding_inside_the_node_wins_on_a_slow_network():
    slow = load_cluster("a100-80g-1x25g-ethernet")
    found = steps([make(dp=32, zero_stage=3), make(dp=32, zero_stage=3, zero_group=8)],
                  cluster=slow)  # fmt: skip
    full, hybrid = found.step_seconds
    assert hybrid < full


def test_interleaving_shrinks_the_bubble():
    plain, interleaved = steps([make(pp=4, dp=1), make(pp=4, vpp=4, dp=1)]).parts["bubble"]
    assert interleaved < 0.6 * plain


def test_frozen_weights_exchange_and_update_nothing():
    job = replace(JOB, lora_rank=16)
    whole = steps([make(dp=8)])
    frozen = steps([make(dp=8)], job=job)
    assert frozen.parts["optimizer"][0] < 0.01 * whole.parts["optimizer"][0] + 1e-3
    assert frozen.parts["dp"][0] == 0
    assert 0.6 < frozen.step_seconds[0] / whole.step_seconds[0] < 0.8


def test_eight_bits_are_faster_where_the_device_has_them():
    hopper = load_cluster("h100-8x400g")
    layout = [make(dp=8, microbatch=8)]
    wide = steps(layout, cluster=hopper).step_seconds[0]
    narrow = steps(layout, cluster=hopper, job=replace(JOB, precision="fp8")).step_seconds[0]
    assert narrow < 0.85 * wide
    old = [steps(layout, job=replace(JOB, precision=p)).step_seconds[0] for p in ("bf16", "fp8")]
    assert old[0] == pytest.approx(old[1])


def test_a_small_model_is_bound_by_the_host():
    tiny = load_model("gpt2")
    job = Job(global_batch=8, sequence_length=128)
    found = steps([Layout(dp=8)], model=tiny, job=job)
    assert found.parts["host"][0] > found.parts["forward"][0]


def test_a_slower_device_rate_slows_matrix_work_only():
    slower = Calibration(step=StepConstants(device_rates={"ampere": 0.5}))
    usual, slow = steps([make(dp=8)]), steps([make(dp=8)], calibration=slower)
    assert 1.7 < slow.parts["forward"][0] / usual.parts["forward"][0] < 2.0
    assert slow.parts["optimizer"] == pytest.approx(usual.parts["optimizer"])


def test_stalls_of_a_measured_fabric_touch_pipelines_that_leave_the_node():
    stalling = replace(CLUSTER, pipeline_stall_seconds=0.1)
    crossing, inside = make(pp=4, dp=4), make(pp=4, dp=2)
    usual, slow = steps([crossing, inside]), steps([crossing, inside], cluster=stalling)
    assert slow.step_seconds[0] > 1.5 * usual.step_seconds[0]
    assert slow.step_seconds[1] == pytest.approx(usual.step_seconds[1])


@settings(max_examples=25, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4]), microbatch=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1, 3]), recompute=st.sampled_from(["none", "selective", "full"]),
)  # fmt: skip
def test_a_faster_machine_is_never_slower(*, tp, pp, dp, microbatch, zero, recompute):
    layout = make(tp=tp, pp=pp, dp=dp, microbatch=microbatch, zero_stage=zero,
                  sequence_parallel=tp > 1, recompute=recompute)  # fmt: skip
    fast = replace(
        CLUSTER,
        tiers=tuple(replace(t, bytes_per_second=2 * t.bytes_per_second,
                            uplink_bytes_per_second=2 * t.uplink_bytes_per_second)
                    for t in CLUSTER.tiers),
    )  # fmt: skip
    slower, faster = steps([layout]), steps([layout], cluster=fast)
    assert faster.step_seconds[0] <= slower.step_seconds[0] * (1 + 1e-9)
    assert np.isfinite(slower.step_seconds[0])
    assert slower.step_seconds[0] > 0
