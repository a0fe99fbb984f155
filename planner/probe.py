"""The probe file: kernels and collectives as timed on one machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from planner.files import read_document, write_document

SCHEMA_VERSION = 1
KERNELS = ("gemm", "attention", "attention_backward", "convolution", "streaming")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timing, the mean over ranks that all did the same at the same time."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: str
    """One of ``KERNELS`` or ``COLLECTIVES``, or ``overlap``."""
    sizes: dict[str, float] = field(default_factory=dict)
    """Shape of a kernel (``m n k``, ``bytes`` ...), or ``bytes``, ``degree`` and ``stride``."""
    dtype: str = "fp32"
    seconds: float
    world_size: int
    """Ranks at work at once: they share the machine's cores and memory."""

    def __post_init__(self) -> None:
        if self.kind not in (*KERNELS, *COLLECTIVES, "overlap"):
            raise ValueError(f"a probe has no kind {self.kind!r}")
        if not self.seconds > 0:
            raise ValueError(f"{self.kind} took {self.seconds} s: a timing is positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """All timings of one machine."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    machine: str
    backend: str
    torch_version: str
    date: str
    samples: tuple[Sample, ...]

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of ranks that were probed."""
        return tuple(sorted({sample.world_size for sample in self.samples}))


def write_probe(path: Path, probe: Probe) -> None:
    """Write ``probe.json``."""
    write_document(path, "probe", SCHEMA_VERSION, probe)


def read_probe(path: Path) -> Probe:
    """Read and check ``probe.json``.

    Raises:
        ValueError: If it is missing, foreign or truncated.
    """
    return read_document(path, "probe", SCHEMA_VERSION, Probe)
