"""From a CSV file to runs: model, job, machine, layout and what was measured."""

import csv
import gzip
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from planner.cluster import Cluster
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.model import Model
from planner.runs.columns import Row, Unreadable
from planner.runs.flags import read_flags
from planner.runs.machines import (
    build_cluster,
    build_framework,
    habits,
    memory_kind,
    memory_rank,
    precision_of,
)
from planner.runs.models import build_model
from planner.runs.stages import stage_layers
from planner.split_rules import megatron_split
from planner.units import GIB

REGRESSION_TESTS = r"CI regression run|functional-test"  # tiny models, debugging switches on
OFFLOADING = r"CPU offload on|\+ CPU offload|Opt Offl=Y|offload_activations on|activation offload"
LORA_RANK = 16  # where the notes say LoRA and no more; the time hardly depends on it
OUTCOMES = ("ran", "oom", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published or own run, ready to be predicted."""

    id: str
    group: str
    """Source group: runs of one source."""
    outcome: str
    """``ran``, ``oom`` or ``failed`` (a crash or out of memory)."""
    model: Model
    job: Job
    cluster: Cluster
    framework: Framework
    layout: Layout
    num_devices: int
    step_seconds: float | None
    """Measured; None if the source gives no time."""
    peak_bytes: float | None
    """Measured; None if the source gives no memory."""
    memory_kind: str
    """``allocated``, ``reserved``, ``device`` or empty."""
    memory_rank: str = "heaviest"
    """Whose memory: of the ``first``, the ``last`` or the ``heaviest`` pipeline rank."""
    unstated: tuple[str, ...] = ()
    """Fields of the layout that the source leaves open and that save memory."""
    assumptions: tuple[str, ...] = ()
    teaches: bool = True
    """Constants may be fitted to it: its program has a profile of its own, it is no regression
    test, and its machine's own figures are not those of a shared fabric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """A row that is no case, and why."""

    id: str
    group: str
    reason: str
    """Short: counted over the table."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """All rows of a file, in file order within each list."""

    runs: tuple[Run, ...]
    unscored: tuple[Unscored, ...]


def read_runs(path: Path) -> RunTable:
    """Read a run table (CSV, also gzipped).

    Raises:
        ValueError: If the file cannot be read, is not text or has no header.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            header = [name.strip() for name in reader.fieldnames or []]
            rows = [{(k or "").strip(): v for k, v in row.items()} for row in reader]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error, EOFError) as error:
        raise ValueError(f"{path} is not a CSV table: {error}") from None
    if not header:
        raise ValueError(f"{path} has no header line")
    return parse_runs(rows)


def parse_runs(rows: Iterable[Mapping[str, object]]) -> RunTable:
    """Runs and unscored rows from dictionaries of cells."""
    runs, unscored = [], []
    seen: set[str] = set()
    for number, cells in enumerate(rows, start=1):
        row = Row(cells)
        name = row.text("id", f"row-{number}")
        group = row.text("prefix", "all")
        try:
            if name in seen:
                raise Unreadable("duplicate id", name)
            seen.add(name)
            runs.append(_run(row, name, group))
        except Unreadable as problem:
            unscored.append(
                Unscored(id=name, group=group, reason=problem.reason, detail=problem.detail)
            )
        except ValueError as error:
            unscored.append(
                Unscored(id=name, group=group, reason="contradictory", detail=str(error))
            )
    return RunTable(runs=tuple(runs), unscored=tuple(unscored))


