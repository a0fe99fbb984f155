"""Start a plan under torchrun's own engine on this machine's devices, and measure it."""

import argparse
import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from executor.support import unsupported
from planner.layout import Layout
from planner.measurement import read_measurement, write_measurement
from planner.plan import Plan, read_plan, write_plan
from planner.units import format_bytes

CPU_RANKS = 8
"""Gloo ranks that may always share one machine, however few its cores."""
STATE_BYTES_PER_PARAMETER = 16
"""Parameters, gradients and AdamW's state: a floor of what one whole model needs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 a rank failed, 2 the plan cannot run here."""
    options = _parser().parse_args(arguments)
    try:
        plan = read_plan(options.plan)
        _check(plan, several_nodes=options.nnodes is not None)
        if options.data is not None:
            from executor.data import read_text

            read_text(options.data, plan.model, plan.job)
        if options.steps < 1:
            raise ValueError(f"--steps must be at least 1, got {options.steps}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise
    logging.disable(logging.CRITICAL)  # what torchrun logs of a failure is said in one line
    code = _launch(options.plan, options.output, plan.layout.world_size, options)
    if code == 0 and options.baseline:
        code = _add_baseline(plan, options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="executor.launch", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("measurement.json"))
    parser.add_argument("--steps", type=int, default=10, help="measured steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--data", type=Path, help="a text file, read byte by byte")
    parser.add_argument("--baseline", action="store_true", help="also run on one device")
    parser.add_argument("--nnodes", help="passed to torchrun")
    parser.add_argument("--rdzv-endpoint", help="passed to torchrun")
    return parser


def _check(plan: Plan, *, several_nodes: bool) -> None:
    """Refuse a plan that cannot run here, before anything is started.

    Raises:
        ValueError: With the reason, and what can be done.
    """
    import torch

    gpus = torch.cuda.device_count()
    if reason := unsupported(plan, "cuda" if gpus else "cpu"):
        raise ValueError(reason)
    if several_nodes:
        return
    devices = gpus or max(CPU_RANKS, os.cpu_count() or 1)
    kind = "GPUs" if gpus else "CPU ranks"
    if plan.layout.world_size > devices:
        raise ValueError(
            f"this machine has {devices} {kind}, the plan needs {plan.layout.world_size}: start "
            "it on every node with --nnodes N --rdzv-endpoint HOST:PORT, or make a plan for this "
            "machine with 'planner recommend --cluster here'"
        )
    if not gpus:
        _check_host_memory(plan)


def _check_host_memory(plan: Plan) -> None:
    """CPU ranks share one memory: what all of them need must be there."""
    layout = plan.layout
    if plan.prediction is not None:
        needed = plan.prediction.peak_bytes * layout.world_size
    else:
        copies = 1 if layout.zero_stage == 3 else layout.dp * layout.cp
        needed = STATE_BYTES_PER_PARAMETER * plan.model.total_parameters * copies
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"the plan's {layout.world_size} ranks need {format_bytes(needed)} together, this "
            f"machine has {format_bytes(there)}: start it on every node with --nnodes N "
            "--rdzv-endpoint HOST:PORT, or make a plan for this machine with "
            "'planner recommend --cluster here'"
        )


def _launch(plan: Path, output: Path, world_size: int, options: argparse.Namespace) -> int:
    """Run the worker on every rank by torchrun's engine; one line for a rank that failed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, get_args_parser

    words = [*_torchrun_words(world_size, options), "--module", "executor.worker", str(plan)]
    words += ["--output", str(output), "--steps", str(options.steps)]
    words += ["--warmup", str(options.warmup)]
    words += ["--data", str(options.data)] if options.data else []
    config, command, command_words = config_from_args(get_args_parser().parse_args(words))
    try:
        elastic_launch(config=config, entrypoint=command)(*command_words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"rank {rank} failed ({_how(failure.exitcode)}); all ranks have been ended",
              file=sys.stderr)  # fmt: skip
        return 1
    except (SignalException, KeyboardInterrupt):
        print("interrupted; all ranks have been ended", file=sys.stderr)
        return 130
    return 0


def _torchrun_words(world_size: int, options: argparse.Namespace) -> list[str]:
    if options.nnodes is None:
        alone = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # --standalone
        return [*alone, "--rdzv-id", str(uuid.uuid4()), "--nproc-per-node", str(world_size)]
    nodes = int(options.nnodes.split(":")[-1])
    words = ["--nnodes", options.nnodes, "--nproc-per-node", str(max(world_size // nodes, 1))]
    if options.rdzv_endpoint:
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", options.rdzv_endpoint]
    return words


def _how(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def one_device(plan: Plan) -> Plan:
    """The same job on one device: the same microbatches, one after another."""
    layout = Layout(
        microbatch=plan.layout.microbatch,
        microbatches=plan.job.global_batch // plan.layout.microbatch,
    )
    return replace(plan, layout=layout, prediction=None)


def _add_baseline(plan: Plan, options: argparse.Namespace) -> int:
    """Run the job on one device, and put its step time beside the plan's."""
    print("baseline: the same job on one device", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        alone, output = Path(folder, "plan.json"), Path(folder, "measurement.json")
        write_plan(alone, one_device(plan))
        options.nnodes = None
        if code := _launch(alone, output, 1, options):
            return code
        seconds = read_measurement(output).step_seconds
    measured = read_measurement(options.output)
    write_measurement(options.output, replace(measured, baseline_seconds=seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
