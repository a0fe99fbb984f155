"""From a probe of this machine to the constants of its ranks, one calibration per world size.

Ranks on one machine share its cores, caches and memory bandwidth, so what a kernel costs
depends on how many of them work at once. Each probed world size has rates and constants of
its own, and nothing is carried from one to the other.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.calibration import (
    Calibration,
    Spread,
    StepConstants,
    data_folder,
    save_calibration,
)
from planner.cluster import Cluster, Device
from planner.cost.collectives.constants import CommunicationConstants, default_communication
from planner.cost.collectives.fit import CollectiveSample, fit_collectives
from planner.cost.collectives.fit import predicted_seconds as predicted_collectives
from planner.cost.kernels.constants import KernelConstants
from planner.cost.kernels.fit import fit_kernels
from planner.cost.kernels.samples import KernelSample, predict_seconds
from planner.files import write_text
from planner.local import MACHINE_FILE, calibration_name, local_cluster
from planner.probe import COLLECTIVES, KERNELS, Probe, Sample

BASELINE_NOTE = "fp32 attention and convolution stand for every precision"
OPTIMIZER_BYTES = 28.0
"""AdamW in float32 reads and writes parameter and two moments, and reads the gradient."""


def calibrate_machine(probe: Probe) -> list[Calibration]:
    """Fit and keep a calibration for every world size of a probe.

    Writes ``machine.json`` (measured rates, by number of ranks) and one calibration file for
    each number of ranks into the user's data folder.

    Raises:
        ValueError: If a world size has too few kernel timings, or the folder is read-only.
    """
    worlds = {str(size): _rates(_of(probe, size)) for size in probe.world_sizes}
    document = {"worlds": worlds, "source": f"probe of {probe.date}, torch {probe.torch_version}"}
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}") from None
    write_text(folder / MACHINE_FILE, json.dumps(document, indent=1) + "\n")
    found = [calibrate_world(_of(probe, size), probe) for size in probe.world_sizes]
    for calibration in found:
        save_calibration(calibration)
    return found


def _of(probe: Probe, world_size: int) -> list[Sample]:
    return [sample for sample in probe.samples if sample.world_size == world_size]


def _rates(samples: Sequence[Sample]) -> dict[str, object]:
    """The best that one rank reached: what the rest of the model calls peak.

    Raises:
        ValueError: If no matrix product or no streaming was timed.
    """
    flops: dict[str, float] = {}
    for sample in samples:
        if sample.kind == "gemm":
            rate = 2.0 * np.prod([sample.sizes[x] for x in "mnk"]) / sample.seconds
            flops[sample.dtype] = max(flops.get(sample.dtype, 0.0), float(rate))
    streams = [s.sizes["bytes"] / s.seconds for s in samples if s.kind == "streaming"]
    if not flops or not streams:
        raise ValueError("a probe needs matrix products and streaming for every number of ranks")
    rates: dict[str, object] = {"flops_per_second": flops, "memory_bytes_per_second": max(streams)}
    messages = [s for s in samples if s.kind == "send_recv"]
    if messages:
        rates["link_bytes_per_second"] = max(s.sizes["bytes"] / s.seconds for s in messages)
        rates["latency_seconds"] = min(s.seconds for s in messages)
    return rates


def calibrate_world(samples: Sequence[Sample], probe: Probe) -> Calibration:
    """Constants of one number of ranks, with the scatter of its own kernels as the interval."""
    world = samples[0].world_size
    cluster = local_cluster(world)
    timed = [kernel_sample(s, cluster.device) for s in samples if _is_kernel(s)]
    kernels = fit_kernels(timed, cluster.device)
    spread = kernel_spread(timed, kernels)
    messages = [collective_sample(s) for s in samples if s.kind in COLLECTIVES]
    communication = fit_collectives(messages, cluster) if messages else default_communication()
    notes = (BASELINE_NOTE, _miss(messages, cluster, communication))
    return Calibration(
        name=calibration_name(world),
        kernels=kernels,
        communication=communication,
        step=_step_constants(samples),
        spread=spread,
        source=f"probe of {probe.machine}, {probe.date}, torch {probe.torch_version}",
        rows=len(samples),
        notes=tuple(note for note in notes if note),
    )


def _is_kernel(sample: Sample) -> bool:
    """bf16 attention on a CPU falls back to slow code that no other precision shares."""
    return sample.kind in KERNELS and (sample.dtype == "fp32" or sample.kind == "gemm")


def kernel_sample(sample: Sample, device: Device) -> KernelSample:
    """A timing in the words of the kernel model."""
    sizes = sample.sizes
    if sample.kind == "gemm":
        operation, shape = "gemm", {**sizes, "dtype": sample.dtype}
    elif sample.kind in ("attention", "attention_backward"):
        operation = "attention"
        shape = {
            "batch": sizes["batch"], "heads": sizes["heads"], "head_dim": sizes["head_dim"],
            "query_length": sizes["length"], "key_length": sizes["length"], "causal": True,
            "fused": True, "backward": sample.kind == "attention_backward",
            "dtype": sample.dtype,
        }  # fmt: skip
    elif sample.kind == "convolution":
        operation = "convolution"
        same = ("batch", "in_channels", "out_channels", "kernel", "stride")
        shape = {name: sizes[name] for name in same} | {
            "height": sizes["side"], "width": sizes["side"], "dtype": sample.dtype,
        }  # fmt: skip
    else:
        operation, shape = "streaming", {"num_bytes": sizes["bytes"]}
    return KernelSample(
        operation=operation, shape=shape, seconds=sample.seconds, device=device, looped=False
    )


def kernel_spread(samples: Sequence[KernelSample], constants: KernelConstants) -> Spread:
    """The 80 % interval of one kernel's log error: what a step made of them may be off by."""
    errors = np.log([s.seconds for s in samples]) - np.log(predict_seconds(samples, constants))
    low, high = np.quantile(errors, [0.1, 0.9])
    return Spread(low=min(float(low), 0.0), high=max(float(high), 0.0))


