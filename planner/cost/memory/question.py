"""What is asked of the memory model, and its blocks' numbers gathered per layout."""

from dataclasses import dataclass, replace

import numpy as np

from planner.cluster import Device
from planner.cost.memory.device import workspace_bytes
from planner.cost.memory.pieces import Habits, Table, block_pieces
from planner.framework import Framework
from planner.job import Job
from planner.layout_table import LayoutTable
from planner.model import Head, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Small per-shard tables, gathered to one entry per layout, by block."""

    embedding: dict[str, Table]
    layers: tuple[dict[str, Table], ...]
    head: dict[str, Table]
    logits: Table
    """Elements of one microbatch's logits on one rank."""
    stream_bytes: Table
    """Of one microbatch's residual stream on one rank."""
    workspace_bytes: float
    """Of matrix libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the memory model; ``table`` holds the layouts."""

    model: Model
    job: Job
    framework: Framework
    table: LayoutTable
    device: Device | None = None


def gather(question: Question) -> Gathered:
    """Evaluate the blocks once per shard, and pick each layout's column out of the tables."""
    model, job = question.model, question.job
    shard, columns = question.table.shards(job)
    implementation = replace(question.framework.implementation(job), fused_loss=True)
    habits = Habits(
        selective=question.framework.selective,
        weight_gradients=not question.framework.fuses_weight_gradients,
        composed_norm=question.device is not None and question.device.kind == "cpu",
    )
    _, pieces = block_pieces(model, shard, implementation, habits)
    rows = len(model.layer_kinds)
    width = model.head.vocabulary if isinstance(model.head, Head) else model.head.num_classes
    logits = np.asarray(shard.tokens * width / shard.tp, float)
    stream = np.asarray(shard.residual_tokens * model.hidden, float) * job.numbers.activation_bytes
    return Gathered(
        embedding=pieces.take(0, columns),
        layers=tuple(pieces.take(1 + kind, columns) for kind in range(rows)),
        head=pieces.take(1 + rows, columns),
        logits=np.broadcast_to(logits, np.shape(shard.tp))[columns],
        stream_bytes=np.broadcast_to(stream, np.shape(shard.tp))[columns],
        workspace_bytes=workspace_bytes(question.framework, question.device),
    )
