"""A network is a chain, embedding -> layers -> head, and a pipeline stage a slice of it."""

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from executor.networks.attention import Rotary
from executor.networks.convolution import Bottleneck, ImageHead, Stem
from executor.networks.ends import Embedding, Head
from executor.networks.transformer import TransformerLayer
from planner.model import Embedding as EmbeddingBlock
from planner.model import Head as HeadBlock
from planner.model import Model
from planner.model import SelfAttention as SelfAttentionBlock
from planner.model import TransformerLayer as TransformerLayerBlock
from planner.model.core import Layer

INITIAL_DEVIATION = 0.02


class Chain(nn.Module):
    """Some layers of a model in a row, with the embedding or the head if they are its.

    Parameters are named by their place in the whole model, whatever the slice.
    """

    def __init__(self, model: Model, layers: Sequence[int], *, first: bool, last: bool) -> None:
        super().__init__()
        blocks = [run.block for run in model.layers for _ in range(run.count)]
        self.rotary = _rotary(model)
        self.embedding = _embedding(model) if first else None
        self.layers = nn.ModuleDict(
            {str(i): _layer(model, blocks[i], self.rotary) for i in layers}
        )
        self.head = _head(model) if last else None
        self.extra: nn.Parameter | None = None
        if last and model.extra_parameters:
            self.extra = nn.Parameter(torch.zeros(model.extra_parameters))
        self.tied = model.tied
        self.tie()

    def tie(self) -> None:
        """Make the head's matrix the embedding's own, where both are here."""
        if self.tied and isinstance(self.embedding, Embedding) and isinstance(self.head, Head):
            self.head.output.weight = self.embedding.tokens.weight

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """From tokens, images or a stream to a stream, or to the loss if the head is here."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x, targets)


def whole_chain(model: Model) -> Chain:
    """The whole network on one device."""
    return Chain(model, range(model.num_layers), first=True, last=True)


def _rotary(model: Model) -> Rotary | None:
    attentions = [b.attention for b in model.layer_kinds if isinstance(b, TransformerLayerBlock)]
    wanted = [a for a in attentions if isinstance(a, SelfAttentionBlock) and a.rotary]
    return Rotary(wanted[0].head_dim) if wanted else None


def _embedding(model: Model) -> nn.Module:
    block = model.embedding
    return Embedding(block) if isinstance(block, EmbeddingBlock) else Stem(block)


def _layer(model: Model, block: Layer, rotary: Rotary | None) -> nn.Module:
    if isinstance(block, TransformerLayerBlock):
        return TransformerLayer(block, rotary=rotary, norm_first=model.family != "encoder")
    return Bottleneck(block)


def _head(model: Model) -> nn.Module:
    return Head(model.head) if isinstance(model.head, HeadBlock) else ImageHead(model.head)


def initial_values(name: str, shape: Sequence[int], *, seed: int) -> Tensor:
    """The float32 start of one parameter; it depends on its name and the seed alone.

    So every layout starts from the same network. Vectors named ``bias`` start at zero, other
    vectors (norms) at one, and matrices at a normal deviation of 0.02 (GPT-2); convolutions
    at He et al. 2015's ``sqrt(2 / fan_in)``, without which a deep one does not train.
    """
    if len(shape) == 1:
        zero = name.endswith("bias") or name == "extra"
        return torch.zeros(shape) if zero else torch.ones(shape)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    deviation = INITIAL_DEVIATION
    if len(shape) == 4:
        deviation = (2.0 / (shape[1] * shape[2] * shape[3])) ** 0.5
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


def plain_name(name: str) -> str:
    """A parameter's name without the wrappers around its module."""
    return name.replace("_checkpoint_wrapped_module.", "")


def canonical_names(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter once, by its place in the whole model; a tied head is the embedding."""
    for name, parameter in module.named_parameters():
        yield plain_name(name), parameter
