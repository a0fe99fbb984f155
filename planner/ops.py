"""What a block does, as a list of operations.

Parameters, FLOPs, saved activations, kernel times and communication are all read from this
one list. Every number is what *one rank* does for *one microbatch*, and may be an array over
many shards at once (see ``Shard``).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any] | float | int
"""A number, or one number per shard."""

Group = Literal[
    "embedding",
    "norm",
    "attention",
    "core_attention",
    "mlp",
    "router",
    "experts",
    "residual",
    "convolution",
    "head",
    "loss",
]
"""The part of a block that an operation belongs to; recompute policies name these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """How a block is cut, and how much of the batch it sees; every field broadcasts."""

    microbatch: Array = 1
    """Sequences."""
    sequence_length: Array
    tp: Array = 1
    sequence_parallel: Array = False
    cp: Array = 1
    ulysses: Array = False
    """Context parallelism by all-to-all over heads instead of a ring over keys and values."""
    ep: Array = 1
    etp: Array = 1

    @property
    def tokens(self) -> Array:
        """Tokens of one microbatch on one rank, before sequence parallelism cuts them."""
        return self.microbatch * self.sequence_length / self.cp

    @property
    def residual_tokens(self) -> Array:
        """Tokens of the residual stream: sequence parallelism spreads them over ``tp``."""
        return self.tokens / np.where(self.sequence_parallel, self.tp, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """How a framework's kernels keep and move bytes; from its profile and the job."""

    activation_bytes: int = 2
    fused_attention: bool = True
    """Flash-style attention: no scores in memory. False keeps ``heads * s * s`` matrices."""
    dropout: bool = False
    """Dropout after attention and MLP (and on unfused scores) keeps one-byte masks."""
    fused_activation: bool = False
    """SwiGLU / GELU as one kernel: the activation's own output is not kept."""
    saves_gathered_input: bool = True
    """Under sequence parallelism keep the gathered input of a column-parallel linear
    (DTensor); False keeps the shard and gathers again in backward (Megatron)."""
    fused_loss: bool = False
    """Cross entropy that never holds a float32 copy of all logits."""
    gathers_expert_tokens: bool = False
    """Experts see the tokens of their whole group gathered, and keep them (Megatron's
    allgather dispatcher), instead of exchanging them."""
    fused_norm: bool = True
    """A norm keeps its input only; False keeps a float32 copy and the normalised value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor that forward keeps for backward."""

    name: str
    elements: Array
    bytes_per_element: float

    @property
    def bytes(self) -> Array:
        """What it weighs on one rank."""
        return self.elements * self.bytes_per_element


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation; subclasses say which."""

    name: str
    group: Group
    parameters: Array = 0
    """Trainable elements that this rank holds for it."""
    expert: bool = False
    """Its parameters belong to routed experts: another gradient group, cut by ``ep * etp``."""
    tp_replicated: bool = False
    """Every tensor-parallel rank holds the same parameters (norms, routers)."""
    saved: tuple[Saved, ...] = ()
    output_elements: Array = 0
    """Of the activation that it produces, for the workspace of forward and backward."""

    @property
    def forward_flops(self) -> Array:
        """Matrix FLOPs of the forward pass; a multiply-add is two."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Op):
    """``batch`` products of an ``m x k`` with a ``k x n`` matrix.

    With ``weight`` the ``k x n`` matrix is a parameter and backward computes an input
    gradient (m, k, n) and a weight gradient (k, n, m); without, both inputs are activations.
    ``batch > 1`` with ``expert`` is a grouped GEMM over the local experts.
    """

    m: Array
    n: Array
    k: Array
    batch: Array = 1
    weight: bool = True

    @property
    def forward_flops(self) -> Array:
        """``2 b m n k``."""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Op):
    """Softmax(Q K^T) V over one rank's heads."""

    batch: Array
    heads: Array
    kv_heads: Array
    query_length: Array
    key_length: Array
    head_dim: Array
    value_head_dim: Array
    causal: bool
    fused: bool

    @property
    def forward_flops(self) -> Array:
        """``2 b a s_q s_k (d_qk + d_v)``, half of it when causal (Dao 2023, section 4.1)."""
        pairs = self.batch * self.heads * self.query_length * self.key_length
        whole = 2.0 * pairs * (self.head_dim + self.value_head_dim)
        return whole / 2 if self.causal else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Op):
    """A 2-d convolution, NCHW."""

    batch: Array
    in_channels: int
    out_channels: int
    height: int
    width: int
    """Of the output."""
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def forward_flops(self) -> Array:
        """``2 b h w c_out c_in k^2 / groups``."""
        per_output = 2.0 * self.kernel**2 * self.in_channels / self.groups
        return per_output * self.batch * self.height * self.width * self.out_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound(Op):
    """Elementwise work, norms, lookups: priced by the bytes that it moves."""

    forward_bytes: Array
    backward_bytes: Array
    forward_launches: int = 1
    backward_launches: int = 1
    composed_forward: float = 0.0
    """Times the bytes where no fused kernel exists (a CPU) and the work is a chain of
    elementwise operations, each reading and writing the whole tensor; 0 if it never is."""
    composed_backward: float = 0.0


RMS_NORM_COMPOSED = (3.5, 4.75)
"""Forward: square (2 passes over the tensor), mean (1), scale (2), weight (2) are 7 for the 2
of a fused kernel. Backward: two normalised products with their means, the weight's gradient
and the final scale are 19 for 4."""
ROTARY_COMPOSED = (4.5, 3.7)
"""Forward: four half products (4), two half sums (3), one concatenation (2) are 9 for 2.
Backward: the same products and sums, and the halves' gradients joined, are 11 for 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """Communication that the block itself triggers, inside its ``axis`` group.

    ``forward_bytes`` and ``backward_bytes`` are nccl-tests' S: the whole array of an
    all-reduce, the gathered output of an all-gather, the full input of a reduce-scatter, one
    rank's send buffer of an all-to-all, one message of a send. 0 where a shard has none.
    """

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    axis: Literal["tp", "cp", "ep", "etp"]
    forward_bytes: Array
    backward_bytes: Array
    count: Array = 1
    """Calls of this size in one pass (ring attention sends ``cp - 1`` times)."""
    overlappable: bool = False
    """The algorithm itself hides it behind its own compute (ring attention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Elements by how they are shared out; what one rank holds when read from a shard."""

    dense: Array = 0
    expert: Array = 0
    tp_replicated: Array = 0
    """Part of ``dense`` that every tensor-parallel rank repeats."""

    @property
    def total(self) -> Array:
        """All elements."""
        return self.dense + self.expert


def count_parameters(ops: tuple[Op, ...]) -> ParameterCount:
    """Sum the parameters of an op list."""
    return ParameterCount(
        dense=sum(op.parameters for op in ops if not op.expert),
        expert=sum(op.parameters for op in ops if op.expert),
        tp_replicated=sum(op.parameters for op in ops if op.tp_replicated),
    )
