"""One transformer layer: attention and feed-forward, each with a norm and a residual."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.networks.attention import Rotary, SelfAttention
from executor.networks.experts import Experts
from executor.networks.norm import make_norm
from planner.model import Experts as ExpertsBlock
from planner.model import FeedForward as FeedForwardBlock
from planner.model import SelfAttention as SelfAttentionBlock
from planner.model import TransformerLayer as TransformerLayerBlock

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


class FeedForward(nn.Module):
    """Two matrices around an activation, or three with a gate."""

    def __init__(self, block: FeedForwardBlock, hidden: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block.activation]
        self.gate: nn.Linear | None = None
        if block.gated:
            self.gate = nn.Linear(hidden, block.ffn_hidden, bias=block.bias)
        self.up = nn.Linear(hidden, block.ffn_hidden, bias=block.bias)
        self.down = nn.Linear(block.ffn_hidden, hidden, bias=block.bias)

    def forward(self, x: Tensor) -> Tensor:
        """From the normed stream to the stream."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class TransformerLayer(nn.Module):
    """Norms come before their part (GPT, llama) or after the residual (BERT)."""

    def __init__(
        self, block: TransformerLayerBlock, *, rotary: Rotary | None, norm_first: bool
    ) -> None:
        super().__init__()
        if not isinstance(block.attention, SelfAttentionBlock):
            raise ValueError(f"the executor has no {block.attention.kind} attention")
        self.norm_first = norm_first
        self.parallel = block.parallel
        self.attention_norm = make_norm(block.norm, block.hidden)
        self.attention = SelfAttention(block.attention, block.hidden, rotary)
        if block.feed_forward_norms:
            self.feed_forward_norm: nn.Module | None = make_norm(block.norm, block.hidden)
        else:
            self.feed_forward_norm = None
        if isinstance(block.feed_forward, ExpertsBlock):
            self.feed_forward: nn.Module = Experts(block.feed_forward, block.hidden)
        else:
            self.feed_forward = FeedForward(block.feed_forward, block.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """One layer of the residual stream."""
        if not self.norm_first:
            assert self.feed_forward_norm is not None
            x = self.attention_norm(x + self.attention(x))
            return self.feed_forward_norm(x + self.feed_forward(x))
        if self.parallel:
            normed = self.attention_norm(x)
            other = normed if self.feed_forward_norm is None else self.feed_forward_norm(x)
            return x + self.attention(normed) + self.feed_forward(other)
        assert self.feed_forward_norm is not None
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))
