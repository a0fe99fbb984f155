"""What is live on one pipeline rank at each moment that can be its peak.

A peak is at an operator, not a sum of maxima: three moments compete, and each is a dict of
categories. The loss (last stage: all microbatches in flight, logits and their float32
copies), the backward of the heaviest layer, and the optimizer step (no activations at all).
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.cluster import Device
from planner.cost.memory.device import workspace_bytes
from planner.cost.memory.in_flight import microbatches_in_flight
from planner.cost.memory.pieces import Table, block_pieces
from planner.cost.memory.ranks import Holding
from planner.cost.memory.states import (
    BytesPerParameter,
    ShardGroups,
    bytes_per_parameter,
    state_bytes,
)
from planner.framework import Framework
from planner.job import Job
from planner.layout_table import RECOMPUTES, LayoutTable
from planner.model import Head, Model
from planner.ops import Array

CATEGORIES = (
    "parameters",
    "gradients",
    "master weights",
    "optimizer states",
    "activations",
    "logits and loss",
    "recompute workspace",
    "backward workspace",
    "gathered parameters",
    "gradient buckets",
    "pipeline buffers",
    "library workspace",
)
"""Parts of what the framework's tensors occupy (``allocated``)."""

Moment = dict[str, Array]


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
    _, pieces = block_pieces(model, shard, implementation, selective=question.framework.selective)
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


def rank_parameters(
    model: Model, framework: Framework, holding: Holding, parts: Gathered, table: LayoutTable
) -> tuple[Array, Array]:
    """Dense and expert elements of one rank; a tied head on the embedding's rank is free."""
    dense = holding.has_embedding * parts.embedding["dense_parameters"]
    head = parts.head["dense_parameters"] + model.extra_parameters
    shared = 0.0
    if model.tied and isinstance(model.head, Head):
        shared = model.head.shared_with_embedding / table.tp * holding.has_embedding
    dense = dense + holding.has_head * (head - shared)
    expert: Array = 0.0
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        dense = dense + count * layer["dense_parameters"]
        expert = expert + count * layer["expert_parameters"]
    return dense, expert


def shard_groups(table: LayoutTable) -> ShardGroups:
    """Replicas that share dense and expert states."""
    replicas = table.dp * table.cp
    expert_replicas = np.maximum(replicas * table.tp / (table.ep * table.etp), 1)
    return ShardGroups(
        zero_stage=table.zero_stage,
        dense=table.shard_group,
        expert=np.where(table.zero_stage > 0, np.minimum(expert_replicas, table.shard_group), 1),
    )


def activation_bytes(holding: Holding, parts: Gathered, table: LayoutTable) -> Array:
    """Kept by one rank for one microbatch: layers under the recompute policy, and the ends.

    Full recompute of ``k`` layers keeps the input of those and everything of the others.
    """
    layers = holding.layers.sum(axis=0)
    covered = np.where(table.recompute_layers > 0, table.recompute_layers, layers)
    share = np.minimum(covered / np.maximum(layers, 1), 1.0)
    full = RECOMPUTES.index("full")
    selective = RECOMPUTES.index("selective")
    total = holding.has_embedding * parts.embedding["saved"]
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        whole = layer["saved"]
        mixed = share * layer["boundary"] + (1 - share) * whole
        kept = np.where(table.recompute == full, mixed, whole)
        kept = np.where(table.recompute == selective, layer["saved_selective"], kept)
        total = total + count * kept
    return total


