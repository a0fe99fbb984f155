"""Plans to export, and how to compare the layout that comes back."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from planner.catalogue import load_model
from planner.exports.core import effective_order
from planner.exports.targets import TARGETS
from planner.job import Job
from planner.layout import Layout
from planner.model import Model
from planner.plan import Plan


@cache
def model_named(name: str) -> Model:
    return load_model(name)


def plan_for(layout: Layout, model: str = "llama-7b", *, precision: str = "bf16") -> Plan:
    job = Job(
        global_batch=layout.global_batch,
        sequence_length=min(2048, model_named(model).sequence_length),
        precision=precision,
        framework="planner",
    )  # fmt: skip
    return Plan(
        model=model_named(model), job=job, layout=layout, cluster="a100-80g-8x200g",
        devices_per_node=8,
    )  # fmt: skip


def write_export(plan: Plan, target: str, folder: Path) -> list[Path]:
    """The target's files that hold the layout; flavor modules of torchtitan hold none."""
    one = TARGETS[target]
    files = one.write(one.say(plan), plan)
    paths = []
    for name, text in files.items():
        (folder / name).write_text(text)
        if name != "planned_model.py":
            paths.append(folder / name)
    return paths


def plain(layout: Layout) -> Layout:
    """The layout with what cannot matter set to its default."""
    changes: dict[str, object] = {"fused_loss": True if layout.fused_loss else None}
    if layout.pp == 1:
        changes |= {"schedule": "1f1b", "stage_layers": (), "vpp": 1}
    elif len(set(layout.stage_layers)) == 1:
        changes["stage_layers"] = ()
    if layout.cp == 1:
        changes["cp_kind"] = "ring"
    if layout.shard_group in (1, layout.dp * layout.cp):
        changes["zero_group"] = 0
    if layout.shard_group == 1:
        changes["zero_stage"] = 0
    order = effective_order(layout)
    if order == effective_order(replace(layout, axis_order=Layout().axis_order)):
        changes["axis_order"] = Layout().axis_order
    return replace(layout, **changes)  # type: ignore[arg-type]
