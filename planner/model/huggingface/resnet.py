"""ResNets of bottleneck blocks, from a config or a preset."""

from itertools import groupby

from planner.model.convolution import ImageHead, Stem, resnet_layers
from planner.model.core import Model, Run
from planner.model.huggingface.config import Config
from planner.model.huggingface.vision import num_classes

STANDARD = {
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "layer_type": "bottleneck",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}
"""The shape that is modelled (He et al. 2016, table 1; stride on the 3x3 convolution)."""


def resnet_from_config(config: Config, *, name: str) -> Model:
    """A Hugging Face ResNet config; only the standard widths of bottleneck blocks.

    Raises:
        ValueError: Naming the key that is missing or not of the standard shape.
    """
    for key, wanted in STANDARD.items():
        value = config.values.get(key, wanted)
        if value != wanted:
            raise ValueError(f"{config.where}: {key} must be {wanted}, the shape that is modelled")
    image = config.count(("image_size",), 0)
    if not image:
        config.assumed.append("image_size is not in the file; 224")
    classes = num_classes(config) or 1000
    return resnet_model(config.numbers("depths"), image or 224, classes, config, name=name)


def resnet_from_preset(config: Config, *, name: str) -> Model:
    """A ResNet by its depths, image size and number of classes.

    Raises:
        ValueError: If a key is missing or not a whole number.
    """
    image, classes = config.size(("image_size",)), config.size(("num_classes",))
    return resnet_model(config.numbers("depths"), image, classes, config, name=name)


def resnet_model(
    depths: tuple[int, ...], image: int, classes: int, config: Config, *, name: str
) -> Model:
    """A stem, four groups of bottleneck blocks and a classifier.

    Raises:
        ValueError: If there are not four depths, or the image does not halve five times.
    """
    if len(depths) != 4 or min(depths) < 1:
        raise ValueError(f"{config.where}: depths must be four whole numbers of 1 or more")
    if image % 32:
        raise ValueError(f"{config.where}: image_size must be a multiple of 32, got {image}")
    layers = resnet_layers(depths, image_size=image)
    return Model(
        name=name,
        family="convolution",
        embedding=Stem(image_size=image),
        layers=tuple(Run(block=block, count=len(list(same))) for block, same in groupby(layers)),
        head=ImageHead(hidden=layers[-1].hidden, size=image // 32, num_classes=classes),
        sequence_length=1,
    )
