"""Warm-up, measured steps and a profiled step of a trainer; the ranks' numbers put together."""

import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from executor.count import STEPS, count_steps, worst
from executor.data import Batches
from executor.memory import MemoryTracker
from executor.phases import PARTS, PhaseClock
from executor.trainer import Trainer

Report = Callable[[str], None]


@dataclass(kw_only=True)
class RankResult:
    """What one rank saw."""

    rank: int
    stage: int
    step_seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    collectives: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    resident_bytes: int = 0

    def median_parts(self) -> dict[str, float]:
        """Median over the measured steps of every part."""
        return {part: statistics.median(step[part] for step in self.parts) for part in PARTS}


class Measurer:
    """Runs one trainer on its share of the data."""

    def __init__(self, trainer: Trainer, batches: Batches, report: Report) -> None:
        self.trainer, self.batches, self.report = trainer, batches, report
        self.device = trainer.grid.device
        self.result = RankResult(rank=dist.get_rank(), stage=trainer.grid.pipeline_rank)
        self._next_step = 0

    def run(self, *, warmup: int, steps: int) -> RankResult:
        """Everything, in order; parameters get their memory here."""
        self._count_memory()
        clock = PhaseClock(self.trainer, self.device)
        for _ in range(max(warmup - STEPS, 0)):
            self._step("warm-up")
        clock.seconds.clear()
        for _ in range(steps):
            with clock.waits():
                seconds = self._step(f"{len(self.result.step_seconds) + 1}/{steps}")
            self.result.step_seconds.append(seconds)
            self.result.parts.append(clock.take(seconds))
        self._profile()
        self._resident()
        return self.result

    def _share(self) -> tuple[Tensor, Tensor]:
        """This rank's part of the next global batch, on its device."""
        grid = self.trainer.grid
        inputs, targets = self.batches.share(
            self._next_step, replica=grid.replica, replicas=grid.layout.dp,
            cp_rank=grid.place("cp"), cp=grid.layout.cp,
        )  # fmt: skip
        self._next_step += 1
        return inputs.to(self.device), targets.to(self.device)

    def _shares(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(count):
            yield self._share()

    def _count_memory(self) -> None:
        """The first steps, with every tensor followed on a CPU, by the allocator on a GPU."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.trainer.start()
            for batch in self._shares(STEPS):
                self._record(self.trainer.step(*batch), "warm-up")
            self.result.peak_bytes = torch.cuda.max_memory_allocated(self.device)
            return
        with MemoryTracker() as tracker:
            self.trainer.start()
            moments, losses = count_steps(self.trainer, tracker, self._shares(STEPS))
        self.result.peak_bytes = sum(worst(moments).values())
        for loss in losses:
            self._record(loss, "warm-up")

    def _step(self, name: str) -> float:
        """Seconds of one step on this rank; all ranks begin it together."""
        batch = self._share()
        dist.barrier()
        started = self._now()
        loss = self.trainer.step(*batch)
        seconds = self._now() - started
        self._record(loss, name, seconds)
        return seconds

    def _record(self, loss: Tensor | None, name: str, seconds: float = 0.0) -> None:
        """Sum the ranks' parts of the loss; refuse one that is not a number."""
        part = torch.zeros((), device=self.device)
        if loss is not None and self.trainer.grid.place("tp") == 0:
            part += loss
        dist.all_reduce(part)
        value = part.item()
        self.result.losses.append(value)
        took = f"  {seconds:.3f} s" if seconds else ""
        self.report(f"step {name}  loss {value:.4f}{took}")
        if not np.isfinite(value):
            raise ValueError(f"the loss of step {len(self.result.losses)} is {value}")

    def _profile(self) -> None:
        """Seconds inside each kind of collective, overlapped or not, in a step of its own."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiler:
            self._step("profiled")
        sums: defaultdict[str, float] = defaultdict(float)
        for event in profiler.events():
            library, _, kind = event.name.partition(":")
            if library in ("gloo", "nccl") and kind and kind != "barrier":
                sums[kind.strip("_")] += event.time_range.elapsed_us() * 1e-6
        self.result.collectives = dict(sums)

    def _resident(self) -> None:
        """Peak of the process, or what the GPU's allocator reserved."""
        if self.device.type == "cuda":
            self.result.resident_bytes = torch.cuda.max_memory_reserved(self.device)
        else:
            kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self.result.resident_bytes = kib * 1024

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def slowest(results: Sequence[RankResult]) -> np.ndarray:
    """Seconds of every measured step on its slowest rank."""
    return np.max([result.step_seconds for result in results], axis=0)


def median_collectives(results: Sequence[RankResult]) -> dict[str, float]:
    """Median over ranks of the seconds inside each kind of collective."""
    kinds = sorted({kind for result in results for kind in result.collectives})
    return {
        kind: statistics.median(result.collectives.get(kind, 0.0) for result in results)
        for kind in kinds
    }
