"""Plan and measurement files: read back the same, refused when wrong."""

import json
from pathlib import Path

import pytest

from planner.job import Job
from planner.layout import Layout
from planner.plan import Plan, read_plan, write_plan
from tests.models import llama


@pytest.fixture
def plan() -> Plan:
    return Plan(
        model=llama(),
        job=Job(global_batch=8, sequence_length=128),
        layout=Layout(dp=4, microbatches=2),
        cluster="a100-80g-8x200g",
        devices_per_node=8,
    )


def test_a_plan_reads_back_the_same(plan, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    assert read_plan(path) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]  # no temporary left


def edited(path: Path, plan: Plan, change) -> Path:
    write_plan(path, plan)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(kind="measurement"), "is not a plan file"),
        (lambda d: d.update(schema_version=99), "has schema version 99"),
        (lambda d: d["layout"].update(tpp=2), "layout.tpp: Unexpected keyword argument"),
        (lambda d: d["layout"].update(tp=0), "tp must be at least 1, got 0"),
        (lambda d: d["layout"].update(dp=3), "but the global batch is 8"),
        (lambda d: d["layout"].update(zero_stage=7), "layout.zero_stage"),
        (lambda d: d.pop("job"), "job: Field required"),
    ],
)
def test_an_edited_plan_is_refused_with_its_field(plan, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        read_plan(edited(tmp_path / "plan.json", plan, change))


def test_a_truncated_plan_is_refused(plan, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    path.write_text(path.read_text()[:200])
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_plan(path)


def test_a_missing_plan_is_said():
    with pytest.raises(ValueError, match=r"cannot read nowhere\.json: No such file"):
        read_plan(Path("nowhere.json"))


def test_an_unwritable_place_is_said_and_nothing_remains(plan, tmp_path):
    with pytest.raises(ValueError, match="cannot write"):
        write_plan(tmp_path / "missing" / "plan.json", plan)
    assert not any(tmp_path.iterdir())
