"""Parameters of the vision towers that stand beside a language model: counted, not timed."""

from collections.abc import Mapping

from planner.model.huggingface.config import FFN, HIDDEN, LAYERS, Config


def tower_parameters(outer: Config, *, text: Config) -> int:
    """Elements of a multimodal model outside its language part; 0, and said, if unknown."""
    table = outer.section("vision_config")
    model_type = outer.text("model_type")
    count = _TOWERS.get(model_type)
    for key in ("audio_config", "talker_config", "vq_config"):
        if outer.section(key) is not None:
            text.assumed.append(f"the part described by {key} is left out of the count")
    if table is None and count is None:
        return 0
    if count is None:
        text.assumed.append(
            f"the vision tower of model_type {model_type!r} is left out of the count"
        )
        return 0
    vision = Config(
        values=table or {}, defaults=_VISION_DEFAULTS[model_type], nested=True,
        where=f"{outer.where}: vision_config", assumed=text.assumed,
    )  # fmt: skip
    elements = count(outer, vision, text.size(HIDDEN))
    text.assumed.append(f"{elements} parameters of the vision tower are counted, not timed")
    return elements


def _gemma3(outer: Config, vision: Config, width: int) -> int:
    """SigLIP without its pooling head, then a norm and one matrix."""
    hidden = vision.size(HIDDEN)
    return _siglip(vision, hidden) + hidden + hidden * width


