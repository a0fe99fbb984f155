"""The calibration file: every fitted number of the time model, with where it came from.

The one called ``default`` ships with the planner; ``planner fit`` writes others into the
user's data folder.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import ClassVar

from planner.cost.collectives.constants import CommunicationConstants
from planner.cost.kernels.constants import KernelConstants
from planner.files import read_document, write_document

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """What a step costs beyond its kernels and collectives: few, physical, framework-free."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    overlap_slowdown: float = 0.15
    """Compute is slower by this share while a collective runs beside it: it takes memory
    bandwidth and multiprocessors (Hetu-Galvatron measures 0.126)."""
    overlap_share: float = 0.9
    """Of a collective that is meant to be hidden, the part that can be."""
    straggler_growth: float = 0.01
    """A step waits for its slowest device: compute grows by this times sqrt(2 ln devices), the
    expected maximum of as many normal deviations."""
    device_rates: Mapping[str, float] = field(default_factory=dict)
    """By architecture generation: rate of matrix kernels inside a training step over the rate
    that kernel benchmarks showed. Communication, memory traffic and heat take clocks away;
    real activations cost less power than random ones."""
    host_rates: Mapping[str, float] = field(
        default_factory=lambda: {"volta": 0.7, "ampere": 0.7, "ampere_consumer": 0.8}
    )
    """By architecture generation of the devices: single-thread speed of the hosts that come
    with them over that of hosts since 2022 (DGX-1 and DGX A100: Xeon E5 and EPYC 7742)."""
    host_rank_growth: float = 0.02
    """Host time grows by this for every further rank of a tensor-parallel group: each
    collective waits for the slowest of their processes."""
    host_operation_seconds: float = 8e-6
    """Host time to issue one eager kernel, autograd and module code included."""
    host_microbatch_seconds: float = 5e-4
    """Host time of a microbatch beyond its kernels: data, schedule, loss reading."""
    host_step_seconds: float = 0.0
    """Host time of an optimizer step beyond its kernels."""
    pipeline_sync_seconds: float = 0.0
    """Of one exchange with a neighbouring stage: shape messages, host synchronisation."""
    expert_imbalance: float = 1.0
    """Tokens of the busiest rank's experts over the average."""
    optimizer_bytes: float = 30.0
    """Read and written per parameter by gradient norm, Adam and casting: gradient 4 + 4 + 4
    (norm, update, zeroing), master 8, moments 16, parameter 2."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if any(number < 0 for number in getattr(value, "values", lambda v=value: [v])()):
                raise ValueError(f"step constants: {name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far measured steps lie from central estimates, as logarithms of their ratio."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    low: float = -0.2
    """10th percentile of ln(measured / predicted)."""
    high: float = 0.25
    """90th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of kernels, communication and steps; None for those that ship."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: str = "default"
    kernels: KernelConstants | None = None
    """None: those fitted for the device's generation."""
    communication: CommunicationConstants | None = None
    step: StepConstants = field(default_factory=StepConstants)
    spread: Spread = field(default_factory=Spread)
    source: str = "priors"
    rows: int = 0
    """Measurements behind the step constants."""
    notes: tuple[str, ...] = ()
    """What could not be identified, and what to measure next."""


def data_folder() -> Path:
    """Where calibrations of the user live: ``PLANNER_HOME``, else XDG's data folder."""
    home = os.environ.get("PLANNER_HOME")
    if home:
        return Path(home).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "parallel-planner"


def calibration_path(name: str) -> Path:
    """The file of a calibration of the user.

    Raises:
        ValueError: If the name is no plain file name.
    """
    if not name or Path(name).name != name or name.startswith("."):
        raise ValueError(f"a calibration's name is one plain word, got {name!r}")
    return data_folder() / "calibrations" / f"{name}.json"


def load_calibration(name_or_path: str = "default") -> Calibration:
    """A calibration by name (the user's own first, then those that ship) or by path.

    Raises:
        ValueError: If there is none of that name, or the file is not a calibration.
    """
    if "/" in name_or_path or name_or_path.endswith(".json"):
        return _read(Path(name_or_path).expanduser())
    own = calibration_path(name_or_path)
    if own.is_file():
        return _read(own)
    shipped = files("planner") / "presets" / "calibrations" / f"{name_or_path}.json"
    if name_or_path not in ("kernels", "communication") and shipped.is_file():
        with as_file(shipped) as path:
            return _read(path)
    if name_or_path == "default":
        return Calibration()
    raise ValueError(
        f"no calibration is called {name_or_path!r}; there are {', '.join(list_calibrations())}"
    )


def list_calibrations() -> list[str]:
    """Names of all calibrations, shipped and own."""
    own = data_folder() / "calibrations"
    names = {path.stem for path in own.glob("*.json")} if own.is_dir() else set()
    return sorted(names | {"default"})


def save_calibration(calibration: Calibration, path: Path | None = None) -> Path:
    """Write a calibration, by default into the user's data folder.

    Raises:
        ValueError: If the folder cannot be written.
    """
    path = path or calibration_path(calibration.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    write_document(path, "calibration", SCHEMA_VERSION, calibration)
    return path


def _read(path: Path) -> Calibration:
    return read_document(path, "calibration", SCHEMA_VERSION, Calibration)
