"""Machines and habits of run tables: from the words of a row to presets."""

import re
import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from planner.catalogue import load_cluster, load_device, load_framework
from planner.cluster import Cluster, Tier
from planner.framework import Framework
from planner.runs.columns import Row, Unreadable
from planner.units import GB, GBIT, MICROSECOND

NETWORK_HOP_SECONDS = 14 * MICROSECOND  # NCCL src/graph/tuning.cc, Simple protocol, per hop


@cache
def words() -> dict[str, Any]:
    """The table of words, ``planner/presets/runs.toml``."""
    path = files("planner") / "presets" / "runs.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def build_cluster(row: Row) -> tuple[Cluster, list[str]]:
    """The cluster of one row: the usual node of its GPU, with the links that the row states.

    Raises:
        Unreadable: If the GPU is missing or unknown.
    """
    name = row.text("gpu")
    if not name:
        raise Unreadable("missing gpu")
    per_node = row.count("gpus_per_node", default=0) if row.text("gpus_per_node") else 0
    return _cluster(name, per_node, row.text("inter_node_link"))


@cache
def _cluster(gpu: str, per_node: int, network: str) -> tuple[Cluster, list[str]]:
    assumed = []
    cluster = _usual(gpu, per_node)
    for fabric in words()["fabrics"]:
        if fabric["gpu"] != gpu.lower():
            continue
        if re.search(fabric["pattern"], network, re.IGNORECASE):
            return load_cluster(fabric["cluster"]), []
    host = per_node or cluster.devices_per_node
    stated = network_tier(network, host)
    if stated is not None and cluster.devices_per_node > host:
        # The words describe one host; an NVLink domain joins the cards of many.
        hosts = cluster.devices_per_node / host
        stated = replace(stated, uplink_bytes_per_second=stated.uplink_bytes_per_second * hosts)
    if stated is not None and len(cluster.tiers) > 1:
        cluster = replace(cluster, tiers=(*cluster.tiers[:-1], stated))
    elif stated is not None:
        cluster = replace(cluster, tiers=(*cluster.tiers, stated), num_devices=0)
    elif not network.startswith("n/a"):
        assumed.append(f"network of {cluster.name}")
    return cluster, assumed


def _usual(gpu: str, per_node: int) -> Cluster:
    try:
        device = load_device(gpu)
    except ValueError:
        raise Unreadable("unknown gpu", f"gpu={gpu}") from None
    choices = words()["clusters"].get(gpu.lower().replace("_", "-"), {})
    preset = choices.get(str(per_node)) or choices.get("default")
    if preset is None:
        cluster = load_cluster(f"{gpu}:{per_node or 8}")
        network = network_tier("8x200 Gb/s infiniband", per_node or 8)
        assert network is not None
        return replace(cluster, tiers=(*cluster.tiers, network), num_devices=0)
    cluster = replace(load_cluster(preset), device=device)
    # A domain of many hosts (NVL72) is not cut to the host's own count.
    inner = cluster.tiers[0]
    hosts = cluster.devices_per_host and cluster.devices_per_host != inner.size
    if per_node and inner.size != per_node and not hosts:
        cut = replace(inner, size=per_node)
        outer = [t for t in cluster.tiers[1:] if t.size == 0 or t.size % per_node == 0]
        cluster = replace(cluster, tiers=(cut, *outer), devices_per_host=per_node)
    return cluster


def network_tier(text: str, per_node: int) -> Tier | None:
    """The network that a row's words describe, or None if they state no rate.

    >>> tier = network_tier("8x200Gb HDR IB per node", 8)
    >>> tier.link, tier.bytes_per_second / 1e9, tier.uplink_bytes_per_second / 1e9
    ('infiniband', 25.0, 200.0)
    >>> network_tier("400 Gbps RDMA per GPU", 8).uplink_bytes_per_second / 1e9
    400.0
    """
    low = text.lower()
    link = next((e["link"] for e in words()["links"] if re.search(e["pattern"], low)), None)
    found = re.search(r"(\d+(?:\.\d+)?)\s*(t|g)(?:b(?:ps|/s|it)?)?", low)
    bare = re.search(r"(\d+)\s*x\s*omni-?path\s*(\d+)", low)
    if found is None and bare is None:
        return None
    if found is None:
        assert bare is not None
        cards, each = int(bare[1]), float(bare[2]) * GBIT
    else:
        # "8x200Gb", "4x ConnectX-7 IB NDR 400Gb/s": the count stands before the name or rate.
        counted = re.search(r"(\d+)\s*x\b|(\d+)x(?=\d)", low[: found.end()])
        cards = int(counted[1] or counted[2]) if counted else 1
        scale = 1000 if found[2] == "t" else 1
        bytewise = re.search(r"\d\s*GB", text) is not None
        each = float(found[1]) * scale * (GB if bytewise else GBIT)
    if re.search(r"per gpu|per device", low):
        cards = per_node
    total = cards * each
    return Tier(
        name="network", size=0, link=link or "infiniband", generation=text[:60],
        bytes_per_second=each if cards > 1 else total, uplink_bytes_per_second=total,
        latency_seconds=NETWORK_HOP_SECONDS,
    )  # fmt: skip


def habits(row: Row) -> dict[str, Any]:
    """The entry of the word table for the row's framework; an unknown one is taken as ours."""
    columns = ("framework", "gpu", "notes")
    return _habits(*(row.text(column).lower() for column in columns))


@cache
def _habits(framework: str, gpu: str, notes: str) -> dict[str, Any]:
    for entry in words()["frameworks"]:
        found = re.search(entry["pattern"], framework)
        if (found and re.search(entry.get("gpu", ""), gpu)
                and re.search(entry.get("notes", ""), notes)):  # fmt: skip
            return entry
    return {"profile": "planner", "zero_stage": 0, "sequence_parallel": True}


def build_framework(row: Row) -> Framework:
    """The profile of the row's framework, with what its name and notes say of the kernels."""
    entry = habits(row)
    framework = _load(entry["profile"])
    changes: dict[str, Any] = dict(entry.get("settings", {}))
    for kernel in words()["kernels"]:
        if re.search(kernel["pattern"], f"{row.text('model_name')}; {row.text('notes')}"):
            changes |= kernel["set"]
    return replace(framework, **changes) if changes else framework


def memory_kind(row: Row) -> str:
    """In which sense memory was measured: what the notes say, else the column."""
    for entry in words()["memory_kinds"]:
        if re.search(entry["pattern"], row.text("notes")):
            return entry["kind"]
    return row.text("memory_kind")


def memory_rank(row: Row) -> str:
    """Whose memory the source measured: of the first, the last or the heaviest stage."""
    for entry in words()["memory_ranks"]:
        if re.search(entry["pattern"], row.text("notes")):
            return entry["rank"]
    return "heaviest"


@cache
def _load(profile: str) -> Framework:
    return load_framework(profile)


def precision_of(row: Row) -> str:
    """The job's precision.

    Raises:
        Unreadable: If it is not one that the planner knows.
    """
    known = words()["precisions"]
    text = row.text("precision").lower()
    if text not in known:
        raise Unreadable(f"precision {text[:20]} is not modelled")
    return known[text]
