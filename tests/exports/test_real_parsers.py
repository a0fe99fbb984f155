"""Each export, read by the target's own parser (``pip install parallel-planner[exports]``)."""

import ast
import dataclasses
import importlib.util
import json
import logging
import os
import shlex
import sys
import types

import pytest
import yaml

from planner.exports.targets import TARGETS
from planner.layout import Layout
from tests.exports.plans import plan_for, write_export

pytestmark = pytest.mark.exports

PIPELINE = Layout(
    dp=4, tp=2, pp=4, sequence_parallel=True, zero_stage=1, recompute="full", microbatch=1,
    microbatches=32,
)  # fmt: skip
UNEVEN = Layout(
    dp=2, tp=2, pp=2, vpp=2, schedule="interleaved", stage_layers=(7, 9, 9, 7), microbatches=8,
    recompute="selective", axis_order=("tp", "cp", "pp", "dp"),
)  # fmt: skip
SHARDED = Layout(dp=8, zero_stage=3, zero_group=4, microbatch=2, microbatches=4)
MEGATRON = {"pipeline": PIPELINE, "uneven": UNEVEN, "sharded": SHARDED,
            "context": Layout(dp=2, cp=4, zero_stage=1, microbatches=4),
            "fsdp": Layout(dp=8, zero_stage=2, microbatches=4)}  # fmt: skip


def _megatron_arguments():
    reason = "megatron-core is not installed, or too old or new (0.19 needs Python 3.12)"
    return pytest.importorskip("megatron.training.arguments", reason=reason, exc_type=ImportError)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_parses_and_validates(name, tmp_path, monkeypatch):
    module = _megatron_arguments()
    layout = MEGATRON[name]
    plan = plan_for(layout)
    said = TARGETS["megatron-lm"].say(plan)
    assert not said.unsaid
    (path,) = write_export(plan, "megatron-lm", tmp_path)
    words = shlex.split("\n".join(
        line for line in path.read_text().splitlines() if not line.startswith("#")
    ))  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words])
    world = {"RANK": "0", "WORLD_SIZE": str(layout.world_size)}
    for key, value in {**world, **said.environment}.items():
        monkeypatch.setenv(key, value)
    parsed = module.parse_args()
    # The only question of validation that asks a GPU: it decides an environment variable.
    monkeypatch.setattr(module, "get_device_arch_version", lambda: 9)
    parsed = module.validate_args(parsed) or parsed
    assert parsed.data_parallel_size == layout.dp
    assert parsed.pipeline_model_parallel_size == layout.pp
    assert parsed.sequence_parallel == layout.sequence_parallel
    assert (parsed.virtual_pipeline_model_parallel_size or 1) == layout.vpp
    assert parsed.use_distributed_optimizer == (layout.zero_stage > 0)
    assert parsed.ffn_hidden_size == 11008
    assert parsed.params_dtype is not None


