"""Many layouts at once: one array per field, so that costs never loop over layouts.

Two fields are indices into short lists that the table carries along: ``split`` (how layers
are shared out over stages) and ``order`` (which axis has neighbouring ranks).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from planner.distinct import distinct_rows
from planner.job import Job
from planner.layout import Axis, Layout, Recompute, ScheduleName
from planner.model import Model
from planner.ops import Shard

RECOMPUTES: tuple[str, ...] = get_args(Recompute)
SCHEDULES: tuple[str, ...] = get_args(ScheduleName)

WHOLE = (0,)
"""The split of a model that is not pipelined: all layers, however many there are."""

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Layers of every (virtual) stage, in pipeline order."""

    pp: int
    vpp: int
    layers: tuple[int, ...]
    v_shaped: bool = False
    """Rank r holds chunks r and 2 pp - 1 - r (ZBV, DualPipe-V), not r and r + pp."""

    def __post_init__(self) -> None:
        if len(self.layers) != self.pp * self.vpp:
            raise ValueError(
                f"stage_layers has {len(self.layers)} entries, but pp {self.pp} x vpp "
                f"{self.vpp} makes {self.pp * self.vpp} stages"
            )

    def kind_counts(self, model: Model) -> Integers:
        """Layers of each kind in each stage, shape (stages, kinds).

        Raises:
            ValueError: If the split does not hold all layers of the model.
        """
        if self.layers == WHOLE:
            return self._whole_counts(model)
        if sum(self.layers) != model.num_layers:
            raise ValueError(
                f"stage_layers {self.layers} sums to {sum(self.layers)}, but {model.name} has "
                f"{model.num_layers} layers"
            )
        one_hot = np.eye(len(model.layer_kinds), dtype=np.int64)[model.layer_kind_indices()]
        running = np.vstack([np.zeros((1, one_hot.shape[1]), np.int64), np.cumsum(one_hot, 0)])
        ends = np.cumsum((0, *self.layers))
        return running[ends[1:]] - running[ends[:-1]]

    def _whole_counts(self, model: Model) -> Integers:
        return np.bincount(model.layer_kind_indices(), minlength=len(model.layer_kinds))[None, :]

    def rank_of_stage(self) -> Integers:
        """Which pipeline rank holds each (virtual) stage.

        >>> Split(pp=2, vpp=2, layers=(1, 1, 1, 1), v_shaped=True).rank_of_stage()
        array([0, 1, 1, 0])
        """
        stages = np.arange(self.pp * self.vpp)
        forward = stages % self.pp
        if not self.v_shaped:
            return forward
        return np.where((stages // self.pp) % 2 == 0, forward, self.pp - 1 - forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """Layouts as columns; every array has one entry per layout."""

    dp: Integers
    tp: Integers
    pp: Integers
    cp: Integers
    ep: Integers
    etp: Integers
    vpp: Integers
    sequence_parallel: Booleans
    ulysses: Booleans
    zero_stage: Integers
    shard_group: Integers
    """Ranks that share one copy of what ZeRO shards; 1 without ZeRO."""
    recompute: Integers
    """Index into ``RECOMPUTES``."""
    recompute_layers: Integers
    microbatch: Integers
    microbatches: Integers
    schedule: Integers
    """Index into ``SCHEDULES``."""
    split: Integers
    """Index into ``splits``."""
    order: Integers
    """Index into ``orders``."""
    fused_loss: Booleans
    offload_optimizer: Booleans
    splits: tuple[Split, ...]
    orders: tuple[tuple[Axis, ...], ...]

    def __len__(self) -> int:
        return len(self.dp)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "LayoutTable":
        """The rows that a mask or a list of indices picks."""
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        return replace(self, **columns)

    def layout(self, index: int) -> Layout:
        """One row as a ``Layout``, its split made explicit."""
        split = self.splits[int(self.split[index])]
        whole = int(self.dp[index] * self.cp[index])
        group = int(self.shard_group[index])
        same = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "zero_stage", "recompute_layers",
                "microbatch", "microbatches")  # fmt: skip
        values: dict[str, object] = {name: int(getattr(self, name)[index]) for name in same}
        return Layout(
            **values,  # type: ignore[arg-type]
            sequence_parallel=bool(self.sequence_parallel[index]),
            cp_kind="ulysses" if self.ulysses[index] else "ring",
            zero_group=group if values["zero_stage"] and group != whole else 0,
            recompute=RECOMPUTES[int(self.recompute[index])],  # type: ignore[arg-type]
            schedule=SCHEDULES[int(self.schedule[index])],  # type: ignore[arg-type]
            stage_layers=split.layers if len(split.layers) > 1 else (),
            axis_order=self.orders[int(self.order[index])],
            fused_loss=bool(self.fused_loss[index]),
            offload_optimizer=bool(self.offload_optimizer[index]),
        )

    def shards(self, job: Job) -> tuple[Shard, Integers]:
        """The distinct shards of the table, and for each layout the index of its own.

        A block's op list depends on nothing else, so that it is priced once per shard.
        """
        names = ("tp", "sequence_parallel", "cp", "ulysses", "ep", "etp", "microbatch")
        first, inverse = distinct_rows(getattr(self, name) for name in names)
        distinct = {name: getattr(self, name)[first] for name in names}
        shard = Shard(
            sequence_length=job.sequence_length,
            microbatch=distinct["microbatch"],
            tp=distinct["tp"],
            sequence_parallel=distinct["sequence_parallel"].astype(bool),
            cp=distinct["cp"],
            ulysses=distinct["ulysses"].astype(bool),
            ep=distinct["ep"],
            etp=distinct["etp"],
        )
        return shard, inverse

    def stride(self, axis: Axis) -> Integers:
        """Distance in ranks between neighbours of one axis, per layout."""
        degrees = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}
        result = np.ones_like(self.dp)
        for code in np.flatnonzero(np.bincount(self.order, minlength=1)):
            order = self.orders[code]
            inner = np.ones_like(self.dp)
            for name in order[: order.index(axis)]:
                inner = inner * degrees[name]
            result = np.where(self.order == code, inner, result)
        return result


