"""The memory model's two entrances: many layouts at once, and one layout stage by stage."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost.memory.device import overheads
from planner.cost.memory.moments import CATEGORIES, Moment, idle_bytes, rank_moments
from planner.cost.memory.question import Gathered, Question, gather
from planner.cost.memory.ranks import Holding, holdings
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import LayoutTable, tabulate
from planner.model import Model

Numbers = NDArray[np.float64]
CHUNK_ROWS = 2**15  # columns of a chunk stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Senses:
    """Bytes of one rank of every layout, in three senses."""

    allocated: Numbers
    """Live tensors at the peak (torch's ``max_memory_allocated``)."""
    reserved: Numbers
    """What the caching allocator holds: with rounding and fragmentation."""
    device: Numbers
    """What nvidia-smi shows: with context and NCCL buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Bytes of the heaviest rank of every layout, and of both ends of its pipeline."""

    allocated: Numbers
    reserved: Numbers
    device: Numbers
    rank: NDArray[np.int64]
    """Pipeline rank that is the heaviest."""
    first: Senses
    last: Senses

    def of(self, rank: str) -> Senses:
        """By name: ``first``, ``last`` or ``heaviest``."""
        if rank == "heaviest":
            return Senses(allocated=self.allocated, reserved=self.reserved, device=self.device)
        return self.first if rank == "first" else self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One pipeline rank of one layout at its peak."""

    rank: int
    layers: int
    moment: str
    """Where the peak is: ``loss``, ``backward`` or ``step``."""
    categories: dict[str, int]
    """Bytes of live tensors by category; they sum to ``allocated``."""
    fragmentation: int
    communicators: int
    context: int

    @property
    def allocated(self) -> int:
        """Bytes of live tensors."""
        return sum(self.categories.values())

    @property
    def reserved(self) -> int:
        """Bytes held by the caching allocator."""
        return self.allocated + self.fragmentation

    @property
    def device(self) -> int:
        """Bytes taken from the device."""
        return self.reserved + self.communicators + self.context


def memory(
    model: Model,
    job: Job,
    framework: Framework,
    table: LayoutTable,
    *,
    device: Device | None = None,
) -> MemoryTable:
    """Peak bytes of every layout: no loop over layouts, only over candidate ranks."""
    question = Question(model=model, job=job, framework=framework, table=table, device=device)
    rows = len(table)
    if rows <= CHUNK_ROWS:
        return _whole_table(question)
    pieces = [
        _whole_table(
            replace(question, table=table.take(np.arange(start, min(start + CHUNK_ROWS, rows))))
        )
        for start in range(0, rows, CHUNK_ROWS)
    ]
    return _joined(pieces)


def _whole_table(question: Question) -> MemoryTable:
    parts = gather(question)
    rows = len(question.table)
    ends: list[tuple[Numbers, Numbers]] = []
    peak, idle = np.zeros(rows), np.zeros(rows)
    rank = np.zeros(rows, np.int64)
    for holding in holdings(question.model, question.table):
        own, own_idle = _peak(question, holding, parts)
        if len(ends) < 2:
            ends.append((own, own_idle))
        heavier = own > peak
        rank = np.where(heavier, holding.rank, rank)
        idle = np.where(heavier, own_idle, idle)
        peak = np.maximum(peak, own)
    heaviest = _senses(question, peak, idle)
    return MemoryTable(
        allocated=heaviest.allocated,
        reserved=heaviest.reserved,
        device=heaviest.device,
        rank=rank,
        first=_senses(question, *ends[0]),
        last=_senses(question, *ends[-1]),
    )


def _peak(question: Question, holding: Holding, parts: Gathered) -> tuple[Numbers, Numbers]:
    """Largest moment of one rank, and the segments that lie idle there."""
    rows = len(question.table)
    moments = rank_moments(question, holding, parts)
    totals = {name: _total(moment, rows) for name, moment in moments.items()}
    peak = np.maximum.reduce(list(totals.values()))
    at_loss = totals["loss"] >= peak
    return peak, np.where(at_loss, idle_bytes(question, holding, parts), 0.0)


def _senses(question: Question, allocated: Numbers, idle: Numbers) -> Senses:
    over = overheads(
        question.framework, question.table, question.device, allocated=allocated, idle=idle
    )
    reserved = allocated + over.fragmentation
    return Senses(
        allocated=allocated,
        reserved=reserved,
        device=reserved + over.communicators + over.context,
    )


def _joined(pieces: Sequence[MemoryTable]) -> MemoryTable:
    def senses(of: str) -> Senses:
        columns = [getattr(piece, of) for piece in pieces]
        return Senses(
            **{
                f.name: np.concatenate([getattr(c, f.name) for c in columns])
                for f in fields(Senses)
            }
        )

    flat = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("allocated", "reserved", "device", "rank")
    }
    return MemoryTable(**flat, first=senses("first"), last=senses("last"))


def stage_memory(
    model: Model,
    job: Job,
    framework: Framework,
    layout: Layout,
    *,
    device: Device | None = None,
) -> tuple[StageMemory, ...]:
    """Every pipeline rank of one layout at its own peak."""
    table = tabulate([layout], fused_loss_habit=framework.fused_loss)
    question = Question(model=model, job=job, framework=framework, table=table, device=device)
    parts = gather(question)
    return tuple(
        _stage(question, holding, parts) for holding in holdings(model, table, every_rank=True)
    )


def _total(moment: Moment, rows: int) -> Numbers:
    total = np.zeros(rows)
    for amount in moment.values():
        total = total + amount
    return total


def _stage(question: Question, holding: Holding, parts: Gathered) -> StageMemory:
    moments = rank_moments(question, holding, parts)
    name = max(moments, key=lambda key: float(_total(moments[key], 1)[0]))
    values = {key: round(float(np.ravel(amount)[0])) for key, amount in moments[name].items()}
    allocated = np.array([float(sum(values.values()))])
    idle = idle_bytes(question, holding, parts) * (name == "loss")
    over = overheads(
        question.framework, question.table, question.device, allocated=allocated, idle=idle
    )
    return StageMemory(
        rank=int(holding.rank[0]),
        layers=int(holding.layers[:, 0].sum()),
        moment=name,
        categories={key: values.get(key, 0) for key in CATEGORIES},
        fragmentation=round(float(np.ravel(over.fragmentation)[0])),
        communicators=round(float(np.ravel(over.communicators)[0])),
        context=round(float(np.ravel(over.context)[0])),
    )