def collective_sample(sample: Sample) -> CollectiveSample:
    """A timing in the words of the communication model."""
    sizes = sample.sizes
    return CollectiveSample(
        kind=sample.kind,  # type: ignore[arg-type]
        buffer_bytes=sizes["bytes"],
        seconds=sample.seconds,
        degree=int(sizes["degree"]),
        stride=int(sizes["stride"]),
    )


def _miss(
    messages: Sequence[CollectiveSample], cluster: Cluster, constants: CommunicationConstants
) -> str:
    if not messages:
        return ""
    measured = np.array([sample.seconds for sample in messages])
    errors = np.abs(predicted_collectives(messages, cluster, constants) / measured - 1)
    return f"collectives fitted to {np.median(errors):.0%} median error over {len(messages)}"


def _step_constants(samples: Sequence[Sample]) -> StepConstants:
    """A CPU rank has no asynchronous device: its host time is inside every timed kernel."""
    return replace(
        StepConstants(),
        overlap_share=_overlap_share(samples),
        overlap_slowdown=0.0,
        straggler_growth=0.0,
        host_operation_seconds=0.0,
        host_microbatch_seconds=0.0,
        host_step_seconds=0.0,
        optimizer_bytes=OPTIMIZER_BYTES,
    )


def _overlap_share(samples: Sequence[Sample]) -> float:
    """Of a collective beside compute, the part that cost nothing: 1 - (together - work) / sum.

    On a machine whose ranks keep every core busy the collective takes its time from the
    compute, and the share is near zero.
    """
    shares = []
    for sample in samples:
        if sample.kind == "overlap":
            compute = sample.sizes["compute_seconds"]
            collective = sample.sizes["communication_seconds"]
            hidden = compute + collective - sample.seconds
            shares.append(np.clip(hidden / min(compute, collective), 0.0, 1.0))
    return float(np.mean(shares)) if shares else 0.0


def read_and_calibrate(path: Path) -> list[Calibration]:
    """``planner fit probe.json``: calibrate this machine by a probe file."""
    from planner.probe import read_probe

    return calibrate_machine(read_probe(path))
