"""What comes once per step or beside the passes: replicas, optimizer, host."""

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster
from planner.cost.compute import memory_bound_seconds
from planner.cost.data_parallel import Replicas
from planner.cost.prices import Prices
from planner.cost.stages import StageCosts
from planner.job import OPTIMIZER_STATE_BYTES, Job
from planner.layout_table import LayoutTable

Floats = NDArray[np.float64]

MOMENT_SHARE = 0.6
"""Of the optimizer's traffic, what Adam's two moments and the master copy cause."""


def data_parallel_seconds(
    table: LayoutTable, stages: StageCosts, exchange: Replicas, prices: Prices
) -> dict[str, Floats]:
    """What of the exchange between replicas stays visible, and what it slows down.

    Gradients hide behind a backward pass, gathers of parameters behind either pass: of the
    last (first) microbatch, or of every one under ZeRO-3. What is hidden slows compute.
    """
    sharded = table.zero_stage == 3
    always = sharded | (prices.framework.reduces_every_microbatch & (table.zero_stage >= 2))
    reductions = np.where(always, table.microbatches, 1)
    gathers = np.where(sharded, table.microbatches, 1)
    room_forward, room_backward = _room(table, stages, always)
    share = prices.step.overlap_share
    in_backward = exchange.reduce + np.where(sharded, exchange.gather, 0.0)
    hidden = share * np.minimum(in_backward, room_backward)
    hidden = hidden * prices.framework.overlaps_gradient_reduction
    hidden_forward = share * np.minimum(exchange.gather, room_forward)
    hidden_forward = hidden_forward * prices.framework.overlaps_parameter_gather
    visible = reductions * (in_backward - hidden) + gathers * (exchange.gather - hidden_forward)
    first = exchange.first_gather * prices.framework.overlaps_parameter_gather
    return {
        "dp": visible + np.where(sharded, first, 0.0) + exchange.tied,
        "overlap slowdown": prices.step.overlap_slowdown
        * (reductions * hidden + gathers * hidden_forward),
    }


def _room(
    table: LayoutTable, stages: StageCosts, always: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Forward and backward behind which an exchange can hide.

    Without a pipeline a whole pass; in one, the first stage's own pass of one microbatch; with
    several chunks per rank also the other chunks' last microbatches.
    """
    pair = stages.inverse
    chunks = np.where(table.vpp > 1, table.pp * (1.0 - 1.0 / table.vpp), 0.0)
    rooms = []
    for first, whole in (
        (stages.first_forward[pair], stages.slowest_forward[pair]),
        (stages.first_backward[pair], stages.slowest_backward[pair]),
    ):
        piped = np.maximum(first, chunks * whole)
        rooms.append(np.where(always | (table.pp == 1), whole, piped))
    return rooms[0], rooms[1]


def optimizer_seconds(job: Job, table: LayoutTable, stages: StageCosts, prices: Prices) -> Floats:
    """Memory traffic of clipping, updating and casting, on this rank's share."""
    if prices.frozen:
        return np.zeros(len(table))
    pair = stages.inverse
    shares = np.where(table.zero_stage >= 1, table.shard_group, 1)
    experts = np.maximum(table.shard_group // table.ep, 1)
    expert_shares = np.where(table.zero_stage >= 1, experts, 1)
    owned = stages.dense_parameters[pair] / shares + stages.expert_parameters[pair] / expert_shares
    state = OPTIMIZER_STATE_BYTES[job.optimizer] / OPTIMIZER_STATE_BYTES["adamw"]
    moved = owned * prices.step.optimizer_bytes * (1.0 - MOMENT_SHARE + MOMENT_SHARE * state)
    return memory_bound_seconds(
        moved, launches=0, device=prices.cluster.device, constants=prices.kernels
    )


def host_seconds(table: LayoutTable, prices: Prices) -> Floats:
    """Python of every microbatch and of every step that no kernel hides."""
    constants = prices.step
    per_step = constants.host_step_seconds + prices.framework.host_seconds_per_step
    total = constants.host_microbatch_seconds * table.microbatches + per_step
    return np.asarray(total / prices.host_rate, float)


def timeout_seconds(table: LayoutTable, cluster: Cluster) -> Floats:
    """Waits of pipelines for links that time out, where the fabric was measured to have them."""
    if cluster.pipeline_timeout_seconds <= 0:
        return np.zeros(len(table))
    nodes = table.dp * table.tp * table.pp * table.cp / cluster.devices_per_node
    late = (table.pp > 1) & (nodes >= cluster.pipeline_timeout_nodes)
    lost = late * cluster.pipeline_timeout_seconds * table.microbatches
    return np.asarray(lost, np.float64)
