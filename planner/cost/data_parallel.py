"""What replicas exchange: gradients, parameters, norms; and how much of it can hide."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import span
from planner.cost.comm import collective_seconds
from planner.cost.prices import Prices
from planner.cost.stages import distinct_rows
from planner.job import Job
from planner.layout_table import LayoutTable
from planner.model import Model

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Seconds of data-parallel communication on the heaviest rank, per layout."""

    reduce: Floats
    """Of all gradients once."""
    gather: Floats
    """Of all parameters once: after the optimizer (ZeRO-1, -2), or per pass (ZeRO-3)."""
    first_gather: Floats
    """Of the first layer's parameters, which nothing can hide (ZeRO-3)."""
    tied: Floats
    """Sum of the two copies of a tied embedding, first and last stage."""
    norm: Floats
    """Small all-reduce of the gradient norm over all ranks."""


def gradient_element_bytes(prices: Prices, job: Job) -> int:
    """Of one gradient as it travels: the accumulation buffer's own under mixed precision."""
    if not job.numbers.keeps_master:
        return job.numbers.parameter_bytes
    return prices.framework.reduced_gradient_bytes or prices.framework.gradient_bytes


def replicas(
    model: Model, job: Job, table: LayoutTable, prices: Prices, *,
    pair: NDArray[np.int64], dense: Floats, expert: Floats, layers: Floats,
) -> Replicas:  # fmt: skip
    """Price the exchange between replicas.

    Args:
        model: For tied embeddings.
        job: For element widths.
        table: The layouts.
        prices: Links and habits.
        pair: Which entry of the following arrays belongs to each layout.
        dense: Parameters of the heaviest rank that all its replicas hold.
        expert: Parameters of its experts, which only ``1 / ep`` of the replicas hold.
        layers: Blocks on the rank.
    """
    _, weights = distinct_rows({"dense": dense, "expert": expert, "layers": layers})
    columns: dict[str, Any] = {
        "weights": weights[pair], "dp": table.dp, "cp": table.cp, "tp": table.tp,
        "ep": table.ep, "etp": table.etp, "pp": table.pp,
        "zero": table.zero_stage, "group": table.shard_group, "order": table.order,
    }  # fmt: skip
    first, inverse = distinct_rows(columns)
    few = table.take(first)
    few_pairs = pair[first]
    given = {"dense": dense[few_pairs], "expert": expert[few_pairs], "layers": layers[few_pairs]}
    result = _price(model, job, few, prices, given)
    return Replicas(**{name: value[inverse] for name, value in result.items()})


def _price(
    model: Model, job: Job, table: LayoutTable, prices: Prices, given: dict[str, Any]
) -> dict[str, Floats]:
    gradient = gradient_element_bytes(prices, job)
    parameter = job.numbers.parameter_bytes
    whole = table.dp * table.cp
    inner = np.where(table.cp > 1, np.minimum(table.stride("cp"), table.stride("dp")),
                     table.stride("dp"))  # fmt: skip
    expert_group = np.maximum(whole * table.tp // (table.ep * table.etp), 1)
    expert_stride = inner * table.ep
    reduce = np.zeros(len(table))
    gather = np.zeros(len(table))
    for parameters, degree, stride in (
        (given["dense"], whole, inner),
        (given["expert"], expert_group, expert_stride),
    ):
        shards = np.minimum(table.shard_group, degree)
        # ZeRO-3 exchanges layer by layer: as many start-ups as layers.
        calls = np.where(
            table.zero_stage == 3, given["layers"] * prices.framework.gathers_per_layer, 1
        )
        once, again = _exchange(
            parameters * gradient / calls, parameters * parameter / calls, degree=degree,
            shards=shards, stride=stride, table=table, prices=prices,
        )  # fmt: skip
        once, again = calls * once, calls * again
        reduce += once
        gather += again
    tied = np.zeros(len(table))
    if model.tied and prices.framework.counts_both_embeddings:
        piece = model.vocabulary * model.hidden * gradient / table.tp
        ends = table.stride("pp") * np.maximum(table.pp - 1, 1)
        tied = np.where(
            table.pp > 1, _call("all_reduce", piece, np.minimum(table.pp, 2), ends, prices), 0.0
        )
    world = table.dp * table.tp * table.pp * table.cp
    return {
        "reduce": reduce,
        "gather": gather,
        "first_gather": gather / np.maximum(given["layers"], 1),
        "tied": tied,
        "norm": _call("all_reduce", 8.0, world, np.ones_like(world), prices),
    }


def _exchange(
    gradient_bytes: Floats, parameter_bytes: Floats, *, degree: Any, shards: Any, stride: Any,
    table: LayoutTable, prices: Prices,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Seconds to reduce gradients and to gather parameters, once each.

    ZeRO shards over ``shards`` neighbours and sums the shards over the rest (HSDP).
    """
    plain = table.zero_stage == 0
    scatters = ~plain
    if not prices.framework.zero1_scatters_gradients:
        scatters = scatters & (table.zero_stage > 1)
    everyone = _call("all_reduce", gradient_bytes, degree, stride, prices)
    inside = _call("reduce_scatter", gradient_bytes, shards, stride, prices)
    outside = _call(
        "all_reduce", gradient_bytes / np.maximum(shards, 1), degree // np.maximum(shards, 1),
        stride * shards, prices,
    )  # fmt: skip
    gathered = _call("all_gather", parameter_bytes, shards, stride, prices)
    reduce = np.where(scatters, inside + np.where(shards < degree, outside, 0.0), everyone)
    if prices.frozen:
        reduce = np.zeros_like(reduce)
    return reduce, np.where(plain, 0.0, gathered)


def _call(kind: Any, size: Any, degree: Any, stride: Any, prices: Prices) -> Floats:
    if not np.any((np.asarray(degree) > 1) & (np.asarray(size) > 0)):
        return np.zeros(np.broadcast(degree, size).shape)
    lies = span(prices.cluster, degree=np.maximum(degree, 1), stride=np.maximum(stride, 1))
    return collective_seconds(
        kind, size, span=lies, cluster=prices.cluster, constants=prices.communication
    )
