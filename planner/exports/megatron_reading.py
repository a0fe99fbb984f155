"""Read Megatron-LM's arguments: a list, or the shell script that launches them."""

import re
import shlex
from typing import Any

from planner.exports.core import Reading, Unrecognised
from planner.exports.decoder import Decoder

_SIZES = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
    "etp": "expert-tensor-parallel-size",
    "microbatch": "micro-batch-size",
}
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")


def words_of(text: str) -> list[str]:
    r"""The words of a list of arguments or of a launch script, its variables filled in.

    >>> words_of("TP=4\nARGS=(--tensor-model-parallel-size ${TP} --bf16)")[-3:]
    ['--tensor-model-parallel-size', '4', '--bf16']
    """
    text = text.replace("\\\n", " ")
    values: dict[str, str] = {}
    words: list[str] = []
    for line in text.splitlines():
        filled = _VARIABLE.sub(lambda m: values.get(m[1], m[2] or m[0]), _plain(line))
        found = _ASSIGNMENT.match(filled)
        if found and not found[2].lstrip().startswith("("):
            values[found[1]] = found[2].strip().strip("\"'")
            if "--" not in found[2]:
                continue
            filled = values[found[1]]
        lexer = shlex.shlex(re.sub(r"[()]", " ", filled) if "=(" in filled else filled,
                            posix=True, punctuation_chars=False)  # fmt: skip
        lexer.whitespace_split, lexer.commenters = True, "#"
        try:
            words += list(lexer)
        except ValueError:
            words += filled.split()
    return words


def _plain(line: str) -> str:
    return "" if line.lstrip().startswith("#") else line


def flags_of(words: list[str]) -> dict[str, Any]:
    """Flags with their values: True for a switch, a list for several.

    >>> flags_of(["--bf16", "--lr", "3e-4", "--x=2"])
    {'bf16': True, 'lr': '3e-4', 'x': '2'}
    """
    flags: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            flags[name] = value if equals else True
            name = "" if equals else name
        elif name and word not in (")", "\\", "&&", ";"):
            held = flags[name]
            flags[name] = word if held is True else [*([held] if isinstance(held, str) else held),
                                                     word]  # fmt: skip
    return flags


def _number(flags: dict[str, Any], name: str, default: int = 0) -> int:
    value = flags.get(name)
    if value is None:
        return default
    value = value[0] if isinstance(value, list) else value
    if not str(value).isdigit():
        raise ValueError(f"--{name} must be a whole number, got {value!r}")
    return int(value)


def read_megatron(text: str) -> Reading:
    """The layout, batch and model of a Megatron run.

    Raises:
        ValueError: If it holds no Megatron flag, or values that cannot be.
    """
    words = words_of(text)
    flags = flags_of(words)
    known = ("tensor-model-parallel-size", "num-layers", "micro-batch-size", "seq-length",
             "pipeline-model-parallel-size", "global-batch-size")  # fmt: skip
    if not any(name in flags for name in known):
        raise Unrecognised(f"found no Megatron-LM argument such as --{known[0]}")
    settings: dict[str, Any] = {
        field: _number(flags, name) for field, name in _SIZES.items() if name in flags
    }
    decoder = _decoder(flags)
    settings |= _pipeline(flags, settings.get("pp", 1), decoder)
    settings |= _zero(flags, settings) | _recompute(flags, settings.get("vpp", 1))
    settings["sequence_parallel"] = "sequence-parallel" in flags
    if "use-tp-pp-dp-mapping" in flags:
        settings["axis_order"] = ("tp", "cp", "pp", "dp")
    if str(flags.get("cp-comm-type", "p2p")).startswith("a2a"):
        settings["cp_kind"] = "ulysses"
    if "cross-entropy-loss-fusion" in flags:
        settings["fused_loss"] = True
    return Reading(
        settings=settings,
        names={field: f"--{name}" for field, name in _SIZES.items()}
        | {"global_batch": "--global-batch-size", "world_size": "--nnodes x --nproc-per-node"},
        world_size=_world(flags),
        global_batch=_number(flags, "global-batch-size"),
        sequence_length=_number(flags, "seq-length"),
        precision=_precision(flags),
        optimizer={"sgd": "sgd-momentum", "adam": "adamw"}.get(str(flags.get("optimizer")), ""),
        decoder=decoder,
        ignored=_ignored(flags),
    )


def _ignored(flags: dict[str, Any]) -> tuple[str, ...]:
    seen = []
    if "use-torch-fsdp2" in flags:
        seen.append("--use-torch-fsdp2 is read as ZeRO-3")
    gone = ("virtual-pipeline-model-parallel-size", "data-parallel-size")
    seen += [f"--{name} is no longer a flag of Megatron" for name in gone if name in flags]
    return tuple(seen)


def _world(flags: dict[str, Any]) -> int:
    """Of a torchrun line in the same text; a count that is still a variable says nothing."""
    try:
        nodes = _number(flags, "nnodes", 1)
        each = _number(flags, "nproc-per-node")
    except ValueError:
        return 0
    return nodes * each