def _run(row: Row, name: str, group: str) -> Run:
    row.check()
    outcome = row.choice("outcome", OUTCOMES) or "ran"
    if re.search(OFFLOADING, f"{row.text('framework')}; {row.text('notes')}"):
        raise Unreadable("offloading is not modelled")
    model, assumed = build_model(row)
    cluster, network = build_cluster(row)
    framework = build_framework(row)
    num_devices, layout, job = _layout(row, model, framework)
    peak = row.rate("peak_mem_gb")
    return Run(
        id=name, group=group, outcome=outcome, model=model, job=job, cluster=cluster,
        framework=framework, layout=layout, num_devices=num_devices,
        step_seconds=_step_seconds(row, job, num_devices),
        peak_bytes=None if peak is None else peak * GIB, memory_kind=memory_kind(row),
        memory_rank=memory_rank(row), unstated=_unstated(row),
        assumptions=(*assumed, *network), teaches=_teaches(row, cluster),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _stages(key: int, rule: str, pp: int, vpp: int) -> tuple[int, ...]:
    return stage_layers(_MODELS[key], rule, pp=pp, vpp=vpp)


_MODELS: dict[int, Model] = {}


def _layout(row: Row, model: Model, framework: Framework) -> tuple[int, Layout, Job]:
    num_devices = row.count("gpus")
    _MODELS[id(model)] = model
    tp, pp, cp = row.count("tp", 1), row.count("pp", 1), row.count("cp", 1)
    stated = tp * pp * cp * row.count("dp", default=max(num_devices // (tp * pp * cp), 1))
    if stated != num_devices:
        raise Unreadable(
            "tp x pp x cp x dp is not gpus", f"layout needs {stated} of {num_devices} gpus"
        )
    dp = num_devices // (tp * pp * cp)
    microbatch, global_batch = row.count("micro_batch"), row.count("global_batch")
    if global_batch % (dp * microbatch):
        raise Unreadable(
            "global_batch is not a multiple of dp x micro_batch",
            f"global_batch={global_batch}, dp={dp}, micro_batch={microbatch}",
        )
    vpp = row.count("vpp", 1) if pp > 1 else 1
    usual = habits(row)
    parallel = row.flag("sequence_parallel")
    parallel = usual["sequence_parallel"] if parallel is None else parallel
    stage = row.text("zero_stage")
    if stage not in ("", "0", "1", "2", "3"):
        raise Unreadable("zero_stage must be 0, 1, 2 or 3", f"zero_stage={stage}")
    ep = row.count("ep", 1)
    layout = Layout(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=row.count("etp", _usual_etp(row, tp)), vpp=vpp,
        sequence_parallel=tp > 1 and parallel,
        zero_stage=int(stage) if stage else usual["zero_stage"],  # type: ignore[arg-type]
        recompute=row.choice("recompute", ("none", "selective", "full")) or "none",  # type: ignore[arg-type]
        microbatch=microbatch, microbatches=global_batch // (dp * microbatch),
        schedule="interleaved" if vpp > 1 else "1f1b",
        stage_layers=_split(row, model, framework.stage_rule, pp=pp, vpp=vpp),
        zero_group=_zero_group(row, dp * cp), offload_optimizer=_offloads(row),
    )  # fmt: skip
    job = Job(
        global_batch=global_batch, sequence_length=row.count("seq_len", model.sequence_length),
        precision=precision_of(row), framework=framework.name,  # type: ignore[arg-type]
        lora_rank=LORA_RANK if re.search(r"\bLoRA\b", row.text("notes")) else 0,
    )  # fmt: skip
    return num_devices, layout, job


def _offloads(row: Row) -> bool:
    """Whether the optimizer's states lay in host memory."""
    told = rf"{row.text('notes')}; {row.text('framework')}"
    return bool(re.search(r"optimizer on CPU|CPU offload|Opt Offl=Y|ZeRO-\d offload", told))


def _unstated(row: Row) -> tuple[str, ...]:
    """``recompute`` and ``zero_stage`` where the row says nothing, or nothing that is known."""
    empty = tuple(name for name in ("recompute", "zero_stage") if not row.text(name))
    custom = re.search(r"custom remat|activation offload", row.text("notes"))
    return (*empty, "recompute") if custom and "recompute" not in empty else empty


def _zero_group(row: Row, replicas: int) -> int:
    """Ranks that share optimizer states, where there are several groups of them."""
    groups = read_flags(row).number("num-distributed-optimizer-instances")
    return replicas // groups if groups > 1 and replicas % groups == 0 else 0


def _teaches(row: Row, cluster: Cluster) -> bool:
    tested = re.search(REGRESSION_TESTS, row.text("notes")) is not None
    shared = cluster.pipeline_stall_seconds > 0
    return not (habits(row).get("stand_in", False) or tested or shared)


def _usual_etp(row: Row, tp: int) -> int:
    """Degree of tensor parallelism of experts.

    ``etp1`` in a recipe's name or Megatron's own switch, whose default is ``tp``.
    """
    flags = read_flags(row)
    found = re.search(r"etp(\d+)", row.text("model_name"))
    named = int(found[1]) if found else 0
    return flags.number("expert-tensor-parallel-size") or named or (tp if flags else 1)


def _split(row: Row, model: Model, rule: str, *, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of every stage: what the switches say of both ends, else the framework's rule."""
    flags = read_flags(row)
    first = flags.number("decoder-first-pipeline-num-layers")
    last = flags.number("decoder-last-pipeline-num-layers")
    inner = model.num_layers - first - last
    if first and last and pp > 2 and inner % (pp - 2) == 0:
        # Virtual stages of these recipes are whole layers of their rank, one after another.
        return (first, *[inner // (pp - 2)] * (pp - 2), last) if vpp == 1 else ()
    counts_ends = {
        "count_embedding": "account-for-embedding-in-pipeline-split" in flags,
        "count_loss": "account-for-loss-in-pipeline-split" in flags,
    }
    slots = model.num_layers + sum(counts_ends.values())
    if slots > model.num_layers and slots % (pp * vpp) == 0:
        return megatron_split(model.num_layers, stages=pp * vpp, **counts_ends)
    return _stages(id(model), rule, pp, vpp)


def _step_seconds(row: Row, job: Job, num_devices: int) -> float | None:
    seconds = row.rate("step_time_s")
    if seconds is not None:
        return seconds
    rate = row.rate("tokens_per_s_per_gpu")
    return None if rate is None else job.tokens_per_step / (rate * num_devices)


def write_runs(path: Path, header: list[str], rows: list[Mapping[str, object]]) -> None:
    """Write rows of a run table, gzipped if the name says so."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
