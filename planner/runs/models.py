"""Models of run tables: generic blocks from a family and its dimensions."""

import re
from typing import Literal

from planner.model import (
    Embedding,
    Experts,
    FeedForward,
    Head,
    ImageHead,
    LatentAttention,
    Model,
    Run,
    SelfAttention,
    Stem,
    TransformerLayer,
    resnet_layers,
)
from planner.ops import Implementation, Shard, count_parameters
from planner.runs.columns import Row, Unreadable
from planner.runs.flags import dense_layers_first, read_flags

ARCHITECTURES = ("gpt", "llama", "moe", "bert", "resnet")
RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
IMAGE_SIZE = 224
MODEL_COLUMNS = (
    "arch", "model_name", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab",
    "seq_len", "experts", "topk", "notes", "params_b",
)  # fmt: skip
_SAME: dict[Model, Model] = {}
_KNOWN: dict[tuple[str, ...], tuple[Model, list[str]]] = {}
CLEAR_SHARE = 0.03  # of all parameters: a smaller matrix drowns in the rounding of "7B"
MEGATRON_Q_LORA_RANK = 512  # default of MLATransformerConfig (Megatron-LM core)
VOCABULARIES = {"gpt": 50257, "llama": 32000, "moe": 32000, "bert": 30522}
"""Of GPT-2, Llama 2, Mixtral and BERT, where a row does not state it."""


def build_model(row: Row) -> tuple[Model, list[str]]:
    """The model of one row, and what had to be assumed.

    Raises:
        Unreadable: If the family or a dimension is missing or makes no model.
    """
    # A sweep repeats one model hundreds of times; one object each also lets costs be shared.
    key = tuple(row.text(column) for column in MODEL_COLUMNS)
    if key not in _KNOWN:
        model, assumed = _build(row)
        # Rows that differ only in their notes describe the same model.
        _KNOWN[key] = _SAME.setdefault(model, model), assumed
    return _KNOWN[key]


def _build(row: Row) -> tuple[Model, list[str]]:
    arch = row.choice("arch", (*ARCHITECTURES, "other"))
    if arch is None:
        raise Unreadable("missing arch")
    if arch == "other":
        raise Unreadable("arch other has no generic form", row.text("model_name"))
    if arch == "resnet":
        return _resnet(row), []
    for column in ("layers", "hidden", "heads", "seq_len"):
        row.count(column)
    if arch != "moe" and row.noted(r"hybrid[^;]*?([0-9]*)\bMamba") is not None:
        raise Unreadable("hybrid state-space layers are not modelled")
    try:
        return _transformer(row, arch)
    except ValueError as error:
        raise Unreadable("dimensions make no model", str(error)) from None


def _resnet(row: Row) -> Model:
    name = row.text("model_name")
    found = re.search(r"resnet-?(\d+)", name, re.IGNORECASE)
    depth = int(found[1]) if found and not re.search("resnext", name, re.IGNORECASE) else 0
    if depth not in RESNETS:
        raise Unreadable("only ResNet-50, -101 and -152 are known by name", name)
    layers = resnet_layers(RESNETS[depth], image_size=IMAGE_SIZE)
    return Model(
        name=name,
        family="convolution",
        embedding=Stem(image_size=IMAGE_SIZE),
        layers=tuple(Run(block=block, count=1) for block in layers),
        head=ImageHead(hidden=layers[-1].hidden),
        sequence_length=1,
    )


def _transformer(row: Row, arch: str) -> tuple[Model, list[str]]:
    hidden, layers, length = row.count("hidden"), row.count("layers"), row.count("seq_len")
    assumed = []
    vocabulary = row.count("vocab", default=VOCABULARIES[arch])
    if not row.text("vocab"):
        assumed.append(f"vocabulary {vocabulary}")
    gated = _gated(row, arch)
    default_ffn = round(8 * hidden / 3) if gated else 4 * hidden
    ffn_hidden = row.count("ffn_hidden", default=default_ffn)
    if not row.text("ffn_hidden"):
        assumed.append(f"ffn_hidden {ffn_hidden}")
    flags = read_flags(row)
    classic = bool(flags) or arch in ("gpt", "bert")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm" if classic else "rmsnorm"
    bias = "disable-bias-linear" not in flags if flags else classic
    dense = FeedForward(
        ffn_hidden=ffn_hidden, gated=gated, bias=bias, activation="silu" if gated else "gelu"
    )
    attention = _attention(row, arch, hidden, bias=bias)
    block = TransformerLayer(hidden=hidden, attention=attention, feed_forward=dense, norm=norm)
    if arch == "moe":
        runs, extra = _expert_runs(row, block, layers)
        assumed += extra
    else:
        runs = (Run(block=block, count=layers),)
    learned = not flags.text("position-embedding-type") if flags else classic
    tied = _tied(row, arch, vocabulary * hidden, runs)
    return Model(
        name=row.text("model_name", f"{arch}-{layers}x{hidden}"),
        family="encoder" if arch == "bert" else "decoder",
        embedding=Embedding(
            vocabulary=vocabulary, hidden=hidden, positions=length if learned else 0,
            token_types=2 if arch == "bert" else 0,
        ),
        layers=runs,
        head=Head(
            vocabulary=vocabulary, hidden=hidden, norm=norm,
            transform=arch == "bert", shared_with_embedding=vocabulary * hidden if tied else 0,
        ),
        tied=tied,
        sequence_length=length,
        assumptions=tuple(assumed),
    ), assumed  # fmt: skip


