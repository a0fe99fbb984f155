"""What was exported reads back as the same layout, batch and model."""

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.exports.decoder import decoder_of
from planner.exports.importing import import_run, read_files
from planner.exports.targets import TARGETS
from planner.layout import Layout
from tests.exports.plans import model_named, plain, plan_for, write_export

LAYERS = 32  # of llama-7b
CHOICES = {
    "megatron-lm": {"schedule": ["1f1b"], "recompute": ["none", "selective", "full"]},
    "megatron-bridge": {"schedule": ["1f1b"], "recompute": ["none", "selective", "full"]},
    "deepspeed": {"pp": [1], "sequence_parallel": [False], "cp_kind": ["ulysses"],
                  "recompute": ["none", "full"]},
    "accelerate": {"pp": [1], "sequence_parallel": [False], "zero": [2, 3], "cp_kind": ["ring"],
                   "recompute": ["none", "full"], "dp": [2, 4, 8]},
    "torchtitan-0.2": {"schedule": ["1f1b", "gpipe"], "zero": [2, 3], "cp_kind": ["ring"],
                       "recompute": ["none", "selective", "full"], "fused": [None]},
    "torchtitan-0.3": {"schedule": ["1f1b", "gpipe"], "zero": [2, 3], "cp_kind": ["ring"],
                       "recompute": ["none", "selective", "full"]},
    "nanotron": {"schedule": ["1f1b", "gpipe"], "zero": [0, 1], "cp_kind": ["ring"],
                 "recompute": ["none", "full"], "fused": [None], "splits": [False]},
}  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn, target: str) -> Layout:
    """Layouts of llama-7b, drawn so that most are sayable."""
    may = CHOICES[target]

    def one(name: str, values: list) -> object:
        return draw(st.sampled_from(may.get(name, values)))

    pp, dp, cp, tp = one("pp", [1, 2, 4]), one("dp", [1, 2, 4]), one("cp", [1, 2]), one(
        "tp", [1, 2, 4])  # fmt: skip
    schedule, vpp, split = one("schedule", ["1f1b"]), 1, ()
    if pp > 1 and schedule == "1f1b" and draw(st.booleans()) and target != "nanotron":
        schedule, vpp = "interleaved", draw(st.sampled_from([2, 4]))
    if pp > 1 and one("splits", [True, False]):
        cuts = draw(st.sets(st.integers(1, LAYERS - 1), min_size=pp * vpp - 1,
                            max_size=pp * vpp - 1))  # fmt: skip
        edges = [0, *sorted(cuts), LAYERS]
        split = tuple(b - a for a, b in pairwise(edges))
    elif target.startswith("torchtitan") and pp > 1:
        split = (LAYERS // (pp * vpp),) * (pp * vpp)
    zero = one("zero", [0, 1, 2, 3]) if dp * cp > 1 else 0
    group = draw(st.sampled_from([0, dp * cp // 2])) if zero and dp * cp > 2 else 0
    return Layout(
        dp=dp, tp=tp, pp=pp, cp=cp, vpp=vpp, schedule=schedule, stage_layers=split,
        sequence_parallel=tp > 1 and one("sequence_parallel", [True, False]),
        cp_kind=one("cp_kind", ["ring", "ulysses"]), zero_stage=zero, zero_group=group,
        recompute=one("recompute", ["none"]), microbatch=draw(st.sampled_from([1, 2, 4])),
        microbatches=draw(st.sampled_from([4, 8])), fused_loss=one("fused", [None, True]),
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_layout_survives_the_round_trip(target):
    @settings(max_examples=25, deadline=None,
              suppress_health_check=[HealthCheck.filter_too_much])  # fmt: skip
    @given(layout=layouts(target))
    def check(layout):
        plan = plan_for(layout)
        assume(not TARGETS[target].say(plan).unsaid)
        with tempfile.TemporaryDirectory() as folder:
            paths = write_export(plan, target, Path(folder))
            held = read_files(paths, None)[1].decoder
            run = import_run(paths, gpus=layout.world_size, framework="planner",
                             model=None if held else "llama-7b", sequence_length=2048)  # fmt: skip
        found = run.layout
        if target == "nanotron":  # its split is its own rule's, and is made explicit
            found = replace(found, stage_layers=layout.stage_layers)
        assert plain(found) == plain(layout)
        assert run.target == target
        assert run.setting.job.global_batch == layout.global_batch
        assert run.setting.model.total_parameters == plan.model.total_parameters

    check()


@pytest.mark.parametrize("name", ["llama-7b", "llama-3-8b", "qwen3-8b", "gpt2", "mixtral-8x7b",
                                  "qwen2.5-7b"])  # fmt: skip
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_model_survives_the_round_trip(name, target, tmp_path):
    plan = plan_for(Layout(dp=2), name)
    assert not TARGETS[target].say(plan).unsaid
    _, reading = read_files(write_export(plan, target, tmp_path), None)
    wanted, missing = decoder_of(model_named(name))
    assert not missing
    assert reading.decoder is not None
    from planner.exports.decoder import model_of

    assert model_of(reading.decoder).total_parameters == model_of(wanted).total_parameters


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "fp8"])
@pytest.mark.parametrize("target", TARGETS)
def test_precision_survives_the_round_trip(target, precision, tmp_path):
    plan = plan_for(Layout(dp=2, zero_stage=0), precision=precision)
    said = TARGETS[target].say(plan)
    if any("precision" in line for line in said.unsaid):
        pytest.skip(f"{target} refuses {precision}")
    _, reading = read_files(write_export(plan, target, tmp_path), None)
    assert reading.precision in (precision, "")
    assert reading.precision or precision == "fp32"
