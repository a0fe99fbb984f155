"""Megatron-Bridge's YAML of overrides on a recipe.

Names: ``megatron/bridge/training/config.py`` (``ConfigContainer``) of 0.6.2; read, not run.
"""

from collections.abc import Mapping
from typing import Any

from planner.exports.core import (
    Reading,
    Said,
    Unrecognised,
    commented,
    flatten,
    header,
    table_of,
    whole,
)
from planner.exports.decoder import Decoder
from planner.exports.megatron import say_megatron
from planner.exports.megatron_reading import stage_layers_of
from planner.exports.yaml_text import read_yaml, write_yaml
from planner.plan import Plan

VERSION = "0.6.2"
_PRECISIONS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed",
               "fp8": "bf16_with_fp8_delayed_scaling_mixed"}  # fmt: skip
_MODEL = {
    "num-layers": "num_layers", "hidden-size": "hidden_size",
    "ffn-hidden-size": "ffn_hidden_size", "num-attention-heads": "num_attention_heads",
    "num-query-groups": "num_query_groups", "kv-channels": "kv_channels",
    "vocab-size": "vocab_size", "normalization": "normalization",
    "position-embedding-type": "position_embedding_type", "add-qkv-bias": "add_qkv_bias",
    "qk-layernorm": "qk_layernorm", "num-experts": "num_moe_experts",
    "moe-router-topk": "moe_router_topk", "moe-ffn-hidden-size": "moe_ffn_hidden_size",
    "moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size",
    "moe-token-dispatcher-type": "moe_token_dispatcher_type",
    "tensor-model-parallel-size": "tensor_model_parallel_size",
    "pipeline-model-parallel-size": "pipeline_model_parallel_size",
    "context-parallel-size": "context_parallel_size", "cp-comm-type": "cp_comm_type",
    "expert-model-parallel-size": "expert_model_parallel_size",
    "expert-tensor-parallel-size": "expert_tensor_parallel_size",
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
    "sequence-parallel": "sequence_parallel", "recompute-granularity": "recompute_granularity",
    "recompute-method": "recompute_method", "recompute-num-layers": "recompute_num_layers",
    "recompute-modules": "recompute_modules",
    "cross-entropy-loss-fusion": "cross_entropy_loss_fusion",
    "cross-entropy-fusion-impl": "cross_entropy_fusion_impl",
}  # fmt: skip
"""Fields of ``model`` by Megatron-LM's flag: Bridge keeps the dataclass's names."""


def say_bridge(plan: Plan) -> Said:
    """The plan as overrides of a recipe's ``ConfigContainer``."""
    flags = say_megatron(plan)
    words, length = flags.options, plan.job.sequence_length
    sharded = bool(words.get("use-distributed-optimizer"))
    model: dict[str, Any] = {name: words[flag] for flag, name in _MODEL.items() if flag in words}
    model |= {
        "seq_length": length,
        "gated_linear_unit": bool(words.get("swiglu")),
        "max_position_embeddings": words["max-position-embeddings"],
        "add_bias_linear": "disable-bias-linear" not in words,
        "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights" not in words,
    }
    ddp = {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": bool(words.get("overlap-grad-reduce")),
        "overlap_param_gather": bool(words.get("overlap-param-gather")),
        "use_megatron_fsdp": bool(words.get("use-megatron-fsdp")),
        "data_parallel_sharding_strategy": words.get("data-parallel-sharding-strategy",
                                                     "no_shard"),
        "num_distributed_optimizer_instances": words.get("num-distributed-optimizer-instances",
                                                         1),
    }  # fmt: skip
    options: dict[str, Any] = {
        "model": model,
        "dataset": {"seq_length": length},
        "train": {"micro_batch_size": words["micro-batch-size"],
                  "global_batch_size": words["global-batch-size"]},
        "ddp": ddp,
        "optimizer": {"optimizer": words["optimizer"], "use_distributed_optimizer": sharded},
        "dist": {"use_tp_pp_dp_mapping": bool(words.get("use-tp-pp-dp-mapping"))},
    }  # fmt: skip
    if words.get("optimizer-cpu-offload"):
        options["optimizer"] |= {"optimizer_cpu_offload": True,
                                 "use_precision_aware_optimizer": True}  # fmt: skip
    unsaid = list(flags.unsaid)
    if plan.job.precision in _PRECISIONS:
        options["mixed_precision"] = _PRECISIONS[plan.job.precision]
    elif plan.job.precision == "fp4":
        unsaid.append("precision fp4: name a recipe of Bridge's own")
    if sharded and words.get("use-megatron-fsdp"):
        options["checkpoint"] = {"ckpt_format": "fsdp_dtensor"}
    return Said(options=options, unsaid=tuple(unsaid), environment=flags.environment)


def write_bridge(said: Said, plan: Plan) -> dict[str, str]:
    """The YAML that a recipe's script takes by ``--config-file``."""
    lines = header("Megatron-Bridge", VERSION, plan, said)
    lines.append("overrides: of any recipe's ConfigContainer, of its model's family")
    return {"megatron-bridge.yaml": commented(lines) + write_yaml(said.options)}


