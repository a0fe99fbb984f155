"""Invalid and awkward configurations that people really ran into, and what should be said.

Each case names the public report. A message must name the field, its value, the rule and two
legal ways on.
"""

from dataclasses import replace

import pytest

from planner.calibration import Calibration
from planner.catalogue import load_cluster, load_framework, load_model
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.partition import optimal_split
from planner.rules import explain_rules
from planner.search import search
from planner.split_rules import megatron_split

A100 = load_cluster("a100-80g-8x200g")
FREE = Framework(name="free", backend="any")


def with_attention(model, **changes):
    run = model.layers[0]
    attention = replace(run.block.attention, **changes)
    return replace(model, layers=(replace(run, block=replace(run.block, attention=attention)),))


def with_layers(model, count):
    return replace(model, layers=(replace(model.layers[0], count=count),))


def reasons(layout, model, *, batch=None, length=2048, framework=FREE, devices=0):
    job = Job(global_batch=batch or layout.global_batch, sequence_length=length)
    found = explain_rules(layout, model, job, A100, framework, num_devices=devices)
    return {rejected.rule: rejected.reason for rejected in found}


def test_c01_28_heads_on_8_gpus():
    """THU-KEG/AdaptThink#1, vllm#11797: 4 key and value heads bound tp in training."""
    model = load_model("qwen2.5-7b")  # 28 heads, 4 key and value heads, as Qwen2-7B
    said = reasons(Layout(tp=8), model)
    assert "28 attention heads" in said["heads"] and "legal tp: 1, 2, 4;" in said["heads"]
    assert not reasons(Layout(tp=4, dp=2), model)


@pytest.mark.parametrize(
    ("heads", "tp", "legal"),
    [
        (52, 3, {1, 2, 4, 13, 26, 52}),  # C02: vllm#414 and #2652, LLaMA-33B
        (52, 8, {1, 2, 4, 13, 26, 52}),
        (25, 4, {1, 5, 25}),  # C03: ColossalAI#116, GPT-2 XL
        (40, 3, {1, 2, 4, 5, 8, 10, 20, 40}),  # C04: vllm#596, Llama-2-13B
        (32, 5, {1, 2, 4, 8, 16, 32}),
    ],
)
def test_c02_to_c04_heads_that_do_not_divide(heads, tp, legal):
    base = load_model("llama-7b")
    # A feed-forward as wide as any tp needs, so that only the heads speak.
    wide = replace(base.layers[0].block.feed_forward, ffn_hidden=heads * 256)
    block = replace(base.layers[0].block, feed_forward=wide)
    model = with_attention(
        replace(base, layers=(replace(base.layers[0], block=block),)), heads=heads, kv_heads=heads
    )
    text = reasons(Layout(tp=tp), model)["heads"]
    listed = text.partition("legal tp: ")[2].partition(";")[0]
    assert {int(v) for v in listed.split(",")} == legal
    assert f"tp={tp}" in text and " or " in text.rpartition("use ")[2]


def test_c04_odd_counts_are_filled_and_nobody_idles_in_silence():
    """LMDeploy#2114: on 3, 5, 6, 7, 12, 24 GPUs the rest is filled with pp or dp."""
    model = load_model("tinyllama-1.1b")
    for devices in (3, 5, 6, 7, 12, 24):
        job = Job(global_batch=840, sequence_length=2048)
        answer = search(model, job, A100, FREE, Calibration(), num_devices=devices)
        assert answer.best.layout.world_size == devices
        for remedy in answer.remedies:
            assert "idle" in remedy.change
            assert remedy.candidate.step_seconds < answer.best.step_seconds


def test_c07_tp_16_beyond_the_key_and_value_heads():
    """torchtitan#932: half a head of 128 per token."""
    said = reasons(Layout(tp=16), load_model("llama-3-8b"), length=8192)
    assert "8 key and value heads" in said["kv heads"] and "tp=4 or 8" in said["kv heads"]
    repeats = replace(FREE, replicates_kv_heads=True)
    assert not reasons(Layout(tp=16), load_model("llama-3-8b"), length=8192, framework=repeats)


