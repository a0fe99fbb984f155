"""One transformer layer: attention (MHA, GQA, MLA), a feed-forward or experts, norms."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from planner.model.attention import CrossAttention, LatentAttention, SelfAttention
from planner.model.ends import NORM_VECTORS, tensor_parallel_copy, tensor_parallel_sum
from planner.model.feed_forward import Experts, FeedForward
from planner.model.linear_attention import LinearAttention
from planner.ops import RMS_NORM_COMPOSED, Array, Implementation, MemoryBound, Op, Saved, Shard

Norm = Literal["rmsnorm", "layernorm", "layernorm-no-bias", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerLayer:
    """Attention and feed-forward, each with its norms and its residual."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["transformer"] = "transformer"
    hidden: int
    attention: SelfAttention | LatentAttention | LinearAttention
    feed_forward: FeedForward | Experts
    cross_attention: CrossAttention | None = None
    """Of a decoder that reads an encoder."""
    norm: Norm = "rmsnorm"
    attention_norms: int = 1
    """Norms around attention: 1 (before or after), 2 (sandwich), 0 (shares the other's)."""
    feed_forward_norms: int = 1
    parallel: bool = False
    """Attention and feed-forward read the same input and are summed once (GPT-J, Falcon)."""
    extra_parameters: int = 0
    """Elements outside the parts above, repeated on every tensor-parallel rank."""

    @property
    def active_expert_share(self) -> float:
        """Share of the routed experts that one token meets."""
        feed_forward = self.feed_forward
        if isinstance(feed_forward, Experts):
            return feed_forward.experts_per_token / feed_forward.num_experts
        return 1.0

    def ops(self, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Everything the layer does for one microbatch, in forward order."""
        size = implementation.activation_bytes
        whole_bytes = shard.tokens * self.hidden * size
        ops: list[Op] = list(self._norms("attention", self.attention_norms, shard, implementation))
        ops += tensor_parallel_copy("attention", whole_bytes, shard, implementation)
        ops += self.attention.ops(self.hidden, shard, implementation)
        if not self.parallel:
            ops += tensor_parallel_sum("attention", whole_bytes, shard)
            ops.append(_residual("attention residual", self.hidden, shard, implementation))
        if self.cross_attention is not None:
            ops += self._cross_ops(self.cross_attention, shard, implementation)
        ops += self._norms("feed-forward", self.feed_forward_norms, shard, implementation)
        ops += self._feed_forward_ops(shard, implementation)
        last = _residual("feed-forward residual", self.hidden, shard, implementation)
        if self.extra_parameters:
            last = replace(last, parameters=self.extra_parameters, tp_replicated=True)
        return (*ops, last)

    def _feed_forward_ops(self, shard: Shard, implementation: Implementation) -> list[Op]:
        whole_bytes = shard.tokens * self.hidden * implementation.activation_bytes
        inner = list(self.feed_forward.ops(self.hidden, shard, implementation))
        if isinstance(self.feed_forward, Experts) and not self.feed_forward.shared_ffn_hidden:
            return inner
        before: list[Op] = []
        if not self.parallel:
            before = list(tensor_parallel_copy("feed-forward", whole_bytes, shard, implementation))
        return [*before, *inner, *tensor_parallel_sum("feed-forward", whole_bytes, shard)]

    def _cross_ops(
        self, cross: CrossAttention, shard: Shard, implementation: Implementation
    ) -> list[Op]:
        whole_bytes = shard.tokens * self.hidden * implementation.activation_bytes
        return [
            *self._norms("cross-attention", 1, shard, implementation),
            *tensor_parallel_copy("cross-attention", whole_bytes, shard, implementation),
            *cross.ops(self.hidden, shard, implementation),
            *tensor_parallel_sum("cross-attention", whole_bytes, shard),
            _residual("cross-attention residual", self.hidden, shard, implementation),
        ]

    def _norms(
        self, name: str, count: int, shard: Shard, implementation: Implementation
    ) -> list[Op]:
        vectors = NORM_VECTORS[self.norm]
        op = norm_op(f"{name} norm", self.hidden, vectors * self.hidden, shard, implementation)
        if self.norm == "rmsnorm":
            forward, backward = RMS_NORM_COMPOSED
            op = replace(op, composed_forward=forward, composed_backward=backward)
        return [op] * count if vectors else []


def norm_op(
    name: str, width: int, parameters: int, shard: Shard, implementation: Implementation
) -> MemoryBound:
    """A norm over the residual stream: reads it once, and once more in backward.

    Fused it keeps its input and one or two statistics per token; unfused also a float32
    copy and the normalised value.
    """
    size = implementation.activation_bytes
    stream: Array = shard.residual_tokens * width
    saved = [
        Saved(name=f"{name} input", elements=stream, bytes_per_element=size),
        Saved(name=f"{name} statistics", elements=shard.residual_tokens, bytes_per_element=4),
    ]
    if not implementation.fused_norm:
        saved.append(Saved(name=f"{name} float32 copies", elements=stream, bytes_per_element=8))
    launches = 1 if implementation.fused_norm else 6
    return MemoryBound(
        name=name, group="norm", parameters=parameters, tp_replicated=True,
        forward_bytes=2 * stream * size * (1 if implementation.fused_norm else 4),
        backward_bytes=4 * stream * size * (1 if implementation.fused_norm else 3),
        forward_launches=launches, backward_launches=launches + 1,
        saved=tuple(saved), output_elements=stream,
    )  # fmt: skip


def _residual(name: str, hidden: int, shard: Shard, implementation: Implementation) -> Op:
    size = implementation.activation_bytes
    stream: Array = shard.residual_tokens * hidden
    dropout = implementation.dropout
    mask = (Saved(name=f"{name} dropout mask", elements=stream, bytes_per_element=1),)
    return MemoryBound(
        name=name, group="residual", saved=mask if dropout else (),
        forward_bytes=stream * (3 * size + (2 * size + 1 if dropout else 0)),
        backward_bytes=stream * (3 * size + (2 * size + 1 if dropout else 0)),
        forward_launches=2 if dropout else 1, backward_launches=2 if dropout else 1,
        output_elements=np.asarray(stream),
    )  # fmt: skip
