"""The feed-forward part of a layer: dense, or experts with a router."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from planner.ops import Array, Collective, Gemm, Implementation, MemoryBound, Op, Saved, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two matrices around an activation, or three with a gate (SwiGLU, GeGLU)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["dense"] = "dense"
    ffn_hidden: int
    gated: bool = True
    bias: bool = False
    activation: Literal["silu", "gelu", "gelu-tanh", "relu", "relu2", "quick-gelu"] = "silu"

    def __post_init__(self) -> None:
        if self.ffn_hidden < 1:
            raise ValueError(f"ffn_hidden must be at least 1, got {self.ffn_hidden}")

    def ops(self, hidden: int, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """From the gathered, normed stream to the partial sums of the down projection."""
        kept = shard.tokens if implementation.saves_gathered_input else shard.residual_tokens
        return dense_ops(
            self,
            hidden,
            width=self.ffn_hidden / shard.tp,
            tokens=shard.tokens,
            kept_tokens=kept,
            implementation=implementation,
        )


def dense_ops(
    block: FeedForward,
    hidden: int,
    *,
    width: Array,
    tokens: Array,
    kept_tokens: Array,
    implementation: Implementation,
) -> tuple[Op, ...]:
    """Up (and gate) projection, activation, down projection, on ``width`` local channels."""
    size = implementation.activation_bytes
    branches = 2 if block.gated else 1
    wide = tokens * width
    up = Gemm(
        name="up projection", group="mlp", m=tokens, n=branches * width, k=hidden,
        parameters=branches * (hidden + block.bias) * width,
        saved=(Saved(name="mlp input", elements=kept_tokens * hidden, bytes_per_element=size),),
        output_elements=branches * wide,
    )  # fmt: skip
    activation = activation_op("activation", "mlp", branches, wide, implementation)
    down = Gemm(
        name="down projection", group="mlp", m=tokens, n=hidden, k=width,
        parameters=width * hidden + (hidden if block.bias else 0),
        saved=(Saved(name="down input", elements=wide, bytes_per_element=size),),
        output_elements=tokens * hidden,
    )  # fmt: skip
    return (up, activation, down)


def activation_op(
    name: str,
    group: Literal["mlp", "experts"],
    branches: int,
    wide: Array,
    implementation: Implementation,
) -> MemoryBound:
    """The nonlinearity: keeps its input(s); unfused and gated also the activated branch."""
    size = implementation.activation_bytes
    separate = branches == 2 and not implementation.fused_activation
    kept = branches + (1 if separate else 0)
    moved = (2 * branches + 1 if separate else branches + 1) * wide * size
    return MemoryBound(
        name=name, group=group, forward_bytes=moved, backward_bytes=1.7 * moved,
        forward_launches=2 if separate else 1, backward_launches=3 if separate else 1,
        saved=(Saved(name=f"{name} input", elements=kept * wide, bytes_per_element=size),),
        output_elements=wide,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A router and routed experts, beside shared experts that every token meets."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["experts"] = "experts"
    num_experts: int
    experts_per_token: int
    ffn_hidden: int
    """Of one routed expert."""
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_ffn_hidden: int = 0
    """Of all shared experts together."""
    shared_gate: bool = False
    """One learned scalar gate on the shared experts (Qwen2-MoE)."""

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token must be 1 to {self.num_experts}, got {self.experts_per_token}"
            )

    def ops(self, hidden: int, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Route, dispatch over ``ep``, compute the local experts, combine.

        Tokens leave from the sequence-parallel shard; a rank receives on average as many
        token copies as it sends, ``top_k`` for each of its own.
        """
        size = implementation.activation_bytes
        sent = self.experts_per_token * shard.tokens / shard.tp
        copies = sent * shard.etp
        ops: list[Op] = [self._router(hidden, shard, implementation)]
        ops += _exchange("dispatch", sent * hidden * size, shard)
        ops += self._routed_ops(hidden, copies, shard, implementation)
        ops += _exchange("combine", sent * hidden * size, shard)
        if self.shared_ffn_hidden:
            shared = FeedForward(
                ffn_hidden=self.shared_ffn_hidden, gated=self.gated, bias=self.bias
            )
            ops += shared.ops(hidden, shard, implementation)
        return tuple(ops)

    def _router(self, hidden: int, shard: Shard, implementation: Implementation) -> Op:
        gate = hidden if self.shared_gate else 0
        bias = self.num_experts if self.router_bias else 0
        return Gemm(
            name="router", group="router", m=shard.residual_tokens, n=self.num_experts, k=hidden,
            parameters=hidden * self.num_experts + bias + gate, tp_replicated=True,
            saved=(
                Saved(name="router input", elements=shard.residual_tokens * hidden,
                      bytes_per_element=implementation.activation_bytes),
                Saved(name="router probabilities",
                      elements=shard.residual_tokens * self.num_experts, bytes_per_element=4),
            ),
            output_elements=shard.residual_tokens * self.num_experts,
        )  # fmt: skip

    def _routed_ops(
        self, hidden: int, copies: Array, shard: Shard, implementation: Implementation
    ) -> list[Op]:
        """Permuted token copies through the local experts as grouped GEMMs."""
        size = implementation.activation_bytes
        local = np.maximum(self.num_experts / np.asarray(shard.ep), 1)
        width = self.ffn_hidden / shard.etp
        branches = 2 if self.gated else 1
        per_expert = copies / local
        wide = copies * width
        held = local * width
        kept = [Saved(name="expert output", elements=copies * hidden, bytes_per_element=size)]
        if implementation.gathers_expert_tokens:
            everyone = shard.residual_tokens * np.asarray(shard.tp) * shard.ep * hidden
            kept.append(Saved(name="gathered tokens", elements=everyone, bytes_per_element=size))
        permuted = MemoryBound(
            name="permute and unpermute", group="experts",
            forward_bytes=6.0 * copies * hidden * size,
            backward_bytes=6.0 * copies * hidden * size,
            forward_launches=4, backward_launches=4, output_elements=copies * hidden,
            saved=tuple(kept),
        )  # fmt: skip
        up = Gemm(
            name="expert up", group="experts", expert=True, batch=local,
            m=per_expert, n=branches * width, k=hidden,
            parameters=branches * held * (hidden + self.bias),
            saved=(Saved(name="expert input", elements=copies * hidden, bytes_per_element=size),),
            output_elements=branches * wide,
        )  # fmt: skip
        activation = activation_op("expert activation", "experts", branches, wide, implementation)
        down = Gemm(
            name="expert down", group="experts", expert=True, batch=local,
            m=per_expert, n=hidden, k=width,
            parameters=held * hidden + (local * hidden if self.bias else 0),
            saved=(Saved(name="expert down input", elements=wide, bytes_per_element=size),),
            output_elements=copies * hidden,
        )  # fmt: skip
        return [permuted, up, activation, down]


def _exchange(name: str, sent_bytes: Array, shard: Shard) -> tuple[Op, ...]:
    """One all-to-all over ``ep``, and the gather (or scatter) over ``etp`` beside it."""
    several = np.where(np.asarray(shard.ep) > 1, sent_bytes, 0.0)
    gathered = np.where(np.asarray(shard.etp) > 1, sent_bytes * shard.etp, 0.0)
    kinds: tuple[Literal["all_gather", "reduce_scatter"], Literal["all_gather", "reduce_scatter"]]
    kinds = ("all_gather", "reduce_scatter")
    forward, backward = kinds if name == "dispatch" else kinds[::-1]
    return (
        Collective(
            name=f"expert {name}", group="experts", kind="all_to_all", axis="ep",
            forward_bytes=several, backward_bytes=several,
        ),
        Collective(
            name=f"expert {name} over etp", group="experts", kind=forward, axis="etp",
            forward_bytes=gathered, backward_bytes=0.0,
        ),
        Collective(
            name=f"expert {name} gradient over etp", group="experts", kind=backward, axis="etp",
            forward_bytes=0.0, backward_bytes=gathered,
        ),
    )  # fmt: skip
