"""This machine as a cluster, without torch: what ``--cluster here`` means.

Cores and memory come from the operating system, GPUs from ``nvidia-smi``. Rates of a CPU are
placeholders until the probe has measured them and written ``machine.json`` into the user's
data folder; whatever that file holds replaces the placeholder.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.box import one_box
from planner.calibration import data_folder
from planner.catalogue import load_device
from planner.cluster import Cluster, Device, Tier
from planner.units import GB, MIB, MICROSECOND

MACHINE_FILE = "machine.json"

# Placeholders of one CPU rank: one core of 3 GHz with 16 float32 FLOPs a cycle, a tenth of a
# desktop's memory, a loopback socket. They only rank layouts until the probe has run.
CORE_FLOPS_PER_SECOND = 4.8e10
HOST_MEMORY_BYTES_PER_SECOND = 20 * GB
LOOPBACK_BYTES_PER_SECOND = 1 * GB
LOOPBACK_LATENCY_SECONDS = 100 * MICROSECOND


def calibration_name(world_size: int) -> str:
    """The calibration of so many ranks on this machine: they share its cores and memory."""
    return f"here-{world_size}"


def has_calibration(world_size: int) -> bool:
    """Whether this machine was probed with so many ranks."""
    return (data_folder() / "calibrations" / f"{calibration_name(world_size)}.json").is_file()


def local_cluster(num_ranks: int = 0) -> Cluster:
    """This machine: its GPUs if ``nvidia-smi`` lists any, else CPU ranks joined by gloo.

    Args:
        num_ranks: Ranks that will share the machine; 0 for one per GPU, or one per core.

    Raises:
        ValueError: If more ranks are asked for than there are GPUs, or the measured file is
            not readable.
    """
    if num_ranks < 0:
        raise ValueError(f"num_ranks must not be negative, got {num_ranks}")
    gpus = _list_gpus()
    if gpus:
        if num_ranks > len(gpus):
            raise ValueError(f"this machine has {len(gpus)} GPUs, {num_ranks} were asked for")
        cluster = _gpu_cluster(gpus, num_ranks or len(gpus))
    else:
        cluster = _cpu_cluster(num_ranks or _num_cores())
    return _with_measured(cluster, _of_world(_read_measured(), cluster.num_devices))


def _cpu_cluster(num_ranks: int) -> Cluster:
    memory_bytes = _host_memory_bytes()
    cores_per_rank = max(_num_cores() / num_ranks, 1.0)
    # Ranks beyond the cores take turns on them.
    share = min(_num_cores() / num_ranks, 1.0)
    device = Device(
        name=f"{platform.machine() or 'cpu'} rank",
        kind="cpu",
        architecture="CPU",
        memory_bytes=memory_bytes // num_ranks,
        memory_bytes_per_second=HOST_MEMORY_BYTES_PER_SECOND / num_ranks,
        flops_per_second={"fp32": CORE_FLOPS_PER_SECOND * cores_per_rank * share},
        multiprocessors=max(int(cores_per_rank), 1),
        source="placeholder rates; run `planner probe` to measure this machine",
        from_memory="yes",
    )
    tier = Tier(
        name="host",
        size=num_ranks,
        link="gloo",
        bytes_per_second=LOOPBACK_BYTES_PER_SECOND,
        latency_seconds=LOOPBACK_LATENCY_SECONDS,
    )
    return Cluster(
        name="here",
        device=device,
        tiers=(tier,),
        devices_per_host=num_ranks,
        host_memory_bytes=memory_bytes,
        num_devices=num_ranks,
        source=device.source,
    )


def _gpu_cluster(gpus: list[tuple[str, int]], num_ranks: int) -> Cluster:
    name, memory_bytes = gpus[0]  # the driver's name is an alias of the preset
    device = replace(load_device(name), memory_bytes=min(size for _, size in gpus))
    return replace(
        one_box(device, num_ranks, name="here"),
        host_memory_bytes=_host_memory_bytes(),
        source=f"nvidia-smi: {len(gpus)} x {name}; {device.source}",
        notes=f"{memory_bytes // MIB} MiB by nvidia-smi; links as the vendor states them",
    )


def _list_gpus() -> list[tuple[str, int]]:
    """Name and memory in bytes of every GPU that ``nvidia-smi`` lists; none without it."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in answer.stdout.splitlines()]
    return [(name.strip(), int(size) * MIB) for name, _, size in rows if size.strip().isdigit()]


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def _host_memory_bytes() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 1024 * MIB  # no way to ask: a small machine is the safe guess
    # A container may hold less than the machine it runs on.
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        text = limit.read_text().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total


def _read_measured() -> Mapping[str, object]:
    path = data_folder() / MACHINE_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    try:
        measured = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}; run the probe again") from None
    if not isinstance(measured, Mapping):
        raise ValueError(f"{path} must hold an object with measured rates")
    return measured


def _of_world(measured: Mapping[str, object], num_ranks: int) -> Mapping[str, object]:
    """The rates of so many ranks: they share cores and memory, so each number has its own."""
    worlds = measured.get("worlds")
    if worlds is None:
        return measured
    rates = worlds.get(str(num_ranks), {}) if isinstance(worlds, Mapping) else None
    if not isinstance(rates, Mapping):
        raise ValueError(f"{MACHINE_FILE}: worlds must be an object of rates by number of ranks")
    return {**rates, "source": measured.get("source", "")} if rates else {}


def _with_measured(cluster: Cluster, measured: Mapping[str, object]) -> Cluster:
    """The cluster with measured rates in place of the described ones.

    Keys of the file, all in base units and all optional: ``flops_per_second`` (by dtype),
    ``memory_bytes_per_second``, ``link_bytes_per_second``, ``latency_seconds``, ``source``.
    A file of another device than this cluster's (``device``) is left alone.
    """
    if not measured or measured.get("device", cluster.device.name) != cluster.device.name:
        return cluster
    source = str(measured.get("source", "measured on this machine by the probe"))
    device, tier = cluster.device, cluster.tiers[0]
    flops = measured.get("flops_per_second", device.flops_per_second)
    if not isinstance(flops, Mapping):
        raise ValueError(f"{MACHINE_FILE}: flops_per_second must be an object by dtype")
    device = replace(
        device,
        flops_per_second={str(k): _rate(v, f"flops_per_second.{k}") for k, v in flops.items()},
        memory_bytes_per_second=_measured(measured, device, "memory_bytes_per_second"),
        source=source,
        from_memory="no",
    )
    link_rate = measured.get("link_bytes_per_second", tier.bytes_per_second)
    tier = replace(
        tier,
        bytes_per_second=_rate(link_rate, "link_bytes_per_second"),
        latency_seconds=_measured(measured, tier, "latency_seconds"),
    )
    return replace(cluster, device=device, tiers=(tier, *cluster.tiers[1:]), source=source)


def _measured(measured: Mapping[str, object], described: object, name: str) -> float:
    return _rate(measured.get(name, getattr(described, name)), name)


def _rate(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{MACHINE_FILE}: {name} must be a positive number, got {value!r}")
    return float(value)
