"""Hugging Face ``TrainingArguments``: what DeepSpeed and accelerate leave to the script.

Names: ``transformers/training_args.py``; a JSON file that ``HfArgumentParser`` reads, or the
flags of a command.
"""

import json
from collections.abc import Mapping
from typing import Any

from planner.exports.core import Reading, Unrecognised, whole
from planner.exports.megatron_reading import flags_of, words_of
from planner.plan import Plan

FILE_NAME = "training-arguments.json"
OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit", "sgd": "sgd"}
LENGTHS = ("max_seq_length", "max_length", "block_size", "cutoff_len")
KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps")


def say_trainer(plan: Plan) -> dict[str, Any]:
    """The plan's batch, precision, recompute and optimizer as a Trainer's arguments."""
    layout, job = plan.layout, plan.job
    arguments: dict[str, Any] = {
        "output_dir": "output",
        "max_steps": 100,
        "per_device_train_batch_size": layout.microbatch,
        "gradient_accumulation_steps": layout.microbatches,
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
        "optim": OPTIMIZERS.get(job.optimizer, "adamw_torch_fused"),
        "gradient_checkpointing": layout.recompute == "full",
        "use_liger_kernel": layout.fused_loss is True,
    }
    if job.precision == "tf32":
        arguments["tf32"] = True
    return arguments


def script_unsaid(plan: Plan) -> list[str]:
    """What no Trainer argument says."""
    layout, job = plan.layout, plan.job
    lost = []
    if layout.recompute == "selective":
        lost.append("selective recompute: the script's own code decides it")
    if layout.recompute_layers:
        lost.append(f"recompute of {layout.recompute_layers} layers: all or none can be said")
    if job.precision not in ("bf16", "fp16", "fp32", "tf32"):
        lost.append(f"precision {job.precision}: it has fp32, tf32, fp16 and bf16")
    if job.optimizer not in OPTIMIZERS:
        lost.append(f"optimizer {job.optimizer}")
    if job.lora_rank:
        lost.append(f"LoRA of rank {job.lora_rank}: the script makes adapters")
    return lost


def script_words(plan: Plan) -> tuple[str, ...]:
    """What the script has to be told beside the files."""
    model = f"{plan.model.name}, sequences of {plan.job.sequence_length} tokens"
    return (f"model and data: {model}", f"arguments: {FILE_NAME}")


def write_trainer(arguments: Mapping[str, Any]) -> str:
    """The JSON file of the arguments."""
    return json.dumps(dict(arguments), indent=2) + "\n"


def read_trainer(text: str) -> Reading:
    """The batch, precision and sharding of a Trainer's arguments, JSON or flags.

    Raises:
        ValueError: If it holds no such argument.
    """
    arguments = _arguments(text)
    if not any(key in arguments for key in (*KEYS, "gradient_checkpointing", "fsdp")):
        raise Unrecognised(f"found no Trainer argument such as {KEYS[0]}")
    settings: dict[str, Any] = {}
    if KEYS[0] in arguments:
        settings["microbatch"] = whole(arguments, KEYS[0], 8)
    if KEYS[1] in arguments:
        settings["microbatches"] = whole(arguments, KEYS[1], 1)
    if "gradient_checkpointing" in arguments:
        settings["recompute"] = "full" if _truth(arguments["gradient_checkpointing"]) else "none"
    if _truth(arguments.get("use_liger_kernel")):
        settings["fused_loss"] = True
    settings |= _fsdp(str(arguments.get("fsdp") or ""))
    inline = arguments.get("deepspeed")
    if isinstance(inline, dict):
        from planner.exports.deepspeed import read_deepspeed

        inner = read_deepspeed(json.dumps(inline))
        settings = {**inner.settings, **settings}
    optimizers = {name: key for key, name in OPTIMIZERS.items()}
    optim = str(arguments.get("optim", ""))
    return Reading(
        settings=settings,
        names={"microbatch": KEYS[0], "microbatches": KEYS[1]},
        sequence_length=next((whole(arguments, key) for key in LENGTHS if key in arguments), 0),
        precision=_precision(arguments),
        optimizer=optimizers.get(optim, "adamw" if optim.startswith("adamw_torch") else ""),
        ignored=(f"deepspeed {inline}: give that file as well",) if isinstance(inline, str)
        else (),
    )  # fmt: skip


def _arguments(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not valid JSON: {error.msg} in line {error.lineno}") from None
        return dict(document)
    return {name.replace("-", "_"): value for name, value in flags_of(words_of(text)).items()}


def _truth(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on")


def _precision(arguments: Mapping[str, Any]) -> str:
    for name in ("bf16", "fp16", "tf32"):
        if _truth(arguments.get(name)):
            return name
    return "fp32" if "bf16" in arguments or "fp16" in arguments else ""


def _fsdp(words: str) -> dict[str, Any]:
    """``--fsdp "full_shard auto_wrap"`` and its kin."""
    for word, stage in (("full_shard", 3), ("hybrid_shard", 3), ("shard_grad_op", 2)):
        if word in words:
            return {"zero_stage": stage}
    return {}
