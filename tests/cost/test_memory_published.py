"""Published field reports as cases with the right value (ids of the collection they are in)."""

import pytest

from planner.catalogue import load_device, load_framework
from planner.cost.memory import StageMemory, stage_memory
from planner.job import Job
from planner.layout import Layout
from planner.model import (
    Embedding,
    Experts,
    FeedForward,
    Head,
    LatentAttention,
    Layer,
    Model,
    Run,
    SelfAttention,
    TransformerLayer,
)
from planner.units import GIB


def model_of(*runs: tuple[Layer, int], vocabulary: int, tied: bool = False) -> Model:
    hidden = runs[0][0].hidden
    return Model(
        name="case", family="decoder", embedding=Embedding(vocabulary=vocabulary, hidden=hidden),
        layers=tuple(Run(block=block, count=count) for block, count in runs),
        head=Head(vocabulary=vocabulary, hidden=hidden,
                  shared_with_embedding=vocabulary * hidden if tied else 0),
        tied=tied, sequence_length=4096,
    )  # fmt: skip


def llama(hidden: int, heads: int, kv_heads: int, ffn_hidden: int) -> TransformerLayer:
    return TransformerLayer(
        hidden=hidden,
        attention=SelfAttention(heads=heads, kv_heads=kv_heads, head_dim=hidden // heads),
        feed_forward=FeedForward(ffn_hidden=ffn_hidden),
    )


LLAMA_7B = model_of((llama(4096, 32, 32, 11008), 32), vocabulary=32000)
LLAMA_70B_CUT = model_of((llama(8192, 64, 8, 28672), 12), vocabulary=128256)
LATENT = LatentAttention(
    heads=128, q_lora_rank=1536, kv_lora_rank=512, nope_head_dim=128, rope_head_dim=64,
    value_head_dim=128,
)  # fmt: skip
DENSE = TransformerLayer(
    hidden=7168, attention=LATENT, feed_forward=FeedForward(ffn_hidden=18432)
)  # fmt: skip
DEEPSEEK_V3_CUT = model_of(
    (DENSE, 1),
    (TransformerLayer(hidden=7168, attention=LATENT, feed_forward=Experts(
        num_experts=256, experts_per_token=8, ffn_hidden=2048, shared_ffn_hidden=2048)), 3),
    vocabulary=129280,
)  # fmt: skip


def stages(model: Model, layout: Layout, profile: str, device: str = "a100-80g",
           length: int = 4096, **job: object) -> tuple[StageMemory, ...]:  # fmt: skip
    return stage_memory(
        model,
        Job(global_batch=layout.global_batch, sequence_length=length, **job),  # type: ignore[arg-type]
        load_framework(profile), layout, device=load_device(device),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "published_gib"),
    [
        (Layout(dp=4, pp=2, zero_stage=1, microbatches=4, stage_layers=(6, 6)), 66.55),
        (Layout(dp=4, tp=2, sequence_parallel=True, zero_stage=1, microbatches=4), 60.68),
        (Layout(dp=2, tp=4, sequence_parallel=True, zero_stage=1, microbatches=4), 39.07),
        (Layout(dp=1, tp=8, sequence_parallel=True, zero_stage=1, microbatches=4), 28.29),
    ],
)
def test_a09_llama_on_b200(layout: Layout, published_gib: float):
    """SimuMax, docs/b200/b200_release_v1.2_summary.md: allocated, heaviest rank."""
    worst = max(s.allocated for s in stages(LLAMA_70B_CUT, layout, "megatron-core", "b200"))
    assert worst / GIB == pytest.approx(published_gib, rel=0.025)


def test_a09_first_stage_is_heavier():
    layout = Layout(dp=4, pp=2, zero_stage=1, microbatches=4, stage_layers=(6, 6))
    first, last = stages(LLAMA_70B_CUT, layout, "megatron-core", "b200")
    assert first.allocated / GIB == pytest.approx(66.55, rel=0.025)
    assert last.allocated / GIB == pytest.approx(62.97, rel=0.04)


@pytest.mark.parametrize(
    ("layout", "published_gib"),
    [
        (Layout(dp=8, ep=8, zero_stage=1, microbatches=4), 104.30),
        (Layout(dp=4, pp=2, ep=4, zero_stage=1, microbatches=4, stage_layers=(2, 2)), 114.00),
    ],
)
def test_a10_experts_divide_by_their_own_degree(layout: Layout, published_gib: float):
    """SimuMax on B200: routed experts over EP, their optimizer states over expert-DP."""
    worst = max(s.allocated for s in stages(DEEPSEEK_V3_CUT, layout, "megatron-core", "b200"))
    assert worst / GIB == pytest.approx(published_gib, rel=0.02)


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_a08_fsdp_slope_is_12_bytes_per_parameter(ranks: int):
    """dlrover, atorch/examples/llama2: at the peak a shard is 12 bytes per parameter, since
    gradients do not exist yet."""
    peaks = [
        stages(LLAMA_7B, Layout(dp=n, zero_stage=3, microbatch=4), "pytorch-fsdp1")[0].allocated
        for n in (ranks, 2 * ranks)
    ]
    shards = LLAMA_7B.total_parameters * (1 / ranks - 1 / (2 * ranks))
    assert (peaks[0] - peaks[1]) / shards == pytest.approx(12.0, abs=1e-3)


