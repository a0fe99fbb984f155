"""What the kernel formulas need to know about a device beyond its data sheet.

The numbers are fitted per architecture generation to public timings and kept in
``planner/presets/calibrations/kernels.json`` with their sources, row counts and residuals.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, ClassVar

from planner.cluster import Device

DTYPE_CLASS = {"bf16": "half", "fp16": "half"}
"""Dtypes that run on the same units at the same share of their peak."""

DTYPE_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
DTYPE_BYTES["fp4"] = 0.5625  # four bits and one 8-bit scale for 16 values

_GENERATION_BY_CAPABILITY = {
    "6": "pascal",
    "7": "volta",
    "8": "ampere",
    "8.6": "ampere_consumer",
    "8.9": "ada",
    "9": "hopper",
    "10": "blackwell",
    "12": "blackwell_consumer",
    "gfx908": "cdna",
    "gfx90a": "cdna",
    "gfx942": "cdna",
    "gfx950": "cdna",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
    """Few physical numbers that turn a shape and a data sheet into seconds."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    generation: str
    sustained_fraction: Mapping[str, float] = field(
        default_factory=lambda: {"fp32": 0.9, "tf32": 0.8, "half": 0.85, "fp8": 0.7, "fp4": 0.6}
    )
    """Share of the data-sheet peak that a perfectly shaped matrix product holds in a long run:
    clocks fall under load. By dtype class: fp32, tf32, half, fp8, fp4."""
    joules_per_flop: float = 0.8e-12
    """Energy of one 16-bit FLOP in a matrix product on real data; a board whose power does
    not suffice for the sustained rate lowers its clocks. 8-bit FLOPs take half as much."""
    burst_gain: float = 1.05
    """Rate of short or synthetic benchmark runs over long runs on real data; what training
    costs leaves it out."""
    small_tile_rate: float = 0.8
    """Rate of a 64x64 output tile relative to a 256x128 one; 128x128 lies between."""
    k_half: float = 70.0
    """Inner dimension at which a tile spends half its time filling and draining its pipeline."""
    wave_softness: float = 0.2
    """0: the last wave of tiles costs a full wave; 1: no quantisation (overlap of kernels)."""
    split_k: float = 6000.0
    """Inner dimension from which libraries split it to fill the last wave of tiles."""
    slice_overhead: float = 400.0
    """Inner dimension that costs as much as adding up slices of a split one."""
    accumulate_rate: float = 0.95
    """Rate of a product that adds to a float32 buffer (weight gradients)."""
    grouped_rate: float = 0.9
    """Rate of a grouped product (experts) relative to a batched one of the same shape."""
    misaligned_rate: float = 0.69
    """Rate when rows of a matrix are no multiple of 16 bytes."""
    launch_seconds: float = 5.5e-6
    """Fixed time of one eager kernel on the device, gap to the next one included."""
    graph_launch_seconds: float = 2.5e-6
    """The same when kernels are replayed from a captured graph."""
    host_launch_seconds: float = 8e-6
    """Time the host needs to issue one eager operation; it bounds chains of tiny kernels."""
    memory_fraction: float = 0.86
    """Share of the data-sheet memory rate that ideal streaming holds."""
    operator_rate: float = 0.83
    """Rate of ordinary memory-bound operators (norms, activations) relative to ideal."""
    overlap_loss: float = 0.15
    """Share of the shorter of arithmetic and traffic that the longer one does not hide."""
    attention_fraction: Mapping[str, float] = field(
        default_factory=lambda: {"native": 0.75, "flash2": 0.6}
    )
    """Share of the data-sheet peak that fused attention would reach with long, wide heads:
    ``native`` kernels made for the architecture, and portable ``flash2``."""
    attention_backward_rate: float = 0.88
    """Rate of the backward kernel (2.5 times the FLOPs) relative to the forward one."""
    attention_launch_seconds: float = 12e-6
    """Fixed time of one fused attention call."""
    attention_length_half: float = 200.0
    """Keys that a block of queries costs in filling and draining its pipeline."""
    head_dim_half: float = 30.0
    """Head width at which exponentials take as long as the matrix products."""
    convolution_fraction: float = 0.7
    """Rate of a convolution relative to the matrix product of the same shape."""
    quantise_rate: float = 0.5
    """Rate of the memory-bound part of that cast relative to ideal."""
    quantise_seconds: float = 9e-6
    """Fixed time of casting the input of an 8-bit product (largest value, scale, cast)."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and value < 0:
                raise ValueError(f"kernel constants {self.generation}: {item.name} is negative")

    def sustained(self, dtype: str) -> float:
        """Sustained share of peak for a dtype (the nearest class if it was not fitted)."""
        name = DTYPE_CLASS.get(dtype, dtype)
        known = self.sustained_fraction
        return known.get(name, known.get("half", 0.75))

    def under(self, *, burst: bool, graph: bool) -> "KernelConstants":
        """The same device as benchmarks see it: cool, or replaying captured graphs."""
        gain = self.burst_gain if burst else 1.0
        rates = {name: rate * gain for name, rate in self.sustained_fraction.items()}
        launch = self.graph_launch_seconds if graph else self.launch_seconds
        joules = self.joules_per_flop / gain
        return replace(
            self, sustained_fraction=rates, launch_seconds=launch, joules_per_flop=joules
        )

    def sustained_flops_per_second(self, device: Device, dtype: str) -> float:
        """Rate of a perfectly shaped matrix product: clocks or power, whichever is less.

        A fourth-power mean joins the two limits without a corner.
        """
        clocks = device.peak_flops_per_second(dtype) * self.sustained(dtype)
        if device.watts <= 0 or dtype in ("fp32", "fp64"):
            return clocks
        power = device.watts / (self.joules_per_flop * DTYPE_BYTES[dtype] / 2.0)
        return (clocks**-4.0 + power**-4.0) ** -0.25


def generation_of(device: Device) -> str:
    """Architecture generation, the key of the fitted constants.

    >>> generation_of(Device(name="x", memory_bytes=1, memory_bytes_per_second=1.0,
    ...     flops_per_second={"fp32": 1.0}, compute_capability="8.0"))
    'ampere'
    """
    if device.kind != "gpu":
        return device.kind
    capability = device.compute_capability
    by_capability = _GENERATION_BY_CAPABILITY
    return by_capability.get(capability) or by_capability.get(capability.split(".")[0], "gpu")


@cache
def _fitted() -> dict[str, Any]:
    path = resources.files("planner") / "presets" / "calibrations" / "kernels.json"
    return json.loads(path.read_text(encoding="utf-8"))["generations"]


def default_constants(device: Device) -> KernelConstants:
    """Constants fitted for the device's generation, or those of a typical device of its kind."""
    fitted = _fitted()
    generation = generation_of(device)
    entry = fitted.get(generation) or fitted.get(device.kind) or fitted["gpu"]
    return KernelConstants(generation=generation, **entry["constants"])
