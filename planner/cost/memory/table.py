"""The memory model's two entrances: many layouts at once, and one layout stage by stage."""

from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.device import overheads
from planner.cost.memory.moments import CATEGORIES, Gathered, Moment, gather, rank_moments
from planner.cost.memory.pieces import block_pieces
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


def memory(model: Model, job: Job, framework: Framework, table: LayoutTable) -> MemoryTable:
    """Peak bytes of the heaviest rank of every layout."""
    parts = _parts(model, job, framework, table)
    peak = np.zeros(len(table))
    rank = np.zeros(len(table), np.int64)
    for holding in holdings(model, table):
        moments = rank_moments(model, job, framework, table, holding, parts)
        for moment in moments.values():
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
    model: Model, job: Job, framework: Framework, layout: Layout
) -> tuple[StageMemory, ...]:
    """Every pipeline rank of one layout at its own peak."""
    table = tabulate([layout], fused_loss_habit=framework.fused_loss)
    parts = _parts(model, job, framework, table)
    return tuple(
        _stage(model, job, framework, table, holding, parts)
        for holding in holdings(model, table, every_rank=True)
    )


def _parts(model: Model, job: Job, framework: Framework, table: LayoutTable) -> Gathered:
    shard, columns = table.shards(job)
    implementation = dataclass_replace(framework.implementation(job), fused_loss=True)
    _, pieces = block_pieces(model, shard, implementation)
    return gather(model, job, table, pieces, shard, columns)


def _total(moment: Moment, rows: int) -> Numbers:
    total = np.zeros(rows)
    for amount in moment.values():
        total = total + amount
    return total


def _stage(
    model: Model, job: Job, framework: Framework, table: LayoutTable, holding: Holding,
    parts: Gathered,
) -> StageMemory:  # fmt: skip
    moments = rank_moments(model, job, framework, table, holding, parts)
    name = max(moments, key=lambda key: float(_total(moments[key], 1)[0]))
    values = {key: round(float(np.ravel(amount)[0])) for key, amount in moments[name].items()}
    over = overheads(framework, table, np.array([float(sum(values.values()))]))
    return StageMemory(
        rank=int(holding.rank[0]),
        layers=int(holding.layers[:, 0].sum()),
        moment=name,
        categories={key: values.get(key, 0) for key in CATEGORIES},
        fragmentation=round(float(np.ravel(over.fragmentation)[0])),
        communicators=round(float(np.ravel(over.communicators)[0])),
        context=round(float(np.ravel(over.context)[0])),
    )