def test_c08_30_layers_on_4_stages_are_all_kept():
    """Megatron-LM#1304 floored to 7 per stage and trained 28 layers."""
    model = with_layers(load_model("llama-7b"), 30)
    layout = Layout(pp=4, microbatches=8)
    assert not reasons(layout, model)
    text = reasons(layout, model, framework=load_framework("megatron-core"))["layers"]
    assert "30 layers" in text and "split=7-8-8-7" in text
    old = replace(layout, stage_layers=(7, 8, 8, 7))
    assert not reasons(old, model, framework=load_framework("megatron-core"))
    assert "layers" in reasons(old, model, framework=load_framework("megatron-lm"))
    short = replace(layout, stage_layers=(7, 7, 7, 7))
    assert "holds 28 layers, but" in reasons(short, model)["layers"]


def test_c09_80_layers_on_16_stages_of_2_chunks():
    """Megatron-LM#468: 2.5 floored to 2, a 64-layer model ran."""
    model = with_layers(load_model("llama-7b"), 80)
    layout = Layout(pp=16, vpp=2, schedule="interleaved", microbatches=32)
    said = reasons(layout, model, framework=load_framework("megatron-core"))
    assert "80 layers" in said["layers"] and "pp x vpp = 32" in said["layers"]
    legal = replace(layout, stage_layers=(2, *(3, 2) * 15, 3))
    assert not reasons(legal, model)


def test_c10_and_c31_uneven_splits_are_offered_short_at_both_ends():
    """ms-swift#5737 (46 layers on 4), Megatron-Bridge PR 5551 (92 on 8), SimuMax (126 on 8)."""
    for layers, stages, expected in (
        (46, 4, (11, 12, 12, 11)),
        (92, 8, (11, 12, 12, 11, 11, 12, 12, 11)),
        (126, 8, (15, 16, 16, 16, 16, 16, 16, 15)),
    ):
        split = optimal_split([1.0] * layers, stages=stages, first_cost=0.9, last_cost=0.9)
        assert sum(split) == layers
        assert split[0] == split[-1] == min(split)
        if layers != 92:  # several splits of 92 are equally good
            assert split == expected
    assert megatron_split(46, stages=4, first_layers=11, last_layers=11) == (11, 12, 12, 11)


def test_c11_7_layers_on_2_stages():
    """Megatron-LM#381: 4 + 3 by cost; equal stages only where the framework needs them."""
    model = with_layers(load_model("tiny-llama"), 7)
    assert not reasons(Layout(pp=2, microbatches=4), model, length=256)
    even = reasons(
        Layout(pp=2, microbatches=4), model, length=256, framework=load_framework("megatron-core")
    )
    assert "megatron-core makes equal stages" in even["layers"]


def test_c13_bloom_counts_both_copies_of_its_embedding():
    """bigscience tr11-176B: [emb + 5, 6 x 10, 5 + emb]; embedding 3.60B against 2.47B a layer."""
    model = load_model("bloom-176b")
    assert model.num_layers == 70
    layer, embedding = 2.47, 3.60
    split = optimal_split([layer] * 70, stages=12, first_cost=embedding, last_cost=embedding)
    assert split == (5, *(6,) * 10, 5)


def test_c17_interleaving_over_2_ranks_is_legal():
    """Megatron-LM#750: old versions demanded more than two."""
    layout = Layout(pp=2, vpp=2, schedule="interleaved", microbatches=4)
    assert not reasons(layout, load_model("llama-7b"), framework=load_framework("megatron-core"))


def test_c19_the_batch_is_divided_by_dp_and_not_by_gpus():
    """verl#1793 validated against the number of GPUs."""
    model = load_model("llama-7b")
    layout = Layout(dp=3, tp=4, microbatch=2, microbatches=5)
    text = reasons(layout, model, batch=32)["batch"]
    assert "dp x microbatch = 3 x 2 = 6" in text and "30 or 36" in text
    assert not reasons(Layout(dp=3, tp=4, microbatch=2, microbatches=6), model, batch=36)


def test_c20_and_c21_the_product_is_the_launched_world():
    """NeMo#11480 (8 on 1), llama3#324 (a published row whose product is 8,192 of 16,384)."""
    model = load_model("llama-3-405b")
    row = Layout(tp=8, cp=16, pp=16, dp=4, microbatches=32)
    text = reasons(row, model, length=131072, devices=16384)["world"]
    assert "8192" in text and "16384 devices" in text and "dp=8" in text
    assert "world" in reasons(Layout(dp=4, tp=2), load_model("llama-7b"), devices=1)


