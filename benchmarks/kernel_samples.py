"""Public timings of single kernels, read as samples of the kernel model."""

import csv
from functools import cache
from pathlib import Path

from planner.catalogue import load_device
from planner.cost.kernels.samples import KernelSample

TIMINGS = Path(__file__).parent / "published" / "kernels.csv"

BURST_SOURCES = (
    "aiconfigurator",
    "MAMF",
    "Max-Achievable",
    "matmul-tflops",
    "assets/flash",
    "ThunderKittens",
)
"""Benchmarks of short or replayed runs, mostly on constant data."""

LOOPED_SOURCES = ("micro_bench", "EleutherAI")
"""Benchmarks that issue small products one by one from Python."""

AVERAGE_WEIGHT = 2.0  # one row that averages many operators of a training step

device_named = cache(load_device)


def read_samples(path: Path = TIMINGS) -> list[KernelSample]:
    """All timings as samples of the kernel model."""
    with path.open(newline="", encoding="utf-8") as file:
        return [sample_of(row) for row in csv.DictReader(file) if usable(row)]


def usable(row: dict[str, str]) -> bool:
    """Kernels of the kinds that training runs: no Triton, no sums that stay in the cache."""
    if "3090 Ti" in row["note"]:  # a larger chip than the device it is listed under
        return False
    return row["library"] not in ("triton", "flash3-early") and row["role"] != "add"


def sample_of(row: dict[str, str]) -> KernelSample:
    """One row of the table as a sample."""
    kind, device = row["kind"], device_named(row["gpu"])
    if kind in ("gemm", "grouped_gemm"):
        operation, shape = kind, _gemm_shape(row)
    elif kind.startswith("attention"):
        operation = "attention_step" if kind == "attention_both" else "attention"
        shape = _attention_shape(row)
    else:
        operation = "traffic" if row["role"] == "asymptotic" else "streaming"
        shape = {"num_bytes": float(row["num_bytes"])}
    return KernelSample(
        operation=operation,
        shape=shape,
        seconds=float(row["seconds"]),
        burst=any(name in row["source"] for name in BURST_SOURCES),
        graph="aiconfigurator" in row["source"],
        looped=any(name in row["source"] for name in LOOPED_SOURCES),
        extra_bytes=_cache_bytes(row),
        weight=AVERAGE_WEIGHT if row["role"] == "average" else 1.0,
        device=device,
        group=group_of(row),
    )


def group_of(row: dict[str, str]) -> str:
    """Who measured: the first name in the source."""
    known = ["vidur", "SimuMax", "aiconfigurator", "Azure", "transformers-benchmarks"]
    known += ["flash-attention", "MAMF", "gpu-benches", "FlagPerf", "Primus"]
    return next((name for name in known if name in row["source"]), "other")


def _cache_bytes(row: dict[str, str]) -> float:
    """Keys and values read once more and written to a cache by inference operators."""
    if "cache" not in row["note"]:
        return 0.0
    widths = float(row["head_dim"]) + float(row["value_dim"])
    return 2 * 2 * float(row["batch"]) * float(row["sequence"]) * float(row["kv_heads"]) * widths


def _gemm_shape(row: dict[str, str]) -> dict[str, object]:
    first = "groups" if row["kind"] == "grouped_gemm" else "batch"
    return {
        "m": float(row["m"]),
        "n": float(row["n"]),
        "k": float(row["k"]),
        first: float(row["batch"]),
        "dtype": row["dtype"],
        "accumulate": row["role"] == "weight_gradient",
        "accumulator_bytes": 2.0 if row["accumulator"] == "bf16" else 4.0,
        "quantise": row["quantised"] == "yes",
    }


def _attention_shape(row: dict[str, str]) -> dict[str, object]:
    return {
        "batch": float(row["batch"]),
        "heads": float(row["heads"]),
        "query_length": float(row["sequence"]),
        "key_length": float(row["sequence"]),
        "head_dim": (float(row["head_dim"]) + float(row["value_dim"])) / 2,
        "causal": row["causal"] == "yes",
        "fused": row["library"] != "unfused",
        "backward": row["kind"] == "attention_backward",
        "dtype": row["dtype"],
        "extra_score_passes": 2.0 if row["causal"] == "yes" else 0.0,  # a mask of its own
        "library": "flash2" if row["library"] == "flash2" else "native",
    }
