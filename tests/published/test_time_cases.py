"""Field reports and articles on time, as orders and ratios that the model must reproduce."""

from dataclasses import replace

import pytest

from planner.calibration import Calibration, load_calibration
from planner.catalogue import load_cluster, load_framework, load_model
from planner.cluster import Cluster
from planner.cost.step import Estimate, estimate
from planner.job import Job
from planner.layout import Layout
from planner.model import (
    Embedding,
    FeedForward,
    Head,
    Model,
    Run,
    SelfAttention,
    TransformerLayer,
)
from planner.runs.stages import stage_layers

DAY = 86400


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return load_calibration("default")


def predict(
    calibration: Calibration,
    model: str | Model,
    cluster: str | Cluster,
    framework: str,
    job: Job,
    **settings: object,
) -> Estimate:
    """The step of one layout, split evenly."""
    found = load_model(model) if isinstance(model, str) else model
    machine = load_cluster(cluster) if isinstance(cluster, str) else cluster
    pp, vpp = int(settings.get("pp", 1)), int(settings.get("vpp", 1))
    replicas = int(settings.get("dp", 1)) * int(settings.get("microbatch", 1))
    layout = Layout(
        **settings,
        stage_layers=stage_layers(found, "even", pp=pp, vpp=vpp),
        schedule="interleaved" if vpp > 1 else "1f1b",
        microbatches=job.global_batch // replicas,
    )
    return estimate(found, job, machine, load_framework(framework), layout, calibration)


def test_doubling_tp_costs_more_than_doubling_pp(calibration):
    """Megatron-Bridge, memory tuning: Llama 3 70B fine-tuning on 32 H100, fp8.

    704, 668 and 509 TFLOP/s per GPU for TP4 PP4 DP2, TP4 PP8 and TP8 PP4.
    """
    job = Job(global_batch=32, sequence_length=4096, precision="fp8")
    seconds = [
        predict(calibration, "llama-3-70b", "h100-8x400g", "megatron-core", job, tp=tp, pp=pp,
                dp=dp, vpp=5, zero_stage=1, sequence_parallel=True).step_seconds
        for tp, pp, dp in ((4, 4, 2), (4, 8, 1), (8, 4, 1))
    ]  # fmt: skip
    assert seconds[0] < seconds[1] < seconds[2]
    assert seconds[1] / seconds[0] == pytest.approx(704 / 668, abs=0.06)
    assert seconds[2] / seconds[0] > 1.2


@pytest.mark.parametrize(("layers", "hidden"), [(24, 2048), (40, 4096)])
def test_pp_beats_tp_in_a_node_when_microbatches_abound(calibration, layers, hidden):
    """NVIDIA/Megatron-LM issue 258: BERT of 1B to 10B on a DGX A100, PP8 30 % faster than TP8."""
    block = TransformerLayer(
        hidden=hidden, norm="layernorm",
        attention=SelfAttention(heads=32, kv_heads=32, head_dim=hidden // 32, causal=False,
                                rotary=False),
        feed_forward=FeedForward(ffn_hidden=4 * hidden, gated=False, bias=True,
                                 activation="gelu"),
    )  # fmt: skip
    bert = Model(
        name="bert", family="encoder", sequence_length=512,
        embedding=Embedding(vocabulary=30528, hidden=hidden, positions=512),
        layers=(Run(block=block, count=layers),),
        head=Head(vocabulary=30528, hidden=hidden, norm="layernorm"),
    )  # fmt: skip
    job = Job(global_batch=1024, sequence_length=512, precision="fp16")
    tensor, pipeline = (
        predict(calibration, bert, "a100-80g-8x200g", "megatron-lm", job, microbatch=16,
                **degrees).step_seconds
        for degrees in ({"tp": 8}, {"pp": 8})
    )  # fmt: skip
    assert tensor > 1.2 * pipeline


def test_the_expert_exchange_is_a_visible_share_that_overlap_removes(calibration):
    """Megatron-Bridge, MoE hardware configurations: Qwen3-30B-A3B on 16 H100, TP1 EP16.

    42.2 s per step untuned, 20.1 s with the exchange deduplicated and overlapped.
    """
    job = Job(global_batch=1024, sequence_length=4096)
    naive = predict(calibration, "qwen3-30b-a3b", "h100-8x400g", "megatron-core", job, dp=16,
                    ep=16, zero_stage=1)  # fmt: skip
    assert 0.15 < naive.parts["ep"] / naive.step_seconds < 0.7
    tuned = naive.step_seconds - naive.parts["ep"]
    assert tuned < 20.1
    assert naive.step_seconds == pytest.approx(42.2, rel=0.25)


