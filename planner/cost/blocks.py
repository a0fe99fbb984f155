"""Seconds of one block (embedding, layer, head) for one microbatch, from its op list.

Each op is priced by the kernel that runs it, each collective by the span of its group. The
result is one number per field and per distinct shard, so that stages are plain sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.calibration import StepConstants
from planner.cluster import Cluster, span
from planner.cost import compute
from planner.cost.comm import CommunicationConstants, collective_seconds, send_recv_seconds
from planner.cost.compute import KernelConstants
from planner.framework import Framework
from planner.model import Bottleneck, Experts, TransformerLayer
from planner.model.core import Block
from planner.ops import (
    Attention,
    Collective,
    Convolution,
    Gemm,
    Implementation,
    MemoryBound,
    Op,
    Shard,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All that pricing a block needs beside the shard."""

    cluster: Cluster
    kernels: KernelConstants
    communication: CommunicationConstants
    step: StepConstants
    framework: Framework
    implementation: Implementation
    dtype: str
    """Of matrix products; attention and the head stay at 16 bits under 8-bit recipes."""
    frozen: bool = False
    """Only small adapters train: weights get no gradient, replicas exchange next to nothing."""

    @property
    def host_rate(self) -> float:
        """Speed of the hosts that come with such devices, over that of current ones."""
        return self.step.host_rates.get(self.kernels.generation, 1.0)

    def device_rate(self, dtype: str) -> float:
        """Rate of matrix kernels inside a step over that in benchmarks.

        Benchmarks of 8-bit products count a cast that training fuses, so these have their own.
        """
        rates, generation = self.step.device_rates, self.kernels.generation
        usual = rates.get(generation, 1.0)
        narrow = dtype in ("fp8", "fp4")
        fitted = rates.get(f"{generation} {dtype}", usual) if narrow else usual
        return fitted * self.cluster.compute_rate

    @property
    def wide_dtype(self) -> str:
        """Of what an 8-bit recipe leaves in 16 bits."""
        return "bf16" if self.dtype in ("fp8", "fp4") else self.dtype


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
        passes, launches = _op_seconds(op, prices)
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


def _op_seconds(op: Op, prices: Prices) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    """(forward, input gradient, weight gradient) seconds and (forward, backward) launches."""
    for kind, price in _PRICES.items():
        if isinstance(op, kind):
            return price(op, prices)
    raise TypeError(f"no price for {type(op).__name__}")


def _gemm(op: Gemm, prices: Prices) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    dtype = prices.wide_dtype if op.group in ("head", "router") else prices.dtype
    given: dict[str, Any] = {
        "dtype": dtype,
        "device": prices.cluster.device,
        "constants": prices.kernels,
    }
    cast = dtype in ("fp8", "fp4") and not prices.framework.fused_quantise
    if not op.weight:
        once = compute.gemm_seconds(op.m, op.n, op.k, batch=op.batch, **given)
        return (once, 2.0 * once, 0.0), (1, 2)
    habits = prices.framework
    accumulate = habits.gradient_bytes == 4 and not habits.separate_accumulation
    if op.expert:
        many = {**given, "quantise": cast}
        return (
            compute.grouped_gemm_seconds(op.batch, op.m, op.n, op.k, **many),
            compute.grouped_gemm_seconds(op.batch, op.m, op.k, op.n, **many),
            compute.grouped_gemm_seconds(
                op.batch, op.n, op.k, op.m, accumulate=accumulate, **given
            ),
        ), (1, 2)
    return (
        compute.gemm_seconds(op.m, op.n, op.k, quantise=cast, **given),
        compute.gemm_seconds(op.m, op.k, op.n, quantise=cast, **given),
        compute.gemm_seconds(op.n, op.k, op.m, accumulate=accumulate, **given),
    ), ((2, 4) if cast else (1, 2))


EXPERT_HOST_LAYERS = 2.0
"""Routing, sorting, permuting and exchanging tokens has as many calls as the rest of a layer."""

MERGED_BYTES = 10.0
"""Per element: accumulator read and written in 32 bits, the new part read in 16."""

_LIBRARIES = {
    "native": ("native", (1.0, 1.0)),
    "flash2": ("flash2", (1.0, 1.0)),
    "flash1": ("flash2", (1.5, 2.0)),
}
"""Library that is priced and how much slower a pass is. FlashAttention-2 is 1.3 to 1.5 times
as fast as the Triton version in forward and twice as fast in backward (Dao 2023, section 4.1)."""


def _attention(op: Attention, prices: Prices) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    library, slower = _LIBRARIES[prices.framework.attention_library]
    passes = [
        slower[backward]
        * compute.attention_seconds(
            batch=op.batch, heads=op.heads, query_length=op.query_length,
            key_length=op.key_length, head_dim=(op.head_dim + op.value_head_dim) / 2,
            causal=op.causal, fused=op.fused, backward=backward, dtype=prices.wide_dtype,
            device=prices.cluster.device, constants=prices.kernels,
            library=library,
        )
        for backward in (False, True)
    ]  # fmt: skip
    return (passes[0], passes[1], 0.0), ((2, 3) if op.fused else (5, 8))


def _convolution(op: Convolution, prices: Prices) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    given: dict[str, Any] = {
        "batch": op.batch, "in_channels": op.in_channels, "out_channels": op.out_channels,
        "height": op.height * op.stride, "width": op.width * op.stride, "kernel": op.kernel,
        "stride": op.stride, "groups": op.groups, "dtype": prices.dtype,
        "device": prices.cluster.device, "constants": prices.kernels,
    }  # fmt: skip
    backward = compute.convolution_seconds(backward=True, **given)
    return (compute.convolution_seconds(**given), backward / 2, backward / 2), (1, 2)


def _memory(op: MemoryBound, prices: Prices) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    given: dict[str, Any] = {"device": prices.cluster.device, "constants": prices.kernels}
    more = prices.framework.elementwise_traffic
    forward, backward = (
        compute.memory_bound_seconds(more * moved, launches=launches, **given)
        for moved, launches in (
            (op.forward_bytes, op.forward_launches),
            (op.backward_bytes, op.backward_launches),
        )
    )
    return (forward, backward, 0.0), (op.forward_launches, op.backward_launches)


_PRICES: dict[type[Op], Callable[..., Any]] = {
    Gemm: _gemm,
    Attention: _attention,
    Convolution: _convolution,
    MemoryBound: _memory,
}
