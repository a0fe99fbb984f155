"""A model is a chain: an embedding, runs of equal layers, a head with its loss."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from planner.model.convolution import Bottleneck, ImageHead, Stem
from planner.model.ends import Embedding, Head
from planner.model.transformer import TransformerLayer
from planner.ops import Implementation, Shard, count_parameters

Layer = TransformerLayer | Bottleneck
Block = Embedding | TransformerLayer | Head | Stem | Bottleneck | ImageHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Equal layers in a row."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    block: Layer
    count: int
    shared_weights: bool = False
    """All layers of the run use one set of parameters (ALBERT)."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a run needs at least 1 layer, got {self.count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str
    family: Literal["decoder", "encoder", "encoder-decoder", "vision", "convolution"]
    embedding: Embedding | Stem
    layers: tuple[Run, ...]
    head: Head | ImageHead
    tied: bool = False
    """Embedding and head share one matrix (``head.parameters`` then counts it once)."""
    sequence_length: int
    """The model's own; 1 for images, whose unit is the sample."""
    extra_parameters: int = 0
    """Elements outside the chain (a pooler, a vision tower), held by the last stage."""
    assumptions: tuple[str, ...] = ()
    """What was not in the source and had to be assumed."""
    source: str = ""

    @property
    def num_layers(self) -> int:
        """Layers that a pipeline can share out."""
        return sum(run.count for run in self.layers)

    @property
    def hidden(self) -> int:
        """Width of the residual stream (channels for images)."""
        return self.embedding.hidden

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding; 0 for images."""
        return self.embedding.vocabulary if isinstance(self.embedding, Embedding) else 0

    @property
    def whole(self) -> Shard:
        """The shard of a single device: one sequence, nothing cut."""
        return Shard(microbatch=1, sequence_length=self.sequence_length)

    @property
    def layer_kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(run.block for run in self.layers))

    def layer_kind_indices(self) -> np.ndarray:
        """For each layer in order, its index in ``layer_kinds``."""
        kinds = self.layer_kinds
        return np.concatenate([np.full(run.count, kinds.index(run.block)) for run in self.layers])

    @property
    def total_parameters(self) -> int:
        """Distinct trainable elements (a tied matrix counts once).

        Without the padding of the vocabulary that frameworks add.
        """
        return self._sum_parameters(active=False)

    @property
    def active_parameters(self) -> int:
        """Elements that one token meets: of the routed experts only ``experts_per_token``."""
        return self._sum_parameters(active=True)

    @property
    def stored_parameters(self) -> int:
        """Elements of a checkpoint that writes a tied head beside the embedding."""
        shared = self.vocabulary * self._vocabulary_width if self.tied else 0
        return self.total_parameters + shared

    @property
    def _vocabulary_width(self) -> int:
        projection = self.embedding.projection if isinstance(self.embedding, Embedding) else 0
        return projection or self.hidden

    def padding_parameters(self, *, multiple: int, tp: int = 1) -> int:
        """Elements that a framework adds when it pads the vocabulary.

        Rows up to the next multiple of ``multiple * tp``, in the embedding and, where it is
        not tied, in the head. Megatron-LM: ``make-vocab-size-divisible-by`` 128.

        Raises:
            ValueError: If ``multiple`` or ``tp`` is below 1.
        """
        if multiple < 1 or tp < 1:
            raise ValueError(f"multiple and tp must be at least 1, got {multiple} and {tp}")
        rows = -self.vocabulary % (multiple * tp)
        return rows * self._vocabulary_width * (1 if self.tied else 2)

    def _sum_parameters(self, *, active: bool) -> int:
        total = self.extra_parameters
        shared = [(run.block, run.count) for run in self.layers if run.shared_weights]
        for block, count in self.chain():
            counts = count_parameters(block.ops(self.whole, Implementation()))
            share = block.active_expert_share if active else 1.0
            copies = 1 if (block, count) in shared else count
            total += copies * round(float(counts.dense + counts.expert * share))
        if self.tied and isinstance(self.head, Head):
            total -= self.head.shared_with_embedding
        return int(total)

    def chain(self) -> tuple[tuple[Block, int], ...]:
        """Every block of the model with its count, in order."""
        runs = tuple((run.block, run.count) for run in self.layers)
        return ((self.embedding, 1), *runs, (self.head, 1))

    def forward_flops_per_sequence(self, sequence_length: int | None = None) -> float:
        """Matrix FLOPs of one sequence's forward pass, nothing recomputed."""
        shard = Shard(sequence_length=sequence_length or self.sequence_length)
        return float(
            sum(
                count * op.forward_flops
                for block, count in self.chain()
                for op in block.ops(shard, Implementation())
            )
        )
