"""``--config``: a question from a file, and asked again from the plan that answers it."""

import json

import jsonschema
import pytest

from planner.plan import read_plan

JOB = 'model = "tiny-llama"\ngpus = 2\nglobal-batch = 16\nonly = ["zero=1", "tp=1,2"]\n'


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def best(found):
    assert found.code == 0, found.err
    return json.loads(found.out)["best"]["layout"]


def test_a_file_holds_the_flags_and_words_win(planner, job):
    flags = (
        "--model",
        "tiny-llama",
        "--global-batch",
        "16",
        "--only",
        "zero=1",
        "--only",
        "tp=1,2",
    )
    asked = best(planner("recommend", *flags, "--gpus", "2", "--json"))
    assert best(planner("recommend", "--config", str(job), "--json")) == asked
    wider = best(planner("recommend", "--gpus", "4", "--config", str(job), "--json"))
    assert wider["world_size"] == 4


def test_a_file_fills_what_estimate_requires(planner, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('model = "tiny-llama"\ngpus = 2\nlayout = "tp=2"\nglobal_batch = 16\n')
    found = planner("estimate", "--config", str(path), "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["layout"]["tp"] == 2


def test_a_plan_repeats_its_question(planner, job, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert planner("recommend", "--config", str(job), "-o", str(first)).code == 0
    inputs = read_plan(first).inputs
    assert inputs["model"] == "tiny-llama"
    assert inputs["only"] == "zero=1 tp=1,2"
    assert "output" not in inputs
    assert planner("recommend", "--config", str(first), "-o", str(second)).code == 0
    assert read_plan(second).layout == read_plan(first).layout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('modle = "tiny-llama"', "did you mean 'model'"),
        ("gpus = [2, 4]", "'gpus' takes one value"),
        ("gpus = ", "not valid TOML"),
        ('config = "other.toml"', "'config' is not a flag"),
    ],
)
def test_a_wrong_file_is_one_line(planner, tmp_path, text, said):
    path = tmp_path / "job.toml"
    path.write_text(text)
    found = planner("recommend", "--config", str(path))
    assert found.code == 2
    assert said in found.err
    assert "Traceback" not in found.err


def test_a_missing_file_is_one_line(planner, tmp_path):
    found = planner("recommend", "--config", str(tmp_path / "none.toml"))
    assert (found.code, found.out) == (2, "")
    assert "cannot read" in found.err


def test_a_plan_meets_its_schema(planner, job, tmp_path):
    schema = json.loads(planner("schema", "plan").out)
    path = tmp_path / "plan.json"
    assert planner("recommend", "--config", str(job), "-o", str(path)).code == 0
    plan = json.loads(path.read_text())
    jsonschema.validate(plan, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plan, "schema_version": 99}, schema)


def test_an_unknown_schema_lists_the_known(planner):
    found = planner("schema", "plam")
    assert found.code == 2
    assert "plan, measurement" in found.err
