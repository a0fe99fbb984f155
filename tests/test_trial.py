"""Near-ties settled by running them: here with a stand-in for the launch."""

from dataclasses import replace

import pytest

from planner.job import Job
from planner.layout import Layout
from planner.measurement import write_measurement
from planner.plan import Plan, Rival, read_plan
from planner.trial import contenders, run_trial
from tests.models import llama
from tests.test_compare import PREDICTION, measurement

SECONDS = {1: 3.0, 2: 2.0, 4: 4.0}  # by dp


def plan() -> Plan:
    return Plan(
        model=llama(),
        job=Job(global_batch=8, sequence_length=128),
        layout=Layout(dp=1, tp=4, microbatches=8),
        cluster="here",
        devices_per_node=4,
        prediction=PREDICTION,
        rivals=(
            Rival(layout=Layout(dp=2, tp=2, microbatches=4), step_seconds=1.1),
            Rival(layout=Layout(dp=4, microbatches=2), step_seconds=1.2),
        ),
    )


def pretend(path, measured) -> int:
    seconds = SECONDS[read_plan(path).layout.dp]
    write_measurement(measured, replace(measurement(), step_seconds=seconds))
    return 0


def test_the_fastest_measured_comes_first(tmp_path):
    tried, code = run_trial(plan(), top=3, output=tmp_path / "m.json", run=pretend)
    assert code == 0
    assert [one.layout.dp for one in tried] == [2, 1, 4]
    assert [one.predicted_seconds for one in tried] == [1.1, 1.0, 1.2]
    assert read_plan(tried[0].path).layout.dp == 2


def test_a_rival_that_cannot_run_is_passed_over(tmp_path):
    def run(path, measured) -> int:
        return 1 if read_plan(path).layout.dp == 2 else pretend(path, measured)

    tried, code = run_trial(plan(), top=2, output=tmp_path / "m.json", run=run)
    assert (code, [one.layout.dp for one in tried]) == (0, [1])


def test_a_plan_that_cannot_run_ends_the_trial(tmp_path):
    assert run_trial(plan(), top=2, output=tmp_path / "m.json", run=lambda *_: 3) == ([], 3)


def test_more_than_the_plan_names_is_refused():
    with pytest.raises(ValueError, match="--top 4: the plan holds 2 runners-up"):
        contenders(plan(), 4)
