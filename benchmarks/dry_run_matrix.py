"""Estimated memory against the executor's own dry run, over a matrix of layouts and ranks.

    python -m benchmarks.dry_run_matrix [--report benchmarks/reports/dry_run.md]

Every case runs one rank of a plan under a fake process group and fake tensors and compares
its peak, and each category at that peak, with what the cost model says of the same rank. The
dry run's device is a CPU, so the estimate is for a CPU too.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from planner.catalogue import load_device, load_framework
from planner.cost.memory import stage_memory
from planner.dry_run import beside
from planner.job import Job
from planner.layout import Layout, format_layout
from planner.model import (
    Bottleneck,
    Embedding,
    Experts,
    FeedForward,
    Head,
    ImageHead,
    Model,
    Run,
    SelfAttention,
    Stem,
    TransformerLayer,
    resnet_layers,
)
from planner.plan import Plan
from planner.units import MIB

DEVICE = "cpu-laptop-4c-avx2"
PEAK_TOLERANCE = 0.02
CATEGORY_TOLERANCE = 0.05
CATEGORY_BYTES = 32 * MIB


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank of one plan."""

    name: str
    model: Model
    layout: Layout
    rank: int = 0
    sequence_length: int = 1024
    precision: str = "bf16"
    optimizer: str = "adamw"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Both sides of one case, in bytes."""

    case: Case
    measured: int
    estimated: int
    categories: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Measured and estimated."""

    @property
    def peak_error(self) -> float:
        """Signed, relative."""
        return self.estimated / self.measured - 1

    def category_misses(self) -> list[str]:
        """Categories off by more than 5 % and 32 MiB."""
        return [
            name
            for name, (measured, estimated) in self.categories.items()
            if abs(estimated - measured) > max(CATEGORY_TOLERANCE * measured, CATEGORY_BYTES)
        ]


