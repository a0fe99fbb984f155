"""``explain``, ``sweep`` and ``recommend --teach``."""

import csv
import json

import pytest


@pytest.fixture
def plan(planner, tmp_path):
    path = tmp_path / "plan.json"
    words = ("--model", "llama-7b", "--gpus", "8", "--global-batch", "64", "-o", str(path))
    assert planner("recommend", *words).code == 0
    return path


def test_explain_says_what_binds_and_what_each_knob_does(planner, plan):
    answer = json.loads(planner("explain", str(plan), "--json").out)
    assert sum(answer["shares"].values()) == pytest.approx(1.0)
    assert answer["faster"] is None  # the plan is the search's own best
    assert {knob["field"] for knob in answer["knobs"]} >= {"tp", "pp", "recompute"}
    step = answer["candidate"]["step_seconds"]
    runnable = [k["step_seconds"] for k in answer["knobs"] if k["step_seconds"]]
    assert min(runnable) >= 0.98 * step  # no single step is better than the best by much


def test_explain_lays_a_rival_beside_it(planner, plan):
    found = planner("explain", str(plan), "--against", "tp=8", "--json")
    rival = json.loads(found.out)["rivals"][0]
    assert "tp=8" in rival["layout"]
    assert rival["loses_in"]
    assert planner("explain", str(plan), "--against", "tp=8").code == 0


def test_remedies_come_cheapest_first_and_save_memory(planner, plan):
    remedies = json.loads(planner("explain", str(plan), "--json").out)["remedies"]
    slower = [r["slower"] for r in remedies if r["slower"] is not None]
    assert slower == sorted(slower)
    assert all(r["saved_bytes"] > 0 for r in remedies)


def test_a_wrong_rival_is_one_line(planner, plan):
    found = planner("explain", str(plan), "--against", "tp=3")
    assert found.code == 2
    assert "does not divide" in found.err


def test_sweep_prices_every_point_and_names_the_cheapest(planner, tmp_path):
    words = ("--model", "llama-7b", "--gpus", "8,16,32", "--tokens", "1T", "--deadline", "200")
    table = tmp_path / "sweep.csv"
    found = planner("sweep", *words, "--json", "-o", str(table), "--plot", str(tmp_path / "s.png"))
    answer = json.loads(found.out)
    assert [p["num_devices"] for p in answer["points"]] == [8, 16, 32]
    rates = [p["tokens_per_second"] for p in answer["points"]]
    assert rates == sorted(rates)
    assert answer["cheapest"]["days"] <= 200
    with table.open() as stream:
        assert len(list(csv.DictReader(stream))) == 3
    assert (tmp_path / "s.png").stat().st_size > 0


def test_a_deadline_that_nothing_meets_is_an_answer(planner):
    words = ("--model", "llama-7b", "--gpus", "8", "--deadline", "0.001")
    found = planner("sweep", *words)
    assert found.code == 1
    assert "none in time" in found.out


@pytest.mark.parametrize("gpus", ["eight", "8,,16", "0", ""])
def test_a_wrong_list_of_counts_is_refused(planner, gpus):
    found = planner("sweep", "--model", "llama-7b", "--gpus", gpus)
    assert found.code == 2
    assert "is not a list of device counts" in found.err


def test_teach_walks_the_rule_of_thumb(planner):
    found = planner("recommend", "--model", "llama-7b", "--gpus", "32", "--teach")
    for words in ("fit on one device?", "deep enough", "wide enough", "fast link?"):
        assert words in found.out
