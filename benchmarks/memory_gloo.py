"""Estimated memory against the executor's tracked peak on real tensors: CPU ranks, gloo.

    python -m benchmarks.memory_gloo [--report benchmarks/reports/memory_gloo.md]

A small llama trains for three steps under torchrun on 1 to 4 ranks of this machine; every
rank counts its live tensor bytes, and the heaviest is set beside the heaviest estimate.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planner.catalogue import load_device, load_framework
from planner.cost.memory import stage_memory
from planner.job import Job
from planner.layout import Layout, format_layout
from planner.measurement import read_measurement
from planner.model import Embedding, FeedForward, Head, Model, Run, SelfAttention, TransformerLayer
from planner.plan import Plan, write_plan
from planner.units import MIB

TOLERANCE = 0.05
DEVICE = "cpu-laptop-4c-avx2"
BLOCK = TransformerLayer(
    hidden=256,
    attention=SelfAttention(heads=8, kv_heads=8, head_dim=32),
    feed_forward=FeedForward(ffn_hidden=704),
)
MODEL = Model(
    name="small llama", family="decoder", embedding=Embedding(vocabulary=2048, hidden=256),
    layers=(Run(block=BLOCK, count=4),), head=Head(vocabulary=2048, hidden=256),
    sequence_length=256,
)  # fmt: skip


def layouts() -> Iterator[Layout]:
    """Each way of being parallel on at most four ranks."""
    yield Layout(microbatch=2)
    yield Layout(microbatch=2, microbatches=2, recompute="full")
    yield Layout(dp=2, microbatch=2)
    yield Layout(dp=2, microbatch=2, zero_stage=1)
    yield Layout(dp=2, microbatch=2, zero_stage=3)
    yield Layout(tp=2, microbatch=2)
    yield Layout(tp=2, microbatch=2, sequence_parallel=True)
    yield Layout(pp=2, microbatches=4, stage_layers=(2, 2))
    yield Layout(dp=2, tp=2, microbatch=2, sequence_parallel=True, zero_stage=1)


def run(layout: Layout, precision: str) -> tuple[int, int]:
    """Measured and estimated bytes of the heaviest rank."""
    job = Job(
        global_batch=layout.global_batch, sequence_length=256,
        precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    plan = Plan(model=MODEL, job=job, layout=layout, cluster=DEVICE, devices_per_node=4)
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "plan.json", Path(folder) / "measurement.json"
        write_plan(path, plan)
        subprocess.run(
            [sys.executable, "-m", "executor.launch", str(path), "-o", str(output),
             "--steps", "1", "--warmup", "1"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        measured = read_measurement(output).peak_bytes
    stages = stage_memory(
        MODEL, job, load_framework("planner"), layout, device=load_device(DEVICE)
    )
    return measured, max(stage.allocated for stage in stages)


def main() -> int:
    """Run every layout and print the report; exit code 1 beyond the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    lines, errors = [], []
    for precision in ("fp32", "bf16"):
        for layout in layouts():
            measured, estimated = run(layout, precision)
            errors.append(estimated / measured - 1)
            lines.append(
                f"| {precision} | {format_layout(layout)} | {measured / MIB:.1f} "
                f"| {estimated / MIB:.1f} | {errors[-1]:+.2%} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    size = np.abs(errors)
    head = [
        "# Memory: estimate against tracked tensors on CPU ranks",
        "",
        f"{len(size)} runs; within {TOLERANCE:.0%}: {(size <= TOLERANCE).sum()}; "
        f"median {np.median(size):.2%}, largest {size.max():.2%}.",
        "",
        "| precision | layout | tracked MiB | estimate MiB | error |",
        "|---|---|---:|---:|---:|",
    ]
    text = "\n".join([*head, *lines]) + "\n"
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    print(text)
    return int((size > TOLERANCE).any())


if __name__ == "__main__":
    sys.exit(main())
