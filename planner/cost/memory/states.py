"""Model states: parameters, gradients, master weights and optimizer states of one rank."""

from dataclasses import dataclass

import numpy as np

from planner.framework import Framework
from planner.job import OPTIMIZER_STATE_BYTES, Job
from planner.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParameter:
    """What one parameter weighs in each role, before ZeRO shares any of it out."""

    parameter: float
    gradient: float
    master: float
    optimizer: float
    partition: float = 0.0
    """Copy of the gradients of a rank's own ZeRO share."""


def bytes_per_parameter(job: Job, framework: Framework) -> BytesPerParameter:
    """Mixed precision Adam: ``2 + g + 4 + 8``; without a master copy ``b + b + 0 + 8``.

    Reference: Rajbhandari et al., "ZeRO", SC 2020, section 3.1 (K = 12 with float16 gradients);
    ``g`` is the framework's own gradient width.

    >>> from planner.framework import Framework
    >>> bytes_per_parameter(Job(global_batch=1, sequence_length=1), Framework(name="x"))
    BytesPerParameter(parameter=2, gradient=4, master=4, optimizer=8.0, partition=0)
    """
    numbers = job.numbers
    narrow = framework.moment_bytes / 4 if job.optimizer != "adamw-8bit" else 1.0
    optimizer_bytes = OPTIMIZER_STATE_BYTES[job.optimizer] * narrow
    if not numbers.keeps_master:
        width = numbers.parameter_bytes
        return BytesPerParameter(
            parameter=width,
            gradient=width,
            master=0,
            optimizer=optimizer_bytes,
        )
    own = job.precision == "fp16" and framework.fp16_gradient_bytes >= 0
    return BytesPerParameter(
        parameter=numbers.parameter_bytes,
        gradient=framework.fp16_gradient_bytes if own else framework.gradient_bytes,
        master=framework.master_bytes,
        optimizer=optimizer_bytes,
        partition=framework.partition_gradient_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroups:
    """Ranks that share one copy of dense and of expert states; 1 without ZeRO."""

    zero_stage: Array
    dense: Array
    expert: Array


def state_bytes(
    dense: Array,
    expert: Array,
    *,
    groups: ShardGroups,
    weights: BytesPerParameter,
    framework: Framework,
    offload: Array = False,
) -> dict[str, Array]:
    """Bytes of each kind of state for ``dense`` and ``expert`` elements of one rank.

    ZeRO-1 divides master weights and optimizer states by the shard group, ZeRO-2 gradients
    too, ZeRO-3 parameters too (Rajbhandari et al. 2020, figure 1). Experts are divided by
    their own group, the ``dp cp / ep`` replicas of one expert.
    """
    stage = np.asarray(groups.zero_stage)
    whole, own = dense + expert, dense / groups.dense + expert / groups.expert
    # FSDP keeps its shard in float32, from ZeRO-2 on: parameter and master copy in one.
    merged = (stage >= 2) & framework.fsdp_master_is_parameter & (weights.master > 0)
    kept = np.where(offload, 0.0, 1.0)
    master = np.where(merged, 0.0, weights.master * kept)
    parameter = np.where(merged, weights.master, weights.parameter)
    sharded_gradients = 2 if framework.zero2_shards_gradients else 3
    copies = np.where((stage == 1) | (stage == 2), weights.partition, 0.0)
    return {
        "parameters": parameter * np.where((stage >= 3) | merged, own, whole),
        "gradients": weights.gradient * np.where(stage >= sharded_gradients, own, whole)
        + copies * own,
        "master weights": master * np.where(stage >= 1, own, whole),
        "optimizer states": weights.optimizer * kept * np.where(stage >= 1, own, whole),
        "gathered parameters": np.where(merged & (stage == 2), weights.parameter * whole, 0.0),
    }