def read_bridge(text: str) -> Reading:
    """The layout, batch and model of a YAML of overrides.

    Raises:
        ValueError: If it is no such file.
    """
    document = read_yaml(text)
    model, train, ddp = (table_of(document, key) for key in ("model", "train", "ddp"))
    degree = "tensor_model_parallel_size"
    if degree not in model and "pipeline_model_parallel_size" not in model:
        raise Unrecognised(f"found no model.{degree}: not a Megatron-Bridge configuration")
    fields = {
        "tp": degree, "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size",
    }  # fmt: skip
    settings: dict[str, Any] = {f: whole(model, name, 1) for f, name in fields.items()}
    if "micro_batch_size" in train:
        settings["microbatch"] = whole(train, "micro_batch_size")
    settings["sequence_parallel"] = bool(model.get("sequence_parallel"))
    settings |= _pipeline(model, settings["pp"]) | _zero(ddp, document)
    vpp = settings.get("vpp", 1)
    settings |= _recompute(model, vpp)
    if table_of(document, "dist").get("use_tp_pp_dp_mapping"):
        settings["axis_order"] = ("tp", "cp", "pp", "dp")
    if str(model.get("cp_comm_type", "p2p")).startswith("a2a"):
        settings["cp_kind"] = "ulysses"
    if model.get("cross_entropy_loss_fusion"):
        settings["fused_loss"] = True
    length = whole(model, "seq_length") or whole(table_of(document, "dataset"), "seq_length")
    precision = {name: key for key, name in _PRECISIONS.items()}
    optimizer = str(table_of(document, "optimizer").get("optimizer", ""))
    return Reading(
        settings=settings,
        names={f: f"model.{name}" for f, name in fields.items()}
        | {"microbatch": "train.micro_batch_size", "global_batch": "train.global_batch_size"},
        global_batch=whole(train, "global_batch_size"),
        sequence_length=length,
        precision=precision.get(str(document.get("mixed_precision")), ""),
        optimizer={"adam": "adamw", "sgd": "sgd-momentum"}.get(optimizer, ""),
        decoder=_decoder(model, length),
    )


def _pipeline(model: Mapping[str, Any], pp: int) -> dict[str, Any]:
    layout = model.get("pipeline_model_parallel_layout")
    if isinstance(layout, str):
        split = stage_layers_of(layout)
        vpp = len(split) // pp
        chunks = {"vpp": vpp, "schedule": "interleaved"} if vpp > 1 else {}
        return {"stage_layers": split, **chunks}
    vpp = whole(model, "virtual_pipeline_model_parallel_size", 1)
    return {"vpp": vpp, "schedule": "interleaved"} if vpp > 1 else {}


def _zero(ddp: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    stage = 1 if ddp.get("use_distributed_optimizer") else 0
    if ddp.get("use_megatron_fsdp"):
        stage = strategies[str(ddp.get("data_parallel_sharding_strategy", "no_shard"))]
    found: dict[str, Any] = {"zero_stage": stage}
    instances = whole(ddp, "num_distributed_optimizer_instances", 1)
    if instances > 1:
        found["zero_instances"] = instances
    if flatten(document).get("optimizer.optimizer_cpu_offload"):
        found["offload_optimizer"] = True
    return found


def _recompute(model: Mapping[str, Any], vpp: int) -> dict[str, Any]:
    granularity = model.get("recompute_granularity")
    some = model.get("recompute_method") == "block"
    return {
        "recompute": granularity or "none",
        "recompute_layers": whole(model, "recompute_num_layers") * vpp if some else 0,
    }


def _decoder(model: Mapping[str, Any], length: int) -> Decoder | None:
    hidden, heads = whole(model, "hidden_size"), whole(model, "num_attention_heads")
    if not (hidden and heads and whole(model, "num_layers") and whole(model, "vocab_size")):
        return None
    bias = bool(model.get("add_bias_linear", True))
    gated = bool(model.get("gated_linear_unit"))
    experts = whole(model, "num_moe_experts")
    ffn = whole(model, "ffn_hidden_size", 4 * hidden)
    rotary = model.get("position_embedding_type", "learned_absolute") != "learned_absolute"
    return Decoder(
        num_layers=whole(model, "num_layers"), hidden=hidden, heads=heads,
        ffn_hidden=whole(model, "moe_ffn_hidden_size", ffn) if experts else ffn,
        kv_heads=whole(model, "num_query_groups", heads),
        head_dim=whole(model, "kv_channels", hidden // heads),
        vocabulary=whole(model, "vocab_size"),
        positions=0 if rotary else whole(model, "max_position_embeddings", length),
        norm="rmsnorm" if model.get("normalization") == "RMSNorm" else "layernorm",
        gated=gated, activation="silu" if gated else "gelu",
        qkv_bias=bias or bool(model.get("add_qkv_bias")), bias=bias,
        qk_norm=bool(model.get("qk_layernorm")),
        tied=bool(model.get("share_embeddings_and_output_weights", True)),
        num_experts=experts,
        experts_per_token=whole(model, "moe_router_topk", 2) if experts else 0,
        shared_ffn_hidden=whole(model, "moe_shared_expert_intermediate_size"),
        sequence_length=length or 2048,
    )  # fmt: skip
