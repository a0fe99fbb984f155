"""The estimate beside a dry run of the executor's own code: ``planner dry-run``."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.child import child_environment
from planner.cost.memory import StageMemory, stage_memory
from planner.plan import Plan
from planner.setting import setting_of

SAME_CATEGORIES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "parameters": (("parameters",), ("parameters",)),
    "gradients": (("gradients",), ("gradients",)),
    "optimizer": (("optimizer",), ("master weights", "optimizer states")),
    "activations and temporaries": (
        ("activations", "temporaries", "buffers", "inputs", "gathered"),
        ("activations", "logits and loss", "recompute workspace", "backward workspace",
         "gradient buckets", "pipeline buffers", "gathered parameters"),
    ),
}  # fmt: skip
"""Categories of the dry run beside those of the estimate.

The tracker calls a tensor an activation only once its stage's forward is over, and counts
FSDP's gathered layers and reduction buffers as temporaries while they are new.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """One rank, counted and estimated."""

    rank: int
    counted_bytes: int
    """Live tensors at the peak of the executor's own code."""
    estimated_bytes: int
    categories: dict[str, tuple[int, int]]
    """Counted and estimated, at each one's own peak."""
    seconds: float

    @property
    def error(self) -> float:
        """Estimated over counted, less one."""
        return self.estimated_bytes / self.counted_bytes - 1


def beside(counted: Mapping[str, int], stage: StageMemory) -> dict[str, tuple[int, int]]:
    """Bytes of a dry run and of the estimate, in the categories that both can tell apart."""
    return {
        name: (
            sum(counted.get(part, 0) for part in theirs),
            sum(stage.categories[part] for part in ours),
        )
        for name, (theirs, ours) in SAME_CATEGORIES.items()
    }


def stage_of_rank(plan: Plan, rank: int) -> int:
    """The pipeline rank of a global rank.

    Raises:
        ValueError: If the plan has no such rank.
    """
    layout = plan.layout
    if not 0 <= rank < layout.world_size:
        raise ValueError(f"--rank must be 0 to {layout.world_size - 1}, got {rank}")
    return rank // layout.stride("pp") % layout.pp


def dry_run(plan: Plan, path: Path, rank: int) -> DryRun | int:
    """Count one rank's tensors in the executor, and estimate them; or the child's exit code.

    Args:
        plan: As read from ``path``.
        path: Of the plan file.
        rank: Which global rank.
    """
    stage = stage_of_rank(plan, rank)
    command = [sys.executable, "-m", "executor.dry_run", str(path), "--rank", str(rank)]
    finished = subprocess.run(
        command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=False
    )
    if finished.returncode:
        return finished.returncode
    counted = json.loads(finished.stdout)
    setting = setting_of(plan)
    estimated = stage_memory(
        plan.model, plan.job, setting.framework, plan.layout, device=setting.cluster.device
    )[stage]
    return DryRun(
        rank=rank,
        counted_bytes=counted["peak_bytes"],
        estimated_bytes=estimated.allocated - estimated.categories.get("library workspace", 0),
        categories=beside(counted["peak"], estimated),
        seconds=counted["seconds"],
    )
