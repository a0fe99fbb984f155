"""The memory model's own laws: sums, maxima, arrays equal to scalars, monotonic knobs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalogue import list_presets, load_device, load_framework
from planner.cost.memory import (
    CATEGORIES,
    fits,
    fits_safely,
    load_margin,
    memory,
    memory_over_time,
    remedies,
    stage_memory,
    usable_bytes,
)
from planner.cost.memory.states import bytes_per_parameter
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import tabulate
from planner.model import Embedding, FeedForward, Head, Model, Run, SelfAttention, TransformerLayer
from planner.schedules import schedule_actions
from planner.schedules.timeline import play

BLOCK = TransformerLayer(
    hidden=1024,
    attention=SelfAttention(heads=16, kv_heads=16, head_dim=64),
    feed_forward=FeedForward(ffn_hidden=2816),
)
MODEL = Model(
    name="test", family="decoder", embedding=Embedding(vocabulary=32000, hidden=1024),
    layers=(Run(block=BLOCK, count=8),), head=Head(vocabulary=32000, hidden=1024),
    sequence_length=1024,
)  # fmt: skip
OURS = load_framework("planner")
DEVICE = load_device("a100-80g")


def job_of(layout: Layout, **changes: object) -> Job:
    return Job(global_batch=layout.global_batch, sequence_length=1024, **changes)  # type: ignore[arg-type]


def heaviest(layout: Layout, framework: Framework = OURS, **changes: object) -> int:
    stages = stage_memory(MODEL, job_of(layout, **changes), framework, layout, device=DEVICE)
    return max(stage.allocated for stage in stages)


def pipelined(pp: int, **changes: object) -> Layout:
    return Layout(pp=pp, microbatches=8, stage_layers=(8 // pp,) * pp, **changes)  # type: ignore[arg-type]


layouts = st.builds(
    lambda tp, pp, dp, zero, recompute, microbatch, sequence_parallel: Layout(
        tp=tp, pp=pp, dp=dp, zero_stage=zero, recompute=recompute, microbatch=microbatch,
        sequence_parallel=sequence_parallel and tp > 1, microbatches=8,
        stage_layers=(8 // pp,) * pp if pp > 1 else (),
    ),
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 8]),
    st.sampled_from([0, 1, 2, 3]), st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([1, 2, 4]), st.booleans(),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=5), st.sampled_from(list_presets("frameworks")))
def test_table_equals_stages(some: list[Layout], name: str):
    framework = load_framework(name)
    table = tabulate(some, fused_loss_habit=framework.fused_loss)
    found = memory(MODEL, job_of(some[0]), framework, table, device=DEVICE)
    for index, layout in enumerate(some):
        stages = stage_memory(MODEL, job_of(some[0]), framework, layout, device=DEVICE)
        worst = max(stages, key=lambda stage: stage.allocated)
        # Categories are rounded to whole bytes one by one.
        assert found.allocated[index] == pytest.approx(worst.allocated, abs=20)
        assert found.device[index] == pytest.approx(worst.device, abs=40)
        assert found.first.allocated[index] == pytest.approx(stages[0].allocated, abs=20)
        assert found.last.allocated[index] == pytest.approx(stages[-1].allocated, abs=20)


def test_chunks_of_a_large_table_join(monkeypatch):
    some = [pipelined(2), pipelined(4), Layout(tp=2), Layout(dp=8, zero_stage=3)] * 5
    table, job = tabulate(some), job_of(some[0])
    whole = memory(MODEL, job, OURS, table)
    monkeypatch.setattr("planner.cost.memory.table.CHUNK_ROWS", 3)
    pieces = memory(MODEL, job, OURS, table)
    np.testing.assert_array_equal(whole.device, pieces.device)
    np.testing.assert_array_equal(whole.last.reserved, pieces.last.reserved)


@settings(max_examples=40, deadline=None)
@given(layouts)
def test_senses_and_categories_add_up(layout: Layout):
    for stage in stage_memory(MODEL, job_of(layout), OURS, layout, device=DEVICE):
        assert set(stage.categories) == set(CATEGORIES)
        assert all(amount >= 0 for amount in stage.categories.values())
        assert stage.allocated == sum(stage.categories.values())
        assert stage.allocated <= stage.reserved <= stage.device


@settings(max_examples=40, deadline=None)
@given(layouts)
def test_more_work_at_once_never_needs_less(layout: Layout):
    assert heaviest(replace(layout, microbatch=2 * layout.microbatch)) >= heaviest(layout)
    full, plain = replace(layout, recompute="full"), replace(layout, recompute="none")
    assert heaviest(full) <= heaviest(plain)


def test_memory_stays_once_the_pipeline_is_full():
    """D15, A09: beyond pp microbatches the peak does not grow with them (Megatron receives
    into one buffer)."""
    framework = load_framework("megatron-core")
    counts = [heaviest(replace(pipelined(4), microbatches=m), framework) for m in (4, 8, 32, 512)]
    assert len(set(counts)) == 1


def test_heaviest_stage_not_the_average():
    """D08: an uneven split is as heavy as its heaviest stage."""
    uneven = Layout(pp=4, microbatches=8, stage_layers=(1, 3, 3, 1))
    stages = stage_memory(MODEL, job_of(uneven), OURS, uneven)
    parameters = [stage.categories["parameters"] for stage in stages]
    assert max(parameters[1:3]) == 2 * 3 * (4 * 1024**2 + 3 * 1024 * 2816 + 2 * 1024)
    table = tabulate([uneven])
    assert memory(MODEL, job_of(uneven), OURS, table).allocated[0] == pytest.approx(
        max(stage.allocated for stage in stages), abs=20
    )


@pytest.mark.parametrize(
    ("profile", "precision", "total"),
    [
        ("megatron-core", "bf16", 18),  # 2 + 4 + 4 + 8
        ("megatron-deepspeed", "fp16", 16),  # D13: 2 + 2 + 4 + 8
        ("planner", "fp32", 16),
        ("planner", "bf16-pure", 12),
        ("torchtune", "bf16", 8),  # everything in bf16
    ],
)
def test_bytes_per_parameter(profile: str, precision: str, total: int):
    job = Job(global_batch=1, sequence_length=1, precision=precision)  # type: ignore[arg-type]
    weights = bytes_per_parameter(job, load_framework(profile))
    assert weights.parameter + weights.gradient + weights.master + weights.optimizer == total


def test_optimizers_weigh_what_they_keep():
    layout = Layout()
    resting = {}
    for optimizer in ("adamw", "adamw-8bit", "sgd-momentum", "sgd"):
        (stage,) = stage_memory(MODEL, job_of(layout, optimizer=optimizer), OURS, layout)
        resting[optimizer] = stage.categories["optimizer states"] / MODEL.total_parameters
    assert resting == {"adamw": 8, "adamw-8bit": 2, "sgd-momentum": 4, "sgd": 0}


def test_offloaded_states_are_not_on_the_device():
    layout = Layout(dp=4, zero_stage=1, offload_optimizer=True)
    (stage,) = stage_memory(MODEL, job_of(layout), OURS, layout)
    assert stage.categories["optimizer states"] == stage.categories["master weights"] == 0


def test_adapters_leave_the_base_without_states():
    layout = Layout()
    (whole,) = stage_memory(MODEL, job_of(layout), OURS, layout)
    (adapted,) = stage_memory(MODEL, job_of(layout, lora_rank=16), OURS, layout)
    width = 8 * (4 * (1024 + 1024) + 3 * (1024 + 2816)) - 8 * 2 * 1024 - 8 * 1024
    adapters = 16 * width  # one adapter pair for Q, K and V together, one for gate and up
    assert adapted.categories["optimizer states"] == 8 * adapters
    assert adapted.categories["parameters"] == 2 * (MODEL.total_parameters + adapters)
    assert adapted.allocated < whole.allocated / 2


def test_remedies_save_what_they_say():
    layout = pipelined(2, dp=4, tp=2, microbatch=4)
    job = job_of(layout)
    before = max(s.device for s in stage_memory(MODEL, job, OURS, layout, device=DEVICE))
    found = remedies(MODEL, job, OURS, layout, device=DEVICE)
    assert {r.change for r in found} >= {"sequence_parallel", "zero=1", "recompute=full", "tp=4"}
    for remedy in found:
        stages = stage_memory(MODEL, remedy.job, OURS, remedy.layout, device=DEVICE)
        assert max(stage.device for stage in stages) == remedy.device_bytes
        assert remedy.saved_bytes == before - remedy.device_bytes > 0


def test_curve_peaks_where_the_estimate_does():
    layout = pipelined(4)
    timeline = play(
        schedule_actions("1f1b", pp=4, microbatches=8),
        forward_seconds=1, input_gradient_seconds=1, weight_gradient_seconds=1,
    )  # fmt: skip
    for stage in stage_memory(MODEL, job_of(layout), OURS, layout):
        curve = memory_over_time(timeline, stage)
        assert curve.peak_bytes == pytest.approx(stage.allocated)
        assert curve.allocated_bytes[-1] == pytest.approx(curve.allocated_bytes[0])
        assert np.all(np.diff(curve.seconds) >= 0)


def test_usable_memory_and_margin():
    table = tabulate([Layout(dp=8)])
    usable = float(np.ravel(usable_bytes(DEVICE.memory_bytes, OURS, table, DEVICE))[0])
    assert DEVICE.memory_bytes - 3 * 2**30 < usable < DEVICE.memory_bytes
    assert 0 < load_margin().share < 0.25
    almost = DEVICE.memory_bytes * (1 - load_margin().share / 2)
    assert fits(almost, DEVICE.memory_bytes)
    assert not fits_safely(almost, DEVICE.memory_bytes)


def test_every_profile_names_its_source():
    for name in list_presets("frameworks"):
        assert len(load_framework(name).source) > 20
