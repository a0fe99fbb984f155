"""Attention of a layer as a config states it: plain, grouped, multi-query or latent."""

from typing import Literal

from planner.model.attention import LatentAttention, SelfAttention
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.config import HEAD_DIM, HEADS, KV_HEADS, Config
from planner.model.linear_attention import LinearAttention


def read_attention(
    config: Config, traits: Architecture, *, hidden: int
) -> SelfAttention | LatentAttention:
    """The attention of every layer.

    Raises:
        ValueError: Naming the keys that contradict each other.
    """
    heads = config.size(HEADS)
    if _rank(config, "kv_lora_rank"):
        return _latent(config, traits, heads)
    head_dim = _head_dim(config, hidden=hidden, heads=heads)
    kv_heads = _kv_heads(config, traits, heads)
    if heads % kv_heads:
        raise ValueError(
            f"{config.where}: {HEADS[0]} {heads} must be a multiple of {KV_HEADS[0]} {kv_heads}"
        )
    norm = traits.qk_norm if config.says(traits.qk_norm_when) else "none"
    plain: Literal["none", "head", "full"] = norm if norm in ("head", "full") else "none"
    extra = {"every-head": (heads + kv_heads) * head_dim, "layernorm-head": 4 * head_dim}
    return SelfAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        causal=traits.family == "decoder",
        rotary=traits.positions == "rotary",
        qkv_bias=config.says(traits.qkv_bias),
        output_bias=config.says(traits.output_bias),
        qk_norm=plain,
        sinks=config.says(traits.sinks),
        output_gate=config.says(traits.output_gate),
        extra_parameters=extra.get(norm, 0),
    )


def read_attentions(
    config: Config, traits: Architecture, *, hidden: int, num_layers: int
) -> list[SelfAttention | LatentAttention | LinearAttention]:
    """The attention of every layer in order: hybrids mix linear with full attention.

    ``layer_types`` lists the kinds; without it every ``full_attention_interval``-th is full.
    """
    full = read_attention(config, traits, hidden=hidden)
    if not config.says(traits.linear_attention):
        return [full] * num_layers
    linear = LinearAttention(
        key_heads=config.size(("linear_num_key_heads",)),
        value_heads=config.size(("linear_num_value_heads",)),
        key_head_dim=config.size(("linear_key_head_dim",)),
        value_head_dim=config.size(("linear_value_head_dim",)),
        kernel=config.count(("linear_conv_kernel_dim",), 4),
    )
    kinds = config.texts("layer_types")
    if not kinds:
        interval = max(config.count(("full_attention_interval",), 4), 1)
        flags = [(layer + 1) % interval == 0 for layer in range(num_layers)]
    elif len(kinds) != num_layers:
        raise ValueError(
            f"{config.where}: layer_types has {len(kinds)} entries for {num_layers} layers"
        )
    else:
        flags = [kind == "full_attention" for kind in kinds]
    return [full if flag else linear for flag in flags]


def _head_dim(config: Config, *, hidden: int, heads: int) -> int:
    stated = config.find(HEAD_DIM)
    if stated is not None:
        return config.checked(stated, HEAD_DIM)
    if hidden % heads:
        raise ValueError(
            f"{config.where}: hidden_size {hidden} must be a multiple of "
            f"{HEADS[0]} {heads}, or head_dim must be given"
        )
    return hidden // heads


def has_new_decoder(config: Config) -> bool:
    """Falcon's second architecture; its first files say so by ``n_head_kv`` alone."""
    if "new_decoder_architecture" not in config.values:
        return config.values.get("n_head_kv") is not None
    return config.says("new_decoder_architecture")


def _kv_heads(config: Config, traits: Architecture, heads: int) -> int:
    """Key and value heads; absent or null means as many as query heads.

    Falcon: the key counts only in its new architecture, else ``multi_query`` decides.
    """
    switch = config.find(("multi_query",))
    if isinstance(switch, bool) and not has_new_decoder(config):
        return 1 if switch else heads
    stated = config.find(KV_HEADS, with_defaults=config.nested)
    return heads if stated is None else config.checked(stated, KV_HEADS)


def _rank(config: Config, name: str) -> int:
    """A rank of latent attention: null says none, only an absent key has the class default."""
    if name in config.values and config.values[name] is None:
        return 0
    return config.count((name,), 0)


def _latent(config: Config, traits: Architecture, heads: int) -> LatentAttention:
    return LatentAttention(
        heads=heads,
        q_lora_rank=_rank(config, "q_lora_rank"),
        kv_lora_rank=_rank(config, "kv_lora_rank"),
        nope_head_dim=config.count(("qk_nope_head_dim",), 128),
        rope_head_dim=config.count(("qk_rope_head_dim",), 64),
        value_head_dim=config.count(("v_head_dim",), 128),
        causal=traits.family == "decoder",
        bias=config.says("attention_bias"),
    )


def beside_latent_parameters(config: Config, attention: LatentAttention, *, hidden: int) -> int:
    """Elements of a layer that the projections of latent attention do not count.

    Biases of the two down-projections, which ``attention_bias`` switches on as well; and the
    indexer of sparse attention (DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025): queries from the
    latent, one key head with a LayerNorm, and a weight for each of its heads.
    """
    biases = attention.q_lora_rank + attention.kv_lora_rank + attention.rope_head_dim
    elements = biases if config.says("attention_bias") else 0
    heads = config.count(("index_n_heads",), 0)
    if heads:
        width = config.size(("index_head_dim",))
        elements += attention.q_lora_rank * heads * width
        elements += hidden * width + 2 * width + hidden * heads
    return elements
