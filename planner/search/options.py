"""The lists of options: what a framework can do at given degrees, plain ones first."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layout import ScheduleName
from planner.layout_table import SCHEDULES, WHOLE, Split
from planner.rules.core import Question, divisors
from planner.schedules import V_SHAPED, why_not
from planner.search.choices import Columns
from planner.search.constraints import Constraints
from planner.search.splits import candidate_splits

MOST_VIRTUAL_STAGES = 16
"""Chunks per rank that the full space tries; beyond, chunks are single layers."""
USUAL_VIRTUAL_STAGES = 8
"""Chunks per rank that the usual space tries: each doubling halves a bubble that is small."""
USUAL_MICROBATCH_TOKENS = 2**15
"""Tokens of one microbatch on one rank in the usual space: kernels are long since full."""


def column(values: Sequence[int]) -> NDArray[np.int64]:
    """Options as a column."""
    return np.array(values, np.int64)


class Options:
    """Makes the lists and keeps the table of splits that they point into."""

    def __init__(self, *, question: Question, constraints: Constraints, full: bool) -> None:
        """Remember what is given."""
        self.question = question
        self.constraints = constraints
        self.full = full
        self._splits: dict[Split, int] = {Split(pp=1, vpp=1, layers=WHOLE): 0}
        self._chunks: dict[int, list[tuple[int, int, int]]] = {}

    @property
    def splits(self) -> tuple[Split, ...]:
        """All splits in use, in the order of their numbers."""
        return tuple(self._splits)

    def pipeline(self, pp: int, dp: int, cp: int) -> Columns:
        """Schedule, chunks and split, with every microbatch size that divides the batch."""
        rows = [
            (*stage, microbatch, microbatches)
            for stage in self._stages(pp)
            for microbatch, microbatches in self._microbatches(dp, cp)
            if self._is_useful(stage, pp, microbatches)
        ]
        names = ("schedule", "vpp", "split", "microbatch", "microbatches")
        return {n: column([row[i] for row in rows]) for i, n in enumerate(names)}

    def _is_useful(self, stage: tuple[int, int, int], pp: int, microbatches: int) -> bool:
        """Not GPipe where 1F1B runs: it idles as long and holds more."""
        if self.full or pp == 1 or SCHEDULES[stage[0]] != "gpipe":
            return True
        asked = self.constraints.wanted("schedule") or self.constraints.forbidden.get("schedule")
        backend = self.question.framework.backend
        return bool(asked) or (
            why_not("1f1b", pp=pp, vpp=1, microbatches=microbatches, backend=backend) is not None
        )

    def _microbatches(self, dp: int, cp: int) -> list[tuple[int, int]]:
        batch = self.question.job.global_batch
        asked = [int(v) for v in self.constraints.wanted("microbatch")]
        if batch % dp:
            return [(size, 1) for size in asked or [1]]  # the rule of the batch says no, and why
        length = self.question.job.sequence_length
        sizes = asked or [
            size for size in divisors(batch // dp)
            if self.full or size == 1 or size * length <= USUAL_MICROBATCH_TOKENS * cp
        ]  # fmt: skip
        return [(size, max(batch // dp // size, 1)) for size in sizes]

    def _stages(self, pp: int) -> list[tuple[int, int, int]]:
        if pp == 1:
            return [(SCHEDULES.index("1f1b"), 1, 0)]
        if pp not in self._chunks:
            self._chunks[pp] = [
                (SCHEDULES.index(name), vpp, split)
                for name in SCHEDULES
                for vpp in self._chunk_counts(pp, name)  # type: ignore[arg-type]
                for split in self._split_numbers(pp, vpp, name)  # type: ignore[arg-type]
            ]
        return self._chunks[pp]

    def _chunk_counts(self, pp: int, schedule: ScheduleName) -> list[int]:
        """Chunks per rank that the schedule and the framework can run at all.

        Of the counts that leave equally many layers in the largest chunk only the smallest is
        of use: the slowest rank holds fewer layers.
        """
        layers = self.question.model.num_layers
        limit = MOST_VIRTUAL_STAGES if self.full else USUAL_VIRTUAL_STAGES
        most = max(min(layers // pp, limit), 1)
        largest: dict[int, int] = {}
        for vpp in range(1, most + 1):
            largest.setdefault(-(-layers // (pp * vpp)), vpp)
        if self.question.experts and not self.full:
            largest = {chunk: vpp for chunk, vpp in largest.items() if vpp & (vpp - 1) == 0}
        counts = {1, 2, *largest.values(), *self.constraints.wanted("vpp")}
        backend = self.question.framework.backend
        long: dict[str, Any] = {"pp": pp, "microbatches": 64 * pp, "backend": backend}
        return [
            int(vpp) for vpp in sorted(counts)
            if why_not(schedule, vpp=int(vpp), **long) is None
        ]  # fmt: skip

    def _split_numbers(self, pp: int, vpp: int, schedule: ScheduleName) -> list[int]:
        v_shaped = schedule in V_SHAPED
        found = candidate_splits(self.question, self.constraints, pp=pp, vpp=vpp,
                                 v_shaped=v_shaped, full=self.full)  # fmt: skip
        return [self._splits.setdefault(split, len(self._splits)) for split in found]

    def streams(self, tp: int, cp: int) -> Columns:
        """Sequence parallelism on or off, context parallelism by ring or by Ulysses."""
        sp = [0, 1] if tp > 1 and self.question.layers else [0]
        framework = self.question.framework
        kinds = [0] * framework.runs_ring_attention + [1] * framework.runs_ulysses
        kinds = (kinds or [0]) if cp > 1 else [0]
        sp = _with(sp, self.constraints.wanted("sequence_parallel"))
        pairs = [(s, u) for s in sp for u in kinds]
        return {"sequence_parallel": column([p[0] for p in pairs]),
                "ulysses": column([p[1] for p in pairs])}  # fmt: skip

    def zero(self, replicas: int, cp: int, pp: int) -> Columns:
        """ZeRO stages and the ranks that share; all replicas, or groups of them (HSDP)."""
        framework = self.question.framework
        most = framework.largest_zero_stage
        if pp > 1:
            most = min(most, framework.largest_zero_stage_with_pipeline)
        stages = _with(
            range(most + 1 if replicas > 1 else 1), self.constraints.wanted("zero_stage")
        )
        rows = [(z, g) for z in stages for g in self._groups(z, replicas, cp)]
        return {"zero_stage": column([r[0] for r in rows]),
                "shard_group": column([r[1] for r in rows])}  # fmt: skip

    def _groups(self, stage: int, replicas: int, cp: int) -> list[int]:
        if stage == 0 or replicas == 1:
            return [1]
        asked = [int(g) or replicas for g in self.constraints.wanted("zero_group")]
        if asked:
            return asked
        if not self.question.framework.shards_in_groups:
            return [replicas]
        # cp ranks hold the same parameters and always belong to one shard group
        groups = [cp * d for d in divisors(replicas // cp) if 1 < cp * d < replicas]
        if not self.full:
            node = self.question.cluster.devices_per_node
            groups = [g for g in groups if g <= node]
            # Experts make the space large enough: the whole node is the group worth having.
            groups = groups[-1:] if self.question.experts else groups
        return [replicas, *reversed(groups)]

    def switches(self, pp: int) -> Columns:
        """Fused loss and offloaded optimizer states."""
        framework = self.question.framework
        fused = [int(framework.fused_loss)]
        if framework.chooses_fused_loss:
            fused = [0, 1] if self.full else [1]  # fused is never slower, never larger
        fused = _with(fused, self.constraints.wanted("fused_loss"))
        can = framework.offloads_optimizer and (pp == 1 or framework.offloads_with_pipeline)
        offload = [0, 1] if can and self.full else [0]
        offload = _with(offload, self.constraints.wanted("offload_optimizer"))
        rows = [(f, o) for f in fused for o in offload]
        return {"fused_loss": column([r[0] for r in rows]),
                "offload_optimizer": column([r[1] for r in rows])}  # fmt: skip


def _with(options: Sequence[int], asked: Sequence[Any]) -> list[int]:
    """The options, or what was asked for, whether legal or not: a rule will say so."""
    return [int(v) for v in asked] if asked else list(options)
