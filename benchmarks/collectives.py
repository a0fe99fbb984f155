"""Score the communication model on published collectives; see ``fit_collectives.py``.

Run ``python -m benchmarks.collectives``: writes ``benchmarks/reports/collectives.md``.

``published/collectives.csv`` holds one timing per row: the cluster preset (with the number or
the rate of its network cards where the source had another one), the ranks, and how fit it is
for learning: ``clean`` fabrics teach and score, ``shared`` ones (untuned or busy, by their own
source's word) and ``unstated`` ones are only shown.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from planner.catalogue import load_cluster
from planner.cluster import Cluster
from planner.cost.collectives.fit import CollectiveSample, predicted_seconds
from planner.cost.comm import CommunicationConstants, default_communication
from planner.units import GB, KIB, MIB, MICROSECOND

TIMINGS = Path(__file__).parent / "published" / "collectives.csv"
REPORT = Path(__file__).parent / "reports" / "collectives.md"
CROSS_VALIDATION = Path(__file__).parent / "reports" / "collectives_cross_validation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One published timing with what is needed to predict and to group it."""

    id: str
    sample: CollectiveSample
    cluster: Cluster
    hosts: int
    fabric: str
    source: str

    @property
    def tier(self) -> str:
        """Link and reach, for grouping."""
        links = [tier.link for tier in self.cluster.tiers]
        near = self.sample.degree * self.sample.stride <= self.cluster.devices_per_node
        inside = self.hosts == 1 or near
        if inside:
            widest = min(
                (t for t in self.cluster.tiers if t.size >= self.sample.degree or not t.size),
                key=lambda t: t.size or np.inf,
            )
            return f"{widest.link}, one node"
        return f"{links[-1]}, {'2 nodes' if self.hosts == 2 else 'more nodes'}"


