"""Expert parallelism: each rank of a group holds some experts, tokens travel by all-to-all.

Reference: Lepikhin et al., "GShard", 2020; without capacity: no token is dropped.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from executor.networks import Chain
from executor.networks.experts import Dispatch, Experts

EXPERT_MATRICES = ("gate", "up", "down")


class ExchangedTokens(Dispatch):
    """Tokens sorted by expert go to the rank of their expert, and come back in that order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Rows for this rank's experts, sorted by expert."""
        ranks = self.group.size()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        by_source = arriving.view(ranks, -1)
        self.sent = counts.view(ranks, -1).sum(dim=1).tolist()
        self.received = by_source.sum(dim=1).tolist()
        rows = all_to_all_single_autograd(tokens, self.received, self.sent, self.group)
        experts = torch.arange(by_source.shape[1], device=counts.device).repeat(ranks)
        self.order = experts.repeat_interleave(arriving).argsort(stable=True)
        return rows[self.order], by_source.sum(dim=0)

    def combine(self, outputs: Tensor) -> Tensor:
        """Back to the ranks that the tokens came from."""
        unsorted = torch.empty_like(outputs).index_copy(0, self.order, outputs)
        return all_to_all_single_autograd(unsorted, self.sent, self.received, self.group)


def spread_experts(chain: Chain, mesh: DeviceMesh) -> None:
    """Keep this rank's experts of every layer, and exchange tokens for them."""
    for layer in chain.layers.values():
        for module in layer.modules():
            if isinstance(module, Experts):
                module.dispatch = ExchangedTokens(mesh.get_group())
                for name in EXPERT_MATRICES:
                    whole = getattr(module, name)
                    part = whole.detach().chunk(mesh.size())[mesh.get_local_rank()]
                    setattr(module, name, nn.Parameter(part.clone()))


def expert_groups(chain: Chain) -> dict[nn.Parameter, dist.ProcessGroup]:
    """Parameters of which each rank holds its own experts, with the group that holds all."""
    return {
        getattr(module, name): module.dispatch.group
        for module in chain.modules()
        if isinstance(module, Experts) and isinstance(module.dispatch, ExchangedTokens)
        for name in EXPERT_MATRICES
    }
