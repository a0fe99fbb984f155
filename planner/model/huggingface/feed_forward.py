"""Feed-forward of each layer as a config states it: dense, or experts, layer by layer."""

from planner.model.feed_forward import Experts, FeedForward
from planner.model.huggingface.architecture import Architecture
from planner.model.huggingface.config import FFN, Config

EXPERTS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
)
PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_k",
    "moe_top_k",
    "ffn_config.moe_top_k",
)
EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
SHARED_COUNT = (
    "n_shared_experts",
    "num_shared_experts",
    "num_shared_expert",
    "moe_num_shared_experts",
)
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")


def read_feed_forwards(
    config: Config, traits: Architecture, *, hidden: int, num_layers: int
) -> list[FeedForward | Experts]:
    """The feed-forward of every layer in order."""
    num_experts = config.count(EXPERTS, 0)
    if num_experts <= 1:
        return [_dense(config, traits, hidden)] * num_layers
    experts = _experts(config, traits, num_experts)
    sparse = [_is_sparse(config, layer, num_layers) for layer in range(num_layers)]
    if all(sparse):
        return [experts] * num_layers
    dense = _dense(config, traits, hidden)
    return [experts if flag else dense for flag in sparse]


def _dense(config: Config, traits: Architecture, hidden: int) -> FeedForward:
    return FeedForward(
        ffn_hidden=_dense_width(config, traits, hidden),
        gated=config.says(traits.gated),
        bias=config.says(traits.mlp_bias),
        activation=_activation(config),
    )


def _dense_width(config: Config, traits: Architecture, hidden: int) -> int:
    if traits.dense_width_key:
        return config.count((traits.dense_width_key,), 0) or config.size(FFN)
    if traits.ffn_ratio:
        ratio = config.count(("expansion_ratio",), traits.ffn_ratio)
        return config.count(FFN, 0) or ratio * hidden
    return config.size(FFN) // traits.ffn_share


def _activation(config: Config):
    """The nearest activation that is priced: they differ in name more than in cost."""
    name = str(config.find(ACTIVATIONS) or "silu").lower()
    known = {"relu2": "relu2", "relu": "relu", "quick_gelu": "quick-gelu", "silu": "silu"}
    if name in known:
        return known[name]
    if "gelu" in name:
        return "gelu-tanh" if "tanh" in name or "new" in name else "gelu"
    return "silu"


def _experts(config: Config, traits: Architecture, num_experts: int) -> Experts:
    width = config.count(EXPERT_WIDTH, 0) or config.size(FFN)
    per_token = config.find(PER_TOKEN)
    if per_token is None:
        raise ValueError(f"{config.where}: {PER_TOKEN[0]} is missing beside {EXPERTS[0]}")
    chosen = config.checked(per_token, PER_TOKEN)
    if chosen > num_experts:
        raise ValueError(
            f"{config.where}: {PER_TOKEN[0]} {chosen} is more than the {num_experts} experts"
        )
    shared = config.count(SHARED_WIDTH, 0)
    if not shared:
        shared = (config.count(SHARED_COUNT, 0) + traits.shared_experts) * width
    return Experts(
        num_experts=num_experts,
        experts_per_token=chosen,
        ffn_hidden=width,
        gated=config.says(traits.gated),
        bias=config.says(traits.expert_bias),
        router_bias=config.says(traits.router_bias),
        shared_ffn_hidden=shared,
        shared_gate=bool(shared) and config.says(traits.shared_gate),
    )


def _is_sparse(config: Config, layer: int, num_layers: int) -> bool:
    """Whether a layer has experts; each family's rule counts where its keys are present.

    DeepSeek: dense first layers, then every ``moe_layer_freq``-th. Qwen: not listed as MLP
    only, and every ``decoder_sparse_step``-th. Llama 4: listed, or every
    ``interleave_moe_layer_step``-th. ERNIE: between a first and a last layer, at an interval.
    Lists of kinds or of layers go before any rule.
    """
    kinds = config.texts("mlp_layer_types")
    if kinds:
        return layer < len(kinds) and kinds[layer] == "sparse"
    if config.find(("moe_layers",)) is not None:
        return layer in config.numbers("moe_layers")
    if isinstance(config.find(("moe_layer_freq",)), list):
        pattern = config.numbers("moe_layer_freq")
        return layer < len(pattern) and pattern[layer] == 1
    start = config.count(("moe_layer_start_index",), 0)
    end = config.find(("moe_layer_end_index",))
    last = num_layers - 1 if end in (None, -1) else config.checked(end, ("moe_layer_end_index",))
    rules = (
        layer >= config.count(("first_k_dense_replace", "num_dense_layers"), 0),
        layer % max(config.count(("moe_layer_freq",), 1), 1) == 0,
        layer not in config.numbers("mlp_only_layers"),
        (layer + 1) % max(config.count(("decoder_sparse_step",), 1), 1) == 0,
        (layer + 1) % max(config.count(("interleave_moe_layer_step",), 1), 1) == 0,
        start <= layer <= last,
        (layer + 1) % max(config.count(("moe_layer_interval",), 1), 1) == 0,
    )
    return all(rules)
