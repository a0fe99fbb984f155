"""Linear attention with a gated delta rule, as in hybrid decoders (Qwen3-Next, Qwen3.5)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from planner.ops import Array, Gemm, Implementation, MemoryBound, Op, Saved, Shard

CHUNK = 64
"""Tokens that the parallel form works on at a time; the kernels' usual choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """A short convolution, then a state per head that the delta rule updates.

    Reference: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta
    Rule", 2024; the chunkwise form is section 3.3.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["linear"] = "linear"
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int = 4
    """Width of the convolution over time."""

    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_head_dim", "value_head_dim", "kernel"):
            if getattr(self, name) < 1:
                raise ValueError(f"linear attention {name} must be at least 1")
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"value_heads {self.value_heads} must be a multiple of key_heads {self.key_heads}"
            )

    @property
    def heads(self) -> int:
        """Heads that tensor parallelism can share out."""
        return self.key_heads

    @property
    def kv_heads(self) -> int:
        """Keys are not shared between query heads."""
        return self.key_heads

    @property
    def head_dim(self) -> int:
        """Width of a query or key."""
        return self.key_head_dim

    def ops(self, hidden: int, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """From the gathered, normed stream to the partial sums of the output projection."""
        size = implementation.activation_bytes
        keys = self.key_heads * self.key_head_dim / shard.tp
        values = self.value_heads * self.value_head_dim / shard.tp
        gates = 2 * self.value_heads / shard.tp
        width = 2 * keys + 2 * values + gates
        kept = shard.tokens if implementation.saves_gathered_input else shard.residual_tokens
        project = Gemm(
            name="linear attention projections", group="attention",
            m=shard.tokens, n=width, k=hidden, parameters=hidden * width,
            saved=(Saved(name="qkv input", elements=kept * hidden, bytes_per_element=size),),
            output_elements=shard.tokens * width,
        )  # fmt: skip
        output = Gemm(
            name="attention output", group="attention",
            m=shard.tokens, n=hidden, k=values, parameters=values * hidden,
            saved=(Saved(name="gated output", elements=shard.tokens * values,
                         bytes_per_element=size),),
            output_elements=shard.tokens * hidden,
        )  # fmt: skip
        convolution = self._convolution(2 * keys + values, gates, shard, size)
        return (project, convolution, *self._state_ops(values, shard, size), output)

    def _convolution(self, width: Array, gates: Array, shard: Shard, size: int) -> Op:
        """The convolution and its activation, with the decay rates of the heads."""
        moved = shard.tokens * width
        return MemoryBound(
            name="short convolution", group="attention", parameters=width * self.kernel + gates,
            forward_bytes=4.0 * moved * size, backward_bytes=6.0 * moved * size,
            forward_launches=2, backward_launches=3, output_elements=moved,
            saved=(Saved(name="convolution input", elements=moved, bytes_per_element=size),
                   Saved(name="query, key and value", elements=moved, bytes_per_element=size)),
        )  # fmt: skip

    def _state_ops(self, values: Array, shard: Shard, size: int) -> tuple[Op, ...]:
        """The delta rule chunk by chunk, then the gated norm.

        Per head and chunk of C tokens: read and write of the state, ``C d_k x d_v`` each, and
        three ``C x C`` products within the chunk.
        """
        heads = self.value_heads / shard.tp
        per_row = 2 * self.value_head_dim + 3 * CHUNK
        gated = shard.tokens * values
        return (
            Gemm(
                name="delta rule", group="core_attention", weight=False,
                batch=shard.tokens / CHUNK * heads, m=CHUNK, n=per_row, k=self.key_head_dim,
                saved=(Saved(name="attention output", elements=gated, bytes_per_element=size),),
                output_elements=gated,
            ),
            MemoryBound(
                name="gated norm", group="attention", parameters=self.value_head_dim,
                tp_replicated=True, forward_bytes=3.0 * gated * size,
                backward_bytes=5.0 * gated * size, output_elements=gated,
                saved=(Saved(name="output gate", elements=gated, bytes_per_element=size),),
            ),
        )  # fmt: skip
