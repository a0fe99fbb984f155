"""Seconds of one block (embedding, layer, head) for one microbatch, from its op list.

Each op is priced by the kernel that runs it, each collective by the span of its group. The
result is one number per field and per distinct shard, so that stages are plain sums.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import span
from planner.cost import compute
from planner.cost.comm import collective_seconds, send_recv_seconds
from planner.cost.op_seconds import op_seconds
from planner.cost.prices import Prices
from planner.model import Bottleneck, Experts, TransformerLayer
from planner.model.core import Block
from planner.ops import Attention, Collective, Gemm, MemoryBound, Shard

Floats = NDArray[np.float64]

FIELDS = (
    "forward",
    "input_gradient",
    "weight_gradient",
    "core_forward",
    "tp_forward",
    "tp_backward",
    "cp_forward",
    "cp_backward",
    "ep_forward",
    "ep_backward",
    "forward_launches",
    "backward_launches",
    "core_launches",
    "host_layers",
    "dense_parameters",
    "expert_parameters",
)
"""Seconds by part and pass; kernels to launch; layers as the host sees them; parameters."""
INDEX = {name: i for i, name in enumerate(FIELDS)}


EXPERT_HOST_LAYERS = 2.0
"""Routing, sorting, permuting and exchanging tokens has as many calls as the rest of a layer."""

MERGED_BYTES = 10.0
"""Per element: accumulator read and written in 32 bits, the new part read in 16."""


def block_seconds(block: Block, shard: Shard, strides: dict[str, Any], prices: Prices) -> Floats:
    """All fields of one block, shape (fields, shards).

    Args:
        block: Any block of a model.
        shard: Distinct shards, as arrays.
        strides: Distance in ranks between neighbours of each axis, per shard.
        prices: Device, links, constants and habits.
    """
    size = np.broadcast(*(np.asarray(getattr(shard, n)) for n in ("microbatch", "tp", "cp", "ep")))
    result = np.zeros((len(FIELDS), size.size))
    result[INDEX["host_layers"]] = _host_layers(block)
    core = np.zeros((2, size.size))
    ring = np.zeros((2, size.size))
    for op in block.ops(shard, prices.implementation):
        if isinstance(op, Collective):
            _add_collective(result, ring, op=op, shard=shard, strides=strides, prices=prices)
            continue
        passes, launches = op_seconds(op, prices)
        if isinstance(op, Attention):
            passes = _with_merging(op, passes, shard, prices)
        scale = prices.step.expert_imbalance if op.group == "experts" else 1.0
        if not isinstance(op, MemoryBound):
            wide = isinstance(op, Attention) or op.group in ("head", "router")
            scale = scale / prices.device_rate(prices.wide_dtype if wide else prices.dtype)
        if prices.frozen and isinstance(op, Gemm) and op.weight:
            passes = (passes[0], passes[1], 0.0)
        for name, seconds in zip(("forward", "input_gradient", "weight_gradient"), passes,
                                 strict=True):  # fmt: skip
            result[INDEX[name]] += scale * seconds
        result[INDEX["forward_launches"]] += launches[0]
        result[INDEX["backward_launches"]] += launches[1]
        if op.group == "core_attention":
            core[0] += passes[0]
            core[1] += passes[1]
            result[INDEX["core_launches"]] += launches[0]
        kind = "expert_parameters" if op.expert else "dense_parameters"
        result[INDEX[kind]] += op.parameters
    if prices.framework.separate_accumulation and not prices.frozen:
        owned = result[INDEX["dense_parameters"]] + result[INDEX["expert_parameters"]]
        # Written in 16 bits, read again, added to a float32 number that is read and written.
        result[INDEX["weight_gradient"]] += compute.memory_bound_seconds(
            10.0 * owned, launches=0, device=prices.cluster.device, constants=prices.kernels
        )
    result[INDEX["core_forward"]] = core[0]
    # A ring passes keys on while it computes with those it has.
    result[INDEX["cp_forward"]] += np.maximum(ring[0] - core[0], 0.0)
    result[INDEX["cp_backward"]] += np.maximum(ring[1] - core[1], 0.0)
    return result


def _host_layers(block: Block) -> float:
    """How many dense layers the host's Python for this block is worth."""
    if not isinstance(block, TransformerLayer | Bottleneck):
        return 0.0
    routed = isinstance(getattr(block, "feed_forward", None), Experts)
    return EXPERT_HOST_LAYERS if routed else 1.0


def _with_merging(op: Attention, passes: Any, shard: Shard, prices: Prices) -> Any:
    """Add what ring attention pays for merging partial results.

    Every step but the first reads and writes a float32 accumulator and reads the new part
    (Liu et al. 2023, section 3); in backward the gradients of Q, K and V instead of the output.
    """
    steps = np.where(np.asarray(shard.ulysses), 0, np.asarray(shard.cp) - 1)
    if not np.any(steps > 0):
        return passes
    moved = MERGED_BYTES * np.asarray(op.output_elements) * steps
    once = compute.memory_bound_seconds(
        moved, launches=2 * steps, device=prices.cluster.device, constants=prices.kernels
    )
    keys = 2.0 * np.asarray(op.kv_heads) / np.asarray(op.heads)
    return passes[0] + once, passes[1] + once * (1.0 + keys), passes[2]


def _add_collective(
    result: Floats,
    ring: Floats,
    *,
    op: Collective,
    shard: Shard,
    strides: dict[str, Any],
    prices: Prices,
) -> None:
    axis = "tp" if op.axis == "etp" else op.axis
    degree = np.asarray(getattr(shard, op.axis))
    stride = strides[axis]
    for place, (bytes_sent, name) in enumerate(
        ((op.forward_bytes, "forward"), (op.backward_bytes, "backward"))
    ):
        if not np.any(np.asarray(bytes_sent) > 0):
            continue
        seconds = _call_seconds(op, bytes_sent, degree, stride, prices) * op.count
        if op.overlappable:
            ring[place] += seconds
        else:
            result[INDEX[f"{axis}_{name}"]] += seconds
        result[INDEX[f"{name}_launches"]] += np.where(np.asarray(bytes_sent) > 0, op.count, 0)


def _call_seconds(
    op: Collective, bytes_sent: Any, degree: Any, stride: Any, prices: Prices
) -> Floats:
    given: dict[str, Any] = {"cluster": prices.cluster, "constants": prices.communication}
    if op.kind == "send_recv":
        return send_recv_seconds(bytes_sent, stride=stride, degree=degree, **given)
    lies = span(prices.cluster, degree=degree, stride=stride)
    return collective_seconds(op.kind, bytes_sent, span=lies, **given)
