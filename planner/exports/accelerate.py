"""accelerate's YAML for FSDP2, as ``ClusterConfig`` of 1.15.0 loads it.

Names: ``accelerate/commands/config/config_args.py``, ``accelerate/parallelism_config.py``.
"""

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
from planner.exports.trainer import (
    FILE_NAME,
    say_trainer,
    script_unsaid,
    script_words,
    write_trainer,
)
from planner.exports.yaml_text import read_yaml, write_yaml
from planner.layout import Layout
from planner.plan import Plan

VERSION = "1.15.0"
_PREFIX = "parallelism_config_"


def replicate_and_shard(layout: Layout) -> tuple[int, int]:
    """Degrees of replication and of sharding along ``dp`` when FSDP shards over dp x cp.

    >>> replicate_and_shard(Layout(dp=8, zero_stage=3, zero_group=4))
    (2, 4)
    """
    if layout.zero_stage == 0:
        return layout.dp, 1
    replicate = max(layout.dp * layout.cp // layout.shard_group, 1)
    return replicate, max(layout.dp // replicate, 1)


def groups_unsaid(layout: Layout) -> list[str]:
    """A line if the shard group is no whole number of context-parallel groups."""
    replicate, shard = replicate_and_shard(layout)
    wrong = replicate * shard != layout.dp
    return [f"ZeRO in groups of {layout.shard_group}: they must hold whole context-parallel "
            f"groups of {layout.cp}"] if wrong else []  # fmt: skip


def say_accelerate(plan: Plan) -> Said:
    """Processes, FSDP2 and the mesh; batch and model belong to the script."""
    layout, job = plan.layout, plan.job
    replicate, shard = replicate_and_shard(layout)
    mixed = job.precision if job.precision in ("bf16", "fp16") else "no"
    sharded = layout.zero_stage > 0 or layout.tp > 1 or layout.cp > 1
    options: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU",
        "mixed_precision": mixed,
        "num_machines": max(-(-layout.world_size // plan.devices_per_node), 1),
        "num_processes": layout.world_size,
        "machine_rank": 0,
        "main_training_function": "main",
    }
    if sharded:
        options["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": layout.recompute == "full",
            "fsdp_cpu_ram_efficient_loading": True,
        }
        options["parallelism_config"] = {
            f"{_PREFIX}dp_replicate_size": replicate,
            f"{_PREFIX}dp_shard_size": shard,
            f"{_PREFIX}tp_size": layout.tp,
            f"{_PREFIX}cp_size": layout.cp,
        }
    script = say_trainer(plan)
    if sharded:
        # FSDP recomputes by itself; the Trainer's switch would do it once more.
        script["gradient_checkpointing"] = False
    return Said(
        options={**options, "trainer": script},
        unsaid=tuple(_unsaid(plan, shard)),
        script=script_words(plan),
    )


def _unsaid(plan: Plan, shard: int) -> list[str]:
    layout = plan.layout
    lost = order_unsaid(layout) + groups_unsaid(layout)
    if layout.pp > 1:
        lost.append(f"pipeline of {layout.pp} stages")
    if layout.zero_stage == 1:
        lost.append("ZeRO-1: FSDP2 shards gradients too, written as ZeRO-2")
    if layout.zero_stage == 0 and (layout.cp > 1 or (layout.tp > 1 and layout.dp > 1)):
        lost.append("replicas that share nothing beside tensor or context parallelism")
    if layout.tp > 1 and layout.dp > 1 and layout.zero_stage and shard == 1:
        lost.append("replicas with tensor parallelism: dp_shard_size must be above 1")
    if layout.sequence_parallel:
        lost.append("sequence parallelism of the tensor-parallel ranks")
    if layout.cp > 1 and layout.cp_kind != "ring":
        lost.append("Ulysses context parallelism: FSDP's context parallelism is a ring")
    if layout.ep > 1 or layout.etp > 1:
        lost.append(f"experts over {layout.ep} ranks")
    if layout.offload_optimizer:
        lost.append("offloaded optimizer states alone: fsdp_offload_params moves parameters too")
    return lost + script_unsaid(plan)


def write_accelerate(said: Said, plan: Plan) -> dict[str, str]:
    """The YAML, and the arguments of a Trainer's script."""
    options = {key: value for key, value in said.options.items() if key != "trainer"}
    lines = header("accelerate", VERSION, plan, said)
    lines.append("use: accelerate launch --config_file accelerate.yaml train.py " + FILE_NAME)
    return {
        "accelerate.yaml": commented(lines) + write_yaml(options),
        FILE_NAME: write_trainer(said.options["trainer"]),
    }


def read_accelerate(text: str) -> Reading:
    """The mesh and sharding of an accelerate configuration.

    Raises:
        ValueError: If it is no such file, or asks for another backend.
    """
    document = read_yaml(text)
    kind = str(document.get("distributed_type", ""))
    if not kind and "num_processes" not in document:
        raise Unrecognised(
            "found neither distributed_type nor num_processes: not accelerate's file"
        )
    if kind not in ("FSDP", "MULTI_GPU", "DEEPSPEED", "NO", "MULTI_CPU", ""):
        raise ValueError(f"distributed_type {kind} is not read; FSDP, MULTI_GPU, DEEPSPEED are")
    fsdp, mesh = table_of(document, "fsdp_config"), table_of(document, "parallelism_config")
    names = {"tp": f"{_PREFIX}tp_size", "cp": f"{_PREFIX}cp_size"}
    settings: dict[str, Any] = {f: whole(mesh, name, 1) for f, name in names.items()}
    sequence = whole(mesh, f"{_PREFIX}sp_size", 1)
    if sequence > 1:
        settings |= {"cp": sequence, "cp_kind": "ulysses"}
    settings |= _sharding(kind, fsdp, document)
    replicate = whole(mesh, f"{_PREFIX}dp_replicate_size", 1)
    shard = whole(mesh, f"{_PREFIX}dp_shard_size", 1)
    if mesh:
        settings["dp"] = replicate * shard
        if replicate > 1 and shard * settings["cp"] > 1:
            settings["zero_group"] = shard * settings["cp"]
        elif replicate > 1:
            settings["zero_stage"] = 0
    precision = str(document.get("mixed_precision", "no"))
    return Reading(
        settings=settings,
        names={**names, "dp": f"{_PREFIX}dp_replicate_size x dp_shard_size",
               "world_size": "num_processes"},
        world_size=whole(document, "num_processes"),
        precision=precision if precision in ("bf16", "fp16", "fp8") else "fp32",
        ignored=("parallelism_config is absent: FSDP shards over all processes",)
        if kind == "FSDP" and not mesh else (),
    )  # fmt: skip


def _sharding(kind: str, fsdp: Any, document: Any) -> dict[str, Any]:
    if kind == "DEEPSPEED":
        inner = table_of(document, "deepspeed_config")
        found: dict[str, Any] = {"zero_stage": whole(inner, "zero_stage")}
        if whole(inner, "gradient_accumulation_steps"):
            found["microbatches"] = whole(inner, "gradient_accumulation_steps")
        return found
    if kind != "FSDP":
        return {"zero_stage": 0}
    stage = 3
    reshard = fsdp.get("fsdp_reshard_after_forward", True)
    strategy = str(fsdp.get("fsdp_sharding_strategy", "")).upper()
    if reshard in (False, "false", "SHARD_GRAD_OP") or strategy in ("SHARD_GRAD_OP", "2"):
        stage = 2
    found = {"zero_stage": stage}
    if fsdp.get("fsdp_activation_checkpointing"):
        found["recompute"] = "full"
    return found
