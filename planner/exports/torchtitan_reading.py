"""Read torchtitan's settings: the names that its TOML of 0.2 and its Python of 0.3 share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.exports.core import Reading, Unrecognised, table_of, whole
from planner.exports.decoder import Decoder
from planner.exports.torchtitan import SCHEDULES


def read_torchtitan(text: str) -> Reading:
    """The layout and batch of a job file; the model's size is torchtitan's own knowledge.

    Raises:
        ValueError: If it is not TOML, or not torchtitan's.
    """
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    if "parallelism" not in document and "training" not in document:
        raise Unrecognised("found neither [parallelism] nor [training]: not torchtitan's job file")
    model = table_of(document, "model")
    name, flavor = str(model.get("name", "llama3")), str(model.get("flavor", ""))
    mode = str(table_of(document, "activation_checkpoint").get("mode", "selective"))
    reading = reading_of(
        table_of(document, "parallelism"), table_of(document, "training"), mode=mode,
        sequence_parallel=True, float8="float8" in str(model.get("converters", "")),
    )  # fmt: skip
    return replace(reading, decoder=FLAVORS.get((name, flavor)))


def reading_of(
    parallel: Mapping[str, Any],
    training: Mapping[str, Any],
    *,
    mode: str,
    sequence_parallel: bool,
    float8: bool = False,
) -> Reading:
    """The layout that torchtitan's own names say, in either generation."""
    degrees = {"tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree",
               "cp": "context_parallel_degree", "ep": "expert_parallel_degree"}  # fmt: skip
    settings: dict[str, Any] = {f: whole(parallel, key, 1) for f, key in degrees.items()}
    settings["sequence_parallel"] = sequence_parallel and settings["tp"] > 1
    replicate = whole(parallel, "data_parallel_replicate_degree", 1)
    shard = whole(parallel, "data_parallel_shard_degree", -1)
    settings |= _data_parallel(replicate, shard, settings["cp"])
    if settings.get("zero_stage", 1):
        reshard = parallel.get("fsdp_reshard_after_forward", "default")
        keeps = reshard == "never" or (reshard == "default" and settings["pp"] > 1)
        settings["zero_stage"] = 2 if keeps else 3
    settings["recompute"] = mode if mode in ("none", "selective", "full") else "selective"
    local = whole(training, "local_batch_size", 8)
    settings |= _pipeline(parallel, settings["pp"])
    if settings["pp"] == 1:
        settings["microbatch"] = local
    elif local % settings["microbatch"]:
        raise ValueError(
            f"training.local_batch_size {local} is not a multiple of "
            f"parallelism.pipeline_parallel_microbatch_size {settings['microbatch']}"
        )
    names = {f: f"parallelism.{key}" for f, key in degrees.items()}
    batch = whole(training, "global_batch_size", -1)
    if batch < 1:
        settings["microbatches"] = local // settings["microbatch"]
    return Reading(
        settings=settings,
        names=names | {"dp": "parallelism.data_parallel_replicate_degree x shard_degree",
                       "microbatch": "training.local_batch_size",
                       "global_batch": "training.global_batch_size"},
        global_batch=max(batch, 0),
        sequence_length=whole(training, "seq_len", 2048),
        precision="fp8" if float8 else _precision(training),
        optimizer="adamw",
    )  # fmt: skip


def _precision(training: Mapping[str, Any]) -> str:
    if training.get("dtype") == "bfloat16":
        return "bf16-pure"
    return "fp32" if training.get("mixed_precision_param") == "float32" else "bf16"


def _data_parallel(replicate: int, shard: int, cp: int) -> dict[str, Any]:
    if shard < 0:
        return {"zero_instances": replicate} if replicate > 1 else {}
    found: dict[str, Any] = {"dp": replicate * shard}
    if shard * cp == 1:
        found["zero_stage"] = 0
    elif replicate > 1:
        found["zero_group"] = shard * cp
    return found


def _pipeline(parallel: Mapping[str, Any], pp: int) -> dict[str, Any]:
    if pp == 1:
        return {}
    names = {name.lower(): ours for ours, name in SCHEDULES.items()}
    said = str(parallel.get("pipeline_parallel_schedule", "1F1B"))
    if said.lower() not in names:
        raise ValueError(
            f"pipeline_parallel_schedule {said} is not one this program prices: "
            f"{', '.join(SCHEDULES.values())}"
        )
    schedule = names[said.lower()]
    looped = schedule in ("interleaved", "zbv", "dualpipe")
    found: dict[str, Any] = {
        "schedule": schedule, "vpp": 2 if looped else 1,
        "microbatch": whole(parallel, "pipeline_parallel_microbatch_size", 1),
    }  # fmt: skip
    parts = parallel.get("module_fqns_per_model_part")
    if isinstance(parts, list):
        found["stage_layers"] = tuple(
            sum(str(name).startswith("layers.") for name in part) for part in parts
        )
        if len(parts) % pp:
            raise ValueError(f"module_fqns_per_model_part has {len(parts)} parts, which is not a "
                             f"multiple of pipeline_parallel_degree {pp}")  # fmt: skip
        found["vpp"] = len(parts) // pp
    return found


def _llama3(layers: int, hidden: int, heads: int, ffn: int) -> Decoder:
    return Decoder(
        num_layers=layers, hidden=hidden, ffn_hidden=ffn, heads=heads, kv_heads=8,
        head_dim=128, vocabulary=128256, sequence_length=8192,
    )  # fmt: skip


FLAVORS = {
    ("llama3", "8B"): _llama3(32, 4096, 32, 14336),
    ("llama3", "70B"): _llama3(80, 8192, 64, 28672),
    ("llama3", "405B"): _llama3(126, 16384, 128, 53248),
}
"""Sizes that torchtitan names (``torchtitan/models/llama3/__init__.py``)."""
