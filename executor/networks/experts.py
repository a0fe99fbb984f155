"""A router and routed experts (Mixtral: Jiang et al., "Mixtral of experts", 2024)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.model import Experts as ExpertsBlock


class Dispatch(nn.Module):
    """Brings tokens to their experts and back; on one rank nothing has to move.

    Expert parallelism replaces it with an all-to-all.
    """

    def forward(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """``tokens`` sorted by expert, and how many each expert of this rank gets."""
        return tokens, counts

    def combine(self, outputs: Tensor) -> Tensor:
        """The inverse of the last ``forward``."""
        return outputs


class Experts(nn.Module):
    """Every token meets its ``experts_per_token`` best experts; no token is dropped."""

    def __init__(self, block: ExpertsBlock, hidden: int) -> None:
        super().__init__()
        if block.bias or block.router_bias or block.shared_ffn_hidden or not block.gated:
            raise ValueError("the executor has gated experts without bias or shared experts")
        self.experts_per_token = block.experts_per_token
        self.router = nn.Linear(hidden, block.num_experts, bias=False)
        shape = (block.num_experts, hidden, block.ffn_hidden)
        self.gate = nn.Parameter(torch.empty(shape))
        self.up = nn.Parameter(torch.empty(shape))
        self.down = nn.Parameter(torch.empty(shape).transpose(1, 2).contiguous())
        self.dispatch = Dispatch()

    def forward(self, x: Tensor) -> Tensor:
        """From the normed stream to the stream."""
        tokens = x.flatten(0, -2)
        probabilities = F.softmax(self.router(tokens).float(), dim=-1)
        weights, chosen = probabilities.topk(self.experts_per_token, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.router.out_features)
        source = order // self.experts_per_token
        sent, local_counts = self.dispatch(tokens[source], counts)
        back = self.dispatch.combine(self._through_experts(sent, local_counts))
        weighted = back * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, source, weighted).view_as(x)

    def _through_experts(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Each expert of this rank on its own rows."""
        outputs = [
            (F.silu(rows @ self.gate[i]) * (rows @ self.up[i])) @ self.down[i]
            for i, rows in enumerate(tokens.split(counts.tolist()))
        ]
        return torch.cat(outputs)
