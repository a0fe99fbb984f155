"""A model preset: a Hugging Face config in TOML, or a ResNet by its depths."""

from collections.abc import Mapping
from dataclasses import replace

from planner.model.core import Model
from planner.model.huggingface import model_from_config
from planner.model.huggingface.config import Config
from planner.model.huggingface.resnet import resnet_from_preset

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
        model = resnet_from_preset(Config(values=resnet, where=f"{where}: resnet"), name=name)
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
