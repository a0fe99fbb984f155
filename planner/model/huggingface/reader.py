"""From a config to a ``Model``: which family it is, and what to do with one nobody knows."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.model.core import Model
from planner.model.huggingface.architecture import (
    Architecture,
    load_architecture,
    nearest_architectures,
)
from planner.model.huggingface.config import HEADS, HIDDEN, LAYERS, VOCABULARY, Config, read_config
from planner.model.huggingface.decoder import decoder_model
from planner.model.huggingface.encoder import encoder_model
from planner.model.huggingface.encoder_decoder import encoder_decoder_model
from planner.model.huggingface.resnet import resnet_from_config
from planner.model.huggingface.towers import tower_parameters
from planner.model.huggingface.vision import vision_model

TEXT_SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config")
_BUILDERS = {
    "decoder": decoder_model,
    "encoder": encoder_model,
    "encoder-decoder": encoder_decoder_model,
    "vision": vision_model,
}


def read_model(path: Path) -> Model:
    """The model of a ``config.json``, given as the file or its folder.

    Raises:
        ValueError: In one line naming the file and the key at fault.
    """
    table = read_config(path)
    where = str(path if path.suffix == ".json" else path / "config.json")
    name = path.stem if path.stem != "config" else path.resolve().parent.name
    return model_from_config(table, name=name, where=where)


def model_from_config(
    table: Mapping[str, object], *, name: str = "", where: str = "config"
) -> Model:
    """The model that a config describes.

    Args:
        table: The JSON object.
        name: What to call the model; the ``model_type`` where it is empty.
        where: The file, for messages.

    Raises:
        ValueError: In one line naming the key at fault.
    """
    outer = Config(values=table, where=where)
    section = next((key for key in TEXT_SECTIONS if outer.section(key) is not None), "")
    if section or outer.text("model_type") in _TEXT_TYPES:
        return _wrapped(outer, section, name=name)
    if outer.text("model_type") == "resnet":
        model = resnet_from_config(outer, name=name or "resnet")
        return replace(model, assumptions=tuple(outer.assumed), source=where)
    traits = _traits(outer)
    return _finished(replace(outer, defaults=traits.defaults), traits, name=name)


def _wrapped(outer: Config, section: str, *, name: str) -> Model:
    """A multimodal model: its language part, and the parameters of the rest.

    Older files keep the language part's keys at the top, beside ``vision_config``.
    """
    inner: dict[str, object] = dict(outer.section(section) or outer.values)
    if isinstance(inner.get("text_config"), Mapping):  # thinker_config holds its own sections
        outer = replace(outer, values={**outer.values, **inner})
        inner = dict(inner["text_config"])  # type: ignore[call-overload]
    model_type = str(inner.get("model_type") or outer.text("model_type"))
    inner["model_type"] = _TEXT_TYPES.get(model_type, model_type)
    if inner.get("tie_word_embeddings") is None:
        inner["tie_word_embeddings"] = outer.values.get("tie_word_embeddings")
    config = replace(
        outer, values=inner, nested=bool(section),
        where=f"{outer.where}: {section}" if section else outer.where,
    )  # fmt: skip
    traits = _traits(config)
    config = replace(config, defaults=traits.defaults)
    rest = tower_parameters(outer, text=config)
    model = _finished(config, traits, name=name)
    return replace(model, extra_parameters=model.extra_parameters + rest)


# The language part of wrappers, whose text section may leave its own type out.
_TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "paligemma": "gemma",
}


def _finished(config: Config, traits: Architecture, *, name: str) -> Model:
    model = _BUILDERS[traits.family](config, traits, name=name or traits.name)
    if predicted := config.count(("num_nextn_predict_layers",), 0):
        config.assumed.append(f"{predicted} multi-token prediction layer(s) are left out")
    if config.values.get("quantization_config"):
        config.assumed.append("quantization_config is about inference and is ignored")
    return replace(
        model,
        assumptions=(*model.assumptions, *config.assumed),
        source=f"{config.where}; {traits.source}",
    )


def _traits(config: Config) -> Architecture:
    """The family of a config: by type, by class name, or a guess that is said aloud.

    Raises:
        ValueError: If the family is unknown and its shape cannot be read off the keys.
    """
    model_type = config.text("model_type") or _type_of_class(config)
    traits = load_architecture(model_type)
    remote = config.values.get("auto_map")
    if traits is not None:
        if remote:
            config.assumed.append("auto_map names code of its own, which is never run")
        return traits
    if remote:
        raise ValueError(
            f"{config.where}: auto_map needs code of its own (trust_remote_code), which is never "
            f"run, and model_type {model_type!r} is not known"
        )
    return _guess(config, model_type)


def _type_of_class(config: Config) -> str:
    """``LlamaForCausalLM`` is of type llama."""
    classes = config.values.get("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    return first.partition("For")[0].removesuffix("Model").lower()


def _guess(config: Config, model_type: str) -> Architecture:
    """An unknown family that states a decoder's sizes is read as one."""
    missing = [names[0] for names in (HIDDEN, LAYERS, HEADS, VOCABULARY) if not config.find(names)]
    if missing:
        near = nearest_architectures(model_type)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ValueError(
            f"{config.where}: model_type {model_type!r} is not known and {missing[0]} is missing"
            f"{hint}"
        )
    if config.values.get("is_encoder_decoder") or config.values.get("vision_config"):
        raise ValueError(f"{config.where}: model_type {model_type!r} is not known")
    old = config.find(("rms_norm_eps", "rms_norm_epsilon")) is None and (
        config.find(("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")) is not None
    )
    shape = "GPT-2's (LayerNorm, biases, no gate)" if old else "Llama's (RMSNorm, gated)"
    config.assumed.append(f"model_type {model_type!r} is not known; read with layers like {shape}")
    if old:
        return Architecture(
            name=model_type, source="assumed", norm="layernorm", gated="never", ffn_ratio=4,
            qkv_bias="always", output_bias="always", mlp_bias="always",
        )  # fmt: skip
    return Architecture(
        name=model_type, source="assumed", qkv_bias="attention_bias",
        output_bias="attention_bias", mlp_bias="mlp_bias",
    )  # fmt: skip