def rank_moments(question: Question, holding: Holding, parts: Gathered) -> dict[str, Moment]:
    """Categories at each moment that can be the peak of this rank."""
    model, framework, table = question.model, question.framework, question.table
    weights = bytes_per_parameter(question.job, framework)
    dense, expert = rank_parameters(model, framework, holding, parts, table)
    states = state_bytes(
        dense, expert, groups=shard_groups(table), weights=weights, framework=framework,
        offload=table.offload_optimizer,
    )  # fmt: skip
    flight = microbatches_in_flight(table, holding.rank)
    sent = np.where((table.pp > 1) & ~holding.has_head, parts.stream_bytes, 0.0)
    each = activation_bytes(holding, parts, table)
    kept = (each + sent * framework.keeps_sent_activations) * flight
    # A second, 16-bit gradient lives from one microbatch's backward into the next, and always
    # where data-parallel buckets are views of it.
    transient = framework.transient_gradient_bytes * (dense + expert)
    lingering = transient * ((table.microbatches > 1) | (table.zero_stage == 0))
    ends = {**states, "activations": each * np.maximum(flight - 1, 0)}
    ends["gradients"] = ends["gradients"] + transient
    states = {**states, "gradients": states["gradients"] + lingering}
    states["library workspace"] = parts.workspace_bytes
    states["pipeline buffers"] = np.where(
        table.pp > 1, 2 * parts.stream_bytes * (holding.rank > 0), 0.0
    )
    sharded = _zero3_buffers(framework, table, parts, weights)
    loss = {
        **states, "gathered parameters": _loss_gathered(question, holding, parts, weights),
        "activations": kept,
        "logits and loss": _loss_bytes(framework, table, holding, parts),
    }  # fmt: skip
    backward = {
        **states, **sharded,
        "activations": kept,
        **_layer_workspace(table, holding, parts),
        "gradient buckets": _buckets(framework, table, parts, weights),
    }  # fmt: skip
    step = dict(states)
    if question.job.precision == "fp16":
        step["gradients"] = step["gradients"] + framework.step_gradient_bytes * (
            states["master weights"] / max(weights.master, 1)
        )
    return {"loss": loss, "backward": backward, "accumulate": ends, "step": step}


def idle_bytes(question: Question, holding: Holding, parts: Gathered) -> Array:
    """Reserved segments of 16-bit logits that nothing uses at the loss."""
    unfused = ~np.asarray(question.table.fused_loss) & holding.has_head
    return np.where(unfused, question.framework.idle_logit_bytes * parts.logits, 0.0)


def _loss_bytes(
    framework: Framework, table: LayoutTable, holding: Holding, parts: Gathered
) -> Array:
    per_logit = np.where(table.fused_loss, framework.fused_logit_bytes, framework.logit_bytes)
    return holding.has_head * (per_logit * parts.logits + parts.head["saved"])


def _layer_workspace(table: LayoutTable, holding: Holding, parts: Gathered) -> Moment:
    """Of the heaviest layer that the rank holds: recomputed, or only going backward."""
    recomputed: Array = 0.0
    plain: Array = 0.0
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        recomputed = np.maximum(recomputed, np.where(count > 0, layer["recompute_workspace"], 0))
        plain = np.maximum(plain, np.where(count > 0, layer["backward_workspace"], 0))
    full = table.recompute == RECOMPUTES.index("full")
    return {
        "recompute workspace": np.where(full, recomputed, 0.0),
        "backward workspace": np.where(full, 0.0, plain),
    }


def _zero3_buffers(
    framework: Framework, table: LayoutTable, parts: Gathered, weights: BytesPerParameter
) -> Moment:
    """Whole parameters of the current and the prefetched layer."""
    layer = _heaviest_parameters(parts)
    gathered = np.where(
        table.zero_stage == 3, framework.gathered_layers * layer * weights.parameter, 0.0
    )
    return {"gathered parameters": gathered}


def _loss_gathered(
    question: Question, holding: Holding, parts: Gathered, weights: BytesPerParameter
) -> Array:
    """Of the head, and of the last layer that backward has prefetched."""
    whole = parts.head["dense_parameters"] + _heaviest_parameters(parts)
    gathered = np.where(holding.has_head, whole * weights.parameter, 0.0)
    return np.where(question.table.zero_stage == 3, gathered, 0.0)


def _heaviest_parameters(parts: Gathered) -> Array:
    heaviest: Array = 0.0
    for layer in parts.layers:
        heaviest = np.maximum(heaviest, layer["dense_parameters"] + layer["expert_parameters"])
    return heaviest


def _buckets(
    framework: Framework, table: LayoutTable, parts: Gathered, weights: BytesPerParameter
) -> Array:
    """Whole gradients of one layer under ZeRO-3, else the buckets being reduced."""
    replicated = table.dp * table.cp > 1
    layer = _heaviest_parameters(parts) * weights.parameter
    bucket = np.where(replicated, framework.gradient_bucket_bytes, 0.0)
    return np.where(table.zero_stage == 3, layer, bucket)
