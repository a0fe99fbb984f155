"""Encoders from a config: BERT and its kin, with the head that ``architectures`` names."""

from dataclasses import replace

from planner.model.core import Model, Run
from planner.model.ends import Embedding, Head
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.attention import read_attention
from planner.model.huggingface.config import HIDDEN, LAYERS, VOCABULARY, Config
from planner.model.huggingface.decoder import position_rows, sequence_length
from planner.model.huggingface.feed_forward import read_feed_forwards
from planner.model.transformer import TransformerLayer

POOLED = ("bert", "roberta", "xlm-roberta", "camembert", "ernie", "albert", "megatron-bert")
"""Families whose bare model ends in a pooler: a dense layer on the first token."""
ROWS_BEFORE_FIRST = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}
"""Position rows that padding takes, already part of ``max_position_embeddings``."""


def encoder_model(config: Config, traits: Architecture, *, name: str) -> Model:
    """A chain of an embedding, equal layers and a masked-language or bare head.

    Raises:
        ValueError: In one line naming the key at fault.
    """
    hidden, num_layers = config.size(HIDDEN), config.size(LAYERS)
    vocabulary = config.size(VOCABULARY)
    width = config.count(("embedding_size",), 0) or hidden
    layer, task = _layer(config, traits, hidden), _task(config)
    if not task:
        config.assumed.append("trained with the embedding as its output matrix")
    shares = traits.name == "albert"
    if shares:
        config.assumed.append("layers share their weights; every stage holds a copy")
    later = Run(
        block=layer, count=num_layers - (traits.name == "modernbert"), shared_weights=shares
    )
    return Model(
        name=name,
        family="encoder",
        embedding=_embedding(config, traits, vocabulary, hidden=hidden, width=width),
        layers=(*_uneven_first(traits, layer), later),
        head=_head(traits, task, vocabulary, hidden=hidden, width=width),
        tied=True,
        sequence_length=sequence_length(config) - ROWS_BEFORE_FIRST.get(traits.name, 0),
        extra_parameters=_pooler(traits, task, hidden),
    )


def _layer(config: Config, traits: Architecture, hidden: int) -> TransformerLayer:
    return TransformerLayer(
        hidden=hidden,
        attention=read_attention(config, traits, hidden=hidden),
        feed_forward=read_feed_forwards(config, traits, hidden=hidden, num_layers=1)[0],
        norm=traits.norm,
    )


def _embedding(
    config: Config, traits: Architecture, vocabulary: int, *, hidden: int, width: int
) -> Embedding:
    positions = position_rows(config, traits)
    types = config.count(("type_vocab_size",), 0)
    if width == hidden:
        return Embedding(
            vocabulary=vocabulary, hidden=hidden, positions=positions,
            token_types=types, norm=traits.embedding_norm,
        )  # fmt: skip
    # Positions, types and norm are as narrow as the tokens; then one matrix with a bias.
    narrow = (positions + types + 2) * width + hidden
    return Embedding(
        vocabulary=vocabulary, hidden=hidden, projection=width, extra_parameters=narrow
    )


def _head(traits: Architecture, task: str, vocabulary: int, *, hidden: int, width: int) -> Head:
    """The masked-language head (dense, norm, tied matrix, bias), or the tied matrix alone."""
    masked = task in ("masked", "pretraining")
    if width == hidden and traits.norm == "layernorm":
        return Head(
            vocabulary=vocabulary, hidden=hidden, norm=traits.final_norm or "none", bias=masked,
            transform=masked,
            shared_with_embedding=vocabulary * hidden,
        )  # fmt: skip
    if width == hidden:  # ModernBERT: no bias but the last
        return Head(
            vocabulary=vocabulary, hidden=hidden, norm="layernorm-no-bias", bias=masked,
            shared_with_embedding=vocabulary * hidden,
            extra_parameters=hidden**2 + hidden if masked else 0,
        )  # fmt: skip
    bridge = 0 if masked else hidden * width  # the bare model does not come back to ``width``
    return Head(
        vocabulary=vocabulary, hidden=hidden, norm="none", bias=masked, projection=width,
        shared_with_embedding=vocabulary * width + bridge,
        extra_parameters=3 * width if masked else 0,
    )  # fmt: skip


def _task(config: Config) -> str:
    """What ``architectures`` says the model is trained for; empty for the bare model."""
    classes = config.values.get("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    if first == "ElectraForPreTraining":
        return "discriminating"
    endings = {"ForMaskedLM": "masked", "ForPreTraining": "pretraining"}
    return next((task for ending, task in endings.items() if first.endswith(ending)), "")


def _pooler(traits: Architecture, task: str, hidden: int) -> int:
    """A dense layer on the first token; pretraining adds the next-sentence classifier.

    ELECTRA's discriminator has a dense layer and one logit on every token.
    """
    if task == "discriminating":
        return hidden**2 + 2 * hidden + 1
    if traits.name not in POOLED or task == "masked":
        return 0
    return hidden**2 + hidden + (2 * (hidden + 1) if task == "pretraining" else 0)


def _uneven_first(traits: Architecture, layer: TransformerLayer) -> tuple[Run, ...]:
    """ModernBERT's first layer has no norm before attention: the embedding has one."""
    if traits.name != "modernbert":
        return ()
    return (Run(block=replace(layer, attention_norms=0), count=1),)