def llama(*, layers: int = 8, hidden: int = 2048, kv_heads: int = 16, vocabulary: int = 32000,
          tied: bool = False) -> Model:  # fmt: skip
    """A slice of a llama: 16 heads, SwiGLU."""
    block = TransformerLayer(
        hidden=hidden,
        attention=SelfAttention(heads=16, kv_heads=kv_heads, head_dim=hidden // 16),
        feed_forward=FeedForward(ffn_hidden=hidden * 11 // 4),
    )
    return _language(block, layers=layers, vocabulary=vocabulary, tied=tied)


def gpt(*, layers: int = 8) -> Model:
    """GPT-2's block: layer norms, biases, GELU."""
    block = TransformerLayer(
        hidden=1024,
        attention=SelfAttention(
            heads=16, kv_heads=16, head_dim=64, rotary=False, qkv_bias=True, output_bias=True
        ),
        feed_forward=FeedForward(ffn_hidden=4096, gated=False, bias=True, activation="gelu"),
        norm="layernorm",
    )
    return _language(block, layers=layers, vocabulary=50304, tied=True, positions=1024)


def mixtral(*, layers: int = 4) -> Model:
    """Eight experts, two per token."""
    block = TransformerLayer(
        hidden=1024,
        attention=SelfAttention(heads=16, kv_heads=4, head_dim=64),
        feed_forward=Experts(num_experts=8, experts_per_token=2, ffn_hidden=3584),
    )
    return _language(block, layers=layers, vocabulary=32000)


def resnet50() -> Model:
    """ResNet-50 on 224 x 224 images."""
    blocks: tuple[Bottleneck, ...] = resnet_layers((3, 4, 6, 3), image_size=224)
    return Model(
        name="resnet-50", family="convolution", embedding=Stem(),
        layers=tuple(Run(block=block, count=1) for block in blocks),
        head=ImageHead(hidden=blocks[-1].hidden), sequence_length=1,
    )  # fmt: skip


def _language(block: TransformerLayer, *, layers: int, vocabulary: int, tied: bool = False,
              positions: int = 0) -> Model:  # fmt: skip
    norm = "layernorm" if block.norm == "layernorm" else "rmsnorm"
    return Model(
        name="matrix", family="decoder",
        embedding=Embedding(vocabulary=vocabulary, hidden=block.hidden, positions=positions),
        layers=(Run(block=block, count=layers),),
        head=Head(vocabulary=vocabulary, hidden=block.hidden, norm=norm,
                  shared_with_embedding=vocabulary * block.hidden if tied else 0),
        tied=tied, sequence_length=1024,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """At least 48: every axis, mixed, on first, middle and last stages."""
    yield from _data_parallel_cases()
    yield from _tensor_parallel_cases()
    yield from _pipeline_cases()
    yield from _other_cases()


def _data_parallel_cases() -> Iterator[Case]:
    model = llama()
    for zero_stage in (0, 1, 2, 3):
        for microbatches in (1, 4):
            layout = Layout(dp=8, zero_stage=zero_stage, microbatch=2, microbatches=microbatches)
            yield Case(name="llama", model=model, layout=layout)
    for recompute in ("selective", "full"):
        yield Case(
            name="llama", model=model,
            layout=Layout(dp=32, zero_stage=3, recompute=recompute, microbatch=8),
        )  # fmt: skip
    partial = Layout(dp=4, zero_stage=1, recompute="full", recompute_layers=4, microbatch=8)
    yield Case(name="llama", model=model, layout=partial)
    yield Case(name="llama fp32", model=model, layout=Layout(dp=2), precision="fp32")
    yield Case(name="llama fp32", model=model, layout=Layout(dp=8, zero_stage=3), precision="fp32")
    hybrid = Layout(dp=16, zero_stage=3, zero_group=4, microbatch=2, microbatches=2)
    yield Case(name="llama hsdp", model=model, layout=hybrid)
    for optimizer in ("sgd-momentum", "sgd"):
        layout = Layout(dp=4, zero_stage=1)
        yield Case(name=f"llama {optimizer}", model=model, layout=layout, optimizer=optimizer)


def _tensor_parallel_cases() -> Iterator[Case]:
    for model, name in ((llama(), "llama"), (llama(kv_heads=4, vocabulary=128256), "llama gqa")):
        for tp in (2, 4):
            for sequence_parallel in (False, True):
                layout = Layout(tp=tp, sequence_parallel=sequence_parallel, microbatch=4)
                yield Case(name=name, model=model, layout=layout)
    model = llama()
    for recompute in ("none", "full"):
        mixed = Layout(
            dp=4, tp=4, sequence_parallel=True, zero_stage=1, recompute=recompute,
            microbatch=4, microbatches=2,
        )  # fmt: skip
        yield Case(name="llama", model=model, layout=mixed)
        yield Case(name="llama", model=model, layout=replace(mixed, zero_stage=3), rank=5)


def _pipeline_cases() -> Iterator[Case]:
    model = llama(layers=16, vocabulary=32000)
    quarters = (4, 4, 4, 4)
    plain = Layout(pp=4, microbatches=8, microbatch=2, stage_layers=quarters)
    for rank in (0, 1, 3):
        yield Case(name="llama", model=model, layout=plain, rank=rank)
        yield Case(
            name="llama", model=model, layout=replace(plain, recompute="full"), rank=rank
        )  # fmt: skip
    uneven = replace(plain, stage_layers=(5, 4, 4, 3))
    yield Case(name="llama", model=model, layout=uneven, rank=0)
    yield Case(name="llama", model=model, layout=replace(plain, schedule="gpipe"), rank=0)
    yield Case(name="llama", model=model, layout=replace(plain, schedule="gpipe"), rank=3)
    inter = replace(plain, vpp=2, schedule="interleaved", stage_layers=(2,) * 8)
    for rank in (0, 2, 3):
        yield Case(name="llama", model=model, layout=inter, rank=rank)
    bubble = replace(plain, schedule="zb-h1")
    for rank in (0, 1, 3):
        yield Case(name="llama", model=model, layout=bubble, rank=rank)
    v_shaped = replace(plain, schedule="zbv", vpp=2, stage_layers=(2,) * 8)
    yield Case(name="llama", model=model, layout=v_shaped, rank=0)
    yield Case(name="llama", model=model, layout=v_shaped, rank=2)
    tied = llama(layers=16, tied=True)
    for rank in (0, 3):
        yield Case(name="llama tied", model=tied, layout=plain, rank=rank)
    mixed = Layout(
        dp=2, tp=2, pp=4, sequence_parallel=True, zero_stage=1, microbatch=2, microbatches=8,
        stage_layers=quarters,
    )  # fmt: skip
    for rank in (0, 6, 15):
        yield Case(name="llama", model=model, layout=mixed, rank=rank)
    sharded = Layout(dp=4, pp=2, zero_stage=3, microbatch=2, microbatches=4, stage_layers=(8, 8))
    for rank in (0, 7):
        yield Case(name="llama", model=model, layout=sharded, rank=rank)
    everything = Layout(
        dp=256, tp=4, sequence_parallel=True, zero_stage=3, recompute="full", microbatch=4
    )
    yield Case(name="llama at 1,024 ranks", model=model, layout=everything, rank=513)


def _other_cases() -> Iterator[Case]:
    yield Case(name="gpt", model=gpt(), layout=Layout(dp=4, zero_stage=1, microbatch=4))
    yield Case(name="gpt", model=gpt(), layout=Layout(tp=4, sequence_parallel=True, microbatch=4))
    yield Case(
        name="gpt", model=gpt(),
        layout=Layout(pp=2, microbatches=4, microbatch=4, stage_layers=(4, 4)), rank=1,
    )  # fmt: skip
    yield Case(name="llama ulysses", model=llama(), sequence_length=4096,
               layout=Layout(cp=4, cp_kind="ulysses"))  # fmt: skip
    yield Case(name="llama ulysses", model=llama(), sequence_length=4096,
               layout=Layout(cp=2, dp=2, cp_kind="ulysses", zero_stage=3))  # fmt: skip
    for layout in (Layout(microbatch=32), Layout(dp=8, microbatch=32, zero_stage=1)):
        yield Case(name="resnet-50", model=resnet50(), layout=layout, sequence_length=1)
    yield Case(name="resnet-50 fp32", model=resnet50(), layout=Layout(microbatch=16),
               sequence_length=1, precision="fp32")  # fmt: skip


def run(case: Case) -> Outcome:
    """Dry-run and estimate one case."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    from executor.dry_run import dry_run

    _clear_sharding_prop_cache()  # its entries name process groups of the case before
    layout = case.layout
    job = Job(
        global_batch=layout.global_batch, sequence_length=case.sequence_length,
        precision=case.precision, optimizer=case.optimizer,  # type: ignore[arg-type]
    )  # fmt: skip
    plan = Plan(model=case.model, job=job, layout=layout, cluster=DEVICE, devices_per_node=8)
    measured = dry_run(plan, case.rank)
    stages = stage_memory(
        case.model, job, load_framework("planner"), layout, device=load_device(DEVICE)
    )
    stage = stages[case.rank // (layout.tp * layout.cp * layout.dp)]
    return Outcome(
        case=case,
        measured=measured["peak_bytes"],
        estimated=stage.allocated,
        categories=beside(measured["peak"], stage),
    )


def report(outcomes: list[Outcome]) -> str:
    """Markdown: the summary, then one line per case."""
    errors = np.abs([outcome.peak_error for outcome in outcomes])
    misses = sum(len(outcome.category_misses()) for outcome in outcomes)
    total = sum(len(outcome.categories) for outcome in outcomes)
    lines = [
        "# Memory: estimate against the executor's dry run",
        "",
        f"{len(outcomes)} cases. Peak within {PEAK_TOLERANCE:.0%}: "
        f"{(errors <= PEAK_TOLERANCE).sum()}; median error {np.median(errors):.2%}, largest "
        f"{errors.max():.2%}. Categories within {CATEGORY_TOLERANCE:.0%} or "
        f"{CATEGORY_BYTES // MIB} MiB: {total - misses} of {total}.",
        "",
        "| model | layout | rank | dry run MiB | estimate MiB | error | categories off |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for outcome in outcomes:
        case = outcome.case
        lines.append(
            f"| {case.name} | {format_layout(case.layout)} | {case.rank} "
            f"| {outcome.measured / MIB:,.0f} | {outcome.estimated / MIB:,.0f} "
            f"| {outcome.peak_error:+.2%} | {', '.join(outcome.category_misses())} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the matrix and write its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--only", default="", help="part of a case's name or layout")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    outcomes = []
    for case in cases():
        if options.only in f"{case.name} {format_layout(case.layout)}":
            outcomes.append(run(case))
            print(report(outcomes[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    text = report(outcomes)
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
