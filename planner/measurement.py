"""The measurement file: what happened when a plan was executed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from planner.files import read_document, write_document

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasurement:
    """One rank's share of the step, medians over the measured steps."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    rank: int
    stage: int
    peak_bytes: int
    """Allocated: the device allocator's maximum, or tracked tensor bytes on a CPU."""
    resident_bytes: int = 0
    """Of the process (CPU) or the device (reserved); 0 if not measured."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By part: forward, backward, communication, optimizer, idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One executed plan on one machine."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    plan_digest: str
    """SHA-256 of the plan file that was run."""
    machine: str
    backend: str
    torch_version: str
    date: str
    world_size: int
    steps: int
    """Measured, after warm-up."""
    step_seconds: float
    """Median over steps of the slowest rank."""
    step_seconds_low: float
    """10th and, below, 90th percentile."""
    step_seconds_high: float
    tokens_per_second: float
    ranks: tuple[RankMeasurement, ...]
    losses: tuple[float, ...] = ()
    """Of every step, warm-up included."""
    baseline_seconds: float = 0.0
    """Step of the same job on one device; 0 if not measured."""
    collective_seconds: dict[str, float] = field(default_factory=dict)
    """Median over ranks, by kind of collective, where the profiler saw them."""

    @property
    def peak_bytes(self) -> int:
        """Of the heaviest rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def speedup(self) -> float:
        """Over one device; 0 if that was not measured."""
        return self.baseline_seconds / self.step_seconds


def write_measurement(path: Path, measurement: Measurement) -> None:
    """Write ``measurement.json``."""
    write_document(path, "measurement", SCHEMA_VERSION, measurement)


def read_measurement(path: Path) -> Measurement:
    """Read and check ``measurement.json``.

    Raises:
        ValueError: If it is missing, foreign or truncated.
    """
    return read_document(path, "measurement", SCHEMA_VERSION, Measurement)
