"""The two ends of a language model: the embedding, and the head with its loss."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from planner.ops import (
    RMS_NORM_COMPOSED,
    Array,
    Collective,
    Gemm,
    Implementation,
    MemoryBound,
    Op,
    Saved,
    Shard,
)

NORM_VECTORS = {"rmsnorm": 1, "layernorm": 2, "layernorm-no-bias": 1, "none": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Token table, learned positions, token types and an optional norm."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["embedding"] = "embedding"
    vocabulary: int
    hidden: int
    positions: int = 0
    """Rows of a learned position table; 0 for rotary or none."""
    token_types: int = 0
    norm: Literal["none", "layernorm", "rmsnorm", "layernorm-no-bias"] = "none"
    projection: int = 0
    """Width of the table where it differs from ``hidden`` (OPT-350m); 0 for the same."""
    extra_parameters: int = 0
    """Patch projection, class token and the like."""

    active_expert_share: ClassVar[float] = 1.0

    def ops(self, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Look-up, then the all-reduce (or reduce-scatter) over the vocabulary's shards."""
        width = self.projection or self.hidden
        size = implementation.activation_bytes
        output_bytes = shard.residual_tokens * self.hidden * size
        whole_bytes = shard.tokens * self.hidden * size
        norm = NORM_VECTORS[self.norm] * self.hidden
        replicated = (self.positions + self.token_types) * self.hidden + self.extra_parameters
        replicated += norm + (width * self.hidden if self.projection else 0)
        lookup = MemoryBound(
            name="token embedding",
            group="embedding",
            parameters=self.vocabulary * width / shard.tp,
            forward_bytes=2 * output_bytes,
            backward_bytes=3 * output_bytes,
            saved=(Saved(name="token ids", elements=shard.tokens, bytes_per_element=8),),
            output_elements=shard.residual_tokens * self.hidden,
        )
        rest = MemoryBound(
            name="positions and norm",
            group="embedding",
            parameters=replicated,
            tp_replicated=True,
            forward_bytes=2 * output_bytes if replicated else 0.0,
            backward_bytes=3 * output_bytes if replicated else 0.0,
            forward_launches=1 if replicated else 0,
            backward_launches=1 if replicated else 0,
            saved=_embedding_saved(self, shard, implementation),
        )
        sums = tensor_parallel_sum("embedding", whole_bytes, shard)
        return (lookup, *sums, *((rest,) if replicated else ()))


def _embedding_saved(
    block: Embedding, shard: Shard, implementation: Implementation
) -> tuple[Saved, ...]:
    elements = shard.residual_tokens * block.hidden
    saved = []
    if block.norm != "none":
        saved.append(
            Saved(name="embedding norm input", elements=elements,
                  bytes_per_element=implementation.activation_bytes)
        )  # fmt: skip
    if implementation.dropout:
        saved.append(Saved(name="embedding dropout mask", elements=elements, bytes_per_element=1))
    return tuple(saved)


def tensor_parallel_sum(name: str, whole_bytes: Array, shard: Shard) -> tuple[Op, ...]:
    """Leave a row-parallel region: an all-reduce, or a reduce-scatter under SP.

    Backward is the mirror: nothing, or an all-gather (Korthikanti et al. 2022, section 4.2).
    """
    several = np.where(np.asarray(shard.tp) > 1, whole_bytes, 0.0)
    reduced = np.where(shard.sequence_parallel, 0.0, several)
    scattered = np.where(shard.sequence_parallel, several, 0.0)
    return (
        Collective(
            name=f"{name} all-reduce", group="residual", kind="all_reduce", axis="tp",
            forward_bytes=reduced, backward_bytes=0.0,
        ),
        Collective(
            name=f"{name} reduce-scatter", group="residual", kind="reduce_scatter", axis="tp",
            forward_bytes=scattered, backward_bytes=0.0,
        ),
        Collective(
            name=f"{name} gradient all-gather", group="residual", kind="all_gather", axis="tp",
            forward_bytes=0.0, backward_bytes=scattered,
        ),
    )  # fmt: skip