def _siglip(vision: Config, hidden: int) -> int:
    """SigLIP (Zhai et al. 2023): patches and positions with no class token, final norm."""
    patch = vision.count(("patch_size",), 14)
    rows = (vision.count(("image_size",), 896) // patch) ** 2
    start = 3 * patch**2 * hidden + hidden + rows * hidden
    return start + vision.size(LAYERS) * _plain_layer(vision, hidden) + 2 * hidden


def _plain_layer(vision: Config, hidden: int) -> int:
    """Four projections, two matrices, two LayerNorms, all with biases."""
    ffn = vision.size(FFN)
    return 4 * (hidden**2 + hidden) + 2 * hidden * ffn + ffn + hidden + 4 * hidden


def _llava(outer: Config, vision: Config, width: int) -> int:
    """CLIP's tower (Radford et al. 2021) and a two-layer projector (Liu et al. 2023)."""
    hidden = vision.size(HIDDEN)
    patch = vision.count(("patch_size",), 14)
    rows = (vision.count(("image_size",), 336) // patch) ** 2 + 1
    tower = 3 * patch**2 * hidden + hidden + rows * hidden  # class token and positions
    tower += vision.size(LAYERS) * _plain_layer(vision, hidden) + 4 * hidden
    return tower + hidden * width + width + width**2 + width


def _llama4(outer: Config, vision: Config, width: int) -> int:
    """Llama 4: CLIP-like layers, a pixel-shuffle adapter of two matrices, one projector."""
    hidden, ffn = vision.size(HIDDEN), vision.size(FFN)
    patch = vision.count(("patch_size",), 14)
    rows = (vision.count(("image_size",), 448) // patch) ** 2 + 1
    start = 3 * patch**2 * hidden + hidden + rows * hidden
    layers = vision.size(LAYERS) * _plain_layer(vision, hidden) + 4 * hidden
    shuffled = vision.size(("projector_input_dim",))
    output = vision.size(("projector_output_dim",))
    adapter = ffn * shuffled + shuffled * output
    return start + layers + adapter + vision.size(("vision_output_dim",)) * width


def _llava_next(outer: Config, vision: Config, width: int) -> int:
    """LLaVA with a learned mark at the end of each row of an image."""
    return _llava(outer, vision, width) + width


def _paligemma(outer: Config, vision: Config, width: int) -> int:
    """SigLIP and one matrix with a bias."""
    hidden = vision.size(HIDDEN)
    output = outer.count(("projection_dim",), 0) or vision.count(("projection_dim",), width)
    return _siglip(vision, hidden) + hidden * output + output


def _mistral3(outer: Config, vision: Config, width: int) -> int:
    """Pixtral's tower: RMSNorm, gated, no biases; then patch merger and projector."""
    hidden, ffn = vision.size(HIDDEN), vision.size(FFN)
    patch = vision.count(("patch_size",), 14)
    layer = 4 * hidden**2 + 3 * hidden * ffn + 2 * hidden
    tower = 3 * patch**2 * hidden + hidden + vision.size(LAYERS) * layer
    merge = outer.count(("spatial_merge_size",), 2) ** 2 * hidden * hidden
    bias = 2 * width if outer.says("multimodal_projector_bias") else 0
    return tower + hidden + merge + hidden * width + width**2 + bias


def _qwen2_vl(outer: Config, vision: Config, width: int) -> int:
    """Qwen2-VL: patches of two frames, LayerNorm layers, a merger of four patches."""
    hidden = vision.count(("embed_dim",), 1280)
    ffn = hidden * vision.count(("mlp_ratio",), 4)
    layer = 4 * (hidden**2 + hidden) + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    return (
        _qwen_patches(vision, hidden)
        + vision.count(("depth",), 32) * layer
        + (2 * hidden + _merger(vision, hidden, width))
    )


def _qwen2_5_vl(outer: Config, vision: Config, width: int) -> int:
    """Qwen2.5-VL: RMSNorm and gated layers with biases."""
    hidden, ffn = vision.count(("hidden_size",), 1280), vision.count(("intermediate_size",), 3420)
    layer = 4 * (hidden**2 + hidden) + 3 * hidden * ffn + 2 * ffn + hidden + 2 * hidden
    return (
        _qwen_patches(vision, hidden)
        + vision.count(("depth",), 32) * layer
        + (hidden + _merger(vision, hidden, width))
    )


def _qwen3_vl(outer: Config, vision: Config, width: int) -> int:
    """Qwen3-VL: positions are learned, and a merger for each layer that feeds the decoder."""
    hidden = vision.size(HIDDEN)
    ffn = vision.size(FFN)
    layer = 4 * (hidden**2 + hidden) + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    positions = vision.count(("num_position_embeddings",), 2304) * hidden
    merged = hidden * vision.count(("spatial_merge_size",), 2) ** 2
    merger = _merger(vision, hidden, width)
    taps = len(vision.numbers("deepstack_visual_indexes"))
    patches = _qwen_patches(vision, hidden) + hidden
    return (
        patches
        + positions
        + vision.count(("depth",), 27) * layer
        + (2 * hidden + merger)
        + taps * (2 * merged + merger)
    )


def _qwen_patches(vision: Config, hidden: int) -> int:
    channels = vision.count(("in_channels", "in_chans"), 3)
    frames = vision.count(("temporal_patch_size",), 2)
    return channels * frames * vision.count(("patch_size",), 14) ** 2 * hidden


def _merger(vision: Config, hidden: int, width: int) -> int:
    merged = hidden * vision.count(("spatial_merge_size",), 2) ** 2
    return merged**2 + merged + merged * width + width


_TOWERS = {
    "gemma3": _gemma3,
    "llama4": _llama4,
    "llava": _llava,
    "llava_next": _llava_next,
    "mistral3": _mistral3,
    "paligemma": _paligemma,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
}
_CLIP = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
_QWEN3 = {"hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16}
_VISION_DEFAULTS: dict[str, Mapping[str, object]] = {
    # The one tower that all published models of the family have (config.json of
    # google/gemma-3-4b-it, meta-llama/Llama-4-Scout-17B-16E) ...
    "gemma3": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "image_size": 896, "patch_size": 14,
    },
    "llama4": {
        "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34,
        "image_size": 336, "patch_size": 14, "projector_input_dim": 4096,
        "projector_output_dim": 4096, "vision_output_dim": 4096,
    },
    # ... and class defaults of the towers in transformers 5.24.0.
    "llava": {**_CLIP, "image_size": 336, "patch_size": 14},
    "llava_next": {**_CLIP, "image_size": 336, "patch_size": 14},
    "mistral3": {**_CLIP, "image_size": 1540, "patch_size": 14},
    "paligemma": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "image_size": 224, "patch_size": 14,
    },
    "qwen2_vl": {},
    "qwen2_5_vl": {},
    "qwen3_vl": {**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]},
    "qwen3_vl_moe": {**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]},
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
}  # fmt: skip
