"""The Chrome trace: slices of a lane nest, arrows pair, the picture is the played schedule."""

from collections import defaultdict

import pytest

from planner.api import estimate
from planner.appraisal import plan_of
from planner.exports.trace import COMPUTE, trace_plan
from planner.layout import Layout
from planner.plan import Plan

TOLERANCE = 1e-3  # microseconds: rounding of the sums


def plan(layout: str, gpus: int) -> Plan:
    return plan_of(estimate("llama-7b", gpus=gpus, layout=layout, global_batch=64))


LAYOUTS = {
    "one stage": ("dp=8,zero=1,microbatch=2", 8),
    "1f1b": ("tp=2,pp=4,sp", 16),
    "interleaved": ("pp=4,vpp=2,schedule=interleaved", 8),
    "split backward": ("pp=4,vpp=2,schedule=zbv", 8),
}


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def traced(request):
    layout, gpus = LAYOUTS[request.param]
    one = plan(layout, gpus)
    return one, trace_plan(one)


def slices_by_lane(document):
    lanes = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return lanes


def test_slices_of_a_lane_nest(traced):
    for lane in slices_by_lane(traced[1]).values():
        open_ends = []
        for start, end in sorted(lane, key=lambda s: (s[0], -s[1])):
            assert end >= start
            while open_ends and open_ends[-1] <= start + TOLERANCE:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + TOLERANCE
            open_ends.append(end)


def test_arrows_pair_and_start_and_end_inside_slices(traced):
    one, document = traced
    lanes = slices_by_lane(document)
    ends = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
            inside = lanes[event["pid"], event["tid"]]
            assert any(a - TOLERANCE <= event["ts"] <= b + TOLERANCE for a, b in inside)
    for pair in ends.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        start, end = sorted(pair, key=lambda event: event["ph"], reverse=True)
        assert start["ts"] <= end["ts"] + TOLERANCE
        assert start["pid"] != end["pid"]
    layout: Layout = one.layout
    if layout.pp == 1:
        assert not ends
    if layout.schedule == "1f1b" and layout.pp > 1:
        assert len(ends) == 2 * (layout.pp - 1) * layout.microbatches


def test_every_action_is_drawn_and_lanes_are_named(traced):
    one, document = traced
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(slices_by_lane(document)) == names
    processes = [e for e in events if e["name"] == "process_name"]
    assert len(processes) == one.layout.pp
    forwards = [e for e in events if e["ph"] == "X" and e["name"].startswith("forward ")]
    assert len(forwards) == one.layout.num_stages * one.layout.microbatches


def test_trace_lasts_about_as_long_as_the_predicted_step(traced):
    one, document = traced
    lanes = slices_by_lane(document)
    last = max(end for (_, tid), lane in lanes.items() if tid == COMPUTE for _, end in lane)
    assert one.prediction is not None
    assert last * 1e-6 == pytest.approx(one.prediction.step_seconds, rel=0.05)
