"""One rank of any plan on fake tensors: exact bytes by category, no device, no network.

The rank runs the executor's own code, pipeline runtime included, under a fake process group
of the plan's world size; only numbers are missing.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from executor.data_parallel import FullySharded, Replicas, local
from executor.memory import ACTIVATION, TEMPORARY, MemoryTracker
from executor.mesh import Grid, make_grid
from executor.pipeline import first_input
from executor.support import unsupported
from executor.trainer import Trainer
from planner.plan import Plan, read_plan

STEPS = 2
"""The first step makes the optimizer's moments and the receive buffers."""


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
    inputs, targets = _batch(trainer)
    moments = count_steps(trainer, tracker, inputs, targets)
    worst = max(moments.values(), key=lambda peak: sum(peak.values()))
    return {
        "peak_bytes": sum(worst.values()),
        "peak": _tidy(worst),
        "resting": _tidy(tracker.live),
        "moments": {name: sum(peak.values()) for name, peak in moments.items()},
    }


def count_steps(
    trainer: Trainer, tracker: MemoryTracker, inputs: Tensor, targets: Tensor
) -> dict[str, Counter[str]]:
    """Peak of both phases of the last of ``STEPS`` steps, by category."""
    handles = _watch(trainer, tracker)
    tracker.label((inputs, targets), "inputs")
    moments = {}
    for _ in range(STEPS):
        tracker.reset_peak()
        _label_states(trainer, tracker)
        trainer.accumulate(inputs, targets)
        trainer.finish_backward()
        moments["forward and backward"] = tracker.peak
        _label_gradients(trainer, tracker)
        for source in (ACTIVATION, TEMPORARY):  # receive buffers, tables of rotary positions
            tracker.settle("buffers", source=source)
        tracker.reset_peak()
        trainer.data_parallel.step()
        _label_states(trainer, tracker)
        moments["optimizer"] = tracker.peak
    for handle in handles:
        handle.remove()
    return moments


def _watch(trainer: Trainer, tracker: MemoryTracker) -> list[Any]:
    """What outlives the forward of a layer is an activation."""
    handles = []
    for chain in trainer.chains.values():
        handles.append(
            chain.register_forward_pre_hook(lambda *_: _label_gradients(trainer, tracker))
        )
        parts = (chain.embedding, *chain.layers.values(), chain.head)
        handles += [
            part.register_forward_hook(lambda *_: tracker.settle(ACTIVATION))
            for part in parts
            if part is not None
        ]
    return handles


def _label_states(trainer: Trainer, tracker: MemoryTracker) -> None:
    """Parameters, then what the optimizer holds beside them."""
    tracker.label(_parameters(trainer), "parameters")
    data_parallel = trainer.data_parallel
    if isinstance(data_parallel, Replicas):
        tracker.label([bucket.flat for bucket in data_parallel.buckets], "parameters")
        tracker.label([bucket.sums for bucket in data_parallel.buckets], "gradients")
        for bucket in data_parallel.buckets:
            tracker.label(bucket.optimizer.state_tensors(), "optimizer")
    elif isinstance(data_parallel, FullySharded) and data_parallel.optimizer is not None:
        tracker.label(data_parallel.optimizer.state_tensors(), "optimizer")


def _label_gradients(trainer: Trainer, tracker: MemoryTracker) -> None:
    grads = [p.grad for p in _parameters(trainer) if p.grad is not None]
    tracker.label([local(g) for g in grads], "gradients")


def _parameters(trainer: Trainer) -> list[nn.Parameter]:
    return [p for chain in trainer.chains.values() for p in chain.parameters()]


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
    parser.add_argument("--json", action="store_true", help="(always: kept for the command)")
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
