"""What a family of models has in common: data, one TOML file for each ``model_type``."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from planner.catalogue import list_presets, load_preset
from planner.model.transformer import Norm
from planner.tables import build, keys_of, read_table

QkNorm = Literal["none", "head", "full", "every-head", "layernorm-head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Traits of a family. A trait of text is ``always``, ``never`` or the key that decides."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    source: str = ""
    family: Literal["decoder", "encoder", "encoder-decoder", "vision"] = "decoder"
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Class defaults of keys that files may leave out."""
    norm: Norm = "rmsnorm"
    final_norm: Literal["", "rmsnorm", "layernorm", "layernorm-no-bias", "none"] = ""
    """Empty for the same as ``norm``."""
    embedding_norm: Literal["none", "layernorm", "rmsnorm", "layernorm-no-bias"] = "none"
    attention_norms: int = 1
    feed_forward_norms: int = 1
    parallel: str = "never"
    positions: Literal["rotary", "learned", "alibi", "none"] = "rotary"
    position_offset: int = 0
    """Rows of the position table before the first position (OPT, BART: 2)."""
    gated: str = "always"
    ffn_ratio: int = 0
    """Feed-forward over hidden where the file is silent; 0 if it must say."""
    ffn_share: int = 1
    """What ``intermediate_size`` is divided by: 2 where it counts gate and up together."""
    dense_width_key: str = ""
    """The key of the dense layers' width where ``intermediate_size`` is the experts'."""
    qkv_bias: str = "never"
    output_bias: str = "never"
    mlp_bias: str = "never"
    head_bias: str = "never"
    qk_norm: QkNorm = "none"
    """``head``: shared by all heads; ``every-head``: one for each; ``layernorm-head``: with a
    bias; ``full``: over all heads at once."""
    qk_norm_when: str = "always"
    sinks: str = "never"
    output_gate: str = "never"
    linear_attention: str = "never"
    """Some layers have a gated delta rule in place of softmax attention."""
    expert_bias: str = "never"
    router_bias: str = "never"
    shared_experts: int = 0
    """Shared experts of the routed width that every layer with experts has."""
    shared_gate: str = "never"
    extra_parameters: int = 0
    """Of every layer, outside its attention and feed-forward (learned activations)."""


def load_architecture(model_type: str) -> Architecture | None:
    """The traits of a ``model_type``; None if the catalogue does not have it.

    >>> load_architecture("qwen2").qkv_bias
    'always'
    """
    if not model_type or "/" in model_type or "\\" in model_type:
        return None
    try:
        table = load_preset("architectures", model_type)
    except ValueError as error:
        if "is called" in str(error):
            return None
        raise
    defaults = table.pop("defaults", {})
    values = read_table(table, keys_of(Architecture), where=f"architecture {model_type}")
    return build(Architecture, {**values, "defaults": defaults}, where=model_type)


def nearest_architectures(model_type: str) -> list[str]:
    """Names like the one given, for a hint."""
    return difflib.get_close_matches(model_type.replace("_", "-"), list_presets("architectures"))