def read_timings(path: Path = TIMINGS) -> list[Timing]:
    """All published timings."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_timing(row) for row in csv.DictReader(file)]


def _timing(row: dict[str, str]) -> Timing:
    cluster = _cluster(
        row["cluster"],
        row["nic_gigabytes_per_second"],
        row["uplink_gigabytes_per_second"],
    )
    stride = cluster.devices_per_node if row["stride"] == "node" else int(row["stride"])
    sample = CollectiveSample(
        kind=row["kind"],
        buffer_bytes=float(row["bytes"]),
        seconds=float(row["microseconds"]) * MICROSECOND,
        degree=int(row["ranks"]),
        stride=stride,
        groups=int(row["sharers"] or 0),
        algorithm=row["algorithm"],
    )
    return Timing(
        id=row["id"],
        sample=sample,
        cluster=cluster,
        hosts=int(row["hosts"]),
        fabric=row["fabric"],
        source=row["source"],
    )


@cache
def _cluster(name: str, card: str, uplink: str) -> Cluster:
    """A preset, with the rate of one card and of all cards of a node where they differ."""
    cluster = load_cluster(name)
    if not card and not uplink:
        return cluster
    network = cluster.tiers[-1]
    network = replace(
        network,
        bytes_per_second=float(card) * GB if card else network.bytes_per_second,
        uplink_bytes_per_second=float(uplink) * GB if uplink else network.uplink_bytes_per_second,
    )
    tiers = (*cluster.tiers[:-1], network)
    cards = f"{network.uplink_bytes_per_second / GB:g} GB/s a node"
    return replace(cluster, name=f"{name} at {cards}", tiers=tiers)


def by_cluster(timings: Iterable[Timing]) -> list[tuple[list[Timing], Cluster]]:
    """Timings with the cluster that they share."""
    groups: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        groups[timing.cluster.name].append(timing)
    return [(rows, rows[0].cluster) for rows in groups.values()]


def errors(timings: Sequence[Timing], constants: CommunicationConstants) -> dict[str, float]:
    """Relative error ``predicted / measured - 1`` by id."""
    found = {}
    for rows, cluster in by_cluster(timings):
        samples = [row.sample for row in rows]
        predicted = predicted_seconds(samples, cluster, constants)
        for row, seconds in zip(rows, predicted, strict=True):
            found[row.id] = float(seconds / row.sample.seconds - 1)
    return found


def size_band(timing: Timing) -> str:
    """Sizes as training meets them: start-ups, buckets, whole layers."""
    bytes_ = timing.sample.buffer_bytes
    if bytes_ < 256 * KIB:
        return "below 256 KiB"
    return "256 KiB to 16 MiB" if bytes_ < 16 * MIB else "16 MiB and more"


def score_table(
    timings: Sequence[Timing],
    found: dict[str, float],
    held_out: dict[str, float],
    *,
    group: Callable[[Timing], str],
) -> str:
    """A Markdown table of errors by group: shipped constants, and held-out sources."""
    groups: dict[str, list[str]] = defaultdict(list)
    for timing in timings:
        groups[group(timing)].append(timing.id)
    lines = [
        "| group | rows | median error | p90 error | bias | held-out median | held-out p90 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [*sorted(groups), "all"]:
        ids = groups.get(name) or [t.id for t in timings]
        line = [name, str(len(ids)), *_summary([found[i] for i in ids])]
        known = [held_out[i] for i in ids if i in held_out]
        held = _summary(known)[:2] if known else ["-", "-"]
        lines.append("| " + " | ".join(line + list(held)) + " |")
    return "\n".join(lines)


def _summary(values: Sequence[float]) -> list[str]:
    sizes = np.abs(values)
    bias = float(np.exp(np.mean(np.log1p(values))) - 1)
    return [f"{np.median(sizes):.1%}", f"{np.quantile(sizes, 0.9):.1%}", f"{bias:+.1%}"]


def report(timings: Sequence[Timing], constants: CommunicationConstants) -> str:
    """The accuracy report as Markdown."""
    held_out = {}
    if CROSS_VALIDATION.exists():
        held_out = json.loads(CROSS_VALIDATION.read_text(encoding="utf-8"))["errors"]
    found = errors(timings, constants)
    clean = [t for t in timings if t.fabric == "clean"]
    large = [t for t in clean if t.sample.buffer_bytes >= 16 * MIB]
    small = [t for t in clean if t.sample.buffer_bytes < 16 * MIB]
    others = [t for t in timings if t.fabric != "clean"]

    def kind_and_tier(timing: Timing) -> str:
        return f"{timing.sample.kind} / {timing.tier}"

    parts = [
        "# Accuracy of the communication model",
        "Made by `python -m benchmarks.collectives` from `benchmarks/published/collectives.csv`",
        "(sources in the file). Error is |predicted / measured - 1|, bias the geometric mean of",
        "predicted / measured, less 1. Held out: the constants were fitted without any row of the",
        "same source (`python -m benchmarks.fit_collectives`); the sweeps of aiconfigurator count",
        "as one source per device, though one tool made them all.",
        "",
        f"{constants.source}",
        "",
        "## By size",
        score_table(clean, found, held_out, group=size_band),
        "",
        "## 16 MiB and more, by kind and tier",
        score_table(large, found, held_out, group=kind_and_tier),
        "",
        "## Below 16 MiB, by kind and tier",
        score_table(small, found, held_out, group=kind_and_tier),
        "",
        "## By device",
        score_table(clean, found, held_out, group=lambda t: t.cluster.device.name),
        "",
        "## Fabrics that are shared, untuned or not stated (not fitted)",
        "Predicted as if they were clean, unless the preset states a measured degradation",
        "exponent (playbook-h100-efa does): the bias is what sharing and tuning cost.",
        "",
        score_table(others, found, {}, group=lambda t: f"{t.fabric}: {t.cluster.name}, {t.tier}"),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    REPORT.write_text(report(read_timings(), default_communication()), encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))
