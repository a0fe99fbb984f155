"""What each block of a model weighs on one rank, once per distinct shard.

Everything is read from the block's op list: parameters, tensors kept for backward under each
recompute policy, and the transient bytes while its backward runs. Rows are blocks, columns
are shards, so that a million layouts only gather from small tables.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.model import Model
from planner.model.core import Block
from planner.ops import (
    Array,
    Attention,
    Collective,
    Gemm,
    Implementation,
    Op,
    Shard,
    count_parameters,
)

Table = NDArray[np.float64]

ADAPTED = frozenset({"attention", "mlp", "experts"})
"""Groups whose matrices get LoRA adapters (Hu et al. 2021; all linear layers as in QLoRA,
Dettmers et al. 2023, section 4): not the embedding, the head or a router."""
SCORES = frozenset({"softmax"})
"""Saved tensors that selective recompute of core attention drops: the quadratic ones.

Under fused attention there are none, so that it saves nothing (Korthikanti et al. 2022,
section 5, speaks of unfused attention)."""
ATTENTION_RESULTS = frozenset({"attention output", "log-sum-exp"})
"""Saved tensors that torchtitan's selective policy keeps, beside matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What, beside the kernels, decides the weight of a block."""

    selective: str = "core-attention"
    """Policy of selective recompute, see ``Framework.selective``."""
    weight_gradients: bool = True
    """A weight's gradient is a tensor of its own before it is added to the sum."""
    composed_norm: bool = False
    """A norm's backward is composed of float32 operations (PyTorch on a CPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Bytes and elements by block (row) and shard (column)."""

    dense_parameters: Table
    expert_parameters: Table
    saved: Table
    """Kept for backward of one microbatch, nothing recomputed."""
    saved_selective: Table
    """The same without attention scores."""
    boundary: Table
    """The block's input: all that full recompute keeps."""
    backward_workspace: Table
    """Live beyond what is saved, at the worst operator of backward."""
    recompute_workspace: Table
    """Live beyond the boundary, at the worst operator of recomputed forward and backward."""
    adapter_width: Table
    """Elements of LoRA adapters of rank 1 on every matrix of a layer: ``k + n`` each."""
    weighted_outputs: Table
    """Outputs of all operations with parameters: what a deferred weight gradient needs."""
    largest_parameter: Table
    """Elements of the largest single weight, whose gradient is transient."""

    def take(self, row: int, columns: NDArray[np.int64]) -> dict[str, Table]:
        """One block's numbers, gathered for many layouts."""
        return {name: getattr(self, name)[row][columns] for name in self.__slots__}


def block_pieces(
    model: Model,
    shard: Shard,
    implementation: Implementation,
    habits: Habits | None = None,
) -> tuple[tuple[Block, ...], Pieces]:
    """The blocks of a model (embedding, layer kinds, head) and what each weighs."""
    blocks: tuple[Block, ...] = (model.embedding, *model.layer_kinds, model.head)
    columns = len(np.atleast_1d(np.asarray(shard.tp)))
    habits = habits or Habits()
    rows = [_pieces_of(block, shard, implementation, habits) for block in blocks]
    tables = {
        name: np.stack([np.broadcast_to(np.asarray(row[name], float), columns) for row in rows])
        for name in rows[0]
    }
    return blocks, Pieces(**tables)


def _pieces_of(
    block: Block, shard: Shard, implementation: Implementation, habits: Habits
) -> dict[str, Array]:
    ops = block.ops(shard, implementation)
    counts = count_parameters(ops)
    size = implementation.activation_bytes
    stream = shard.residual_tokens * block.hidden * size
    saved = saved_bytes(ops)
    workspace = backward_workspace(ops, size=size, stream=stream, habits=habits)
    return {
        "dense_parameters": counts.dense,
        "expert_parameters": counts.expert,
        "saved": saved,
        "saved_selective": _selective_bytes(
            ops, habits.selective, saved=saved, stream=stream, size=size
        ),
        "boundary": stream,
        "backward_workspace": workspace,
        "recompute_workspace": saved + workspace - stream,
        "adapter_width": sum(
            op.batch * (op.k + op.n)
            for op in ops
            if isinstance(op, Gemm) and op.weight and op.group in ADAPTED
        ),
        "weighted_outputs": sum(
            op.output_elements * size for op in ops if np.any(np.asarray(op.parameters) > 0)
        ),
        "largest_parameter": _largest([op.parameters for op in ops]),
    }


