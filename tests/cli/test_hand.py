"""``export``, ``import`` and ``trace`` as the shell sees them."""

import json

import pytest
import yaml


@pytest.fixture
def plan_path(planner, tmp_path):
    path = tmp_path / "plan.json"
    done = planner(
        "recommend", "--model", "llama-7b", "--gpus", "32", "--set", "tp=2,pp=2,zero=1,sp",
        "--only", "schedule=1f1b", "--framework", "megatron-core", "-o", str(path),
    )  # fmt: skip
    assert done.code == 0, done.err
    return path


def test_export_writes_the_file_and_its_launcher(planner, plan_path, tmp_path):
    path = tmp_path / "arguments.txt"
    done = planner("export", str(plan_path), "--to", "megatron-lm", "-o", str(path),
                   "--launcher", "slurm")  # fmt: skip
    assert done.code == 0, done.err
    assert "--tensor-model-parallel-size 2" in path.read_text().splitlines()
    assert "core 0.19.2" in path.read_text().splitlines()[0]
    assert (tmp_path / "job.sbatch").read_text().startswith("#!/bin/bash\n#SBATCH")


def test_export_refuses_what_the_target_cannot_say(planner, plan_path):
    done = planner("export", str(plan_path), "--to", "accelerate")
    assert done.code == 2
    assert done.out == ""
    for lost in ("pipeline of 2 stages", "ZeRO-1", "sequence parallelism", "--lossy"):
        assert lost in done.err


def test_lossy_export_lists_it_in_the_file(planner, plan_path):
    done = planner("export", str(plan_path), "--to", "accelerate", "--lossy")
    assert done.code == 0
    assert "# NOT SAID: pipeline of 2 stages" in done.out
    assert "not said: pipeline of 2 stages" in done.err


def test_json_has_no_comments_so_stderr_says_it(planner, plan_path, tmp_path):
    path = tmp_path / "ds.json"
    done = planner("export", str(plan_path), "--to", "deepspeed", "--lossy", "-o", str(path))
    assert done.code == 0
    assert "not said: pipeline of 2 stages" in done.err
    assert "0.19.8" in done.err
    assert json.loads(path.read_text())["zero_optimization"]["stage"] == 1


def test_unknown_target_lists_the_known(planner, plan_path):
    done = planner("export", str(plan_path), "--to", "alpa")
    assert done.code == 2
    assert "torchtitan-0.3, nanotron, executor" in done.err


def test_unwritable_output_is_said_at_once_and_leaves_nothing(planner, plan_path, tmp_path):
    path = tmp_path / "missing" / "a.txt"
    done = planner("export", str(plan_path), "--to", "megatron-lm", "-o", str(path))
    assert done.code == 2
    assert "cannot write" in done.err
    assert not path.parent.exists()


def test_a_resnet_has_no_such_arguments(planner, tmp_path):
    path = tmp_path / "plan.json"
    assert planner("recommend", "--model", "resnet-50", "--gpus", "8", "-o", str(path)).code == 0
    done = planner("export", str(path), "--to", "megatron-lm")
    assert done.code == 2
    assert "decoders" in done.err


def test_kubernetes_manifest_names_the_image(planner, plan_path):
    done = planner("export", str(plan_path), "--to", "executor", "--launcher", "kubernetes",
                   "--image", "example/trainer:1")  # fmt: skip
    assert done.code == 0
    assert yaml.safe_load(done.out)["spec"]["trainer"]["image"] == "example/trainer:1"


def test_import_predicts_and_advises_in_the_targets_words(planner, plan_path, tmp_path):
    path = tmp_path / "arguments.txt"
    planner("export", str(plan_path), "--to", "megatron-lm", "-o", str(path))
    again = tmp_path / "again.json"
    done = planner("import", str(path), "--gpus", "32", "--advise", "--json", "-o", str(again))
    assert done.code == 0, done.err
    document = json.loads(done.out)
    before = json.loads(plan_path.read_text())
    assert document["layout"]["tp"] == 2
    assert json.loads(again.read_text())["layout"] == before["layout"]
    assert document["step_seconds"] == pytest.approx(before["prediction"]["step_seconds"])
    advice = document["advice"]
    assert advice["gain"] > 1
    assert advice["not_said"] == []
    assert "tensor-model-parallel-size" in {change["option"] for change in advice["changes"]}


def test_advice_on_the_best_is_to_keep_it(planner, tmp_path):
    plan, path = tmp_path / "plan.json", tmp_path / "arguments.txt"
    planner("recommend", "--model", "llama-7b", "--gpus", "16", "--framework", "megatron-core",
            "--only", "schedule=1f1b,interleaved", "-o", str(plan))  # fmt: skip
    done = planner("export", str(plan), "--to", "megatron-lm", "-o", str(path))
    assert done.code == 0, done.err
    done = planner("import", str(path), "--gpus", "16", "--advise")
    assert done.code == 0, done.err
    assert "keep this one" in done.out


def test_trace_is_json_that_perfetto_reads(planner, plan_path, tmp_path):
    path = tmp_path / "trace.json"
    assert planner("trace", str(plan_path), "-o", str(path)).code == 0
    document = json.loads(path.read_text())
    assert {event["ph"] for event in document["traceEvents"]} == {"M", "X", "s", "f"}


def test_report_writes_one_page(planner, plan_path, tmp_path):
    path = tmp_path / "report.html"
    done = planner("report", str(plan_path), "-o", str(path))
    assert done.code == 0, done.err
    text = path.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "2-way tensor parallelism" in text
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_recommend_asks_the_question_of_a_configuration(planner, plan_path, tmp_path):
    path = tmp_path / "arguments.txt"
    planner("export", str(plan_path), "--to", "megatron-lm", "-o", str(path))
    done = planner("recommend", "--from", str(path), "--gpus", "32", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    before = json.loads(plan_path.read_text())
    assert document["job"] == before["job"]
    assert document["best"]["step_seconds"] < before["prediction"]["step_seconds"]


def test_recommend_without_a_model_says_what_is_missing(planner):
    done = planner("recommend", "--gpus", "8")
    assert done.code == 2
    assert "--model is missing" in done.err
