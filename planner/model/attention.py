"""The attention part of a layer: projections, rotary positions, softmax(Q K^T) V."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from planner.ops import (
    ROTARY_COMPOSED,
    Array,
    Attention,
    Collective,
    Gemm,
    Implementation,
    MemoryBound,
    Op,
    Saved,
    Shard,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention:
    """Multi-head, grouped-query or multi-query attention."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["self"] = "self"
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    rotary: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    """A norm on Q and K: ``head_dim`` weights each, or one weight per element."""
    sinks: bool = False
    """One learned logit per head (gpt-oss)."""
    output_gate: bool = False
    """A gate as wide as the queries multiplies the output (Qwen3-Next)."""
    extra_parameters: int = 0
    """Relative position tables and the like."""

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"attention {name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"attention heads {self.heads} must be a multiple of kv_heads {self.kv_heads}"
            )

    def ops(self, hidden: int, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """From the gathered, normed stream to the partial sums of the output projection."""
        size = implementation.activation_bytes
        q = self.heads * self.head_dim / shard.tp
        kv = 2 * local_kv_heads(self.kv_heads, shard) * self.head_dim
        kept = shard.tokens if implementation.saves_gathered_input else shard.residual_tokens
        width = q * (2 if self.output_gate else 1) + kv
        bias = width if self.qkv_bias else 0
        project = Gemm(
            name="qkv projection", group="attention",
            m=shard.tokens, n=width, k=hidden,
            parameters=hidden * width + bias,
            saved=(Saved(name="qkv input", elements=kept * hidden, bytes_per_element=size),),
            output_elements=shard.tokens * width,
        )  # fmt: skip
        core = core_attention_ops(
            heads=self.heads / shard.tp, kv_heads=local_kv_heads(self.kv_heads, shard),
            head_dim=self.head_dim, value_head_dim=self.head_dim, causal=self.causal,
            shard=shard, implementation=implementation,
        )  # fmt: skip
        output = Gemm(
            name="attention output", group="attention",
            m=shard.tokens, n=hidden, k=q,
            parameters=q * hidden + (hidden if self.output_bias else 0),
            output_elements=shard.tokens * hidden,
        )  # fmt: skip
        extra = self._small_ops(shard, implementation, rotated=shard.tokens * (q + kv / 2))
        gate = self._gate_ops(shard.tokens * q, size)
        return (project, *extra, *core, *gate, output)

    def _gate_ops(self, elements: Array, size: int) -> tuple[Op, ...]:
        """The sigmoid of the gate times the output: keeps the gate and the product."""
        if not self.output_gate:
            return ()
        op = MemoryBound(
            name="output gate", group="attention", output_elements=elements,
            forward_bytes=3.0 * elements * size, backward_bytes=5.0 * elements * size,
            saved=(Saved(name="output gate and product", elements=2 * elements,
                         bytes_per_element=size),),
        )  # fmt: skip
        return (op,)

    def _small_ops(
        self, shard: Shard, implementation: Implementation, *, rotated: Array
    ) -> tuple[Op, ...]:
        """Rotary positions and the norms of Q and K: memory-bound, on this rank's heads."""
        size = implementation.activation_bytes
        width = {"none": 0, "head": 2 * self.head_dim,
                 "full": (self.heads + self.kv_heads) * self.head_dim}[self.qk_norm]  # fmt: skip
        small = width + (self.heads if self.sinks else 0) + self.extra_parameters
        passes = int(self.rotary) + (self.qk_norm != "none")
        if not passes and not small:
            return ()
        normed = Saved(name="qk norm input", elements=rotated, bytes_per_element=size)
        op = MemoryBound(
            name="rotary and qk norm", group="attention", parameters=small, tp_replicated=True,
            forward_bytes=2.0 * passes * rotated * size,
            backward_bytes=3.0 * passes * rotated * size,
            forward_launches=2 * passes, backward_launches=2 * passes,
            saved=(normed,) if self.qk_norm != "none" else (),
            output_elements=rotated,
            composed_forward=ROTARY_COMPOSED[0], composed_backward=ROTARY_COMPOSED[1],
        )  # fmt: skip
        return (op,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Queries from the decoder, keys and values from the encoder's output."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["cross"] = "cross"
    heads: int
    head_dim: int
    bias: bool = False

    def ops(self, hidden: int, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Taken with an encoder sequence as long as the decoder's."""
        attention = SelfAttention(
            heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim,
            causal=False, rotary=False, qkv_bias=self.bias, output_bias=self.bias,
        )  # fmt: skip
        return attention.ops(hidden, shard, implementation)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["latent"] = "latent"
    heads: int
    q_lora_rank: int
    """0 for a full query projection."""
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    value_head_dim: int
    causal: bool = True
    bias: bool = False

    @property
    def kv_heads(self) -> int:
        """Keys are decompressed for every head."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Width of a query or key: the part without and the part with positions."""
        return self.nope_head_dim + self.rope_head_dim

    def ops(self, hidden: int, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Down-projections are repeated on every rank, up-projections cut by heads."""
        heads = self.heads / shard.tp
        query = heads * self.head_dim
        core = core_attention_ops(
            heads=heads, kv_heads=heads, head_dim=self.head_dim,
            value_head_dim=self.value_head_dim, causal=self.causal,
            shard=shard, implementation=implementation,
        )  # fmt: skip
        output = Gemm(
            name="attention output", group="attention",
            m=shard.tokens, n=hidden, k=heads * self.value_head_dim,
            parameters=heads * self.value_head_dim * hidden + (hidden if self.bias else 0),
            output_elements=shard.tokens * hidden,
        )  # fmt: skip
        rotary = MemoryBound(
            name="rotary", group="attention",
            forward_bytes=2.0 * shard.tokens * query * implementation.activation_bytes,
            backward_bytes=2.0 * shard.tokens * query * implementation.activation_bytes,
            forward_launches=4, backward_launches=4,
        )  # fmt: skip
        return (*self._projections(hidden, query, shard, implementation), rotary, *core, output)

    def _projections(
        self, hidden: int, query: Array, shard: Shard, implementation: Implementation
    ) -> tuple[Op, ...]:
        size = implementation.activation_bytes
        kept = shard.tokens if implementation.saves_gathered_input else shard.residual_tokens
        down = self.kv_lora_rank + self.rope_head_dim
        up = self.heads / shard.tp * (self.nope_head_dim + self.value_head_dim)
        inputs = (Saved(name="qkv input", elements=kept * hidden, bytes_per_element=size),)
        ops: list[Op] = [
            _latent(
                "kv down", shard, hidden=hidden, width=down, normed=self.kv_lora_rank,
                saved=inputs, size=size,
            ),
            _up("kv up", shard, self.kv_lora_rank, up, size),
        ]  # fmt: skip
        if not self.q_lora_rank:
            whole = Gemm(
                name="query projection", group="attention", m=shard.tokens, n=query, k=hidden,
                parameters=hidden * query, output_elements=shard.tokens * query,
            )  # fmt: skip
            return (*ops, whole)
        ops.append(
            _latent(
                "query down", shard, hidden=hidden, width=self.q_lora_rank,
                normed=self.q_lora_rank, saved=(), size=size,
            )
        )  # fmt: skip
        ops.append(_up("query up", shard, self.q_lora_rank, query, size))
        return tuple(ops)


def _latent(
    name: str,
    shard: Shard,
    *,
    hidden: int,
    width: int,
    normed: int,
    saved: tuple[Saved, ...],
    size: int,
) -> Op:
    """A down-projection and the norm of its ``normed`` latent channels."""
    latent = Saved(
        name=f"{name} norm input", elements=shard.tokens * normed, bytes_per_element=size
    )
    return Gemm(
        name=f"{name} projection", group="attention", m=shard.tokens, n=width, k=hidden,
        parameters=hidden * width + normed, tp_replicated=True, saved=(*saved, latent),
        output_elements=shard.tokens * width,
    )  # fmt: skip


def _up(name: str, shard: Shard, rank: int, width: Array, size: int) -> Op:
    latent = Saved(name=f"{name} input", elements=shard.tokens * rank, bytes_per_element=size)
    return Gemm(
        name=f"{name} projection", group="attention", m=shard.tokens, n=width, k=rank,
        parameters=rank * width, saved=(latent,), output_elements=shard.tokens * width,
    )  # fmt: skip


def local_kv_heads(kv_heads: int, shard: Shard) -> Array:
    """Key and value heads on one rank: beyond ``kv_heads`` ranks they are repeated."""
    return np.maximum(kv_heads / np.asarray(shard.tp), 1.0)


def core_attention_ops(
    *,
    heads: Array,
    kv_heads: Array,
    head_dim: int,
    value_head_dim: int,
    causal: bool,
    shard: Shard,
    implementation: Implementation,
) -> tuple[Op, ...]:
    """Softmax(Q K^T) V with what it keeps and, under context parallelism, what it sends.

    Fused it keeps Q, K, V, the output and a float32 log-sum-exp per head and token (Dao 2023,
    section 3.1). Unfused it keeps the softmax, and with dropout a mask and the dropped
    softmax: ``(2 + 1 + 2) a s^2 b`` bytes (Korthikanti et al. 2022, equation 1).
    """
    size = implementation.activation_bytes
    ulysses = np.asarray(shard.ulysses) & (np.asarray(shard.cp) > 1)
    local_heads = np.where(ulysses, heads / np.asarray(shard.cp), heads)
    local_kv = np.where(ulysses, np.maximum(kv_heads / np.asarray(shard.cp), 1), kv_heads)
    length = shard.sequence_length
    queries = np.where(ulysses, length, length / np.asarray(shard.cp))
    keep = {
        "query": shard.tokens * heads * head_dim,
        "key": shard.tokens * kv_heads * head_dim,
        "value": shard.tokens * kv_heads * value_head_dim,
        "attention output": shard.tokens * heads * value_head_dim,
    }
    saved = [Saved(name=n, elements=e, bytes_per_element=size) for n, e in keep.items()]
    scores = shard.microbatch * local_heads * queries * length
    if implementation.fused_attention:
        saved.append(Saved(name="log-sum-exp", elements=shard.tokens * heads, bytes_per_element=4))
    else:
        weight = 2 * size + 1 if implementation.dropout else size
        saved.append(Saved(name="softmax", elements=scores, bytes_per_element=weight))
    core = Attention(
        name="core attention", group="core_attention", batch=shard.microbatch,
        heads=local_heads, kv_heads=local_kv, query_length=queries, key_length=length,
        head_dim=head_dim, value_head_dim=value_head_dim, causal=causal,
        fused=implementation.fused_attention, saved=tuple(saved),
        output_elements=keep["attention output"],
    )  # fmt: skip
    return (*_context_parallel_ops(keep, shard, size, ulysses), core)


def _context_parallel_ops(
    keep: dict[str, Array], shard: Shard, size: int, ulysses: Array
) -> tuple[Op, ...]:
    """Ring attention passes keys and values on; Ulysses exchanges heads for tokens.

    Ring: ``cp - 1`` sends of the local K and V in forward, and K, V with their gradients in
    backward (Liu et al. 2023). Ulysses: one all-to-all each for Q, K, V and the output
    (Jacobs et al. 2023).
    """
    several = np.asarray(shard.cp) > 1
    pairs = (keep["key"] + keep["value"]) * size
    ring = np.where(several & ~np.asarray(ulysses), pairs, 0.0)
    exchanged = np.where(ulysses, sum(keep.values()) * size, 0.0)
    return (
        Collective(
            name="ring attention", group="core_attention", kind="send_recv", axis="cp",
            forward_bytes=ring, backward_bytes=2 * ring,
            count=np.maximum(np.asarray(shard.cp) - 1, 0), overlappable=True,
        ),
        Collective(
            name="ulysses exchange", group="core_attention", kind="all_to_all", axis="cp",
            forward_bytes=exchanged, backward_bytes=exchanged,
        ),
    )  # fmt: skip
