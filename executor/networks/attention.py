"""Self-attention: projections, rotary positions, softmax(Q K^T) V."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.model import SelfAttention as SelfAttentionBlock


class Rotary:
    """Tables of rotary positions, made once per length and shared by all layers.

    Reference: Su et al., "RoFormer: Enhanced transformer with rotary position embedding",
    2021, equation 34.
    """

    def __init__(self, head_dim: int, base: float = 10_000.0) -> None:
        self.head_dim = head_dim
        self.base = base
        self.first_position = 0
        """Of this rank's tokens: context parallelism sets it."""
        self._tables: dict[tuple[int, int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate ``x`` of shape (batch, tokens, heads, head_dim)."""
        cosine, sine = self._table(x.shape[1], x)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

    def _table(self, tokens: int, x: Tensor) -> tuple[Tensor, Tensor]:
        key = (tokens, self.first_position, x.device, x.dtype)
        if key not in self._tables:
            exponent = torch.arange(0, self.head_dim, 2, device=x.device) / self.head_dim
            positions = torch.arange(tokens, device=x.device) + self.first_position
            angles = torch.outer(positions.float(), self.base**-exponent)[:, None, :]
            self._tables[key] = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return self._tables[key]


class CoreAttention(nn.Module):
    """Softmax(Q K^T) V, fused; a module of its own so that it can be recomputed or replaced."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """All of shape (batch, tokens, heads, head_dim); keys may have fewer heads."""
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
            is_causal=self.causal, enable_gqa=query.shape[2] != key.shape[2],
        )  # fmt: skip
        return out.transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head or grouped-query attention."""

    def __init__(self, block: SelfAttentionBlock, hidden: int, rotary: Rotary | None) -> None:
        super().__init__()
        self.head_dim = block.head_dim
        width, kv_width = block.heads * block.head_dim, block.kv_heads * block.head_dim
        self.query = nn.Linear(hidden, width, bias=block.qkv_bias)
        self.key = nn.Linear(hidden, kv_width, bias=block.qkv_bias)
        self.value = nn.Linear(hidden, kv_width, bias=block.qkv_bias)
        self.core = CoreAttention(causal=block.causal)
        self.output = nn.Linear(width, hidden, bias=block.output_bias)
        self.rotary = rotary if block.rotary else None

    def forward(self, x: Tensor) -> Tensor:
        """From the normed stream to the stream."""
        query = self._heads(self.query(x))
        key = self._heads(self.key(x))
        value = self._heads(self.value(x))
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        return self.output(self.core(query, key, value).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """However many heads this rank holds."""
        return x.unflatten(-1, (-1, self.head_dim))
