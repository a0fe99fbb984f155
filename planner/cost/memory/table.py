"""The memory model's two entrances: many layouts at once, and one layout stage by stage."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost.memory.device import overheads
from planner.cost.memory.moments import (
    CATEGORIES,
    Gathered,
    Moment,
    Question,
    gather,
    rank_moments,
)
from planner.cost.memory.ranks import Holding, holdings
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import LayoutTable, tabulate
from planner.model import Model

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Bytes of the heaviest rank of every layout, in three senses."""

    allocated: Numbers
    """Live tensors at the peak (torch's ``max_memory_allocated``)."""
    reserved: Numbers
    """What the caching allocator holds: with rounding and fragmentation."""
    device: Numbers
    """What nvidia-smi shows: with context and NCCL buffers."""
    rank: NDArray[np.int64]
    """Pipeline rank that is the heaviest."""


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
    """Peak bytes of the heaviest rank of every layout."""
    question = Question(model=model, job=job, framework=framework, table=table, device=device)
    parts = gather(question)
    peak = np.zeros(len(table))
    rank = np.zeros(len(table), np.int64)
    for holding in holdings(model, table):
        for moment in rank_moments(question, holding, parts).values():
            total = _total(moment, len(table))
            rank = np.where(total > peak, holding.rank, rank)
            peak = np.maximum(peak, total)
    over = overheads(framework, table, peak)
    reserved = peak + over.fragmentation
    return MemoryTable(
        allocated=peak,
        reserved=reserved,
        device=reserved + over.communicators + over.context,
        rank=rank,
    )


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
    over = overheads(question.framework, question.table, allocated)
    return StageMemory(
        rank=int(holding.rank[0]),
        layers=int(holding.layers[:, 0].sum()),
        moment=name,
        categories={key: values.get(key, 0) for key in CATEGORIES},
        fragmentation=round(float(np.ravel(over.fragmentation)[0])),
        communicators=round(float(np.ravel(over.communicators)[0])),
        context=round(float(np.ravel(over.context)[0])),
    )
