"""How far an estimate may be off, from public runs, and whether a layout fits."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from planner.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What is kept free, as a share of the estimate."""

    quantile: float
    """Share of public runs that stay within estimate and margin."""
    share: float


@cache
def load_margin() -> Margin:
    """The margin that ``benchmarks/memory.py`` derived from its error distribution."""
    path = files("planner").joinpath("presets", "memory_margin.toml")
    return Margin(**tomllib.loads(path.read_text(encoding="utf-8")))


def fits(device_bytes: Array, capacity_bytes: float) -> Array:
    """Whether an estimate of a device's whole use is within its capacity.

    >>> bool(fits(79e9, 80e9))
    True
    """
    return np.asarray(device_bytes) <= capacity_bytes


def fits_safely(device_bytes: Array, capacity_bytes: float) -> Array:
    """The same with the margin kept free: what a recommendation should satisfy.

    >>> bool(fits_safely(79e9, 80e9))
    False
    """
    return np.asarray(device_bytes) * (1 + load_margin().share) <= capacity_bytes
