"""From blocks to pipeline ranks: the seconds of one microbatch on every stage.

All of it depends only on the split, the shard, the recomputation and the strides, so the
many layouts that differ in nothing else share one row (a *pair*).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.blocks import block_seconds
from planner.cost.passes import stage_passes
from planner.cost.prices import Prices
from planner.cost.stage_kinds import StageKinds, stage_kinds
from planner.distinct import distinct_rows as distinct
from planner.job import Job
from planner.layout_table import LayoutTable
from planner.model import Embedding, Head, Model
from planner.ops import Shard

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHARD_NAMES = ("tp", "sequence_parallel", "cp", "ulysses", "ep", "etp", "microbatch", "fused_loss")
STRIDED = ("tp", "cp", "dp")
PARTS = ("forward", "backward", "recompute", "tp", "cp", "ep", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """One entry per distinct pair; ``inverse`` leads from layouts to pairs."""

    inverse: Integers
    parts: dict[str, Floats]
    """Seconds of one microbatch on the slowest rank, by ``PARTS``."""
    forward_sum: Floats
    """Over all stages of the pipeline."""
    backward_sum: Floats
    slowest_forward: Floats
    """Of the slowest rank, all its chunks."""
    slowest_backward: Floats
    weight_gradient: Floats
    """Part of ``slowest_backward`` that nobody waits for."""
    mean_sum: Floats
    """Forward and backward of an average rank."""
    first_forward: Floats
    """Of the first stage: what a gather of its parameters can hide behind."""
    first_backward: Floats
    """Of the first stage: its last backward hides what its gradients' reduction can."""
    dense_parameters: Floats
    """Of the heaviest rank."""
    expert_parameters: Floats
    slowest_layers: Floats
    """Blocks on the slowest rank, for costs that come once per layer."""
    stage_forward: tuple[Floats, ...]
    """Per split: (kinds of stages, its pairs), for the timeline."""
    stage_input_gradient: tuple[Floats, ...]
    stage_weight_gradient: tuple[Floats, ...]
    kind_of_stage: tuple[Integers, ...]
    """Per split: which of its kinds every stage is."""
    place: Integers
    """Of each pair among the pairs of its split."""
    split: Integers

    def passes(self, split: int, place: Any) -> tuple[Floats, Floats, Floats]:
        """Forward, input and weight gradient of every stage, for some pairs of one split."""
        kinds = self.kind_of_stage[split]
        return (
            self.stage_forward[split][:, place][kinds],
            self.stage_input_gradient[split][:, place][kinds],
            self.stage_weight_gradient[split][:, place][kinds],
        )


def distinct_rows(columns: Mapping[str, NDArray[Any]]) -> tuple[Integers, Integers]:
    """First index of each distinct row, and for each row its distinct one."""
    return distinct(columns.values())


def stage_costs(model: Model, job: Job, table: LayoutTable, prices: Prices) -> StageCosts:
    """Price every distinct pair of a table."""
    columns = {name: np.asarray(getattr(table, name), np.int64) for name in SHARD_NAMES}
    strides = {f"stride_{axis}": table.stride(axis) for axis in STRIDED}  # type: ignore[arg-type]
    # Strides matter only where the axis is used.
    strides["stride_tp"] = np.where(table.tp > 1, strides["stride_tp"], 1)
    strides["stride_cp"] = np.where(table.cp > 1, strides["stride_cp"], 1)
    strides["stride_dp"] = np.where(table.ep > 1, strides["stride_dp"], 1)
    first, to_shard = distinct_rows({**columns, **strides})
    costs = _kind_costs(model, job, {n: c[first] for n, c in columns.items()},
                        {n: c[first] for n, c in strides.items()}, prices)  # fmt: skip
    stalls = _crosses_fabric(table, prices)
    pair_first, inverse = distinct_rows(
        {"shard": to_shard, "split": table.split, "recompute": table.recompute,
         "layers": table.recompute_layers, "stalls": stalls}
    )  # fmt: skip
    chosen = table.take(pair_first)
    stall = stalls[pair_first] * _stall_seconds(chosen, prices)
    return _sum_stages(
        model, chosen, costs, shard=to_shard[pair_first], inverse=inverse, stall=stall,
        prices=prices,
    )  # fmt: skip


def _crosses_fabric(table: LayoutTable, prices: Prices) -> Integers:
    """1 where a pipeline leaves the node."""
    reach = table.stride("pp") * table.pp
    return ((table.pp > 1) & (reach > prices.cluster.devices_per_node)).astype(np.int64)


def _stall_seconds(table: LayoutTable, prices: Prices) -> Floats:
    """Delay of one layer and microbatch where the fabric was measured to stall pipelines."""
    cluster = prices.cluster
    per_rank = cluster.pipeline_stall_rank_seconds * table.tp**1.5
    return np.asarray(cluster.pipeline_stall_seconds + per_rank, np.float64)


