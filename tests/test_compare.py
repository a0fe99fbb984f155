import pytest

from planner.compare import compare
from planner.job import Job
from planner.layout import Layout
from planner.measurement import Measurement, RankMeasurement
from planner.plan import Plan, Prediction
from tests.models import llama

PREDICTION = Prediction(
    step_seconds=1.0,
    low_seconds=0.9,
    high_seconds=1.2,
    parts={"forward": 0.25, "backward": 0.5, "data parallel": 0.2, "optimizer": 0.05},
    peak_bytes=1100,
    one_device_seconds=1.8,
)


def plan(prediction: Prediction | None = PREDICTION) -> Plan:
    return Plan(
        model=llama(),
        job=Job(global_batch=8, sequence_length=128),
        layout=Layout(dp=2, microbatches=4),
        cluster="here",
        devices_per_node=2,
        prediction=prediction,
    )


def measurement(step_seconds: float = 0.9, world_size: int = 2) -> Measurement:
    seconds = {"forward": 0.3, "backward": 0.4, "communication": 0.1, "optimizer": 0.05}
    return Measurement(
        plan_digest="",
        machine="test",
        backend="gloo",
        torch_version="2",
        date="2026-01-01",
        world_size=world_size,
        steps=5,
        step_seconds=step_seconds,
        step_seconds_low=step_seconds,
        step_seconds_high=step_seconds,
        tokens_per_second=1.0,
        ranks=(RankMeasurement(rank=0, stage=0, peak_bytes=1000, seconds=seconds),),
        baseline_seconds=1.8,
    )


def test_lines_pair_what_means_the_same():
    lines = {line.name: line for line in compare(plan(), measurement()).lines}
    assert lines["forward and backward"].predicted == pytest.approx(0.75)
    assert lines["forward and backward"].measured == pytest.approx(0.7)
    assert lines["communication"].predicted == pytest.approx(0.2)
    assert lines["speedup over one device"].measured == pytest.approx(2.0)
    assert lines["peak memory"].error == pytest.approx(0.1)


def test_the_worst_judged_line_decides():
    assert compare(plan(), measurement(), tolerance=0.15).within
    slow = compare(plan(), measurement(step_seconds=2.0), tolerance=0.15)
    assert not slow.within
    assert slow.worst.name in ("step", "speedup over one device")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((plan(None), measurement()), "holds no prediction"),
        ((plan(), measurement(world_size=3)), "ran on 3 ranks, the plan needs 2"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments, words):
    with pytest.raises(ValueError, match=words):
        compare(*arguments)
