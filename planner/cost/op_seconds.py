"""Seconds of one op by the kernel that runs it, and the kernels that the host launches."""

from collections.abc import Callable
from typing import Any

from planner.cost import compute
from planner.cost.prices import Prices
from planner.ops import Attention, Convolution, Gemm, MemoryBound, Op


def op_seconds(op: Op, prices: Prices) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
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
    more = prices.elementwise_traffic
    on_cpu = prices.cluster.device.kind == "cpu"
    forward, backward = (
        compute.memory_bound_seconds(
            (composed if on_cpu and composed else more) * moved, launches=launches, **given
        )
        for moved, launches, composed in (
            (op.forward_bytes, op.forward_launches, op.composed_forward),
            (op.backward_bytes, op.backward_launches, op.composed_backward),
        )
    )
    return (forward, backward, 0.0), (op.forward_launches, op.backward_launches)


_PRICES: dict[type[Op], Callable[..., Any]] = {
    Gemm: _gemm,
    Attention: _attention,
    Convolution: _convolution,
    MemoryBound: _memory,
}
