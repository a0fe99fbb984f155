"""What no layout of given degrees can beat: its bare work, and its bare states.

Both are asked before anything is priced, once for all layouts that share them. They are true
bounds (``tests/search`` holds every layout to them), so nothing that could win is lost.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.moments import shard_groups
from planner.cost.memory.states import bytes_per_parameter, state_bytes
from planner.cost.stages import StageCosts, stage_costs
from planner.cost.step import prices_of
from planner.distinct import distinct_rows
from planner.layout_table import WHOLE, LayoutTable, Split
from planner.model import Head
from planner.search.orders import ideal
from planner.search.pricing import Pricing

Floats = NDArray[np.float64]
WORK = ("tp", "sequence_parallel", "cp", "ulysses", "ep", "etp", "microbatch", "microbatches",
        "fused_loss", "pp")  # fmt: skip
"""What the bare work of a layout depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Least seconds and bytes; arrays over layouts."""

    seconds: Floats
    """All microbatches through the whole model, shared out evenly over the pipeline, every
    axis with neighbouring ranks. The model is taken as one stage: host time that kernels hide
    in one stage can only hide less when stages are cut."""
    state_bytes: Floats
    """Parameters, gradients and optimizer states of an average pipeline rank."""


def bounds_of(table: LayoutTable, pricing: Pricing) -> Bounds:
    """Bounds that hold for every split, schedule, order and recomputation."""
    first, kind = distinct_rows(getattr(table, name) for name in WORK)
    few = ideal(table.take(first))
    zero = np.zeros(len(first), np.int64)
    whole = replace(
        few, split=zero, splits=(Split(pp=1, vpp=1, layers=WHOLE),), order=zero,
        recompute=zero, recompute_layers=zero, zero_stage=zero, shard_group=zero + 1,
    )  # fmt: skip
    q = pricing.question
    prices = prices_of(q.model, q.job, q.cluster, q.framework, pricing.calibration)
    stages = stage_costs(q.model, q.job, whole, prices)
    once = (stages.forward_sum + stages.backward_sum)[stages.inverse]
    return Bounds(
        seconds=(few.microbatches * once / few.pp)[kind],
        state_bytes=_state_bytes(table, stages, stages.inverse[kind], pricing),
    )


def _state_bytes(
    table: LayoutTable, stages: StageCosts, pair: NDArray[np.int64], pricing: Pricing
) -> Floats:
    q = pricing.question
    if q.job.lora_rank:
        return np.zeros(len(table))
    tied = 0
    if q.model.tied and isinstance(q.model.head, Head):
        tied = q.model.head.shared_with_embedding
    states = state_bytes(
        (stages.dense_parameters[pair] - tied / table.tp) / table.pp,
        stages.expert_parameters[pair] / table.pp,
        groups=shard_groups(table), weights=bytes_per_parameter(q.job, q.framework),
        framework=q.framework, offload=table.offload_optimizer,
    )  # fmt: skip
    # Gathered copies come and go; they are no part of what always lies there.
    kept = [amount for name, amount in states.items() if name != "gathered parameters"]
    return np.sum([np.asarray(amount) for amount in kept], axis=0)