def test_sharding_in_a_node_wins_on_a_slow_network(calibration):
    """oumi-ai/oumi pull request 213: Llama 2 7B on 4 cloud nodes, 74.4 against 55.3 samples/s."""
    job = Job(global_batch=128, sequence_length=2048)
    full, hybrid = (
        predict(calibration, "llama-2-7b", "a2-ultragpu-8g", "torchtitan", job, dp=32,
                microbatch=2, zero_stage=3, zero_group=group).step_seconds
        for group in (0, 8)
    )  # fmt: skip
    assert 1.05 < full / hybrid < 2.0


def test_expert_parallelism_beats_zero_3_and_tp_is_a_loss(calibration):
    """deepspeedai/DeepSpeed pull request 8064: a cut 35B MoE on 16 H100.

    27.9k tokens/s with ZeRO-3, 57.4k with EP 8 and ZeRO-1, 33.5k with TP 2 beside it.
    """
    whole = load_model("qwen3-30b-a3b")
    model = replace(whole, layers=(replace(whole.layers[0], count=20),))
    job = Job(global_batch=64, sequence_length=1024)
    gathered, experts, tensor = (
        predict(calibration, model, "h100-8x400g", "deepspeed", job, **degrees).step_seconds
        for degrees in (
            {"dp": 16, "zero_stage": 3, "microbatch": 4},
            {"dp": 16, "zero_stage": 1, "microbatch": 4, "ep": 8},
            {"dp": 8, "tp": 2, "zero_stage": 1, "microbatch": 8, "ep": 8},
        )
    )
    assert experts < tensor < gathered
    assert 1.5 < gathered / experts < 4.0


def test_zero_3_over_a_slow_link_is_slower_in_absolute_terms(calibration):
    """deepspeedai/DeepSpeed issue 5770: Qwen2 1.5B, 2.5 s on 2 A10 in one node, 8.7 s on 2 x 2."""
    inside, across = (
        predict(calibration, "qwen2.5-1.5b", cluster, "deepspeed",
                Job(global_batch=devices, sequence_length=1024), dp=devices,
                zero_stage=3).step_seconds
        for cluster, devices in (("g5.48xlarge", 2), ("g5.xlarge", 4))
    )  # fmt: skip
    assert across > 2.5 * inside


def test_zero_2_for_adapters_where_peers_cannot_talk(calibration):
    """hiyouga/LlamaFactory issue 3499: Llama 3 8B LoRA on 3 A100 without peer access.

    20 steps: 20 minutes with ZeRO-3, 17 seconds with ZeRO-2.
    """
    usual = load_cluster("a100-80g-8x200g")
    bounced = replace(
        usual,
        tiers=(replace(usual.tiers[0], link="pcie", bytes_per_second=3e9, switched=False),
               *usual.tiers[1:]),
    )  # fmt: skip
    job = Job(global_batch=6, sequence_length=1024, lora_rank=8)
    gathered, kept = (
        predict(calibration, "llama-3-8b", bounced, "deepspeed", job, dp=3,
                zero_stage=stage).step_seconds
        for stage in (3, 2)
    )  # fmt: skip
    assert gathered > 3 * kept


def test_two_nodes_without_fast_network_are_slower_than_one(calibration):
    """mosaicml/llm-foundry issue 336: MPT 1B under FSDP, 8 times slower on two nodes."""

    def ratio(cluster: str) -> float:
        one, two = (
            predict(calibration, "gpt3-1.3b", cluster, "pytorch-fsdp1",
                    Job(global_batch=16 * devices, sequence_length=2048), dp=devices,
                    microbatch=8, zero_stage=3).step_seconds
            for devices in (8, 16)
        )  # fmt: skip
        return two / one

    assert ratio("a100-80g-1x25g-ethernet") > 3
    assert ratio("a100-80g-8x200g") < 1.15


def test_ddp_beats_fsdp_with_many_microbatches(calibration):
    """allenai/OLMo issue 762: OLMo 1B on 4 GPUs, 32 microbatches; DDP 4.6 times as fast."""
    job = Job(global_batch=256, sequence_length=2048)
    plain, sharded = (
        predict(calibration, "llama-3.2-1b", "l40s-2x200g", "pytorch-fsdp1", job, dp=4,
                microbatch=2, zero_stage=stage).step_seconds
        for stage in (0, 3)
    )  # fmt: skip
    assert sharded > 1.5 * plain


