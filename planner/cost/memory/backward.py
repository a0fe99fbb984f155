"""The backward moments of one pipeline rank."""

import numpy as np

from planner.cost.memory.activations import FULL, layer_activation_bytes
from planner.cost.memory.buffers import gathered_bytes, reduction_bytes, unit_sizes
from planner.cost.memory.question import Gathered, Question
from planner.cost.memory.ranks import Holding
from planner.cost.memory.states import BytesPerParameter
from planner.layout_table import LayoutTable
from planner.ops import Array

Moment = dict[str, Array]


def backward(
    question: Question, holding: Holding, parts: Gathered, weights: BytesPerParameter,
    during: Moment,
) -> Moment:  # fmt: skip
    """Of the worst layer: those behind it are freed; prefetched parameters are whole."""
    framework, table = question.framework, question.table
    units = unit_sizes(holding, parts.layers, parts.head)
    layers = np.minimum(framework.gathered_layers, holding.layers.sum(axis=0))
    reduced = np.where(table.zero_stage >= 3, units.head, 0.0)
    workspace, freed = _worst_layer(holding, parts, table)
    return {
        **during,
        **workspace,
        "activations": during["activations"] - freed,
        "gathered parameters": during["gathered parameters"]
        + gathered_bytes(table, layers * units.layer, weights),
        "gradient buckets": reduction_bytes(table, framework, reduced, weights),
    }


def next_backward(
    question: Question, holding: Holding, parts: Gathered, weights: BytesPerParameter,
    during: Moment,
) -> Moment:  # fmt: skip
    """Of the last layer but one, under ZeRO-3: the last one's gradients are being reduced."""
    framework, table = question.framework, question.table
    units = unit_sizes(holding, parts.layers, parts.head)
    several = (table.zero_stage >= 3) & (holding.layers.sum(axis=0) > 1)
    workspace, freed = _worst_layer(holding, parts, table)
    freed = freed + np.where(several, _lightest_layer(holding, parts, table), 0.0)
    return {
        **during,
        **workspace,
        "activations": during["activations"] - freed,
        "gathered parameters": during["gathered parameters"]
        + gathered_bytes(table, framework.gathered_layers * units.layer, weights),
        "gradient buckets": reduction_bytes(table, framework, units.layer, weights),
    }


def _worst_layer(holding: Holding, parts: Gathered, table: LayoutTable) -> tuple[Moment, Array]:
    """Workspace of the layer where backward holds most, and what it has freed before."""
    full = table.recompute == FULL
    kept = [layer_activation_bytes(holding, layer, table) for layer in parts.layers]
    best, best_freed = np.zeros(len(table)), np.zeros(len(table))
    for kind, (count, layer) in enumerate(zip(holding.layers, parts.layers, strict=True)):
        freed = sum(n * k for n, k in zip(holding.behind[kind], kept, strict=True))
        own = np.where(full, layer["recompute_workspace"], layer["backward_workspace"])
        better = (count > 0) & (own - freed > best - best_freed)
        best, best_freed = np.where(better, own, best), np.where(better, freed, best_freed)
    workspace: Moment = {
        "recompute workspace": np.where(full, best, 0.0),
        "backward workspace": np.where(full, 0.0, best),
    }
    return workspace, best_freed


def _lightest_layer(holding: Holding, parts: Gathered, table: LayoutTable) -> Array:
    """Activations that one layer's backward frees."""
    lightest: Array = np.inf
    for count, layer in zip(holding.layers, parts.layers, strict=True):
        own = layer_activation_bytes(holding, layer, table)
        lightest = np.minimum(lightest, np.where(count > 0, own, np.inf))
    return np.where(np.isfinite(lightest), lightest, 0.0)
