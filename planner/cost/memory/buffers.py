"""Buffers beside states and activations: gathered parameters, reductions, pipeline messages."""

from dataclasses import dataclass

import numpy as np

from planner.cost.memory.pieces import Table
from planner.cost.memory.ranks import Holding
from planner.cost.memory.states import BytesPerParameter
from planner.framework import Framework
from planner.layout_table import LayoutTable
from planner.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSizes:
    """Elements of the pieces that FSDP gathers one by one."""

    layer: Array
    """Of the heaviest layer."""
    head: Array
    """0 on ranks without one."""


def unit_sizes(
    holding: Holding, layers: tuple[dict[str, Table], ...], head: dict[str, Table]
) -> UnitSizes:
    """Of one rank: the heaviest of its layers, and the head."""
    heaviest: Array = 0.0
    for count, layer in zip(holding.layers, layers, strict=True):
        own = layer["dense_parameters"] + layer["expert_parameters"]
        heaviest = np.maximum(heaviest, np.where(count > 0, own, 0.0))
    return UnitSizes(layer=heaviest, head=holding.has_head * head["dense_parameters"])


def gathered_bytes(table: LayoutTable, units: Array, weights: BytesPerParameter) -> Array:
    """Whole parameters under ZeRO-3, in the precision that they are gathered in."""
    return np.where(table.zero_stage == 3, units * weights.parameter, 0.0)


def reduction_bytes(
    table: LayoutTable, framework: Framework, units: Array, weights: BytesPerParameter
) -> Array:
    """Gradients on their way to their owners, of ``units`` elements at once.

    FSDP copies a unit's whole gradients into one buffer of its reduction's precision
    (``foreach_reduce``); others reduce buckets of a fixed size, if they have buckets of their
    own at all.
    """
    replicated = (np.asarray(table.dp) * table.cp) > 1
    bucket = np.where(replicated, float(framework.gradient_bucket_bytes), 0.0)
    width = framework.fsdp_reduce_bytes or weights.gradient
    return np.where(table.zero_stage >= 3, units * width, bucket)


def message_bytes(
    table: LayoutTable, framework: Framework, holding: Holding, stream_bytes: Array
) -> Array:
    """Receive buffers of a pipeline rank.

    PyTorch's runtime keeps one per microbatch, stage and direction for the whole run; others
    receive into one buffer in each direction at a time.
    """
    chunks = np.asarray(table.vpp)
    directions = (chunks - holding.has_embedding) + (chunks - holding.has_head)
    each = np.where(np.asarray(table.pp) > 1, stream_bytes, 0.0)
    if framework.receives_all_microbatches:
        return each * directions * table.microbatches
    return 2 * each * (holding.rank > 0)


def received_share(table: LayoutTable, holding: Holding) -> Array:
    """Share of a rank's chunks whose input stream lies in a receive buffer."""
    chunks = np.asarray(table.vpp)
    return np.where(np.asarray(table.pp) > 1, (chunks - holding.has_embedding) / chunks, 0.0)
