"""What is live on one pipeline rank at each moment that can be its peak.

A peak is at an operator, not a sum of maxima: three moments compete, and each is a dict of
categories. The loss (last stage: all microbatches in flight, logits and their float32
copies), the backward of the heaviest layer, and the optimizer step (no activations at all).
"""

import numpy as np

from planner.cost.memory.activations import activations, deferred_bytes, splits_backward
from planner.cost.memory.backward import Moment, backward, next_backward
from planner.cost.memory.buffers import gathered_bytes, message_bytes, unit_sizes
from planner.cost.memory.question import Gathered, Question
from planner.cost.memory.ranks import Holding
from planner.cost.memory.states import (
    BytesPerParameter,
    ShardGroups,
    bytes_per_parameter,
    state_bytes,
)
from planner.framework import Framework
from planner.layout_table import SCHEDULES, LayoutTable
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

GPIPE = SCHEDULES.index("gpipe")


def rank_parameters(
    model: Model, framework: Framework, holding: Holding, parts: Gathered, table: LayoutTable
) -> tuple[Array, Array]:
    """Dense and expert elements of one rank; a tied head on the embedding's rank is free."""
    dense = holding.has_embedding * parts.embedding["dense_parameters"]
    head = parts.head["dense_parameters"] + model.extra_parameters
    shared: Array = 0.0
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


def rank_moments(question: Question, holding: Holding, parts: Gathered) -> dict[str, Moment]:
    """Categories at each moment that can be the peak of this rank.

    ``loss``: everything in flight, logits at their worst. ``backward``: of the last layer, or
    under ZeRO-3 of the one before it, while the last one's gradients are being reduced.
    ``accumulate``: the end of a microbatch's backward. ``step``: the optimizer.
    """
    framework, table = question.framework, question.table
    weights = bytes_per_parameter(question.job, framework)
    base = _base(question, holding, parts, weights)
    each, flight = activations(question, holding, parts)
    units = unit_sizes(holding, parts.layers, parts.head)
    states, lingering, transient = base
    during = {
        **states,
        "gradients": _gradients_so_far(question, states["gradients"]) + lingering,
        "activations": each * flight + deferred_bytes(question, holding, parts, at_work=True),
    }
    loss = {
        **during,
        "gathered parameters": states["gathered parameters"]
        + gathered_bytes(table, units.head + units.layer, weights) * holding.has_head,
        "activations": each * flight + deferred_bytes(question, holding, parts, at_work=False),
        "logits and loss": _loss_bytes(question, holding, parts),
    }
    step = {
        **states,
        "gradients": states["gradients"] + _step_gradients(question, states, weights),
    }
    return {
        "loss": loss,
        "backward": backward(question, holding, parts, weights, during),
        "next backward": next_backward(question, holding, parts, weights, during),
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
    groups = shard_groups(table)
    states = state_bytes(
        *_trained(question, holding, parts, (dense, expert)), groups=groups, weights=weights,
        framework=framework, offload=table.offload_optimizer,
    )  # fmt: skip
    if question.job.lora_rank:
        # The frozen base in the precision that it computes in, without states of its own.
        own = np.where(np.asarray(table.zero_stage) >= 3, groups.dense, 1)
        states["parameters"] = states["parameters"] + weights.parameter * (dense + expert) / own
        dense, expert = _trained(question, holding, parts, (dense, expert))
    states["library workspace"] = parts.workspace_bytes
    states["pipeline buffers"] = message_bytes(table, framework, holding, parts.stream_bytes)
    whole = np.asarray(table.zero_stage) < 2  # beyond, gradients exist whole one unit at a time
    transient = framework.transient_gradient_bytes * (dense + expert) * whole
    lingering = transient * ((table.microbatches > 1) | (table.zero_stage == 0))
    if question.job.numbers.keeps_master and not framework.fuses_weight_gradients:
        # A weight gradient that is computed apart is added to the sums at the end of the step.
        # The first rank computes both gradients of its first stage together.
        together = np.where(holding.rank > 0, 0.0, 1 / np.asarray(table.vpp))
        apart = question.job.numbers.parameter_bytes * (dense + expert) * (1 - together)
        lingering = lingering + np.where(splits_backward(table), apart, 0.0)
    return states, lingering, transient


def _trained(
    question: Question, holding: Holding, parts: Gathered, whole: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Elements with gradients: all of them, or LoRA's adapters alone."""
    if not question.job.lora_rank:
        return whole
    width = sum(
        count * layer["adapter_width"]
        for count, layer in zip(holding.layers, parts.layers, strict=True)
    )
    return question.job.lora_rank * width, 0.0


def _gradients_so_far(question: Question, gradients: Array) -> Array:
    """FSDP has no gradient shards before the first reduction of a step."""
    if not question.framework.fsdp_master_is_parameter:
        return gradients
    none_yet = (question.table.zero_stage >= 2) & (question.table.microbatches == 1)
    return np.where(none_yet, 0.0, gradients)


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
    old = framework.lingering_logit_bytes * parts.logits * (np.asarray(table.microbatches) > 1)
    saved_logit = np.where(table.fused_loss, 2.0, framework.saved_logit_bytes)
    others = np.where(table.schedule == GPIPE, table.microbatches - 1, 0)
    worst = np.maximum(per_logit * parts.logits, parts.head["backward_workspace"])
    kept = parts.head["saved"] * (others + 1) + saved_logit * parts.logits * others
    return holding.has_head * (worst + kept + old)
