"""torchtitan's settings, and its TOML of 0.2.2 (the last generation with job files).

Names: ``torchtitan/config/job_config.py``, ``torchtitan/models/*/model/args.py``.
"""

from typing import Any

from planner.exports.accelerate import groups_unsaid, replicate_and_shard
from planner.exports.core import (
    Said,
    commented,
    header,
    order_unsaid,
)
from planner.exports.decoder import Decoder, decoder_of
from planner.layout import Layout
from planner.plan import Plan

VERSION = "0.2.2"
MODULE = "planned_model"
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B",
             "zbv": "ZBVZeroBubble", "dualpipe": "DualPipeV"}  # fmt: skip
LAST = ("norm", "output")


def mesh_options(layout: Layout) -> dict[str, Any]:
    """Degrees, by names that 0.2 and 0.3 share."""
    replicate, shard = replicate_and_shard(layout)
    return {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if layout.zero_stage == 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
    }


def pipeline_options(layout: Layout, last: tuple[str, ...] = LAST) -> dict[str, Any]:
    """The schedule and the modules of every stage; nothing without a pipeline."""
    if layout.pp == 1:
        return {}
    options: dict[str, Any] = {
        "pipeline_parallel_schedule": SCHEDULES.get(layout.schedule, "1F1B"),
        "pipeline_parallel_microbatch_size": layout.microbatch,
    }
    if layout.stage_layers:
        parts, start = [], 0
        for count in layout.stage_layers:
            parts.append([f"layers.{layer}" for layer in range(start, start + count)])
            start += count
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += last
        options["module_fqns_per_model_part"] = parts
    return options


def batch_options(plan: Plan) -> dict[str, Any]:
    """A pipeline takes all its microbatches at once; else gradients accumulate."""
    layout = plan.layout
    together = layout.microbatches if layout.pp > 1 else 1
    return {
        "local_batch_size": layout.microbatch * together,
        "global_batch_size": layout.global_batch,
        "seq_len": plan.job.sequence_length,
        "steps": 100,
        "dtype": "bfloat16" if plan.job.precision == "bf16-pure" else "float32",
        "mixed_precision_param": "float32" if plan.job.precision in ("fp32", "tf32")
        else "bfloat16",
    }  # fmt: skip


def say_torchtitan(plan: Plan) -> Said:
    """The tables of a job file."""
    layout, job = plan.layout, plan.job
    decoder, missing = decoder_of(plan.model)
    family, lost = family_of(decoder)
    options: dict[str, Any] = {
        "model": {"name": family, "flavor": plan.model.name,
                  "hf_assets_path": "./assets/hf/tokenizer"},
        "training": batch_options(plan),
        "parallelism": {**mesh_options(layout), **pipeline_options(layout)},
        "activation_checkpoint": {"mode": layout.recompute, "selective_ac_option": "op"},
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "lr_scheduler": {"warmup_steps": 2},
        "experimental": {"custom_import": MODULE},
    }  # fmt: skip
    if job.precision == "fp8":
        options["model"]["converters"] = ["quantize.linear.float8"]
    unsaid = [*missing, *lost, *shared_unsaid(plan)]
    if layout.tp > 1 and not layout.sequence_parallel:
        unsaid.append("tensor without sequence parallelism: 0.2 has no switch for it")
    if layout.fused_loss:
        unsaid.append("a fused loss: 0.2 computes whole logits")
    return Said(options=options, unsaid=tuple(unsaid))


def family_of(decoder: Decoder) -> tuple[str, list[str]]:
    """Which of torchtitan's models has this form, and what it lacks."""
    lost = []
    if decoder.num_experts:
        lost.append(f"model: {decoder.num_experts} experts")
    plain = decoder.norm == "rmsnorm" and decoder.gated and not decoder.positions
    if not plain or decoder.bias or decoder.qkv_bias:
        lost.append("model: only Llama's and Qwen3's form (RMSNorm, SwiGLU, rotary, no biases)")
    odd = decoder.head_dim * decoder.heads != decoder.hidden
    return "qwen3" if decoder.qk_norm or decoder.tied or odd else "llama3", lost


