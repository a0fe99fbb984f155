"""What is live on one pipeline rank at each moment that can be its peak.

A peak is at an operator, not a sum of maxima: three moments compete, and each is a dict of
categories. The loss (last stage: all microbatches in flight, logits and their float32
copies), the backward of the heaviest layer, and the optimizer step (no activations at all).
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.cluster import Device
from planner.cost.memory.buffers import (
    gathered_bytes,
    message_bytes,
    received_share,
    reduction_bytes,
    unit_sizes,
)
from planner.cost.memory.device import workspace_bytes
from planner.cost.memory.in_flight import microbatches_in_flight
from planner.cost.memory.pieces import Habits, Table, block_pieces
from planner.cost.memory.ranks import Holding
from planner.cost.memory.states import (
    BytesPerParameter,
    ShardGroups,
    bytes_per_parameter,
    state_bytes,
)
from planner.framework import Framework
from planner.job import Job
from planner.layout_table import RECOMPUTES, SCHEDULES, LayoutTable
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
FULL = RECOMPUTES.index("full")
SELECTIVE = RECOMPUTES.index("selective")
GPIPE = SCHEDULES.index("gpipe")


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
    total = holding.has_embedding * parts.embedding["saved"]
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        whole = layer["saved"]
        mixed = share * layer["boundary"] + (1 - share) * whole
        kept = np.where(table.recompute == FULL, mixed, whole)
        kept = np.where(table.recompute == SELECTIVE, layer["saved_selective"], kept)
        total = total + count * kept
    return total


def rank_moments(question: Question, holding: Holding, parts: Gathered) -> dict[str, Moment]:
    """Categories at each moment that can be the peak of this rank.

    ``loss``: everything in flight, logits at their worst. ``backward``: of the last layer, or
    under ZeRO-3 of the one before it, while the last one's gradients are being reduced.
    ``accumulate``: the end of a microbatch's backward. ``step``: the optimizer.
    """
    framework, table = question.framework, question.table
    weights = bytes_per_parameter(question.job, framework)
    base = _base(question, holding, parts, weights)
    each, flight = _activations(question, holding, parts)
    units = unit_sizes(holding, parts.layers, parts.head)
    states, lingering, transient = base
    during = {
        **states,
        "gradients": _gradients_so_far(question, states["gradients"]) + lingering,
        "activations": each * flight,
    }
    loss = {
        **during,
        "gathered parameters": states["gathered parameters"]
        + gathered_bytes(table, units.head + units.layer, weights) * holding.has_head,
        "logits and loss": _loss_bytes(question, holding, parts),
    }
    step = {
        **states,
        "gradients": states["gradients"] + _step_gradients(question, states, weights),
    }
    return {
        "loss": loss,
        "backward": _backward(question, holding, parts, weights, during),
        "next backward": _next_backward(question, holding, parts, weights, during),
        "accumulate": {
            **states,
            "gradients": states["gradients"] + np.maximum(transient, lingering),
            "activations": each * np.maximum(flight - 1, 0),
            "backward workspace": _embedding_gradient(question, holding, parts),
        },
        "step": step,
    }


def _base(
    question: Question, holding: Holding, parts: Gathered, weights: BytesPerParameter
) -> tuple[Moment, Array, Array]:
    """States and buffers that are always there; lingering and transient second gradients.

    A second, 16-bit gradient lives from one microbatch's backward into the next, and always
    where data-parallel buckets are copies of it.
    """
    framework, table = question.framework, question.table
    dense, expert = rank_parameters(question.model, framework, holding, parts, table)
    states = state_bytes(
        dense, expert, groups=shard_groups(table), weights=weights, framework=framework,
        offload=table.offload_optimizer,
    )  # fmt: skip
    states["library workspace"] = parts.workspace_bytes
    states["pipeline buffers"] = message_bytes(table, framework, holding, parts.stream_bytes)
    transient = framework.transient_gradient_bytes * (dense + expert)
    lingering = transient * ((table.microbatches > 1) | (table.zero_stage == 0))
    return states, lingering, transient


def _activations(question: Question, holding: Holding, parts: Gathered) -> tuple[Array, Array]:
    """Bytes of one microbatch, and microbatches in flight."""
    framework, table = question.framework, question.table
    flight = microbatches_in_flight(table, holding.rank)
    each = activation_bytes(holding, parts, table)
    chunks = np.asarray(table.vpp)
    if framework.keeps_sent_activations:
        sent = np.where(table.pp > 1, parts.stream_bytes * (chunks - holding.has_head), 0.0)
        each = each + sent
    if framework.receives_all_microbatches:
        each = each - received_share(table, holding) * chunks * parts.stream_bytes
    return each, flight


def _gradients_so_far(question: Question, gradients: Array) -> Array:
    """FSDP has no gradient shards before the first reduction of a step."""
    if not question.framework.fsdp_master_is_parameter:
        return gradients
    none_yet = (question.table.zero_stage >= 2) & (question.table.microbatches == 1)
    return np.where(none_yet, 0.0, gradients)


def _backward(
    question: Question, holding: Holding, parts: Gathered, weights: BytesPerParameter,
    during: Moment,
) -> Moment:  # fmt: skip
    """Of the last layer: nothing freed yet; its parameters and the prefetched ones are whole."""
    framework, table = question.framework, question.table
    units = unit_sizes(holding, parts.layers, parts.head)
    layers = np.minimum(framework.gathered_layers, holding.layers.sum(axis=0))
    reduced = np.where(table.zero_stage >= 3, units.head, 0.0)
    return {
        **during,
        **_layer_workspace(table, holding, parts),
        "gathered parameters": during["gathered parameters"]
        + gathered_bytes(table, layers * units.layer, weights),
        "gradient buckets": reduction_bytes(table, framework, reduced, weights),
    }


def _next_backward(
    question: Question, holding: Holding, parts: Gathered, weights: BytesPerParameter,
    during: Moment,
) -> Moment:  # fmt: skip
    """Of the last layer but one, under ZeRO-3: the last one's gradients are being reduced."""
    framework, table = question.framework, question.table
    units = unit_sizes(holding, parts.layers, parts.head)
    several = (table.zero_stage >= 3) & (holding.layers.sum(axis=0) > 1)
    freed = np.where(several, _lightest_layer(holding, parts, table), 0.0)
    return {
        **during,
        **_layer_workspace(table, holding, parts),
        "activations": during["activations"] - freed,
        "gathered parameters": during["gathered parameters"]
        + gathered_bytes(table, framework.gathered_layers * units.layer, weights),
        "gradient buckets": reduction_bytes(table, framework, units.layer, weights),
    }


