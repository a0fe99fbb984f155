"""From a table of layouts to those that can run, with bytes and seconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.calibration import Calibration
from planner.cost.memory import load_margin
from planner.cost.step import StepTable, step
from planner.layout_table import LayoutTable
from planner.rules import Question
from planner.search.result import Candidate

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Everything that prices a table."""

    question: Question
    calibration: Calibration
    max_memory_bytes: int = 0
    """0 for what the device has, less the margin of the memory model's own error."""

    @property
    def limit_bytes(self) -> int:
        """Bytes of one device that a layout may take by the estimate."""
        whole = self.question.cluster.device.memory_bytes
        return self.max_memory_bytes or int(whole / (1.0 + load_margin().share))

    @property
    def usd_per_second(self) -> float:
        """Of all devices together; 0 where no price is known."""
        return self.question.cluster.usd_per_device_hour * self.question.num_devices / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Layouts that fit, with their prices; arrays run over layouts."""

    table: LayoutTable
    step_seconds: Floats
    parts: dict[str, Floats]
    low_seconds: Floats
    high_seconds: Floats
    peak_bytes: Floats
    device_bytes: Floats
    least_seconds: Floats
    """What no playing of the schedule can beat."""

    def __len__(self) -> int:
        return len(self.step_seconds)

    def take(self, chosen: NDArray[np.generic]) -> "Priced":
        """The layouts that a mask or indices pick."""
        return Priced(
            table=self.table.take(chosen),  # type: ignore[arg-type]
            step_seconds=self.step_seconds[chosen],
            parts={name: seconds[chosen] for name, seconds in self.parts.items()},
            low_seconds=self.low_seconds[chosen],
            high_seconds=self.high_seconds[chosen],
            peak_bytes=self.peak_bytes[chosen],
            device_bytes=self.device_bytes[chosen],
            least_seconds=self.least_seconds[chosen],
        )

    def candidate(self, index: int, pricing: Pricing) -> Candidate:
        """One row as a value."""
        seconds = float(self.step_seconds[index])
        return Candidate(
            layout=self.table.layout(index),
            step_seconds=seconds,
            low_seconds=float(self.low_seconds[index]),
            high_seconds=float(self.high_seconds[index]),
            parts={name: float(part[index]) for name, part in self.parts.items()},
            peak_bytes=round(float(self.peak_bytes[index])),
            device_bytes=round(float(self.device_bytes[index])),
            limit_bytes=pricing.limit_bytes,
            usd_per_step=seconds * pricing.usd_per_second,
        )


def timed(
    table: LayoutTable, pricing: Pricing, peak: Floats, device: Floats
) -> tuple[Priced, StepTable]:
    """The step of every layout, by the closed form; ``least_seconds`` without any bubble."""
    found = steps(table, pricing)
    priced = Priced(
        table=table, step_seconds=found.step_seconds, parts=found.parts,
        low_seconds=found.low_seconds, high_seconds=found.high_seconds,
        peak_bytes=peak, device_bytes=device,
        least_seconds=found.step_seconds - found.parts["bubble"],
    )  # fmt: skip
    return priced, found


def steps(table: LayoutTable, pricing: Pricing) -> StepTable:
    """``planner.cost.step.step`` for this question."""
    q = pricing.question
    return step(q.model, q.job, q.cluster, q.framework, table, pricing.calibration)
