"""Decoder-only language models from a config."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from planner.model.attention import LatentAttention
from planner.model.core import Model, Run
from planner.model.ends import Embedding, Head
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.attention import (
    beside_latent_parameters,
    has_new_decoder,
    read_attentions,
)
from planner.model.huggingface.config import HIDDEN, LAYERS, POSITIONS, VOCABULARY, Config
from planner.model.huggingface.feed_forward import read_feed_forwards
from planner.model.transformer import TransformerLayer

LONGEST_DEFAULT_SEQUENCE = 8192
"""Files state the longest context a model takes, not the length it is trained on."""

# Layers of these kinds have no op list here; guessing would give confident nonsense.
UNMODELLED_KEYS = (
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "linear_num_value_heads",
    "block_configs",
    "cross_attention_layers",
    "num_query_heads",
    "conv_L_cache",
    "hidden_size_per_layer_input",
    "linear_attn_config",
    "lru_width",
    "zero_expert_num",
)


def decoder_model(config: Config, traits: Architecture, *, name: str) -> Model:
    """A chain of an embedding, runs of equal layers, and a head.

    Raises:
        ValueError: In one line naming the key at fault.
    """
    refuse_unmodelled(config, traits)
    traits = adjust(config, traits)
    hidden, num_layers = config.size(HIDDEN), config.size(LAYERS)
    vocabulary = config.size(VOCABULARY)
    attentions = read_attentions(config, traits, hidden=hidden, num_layers=num_layers)
    extra = traits.extra_parameters
    if isinstance(attentions[0], LatentAttention):
        extra += beside_latent_parameters(config, attentions[0], hidden=hidden)
    feed_forwards = read_feed_forwards(config, traits, hidden=hidden, num_layers=num_layers)
    layers = [
        TransformerLayer(
            hidden=hidden,
            attention=attention,
            feed_forward=feed_forward,
            norm=traits.norm,
            attention_norms=traits.attention_norms,
            feed_forward_norms=traits.feed_forward_norms,
            parallel=config.says(traits.parallel),
            extra_parameters=extra,
        )
        for attention, feed_forward in zip(attentions, feed_forwards, strict=True)
    ]
    projection = config.count(("word_embed_proj_dim",), hidden) % hidden
    tied = is_tied(config)
    return Model(
        name=name,
        family="decoder",
        embedding=Embedding(
            vocabulary=vocabulary,
            hidden=hidden,
            positions=position_rows(config, traits),
            norm=traits.embedding_norm,
            projection=projection,
        ),
        layers=runs_of(layers),
        head=Head(
            vocabulary=vocabulary,
            hidden=hidden,
            norm=traits.final_norm or traits.norm,
            bias=config.says(traits.head_bias),
            projection=projection,
            shared_with_embedding=vocabulary * (projection or hidden) if tied else 0,
        ),
        tied=tied,
        sequence_length=sequence_length(config),
    )


def runs_of(layers: Sequence[TransformerLayer]) -> tuple[Run, ...]:
    """Equal neighbours as one run."""
    groups = ((block, len(list(same))) for block, same in groupby(layers))
    return tuple(Run(block=block, count=count) for block, count in groups)


def is_tied(config: Config) -> bool:
    """Whether head and embedding are one matrix.

    Files leave the key out where it equals the class default, which is tied in general.
    """
    if config.find(("tie_word_embeddings",)) is None:
        config.assumed.append("tie_word_embeddings is not in the file; taken as true")
        return True
    return config.says("tie_word_embeddings")


def position_rows(config: Config, traits: Architecture) -> int:
    """Rows of a learned position table."""
    if traits.positions != "learned":
        return 0
    stated = config.find(POSITIONS)
    if stated is None:
        raise ValueError(f"{config.where}: {POSITIONS[0]} is missing")
    return config.checked(stated, POSITIONS) + traits.position_offset


def sequence_length(config: Config) -> int:
    """The length to train on: what the file allows, up to what is usual in pretraining."""
    scaling = config.find(("rope_scaling",)) or config.find(("rope_parameters",))
    original = None
    if isinstance(scaling, dict):
        original = scaling.get("original_max_position_embeddings")
    stated = original or config.find(POSITIONS)
    if stated is None:
        config.assumed.append("no context length in the file; sequence length 2048")
        return 2048
    longest = config.checked(stated, POSITIONS)
    if longest > LONGEST_DEFAULT_SEQUENCE:
        config.assumed.append(
            f"sequence length {LONGEST_DEFAULT_SEQUENCE}; the file allows {longest}"
        )
    return min(longest, LONGEST_DEFAULT_SEQUENCE)


def refuse_unmodelled(config: Config, traits: Architecture) -> None:
    """Refuse layers that have no op list here.

    Raises:
        ValueError: Naming the key that gives them away.
    """
    for key in UNMODELLED_KEYS:
        if key == "linear_num_value_heads" and config.says(traits.linear_attention):
            continue
        if config.values.get(key) not in (None, [], 0):
            raise ValueError(
                f"{config.where}: {key} tells of layers that are not modelled "
                f"(state-space, linear attention or layers of unequal shape)"
            )


def adjust(config: Config, traits: Architecture) -> Architecture:
    """What a family's traits cannot say, because one key changes several of them."""
    special = _ADJUSTMENTS.get(traits.name)
    return special(config, traits) if special else traits


def _falcon(config: Config, traits: Architecture) -> Architecture:
    """Falcon: two norms in the new architecture, one in the old parallel block."""
    if has_new_decoder(config):
        norms = config.count(("num_ln_in_parallel_attn",), 2)
        return replace(traits, parallel="always", feed_forward_norms=norms - 1)
    return replace(traits, feed_forward_norms=0 if config.says("parallel_attn") else 1)


def _opt(config: Config, traits: Architecture) -> Architecture:
    """OPT-350m norms after the block and so has no final norm."""
    before = config.says("do_layer_norm_before") and not config.says("_remove_final_layer_norm")
    return replace(traits, final_norm="layernorm" if before else "none")


def _stablelm(config: Config, traits: Architecture) -> Architecture:
    return replace(traits, feed_forward_norms=0 if config.says("use_parallel_residual") else 1)


def _baichuan(config: Config, traits: Architecture) -> Architecture:
    """The 13B names ``model_max_length`` and has ALiBi instead of rotary positions."""
    alibi = config.find(("max_position_embeddings",)) is None
    return replace(traits, positions="alibi" if alibi else "rotary")


_ADJUSTMENTS = {"falcon": _falcon, "opt": _opt, "stablelm": _stablelm, "baichuan": _baichuan}
