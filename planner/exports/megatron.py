"""Megatron-LM's arguments, as megatron-core 0.19.2 parses them.

Names: ``megatron/training/arguments.py``, ``megatron/core/model_parallel_config.py``,
``megatron/core/transformer/transformer_config.py``.
"""

from typing import Any

from planner.exports.core import Said, commented, header, order_unsaid
from planner.exports.decoder import Decoder, decoder_of
from planner.layout import Axis, Layout
from planner.plan import Plan

VERSION = "core 0.19.2"
ORDERS: tuple[tuple[Axis, ...], ...] = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
"""By default, and with ``--use-tp-pp-dp-mapping``."""
STRATEGIES = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
OPTIMIZERS = {"adamw": "adam", "sgd-momentum": "sgd", "sgd": "sgd"}


def say_megatron(plan: Plan) -> Said:
    """A plan as Megatron's flags, without their dashes; ``True`` for a switch."""
    layout, job = plan.layout, plan.job
    decoder, missing = decoder_of(plan.model)
    words, unsaid = model_flags(decoder, job.sequence_length)
    options: dict[str, Any] = {
        **words,
        "micro-batch-size": layout.microbatch,
        "global-batch-size": layout.global_batch,
        **parallel_flags(layout),
        **pipeline_flags(layout),
        **zero_flags(layout),
        **recompute_flags(layout),
        **number_flags(plan),
        **run_flags(plan, decoder),
    }
    sharded = layout.zero_stage >= 2
    several = layout.tp > 1 or layout.cp > 1
    return Said(
        options=options,
        unsaid=(*missing, *unsaid, *layout_unsaid(plan)),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if several and not sharded else {},
    )


def model_flags(decoder: Decoder, length: int) -> tuple[dict[str, Any], list[str]]:
    """The architecture's flags, and what of it has none."""
    flags: dict[str, Any] = {
        "num-layers": decoder.num_layers,
        "hidden-size": decoder.hidden,
        "ffn-hidden-size": decoder.ffn_hidden,
        "num-attention-heads": decoder.heads,
        "kv-channels": decoder.head_dim,
        "seq-length": length,
        "max-position-embeddings": max(decoder.positions, length),
        "vocab-size": decoder.vocabulary,
        "make-vocab-size-divisible-by": 128,
        "normalization": "RMSNorm" if decoder.norm == "rmsnorm" else "LayerNorm",
        "position-embedding-type": "learned_absolute" if decoder.positions else "rope",
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
    }
    if decoder.kv_heads != decoder.heads:
        flags |= {"group-query-attention": True, "num-query-groups": decoder.kv_heads}
    switches = {
        "swiglu": decoder.gated,
        "squared-relu": decoder.activation == "relu2" and not decoder.gated,
        "disable-bias-linear": not decoder.bias,
        "add-qkv-bias": decoder.qkv_bias and not decoder.bias,
        "qk-layernorm": decoder.qk_norm,
        "untie-embeddings-and-output-weights": not decoder.tied,
    }
    flags |= {name: True for name, on in switches.items() if on}
    if decoder.num_experts:
        flags |= {
            "num-experts": decoder.num_experts, "moe-router-topk": decoder.experts_per_token,
            "moe-ffn-hidden-size": decoder.ffn_hidden,
            "moe-token-dispatcher-type": "alltoall", "moe-grouped-gemm": True,
        }  # fmt: skip
        if decoder.shared_ffn_hidden:
            flags["moe-shared-expert-intermediate-size"] = decoder.shared_ffn_hidden
    plain = decoder.activation in ("gelu", "gelu-tanh", "silu", "relu2") or decoder.gated
    return flags, [] if plain else [f"model: activation {decoder.activation}, gelu instead"]


def parallel_flags(layout: Layout) -> dict[str, Any]:
    """Degrees and the order of ranks; the data-parallel degree is what the ranks leave."""
    flags: dict[str, Any] = {
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
    }
    if layout.sequence_parallel:
        flags["sequence-parallel"] = True
    if layout.cp > 1:
        flags["cp-comm-type"] = "p2p" if layout.cp_kind == "ring" else "a2a"
    if layout.ep > 1:
        flags["expert-model-parallel-size"] = layout.ep
    if layout.ep > 1 or layout.etp > 1:
        flags["expert-tensor-parallel-size"] = layout.etp
    if order_unsaid(layout, ORDERS[:1]) and not order_unsaid(layout, ORDERS[1:]):
        flags["use-tp-pp-dp-mapping"] = True
    return flags


def pipeline_flags(layout: Layout) -> dict[str, Any]:
    """Equal stages by their number, others by the layers of each."""
    split = layout.stage_layers
    if layout.pp == 1:
        return {}
    if len(set(split)) > 1:
        stages = [f"t*{layers}" if layers > 1 else "t" * layers for layers in split]
        stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
        return {"pipeline-model-parallel-layout": "|".join(stages)}
    return {"num-virtual-stages-per-pipeline-rank": layout.vpp} if layout.vpp > 1 else {}


