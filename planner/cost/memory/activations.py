"""Activations of one pipeline rank: kept per microbatch, in flight, and put off."""

import numpy as np

from planner.cost.memory.buffers import received_share
from planner.cost.memory.in_flight import microbatches_in_flight
from planner.cost.memory.pieces import Table
from planner.cost.memory.question import Gathered, Question
from planner.cost.memory.ranks import Holding
from planner.layout_table import RECOMPUTES, SCHEDULES, LayoutTable
from planner.ops import Array

FULL = RECOMPUTES.index("full")
SELECTIVE = RECOMPUTES.index("selective")
SPLIT_SCHEDULES = [SCHEDULES.index(name) for name in ("zb-h1", "zbv", "dualpipe")]
"""Schedules that compute weight gradients apart from input gradients."""


def activation_bytes(holding: Holding, parts: Gathered, table: LayoutTable) -> Array:
    """Kept by one rank for one microbatch: layers under the recompute policy, and the ends."""
    total = holding.has_embedding * parts.embedding["saved"]
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        total = total + count * layer_activation_bytes(holding, layer, table)
    return total


def layer_activation_bytes(holding: Holding, layer: dict[str, Table], table: LayoutTable) -> Array:
    """Kept of one layer, on average over the rank.

    Full recompute of ``k`` layers keeps the input of those and everything of the others.
    """
    layers = holding.layers.sum(axis=0)
    covered = np.where(table.recompute_layers > 0, table.recompute_layers, layers)
    share = np.minimum(covered / np.maximum(layers, 1), 1.0)
    mixed = share * layer["boundary"] + (1 - share) * layer["saved"]
    kept = np.where(table.recompute == FULL, mixed, layer["saved"])
    return np.where(table.recompute == SELECTIVE, layer["saved_selective"], kept)


def activations(question: Question, holding: Holding, parts: Gathered) -> tuple[Array, Array]:
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


def splits_backward(table: LayoutTable) -> Array:
    """Whether a layout computes weight gradients apart."""
    return np.isin(table.schedule, SPLIT_SCHEDULES) & (np.asarray(table.pp) > 1)


def deferred_bytes(
    question: Question, holding: Holding, parts: Gathered, *, at_work: bool
) -> Array:
    """What zero-bubble schedules keep for weight gradients that they compute later.

    Rank ``r`` puts off the weight gradients of ``r`` microbatches (or chunks); with
    ``at_work`` one more is in its backward. Of each it keeps the output gradients of every
    operation with parameters, and on the last rank what the loss has saved.
    """
    table = question.table
    waiting = np.minimum(holding.rank, table.microbatches)
    chunks = np.asarray(table.vpp)
    each = sum(
        count * layer["weighted_outputs"]
        for count, layer in zip(holding.layers, parts.layers, strict=True)
    )
    logits = holding.has_head * question.framework.saved_logit_bytes * parts.logits
    # In a V-shaped schedule the chunk at work is one of those put off.
    held = waiting + (waiting > 0) * at_work * (chunks == 1)
    kept = held / chunks * each + waiting * logits
    return np.where(splits_backward(table), kept, 0.0)