def saved_bytes(ops: tuple[Op, ...], only: frozenset[str] | None = None) -> Array:
    """Bytes that forward keeps for backward: ``sum(elements * bytes_per_element)``."""
    kept = [s.bytes for op in ops for s in op.saved if only is None or s.name in only]
    return sum(kept) if kept else 0.0


def _selective_bytes(
    ops: tuple[Op, ...], policy: str, *, saved: Array, stream: Array, size: int
) -> Array:
    """Kept under a framework's selective recompute.

    ``save-matmuls`` is torchtitan's: the layer's input, what attention needs of its result,
    and the outputs of matrix products, every second one of which is recomputed after all
    (torchtitan, ``activation_checkpoint.py``).
    """
    if policy == "every-second-layer":
        return (saved + stream) / 2
    if policy == "core-attention":
        return saved - saved_bytes(ops, only=SCORES)
    products = [product_bytes for op in ops for product_bytes in _products(op, size)]
    kept = stream + saved_bytes(ops, only=ATTENTION_RESULTS)
    return kept + sum(products[0::2]) if products else kept


def _products(op: Op, size: int) -> list[Array]:
    """Bytes of each separate matrix product of an operation: Q, K and V, gate and up are own."""
    if not isinstance(op, Gemm) or op.expert:
        return []
    parts = {"qkv projection": 3, "up projection": 2}.get(op.name, 1)
    return [op.output_elements * size / parts] * parts


COMPOSED_NORM_COPIES = 5
"""Float32 tensors of a composed norm's backward that are live at once."""


def backward_workspace(ops: tuple[Op, ...], *, size: int, stream: Array, habits: Habits) -> Array:
    """Bytes live beyond the saved tensors, at the worst operator of one block's backward.

    Walk the operators backwards. While one runs, the gradient of its output, the gradients of
    its input and of its weight, and the gradient that flows past it along the residual are
    live; saved tensors of operators that have already run are free again:

        live(i) = residual + out_gradient(i) + in_gradient(i) + weight(i) - freed(after i)

    Attention's backward makes the gradients of Q, K and V at once.
    """
    walk = [op for op in ops if not isinstance(op, Collective)]
    worst: Array = 0.0
    freed: Array = 0.0
    for index in range(len(walk) - 1, -1, -1):
        op = walk[index]
        inputs = walk[index - 1].output_elements if index else stream / size
        live = stream + (op.output_elements + inputs) * size
        if isinstance(op, Attention):
            live = stream + (op.output_elements + _attention_inputs(op)) * size
        elif habits.composed_norm and op.group == "norm" and "batch" not in op.name:
            live = stream + COMPOSED_NORM_COPIES * 4 * op.output_elements
        elif isinstance(op, Gemm) and op.weight and habits.weight_gradients:
            live = live + op.parameters * size
        worst = np.maximum(worst, live - freed)
        freed = freed + sum(s.bytes for s in op.saved)
    return worst


def _attention_inputs(op: Attention) -> Array:
    queries = op.batch * op.heads * op.query_length * op.head_dim
    pairs = op.batch * op.kv_heads * op.query_length * (op.head_dim + op.value_head_dim)
    return queries + pairs


def _largest(values: list[Array]) -> Array:
    worst: Array = 0.0
    for value in values:
        worst = np.maximum(worst, value)
    return worst
