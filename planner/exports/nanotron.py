"""nanotron's YAML, as its ``Config`` of 0.4 (main of 2026-04-07) reads it.

Names: ``src/nanotron/config/config.py``, ``parallelism_config.py``, ``models_config.py``.
"""

from collections.abc import Mapping
from typing import Any

from planner.exports.core import (
    Reading,
    Said,
    Unrecognised,
    commented,
    header,
    order_unsaid,
    table_of,
    whole,
)
from planner.exports.decoder import Decoder, decoder_of
from planner.exports.yaml_text import read_yaml, write_yaml
from planner.layout import Layout
from planner.plan import Plan
from planner.split_rules import nanotron_split

VERSION = "0.4 (main of 2026-04-07)"
_FIELDS = {"dp": "dp", "tp": "tp", "pp": "pp", "cp": "context_parallel_size",
           "ep": "expert_parallel_size"}  # fmt: skip
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def say_nanotron(plan: Plan) -> Said:
    """Every section that nanotron requires; data is its own dummy generator."""
    layout, job = plan.layout, plan.job
    decoder, missing = decoder_of(plan.model)
    options: dict[str, Any] = {
        "general": {"project": "planned", "run": plan.model.name, "seed": 42},
        "parallelism": {
            "dp": layout.dp, "pp": layout.pp, "tp": layout.tp,
            "pp_engine": "afab" if layout.schedule == "gpipe" else "1f1b",
            "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": layout.sequence_parallel,
            **_newer(layout),
        },
        "model": {
            "dtype": _DTYPES.get(job.precision, "bfloat16"), "ddp_bucket_cap_mb": 25,
            "init_method": {"std": 0.02}, "make_vocab_size_divisible_by": 1,
            "model_config": _model(decoder, job.sequence_length),
        },
        "tokens": {
            "sequence_length": job.sequence_length, "train_steps": 100,
            "micro_batch_size": layout.microbatch,
            "batch_accumulation_per_replica": layout.microbatches,
        },
        "optimizer": _optimizer(plan),
        "data_stages": [{"name": "train", "start_training_step": 1,
                         "data": {"dataset": None, "seed": 42, "num_loading_workers": 1}}],
        "logging": {"log_level": "info", "log_level_replica": "warning",
                    "iteration_step_info_interval": 1},
    }  # fmt: skip
    return Said(
        options=options,
        unsaid=(*missing, *_model_unsaid(decoder), *_unsaid(plan, decoder)),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


def _newer(layout: Layout) -> dict[str, Any]:
    """Options that 0.4 of the package index lacks: written only where they are not the default."""
    options = {
        "recompute_layer": layout.recompute == "full",
        "context_parallel_size": layout.cp if layout.cp > 1 else None,
        "expert_parallel_size": layout.ep if layout.ep > 1 else None,
    }
    return {key: value for key, value in options.items() if value}


def _model(decoder: Decoder, length: int) -> dict[str, Any]:
    return {
        "is_llama_config": True, "hidden_size": decoder.hidden,
        "intermediate_size": decoder.ffn_hidden, "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": decoder.heads, "num_key_value_heads": decoder.kv_heads,
        "vocab_size": decoder.vocabulary, "max_position_embeddings": length,
        "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "tie_word_embeddings": decoder.tied, "use_cache": True, "initializer_range": 0.02,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
    }  # fmt: skip


def _optimizer(plan: Plan) -> dict[str, Any]:
    return {
        "zero_stage": min(plan.layout.zero_stage, 1), "weight_decay": 0.1, "clip_grad": 1.0,
        "accumulate_grad_in_fp32": True,
        "optimizer_factory": {"name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95,
                              "adam_eps": 1e-8, "torch_adam_is_fused": True},
        "learning_rate_scheduler": {"learning_rate": 3e-4, "lr_warmup_steps": 2,
                                    "lr_warmup_style": "linear", "lr_decay_style": "cosine",
                                    "min_decay_lr": 3e-5},
    }  # fmt: skip


def _model_unsaid(decoder: Decoder) -> list[str]:
    plain = (decoder.norm == "rmsnorm" and decoder.gated and not decoder.positions
             and not decoder.bias and not decoder.qkv_bias and not decoder.qk_norm)  # fmt: skip
    lost = [] if plain else ["model: only Llama's form (RMSNorm, SwiGLU, rotary, no biases)"]
    if decoder.head_dim * decoder.heads != decoder.hidden:
        lost.append(f"model: heads of {decoder.head_dim}, hidden / heads instead")
    if decoder.num_experts:
        lost.append(f"model: {decoder.num_experts} experts")
    return lost


def default_split(decoder: Decoder, pp: int) -> tuple[int, ...]:
    """How nanotron itself would share out the layers."""
    layer = 4 * decoder.heads * decoder.head_dim * decoder.hidden
    layer += 3 * decoder.ffn_hidden * decoder.hidden
    return nanotron_split(
        [float(layer)] * decoder.num_layers, stages=pp,
        head_cost=float(decoder.vocabulary * decoder.hidden),
    )  # fmt: skip


def _unsaid(plan: Plan, decoder: Decoder) -> list[str]:
    layout, job = plan.layout, plan.job
    lost = order_unsaid(layout)
    if layout.zero_stage > 1:
        lost.append(f"ZeRO-{layout.zero_stage}: every stage above 0 is its ZeRO-1")
    if layout.zero_stage and layout.shard_group < layout.dp * layout.cp:
        lost.append(f"ZeRO in groups of {layout.shard_group}")
    if layout.recompute == "selective" or layout.recompute_layers:
        lost.append("selective recompute or of some layers: recompute_layer is all or none")
    if layout.vpp > 1:
        lost.append(f"{layout.vpp} chunks per pipeline rank")
    if layout.pp > 1 and layout.schedule not in ("1f1b", "gpipe"):
        lost.append(f"schedule {layout.schedule}: it has 1f1b and afab")
    own = default_split(decoder, layout.pp)
    if layout.pp > 1 and layout.stage_layers and layout.stage_layers != own:
        lost.append(f"split {'-'.join(map(str, layout.stage_layers))}: it splits "
                    f"{'-'.join(map(str, own))} by its own rule")  # fmt: skip
    if layout.cp > 1 and layout.cp_kind != "ring":
        lost.append("Ulysses context parallelism")
    if layout.etp > 1 or layout.offload_optimizer or layout.fused_loss:
        lost.append("expert tensor parallelism, offload or a fused loss")
    if decoder.kv_heads < layout.tp:
        lost.append(f"tp {layout.tp} above {decoder.kv_heads} key-value heads")
    if job.precision not in _DTYPES:
        lost.append(f"precision {job.precision}: it has bf16 and fp32")
    if job.optimizer != "adamw":
        lost.append(f"optimizer {job.optimizer}: it has AdamW")
    return lost


def write_nanotron(said: Said, plan: Plan) -> dict[str, str]:
    """The YAML that ``run_train.py --config-file`` takes."""
    lines = header("nanotron", VERSION, plan, said)
    return {"nanotron.yaml": commented(lines) + write_yaml(said.options)}


def read_nanotron(text: str) -> Reading:
    """The layout, batch and model of a nanotron run.

    Raises:
        ValueError: If it is no such file.
    """
    document = read_yaml(text)
    parallel, tokens = table_of(document, "parallelism"), table_of(document, "tokens")
    if "dp" not in parallel and "tp" not in parallel:
        raise Unrecognised("found no parallelism.dp: not a nanotron configuration")
    model = table_of(document, "model")
    decoder = _decoder(table_of(model, "model_config"), whole(tokens, "sequence_length"))
    settings: dict[str, Any] = {f: whole(parallel, key, 1) for f, key in _FIELDS.items()}
    settings |= {
        "sequence_parallel": settings["tp"] > 1
        and str(parallel.get("tp_mode", "")).upper() == "REDUCE_SCATTER",
        "recompute": "full" if parallel.get("recompute_layer") else "none",
        "schedule": "1f1b" if parallel.get("pp_engine") == "1f1b" else "gpipe",
        "zero_stage": min(whole(table_of(document, "optimizer"), "zero_stage"), 1),
    }
    names = {"microbatch": "micro_batch_size", "microbatches": "batch_accumulation_per_replica"}
    settings |= {f: whole(tokens, key, 1) for f, key in names.items() if key in tokens}
    if decoder and settings["pp"] > 1:
        settings["stage_layers"] = default_split(decoder, settings["pp"])
    dtype = str(model.get("dtype", "bfloat16"))
    return Reading(
        settings=settings,
        names={f: f"parallelism.{key}" for f, key in _FIELDS.items()}
        | {f: f"tokens.{key}" for f, key in names.items()},
        sequence_length=whole(tokens, "sequence_length"),
        precision={"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}.get(dtype, ""),
        optimizer="adamw",
        decoder=decoder,
    )


def _decoder(config: Mapping[str, Any], length: int) -> Decoder | None:
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    layers, vocabulary = whole(config, "num_hidden_layers"), whole(config, "vocab_size")
    if not (hidden and heads and layers and vocabulary):
        return None
    return Decoder(
        num_layers=layers, hidden=hidden,
        ffn_hidden=whole(config, "intermediate_size", 4 * hidden),
        heads=heads, kv_heads=whole(config, "num_key_value_heads", heads),
        head_dim=hidden // heads, vocabulary=vocabulary,
        tied=bool(config.get("tie_word_embeddings")), sequence_length=length or 2048,
    )  # fmt: skip
