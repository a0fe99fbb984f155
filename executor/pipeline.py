"""Pipeline stages on ``torch.distributed.pipelining``, run by the plan's own action list."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from executor.mesh import Grid
from executor.networks import Chain
from executor.stage import Stage
from planner.job import Job
from planner.layout import Layout
from planner.model import Model, Stem
from planner.schedules import schedule_actions, stage_ranks, to_texts
from planner.split_rules import centred_split


class StageModule(nn.Module):
    """A chain as the pipeline sees it.

    A module around it, because the runtime treats an FSDP2 module itself in its own way: it
    would keep a stage's parameters and gradients whole for a whole step.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """One microbatch."""
        return self.chain(x) if targets is None else self.chain(x, targets)


def layers_of_stages(model: Model, layout: Layout) -> list[range]:
    """The layers of every (virtual) stage; the plan's split, or what the estimate takes."""
    counts = layout.stage_layers or centred_split(model.num_layers, stages=layout.num_stages)
    starts = [sum(counts[:stage]) for stage in range(len(counts))]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def stages_of_rank(layout: Layout, pipeline_rank: int) -> list[int]:
    """The (virtual) stages that one pipeline rank holds, in pipeline order."""
    ranks = stage_ranks(layout.schedule, pp=layout.pp, vpp=layout.vpp)
    return [stage for stage, rank in enumerate(ranks) if rank == pipeline_rank]


def build_chains(model: Model, layout: Layout, pipeline_rank: int) -> dict[int, Chain]:
    """The slices of the network that one pipeline rank holds, by stage."""
    split = layers_of_stages(model, layout)
    last = layout.num_stages - 1
    return {
        stage: Chain(model, split[stage], first=stage == 0, last=stage == last)
        for stage in stages_of_rank(layout, pipeline_rank)
    }


def stream_shape(model: Model, layout: Layout, job: Job, *, layers_before: int) -> tuple[int, ...]:
    """Shape of what enters a stage, on one rank and for one microbatch."""
    if isinstance(model.embedding, Stem):
        blocks = [run.block for run in model.layers for _ in range(run.count)]
        if layers_before == 0:
            side = model.embedding.image_size // 4
            return (layout.microbatch, model.embedding.hidden, side, side)
        before = blocks[layers_before - 1]
        return (layout.microbatch, before.hidden, before.size, before.size)  # type: ignore[union-attr]
    tokens = job.sequence_length // layout.cp
    tokens //= layout.tp if layout.sequence_parallel else 1
    return (layout.microbatch, tokens, model.hidden)


class _Runtime(_PipelineScheduleRuntime):
    """PyTorch's player of action lists.

    Every stage says beforehand what enters and leaves it, so that the ranks need not vote
    whether to find out by running it.
    """

    def _warmup_p2p(self, stages: Any, has_backward: bool, p2p_done: bool) -> None:
        for stage in stages:
            stage.use_static_shapes()


class Pipeline:
    """The stages of this rank, and the runtime that plays the schedule on them."""

    def __init__(
        self, chains: dict[int, Chain], *, model: Model, job: Job, grid: Grid,
        dtype: torch.dtype, loss_scale: float,
    ) -> None:  # fmt: skip
        layout = grid.layout
        self.microbatches = layout.microbatches
        self.holds_first = 0 in chains
        self.holds_last = layout.num_stages - 1 in chains
        split = layers_of_stages(model, layout)
        self.stages = []
        for stage, chain in chains.items():
            before, after = (
                stream_shape(model, layout, job, layers_before=end)
                for end in (split[stage].start, split[stage].stop)
            )
            entering = _blank(before, dtype) if stage else first_input(model, layout, job, dtype)
            leaving = _blank(after, dtype) if chain.head is None else _blank((), torch.float32)
            self.stages.append(
                Stage(
                    StageModule(chain), stage, layout.num_stages, grid.device,
                    input_args=entering, output_args=leaving,
                    group=grid.root["pp"].get_group(),
                )
            )  # fmt: skip
        self.runtime = _Runtime(
            self.stages, layout.microbatches, loss_fn=lambda loss, _: loss * loss_scale,
            scale_grads=False,
        )  # fmt: skip
        self.runtime._prepare_schedule_with_comms(_actions(layout))  # type: ignore[arg-type]

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward of all microbatches; the summed loss where the head is here."""
        arguments = (inputs,) if self.holds_first else ()
        if not self.holds_last:
            self.runtime.step(*arguments, return_outputs=False)
            return None
        losses: list[Tensor] = []
        self.runtime.step(
            *arguments, target=targets, targets=targets, losses=losses, return_outputs=False
        )
        return torch.stack([loss.detach() for loss in losses]).sum()


def first_input(model: Model, layout: Layout, job: Job, dtype: torch.dtype) -> Tensor:
    """Shape and type of one microbatch of tokens, or of images."""
    if isinstance(model.embedding, Stem):
        side = model.embedding.image_size
        return torch.empty((layout.microbatch, 3, side, side), dtype=dtype, device="meta")
    shape = (layout.microbatch, job.sequence_length // layout.cp)
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _blank(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _actions(layout: Layout) -> dict[int, Sequence[_Action | None]]:
    lists = schedule_actions(
        layout.schedule, pp=layout.pp, vpp=layout.vpp, microbatches=layout.microbatches
    )
    return {
        rank: [_Action.from_str(text) for text in to_texts(actions)]
        for rank, actions in enumerate(lists)
    }
