"""DeepSpeed's JSON, as ``DeepSpeedConfig`` of 0.19.8 reads it, and a Trainer's arguments.

Names: ``deepspeed/runtime/constants.py``, ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py``.
"""

import json
from collections.abc import Mapping
from typing import Any

from planner.exports.core import Reading, Said, Unrecognised, order_unsaid, table_of, whole
from planner.exports.trainer import (
    FILE_NAME,
    say_trainer,
    script_unsaid,
    script_words,
    write_trainer,
)
from planner.plan import Plan

VERSION = "0.19.8"
OPTIMIZERS = {"adamw": "AdamW", "lamb": "Lamb", "sgd": "SGD"}
KNOWN = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization",
         "gradient_accumulation_steps")  # fmt: skip


def say_deepspeed(plan: Plan) -> Said:
    """Batch, ZeRO, tensor parallelism and precision."""
    layout, job = plan.layout, plan.job
    options: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.microbatch,
        "gradient_accumulation_steps": layout.microbatches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": job.precision == "bf16"},
        "fp16": {"enabled": job.precision == "fp16"},
        "zero_optimization": _zero(plan),
    }
    if job.optimizer in OPTIMIZERS:
        options["optimizer"] = {"type": OPTIMIZERS[job.optimizer], "params": {"lr": 3e-4}}
    if layout.tp > 1:
        options["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.cp > 1:
        options["sequence_parallel_size"] = layout.cp
    script = {**say_trainer(plan), "deepspeed": "deepspeed.json"}
    return Said(
        options={**options, "trainer": script},
        unsaid=tuple(_unsaid(plan)),
        script=script_words(plan),
    )


def _zero(plan: Plan) -> dict[str, Any]:
    layout = plan.layout
    zero: dict[str, Any] = {"stage": layout.zero_stage}
    if layout.zero_stage:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    if layout.zero_stage == 3 and layout.shard_group < layout.dp * layout.cp:
        zero["mics_shard_size"] = layout.shard_group
    if layout.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return zero


def _unsaid(plan: Plan) -> list[str]:
    layout, job = plan.layout, plan.job
    lost = order_unsaid(layout)
    if layout.pp > 1:
        lost.append(f"pipeline of {layout.pp} stages: PipelineModule(num_stages={layout.pp}) in "
                    "the script's code")  # fmt: skip
    if layout.sequence_parallel:
        lost.append("sequence parallelism of the tensor-parallel ranks")
    if layout.tp > 1 and layout.zero_stage == 3:
        lost.append("ZeRO-3 with tensor parallelism: autotp trains with ZeRO up to 2")
    if layout.cp > 1 and layout.cp_kind != "ulysses":
        lost.append("ring context parallelism: sequence_parallel_size is Ulysses'")
    if layout.ep > 1 or layout.etp > 1:
        lost.append(f"experts over {layout.ep} ranks: the model's code places them")
    if 0 < layout.zero_stage < 3 and layout.shard_group < layout.dp * layout.cp:
        lost.append(f"ZeRO-{layout.zero_stage} in groups of {layout.shard_group}: only ZeRO-3 "
                    "shards in groups")  # fmt: skip
    return lost + [line for line in script_unsaid(plan) if job.optimizer not in line]


def write_deepspeed(said: Said, plan: Plan) -> dict[str, str]:
    """The JSON, and the arguments of a Trainer that takes it."""
    options = {key: value for key, value in said.options.items() if key != "trainer"}
    return {
        "deepspeed.json": json.dumps(options, indent=2) + "\n",
        FILE_NAME: write_trainer(said.options["trainer"]),
    }


def read_deepspeed(text: str) -> Reading:
    """The batch and sharding of a DeepSpeed configuration.

    Raises:
        ValueError: If it is not JSON, or not DeepSpeed's.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(document, dict) or not any(key in document for key in KNOWN[:3]):
        raise Unrecognised(f"found none of {', '.join(KNOWN[:3])}: not a DeepSpeed configuration")
    zero = table_of(document, "zero_optimization")
    settings: dict[str, Any] = {"zero_stage": whole(zero, "stage")}
    fields = {"microbatch": KNOWN[1], "microbatches": KNOWN[3]}
    for field, key in fields.items():
        if whole(document, key):
            settings[field] = whole(document, key)
    if table_of(zero, "offload_optimizer").get("device") in ("cpu", "nvme"):
        settings["offload_optimizer"] = True
    if whole(zero, "mics_shard_size"):
        settings["zero_group"] = whole(zero, "mics_shard_size")
    tp = whole(table_of(document, "tensor_parallel"), "autotp_size")
    if tp > 1:
        settings["tp"] = tp
    if whole(document, "sequence_parallel_size", 1) > 1:
        settings |= {"cp": whole(document, "sequence_parallel_size"), "cp_kind": "ulysses"}
    kind = str(table_of(document, "optimizer").get("type", "")).lower()
    return Reading(
        settings=settings,
        names={**fields, "global_batch": KNOWN[0], "tp": "tensor_parallel.autotp_size",
               "zero_stage": "zero_optimization.stage", "cp": "sequence_parallel_size"},
        global_batch=whole(document, "train_batch_size"),
        precision=_precision(document),
        optimizer={"adam": "adamw", "adamw": "adamw", "lamb": "lamb", "sgd": "sgd"}.get(kind, ""),
        ignored=("pipeline.stages is not used by DeepSpeed: the code sets it",)
        if "stages" in table_of(document, "pipeline") else (),
    )  # fmt: skip


def _precision(document: Mapping[str, Any]) -> str:
    for name in ("bf16", "bfloat16", "fp16"):
        if table_of(document, name).get("enabled") is True:
            return "bf16" if name.startswith("bf") else name
    said = [table_of(document, name).get("enabled") for name in ("bf16", "fp16")]
    return "" if any(isinstance(value, str) for value in said) else "fp32"
