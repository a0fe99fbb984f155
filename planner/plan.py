"""The plan file: all that the executor needs, and what was promised."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from planner.files import read_document, write_document
from planner.job import Job
from planner.layout import Layout
from planner.model import Model

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One pipeline rank, as predicted."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    rank_in_pipeline: int
    layers: int
    memory: dict[str, int]
    """Bytes by category."""
    peak_bytes: int
    """Allocated, at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the cost model promised for a plan."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    step_seconds: float
    low_seconds: float
    """With ``high_seconds``: the 80 % interval."""
    high_seconds: float
    parts: dict[str, float]
    """Seconds by part; they sum to ``step_seconds``."""
    peak_bytes: int
    """Allocated, heaviest rank."""
    stages: tuple[StagePrediction, ...] = ()
    one_device_seconds: float = 0.0
    """Of the same global batch on one device (or ``baseline_devices``); 0 if unknown."""
    baseline_devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A runner-up, for a trial of near-ties."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    layout: Layout
    step_seconds: float
    """As predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A layout of a job on a cluster, with the stage split made explicit."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    model: Model
    job: Job
    layout: Layout
    cluster: str
    """Name of the cluster that it was made for."""
    devices_per_node: int
    calibration: str = "default"
    prediction: Prediction | None = None
    rivals: tuple[Rival, ...] = ()
    """Runners-up, best first: ``planner execute --top`` tries them."""
    inputs: dict[str, str] = field(default_factory=dict)
    """The command's own words, so that the question can be repeated."""

    def __post_init__(self) -> None:
        if self.layout.global_batch != self.job.global_batch:
            raise ValueError(
                f"dp {self.layout.dp} x microbatch {self.layout.microbatch} x microbatches "
                f"{self.layout.microbatches} = {self.layout.global_batch} sequences, but the "
                f"global batch is {self.job.global_batch}"
            )


def write_plan(path: Path, plan: Plan) -> None:
    """Write ``plan.json``."""
    write_document(path, "plan", SCHEMA_VERSION, plan)


def read_plan(path: Path) -> Plan:
    """Read and check ``plan.json``.

    Raises:
        ValueError: If it is missing, foreign, truncated or edited into nonsense.
    """
    return read_document(path, "plan", SCHEMA_VERSION, Plan)


def digest(path: Path) -> str:
    """SHA-256 of a plan file, by which a measurement names the plan it is of.

    Raises:
        ValueError: If the file cannot be read.
    """
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
