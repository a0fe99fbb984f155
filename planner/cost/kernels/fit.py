"""Learn the kernel constants of a device from timings of single kernels."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost.kernels.attention import attention_seconds
from planner.cost.kernels.constants import KernelConstants, default_constants
from planner.cost.kernels.convolution import convolution_seconds
from planner.cost.kernels.gemm import gemm_seconds, grouped_gemm_seconds
from planner.cost.kernels.streaming import memory_bound_seconds, traffic_seconds


def _attention_step(**given: Any) -> NDArray[np.float64]:
    """Forward and backward pass, for timings that do not tell them apart."""
    given.pop("backward")
    return attention_seconds(backward=False, **given) + attention_seconds(backward=True, **given)


_OPERATIONS = {
    "gemm": gemm_seconds,
    "grouped_gemm": grouped_gemm_seconds,
    "attention": attention_seconds,
    "attention_step": _attention_step,
    "convolution": convolution_seconds,
    "streaming": memory_bound_seconds,
    "traffic": traffic_seconds,
}

FREE_CONSTANTS = {
    "burst_gain": (0.1, 1.0, 2.0),
    "small_tile_rate": (0.3, 0.3, 1.0),
    "k_half": (0.7, 1.0, 2000.0),
    "wave_softness": (0.5, 0.02, 1.0),
    "split_k": (0.5, 500.0, 1e5),
    "slice_overhead": (0.7, 1.0, 1e4),
    "accumulate_rate": (0.1, 0.5, 1.0),
    "grouped_rate": (0.2, 0.3, 1.0),
    "launch_seconds": (0.7, 1e-7, 1e-3),
    "graph_launch_seconds": (0.7, 1e-7, 1e-3),
    "host_launch_seconds": (0.5, 1e-7, 1e-3),
    "memory_fraction": (0.2, 0.05, 1.0),
    "operator_rate": (0.3, 0.2, 1.0),
    "overlap_loss": (0.7, 0.01, 1.0),
    "attention_fraction.native": (0.4, 0.05, 1.5),
    "attention_fraction.flash2": (0.4, 0.05, 1.5),
    "attention_backward_rate": (0.3, 0.3, 1.5),
    "attention_launch_seconds": (0.7, 1e-7, 1e-3),
    "attention_length_half": (0.7, 1.0, 3000.0),
    "head_dim_half": (0.7, 1.0, 300.0),
    "convolution_fraction": (0.4, 0.1, 1.2),
    "quantise_rate": (0.4, 0.1, 1.0),
    "quantise_seconds": (0.7, 1e-7, 1e-3),
    "joules_per_flop": (0.5, 1e-14, 1e-10),
    "sustained_fraction.fp32": (0.5, 0.02, 1.2),
    "sustained_fraction.tf32": (0.5, 0.02, 1.2),
    "sustained_fraction.half": (0.5, 0.02, 1.2),
    "sustained_fraction.fp8": (0.5, 0.02, 1.2),
}
"""Free constants: spread of the prior in logarithms, least and greatest value."""
_CPU_PRIORS = {
    "launch_seconds": (2.0, 1e-8, 1e-2),
    "memory_fraction": (2.0, 1e-3, 50.0),
    "attention_fraction.native": (2.0, 1e-3, 50.0),
    "attention_launch_seconds": (2.0, 1e-8, 1e-2),
    "sustained_fraction.fp32": (2.0, 1e-3, 50.0),
    "sustained_fraction.half": (2.0, 1e-4, 50.0),
}
"""The peak and the memory rate of a share of a CPU are guesses, so these may move far."""
_TYPICAL = KernelConstants(generation="gpu")
_PRIOR_WEIGHT = 1.0
_TYPICAL_ERROR = 0.1  # a residual of 10 % weighs as much as a prior missed by one spread


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSample:
    """One timed kernel."""

    operation: str
    """gemm, grouped_gemm, attention, convolution, streaming (one operator) or traffic (ideal)."""
    shape: Mapping[str, Any]
    """Arguments of the function that prices the operation, without device and constants."""
    seconds: float
    device: Device | None = None
    """Where it ran, if not on the device that is fitted (others of its generation)."""
    burst: bool = False
    """A short run, or one on constant data: clocks are higher than in training."""
    graph: bool = False
    """Kernels replayed from a captured graph, not launched one by one."""
    looped: bool = False
    """Issued one by one from Python: the host may have been slower than the device."""
    extra_bytes: float = 0.0
    """Memory-bound work that was timed along (copies into a cache)."""
    weight: float = 1.0
    group: str = ""
    """Who measured it."""

    def __post_init__(self) -> None:
        if self.operation not in _OPERATIONS:
            known = ", ".join(_OPERATIONS)
            raise ValueError(f"unknown operation {self.operation!r}; known are {known}")
        if not self.seconds > 0:
            raise ValueError(f"a kernel takes positive time, got {self.seconds}")


def predict_seconds(
    samples: Sequence[KernelSample],
    constants: KernelConstants,
    device: Device,
) -> NDArray[np.float64]:
    """Seconds of every sample, priced together by operation and device."""
    return _Batches(samples, device).seconds(constants)


class _Batches:
    """Samples stacked into arrays, so that a fit prices them in a few calls."""

    def __init__(self, samples: Sequence[KernelSample], device: Device) -> None:
        rows: dict[Any, list[int]] = defaultdict(list)
        devices: dict[str, Device] = {}
        for index, sample in enumerate(samples):
            where = sample.device or device
            devices[where.name] = where
            condition = (sample.burst, sample.graph, sample.looped)
            rows[(sample.operation, where.name, condition, *_fixed(sample.shape))].append(index)
        self.size = len(samples)
        self.extra_bytes = np.array([sample.extra_bytes for sample in samples])
        self.batches = []
        for (operation, name, condition, *_), indices in rows.items():
            first = samples[indices[0]].shape
            arguments = {
                key: value
                if isinstance(value, bool | str)
                else np.array([samples[i].shape[key] for i in indices], np.float64)
                for key, value in first.items()
            }
            self.batches.append(
                (_OPERATIONS[operation], arguments, devices[name], condition, indices)
            )

    def seconds(self, constants: KernelConstants) -> NDArray[np.float64]:
        result = np.empty(self.size)
        for price, arguments, device, (burst, graph, looped), indices in self.batches:
            now = constants.under(burst=burst, graph=graph)
            seconds = price(**arguments, device=device, constants=now)
            floor = constants.host_launch_seconds if looped else 0.0
            result[indices] = np.maximum(seconds, floor)
            result[indices] += self.extra_bytes[indices] / (
                device.memory_bytes_per_second * now.memory_fraction
            )
        return result


def _fixed(shape: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return tuple(
        (key, value if isinstance(value, bool | str) else None)
        for key, value in sorted(shape.items())
    )


def fit_kernels(
    samples: Sequence[KernelSample],
    device: Device,
    *,
    start: KernelConstants | None = None,
) -> KernelConstants:
    """Constants that explain the samples best, held near a physical default.

    Robust least squares (soft l1) of the logarithm of predicted over measured, plus a prior
    on the logarithm of each constant; constants that no sample depends on keep the default.

    Args:
        samples: Timed kernels; 20 to 60 are enough for one device.
        device: Where they ran.
        start: The default to stay near to; ``default_constants(device)`` if not given.

    Raises:
        ValueError: If there are fewer than 3 samples.
    """
    from scipy.optimize import least_squares

    if len(samples) < 3:
        raise ValueError(f"a fit needs at least 3 kernel samples, got {len(samples)}")
    start = start or default_constants(device)
    batches = _Batches(samples, device)
    measured = np.log([sample.seconds for sample in samples])
    scale = np.sqrt([sample.weight for sample in samples]) / _TYPICAL_ERROR
    priors = FREE_CONSTANTS | (_CPU_PRIORS if device.kind == "cpu" else {})
    spread, low, high = np.array(list(priors.values())).T
    low, high = np.log(low), np.log(high)
    center = np.clip(
        np.log([_get(start, name) for name in FREE_CONSTANTS]), low + 1e-6, high - 1e-6
    )

    def unpack(point: NDArray[np.float64]) -> KernelConstants:
        return _with(start, dict(zip(FREE_CONSTANTS, map(float, np.exp(point)), strict=True)))

    def residuals(point: NDArray[np.float64]) -> NDArray[np.float64]:
        error = np.log(batches.seconds(unpack(point))) - measured
        soft = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + (error * scale) ** 2) - 1))
        return np.concatenate([soft, _PRIOR_WEIGHT * (point - center) / spread])

    found = least_squares(residuals, center, bounds=(low, high), x_scale=spread)
    return _rounded(unpack(found.x))


def _get(constants: KernelConstants, name: str) -> float:
    head, _, key = name.partition(".")
    value = getattr(constants, head)
    typical = getattr(_TYPICAL, head)
    return value.get(key, typical[key]) if key else value


def _with(constants: KernelConstants, values: Mapping[str, float]) -> KernelConstants:
    """Constants with some values changed; ``mapping.key`` names one entry of a mapping."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        head, _, key = name.partition(".")
        if key:
            changes[head] = {**changes.get(head, getattr(constants, head)), key: value}
        else:
            changes[head] = value
    return replace(constants, **changes)


def _rounded(constants: KernelConstants) -> KernelConstants:
    """Four digits: more would pretend to a precision that timings do not have."""
    digits = {name: float(f"{_get(constants, name):.4g}") for name in FREE_CONSTANTS}
    return _with(constants, digits)


def median_constants(fitted: Sequence[KernelConstants]) -> KernelConstants:
    """Constants of a typical device: the median of each over fitted generations.

    Raises:
        ValueError: If there is nothing to take the median of.
    """
    if not fitted:
        raise ValueError("the median of no constants is not defined")
    values = {
        name: float(np.median([_get(one, name) for one in fitted])) for name in FREE_CONSTANTS
    }
    return _rounded(_with(replace(fitted[0], generation="gpu"), values))
