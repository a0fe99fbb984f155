"""Forward and backward of one microbatch on every stage: device, communication, host.

A pass lasts as long as the longer of what the device does and what the host needs to issue
it; what backward recomputes counts with backward.
"""

import numpy as np
from numpy.typing import NDArray

from planner.cost.blocks import INDEX
from planner.cost.prices import Prices
from planner.cost.stage_kinds import StageKinds
from planner.layout_table import RECOMPUTES, LayoutTable

Floats = NDArray[np.float64]
Fields = dict[str, Floats]
AXES = ("tp", "cp", "ep")


def stage_passes(
    unlike: StageKinds,
    costs: Floats,
    *,
    pairs: LayoutTable,
    vpp: int,
    stall: Floats,
    prices: Prices,
) -> Fields:
    """Seconds of every kind of stage, (stages, pairs): totals ``F``, ``I``, ``W`` and parts.

    Args:
        unlike: The unlike stages of one split, with their blocks.
        costs: (kinds of block, fields, pairs).
        pairs: Recomputation and degrees of each pair.
        vpp: Chunks per rank.
        stall: Measured delay per layer where the pipeline crosses a fabric that stalls.
        prices: Habits and constants.
    """
    blocks = unlike.blocks
    layers = blocks[:, 1:-1]
    field = _sum_fields(blocks, costs)
    again = _recomputed(_sum_fields(layers, costs[1:-1]), layers, vpp, pairs, prices)
    sent, sent_again = _visible(field, again, prices)
    forward = field["forward"] + sum(sent[f"{axis}_forward"] for axis in AXES)
    input_gradient = (
        field["input_gradient"]
        + sum(sent[f"{axis}_backward"] for axis in AXES)
        + again["compute"]
        + sum(sent_again.values())
    )
    weight_gradient = field["weight_gradient"]
    host = _host(field, again, pairs, prices)
    if prices.framework.captures_graphs:
        host = (0.0 * host[0], 0.0 * host[1])
    late = layers.sum(1, keepdims=True) * stall / 2.0
    host_forward = np.maximum(host[0] + late - forward, 0.0)
    host_backward = np.maximum(host[1] + late - input_gradient - weight_gradient, 0.0)
    return {
        "F": forward + host_forward,
        "I": input_gradient + host_backward,
        "W": weight_gradient,
        "forward": field["forward"],
        "backward": field["input_gradient"] + weight_gradient,
        "recompute": again["compute"],
        **{axis: sent[f"{axis}_forward"] + sent[f"{axis}_backward"] + sent_again[axis]
           for axis in AXES},
        "host": host_forward + host_backward,
        "dense_parameters": field["dense_parameters"],
        "expert_parameters": field["expert_parameters"],
        "layers": np.broadcast_to(blocks.sum(1, keepdims=True).astype(float), forward.shape),
    }  # fmt: skip


def _visible(field: Fields, again: Fields, prices: Prices) -> tuple[Fields, Fields]:
    """Communication that is left to see, of both passes and of what backward runs again.

    Tensor-parallel communication hides behind the products beside it, but not longer than
    they last: in backward an asynchronous all-reduce behind the weight gradient.
    """
    habits = prices.framework
    buffers, asynchronous = habits.overlaps_tensor_parallel, habits.overlaps_tensor_backward
    experts = 1 - habits.overlaps_expert_parallel

    def beside(sent: Floats, products: Floats) -> Floats:
        return sent - buffers * np.minimum(sent, products)

    backward = beside(field["tp_backward"], field["input_gradient"])
    sent = {
        "tp_forward": beside(field["tp_forward"], field["forward"]),
        "tp_backward": backward - asynchronous * np.minimum(backward, field["weight_gradient"]),
        "cp_forward": field["cp_forward"],
        "cp_backward": field["cp_backward"],
        "ep_forward": experts * field["ep_forward"],
        "ep_backward": experts * field["ep_backward"],
    }
    sent_again = {
        "tp": beside(again["tp"], again["compute"]),
        "cp": again["cp"],
        "ep": experts * again["ep"],
    }
    return sent, sent_again


def _sum_fields(counts: NDArray[np.int64], costs: Floats) -> Fields:
    """Fields of blocks, summed over each stage: (stages, pairs) by name."""
    values = np.einsum("sk,kfn->fsn", counts.astype(float), costs)
    return {name: values[index] for name, index in INDEX.items()}


def _recomputed(
    layers: Fields, counts: NDArray[np.int64], vpp: int, pairs: LayoutTable, prices: Prices
) -> Fields:
    """What backward runs again: whole layers, some of them, or the attention core."""
    of_rank = np.maximum(counts.sum(1, keepdims=True) * vpp, 1)
    limit = pairs.recompute_layers
    share = np.where(limit > 0, np.minimum(limit / of_rank, 1.0), 1.0)
    full = np.where(pairs.recompute == RECOMPUTES.index("full"), share, 0.0)
    selective = np.where(pairs.recompute == RECOMPUTES.index("selective"), 1.0, 0.0)
    if prices.framework.selective_recompute == "half":
        full, selective = full + 0.5 * selective, 0.0 * selective
    return {
        "full": full,
        "compute": full * layers["forward"] + selective * layers["core_forward"],
        "launches": full * layers["forward_launches"] + selective * layers["core_launches"],
        **{axis: full * layers[f"{axis}_forward"] for axis in ("tp", "cp", "ep")},
    }


def _host(
    field: Fields, again: Fields, pairs: LayoutTable, prices: Prices
) -> tuple[Floats, Floats]:
    """Host seconds of the forward and of the backward pass: kernels to issue, Python of layers.

    Every collective of a tensor-parallel group waits for the slowest of its processes, so
    that the time grows with their number.
    """
    step, per_layer = prices.step, prices.framework.host_seconds_per_layer
    growth = (1.0 + step.host_rank_growth * (pairs.tp - 1)) / prices.host_rate
    python = per_layer * field["host_layers"]
    issue = step.host_operation_seconds
    forward = issue * field["forward_launches"] + python
    backward = issue * (field["backward_launches"] + again["launches"])
    return growth * forward, growth * (backward + python * (1.0 + again["full"]))
