"""Results as plain documents: what ``--json`` prints and what tables and plots read."""

from dataclasses import asdict
from typing import Any

from planner.appraisal import Appraisal
from planner.compare import Comparison
from planner.cost.memory import StageMemory
from planner.layout import Layout
from planner.model import Model
from planner.ops import Implementation, count_parameters
from planner.setting import Setting

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


def layout_document(layout: Layout) -> dict[str, Any]:
    """A layout's fields, with the world size that they make."""
    return {**asdict(layout), "world_size": layout.world_size}


def appraisal_document(appraisal: Appraisal) -> dict[str, Any]:
    """One layout: time with its parts, memory with its categories."""
    time = appraisal.time
    return {
        "layout": layout_document(appraisal.layout),
        "step_seconds": time.step_seconds,
        "low_seconds": time.low_seconds,
        "high_seconds": time.high_seconds,
        "parts": time.parts,
        "tokens_per_second": appraisal.tokens_per_second,
        "tokens_per_second_per_device": appraisal.tokens_per_second / appraisal.layout.world_size,
        "mfu": appraisal.mfu,
        "days_for_one_trillion_tokens": appraisal.days_for(1e12),
        "usd_per_billion_tokens": _usd(appraisal, 1e9),
        "peak_bytes": appraisal.peak_bytes,
        "reserved_bytes": appraisal.heaviest.reserved,
        "device_bytes": appraisal.heaviest.device,
        "usable_bytes": appraisal.usable_bytes,
        "fits": appraisal.fits,
        "stages": [_stage_document(stage) for stage in appraisal.stages],
    }


def _usd(appraisal: Appraisal, tokens: float) -> float | None:
    rate = appraisal.setting.cluster.usd_per_device_hour * appraisal.layout.world_size
    return rate * 24 * appraisal.days_for(tokens) if rate else None


def _stage_document(stage: StageMemory) -> dict[str, Any]:
    return {
        "rank_in_pipeline": stage.rank,
        "layers": stage.layers,
        "moment": stage.moment,
        "categories": stage.categories,
        "peak_bytes": stage.allocated,
        "fragmentation_bytes": stage.fragmentation,
        "reserved_bytes": stage.reserved,
        "communicator_bytes": stage.communicators,
        "context_bytes": stage.context,
        "device_bytes": stage.device,
    }


def setting_document(setting: Setting) -> dict[str, Any]:
    """What was asked, and what was assumed."""
    return {
        "model": setting.model.name,
        "cluster": setting.cluster.name,
        "device": setting.cluster.device.name,
        "num_devices": setting.num_devices,
        "job": asdict(setting.job),
        "assumptions": [asdict(assumption) for assumption in setting.assumptions],
    }