def _tied(row: Row, arch: str, table: int, runs: tuple[Run, ...]) -> bool:
    """Whether one matrix is embedding and head.

    What the switches say, else what the stated size agrees with (where the matrix is large
    enough to tell), else the family's habit.
    """
    flags = read_flags(row)
    if flags:
        return "untie-embeddings-and-output-weights" not in flags
    stated = (row.rate("params_b") or 0.0) * 1e9
    if table > CLEAR_SHARE * stated > 0:
        layers = sum(_parameters(run) for run in runs)
        return abs(layers + table - stated) < abs(layers + 2 * table - stated)
    return arch in ("gpt", "bert") and table < 100_000 * row.count("hidden")


def _parameters(run: Run) -> float:
    ops = run.block.ops(Shard(sequence_length=1), Implementation())
    return run.count * float(count_parameters(ops).total)


def _gated(row: Row, arch: str) -> bool:
    if flags := read_flags(row):
        return "swiglu" in flags
    return arch in ("llama", "moe") or "swiglu" in row.text("notes")


def _attention(row: Row, arch: str, hidden: int, *, bias: bool) -> SelfAttention | LatentAttention:
    heads = row.count("heads")
    flags = read_flags(row)
    latent = row.noted(r"kv_lora (\d+)")
    if latent is None and re.search(r"\bMLA\b|multi-latent-attention", row.text("notes")):
        latent = 512
    if latent:
        # Head widths of DeepSeek-V2 and -V3 (DeepSeek-AI 2024, section 3.1).
        return LatentAttention(
            heads=heads, kv_lora_rank=latent,
            q_lora_rank=row.noted(r"q_lora (\d+)") or (MEGATRON_Q_LORA_RANK if flags else 1536),
            nope_head_dim=128, rope_head_dim=64, value_head_dim=128,
        )  # fmt: skip
    stated = row.noted(r"(?:head_dim|kv_channels) (\d+)") or flags.number("kv-channels") or None
    if stated is None and hidden % heads:
        raise ValueError(f"hidden {hidden} is not a multiple of heads {heads}")
    return SelfAttention(
        heads=heads, kv_heads=row.count("kv_heads", default=heads),
        head_dim=stated or hidden // heads, causal=arch != "bert",
        rotary=flags.text("position-embedding-type") == "rope" or (
            not flags and arch in ("llama", "moe")
        ),
        qkv_bias=bias, output_bias=bias,
    )  # fmt: skip


def _expert_runs(
    row: Row, dense: TransformerLayer, layers: int
) -> tuple[tuple[Run, ...], list[str]]:
    """Leading dense layers, then layers of experts, as the notes state them."""
    notes = row.text("notes")
    if re.search("hybrid", notes):
        raise Unreadable("hybrid layers are not modelled", row.text("model_name"))
    ffn_hidden = row.noted(r"moe_ffn (\d+)")
    assumed = [] if ffn_hidden else ["experts as wide as ffn_hidden"]
    ffn_hidden = ffn_hidden or row.count("ffn_hidden")
    flags = read_flags(row)
    shared = row.noted(r"\bshared (\d+)") or (row.noted(r"(\d+) shared expert") or 0) * ffn_hidden
    shared = shared or flags.number("moe-shared-expert-intermediate-size")
    experts = Experts(
        num_experts=row.count("experts"), experts_per_token=row.count("topk"),
        ffn_hidden=ffn_hidden, shared_ffn_hidden=shared, gated=_gated(row, "moe"),
    )  # fmt: skip
    routed = TransformerLayer(
        hidden=dense.hidden, attention=dense.attention, feed_forward=experts, norm=dense.norm
    )
    leading = row.noted(r"(\d+) dense layer") or dense_layers_first(flags)
    leading = min(leading, layers - 1)
    runs = [Run(block=dense, count=leading)] if leading else []
    return (*runs, Run(block=routed, count=layers - leading)), assumed
