"""One rank's share of a training step, built from a plan."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from executor.context_parallel import exchange_heads
from executor.data_parallel import DataParallel, FullySharded, Replicas, Shared, local
from executor.expert_parallel import expert_groups, spread_experts
from executor.mesh import Grid, axis_names
from executor.networks import Chain, canonical_names, initial_values
from executor.pipeline import Pipeline, build_chains
from executor.recompute import recompute
from executor.tensor_parallel import cut_matrices, shard_losses
from planner.plan import Plan

COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Trainer:
    """Parameters, gradients, optimizer and schedule of one rank.

    Made on the meta device; ``start`` gives it memory, so that a dry run can do the same
    under fake tensors.
    """

    def __init__(self, plan: Plan, grid: Grid) -> None:
        self.plan, self.grid = plan, grid
        layout = grid.layout
        self.dtype = COMPUTE_DTYPES[plan.job.precision]
        self.loss_scale = 1.0 / (layout.microbatches * layout.dp * layout.cp)
        self.chains = self._build_chains()
        self.fully_sharded: FullySharded | None = None
        if layout.zero_stage >= 2:
            self.fully_sharded = FullySharded(
                list(self.chains.values()), mesh=grid.fully_sharded,
                zero_stage=layout.zero_stage, job=plan.job,
            )  # fmt: skip
        self.tied_group = self._make_tied_group()
        self.pipeline: Pipeline | None = None
        if layout.num_stages > 1:
            self.pipeline = Pipeline(
                self.chains, model=plan.model, job=plan.job, grid=grid, dtype=self.dtype,
                loss_scale=self.loss_scale,
            )  # fmt: skip

    def start(self, seed: int | None = 0) -> None:
        """Memory for everything; values from the seed, or none."""
        chains = list(self.chains.values())
        materialise(chains, self.grid.device, seed)
        if self.fully_sharded is not None:
            self.fully_sharded.start(chains)
            self.data_parallel: DataParallel = self.fully_sharded
        else:
            self.data_parallel = Replicas(
                self._shared_groups(), zero_stage=self.grid.layout.zero_stage,
                job=self.plan.job, microbatches=self.grid.layout.microbatches,
            )  # fmt: skip

    def _build_chains(self) -> dict[int, Chain]:
        """On the meta device: cut by tensor, expert and context parallelism, then wrapped."""
        layout = self.grid.layout
        with torch.device("meta"):
            chains = build_chains(self.plan.model, layout, self.grid.pipeline_rank)
        if layout.tp > 1:
            shard_losses()
        for chain in chains.values():
            if layout.zero_stage < 2:
                chain.to(self.dtype)
            if layout.tp > 1:
                cut_matrices(
                    chain, self.grid.root["tp"], sequence_parallel=layout.sequence_parallel
                )
            if layout.cp > 1:
                exchange_heads(chain, self.grid.root["cp"], length=self.plan.job.sequence_length)
            if layout.ep > 1:
                spread_experts(chain, self.grid.experts["ep"])
            recompute(chain, layout)
        return chains

    def _shared_groups(self) -> list[Shared]:
        """Dense parameters, experts, and a tied copy (alone, so that its slices match)."""
        experts = [p for chain in self.chains.values() for p in expert_groups(chain)]
        alone = [p for p in [self.tied_copy] if p is not None]
        apart = {id(p) for p in experts + alone}
        everything = [p for chain in self.chains.values() for p in chain.parameters()]
        dense = [p for p in everything if id(p) not in apart]
        groups = [Shared(parameters=p, mesh=self.grid.replicas) for p in (dense, alone)]
        if experts:
            mesh = self.grid.experts["expert_replicas"]
            groups.append(Shared(parameters=experts, mesh=mesh))
        return groups

    @property
    def tied_copy(self) -> nn.Parameter | None:
        """This rank's copy of a matrix that the first and the last stage share."""
        layout = self.grid.layout
        if not self.plan.model.tied or layout.num_stages == 1:
            return None
        first, last = (self.chains.get(stage) for stage in (0, layout.num_stages - 1))
        if first is not None and last is not None:
            raise ValueError("a V-shaped schedule holds both ends on one rank; untie the model")
        if first is not None:
            return first.embedding.tokens.weight  # type: ignore[union-attr, return-value]
        return None if last is None else last.head.output.weight  # type: ignore[union-attr, return-value]

    def _make_tied_group(self) -> dist.ProcessGroup | None:
        """First and last pipeline rank of every pipeline; all ranks take part in making it."""
        layout = self.grid.layout
        if not self.plan.model.tied or layout.num_stages == 1:
            return None
        mesh = self.grid.root.mesh
        columns = mesh.movedim(axis_names(self.grid.root).index("pp"), 0).flatten(1)
        groups = [dist.new_group(pair) for pair in columns[[0, -1]].T.tolist()]
        mine = next(pair for pair in columns.T.tolist() if dist.get_rank() in pair)
        return groups[columns.T.tolist().index(mine)] if self.tied_copy is not None else None

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """One optimizer step; this rank's part of the mean loss, if the head is here."""
        loss = self.accumulate(inputs, targets)
        self.finish_backward()
        self.data_parallel.step()
        return loss

    def accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward of every microbatch."""
        self.data_parallel.zero_gradients()
        if inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        if self.pipeline is not None:
            return self.pipeline.step(inputs, targets)
        (chain,) = self.chains.values()
        total = torch.zeros((), device=self.grid.device)
        count = self.grid.layout.microbatches
        for some, wanted in zip(inputs.chunk(count), targets.chunk(count), strict=True):
            loss = self.forward(chain, some, wanted)
            total += loss.detach()
            self.backward(loss)
        return total

    def forward(self, chain: Chain, inputs: Tensor, targets: Tensor) -> Tensor:
        """Scaled loss of one microbatch."""
        return chain(inputs, targets) * self.loss_scale

    def backward(self, loss: Tensor) -> None:
        """Gradients of one microbatch."""
        loss.backward()

    def finish_backward(self) -> None:
        """Wait for the sums over replicas; then sum the copies of a tied matrix."""
        self.data_parallel.finish_backward()
        copy = self.tied_copy
        if copy is not None:
            dist.all_reduce(self.data_parallel.gradient(copy), group=self.tied_group)

    def gathered_parameters(self) -> dict[str, Tensor]:
        """Whole parameters of this rank's stages by name (a collective call)."""
        return {
            name: _whole(parameter, expert_groups(chain).get(parameter))
            for chain in self.chains.values()
            for name, parameter in canonical_names(chain)
        }


