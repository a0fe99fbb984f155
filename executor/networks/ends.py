"""The two ends of a language model: the embedding, and the head with its loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.networks.norm import make_norm
from planner.model import Embedding as EmbeddingBlock
from planner.model import Head as HeadBlock


class Embedding(nn.Module):
    """Token table, and for GPT-2 and BERT learned positions, token types and a norm."""

    def __init__(self, block: EmbeddingBlock) -> None:
        super().__init__()
        self.first_position = 0
        """Of this rank's tokens: context parallelism sets it."""
        self.tokens = nn.Embedding(block.vocabulary, block.hidden)
        self.positions = nn.Embedding(block.positions, block.hidden) if block.positions else None
        self.types = nn.Embedding(block.token_types, block.hidden) if block.token_types else None
        self.norm = make_norm(block.norm, block.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """From (batch, tokens) to the residual stream."""
        x = self.tokens(tokens)
        if self.positions is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device) + self.first_position
            x = x + self.positions(places)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(tokens))
        return self.norm(x)


class Head(nn.Module):
    """Final norm, projection to the vocabulary, cross entropy averaged over tokens."""

    def __init__(self, block: HeadBlock) -> None:
        super().__init__()
        self.norm = make_norm(block.norm, block.hidden)
        if block.transform:
            self.transform: nn.Module | None = nn.Linear(block.hidden, block.hidden)
            self.transform_norm = nn.LayerNorm(block.hidden)
        else:
            self.transform = None
        self.output = nn.Linear(block.hidden, block.vocabulary, bias=block.bias)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of the tokens that this rank sees."""
        x = self.norm(x)
        if self.transform is not None:
            x = self.transform_norm(F.gelu(self.transform(x)))
        logits = self.output(x)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
