"""Time kernels and collectives on this machine, the input of ``planner fit``.

One process group per world size: ranks share cores and memory bandwidth, so what one rank
takes is timed while all of them do the same. A window, not a call, is timed: processes that
take turns on a core show their real pace only over many turns.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from planner.probe import Probe, Sample, write_probe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Tokens x out x in of small models and of one wide product; weight gradients turn them round.
GEMMS = ((128, 256, 256), (512, 256, 256), (512, 768, 256), (512, 256, 768), (256, 256, 512),
         (1024, 1024, 512), (512, 512, 2048), (2048, 512, 512), (512, 4096, 256),
         (4096, 256, 512), (1024, 1024, 1024))  # fmt: skip
# batch, heads, length, head_dim
ATTENTIONS = ((2, 8, 128, 32), (4, 8, 256, 32), (2, 16, 512, 64))
# batch, in channels, out channels, side, kernel, stride
CONVOLUTIONS = ((4, 64, 64, 28, 3, 1), (4, 64, 256, 28, 1, 1), (8, 128, 128, 14, 3, 1))
STREAMS = (2**6, 2**12, 2**16, 2**19, 2**21, 2**24)
MESSAGES = (2**12, 2**16, 2**19, 2**22, 2**25)
COLD_BYTES = 2**26
WINDOW_SECONDS = 0.03
PASSES = 3
PROBE_LIMIT_SECONDS = 300


def seconds_per_call(call: Callable[[], object], *, window: float = WINDOW_SECONDS) -> float:
    """Mean seconds of a call over a window in which every rank makes the same calls."""
    call()
    began = time.perf_counter()
    call()
    once = max(time.perf_counter() - began, 1e-7)
    count = max(2, min(10_000, round(window / once)))
    if dist.get_world_size() > 1:
        agreed = torch.tensor([count])
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        count = int(agreed)
        dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        call()
    mean = torch.tensor([(time.perf_counter() - began) / count], dtype=torch.float64)
    if dist.get_world_size() > 1:
        dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def _copies(num_bytes: int) -> int:
    """Operands enough to fall out of the caches between two uses, as a step's do."""
    return max(2, min(64, COLD_BYTES // num_bytes))


def _in_turn(call: Callable[..., Any], operands: Sequence[tuple[Any, ...]]) -> Callable[[], None]:
    """The call on each operand in turn; results live a while, as activations do.

    A result that is dropped at once would be written into the same warm memory again.
    """
    turns = cycle(operands)
    results: deque[Any] = deque(maxlen=len(operands))

    def turn() -> None:
        results.append(call(*next(turns)))

    return turn


def kernel_samples() -> Iterator[tuple[str, dict[str, float], str, float]]:
    """(kind, sizes, dtype, seconds) of single kernels."""
    for name, dtype in DTYPES.items():
        for m, n, k in GEMMS:
            operands = [
                (torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype))
                for _ in range(_copies(4 * (m * k + n * k)))
            ]
            seconds = seconds_per_call(_in_turn(functional.linear, operands))
            yield "gemm", {"m": m, "n": n, "k": k}, name, seconds
        for shape in ATTENTIONS:
            yield from _attention(shape, name, dtype)
    for image_shape in CONVOLUTIONS:
        batch, channels, out, side, kernel, stride = image_shape
        image = torch.randn(batch, channels, side, side)
        weight = torch.randn(out, channels, kernel, kernel)
        seconds = seconds_per_call(
            partial(functional.conv2d, image, weight, stride=stride, padding=kernel // 2)
        )
        sizes: dict[str, float] = dict(
            zip(("batch", "in_channels", "out_channels", "side", "kernel", "stride"), image_shape,
                strict=True)
        )  # fmt: skip
        yield "convolution", sizes, "fp32", seconds
    for elements in STREAMS:
        # Recorded for backward, as in training: the small ones show what issuing costs.
        pairs = [
            tuple(torch.randn(elements, requires_grad=True) for _ in range(2))
            for _ in range(_copies(8 * elements))
        ]
        seconds = seconds_per_call(_in_turn(torch.mul, pairs))
        yield "streaming", {"bytes": 12.0 * elements}, "fp32", seconds


def _attention(
    shape: tuple[int, int, int, int], name: str, dtype: torch.dtype
) -> Iterator[tuple[str, dict[str, float], str, float]]:
    """Forward alone, and backward alone as a step less its forward."""
    query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    sizes = dict(zip(("batch", "heads", "length", "head_dim"), map(float, shape), strict=True))

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    out = forward()
    gradient = torch.ones_like(out)

    def backward() -> None:
        torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True)

    yield "attention", sizes, name, seconds_per_call(forward)
    yield "attention_backward", sizes, name, seconds_per_call(backward)


def collective_samples() -> Iterator[tuple[str, dict[str, float], float]]:
    """(kind, sizes, seconds) in groups of every degree that divides the world."""
    world = dist.get_world_size()
    for degree in (d for d in range(2, world + 1) if world % d == 0):
        for stride in sorted({1, world // degree}):
            group = _group(degree, stride)
            for size in MESSAGES:
                for kind, call in _calls(size, degree, group).items():
                    seconds = seconds_per_call(call, window=2 * WINDOW_SECONDS)
                    sizes = {"bytes": float(size), "degree": degree, "stride": stride}
                    yield kind, sizes, seconds


def _group(degree: int, stride: int) -> dist.ProcessGroup:
    """This rank's group of ``degree`` members that lie ``stride`` apart."""
    world, mine = dist.get_world_size(), None
    for start in range(world):
        if start // stride % degree == 0:
            members = [start + i * stride for i in range(degree)]
            group = dist.new_group(members)
            if dist.get_rank() in members:
                mine = group
    assert mine is not None, "the groups cover the world"
    return mine


def _calls(size: int, degree: int, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    """Each collective with a buffer of ``size`` bytes in nccl-tests' sense."""
    elements = size // 4
    whole, part = torch.zeros(elements), torch.zeros(elements // degree)
    gathered = list(whole.chunk(degree))
    rank = dist.get_rank(group)
    neighbours = [dist.get_global_rank(group, (rank + d) % degree) for d in (1, -1)]

    def exchange() -> None:
        work: list[Any] = [
            dist.isend(whole, neighbours[0], group=group),
            dist.irecv(torch.empty_like(whole), neighbours[1], group=group),
        ]
        for handle in work:
            handle.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather(gathered, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
        "send_recv": exchange,
    }


def overlap_sample() -> tuple[dict[str, float], float]:
    """A matrix product and an all-reduce, alone and together: how much does one hide?"""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    buffer = torch.zeros(2**21)

    def product() -> None:
        functional.linear(left, right)

    def reduction() -> None:
        dist.all_reduce(buffer)

    def together() -> None:
        work: Any = dist.all_reduce(buffer, async_op=True)
        product()
        work.wait()

    window = 4 * WINDOW_SECONDS
    alone = {
        "compute_seconds": seconds_per_call(product, window=window),
        "communication_seconds": seconds_per_call(reduction, window=window),
    }
    return alone, seconds_per_call(together, window=window)


def median_of_passes(make: Callable[[], Iterator[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """Each timing's median over passes that lie seconds apart.

    A burst of other work on the machine spoils one pass, not all. Seconds come last.
    """
    passes = [list(make()) for _ in range(PASSES)]
    return [
        (*same[0][:-1], statistics.median(one[-1] for one in same))
        for same in zip(*passes, strict=True)
    ]


def _work(path: Path) -> None:
    """One rank of one world size; rank 0 writes the samples."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    samples = [
        {"kind": kind, "sizes": sizes, "dtype": dtype, "seconds": seconds, "world_size": world}
        for kind, sizes, dtype, seconds in median_of_passes(kernel_samples)
    ]
    if world > 1:
        samples += [
            {"kind": kind, "sizes": sizes, "seconds": seconds, "world_size": world}
            for kind, sizes, seconds in median_of_passes(collective_samples)
        ]
        sizes, seconds = overlap_sample()
        samples.append(
            {"kind": "overlap", "sizes": sizes, "seconds": seconds, "world_size": world}
        )
    if dist.get_rank() == 0:
        path.write_text(json.dumps(samples))
    dist.barrier()
    dist.destroy_process_group()


def probe_world(world_size: int) -> list[Sample]:
    """Start the ranks of one world size and collect what they timed.

    Raises:
        ValueError: If a rank fails or takes too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={world_size}", "-m", "executor.probe", "--work", str(path),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            finished = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False,
                timeout=PROBE_LIMIT_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ValueError(f"probing {world_size} ranks took too long") from None
        if finished.returncode or not path.is_file():
            last = (finished.stderr.strip().splitlines() or ["no output"])[-1]
            raise ValueError(f"probing {world_size} ranks failed: {last}")
        return [Sample(**sample) for sample in json.loads(path.read_text())]


def main() -> int:
    """``python -m executor.probe --world-sizes 1,2,4 --output probe.json``."""
    parser = argparse.ArgumentParser(prog="planner probe", description=__doc__)
    parser.add_argument("--world-sizes", default="1,2,4")
    parser.add_argument("--output", "-o", type=Path, default=Path("probe.json"))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        _work(arguments.work)
        return 0
    try:
        sizes = [int(word) for word in arguments.world_sizes.split(",")]
        if min(sizes) < 1:
            raise ValueError
    except ValueError:
        print(f"error: --world-sizes {arguments.world_sizes!r} is not a list of numbers of "
              "ranks such as 1,2,4", file=sys.stderr)  # fmt: skip
        return 2
    samples: list[Sample] = []
    for size in sizes:
        print(f"probing kernels and collectives with {size} ranks ...", file=sys.stderr)
        try:
            samples += probe_world(size)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    write_probe(
        arguments.output,
        Probe(
            machine=f"{platform.machine()}, {os.cpu_count()} cores", backend="gloo",
            torch_version=torch.__version__, date=datetime.now(UTC).date().isoformat(),
            samples=tuple(samples),
        ),
    )  # fmt: skip
    print(f"wrote {len(samples)} timings to {arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