@pytest.mark.parametrize(
    "layout",
    [Layout(dp=32, zero_stage=3, microbatches=4), Layout(dp=4, tp=2, zero_stage=1),
     Layout(dp=8, zero_stage=2, offload_optimizer=True)],
    ids=["zero-3", "autotp", "offload"],
)  # fmt: skip
def test_deepspeed_reads_its_json(layout, tmp_path, monkeypatch):
    reason = "deepspeed is not installed, or does not load here"
    module = pytest.importorskip("deepspeed.runtime.config", reason=reason, exc_type=ImportError)
    plan = plan_for(layout)
    assert not TARGETS["deepspeed"].say(plan).unsaid
    path, arguments = write_export(plan, "deepspeed", tmp_path)
    # No process group is started: batches count data-parallel ranks.
    monkeypatch.setattr(module.dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(module.dist, "get_world_size", lambda *_: layout.dp)
    config = module.DeepSpeedConfig(str(path))
    assert config.train_batch_size == layout.global_batch
    assert config.train_micro_batch_size_per_gpu == layout.microbatch
    assert config.gradient_accumulation_steps == layout.microbatches
    assert config.zero_optimization_stage == layout.zero_stage
    assert config.bfloat16_config.enabled
    if layout.tp > 1:
        assert config.tensor_parallel_config.autotp_size == layout.tp
    assert json.loads(arguments.read_text())["deepspeed"] == path.name


@pytest.mark.parametrize(
    "layout",
    [Layout(dp=16, tp=2, zero_stage=3), Layout(dp=8, zero_stage=2, zero_group=4, cp=1),
     Layout(dp=4, cp=2, zero_stage=3, recompute="full"), Layout(dp=8)],
    ids=["fsdp-tp", "hsdp", "context", "ddp"],
)  # fmt: skip
def test_accelerate_loads_its_yaml(layout, tmp_path, monkeypatch):
    reason = "accelerate is not installed, or does not load here"
    module = pytest.importorskip(
        "accelerate.commands.config.config_args", reason=reason, exc_type=ImportError
    )
    plan = plan_for(layout)
    assert not TARGETS["accelerate"].say(plan).unsaid
    path, _ = write_export(plan, "accelerate", tmp_path)
    config = module.ClusterConfig.from_yaml_file(str(path))
    assert config.num_processes == layout.world_size
    assert config.mixed_precision == "bf16"
    mesh = {key.removeprefix("parallelism_config_"): value
            for key, value in (config.parallelism_config or {}).items()}  # fmt: skip
    if not mesh:
        assert layout.zero_stage == 0
        return
    from accelerate import ParallelismConfig

    for key in [key for key in os.environ if key.startswith("PARALLELISM_CONFIG")]:
        monkeypatch.delenv(key)
    built = ParallelismConfig(**mesh)
    assert built.total_size == layout.world_size
    assert built.data_parallel_size == layout.dp


TITAN = {
    "pipeline": Layout(dp=4, tp=2, pp=4, sequence_parallel=True, zero_stage=2, recompute="full",
                       microbatches=32, stage_layers=(8, 8, 8, 8)),
    "hsdp": Layout(dp=8, zero_stage=3, zero_group=4, microbatch=2, microbatches=4),
    "chunks": Layout(dp=2, pp=2, vpp=2, schedule="interleaved", stage_layers=(7, 9, 9, 7),
                     zero_stage=2, microbatches=8, recompute="selective"),
}  # fmt: skip


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_reads_its_toml(name, tmp_path, monkeypatch):
    reason = "torchtitan is not installed, or does not load here"
    module = pytest.importorskip("torchtitan.config", reason=reason, exc_type=ImportError)
    if not hasattr(module, "JobConfig"):
        pytest.skip("this torchtitan is of a generation without job files (0.3 and later)")
    layout = TITAN[name]
    plan = plan_for(layout)
    assert not TARGETS["torchtitan-0.2"].say(plan).unsaid
    (path,) = write_export(plan, "torchtitan-0.2", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = module.ConfigManager().parse_args([f"--job.config_file={path}"])
    assert config.parallelism.pipeline_parallel_degree == layout.pp
    assert config.training.global_batch_size == layout.global_batch
    assert config.activation_checkpoint.mode == layout.recompute

    from torchtitan.distributed import ParallelDims

    dims = ParallelDims(
        dp_shard=config.parallelism.data_parallel_shard_degree,
        dp_replicate=config.parallelism.data_parallel_replicate_degree,
        cp=layout.cp, tp=layout.tp, pp=layout.pp, ep=1, etp=1, world_size=layout.world_size,
    )  # fmt: skip
    assert dims.dp_shard * dims.dp_replicate == layout.dp


def test_torchtitan_builds_the_models_size(tmp_path, monkeypatch):
    reason = "torchtitan is not installed, or does not load here"
    pytest.importorskip("torchtitan.models.llama3", reason=reason, exc_type=ImportError)
    torch = pytest.importorskip("torch")
    plan = plan_for(TITAN["hsdp"])
    write_export(plan, "torchtitan-0.2", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        from torchtitan.models.llama3 import Transformer, llama3_args
    except ImportError:
        pytest.skip("this torchtitan is of another generation than 0.2")
    importlib.import_module("planned_model")
    with torch.device("meta"):
        built = Transformer(llama3_args["llama-7b"])
    assert sum(p.numel() for p in built.parameters()) == plan.model.total_parameters


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_takes_its_python(name, tmp_path, monkeypatch):
    """0.3: the function runs, and its config classes accept every argument."""
    reason = "torchtitan 0.3 does not load here"
    module = pytest.importorskip("torchtitan.config", reason=reason, exc_type=ImportError)
    if not hasattr(module, "ParallelismConfig"):
        pytest.skip("this torchtitan is of the generation before 0.3")
    layout = TITAN[name]
    (path,) = write_export(plan_for(layout), "torchtitan-0.3", tmp_path)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("planned_config", path)
    planned = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(planned)
    except ImportError as error:
        pytest.skip(f"torchtitan 0.3's trainer does not load here: {error}")
    config = planned.planned()
    assert config.parallelism.tensor_parallel_degree == layout.tp
    assert config.training.global_batch_size == layout.global_batch


def test_torchtitan_python_compiles(tmp_path):
    (path,) = write_export(plan_for(TITAN["pipeline"]), "torchtitan-0.3", tmp_path)
    names = {node.name for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.FunctionDef)}  # fmt: skip
    assert "planned" in names


class _Logging(types.ModuleType):
    """Stands in for ``nanotron.logging``: in 0.4 it and the config import each other."""

    human_format = str

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(logging, name, lambda *_, **__: None)


@pytest.mark.parametrize("layout", [
    Layout(dp=4, tp=2, sequence_parallel=True, zero_stage=1, microbatches=8),
    Layout(dp=2, tp=2, pp=4, schedule="gpipe", microbatches=8),
    Layout(dp=2, tp=2, pp=4, recompute="full", microbatches=8),
], ids=["zero-1", "afab", "recompute"])  # fmt: skip
def test_nanotron_loads_its_yaml(layout, tmp_path, monkeypatch):
    pytest.importorskip("nanotron", reason="nanotron is not installed")
    monkeypatch.setitem(sys.modules, "nanotron.logging", _Logging("nanotron.logging"))
    reason = "nanotron's config does not load here"
    module = pytest.importorskip("nanotron.config", reason=reason, exc_type=ImportError)
    plan = plan_for(layout)
    assert not TARGETS["nanotron"].say(plan).unsaid
    (path,) = write_export(plan, "nanotron", tmp_path)
    document = yaml.safe_load(path.read_text())
    if "data_stages" in {field.name for field in dataclasses.fields(module.Config)}:
        config = module.get_config_from_file(str(path))
        assert config.global_batch_size == layout.global_batch
        assert config.optimizer.zero_stage == layout.zero_stage
    # The package index's 0.4 is older than the main branch, whose file has data_stages; the
    # sections that both have are read by its own reader.
    sections = {"parallelism": module.ParallelismArgs, "tokens": module.TokensArgs,
                "model": module.ModelArgs}  # fmt: skip
    known = {field.name for field in dataclasses.fields(module.ParallelismArgs)}
    if layout.recompute == "full" and "recompute_layer" not in known:
        pytest.skip("this nanotron is older than recompute_layer (its main branch has it)")
    read = {
        name: module.config.get_config_from_dict(document[name], config_class=kind)
        for name, kind in sections.items()
    }
    degrees = (layout.dp, layout.tp, layout.pp)
    assert (read["parallelism"].dp, read["parallelism"].tp, read["parallelism"].pp) == degrees
    assert read["tokens"].batch_accumulation_per_replica == layout.microbatches
    llama = importlib.import_module("nanotron.config.models_config").LlamaConfig
    assert llama(**document["model"]["model_config"]).intermediate_size == 11008


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
def test_the_trainer_takes_its_arguments(target, tmp_path, monkeypatch):
    """On a CPU: mixed precision, fused AdamW and DeepSpeed itself are refused there, not here."""
    reason = "transformers does not load here"
    pytest.importorskip("accelerate", reason="a Trainer needs accelerate, which is not installed")
    module = pytest.importorskip("transformers", reason=reason, exc_type=ImportError)
    layout = Layout(dp=8, zero_stage=2, recompute="full", microbatch=2, microbatches=4)
    _, path = write_export(plan_for(layout), target, tmp_path)
    document = json.loads(path.read_text())
    names = {field.name for field in dataclasses.fields(module.TrainingArguments)}
    assert set(document) <= names
    on_cpu = {key: value for key, value in document.items() if key not in ("deepspeed", "optim")}
    monkeypatch.chdir(tmp_path)
    (read,) = module.HfArgumentParser(module.TrainingArguments).parse_dict(
        {**on_cpu, "bf16": False, "optim": "adamw_torch", "use_cpu": True}
    )
    assert read.per_device_train_batch_size == layout.microbatch
    assert read.gradient_accumulation_steps == layout.microbatches
    assert read.gradient_checkpointing == (target == "deepspeed")
    assert module.training_args.OptimizerNames(document["optim"])
