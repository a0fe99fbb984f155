"""Vision transformers from a config: ViT and DeiT."""

from collections.abc import Mapping
from dataclasses import replace

from planner.model.convolution import ImageHead
from planner.model.core import Model, Run
from planner.model.ends import Embedding
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.attention import read_attention
from planner.model.huggingface.config import HIDDEN, LAYERS, Config
from planner.model.huggingface.feed_forward import read_feed_forwards
from planner.model.transformer import TransformerLayer


def vision_model(config: Config, traits: Architecture, *, name: str) -> Model:
    """ViT (Dosovitskiy et al. 2021) and DeiT: patches, layers, a classifier or a pooler.

    Raises:
        ValueError: In one line naming the key at fault.
    """
    hidden, num_layers = config.size(HIDDEN), config.size(LAYERS)
    image, patch = config.size(("image_size",)), config.size(("patch_size",))
    if patch > image:
        raise ValueError(f"{config.where}: patch_size {patch} is more than image_size {image}")
    special = 2 if traits.name == "deit" else 1  # class token, and DeiT's distillation token
    tokens = (image // patch) ** 2 + special
    channels = config.count(("num_channels",), 3)
    patches = channels * patch**2 * hidden + hidden
    classes = num_classes(config)
    layer = TransformerLayer(
        hidden=hidden,
        attention=replace(read_attention(config, traits, hidden=hidden), causal=False),
        feed_forward=read_feed_forwards(config, traits, hidden=hidden, num_layers=1)[0],
        norm="layernorm",
    )
    pooler = 0 if classes else hidden**2 + hidden
    if not classes:
        config.assumed.append("no labels in the file; the bare model with its pooler")
    return Model(
        name=name,
        family="vision",
        embedding=Embedding(
            vocabulary=0,
            hidden=hidden,
            positions=tokens,
            extra_parameters=patches + special * hidden,
        ),
        layers=(Run(block=layer, count=num_layers),),
        head=ImageHead(hidden=hidden, size=image // patch, num_classes=classes),
        sequence_length=tokens,
        extra_parameters=2 * hidden + pooler,
    )


def num_classes(config: Config) -> int:
    """Labels of the classifier; 0 for the bare model."""
    stated = config.count(("num_labels",), 0)
    labels = config.values.get("id2label")
    if stated:
        return stated
    if isinstance(labels, Mapping):
        return len(labels)
    classes = config.values.get("architectures")
    classifies = isinstance(classes, list) and "ForImageClassification" in str(classes)
    return 2 if classifies else 0  # two labels are the class default