def shared_unsaid(plan: Plan) -> list[str]:
    """What no generation of torchtitan says."""
    layout, job = plan.layout, plan.job
    lost = order_unsaid(layout) + groups_unsaid(layout)
    if layout.zero_stage == 1:
        lost.append("ZeRO-1: FSDP2 shards gradients too, written as ZeRO-2")
    if layout.zero_stage == 0 and layout.cp > 1:
        lost.append("context parallelism without sharding: FSDP shards over it")
    if layout.zero_stage == 0 and layout.dp > 1 and (layout.tp > 1 or layout.pp > 1):
        lost.append("replicas that share nothing beside tensor or pipeline parallelism")
    if layout.pp > 1 and layout.schedule not in SCHEDULES:
        lost.append(f"schedule {layout.schedule}: it has {', '.join(SCHEDULES.values())}")
    if layout.cp > 1 and layout.cp_kind != "ring":
        lost.append("Ulysses context parallelism")
    if layout.recompute_layers:
        lost.append(f"full recompute of {layout.recompute_layers} layers: all or none")
    if layout.etp > 1:
        lost.append(f"experts over {layout.etp} tensor-parallel ranks")
    if layout.offload_optimizer:
        lost.append("offloaded optimizer states alone: enable_cpu_offload moves parameters too")
    if job.precision not in ("bf16", "bf16-pure", "fp32", "fp8"):
        lost.append(f"precision {job.precision}: it has bf16, fp8 and fp32")
    if job.optimizer != "adamw":
        lost.append(f"optimizer {job.optimizer}: it has AdamW")
    if job.lora_rank:
        lost.append(f"LoRA of rank {job.lora_rank}")
    return lost


def feed_forward_rule(decoder: Decoder) -> tuple[int, float]:
    """``multiple_of`` and ``ffn_dim_multiplier`` that give exactly this feed-forward width.

    torchtitan takes ``int(multiplier * int(8 * dim / 3))`` up to the next multiple.

    >>> from planner.catalogue import load_model
    >>> multiple, factor = feed_forward_rule(decoder_of(load_model("llama-7b"))[0])
    >>> -(-int(factor * int(8 * 4096 / 3)) // multiple) * multiple
    11008
    """
    multiple = decoder.ffn_hidden & -decoder.ffn_hidden
    base = int(8 * decoder.hidden / 3)
    return multiple, round((decoder.ffn_hidden - multiple / 2) / base, 6)


def write_torchtitan(said: Said, plan: Plan) -> dict[str, str]:
    """The job file, and the module that registers the model's size as a flavor."""
    import tomli_w

    lines = header("torchtitan", VERSION, plan, said)
    lines.append(f"use: PYTHONPATH=. torchrun ... -m torchtitan.train --job.config_file FILE "
                 f"({MODULE}.py beside it)")  # fmt: skip
    return {
        "torchtitan.toml": commented(lines) + tomli_w.dumps(dict(said.options)),
        f"{MODULE}.py": _module(plan),
    }


def _module(plan: Plan) -> str:
    decoder, _ = decoder_of(plan.model)
    family, _ = family_of(decoder)
    name = "TransformerModelArgs" if family == "llama3" else "Qwen3ModelArgs"
    numbers: dict[str, Any] = {
        "dim": decoder.hidden, "n_layers": decoder.num_layers, "n_heads": decoder.heads,
        "n_kv_heads": decoder.kv_heads, "vocab_size": decoder.vocabulary,
        "max_seq_len": plan.job.sequence_length,
    }  # fmt: skip
    if family == "llama3":
        multiple, factor = feed_forward_rule(decoder)
        numbers |= {"multiple_of": multiple, "ffn_dim_multiplier": factor}
    else:
        numbers |= {"head_dim": decoder.head_dim, "hidden_dim": decoder.ffn_hidden,
                    "qk_norm": decoder.qk_norm, "enable_weight_tying": decoder.tied}  # fmt: skip
    body = "".join(f"    {key}={value!r},\n" for key, value in numbers.items())
    return (
        f'"""Size of {plan.model.name}, for torchtitan {VERSION}: experimental.custom_import."""\n'
        f"\nfrom torchtitan.models.{family} import {family}_args\n"
        f"from torchtitan.models.{family}.model.args import {name}\n"
        f"\n{family}_args[{plan.model.name!r}] = {name}(\n{body})\n"
    )
