"""Encoder-decoders from a config: T5, BART and Whisper with their kin."""

from dataclasses import replace

from planner.model.attention import CrossAttention, SelfAttention
from planner.model.core import Model, Run
from planner.model.ends import Embedding, Head
from planner.model.feed_forward import FeedForward
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.config import FFN, HEADS, HIDDEN, LAYERS, VOCABULARY, Config
from planner.model.huggingface.decoder import is_tied, position_rows, sequence_length
from planner.model.transformer import TransformerLayer


def encoder_decoder_model(config: Config, traits: Architecture, *, name: str) -> Model:
    """Encoder layers, then decoder layers with cross attention, in one chain.

    Raises:
        ValueError: In one line naming the key at fault.
    """
    if traits.name in ("t5", "mt5", "umt5"):
        return _t5(config, traits, name=name)
    return _bart(config, traits, name=name)


def _t5(config: Config, traits: Architecture, *, name: str) -> Model:
    """T5 (Raffel et al. 2020): relative positions, RMSNorm, no biases.

    The table of relative positions is held by the first layer of each stack, in umT5 by
    every layer.
    """
    hidden, heads, num_layers = config.size(HIDDEN), config.size(HEADS), config.size(LAYERS)
    head_dim = config.count(("d_kv",), hidden // heads)
    vocabulary, tied = config.size(VOCABULARY), is_tied(config)
    buckets = config.count(("relative_attention_num_buckets",), 32) * heads
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    encoder = TransformerLayer(
        hidden=hidden,
        attention=SelfAttention(
            heads=heads, kv_heads=heads, head_dim=head_dim, causal=False, rotary=False,
            extra_parameters=buckets if traits.name == "umt5" else 0,
        ),
        feed_forward=FeedForward(
            ffn_hidden=config.size(FFN), gated=gated, activation="gelu" if gated else "relu"
        ),
        norm=traits.norm,
    )  # fmt: skip
    tables = 0 if traits.name == "umt5" else 2 * buckets
    return Model(
        name=name,
        family="encoder-decoder",
        embedding=Embedding(vocabulary=vocabulary, hidden=hidden),
        layers=(
            Run(block=encoder, count=num_layers),
            Run(
                block=_decoder(encoder, bias=False),
                count=config.count(("num_decoder_layers",), 0) or num_layers,
            ),
        ),
        head=Head(
            vocabulary=vocabulary, hidden=hidden, norm="rmsnorm",
            shared_with_embedding=vocabulary * hidden if tied else 0,
        ),
        tied=tied,
        sequence_length=config.count(("n_positions",), 512),
        extra_parameters=tables + hidden,  # and the encoder's final norm
    )  # fmt: skip


def _decoder(encoder: TransformerLayer, *, bias: bool) -> TransformerLayer:
    """The encoder's layer, causal, with attention to the encoder's output."""
    attention = encoder.attention
    assert isinstance(attention, SelfAttention)  # both families are built with it above
    return replace(
        encoder,
        attention=replace(attention, causal=True),
        cross_attention=CrossAttention(heads=attention.heads, head_dim=attention.head_dim,
                                       bias=bias),
    )  # fmt: skip


def _bart(config: Config, traits: Architecture, *, name: str) -> Model:
    """BART (Lewis et al. 2020), mBART, Pegasus, Marian; Whisper (Radford et al. 2022)."""
    hidden, vocabulary = config.size(("d_model", "hidden_size")), config.size(VOCABULARY)
    whisper = traits.name == "whisper"
    encoder = _bart_layer(config, traits, hidden, side="encoder")
    decoder = _decoder(_bart_layer(config, traits, hidden, side="decoder"), bias=not whisper)
    if whisper:
        decoder = replace(decoder, extra_parameters=3 * hidden)  # Q, V and output biases
    final = {"layernorm": 2, "rmsnorm": 1, "": 2}.get(traits.final_norm, 0) * hidden
    positions, other = _position_rows(config, traits)
    norms = 2 * hidden if traits.embedding_norm != "none" else 0  # the encoder's; ours is below
    extra = other * hidden + norms + final
    if whisper:
        bins = config.count(("num_mel_bins",), 80)
        extra += 3 * bins * hidden + 3 * hidden**2 + 2 * hidden  # two convolutions of width 3
    tied = is_tied(config)
    return Model(
        name=name,
        family="encoder-decoder",
        embedding=Embedding(
            vocabulary=vocabulary, hidden=hidden, positions=positions, norm=traits.embedding_norm
        ),
        layers=(
            Run(block=encoder, count=config.size(("encoder_layers",))),
            Run(block=decoder, count=config.size(("decoder_layers",))),
        ),
        head=Head(
            vocabulary=vocabulary, hidden=hidden,
            norm="layernorm" if final else "none",
            shared_with_embedding=vocabulary * hidden if tied else 0,
        ),
        tied=tied,
        sequence_length=_context(config, whisper=whisper),
        extra_parameters=extra,
    )  # fmt: skip


def _context(config: Config, *, whisper: bool) -> int:
    """Whisper's long side is the audio: its rows after the convolutions."""
    if whisper:
        return config.count(("max_source_positions",), 1500)
    return sequence_length(config)


def _position_rows(config: Config, traits: Architecture) -> tuple[int, int]:
    """Rows of the embedding's position table, and of the other stack's."""
    if traits.name == "whisper":
        return (
            config.count(("max_target_positions",), 448),
            config.count(("max_source_positions",), 1500),
        )
    rows = position_rows(config, traits)
    return rows, rows


def _bart_layer(
    config: Config, traits: Architecture, hidden: int, *, side: str
) -> TransformerLayer:
    heads = config.size((f"{side}_attention_heads",))
    if hidden % heads:
        raise ValueError(
            f"{config.where}: d_model {hidden} must be a multiple of "
            f"{side}_attention_heads {heads}"
        )
    whisper = traits.name == "whisper"
    return TransformerLayer(
        hidden=hidden,
        attention=SelfAttention(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=False, rotary=False,
            qkv_bias=not whisper, output_bias=True,
            extra_parameters=2 * hidden if whisper else 0,  # keys have no bias there
        ),
        feed_forward=FeedForward(
            ffn_hidden=config.size((f"{side}_ffn_dim",)), gated=False, bias=True,
            activation="gelu",
        ),
        norm="layernorm",
    )  # fmt: skip
