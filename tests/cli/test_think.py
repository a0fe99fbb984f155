"""``recommend`` and ``estimate``, end to end."""

import json
import subprocess
import sys

import pytest

from planner.layout import Layout, format_layout
from planner.plan import read_plan

TINY = ("--model", "tiny-llama", "--gpus", "2", "--global-batch", "16")


def test_recommend_names_the_choice_its_assumptions_and_its_rivals(planner, tmp_path):
    found = planner("recommend", *TINY, "-o", str(tmp_path / "plan.json"))
    assert found.code == 0
    for words in (
        "--cluster",
        "per step",
        "step time",
        "memory per rank",
        "loses in",
        "considered",
    ):
        assert words in found.out
    plan = read_plan(tmp_path / "plan.json")
    assert plan.layout.world_size == 2
    assert plan.prediction is not None
    assert sum(plan.prediction.parts.values()) == pytest.approx(plan.prediction.step_seconds)


def test_recommend_answers_as_json(planner):
    found = planner("recommend", *TINY, "--json")
    answer = json.loads(found.out)
    assert answer["best"]["layout"]["world_size"] == 2
    assert answer["best"]["step_seconds"] == min(c["step_seconds"] for c in answer["ranked"])
    assert answer["considered"] >= answer["fitting"] > 0
    assert answer["best"]["peak_bytes"] == max(s["peak_bytes"] for s in answer["best"]["stages"])


def test_estimate_agrees_with_the_same_layout_in_recommend(planner):
    best = json.loads(planner("recommend", *TINY, "--json").out)["best"]
    fields = {k: v for k, v in best["layout"].items() if k != "world_size"}
    for name in ("stage_layers", "axis_order"):
        fields[name] = tuple(fields[name])
    words = format_layout(Layout(**fields))
    same = json.loads(planner("estimate", *TINY, "--layout", words, "--json").out)
    assert same["step_seconds"] == pytest.approx(best["step_seconds"])
    assert same["peak_bytes"] == best["peak_bytes"]


def test_a_layout_that_does_not_fit_is_an_answer(planner):
    found = planner("estimate", "--model", "llama-2-70b", "--gpus", "1", "--json")
    assert found.code == 1
    assert json.loads(found.out)["fits"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "lama-7b", "--gpus", "8"), "llama-7b"),
        (("--model", "llama-7b", "--gpus", "8", "--cluster", "a100-80"), "a100"),
        (("--model", "llama-7b", "--gpus", "-4"), "--gpus must be at least 1, got -4"),
        (("--model", "llama-7b", "--gpus", "8", "--precision", "bf17"), "--precision is one of"),
        (("--model", "llama-7b", "--gpus", "8", "--set", "tpp=2"), "tpp"),
        (("--model", "llama-7b", "--gpus", "8", "--max-memory", "lots"), "lots"),
        (("--model", "llama-7b", "--gpus", "8", "-o", "/nowhere/plan.json"), "cannot write"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(planner, words, said):
    found = planner("recommend", *words)
    assert found.code == 2
    assert said in found.err
    assert "Traceback" not in found.err
    assert found.out == ""


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("tp=3", "does not divide the 8 devices"),
        ("microbatch=3", "cannot be split"),
        ("tp=2,dp=8", "8"),
        ("zero=9", "zero_stage is 0, 1, 2 or 3, got 9"),
    ],
)
def test_a_wrong_layout_names_the_rule(planner, layout, said):
    found = planner("estimate", "--model", "llama-7b", "--gpus", "8", "--layout", layout)
    assert found.code == 2
    assert said in found.err


def test_recommend_needs_neither_torch_nor_the_executor():
    code = (
        "import sys; from planner.cli import main; sys.argv = ['planner', 'recommend', "
        f"{', '.join(map(repr, TINY))}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'executor', 'matplotlib', 'scipy', 'networkx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def test_estimate_draws_bars_and_a_curve(planner, tmp_path):
    path = tmp_path / "memory.svg"
    words = ("--model", "llama-7b", "--gpus", "8", "--layout", "tp=2,pp=4", "--plot", str(path))
    assert planner("estimate", *words).code == 0
    drawn = path.read_text()
    assert drawn.startswith("<?xml")
    assert len(drawn) > 10_000


def test_a_curve_peaks_where_the_estimate_does():
    from planner.api import estimate
    from planner.report.plots import memory_curve

    appraisal = estimate("llama-7b", gpus=8, layout="tp=2,pp=4,recompute=full")
    assert memory_curve(appraisal).peak_bytes == pytest.approx(appraisal.peak_bytes, rel=1e-6)