def tensor_parallel_copy(
    name: str, whole_bytes: Array, shard: Shard, implementation: Implementation
) -> tuple[Op, ...]:
    """Enter a column-parallel region: nothing, or an all-gather under SP.

    Backward sums the input gradients: an all-reduce, or a reduce-scatter; a framework that
    kept only the shard of the input gathers it once more for the weight gradient.
    """
    several = np.where(np.asarray(shard.tp) > 1, whole_bytes, 0.0)
    reduced = np.where(shard.sequence_parallel, 0.0, several)
    scattered = np.where(shard.sequence_parallel, several, 0.0)
    again = 0.0 if implementation.saves_gathered_input else scattered
    return (
        Collective(
            name=f"{name} all-gather", group="residual", kind="all_gather", axis="tp",
            forward_bytes=scattered, backward_bytes=again,
        ),
        Collective(
            name=f"{name} gradient all-reduce", group="residual", kind="all_reduce", axis="tp",
            forward_bytes=0.0, backward_bytes=reduced,
        ),
        Collective(
            name=f"{name} gradient reduce-scatter", group="residual", kind="reduce_scatter",
            axis="tp", forward_bytes=0.0, backward_bytes=scattered,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Final norm, optional transform, projection to the vocabulary, cross entropy."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Literal["head"] = "head"
    vocabulary: int
    hidden: int
    norm: Literal["none", "layernorm", "rmsnorm", "layernorm-no-bias"] = "rmsnorm"
    bias: bool = False
    transform: bool = False
    """BERT's masked-language head: a dense layer, GELU and a norm before the projection."""
    projection: int = 0
    """Input width of the output matrix where it differs from ``hidden``; 0 for the same."""
    shared_with_embedding: int = 0
    """Elements that are the embedding's own when the model ties them."""
    extra_parameters: int = 0

    active_expert_share: ClassVar[float] = 1.0

    def ops(self, shard: Shard, implementation: Implementation) -> tuple[Op, ...]:
        """Norm, GEMM to the (sharded) vocabulary, loss."""
        size = implementation.activation_bytes
        width = self.projection or self.hidden
        stream = shard.residual_tokens * self.hidden
        norm = NORM_VECTORS[self.norm] * self.hidden
        small = norm + self.extra_parameters + (self.hidden * width if self.projection else 0)
        ops: list[Op] = [
            MemoryBound(
                name="final norm", group="norm", parameters=small, tp_replicated=True,
                forward_bytes=2 * stream * size, backward_bytes=4 * stream * size,
                saved=(Saved(name="final norm input", elements=stream, bytes_per_element=size),),
                output_elements=stream,
                composed_forward=RMS_NORM_COMPOSED[0] if self.norm == "rmsnorm" else 0.0,
                composed_backward=RMS_NORM_COMPOSED[1] if self.norm == "rmsnorm" else 0.0,
            )
        ]  # fmt: skip
        if self.transform:
            ops += self._transform_ops(shard, implementation)
        ops += tensor_parallel_copy("head", shard.tokens * width * size, shard, implementation)
        logits = shard.tokens * self.vocabulary / shard.tp
        kept = shard.tokens if implementation.saves_gathered_input else shard.residual_tokens
        ops.append(
            Gemm(
                name="output projection", group="head",
                m=shard.tokens, n=self.vocabulary / shard.tp, k=width,
                parameters=(width + self.bias) * self.vocabulary / shard.tp,
                saved=(Saved(name="head input", elements=kept * width, bytes_per_element=size),),
                output_elements=logits,
            )
        )  # fmt: skip
        ops.append(_loss_op(logits, implementation))
        return tuple(ops)

    def _transform_ops(self, shard: Shard, implementation: Implementation) -> list[Op]:
        size = implementation.activation_bytes
        stream = shard.residual_tokens * self.hidden
        keep = [Saved(name="transform input", elements=stream, bytes_per_element=size)]
        act = [Saved(name=n, elements=stream, bytes_per_element=size) for n in ("gelu", "norm")]
        return [
            Gemm(
                name="head transform", group="head",
                m=shard.residual_tokens, n=self.hidden, k=self.hidden,
                parameters=self.hidden**2 + self.hidden, tp_replicated=True,
                saved=tuple(keep), output_elements=stream,
            ),
            MemoryBound(
                name="head gelu and norm", group="head", parameters=2 * self.hidden,
                tp_replicated=True, saved=tuple(act), output_elements=stream,
                forward_bytes=4 * stream * size, backward_bytes=7 * stream * size,
                forward_launches=2, backward_launches=2,
            ),
        ]  # fmt: skip


def _loss_op(logits: Array, implementation: Implementation) -> Op:
    """Cross entropy: unfused it keeps a float32 softmax of every logit.

    Fused, the logits themselves are overwritten by their gradient.
    """
    size = implementation.activation_bytes
    kept = () if implementation.fused_loss else (
        Saved(name="float32 log-probabilities", elements=logits, bytes_per_element=4),
    )  # fmt: skip
    passes = 2 * size if implementation.fused_loss else 2 * size + 8
    return MemoryBound(
        name="cross entropy", group="loss", saved=kept, output_elements=0.0,
        forward_bytes=logits * passes, backward_bytes=logits * passes,
        forward_launches=1 if implementation.fused_loss else 3,
        backward_launches=1 if implementation.fused_loss else 3,
    )  # fmt: skip