def test_a08_zero_1_slope_is_12_bytes_of_a_quarter():
    peaks = [
        stages(LLAMA_7B, Layout(dp=dp, tp=2, pp=2, zero_stage=1, microbatch=8, microbatches=64,
                                recompute="full", stage_layers=(16, 16)),
               "megatron-core")[0].allocated
        for dp in (2, 4)
    ]  # fmt: skip
    held = LLAMA_7B.total_parameters / 4
    assert (peaks[0] - peaks[1]) / (held / 2 - held / 4) == pytest.approx(12.0, rel=0.01)


def bloom(layers: int) -> Model:
    block = TransformerLayer(
        hidden=14336,
        attention=SelfAttention(heads=64, kv_heads=64, head_dim=224, rotary=False,
                                qkv_bias=True, output_bias=True),
        feed_forward=FeedForward(ffn_hidden=57344, gated=False, bias=True),
        norm="layernorm",
    )  # fmt: skip
    return model_of((block, layers), vocabulary=250000, tied=True)


@pytest.mark.parametrize(
    ("layout", "runs"),
    [
        (Layout(tp=8, dp=48, microbatches=42), False),
        (Layout(tp=2, pp=6, dp=32, microbatches=64, stage_layers=(12,) * 6), False),
        (Layout(tp=2, pp=6, dp=32, microbatch=2, microbatches=32, stage_layers=(12,) * 6), False),
        (Layout(tp=8, pp=2, dp=24, microbatch=2, microbatches=42, stage_layers=(36, 36)), True),
    ],
)
def test_a02_edge_of_memory(layout: Layout, runs: bool):
    """BigScience, chronicles-prequel: 181B on 384 A100; the last layout ran at 76 GB."""
    from dataclasses import replace

    layout = replace(layout, zero_stage=1, recompute="full")
    found = stages(bloom(72), layout, "megatron-deepspeed", length=2048, precision="fp16")
    capacity = load_device("a100-80g").memory_bytes
    assert (max(stage.device for stage in found) <= capacity) == runs
    if not runs and layout.pp > 1:
        states = ("parameters", "gradients", "master weights", "optimizer states")
        assert sum(found[0].categories[name] for name in states) > 0.9 * 73e9


def test_a04_zero_1_saves_only_with_replicas():
    plain = Layout(tp=8, pp=8, microbatches=8, stage_layers=(9,) * 8)
    from dataclasses import replace

    def states(layout: Layout) -> int:
        found = stages(bloom(72), layout, "megatron-deepspeed", length=2048, precision="fp16")
        return found[1].categories["optimizer states"] + found[1].categories["master weights"]

    assert states(replace(plain, zero_stage=1)) == states(plain)
    assert states(replace(plain, zero_stage=1, dp=2)) == pytest.approx(states(plain) / 2)