def _pipeline(flags: dict[str, Any], pp: int, decoder: Decoder | None) -> dict[str, Any]:
    layers = decoder.num_layers if decoder else 0
    vpp = _number(flags, "num-virtual-stages-per-pipeline-rank", 1)
    each = _number(flags, "num-layers-per-virtual-pipeline-stage")
    if each and layers:
        if layers % (pp * each):
            raise ValueError(
                f"--num-layers {layers} is not a multiple of --pipeline-model-parallel-size "
                f"{pp} x --num-layers-per-virtual-pipeline-stage {each} = {pp * each}"
            )
        vpp = layers // (pp * each)
    split: tuple[int, ...] = ()
    layout = flags.get("pipeline-model-parallel-layout")
    first = _number(flags, "decoder-first-pipeline-num-layers")
    last = _number(flags, "decoder-last-pipeline-num-layers")
    if isinstance(layout, str):
        split = stage_layers_of(layout)
        if len(split) % pp:
            raise ValueError(f"--pipeline-model-parallel-layout has {len(split)} stages, which is "
                             f"not a multiple of --pipeline-model-parallel-size {pp}")  # fmt: skip
        vpp = len(split) // pp
    elif (first or last) and layers:
        from planner.split_rules import megatron_split

        split = megatron_split(
            layers, stages=pp, first_layers=first or None, last_layers=last or None
        )
    chunks = {"vpp": vpp, "schedule": "interleaved"} if vpp > 1 else {}
    return chunks | ({"stage_layers": split} if split else {})


def stage_layers_of(layout: str) -> tuple[int, ...]:
    """Layers of each stage of ``--pipeline-model-parallel-layout``.

    >>> stage_layers_of("Et*3|(tt|)*2tL")
    (3, 2, 2, 1)
    """
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout.replace(",", ""))
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return tuple(stage.count("t") for stage in text.split("|"))


def _zero(flags: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    if "use-torch-fsdp2" in flags:
        return {"zero_stage": 3}
    if "use-megatron-fsdp" not in flags and "use-custom-fsdp" not in flags:
        stage = 1 if "use-distributed-optimizer" in flags else 0
    else:
        strategy = str(flags.get("data-parallel-sharding-strategy", "optim_grads_params"))
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        if strategy not in stages:
            raise ValueError(f"--data-parallel-sharding-strategy is one of {', '.join(stages)}, "
                             f"got {strategy!r}")  # fmt: skip
        stage = stages[strategy]
    found: dict[str, Any] = {"zero_stage": stage}
    instances = _number(flags, "num-distributed-optimizer-instances", 1)
    if instances > 1:
        found["zero_instances"] = instances
    if "optimizer-cpu-offload" in flags:
        found["offload_optimizer"] = True
    return found


def _recompute(flags: dict[str, Any], vpp: int) -> dict[str, Any]:
    granularity = flags.get("recompute-granularity")
    if granularity is None:
        chosen = "selective" if "recompute-activations" in flags else "none"
        return {"recompute": chosen}
    if granularity != "full":
        return {"recompute": "selective"}
    some = flags.get("recompute-method") == "block"
    layers = _number(flags, "recompute-num-layers") * vpp if some else 0
    return {"recompute": "full", "recompute_layers": layers}


def _precision(flags: dict[str, Any]) -> str:
    for name, precision in (("fp4-format", "fp4"), ("fp8-format", "fp8"), ("bf16", "bf16"),
                            ("fp16", "fp16")):  # fmt: skip
        if name in flags:
            return precision
    return "fp32"


def _decoder(flags: dict[str, Any]) -> Decoder | None:
    hidden, heads = _number(flags, "hidden-size"), _number(flags, "num-attention-heads")
    layers, vocabulary = _number(flags, "num-layers"), _number(flags, "vocab-size")
    if not (hidden and heads and layers and vocabulary):
        return None
    gated = "swiglu" in flags
    ffn = _number(flags, "ffn-hidden-size") or (int(4 * hidden * 2 / 3) // 64 * 64 if gated
                                                else 4 * hidden)  # fmt: skip
    experts = _number(flags, "num-experts")
    rotary = flags.get("position-embedding-type", "learned_absolute") != "learned_absolute"
    bias = "disable-bias-linear" not in flags
    return Decoder(
        num_layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary,
        ffn_hidden=(_number(flags, "moe-ffn-hidden-size") or ffn) if experts else ffn,
        kv_heads=_number(flags, "num-query-groups", 1) if "group-query-attention" in flags
        else heads,
        head_dim=_number(flags, "kv-channels") or hidden // heads,
        positions=0 if rotary else _number(flags, "max-position-embeddings"),
        norm="rmsnorm" if flags.get("normalization") == "RMSNorm" else "layernorm",
        gated=gated,
        activation="silu" if gated else "relu2" if "squared-relu" in flags else "gelu",
        qkv_bias=bias or "add-qkv-bias" in flags, bias=bias,
        qk_norm="qk-layernorm" in flags,
        tied="untie-embeddings-and-output-weights" not in flags,
        num_experts=experts,
        experts_per_token=_number(flags, "moe-router-topk", 2) if experts else 0,
        shared_ffn_hidden=_number(flags, "moe-shared-expert-intermediate-size"),
        sequence_length=_number(flags, "seq-length") or 2048,
    )  # fmt: skip
