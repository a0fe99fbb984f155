"""Attention of a layer as a config states it: plain, grouped, multi-query or latent."""

from typing import Literal

from planner.model.attention import LatentAttention, SelfAttention
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.config import HEAD_DIM, HEADS, KV_HEADS, Config


def read_attention(
    config: Config, traits: Architecture, *, hidden: int
) -> SelfAttention | LatentAttention:
    """The attention of every layer.

    Raises:
        ValueError: Naming the keys that contradict each other.
    """
    heads = config.size(HEADS)
    if config.count(("kv_lora_rank",), 0):
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
        extra_parameters=extra.get(norm, 0),
    )


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


def _latent(config: Config, traits: Architecture, heads: int) -> LatentAttention:
    # Null says that queries are not compressed; only an absent key has the class default.
    full_query = "q_lora_rank" in config.values and config.values["q_lora_rank"] is None
    return LatentAttention(
        heads=heads,
        q_lora_rank=0 if full_query else config.count(("q_lora_rank",), 0),
        kv_lora_rank=config.size(("kv_lora_rank",)),
        nope_head_dim=config.count(("qk_nope_head_dim",), 128),
        rope_head_dim=config.count(("qk_rope_head_dim",), 64),
        value_head_dim=config.count(("v_head_dim",), 128),
        causal=traits.family == "decoder",
        bias=config.says("attention_bias"),
    )


def latent_bias_parameters(config: Config, attention: LatentAttention) -> int:
    """Biases of the two down-projections, which ``attention_bias`` switches on as well."""
    if not config.says("attention_bias"):
        return 0
    return attention.q_lora_rank + attention.kv_lora_rank + attention.rope_head_dim
