"""A model preset: a Hugging Face config in TOML, or a ResNet by its depths."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from planner.model.convolution import ImageHead, Stem, resnet_layers
from planner.model.core import Model, Run
from planner.model.huggingface import model_from_config
from planner.model.huggingface.config import Config

_KEYS = ("name", "source", "notes", "sequence_length", "config", "resnet")


def read_model_preset(table: Mapping[str, object], *, where: str) -> Model:
    """A model from the table of a preset file: its facts, and ``[config]`` or ``[resnet]``.

    Raises:
        ValueError: In one line naming the file and the key at fault.
    """
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; it knows {', '.join(_KEYS)}")
    facts = Config(values=table, where=where)
    name = facts.text("name", where)
    config, resnet = facts.section("config"), facts.section("resnet")
    if resnet is not None:
        model = resnet_model(Config(values=resnet, where=f"{where}: resnet"), name=name)
    elif config is not None:
        model = model_from_config(config, name=name, where=where)
    else:
        raise ValueError(
            f"{where}: needs a table [config] with a Hugging Face config, or [resnet]"
        )
    length = facts.count(("sequence_length",), 0) or model.sequence_length
    # A length stated here is a fact, not an assumption about the file.
    said = [a for a in model.assumptions if not a.startswith(("sequence length", "no context"))]
    return replace(
        model,
        source=facts.text("source"),
        sequence_length=length,
        assumptions=tuple(said) if "sequence_length" in table else model.assumptions,
    )


def resnet_model(config: Config, *, name: str) -> Model:
    """A ResNet of bottleneck blocks (He et al. 2016).

    Raises:
        ValueError: If a key is missing or not a whole number.
    """
    depths = config.numbers("depths")
    if len(depths) != 4 or min(depths) < 1:
        raise ValueError(f"{config.where}: depths must be four whole numbers of 1 or more")
    image = config.size(("image_size",))
    if image % 32:
        raise ValueError(f"{config.where}: image_size must be a multiple of 32, got {image}")
    layers = resnet_layers(depths, image_size=image)
    runs = tuple(Run(block=block, count=len(list(same))) for block, same in groupby(layers))
    return Model(
        name=name,
        family="convolution",
        embedding=Stem(image_size=image),
        layers=runs,
        head=ImageHead(
            hidden=layers[-1].hidden, size=image // 32, num_classes=config.size(("num_classes",))
        ),
        sequence_length=1,
    )
