"""One rank of any plan on fake tensors: exact bytes by category, no device, no network.

The rank runs the executor's own code, pipeline runtime included, under a fake process group
of the plan's world size; only numbers are missing.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from executor.count import STEPS, count_steps, worst
from executor.memory import MemoryTracker
from executor.mesh import Grid, make_grid
from executor.pipeline import first_input
from executor.support import unsupported
from executor.trainer import Trainer
from planner.plan import Plan, read_plan


def dry_run(plan: Plan, rank: int) -> dict[str, Any]:
    """What one rank holds over a step, in bytes.

    Returns:
        ``peak_bytes``; ``peak`` by category at that moment; ``resting`` by category between
        steps; ``moments``, the peak of each phase (forward and backward, optimizer).
    """
    import torch.distributed._tools.fake_collectives
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=plan.layout.world_size
    )
    try:
        grid = make_grid(plan.layout, torch.device("cpu"))
        trainer = Trainer(plan, grid)
        _make_groups(grid)
        with FakeTensorMode(allow_non_fake_inputs=True), MemoryTracker() as tracker:
            return _count(trainer, tracker)
    finally:
        dist.destroy_process_group()


def _make_groups(grid: Grid) -> None:
    """Meshes hold real rank tables: make them before tensors turn fake."""
    if grid.layout.zero_stage < 2:
        _ = grid.replicas
        if grid.layout.ep > 1:
            _ = grid.experts


def _count(trainer: Trainer, tracker: MemoryTracker) -> dict[str, Any]:
    trainer.start(seed=None)
    moments, _ = count_steps(trainer, tracker, [_batch(trainer)] * STEPS)
    peak = worst(moments)
    return {
        "peak_bytes": sum(peak.values()),
        "peak": _tidy(peak),
        "resting": _tidy(tracker.live),
        "moments": {name: sum(peak.values()) for name, peak in moments.items()},
    }


def _batch(trainer: Trainer) -> tuple[Tensor, Tensor]:
    plan, layout = trainer.plan, trainer.grid.layout
    one = first_input(plan.model, layout, plan.job, trainer.dtype)
    shape = (one.shape[0] * layout.microbatches, *one.shape[1:])
    inputs = torch.empty(shape, dtype=one.dtype, device=trainer.grid.device)
    wanted = shape if not one.is_floating_point() else shape[:1]
    return inputs, torch.empty(wanted, dtype=torch.int64, device=trainer.grid.device)


def _tidy(categories: Any) -> dict[str, int]:
    return {name: int(size) for name, size in sorted(categories.items()) if size}


def main() -> int:
    """Print what one rank of a plan holds, as JSON."""
    parser = argparse.ArgumentParser(prog="executor.dry_run", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    try:
        plan = read_plan(options.plan)
        if reason := unsupported(plan, device="any"):
            raise ValueError(reason)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.perf_counter()
    result = dry_run(plan, options.rank)
    seconds = round(time.perf_counter() - started, 1)
    print(json.dumps({"rank": options.rank, **result, "seconds": seconds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