def _whole(parameter: Tensor, expert_group: dist.ProcessGroup | None) -> Tensor:
    values = parameter.detach()
    if expert_group is not None:
        parts = [torch.empty_like(values) for _ in range(expert_group.size())]
        dist.all_gather(parts, values, group=expert_group)
        values = torch.cat(parts)
    whole = values.full_tensor() if isinstance(values, DTensor) else values
    return whole.float().cpu().clone()


def materialise(chains: Sequence[Chain], device: torch.device, seed: int | None) -> None:
    """Memory for parameters on the meta device; starting values if there is a seed."""
    for chain in chains:
        chain.to_empty(device=device)
        chain.tie()
        if seed is None:
            continue
        groups = expert_groups(chain)
        for name, parameter in canonical_names(chain):
            fill(parameter, _seed_name(chain, name), seed, groups.get(parameter))


def _seed_name(chain: Chain, name: str) -> str:
    """A tied head in a stage of its own starts as the embedding does."""
    return "embedding.tokens.weight" if chain.tied and name == "head.output.weight" else name


@torch.no_grad()
def fill(
    parameter: nn.Parameter, name: str, seed: int, expert_group: dist.ProcessGroup | None = None
) -> None:
    """Starting values of one parameter, or of this rank's part of it."""
    shape = list(parameter.shape)
    if expert_group is not None:
        shape[0] *= expert_group.size()
    values = initial_values(name, shape, seed=seed).to(parameter.device)
    if expert_group is not None:
        values = values.chunk(expert_group.size())[expert_group.rank()]
    if isinstance(parameter, DTensor):
        values = distribute_tensor(
            values, parameter.device_mesh, parameter.placements, src_data_rank=None
        ).to_local()
    local(parameter).copy_(values)
