"""What the kernel formulas need to know about a device beyond its data sheet.

The numbers are fitted per architecture generation to public timings and kept in
``planner/presets/calibrations/kernels.json`` with their sources, row counts and residuals.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
        default_factory=lambda: {"fp32": 0.85, "tf32": 0.8, "half": 0.8, "fp8": 0.7, "fp4": 0.7}
    )
    """Share of the data-sheet peak that a perfectly shaped matrix product holds: clocks fall
    under load. By dtype class: fp32, tf32, half, fp8, fp4."""
    small_tile_rate: float = 0.7
    """Rate of a 64x64 output tile relative to a 256x128 one; 128x128 lies between."""
    k_half: float = 100.0
    """Inner dimension at which a tile spends half its time filling and draining its pipeline."""
    wave_softness: float = 0.3
    """0: the last wave of tiles costs a full wave; 1: no quantisation (stream-K, overlap)."""
    launch_seconds: float = 4e-6
    """Fixed time of one kernel on the device, gap to the next one included."""
    host_launch_seconds: float = 8e-6
    """Time the host needs to issue one eager operation; it bounds chains of tiny kernels."""
    memory_fraction: float = 0.82
    """Share of the data-sheet memory rate that streaming kernels hold."""
    overlap_loss: float = 0.3
    """Share of the shorter of arithmetic and traffic that the longer one does not hide."""
    attention_fraction: float = 0.8
    """Rate of fused attention relative to the sustained matrix rate, long and wide heads."""
    attention_backward_rate: float = 0.8
    """Rate of the backward kernel (2.5 times the FLOPs) relative to the forward one."""
    head_dim_half: float = 30.0
    """Head width at which exponentials take as long as the matrix products."""
    convolution_fraction: float = 0.7
    """Rate of a convolution relative to the matrix product of the same shape."""
    quantise_passes: float = 1.0
    """Passes over the inputs of an 8-bit product that casting and scaling them costs."""

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
