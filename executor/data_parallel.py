"""Data parallelism: replicas that sum gradients, with ZeRO-1 on top, or FSDP2 (ZeRO-2, 3).

Every loss is already divided by the number of microbatches of all replicas, so gradients are
summed, never averaged.

Bytes per parameter of one rank, ``n`` ranks in the sharding group, AdamW:

======  ==========================  =============================================
ZeRO    fp32                        bf16
======  ==========================  =============================================
0       4 + 4 + 8                   2 + 4 (sum) + 4 (master) + 8
1       4 + 4 + 8/n                 2 + 4 (sum) + (4 + 8)/n
2       16/n, and 4 gathered        (4 + 4 + 8)/n, and 2 gathered all step
3       16/n, and 4 gathered of     (4 + 4 + 8)/n, and 2 gathered of the layers
        the layers at work          at work
======  ==========================  =============================================

In bf16, ZeRO 0 and 1 sum gradients over microbatches and replicas in float32; autograd's own
bf16 gradient of a parameter lives until it is added. Under FSDP2 the float32 shard *is* the
master and is cast as it is gathered; gradients are reduced in float32 after every microbatch.

Why not ``DistributedDataParallel``: it takes no DTensor parameters (tensor parallelism), no
backward split in two (zero-bubble schedules), always all-reduces (ZeRO-1 needs half of that),
and its reducer, in C++, cannot be dry-run on fake tensors. ``Replicas`` does the same, buckets
overlapped with backward, in a page of Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from executor.networks import Chain
from executor.optimizer import MasterOptimizer
from planner.job import Job

BUCKET_BYTES = 25 * 2**20
"""Of float32 gradients that are reduced together (the default of PyTorch's DDP)."""


class DataParallel(Protocol):
    """What a training step asks of either way."""

    def zero_gradients(self) -> None:
        """Forget the gradients of the last step."""

    def finish_backward(self) -> None:
        """Wait until gradients are summed over the replicas."""

    def step(self) -> None:
        """Update the parameters."""

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """What this rank holds of a parameter's summed gradient, for tied copies."""


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Bucket:
    """Parameters whose gradients lie, and are reduced, in one buffer."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, group: dist.ProcessGroup, shards: int,
        job: Job, microbatches: int,
    ) -> None:  # fmt: skip
        self.parameters = list(parameters)
        self.group = group
        self.shards = shards
        self.awaited = len(self.parameters) * microbatches
        self.missing = self.awaited
        self.work: dist.Work | None = None
        sizes = [local(p).numel() for p in self.parameters]
        padded = -(-sum(sizes) // shards) * shards
        first = local(self.parameters[0])
        self.flat = first.new_zeros(padded)
        self.sums = first.new_zeros(padded, dtype=torch.float32)
        self.views: list[Tensor] = []
        for parameter, start in zip(self.parameters, _starts(sizes), strict=True):
            self._adopt(parameter, start)
        self.optimizer = MasterOptimizer(job, [self._owned(self.flat)])

    def _adopt(self, parameter: nn.Parameter, start: int) -> None:
        """Move a parameter into the buffer; in float32 its gradient lives there as well."""
        values = local(parameter.detach())
        window = slice(start, start + values.numel())
        home = self.flat[window].view(values.shape)
        home.copy_(values)
        if isinstance(parameter, DTensor):
            parameter._local_tensor = home  # the only way to move a DTensor's storage
        else:
            parameter.data = home
        self.views.append(self.sums[window].view(values.shape))
        if values.dtype == torch.float32:
            parameter.grad = _like(parameter, self.views[-1])

    def _owned(self, flat: Tensor) -> Tensor:
        """The slice of a buffer that this rank updates."""
        return flat.chunk(self.shards)[self.group.rank() if self.shards > 1 else 0]

    def collect(self, index: int) -> None:
        """Take in the gradient that autograd has just finished; reduce after the last one."""
        self._add(index)
        self.missing -= 1
        if self.missing == 0:
            self.reduce()

    def _add(self, index: int) -> None:
        parameter = self.parameters[index]
        if parameter.dtype != torch.float32 and parameter.grad is not None:
            self.views[index].add_(local(_placed_as(parameter, parameter.grad)))
            parameter.grad = None

    def reduce(self) -> None:
        """Start summing over the replicas."""
        if self.group.size() == 1:
            return
        if self.shards > 1:
            self.work = dist.reduce_scatter_tensor(
                self._owned(self.sums), self.sums, group=self.group, async_op=True
            )
        else:
            self.work = dist.all_reduce(self.sums, group=self.group, async_op=True)

    def finish(self) -> None:
        """Reduce what hooks did not see (unused, or a split backward); wait."""
        if self.missing:
            for index in range(len(self.parameters)):
                self._add(index)
            self.reduce()
        if self.work is not None:
            self.work.wait()
        self.work, self.missing = None, self.awaited

    def step(self) -> None:
        """Update the owned slice, and fetch the others' slices."""
        self.optimizer.step([self._owned(self.sums)])
        if self.shards > 1:
            dist.all_gather_into_tensor(self.flat, self._owned(self.flat), group=self.group)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Parameters that the ranks of one group share."""

    parameters: Sequence[nn.Parameter]
    mesh: DeviceMesh


class Replicas:
    """ZeRO 0 and 1: whole parameters and gradient sums on every rank, in buckets."""

    def __init__(
        self, groups: Sequence[Shared], *, zero_stage: int, job: Job, microbatches: int
    ) -> None:
        self.buckets: list[Bucket] = []
        for shared in groups:
            shards = shared.mesh.size() if zero_stage == 1 else 1
            self.buckets += [
                Bucket(
                    some, group=shared.mesh.get_group(), shards=shards, job=job,
                    microbatches=microbatches,
                )
                for some in _bucketed(shared.parameters)
            ]  # fmt: skip
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(
                    lambda _, bucket=bucket, index=index: bucket.collect(index)
                )

    def zero_gradients(self) -> None:
        """Forget the gradients of the last step."""
        for bucket in self.buckets:
            bucket.sums.zero_()

    def finish_backward(self) -> None:
        """Wait until gradients are summed over the replicas."""
        for bucket in self.buckets:
            bucket.finish()

    def step(self) -> None:
        """Update the parameters."""
        for bucket in self.buckets:
            bucket.step()

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The owned slice of the buffer that holds this parameter alone."""
        for bucket in self.buckets:
            if any(parameter is p for p in bucket.parameters):
                return bucket._owned(bucket.sums)
        raise KeyError("the parameter is in no bucket")


class FullySharded:
    """ZeRO 2 and 3 by FSDP2: each layer gathered as it is needed, gradients scattered."""

    def __init__(
        self, chains: Sequence[Chain], *, mesh: DeviceMesh, zero_stage: int, job: Job
    ) -> None:
        self.zero_stage = zero_stage
        self.modules: list[FSDPModule] = []
        for chain in chains:
            self._shard(chain, mesh, mixed_policy(job))
        self.job = job
        self.parameters: list[nn.Parameter] = []
        self.optimizer: MasterOptimizer | None = None

    def _shard(self, chain: Chain, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
        parts: list[nn.Module] = list(chain.layers.values())
        if not (chain.tied and chain.embedding is not None and chain.head is not None):
            parts += [end for end in (chain.embedding, chain.head) if end is not None]
        for part in (*parts, chain):
            module = fully_shard(
                part, mesh=mesh, mp_policy=policy, reshard_after_forward=self.zero_stage == 3
            )
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reshard_after_backward(self.zero_stage == 3)
            self.modules.append(module)

    def start(self, chains: Sequence[Chain]) -> None:
        """Build the optimizer, once the parameters have their memory."""
        self.parameters = [p for chain in chains for p in chain.parameters()]
        self.optimizer = MasterOptimizer(self.job, [local(p) for p in self.parameters])

    def zero_gradients(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    def finish_backward(self) -> None:
        """FSDP2 has waited for its reductions; ZeRO-2 lets go of whole parameters here."""
        if self.zero_stage == 2:
            for module in self.modules:
                module.reshard()

    def step(self) -> None:
        """Update this rank's shards."""
        assert self.optimizer is not None
        self.optimizer.step([None if p.grad is None else local(p.grad) for p in self.parameters])

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """This rank's shard of it."""
        assert parameter.grad is not None
        return local(parameter.grad)


def mixed_policy(job: Job) -> MixedPrecisionPolicy:
    """Float32 shards, gathered in bf16 and reduced in float32; nothing to cast in fp32."""
    if job.precision == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts[:-1]


def _like(parameter: nn.Parameter, values: Tensor) -> Tensor:
    """A gradient of the parameter's own kind around ``values``."""
    if not isinstance(parameter, DTensor):
        return values
    return DTensor.from_local(
        values, parameter.device_mesh, parameter.placements, run_check=False,
        shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip


def _placed_as(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """A gradient may come whole or in partial sums (a norm's under sequence parallelism)."""
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
        return gradient.redistribute(placements=parameter.placements)
    return gradient


def _bucketed(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Last parameters first, as backward finishes them."""
    buckets: list[list[nn.Parameter]] = []
    open_bytes = BUCKET_BYTES
    for parameter in reversed(list(parameters)):
        if open_bytes >= BUCKET_BYTES:
            buckets.append([])
            open_bytes = 0
        buckets[-1].append(parameter)
        open_bytes += 4 * local(parameter).numel()
    return buckets
