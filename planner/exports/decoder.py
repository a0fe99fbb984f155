"""A decoder as trainers describe one: one kind of layer, a dozen numbers."""

from dataclasses import dataclass
from typing import Literal

from planner.model import (
    Embedding,
    Experts,
    FeedForward,
    Head,
    Model,
    Run,
    SelfAttention,
    TransformerLayer,
)

Activation = Literal["silu", "gelu", "gelu-tanh", "relu", "relu2", "quick-gelu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The numbers of a decoder whose layers are all alike."""

    num_layers: int
    hidden: int
    ffn_hidden: int
    """Of one expert where there are experts."""
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int = 0
    """Rows of a learned position table; 0 for rotary positions."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    gated: bool = True
    activation: Activation = "silu"
    qkv_bias: bool = False
    bias: bool = False
    """Of every other linear layer."""
    qk_norm: bool = False
    tied: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    shared_ffn_hidden: int = 0
    sequence_length: int = 2048


def decoder_of(model: Model) -> tuple[Decoder, tuple[str, ...]]:
    """A model in these numbers, and what they do not hold of it.

    Raises:
        ValueError: If it is no decoder of self-attention layers at all.

    >>> from planner.catalogue import load_model
    >>> decoder, missing = decoder_of(load_model("llama-7b"))
    >>> decoder.ffn_hidden, missing
    (11008, ())
    """
    layers = [run.block for run in model.layers]
    first = next(
        (block for block in reversed(layers) if isinstance(block, TransformerLayer)), None
    )
    attention = first.attention if first else None
    if model.family != "decoder" or first is None or not isinstance(attention, SelfAttention):
        kind = type(attention).__name__ if model.family == "decoder" else model.family
        raise ValueError(
            f"{model.name} ({kind}) has no export: the targets' arguments are written for "
            "decoders of self-attention layers"
        )
    dense = first.feed_forward
    experts = dense if isinstance(dense, Experts) else None
    decoder = Decoder(
        num_layers=model.num_layers, hidden=model.hidden, ffn_hidden=dense.ffn_hidden,
        heads=attention.heads, kv_heads=attention.kv_heads, head_dim=attention.head_dim,
        vocabulary=model.vocabulary, positions=getattr(model.embedding, "positions", 0),
        norm="rmsnorm" if first.norm == "rmsnorm" else "layernorm",
        gated=dense.gated,
        activation=dense.activation if isinstance(dense, FeedForward) else "silu",
        qkv_bias=attention.qkv_bias, bias=attention.output_bias or dense.bias,
        qk_norm=attention.qk_norm != "none", tied=model.tied,
        num_experts=experts.num_experts if experts else 0,
        experts_per_token=experts.experts_per_token if experts else 0,
        shared_ffn_hidden=experts.shared_ffn_hidden if experts else 0,
        sequence_length=model.sequence_length,
    )  # fmt: skip
    return decoder, tuple(_missing(model, decoder, first))


def _missing(model: Model, decoder: Decoder, last: TransformerLayer) -> list[str]:
    """What a decoder's numbers do not hold: its parameters, counted again, are the test."""
    kinds = len({run.block for run in model.layers})
    if kinds > 1:
        return [f"model: {kinds} kinds of layers; only the last is written"]
    missing = []
    rebuilt = model_of(decoder, name=model.name).total_parameters
    if rebuilt != model.total_parameters:
        missing.append(
            f"model: {model.name} has {model.total_parameters} parameters, what can be said of "
            f"it makes {rebuilt}"
        )
    if last.parallel:
        missing.append("model: attention and feed-forward side by side")
    head = model.head
    if isinstance(head, Head) and (head.transform or head.bias):
        missing.append("model: the head's transform or bias")
    return missing


def model_of(decoder: Decoder, *, name: str = "imported") -> Model:
    """The model that a decoder's numbers make."""
    norm = decoder.norm
    attention = SelfAttention(
        heads=decoder.heads, kv_heads=decoder.kv_heads, head_dim=decoder.head_dim,
        rotary=not decoder.positions, qkv_bias=decoder.qkv_bias, output_bias=decoder.bias,
        qk_norm="head" if decoder.qk_norm else "none",
    )  # fmt: skip
    feed_forward: FeedForward | Experts = FeedForward(
        ffn_hidden=decoder.ffn_hidden, gated=decoder.gated, bias=decoder.bias,
        activation=decoder.activation,
    )  # fmt: skip
    if decoder.num_experts:
        feed_forward = Experts(
            num_experts=decoder.num_experts, experts_per_token=decoder.experts_per_token,
            ffn_hidden=decoder.ffn_hidden, gated=decoder.gated, bias=decoder.bias,
            shared_ffn_hidden=decoder.shared_ffn_hidden,
        )  # fmt: skip
    layer = TransformerLayer(
        hidden=decoder.hidden, attention=attention, feed_forward=feed_forward, norm=norm
    )
    table = decoder.vocabulary * decoder.hidden
    return Model(
        name=name, family="decoder",
        embedding=Embedding(
            vocabulary=decoder.vocabulary, hidden=decoder.hidden, positions=decoder.positions
        ),
        layers=(Run(block=layer, count=decoder.num_layers),),
        head=Head(
            vocabulary=decoder.vocabulary, hidden=decoder.hidden, norm=norm,
            shared_with_embedding=table if decoder.tied else 0,
        ),
        tied=decoder.tied, sequence_length=decoder.sequence_length,
        source="read from a training configuration",
    )  # fmt: skip
