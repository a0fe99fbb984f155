"""Results as plain documents: what ``--json`` prints and what tables and plots read."""

from typing import Any

from planner.compare import Comparison
from planner.model import Model
from planner.ops import Implementation, count_parameters


VOCABULARY_MULTIPLE = 128
"""Rows that frameworks pad a vocabulary to, times ``tp``: the count is for one rank."""


def model_document(model: Model) -> dict[str, Any]:
    """A model as it was read, with its counts."""
    parts = []
    for block, count in model.chain():
        ops = block.ops(model.whole, Implementation())
        parts.append(
            {
                "kind": block.kind,
                "count": count,
                "parameters_each": int(count_parameters(ops).total),
                "forward_flops_each": float(sum(op.forward_flops for op in ops)),
                "dimensions": _dimensions(block),
            }
        )
    forward = model.forward_flops_per_sequence()
    return {
        "name": model.name,
        "family": model.family,
        "total_parameters": model.total_parameters,
        "active_parameters": model.active_parameters,
        "stored_parameters": model.stored_parameters,
        "padding_parameters": model.padding_parameters(multiple=VOCABULARY_MULTIPLE),
        "layers": model.num_layers,
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "sequence_length": model.sequence_length,
        "tied": model.tied,
        "extra_parameters": model.extra_parameters,
        "training_flops_per_token": 3 * forward / model.sequence_length,
        "parts": parts,
        "assumptions": list(model.assumptions),
        "source": model.source,
    }


def _dimensions(block: object) -> dict[str, Any]:
    """The fields of a block, nested parts included, as plain values."""
    from dataclasses import asdict

    return {
        key: value
        for key, value in asdict(block).items()  # type: ignore[call-overload]
        if key != "kind" and value not in (0, False, None)
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Predicted beside measured."""
    return {
        "within": comparison.within,
        "tolerance": comparison.tolerance,
        "low_seconds": comparison.low_seconds,
        "high_seconds": comparison.high_seconds,
        "lines": [
            {
                "name": line.name,
                "unit": line.unit,
                "predicted": line.predicted,
                "measured": line.measured,
                "error": line.error,
                "judged": line.judged,
            }
            for line in comparison.lines
        ],
    }