def test_tiny_stages_do_not_pay(calibration):
    """marin-community/marin issue 6532: 8 H100, PP8 five times slower than FSDP.

    A small model cut into eight stages: small kernels and host work, not only the bubble.
    """
    job = Job(global_batch=8, sequence_length=1024)
    sharded = predict(calibration, "llama-3.2-1b", "h100-8x400g", "torchtitan", job, dp=8,
                      zero_stage=3).step_seconds  # fmt: skip
    piped = predict(calibration, "llama-3.2-1b", "h100-8x400g", "torchtitan", job,
                    pp=8).step_seconds  # fmt: skip
    assert piped > 1.4 * sharded


def test_awkward_heads_and_widths_cost(calibration):
    """BigScience, tr11 prequel: 128 heads of width 108 reach 110 TFLOP/s, 64 of 216 reach 157."""

    def seconds(heads: int) -> float:
        block = TransformerLayer(
            hidden=13824, norm="layernorm",
            attention=SelfAttention(heads=heads, kv_heads=heads, head_dim=13824 // heads,
                                    rotary=False),
            feed_forward=FeedForward(ffn_hidden=55296, gated=False, bias=True,
                                     activation="gelu"),
        )  # fmt: skip
        model = Model(
            name="bloom trial", family="decoder", sequence_length=2048,
            embedding=Embedding(vocabulary=250000, hidden=13824),
            layers=(Run(block=block, count=78),),
            head=Head(vocabulary=250000, hidden=13824, norm="layernorm"), tied=True,
        )  # fmt: skip
        job = Job(global_batch=2048, sequence_length=2048, precision="fp16")
        found = predict(calibration, model, "jean-zay-a100", "megatron-deepspeed", job, tp=4,
                        pp=12, dp=8, microbatch=2, zero_stage=1, recompute="full")  # fmt: skip
        return found.step_seconds

    assert seconds(64) < seconds(96) < seconds(128)


def resnet_speedup(calibration: Calibration, cluster: str, images: int) -> float:
    """Images per second of 8 devices over those of one."""
    one, eight = (
        predict(calibration, "resnet-50", cluster, "pytorch-ddp",
                Job(global_batch=images * devices, sequence_length=1, precision="fp16",
                    optimizer="sgd-momentum"), dp=devices, microbatch=images).step_seconds
        for devices in (1, 8)
    )  # fmt: skip
    return 8 * one / eight


def test_resnet_scales_in_a_node_and_collapses_on_plain_ethernet(calibration):
    """8 A100 on NVLink train ResNet-50 about 7.2 times as fast as one, on Ethernet below 3."""
    inside = resnet_speedup(calibration, "a100-80g-8x200g", 64)
    assert inside == pytest.approx(7.2, rel=0.12)
    assert resnet_speedup(calibration, "a100-80g-1gpu-10g-ethernet", 64) < 3.0


def test_one_a100_trains_llama_7b_for_more_than_a_month(calibration):
    """Touvron et al. 2023: one trillion tokens; one A100 would need decades, 32 over a year."""
    job = Job(global_batch=512, sequence_length=2048)
    found = predict(calibration, "llama-7b", "a100-80g-8x200g", "megatron-core", job,
                    recompute="full")  # fmt: skip
    days = 1e12 / job.tokens_per_step * found.step_seconds / DAY
    assert 30 * 20 < days < 30 * 400


def test_tp_in_the_node_and_pp_across_emerge_for_mt_nlg_530b(calibration):
    """Smith et al. 2022: 530B on 280-GPU replicas as TP 8 and PP 35.

    Tensor parallelism over two nodes, or a deeper pipeline with less of it, must lose.
    """
    job = Job(global_batch=1920, sequence_length=2048)
    seconds = {
        (tp, pp): predict(calibration, "mt-nlg-530b", "a100-80g-8x200g", "megatron-deepspeed",
                          job, tp=tp, pp=pp, dp=2240 // (tp * pp), recompute="full",
                          zero_stage=1).step_seconds
        for tp, pp in ((8, 35), (16, 35), (16, 7))
    }  # fmt: skip
    assert min(seconds, key=seconds.__getitem__) == (8, 35)
    # Section 3.2: 60.1 s per step on 2,240 GPUs.
    assert seconds[8, 35] == pytest.approx(60.1, rel=0.25)