def _kind_costs(
    model: Model, job: Job, columns: dict[str, Integers], strides: dict[str, Integers],
    prices: Prices,
) -> Floats:  # fmt: skip
    """(kinds, fields, shards): embedding, each layer kind, head."""
    shard = Shard(
        sequence_length=job.sequence_length, microbatch=columns["microbatch"], tp=columns["tp"],
        sequence_parallel=columns["sequence_parallel"].astype(bool), cp=columns["cp"],
        ulysses=columns["ulysses"].astype(bool), ep=columns["ep"], etp=columns["etp"],
    )  # fmt: skip
    lies = {
        "tp": strides["stride_tp"],
        "cp": strides["stride_cp"],
        # Expert groups are the innermost replicas, context-parallel ones first.
        "ep": np.where(columns["cp"] > 1, np.minimum(strides["stride_cp"], strides["stride_dp"]),
                       strides["stride_dp"]),
    }  # fmt: skip
    blocks = [_padded(b, prices) for b in (model.embedding, *model.layer_kinds, model.head)]
    costs = np.stack([block_seconds(block, shard, lies, prices) for block in blocks])
    if columns["fused_loss"].any() and not prices.implementation.fused_loss:
        fused = replace(prices, implementation=replace(prices.implementation, fused_loss=True))
        head = block_seconds(blocks[-1], shard, lies, fused)
        costs[-1] = np.where(columns["fused_loss"].astype(bool), head, costs[-1])
    return costs


def _padded(block: Any, prices: Prices) -> Any:
    """The block with its vocabulary as the framework pads it."""
    multiple = prices.framework.vocabulary_multiple
    if multiple > 1 and isinstance(block, Embedding | Head):
        return replace(block, vocabulary=-(-block.vocabulary // multiple) * multiple)
    return block


def _sum_stages(
    model: Model, pairs: LayoutTable, costs: Floats, *, shard: Integers, inverse: Integers,
    stall: Floats, prices: Prices,
) -> StageCosts:  # fmt: skip
    """Split by split: passes of every stage, then the slowest rank of each pair."""
    size = len(pairs)
    names = ("forward_sum", "backward_sum", "slowest_forward", "slowest_backward",
             "weight_gradient", "mean_sum", "first_forward", "first_backward",
             "dense_parameters", "expert_parameters", "slowest_layers")  # fmt: skip
    out = {name: np.zeros(size) for name in names}
    parts = {name: np.zeros(size) for name in PARTS}
    per_stage: list[list[Floats]] = [[], [], []]
    kinds: list[Integers] = []
    none = np.zeros(0, np.int64)
    place = np.zeros(size, np.int64)
    for code, split in enumerate(pairs.splits):
        rows = np.flatnonzero(pairs.split == code)
        if not len(rows):
            kinds.append(none)
            for kept in per_stage:
                kept.append(np.zeros((0, 0)))
            continue
        place[rows] = np.arange(len(rows))
        unlike = stage_kinds(split, model)
        kinds.append(unlike.of_stage)
        stages = stage_passes(
            unlike, costs[:, :, shard[rows]], pairs=pairs.take(rows), vpp=split.vpp,
            stall=stall[rows], prices=prices,
        )  # fmt: skip
        for kept, name in zip(per_stage, ("F", "I", "W"), strict=True):
            kept.append(stages[name])
        _reduce(unlike, stages, rows, out, parts)
    return StageCosts(
        inverse=inverse, parts=parts, place=place, split=pairs.split, kind_of_stage=tuple(kinds),
        stage_forward=tuple(per_stage[0]), stage_input_gradient=tuple(per_stage[1]),
        stage_weight_gradient=tuple(per_stage[2]), **out,
    )  # fmt: skip


def _reduce(
    unlike: StageKinds, stages: dict[str, Floats], rows: Integers, out: dict[str, Floats],
    parts: dict[str, Floats],
) -> None:  # fmt: skip
    """Fold virtual stages into ranks and keep the slowest one."""
    members = unlike.ranks.astype(float)
    ranks = {name: members @ value for name, value in stages.items()}
    backward = stages["I"] + stages["W"]
    total = ranks["F"] + ranks["I"] + ranks["W"]
    pick = (total.argmax(0), np.arange(len(rows)))
    same = unlike.same_ranks.astype(float)
    first = unlike.of_stage[0]
    out["forward_sum"][rows] = same @ ranks["F"]
    out["backward_sum"][rows] = same @ (ranks["I"] + ranks["W"])
    out["slowest_forward"][rows] = ranks["F"][pick]
    out["slowest_backward"][rows] = (ranks["I"] + ranks["W"])[pick]
    out["weight_gradient"][rows] = ranks["W"][pick]
    out["mean_sum"][rows] = same @ total / same.sum()
    out["first_forward"][rows] = stages["F"][first]
    out["first_backward"][rows] = backward[first]
    out["dense_parameters"][rows] = ranks["dense_parameters"].max(0)
    out["expert_parameters"][rows] = ranks["expert_parameters"].max(0)
    out["slowest_layers"][rows] = ranks["layers"][pick]
    for name in PARTS:
        parts[name][rows] = ranks[name][pick]
