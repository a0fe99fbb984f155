"""What to change to make a layout fit, with the bytes that each change saves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.cluster import Device
from planner.cost.memory.table import stage_memory
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.model import Experts, Model, TransformerLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRemedy:
    """One change of a layout or job."""

    change: str
    """In the user's words, such as ``recompute=full``."""
    layout: Layout
    job: Job
    saved_bytes: int
    """Of the heaviest rank's device memory; positive."""
    device_bytes: int
    """Of the heaviest rank, after the change."""


def remedies(
    model: Model, job: Job, framework: Framework, layout: Layout, *, device: Device | None = None
) -> tuple[MemoryRemedy, ...]:
    """Every single change that saves memory, those that usually cost least time first.

    The order is the knobs' own: what costs nothing (fused loss, sequence parallelism, ZeRO-1),
    then what costs kernels' size or recomputation, then what moves bytes over links. Callers
    add the price in step time and may sort by it.
    """
    before = _heaviest(model, job, framework, layout, device)
    found = []
    for change, changed_layout, changed_job in _changes(model, job, framework, layout):
        try:
            after = _heaviest(model, changed_job, framework, changed_layout, device)
        except ValueError:
            continue  # a change that makes no layout is no remedy
        if after < before:
            found.append(
                MemoryRemedy(
                    change=change, layout=changed_layout, job=changed_job,
                    saved_bytes=before - after, device_bytes=after,
                )
            )  # fmt: skip
    return tuple(found)


def _heaviest(
    model: Model, job: Job, framework: Framework, layout: Layout, device: Device | None
) -> int:
    stages = stage_memory(model, job, framework, layout, device=device)
    return max(stage.device for stage in stages)


def _changes(
    model: Model, job: Job, framework: Framework, layout: Layout
) -> Iterator[tuple[str, Layout, Job]]:
    """Single changes in the order of their usual price."""
    if not framework.uses_fused_loss(layout) and framework.chooses_fused_loss:
        yield "fused_loss", replace(layout, fused_loss=True), job
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "sequence_parallel", replace(layout, sequence_parallel=True), job
    yield from _zero_changes(framework, layout, job, stages=(1,))
    if layout.recompute == "none" and not framework.fused_attention:
        yield "recompute=selective", replace(layout, recompute="selective"), job
    if layout.microbatch % 2 == 0:
        smaller = replace(
            layout, microbatch=layout.microbatch // 2, microbatches=2 * layout.microbatches
        )
        yield f"microbatch={smaller.microbatch}", smaller, job
    yield from _zero_changes(framework, layout, job, stages=(2, 3))
    yield from _recompute_changes(model, framework, layout, job)
    if job.optimizer == "adamw":
        yield "optimizer=adamw-8bit", layout, replace(job, optimizer="adamw-8bit")
    yield from _degree_changes(model, layout, job)
    if framework.offloads_optimizer and not layout.offload_optimizer:
        yield "offload_optimizer", replace(layout, offload_optimizer=True), job


def _zero_changes(
    framework: Framework, layout: Layout, job: Job, *, stages: tuple[int, ...]
) -> Iterator[tuple[str, Layout, Job]]:
    """ZeRO stages beyond the layout's own; nothing is shared without replicas."""
    largest = framework.largest_zero_stage
    if layout.pp > 1:
        largest = min(largest, framework.largest_zero_stage_with_pipeline)
    for stage in stages:
        if layout.zero_stage < stage <= largest and layout.dp * layout.cp > 1:
            yield f"zero={stage}", replace(layout, zero_stage=stage), job  # type: ignore[arg-type]


def _recompute_changes(
    model: Model, framework: Framework, layout: Layout, job: Job
) -> Iterator[tuple[str, Layout, Job]]:
    """Half of the layers, then all."""
    if layout.recompute == "full" and not layout.recompute_layers:
        return
    half = model.num_layers // layout.pp // 2
    if framework.recomputes_some_layers and layout.recompute != "full" and half:
        some = replace(layout, recompute="full", recompute_layers=half)
        yield f"recompute=full,recompute_layers={half}", some, job
    yield "recompute=full", replace(layout, recompute="full", recompute_layers=0), job


def _degree_changes(model: Model, layout: Layout, job: Job) -> Iterator[tuple[str, Layout, Job]]:
    """Twice the tensor, pipeline or expert degree on the same devices."""
    if layout.dp % 2 == 0:
        halved = replace(layout, dp=layout.dp // 2, microbatches=2 * layout.microbatches)
        yield f"tp={2 * layout.tp}", replace(halved, tp=2 * layout.tp), job
        if layout.vpp == 1 and model.num_layers % (2 * layout.pp) == 0:
            layers = (model.num_layers // (2 * layout.pp),) * (2 * layout.pp)
            deeper = replace(halved, pp=2 * layout.pp, stage_layers=layers)
            yield f"pp={2 * layout.pp}", deeper, job
    experts = [
        layer.feed_forward
        for layer in model.layer_kinds
        if isinstance(layer, TransformerLayer) and isinstance(layer.feed_forward, Experts)
    ]
    doubled = 2 * layout.ep
    divides = all(block.num_experts % doubled == 0 for block in experts)
    if experts and divides and layout.dp * layout.cp % doubled == 0:
        yield f"ep={doubled}", replace(layout, ep=doubled), job