def test_c20_one_gpu_always_has_a_plan():
    job = Job(global_batch=8, sequence_length=512)
    answer = search(load_model("gpt2"), job, A100, FREE, Calibration(), num_devices=1)
    assert answer.best.layout.world_size == 1


@pytest.mark.parametrize(
    ("degrees", "world"),
    [
        ({"tp": 4, "ep": 4}, 4),
        ({"pp": 2, "ep": 2, "dp": 2}, 4),
        ({"tp": 2, "ep": 8, "dp": 4}, 8),
        ({"pp": 2, "tp": 2, "ep": 8, "dp": 4}, 16),
        ({"tp": 2, "ep": 4, "etp": 2, "dp": 4}, 8),
    ],
)
def test_c22_experts_share_the_ranks_of_a_stage(degrees, world):
    """Megatron-Bridge#546: tp must never be multiplied by ep."""
    model = load_model("qwen3-30b-a3b")
    layout = Layout(**degrees, microbatches=4)
    assert layout.world_size == world
    assert not reasons(layout, model, devices=world)


def test_c23_too_many_expert_ranks():
    """DeepSpeed#1838 clamped ep to the world; it must divide the experts as well."""
    model = load_model("qwen3-30b-a3b")
    text = reasons(Layout(dp=2, ep=8), model)["experts"]
    assert "ep=8" in text and "dp x cp x tp = 2 ranks" in text and "use etp=1 with ep=" in text
    assert "experts" in reasons(Layout(dp=3, ep=3), model)


RULES_OF_C27 = {
    "sequence parallelism": Layout(dp=2, sequence_parallel=True),
    "experts": Layout(dp=2, ep=2),
    "virtual stages": Layout(dp=2, vpp=2, stage_layers=(16, 16)),
    "offload": Layout(pp=2, microbatches=4, offload_optimizer=True),
    "zero": Layout(dp=1, zero_stage=1),
    "zero group": Layout(dp=6, zero_stage=3, zero_group=4),
    "recompute": Layout(dp=2, recompute="none", recompute_layers=3),
    "ulysses heads": Layout(tp=32, cp=2, cp_kind="ulysses"),
    "sequence": Layout(cp=3),
    "schedule": Layout(pp=4, vpp=2, schedule="interleaved", microbatches=6),
}


@pytest.mark.parametrize(("rule", "layout"), RULES_OF_C27.items(), ids=RULES_OF_C27)
def test_c27_one_validator_names_field_value_rule_and_two_ways_on(rule, layout):
    """Megatron-LM PR 5768: the errors that people hit most, terse in every framework."""
    framework = load_framework("megatron-core")
    text = reasons(layout, load_model("llama-7b"), framework=framework)[rule]
    head, _, ways = text.rpartition("use ")
    assert head and ("=" in head)
    assert " or " in ways or ", " in ways or " and " in ways
    assert any(ch.isdigit() or word in text for ch in head for word in ("on", "off"))


def test_c28_tied_weights_over_stages():
    """torchtitan derivatives crash; others keep a second copy and sum its gradient."""
    model = load_model("llama-3.2-1b")
    assert model.tied
    layout = Layout(pp=2, microbatches=4)
    text = reasons(layout, model, framework=load_framework("torchtitan"))["tied weights"]
    assert str(128256 * 2048) in text
    assert not reasons(layout, model)


def test_zero_2_and_a_pipeline_by_framework():
    """DeepSpeed and Megatron refuse, FSDP2 does not."""
    layout = Layout(dp=2, pp=2, zero_stage=2, microbatches=4)
    model = load_model("llama-7b")
    assert (
        "deepspeed goes up to zero=1"
        in reasons(layout, model, framework=load_framework("deepspeed"))["zero"]
    )
    assert not reasons(layout, model)


def test_1f1b_in_torch_needs_as_many_microbatches_as_stages():
    model = load_model("llama-7b")
    layout = Layout(pp=4, microbatches=2)
    torch = replace(FREE, backend="torch")
    assert "microbatches=4" in reasons(layout, model, framework=torch)["schedule"]
    assert not reasons(layout, model)


def test_conv_nets_have_dp_and_pp_only():
    model = load_model("resnet-50")
    assert "conv net" in reasons(Layout(tp=2), model, length=1)["convolution"]
    assert not reasons(Layout(dp=2, pp=2, microbatches=4), model, length=1)
