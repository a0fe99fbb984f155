"""Context parallelism by all-to-all: tokens are cut outside attention, heads inside.

Reference: Jacobs et al., "DeepSpeed Ulysses", 2023. Ring attention (Liu et al. 2023) is
PyTorch's own and needs CUDA kernels.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from executor.networks import Chain
from executor.networks.attention import CoreAttention
from executor.networks.ends import Embedding
from executor.networks.transformer import TransformerLayer


class ExchangedAttention(nn.Module):
    """Attention over all tokens for a share of the heads."""

    def __init__(self, core: CoreAttention, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.core = core
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """All of shape (batch, local tokens, heads, head_dim)."""
        gathered = [tokens_for_heads(x, self.group) for x in (query, key, value)]
        return heads_for_tokens(self.core(*gathered), self.group)


def tokens_for_heads(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(batch, tokens / n, heads, width) to (batch, tokens, heads / n, width)."""
    sent = torch.stack(x.chunk(group.size(), dim=2))
    return torch.cat(_exchange(sent, group).unbind(0), dim=1)


def heads_for_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(batch, tokens, heads / n, width) to (batch, tokens / n, heads, width)."""
    sent = torch.stack(x.chunk(group.size(), dim=1))
    return torch.cat(_exchange(sent, group).unbind(0), dim=2)


def _exchange(sent: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Slice ``i`` of the first dimension goes to rank ``i``."""
    received = all_to_all_single_autograd(sent.flatten(0, 1), None, None, group)
    return received.view(sent.shape)


def exchange_heads(chain: Chain, mesh: DeviceMesh, *, length: int) -> None:
    """Give every attention of the chain its exchange, and positions their offset."""
    first_position = mesh.get_local_rank() * (length // mesh.size())
    if chain.rotary is not None:
        chain.rotary.first_position = first_position
    if isinstance(chain.embedding, Embedding):
        chain.embedding.first_position = first_position
    for layer in chain.layers.values():
        assert isinstance(layer, TransformerLayer)
        layer.attention.core = ExchangedAttention(layer.attention.core, mesh.get_group())  # type: ignore[assignment]
