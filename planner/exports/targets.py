"""The list of targets, and which of them a file was written for."""

from pathlib import Path

from planner.exports import accelerate, bridge, deepspeed, megatron, nanotron, torchtitan
from planner.exports import torchtitan_python as titan_python
from planner.exports.core import Reading, Target, Unrecognised
from planner.exports.megatron_reading import read_megatron
from planner.exports.torchtitan_reading import read_torchtitan
from planner.exports.trainer import FILE_NAME, read_trainer

_SCRIPT_DECIDES = ("pp", "ep", "etp", "recompute=selective", "offload_optimizer")

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="megatron-lm", version=megatron.VERSION, framework="megatron-core",
            file_name="megatron-arguments.txt", program=("pretrain_gpt.py",),
            say=megatron.say_megatron, write=megatron.write_megatron, read=read_megatron,
            forbid=("schedule=gpipe", "schedule=zb-h1", "schedule=zbv", "schedule=dualpipe"),
        ),
        Target(
            name="megatron-bridge", version=bridge.VERSION, framework="megatron-core",
            file_name="megatron-bridge.yaml",
            program=("pretrain.py", "--config-file", "{file}"),
            say=bridge.say_bridge, write=bridge.write_bridge, read=bridge.read_bridge,
            forbid=("schedule=gpipe", "schedule=zb-h1", "schedule=zbv", "schedule=dualpipe"),
        ),
        Target(
            name="deepspeed", version=deepspeed.VERSION, framework="deepspeed",
            file_name="deepspeed.json", program=("train.py", FILE_NAME), comment="",
            say=deepspeed.say_deepspeed, write=deepspeed.write_deepspeed,
            read=deepspeed.read_deepspeed, forbid=("sequence_parallel", *_SCRIPT_DECIDES[:-1]),
        ),
        Target(
            name="accelerate", version=accelerate.VERSION, framework="torchtitan",
            file_name="accelerate.yaml", program=("train.py", FILE_NAME),
            say=accelerate.say_accelerate, write=accelerate.write_accelerate,
            read=accelerate.read_accelerate,
            forbid=("zero=1", "sequence_parallel", *_SCRIPT_DECIDES),
        ),
        Target(
            name="torchtitan-0.2", version=torchtitan.VERSION, framework="torchtitan",
            file_name="torchtitan.toml",
            program=("-m", "torchtitan.train", "--job.config_file", "{file}"),
            say=torchtitan.say_torchtitan, write=torchtitan.write_torchtitan,
            read=read_torchtitan,
            forbid=("zero=1", "schedule=zb-h1", "etp", "offload_optimizer"),
            fixed="fused_loss=off",
        ),
        Target(
            name="torchtitan-0.3", version=titan_python.VERSION, framework="torchtitan",
            file_name=f"{titan_python.MODULE}.py",
            program=("-m", "torchtitan.train", "--module", "{module}",
                     "--config", "planned"),
            say=titan_python.say_torchtitan_python, write=titan_python.write_torchtitan_python,
            read=titan_python.read_torchtitan_python,
            forbid=("zero=1", "schedule=zb-h1", "etp", "offload_optimizer"),
        ),
        Target(
            name="nanotron", version=nanotron.VERSION, framework="nanotron",
            file_name="nanotron.yaml", program=("run_train.py", "--config-file", "{file}"),
            say=nanotron.say_nanotron, write=nanotron.write_nanotron, read=nanotron.read_nanotron,
            forbid=("zero=2", "zero=3", "vpp", "ep", "recompute=selective"),
            fixed="fused_loss=off",
        ),
    )
}  # fmt: skip
TRAINER = "hf-trainer"
"""Read only: the arguments beside a DeepSpeed or accelerate file."""


def target_named(name: str) -> Target:
    """A target by its name.

    Raises:
        ValueError: If there is none; the line lists those that there are.
    """
    if name not in TARGETS:
        raise ValueError(f"no target {name!r}; known are {', '.join(TARGETS)}")
    return TARGETS[name]


def read_as(name: str, text: str) -> Reading:
    """Read a configuration of the named target.

    Raises:
        ValueError: If it is not one, or the name is not known.
    """
    if name == TRAINER:
        return read_trainer(text)
    if name not in TARGETS:
        raise ValueError(f"no target {name!r}; known are {', '.join((*TARGETS, TRAINER))}")
    return TARGETS[name].read(text)


def detect(path: Path, text: str) -> str:
    """The target that a file was written for, by its form and its keys.

    Raises:
        ValueError: If it looks like none of them.
    """
    suffix = path.suffix.lower()
    kinds = {
        ".json": ("deepspeed", TRAINER), ".toml": ("torchtitan-0.2",), ".py": ("torchtitan-0.3",),
        ".yaml": ("nanotron", "megatron-bridge", "accelerate"),
    }  # fmt: skip
    kinds[".yml"] = kinds[".yaml"]
    for name in kinds.get(suffix, ("megatron-lm", TRAINER)):
        try:
            read_as(name, text)
        except Unrecognised:
            continue
        except ValueError:
            return name  # of this form, with a mistake: reading it again will say which
        return name
    raise ValueError(f"{path} looks like no configuration that is read here; name it by --from "
                     f"{' | '.join((*TARGETS, TRAINER))}")  # fmt: skip
