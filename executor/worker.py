"""One rank of a run; started by torchrun through ``executor.launch``."""

import argparse
import ctypes
import datetime
import hashlib
import os
import platform
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from executor.data import Batches, read_text
from executor.measure import Measurer, RankResult, median_collectives, slowest
from executor.mesh import make_grid
from executor.trainer import Trainer
from planner.measurement import Measurement, RankMeasurement, write_measurement
from planner.plan import Plan, read_plan

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
TIMEOUT = datetime.timedelta(minutes=10)


def main() -> int:
    """Run a plan's rank; rank 0 writes the measurement."""
    parser = argparse.ArgumentParser(prog="executor.worker", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank at once, silently
    warnings.filterwarnings("ignore")  # torch warns of its own internals on every rank
    rank = int(os.environ["RANK"])
    try:
        _run(options, read_plan(options.plan))
    except (ValueError, RuntimeError, torch.OutOfMemoryError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        print(f"rank {rank}: {lines[0]}", file=sys.stderr, flush=True)
        if os.environ.get("PLANNER_TRACEBACK"):
            raise
        return 1
    return 0


def _run(options: argparse.Namespace, plan: Plan) -> None:
    device = _start_process_group()
    text = None if options.data is None else read_text(options.data, plan.model, plan.job)
    batches = Batches(model=plan.model, job=plan.job, text=text)
    trainer = Trainer(plan, make_grid(plan.layout, device))
    measurer = Measurer(trainer, batches, _say if dist.get_rank() == 0 else lambda _: None)
    result = measurer.run(warmup=options.warmup, steps=options.steps)
    results: list[RankResult] = [result] * dist.get_world_size()
    dist.all_gather_object(results, result)
    if dist.get_rank() == 0:
        digest = hashlib.sha256(options.plan.read_bytes()).hexdigest()
        write_measurement(options.output, summarise(plan, results, digest, device))
    dist.barrier()
    dist.destroy_process_group()


def _start_process_group() -> torch.device:
    """NCCL and a GPU per rank, or gloo and one thread per rank."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
        return device
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    return torch.device("cpu")


def _die_with_parent() -> None:
    """So that no rank outlives a launcher that was killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def summarise(
    plan: Plan, results: Sequence[RankResult], digest: str, device: torch.device
) -> Measurement:
    """All ranks' numbers as one measurement."""
    steps = slowest(results)
    low, median, high = (float(q) for q in _quantiles(steps))
    return Measurement(
        plan_digest=digest,
        machine=machine_name(device),
        backend=dist.get_backend(),
        torch_version=torch.__version__,
        date=datetime.date.today().isoformat(),
        world_size=len(results),
        steps=len(steps),
        step_seconds=median,
        step_seconds_low=low,
        step_seconds_high=high,
        tokens_per_second=plan.job.tokens_per_step / median,
        ranks=tuple(
            RankMeasurement(
                rank=result.rank, stage=result.stage, peak_bytes=result.peak_bytes,
                resident_bytes=result.resident_bytes, seconds=result.median_parts(),
            )
            for result in results
        ),
        losses=tuple(results[0].losses),
        collective_seconds=median_collectives(results),
    )  # fmt: skip


def _quantiles(steps):
    import numpy as np

    return np.quantile(steps, [0.1, 0.5, 0.9])


def machine_name(device: torch.device) -> str:
    """The GPU, or the processor and its cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