COLUMNS = tuple(f.name for f in fields(LayoutTable) if f.name not in ("splits", "orders"))


def tabulate(layouts: Sequence[Layout], *, fused_loss_habit: bool = False) -> LayoutTable:
    """Turn layouts into a table; every pipelined one must state its ``stage_layers``.

    Raises:
        ValueError: If there are no layouts, or a pipelined one has no split.
    """
    if not layouts:
        raise ValueError("no layouts to tabulate")
    splits: dict[Split, int] = {}
    orders: dict[tuple[Axis, ...], int] = {}
    rows: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for layout in layouts:
        split = _split_of(layout)
        fused = fused_loss_habit if layout.fused_loss is None else layout.fused_loss
        special = {
            "split": splits.setdefault(split, len(splits)),
            "order": orders.setdefault(layout.axis_order, len(orders)),
            "ulysses": int(layout.cp_kind == "ulysses" and layout.cp > 1),
            "recompute": RECOMPUTES.index(layout.recompute),
            "schedule": SCHEDULES.index(layout.schedule),
            "shard_group": layout.shard_group,
            "fused_loss": int(fused),
        }
        for name in COLUMNS:
            rows[name].append(special[name] if name in special else int(getattr(layout, name)))
    flags = ("sequence_parallel", "ulysses", "fused_loss", "offload_optimizer")
    columns = {n: np.asarray(v, bool if n in flags else np.int64) for n, v in rows.items()}
    return LayoutTable(**columns, splits=tuple(splits), orders=tuple(orders))


def _split_of(layout: Layout) -> Split:
    if layout.num_stages > 1 and not layout.stage_layers:
        raise ValueError(f"layout with pp {layout.pp} has no stage_layers; split it first")
    return Split(
        pp=layout.pp,
        vpp=layout.vpp,
        layers=layout.stage_layers or WHOLE,
        v_shaped=layout.schedule in ("zbv", "dualpipe"),
    )