def _lightest_layer(holding: Holding, parts: Gathered, table: LayoutTable) -> Array:
    """Activations that one layer's backward frees."""
    lightest: Array = np.inf
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        own = np.where(table.recompute == FULL, layer["boundary"], layer["saved"])
        own = np.where(table.recompute == SELECTIVE, layer["saved_selective"], own)
        lightest = np.minimum(lightest, np.where(count > 0, own, np.inf))
    return np.where(np.isfinite(lightest), lightest, 0.0)


def _step_gradients(question: Question, states: Moment, weights: BytesPerParameter) -> Array:
    """Float32 copies that the optimizer makes of 16-bit gradients."""
    if question.job.precision != "fp16" or not weights.master:
        return 0.0
    return question.framework.step_gradient_bytes * states["master weights"] / weights.master


def _embedding_gradient(question: Question, holding: Holding, parts: Gathered) -> Array:
    """The dense gradient of the token table, whole before it is added or reduced."""
    width = question.job.numbers.activation_bytes
    return holding.has_embedding * parts.embedding["largest_parameter"] * width


def idle_bytes(question: Question, holding: Holding, parts: Gathered) -> Array:
    """Reserved segments of 16-bit logits that nothing uses at the loss."""
    unfused = ~np.asarray(question.table.fused_loss) & holding.has_head
    return np.where(unfused, question.framework.idle_logit_bytes * parts.logits, 0.0)


def _loss_bytes(question: Question, holding: Holding, parts: Gathered) -> Array:
    """Logits at their worst operator, or the head's backward; GPipe keeps those of all others."""
    framework, table = question.framework, question.table
    cut = np.where(
        np.asarray(table.tp) > 1,
        framework.sharded_logit_bytes or framework.logit_bytes,
        framework.logit_bytes,
    )
    per_logit = np.where(table.fused_loss, framework.fused_logit_bytes, cut)
    saved_logit = np.where(table.fused_loss, 2.0, framework.saved_logit_bytes)
    others = np.where(table.schedule == GPIPE, table.microbatches - 1, 0)
    worst = np.maximum(per_logit * parts.logits, parts.head["backward_workspace"])
    kept = parts.head["saved"] * (others + 1) + saved_logit * parts.logits * others
    return holding.has_head * (worst + kept)


def _layer_workspace(table: LayoutTable, holding: Holding, parts: Gathered) -> Moment:
    """Of the heaviest layer that the rank holds: recomputed, or only going backward."""
    recomputed: Array = 0.0
    plain: Array = 0.0
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        recomputed = np.maximum(recomputed, np.where(count > 0, layer["recompute_workspace"], 0))
        plain = np.maximum(plain, np.where(count > 0, layer["backward_workspace"], 0))
    full = table.recompute == FULL
    return {
        "recompute workspace": np.where(full, recomputed, 0.0),
        "backward workspace": np.where(full, 0.0, plain),
    }
