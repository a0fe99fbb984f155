"""Learn the kernel constants of a device from timings of single kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost.kernels.constants import KernelConstants, default_constants
from planner.cost.kernels.samples import KernelSample, SampleBatches

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
    "sustained_fraction.fp32": (0.5, 0.02, 1.1),
    "sustained_fraction.tf32": (0.5, 0.02, 1.1),
    "sustained_fraction.half": (0.5, 0.02, 1.1),
    "sustained_fraction.fp8": (0.5, 0.02, 1.1),
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
        device: Where they ran, or one of their generation.
        start: The default to stay near to; ``default_constants(device)`` if not given.

    Raises:
        ValueError: If there are fewer than 3 samples.
    """
    from scipy.optimize import least_squares

    if len(samples) < 3:
        raise ValueError(f"a fit needs at least 3 kernel samples, got {len(samples)}")
    start = start or default_constants(device)
    batches = SampleBatches(samples)
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