def test_a06_context_parallelism_keeps_the_peak():
    """torchtitan, 202412 table 2: sequence in proportion to cp; shards over dp x cp."""
    block = llama(4096, 32, 8, 14336)
    model = model_of((block, 32), vocabulary=128256)
    peaks = [
        stages(model, Layout(dp=8 // cp, cp=cp, zero_stage=3, recompute="full"), "torchtitan",
               "h100-96g", length=32768 * cp)[0].reserved / GIB
        for cp in (1, 2, 4, 8)
    ]  # fmt: skip
    assert max(peaks) == pytest.approx(min(peaks), rel=1e-6)
    assert peaks[0] == pytest.approx(83.9, rel=0.05)


def test_a17_pure_bf16_with_8_bit_adam():
    """torchtune: 70B on 8 x 80 GB at about 51 GB, which 16 to 18 bytes per parameter forbid."""
    model = model_of((llama(8192, 64, 8, 28672), 80), vocabulary=32000)
    layout = Layout(dp=8, zero_stage=3, recompute="full")
    (small,) = stages(model, layout, "torchtitan", length=512, precision="bf16-pure",
                      optimizer="adamw-8bit")  # fmt: skip
    resting = ("parameters", "gradients", "master weights", "optimizer states")
    per_rank = model.total_parameters / 8
    gradients = 2 * per_rank - small.categories["gradients"]  # none before the first reduction
    assert sum(small.categories[name] for name in resting) + gradients == pytest.approx(
        6 * per_rank
    )
    (usual,) = stages(model, layout, "torchtitan", length=512)
    assert usual.device > load_device("a100-80g").memory_bytes


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_a21_selective_recompute_saves_nothing_under_fused_attention(recompute: str):
    layout = Layout(tp=2, sequence_parallel=True, recompute=recompute)  # type: ignore[arg-type]
    (stage,) = stages(LLAMA_7B, layout, "megatron-core", "h100")
    (plain,) = stages(LLAMA_7B, Layout(tp=2, sequence_parallel=True), "megatron-core", "h100")
    assert stage.allocated == plain.allocated


def test_selective_recompute_saves_the_scores_of_unfused_attention():
    """Korthikanti et al. 2022: ``5 a s^2 b`` bytes per layer, cut by tp."""
    from dataclasses import replace

    framework = load_framework("megatron-lm")
    layout = Layout(tp=8)
    job = Job(global_batch=1, sequence_length=2048, precision="fp16")
    kept = [
        stage_memory(LLAMA_7B, job, framework, replace(layout, recompute=how))[0]  # type: ignore[arg-type]
        for how in ("none", "selective")
    ]
    saved = kept[0].categories["activations"] - kept[1].categories["activations"]
    assert saved == 32 * 5 * 32 * 2048**2 / 8


def test_a25_materialised_logits():
    """huggingface/trl 6858: 16,384 tokens, 248,320 words: 47.55 GiB, fused 6.05."""
    block = llama(2048, 16, 16, 8)
    model = model_of((block, 1), vocabulary=248320, tied=True)
    peaks = {}
    for fused in (False, True):
        layout = Layout(fused_loss=fused)
        (stage,) = stages(model, layout, "planner", "h100", length=16384)
        peaks[fused] = stage.categories["logits and loss"] / GIB
    # In the report weights and their gradient (1.9 GiB) are included.
    assert peaks[False] + 1.9 == pytest.approx(47.55, rel=0.02)
    assert peaks[True] < 0.4 * peaks[False]


@pytest.mark.parametrize(("vocabulary", "tokens", "copy_gib"), [
    (151936, 8192, 4.638), (151936, 32768, 18.55), (128256, 8192, 3.914), (256000, 16384, 15.63),
])  # fmt: skip
def test_d19_d20_a26_one_float32_copy_of_the_logits(vocabulary: int, tokens: int, copy_gib: float):
    """The unit of every report: ``tokens * vocabulary * 4`` bytes; an unfused loss takes three."""
    block = llama(2048, 16, 16, 8)
    (stage,) = stages(model_of((block, 1), vocabulary=vocabulary), Layout(), "planner",
                      length=tokens)  # fmt: skip
    assert tokens * vocabulary * 4 / GIB == pytest.approx(copy_gib, rel=1e-3)
    assert stage.categories["logits and loss"] / GIB == pytest.approx(3 * copy_gib, rel=0.02)


def test_d07_expert_parallelism_does_not_shrink_routed_activations():
    """On average a rank receives as many token copies as it sends."""
    kept, weights = [], []
    for ep in (1, 4, 8):
        layout = Layout(dp=8, ep=ep, zero_stage=1)
        (stage,) = stages(DEEPSEEK_V3_CUT, layout, "megatron-core", "b200")
        kept.append(stage.categories["activations"])
        weights.append(stage.categories["parameters"])
    assert kept[0] == kept[1] == kept[2]
    routed = 2 * 3 * 256 * 3 * 7168 * 2048
    assert weights[0] - weights[2] == pytest.approx(routed * 7 / 8, rel=1e-6)


def test_d04_buckets_outweigh_small_gradients():
    """DeepSpeed 1302: BERT under ZeRO-2 needs more than under ZeRO-1 with its buckets."""
    block = llama(768, 12, 12, 3072)
    model = model_of((block, 12), vocabulary=30522)
    one, two = (
        stages(model, Layout(dp=8, zero_stage=stage, microbatches=4), "deepspeed",
               precision="fp16", length=512)[0].categories  # type: ignore[arg-type]
        for stage in (1, 2)
    )  # fmt: skip
    assert two["gradient buckets"] > one["gradients"] - two["gradients"]


def test_d16_reserved_falls_less_than_states():
    """pytorch 82001: allocated nearly halves from 8 to 32 ranks, reserved does not."""
    small, large = (
        stages(LLAMA_7B, Layout(dp=dp, zero_stage=3, microbatch=2), "pytorch-fsdp1")[0]
        for dp in (8, 32)
    )
    assert large.reserved > small.reserved / 4 + 10 * GIB


def test_d18_communicators_take_memory():
    """NVIDIA/nccl 964: 544 MB for a pair, 688 MB for three and more."""
    (pair,) = stages(LLAMA_7B, Layout(tp=2), "planner")
    (node,) = stages(LLAMA_7B, Layout(tp=8), "planner")
    (mixed,) = stages(LLAMA_7B, Layout(tp=8, dp=4), "planner")
    assert pair.communicators == 544_000_000
    assert node.communicators == 688_000_000
    assert mixed.communicators == 2 * 688_000_000
    assert stages(LLAMA_7B, Layout(), "planner")[0].communicators == 0