def zero_flags(layout: Layout) -> dict[str, Any]:
    """ZeRO-1 by the distributed optimizer, ZeRO-2 and 3 by Megatron-FSDP."""
    replicas = layout.dp * layout.cp
    if layout.zero_stage == 0 or layout.shard_group == 1:
        return {"overlap-grad-reduce": True} if replicas > 1 else {}
    flags: dict[str, Any] = {"use-distributed-optimizer": True}
    if layout.zero_stage > 1:
        flags |= {
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": STRATEGIES[layout.zero_stage],
            "ckpt-format": "fsdp_dtensor",
        }
    flags |= {"overlap-grad-reduce": True, "overlap-param-gather": True}
    if layout.shard_group < replicas:
        flags["num-distributed-optimizer-instances"] = replicas // layout.shard_group
    if layout.offload_optimizer:
        flags |= {"optimizer-cpu-offload": True, "use-precision-aware-optimizer": True}
    return flags


def recompute_flags(layout: Layout) -> dict[str, Any]:
    """Selective, every layer, or some layers of each (virtual) stage."""
    if layout.recompute == "none":
        return {}
    if layout.recompute == "selective":
        return {"recompute-granularity": "selective", "recompute-modules": ["core_attn"]}
    some = layout.recompute_layers
    return {
        "recompute-granularity": "full",
        "recompute-method": "block" if some else "uniform",
        "recompute-num-layers": max(some // layout.vpp, 1) if some else 1,
    }


def number_flags(plan: Plan) -> dict[str, Any]:
    """Formats and the optimizer."""
    flags: dict[str, Any] = {}
    precision = plan.job.precision
    if precision in ("bf16", "fp8", "fp4"):
        flags["bf16"] = True
    if precision == "fp16":
        flags["fp16"] = True
    if precision == "fp8":
        flags["fp8-format"] = "hybrid"
    if precision == "fp4":
        flags["fp4-format"] = "e2m1"
    if plan.layout.fused_loss:
        flags |= {"cross-entropy-loss-fusion": True, "cross-entropy-fusion-impl": "te"}
    flags["optimizer"] = OPTIMIZERS.get(plan.job.optimizer, "adam")
    return flags


def run_flags(plan: Plan, decoder: Decoder) -> dict[str, Any]:
    """What a run needs beside the plan: placeholders of a benchmark run."""
    return {
        "train-iters": 100, "lr": 3e-4, "lr-decay-style": "cosine", "min-lr": 3e-5,
        "weight-decay": 0.1, "clip-grad": 1.0, "mock-data": True,
        "tokenizer-type": "NullTokenizer", "log-interval": 1, "log-throughput": True,
        "eval-iters": 0,
    }  # fmt: skip


def layout_unsaid(plan: Plan) -> list[str]:
    """What neither Megatron-LM nor Megatron-Bridge has a word for."""
    layout, job = plan.layout, plan.job
    lost = order_unsaid(layout, ORDERS)
    if layout.pp > 1 and layout.schedule not in ("1f1b", "interleaved"):
        lost.append(f"schedule {layout.schedule}: it runs 1f1b, or interleaved with chunks")
    if layout.recompute_layers % layout.vpp:
        lost.append(f"recompute of {layout.recompute_layers} layers: it counts layers of each of "
                    f"the {layout.vpp} chunks")  # fmt: skip
    if job.precision not in ("bf16", "fp16", "fp8", "fp4", "fp32"):
        lost.append(f"precision {job.precision}: it has fp32, fp16, bf16, fp8 and fp4")
    if job.optimizer not in ("adamw", "sgd-momentum"):
        lost.append(f"optimizer {job.optimizer}: it has adam and sgd with momentum")
    if job.lora_rank:
        lost.append(f"LoRA of rank {job.lora_rank}: it trains every parameter")
    if layout.offload_optimizer and layout.zero_stage == 0:
        lost.append("offloaded optimizer states without the distributed optimizer")
    return lost


def flag_words(options: dict[str, Any]) -> list[str]:
    """Flags as one line of the command each.

    >>> flag_words({"bf16": True, "num-layers": 4, "recompute-modules": ["core_attn", "mlp"]})
    ['--bf16', '--num-layers 4', '--recompute-modules core_attn mlp']
    """
    lines = []
    for name, value in options.items():
        if value is True:
            lines.append(f"--{name}")
        elif isinstance(value, list):
            lines.append(f"--{name} {' '.join(map(str, value))}")
        else:
            text = str(value)
            lines.append(f"--{name} '{text}'" if set(text) & set("|*") else f"--{name} {text}")
    return lines


def write_megatron(said: Said, plan: Plan) -> dict[str, str]:
    """A file of arguments, one to a line, that a shell reads into an array."""
    lines = header("Megatron-LM", VERSION, plan, said)
    lines.append("use: torchrun ... pretrain_gpt.py $(sed '/^#/d' megatron-arguments.txt | xargs)")
    return {
        "megatron-arguments.txt": commented(lines)
        + "\n".join(flag_words(dict(said.options)))
        + "\n"
    }
