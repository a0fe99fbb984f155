"""What must hold for every schedule, whatever its size and its stages' durations."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.schedules import SCHEDULE_CODES, SCHEDULES, schedule_actions, stage_ranks, why_not
from planner.schedules.closed_form import held_chunks, least_seconds, stage_sums
from planner.schedules.held import peak_held, peak_in_flight
from planner.schedules.program import compile_program
from planner.schedules.timeline import makespan_seconds, play

seconds = st.floats(0.0, 4.0, allow_nan=False, width=32)


@st.composite
def shapes(draw):
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    pp = draw(st.integers(1, 5))
    vpp = {"gpipe": 1, "1f1b": 1, "zbv": 2, "dualpipe": 2}.get(name) or draw(st.integers(1, 3))
    if name == "interleaved":
        vpp = max(2, vpp)
    microbatches = draw(st.integers(1, 14))
    if name == "dualpipe":
        microbatches += 2 * pp - 1
    if why_not(name, pp=pp, vpp=vpp, microbatches=microbatches):
        microbatches = pp * draw(st.integers(1, 3))
    return name, pp, vpp, microbatches


@st.composite
def jobs(draw):
    name, pp, vpp, microbatches = draw(shapes())
    stages = st.lists(seconds, min_size=pp * vpp, max_size=pp * vpp).map(np.array)
    return name, pp, vpp, microbatches, draw(stages), draw(stages), draw(stages), draw(seconds)


@given(shapes())
@settings(max_examples=150, deadline=None)
def test_every_action_once_and_in_order(shape):
    name, pp, vpp, m = shape
    lists = schedule_actions(name, pp=pp, vpp=vpp, microbatches=m)
    ranks = stage_ranks(name, pp=pp, vpp=vpp)
    seen = {}
    for rank, rank_actions in enumerate(lists):
        for place, action in enumerate(rank_actions):
            assert ranks[action.stage] == rank
            assert action[:3] not in seen
            seen[action[:3]] = place
    for stage in range(pp * vpp):
        for i in range(m):
            assert ((stage, "B", i) in seen) != ((stage, "I", i) in seen)
            assert ((stage, "I", i) in seen) == ((stage, "W", i) in seen)
            backward = seen.get((stage, "B", i), seen.get((stage, "I", i)))
            assert seen[stage, "F", i] < backward
            assert backward <= seen.get((stage, "W", i), backward)
    compile_program(lists)  # raises at a deadlock


def longest_path(lists, durations, send):
    """The makespan by networkx, from the rules alone."""
    num_stages = len(durations["F"])
    ranks = {a.stage: rank for rank, actions in enumerate(lists) for a in actions}
    graph = nx.DiGraph()
    own = {a[:3] for actions in lists for a in actions}
    for actions in lists:
        for a in actions:
            graph.add_node(a[:3])
        for a, b in pairwise(actions):
            graph.add_edge(a[:3], b[:3], send=0.0)
    for stage, kind, k in own:
        if kind == "F":
            if stage:
                cost = send if ranks[stage] != ranks[stage - 1] else 0.0
                graph.add_edge((stage - 1, "F", k), (stage, kind, k), send=cost)
        elif kind == "W":
            graph.add_edge((stage, "I", k), (stage, kind, k), send=0.0)
        elif stage == num_stages - 1:
            graph.add_edge((stage, "F", k), (stage, kind, k), send=0.0)
        else:
            after = (stage + 1, "B" if (stage + 1, "B", k) in own else "I", k)
            cost = send if ranks[stage] != ranks[stage + 1] else 0.0
            graph.add_edge(after, (stage, kind, k), send=cost)
    for a in list(graph.nodes):
        graph.add_edge(a, "end", send=0.0)
    for a, _, data in graph.edges(data=True):
        data["weight"] = data["send"] + durations[a[1]][a[0]]
    return nx.dag_longest_path_length(graph, weight="weight")


@given(jobs())
@settings(max_examples=60, deadline=None)
def test_timeline_is_the_longest_path(job):
    name, pp, vpp, m, f, i, w, send = job
    lists = schedule_actions(name, pp=pp, vpp=vpp, microbatches=m)
    timeline = play(
        lists, forward_seconds=f, input_gradient_seconds=i, weight_gradient_seconds=w,
        send_seconds=send,
    )  # fmt: skip
    expected = longest_path(lists, {"F": f, "B": i + w, "I": i, "W": w}, send)
    assert timeline.makespan_seconds == pytest.approx(expected, abs=1e-9)
    path = timeline.critical_path()
    assert path[0].start_seconds == pytest.approx(0.0, abs=1e-9)
    assert path[-1].end_seconds == timeline.makespan_seconds


@given(jobs())
@settings(max_examples=300, deadline=None)
def test_closed_form_never_exceeds_the_timeline(job):
    name, pp, vpp, m, f, i, w, send = job
    sums = stage_sums(
        name, pp=pp, vpp=vpp,
        forward_seconds=f, input_gradient_seconds=i, weight_gradient_seconds=w,
    )  # fmt: skip
    least = least_seconds(
        SCHEDULE_CODES[name], sums, pp=pp, vpp=vpp, microbatches=m, send_seconds=send
    )
    for overlap in (True, False):
        played = makespan_seconds(
            schedule_actions(name, pp=pp, vpp=vpp, microbatches=m),
            forward_seconds=f, input_gradient_seconds=i, weight_gradient_seconds=w,
            send_seconds=send, overlap=overlap,
        )  # fmt: skip
        assert least <= played * (1 + 1e-9) + 1e-9


@given(shapes())
@settings(max_examples=100, deadline=None)
def test_closed_form_is_exact_for_equal_stages(shape):
    name, pp, vpp, m = shape
    f, i, w = (1.0, 1.0, 1.0) if name in ("zbv", "dualpipe", "zb-h1") else (1.0, 0.75, 1.5)
    enough = m >= pp and (vpp == 1 or m % pp == 0) and (name != "zbv" or m >= 2 * pp)
    if not enough:
        return
    stages = np.ones(pp * vpp)
    durations = {
        "forward_seconds": f * stages,
        "input_gradient_seconds": i * stages,
        "weight_gradient_seconds": w * stages,
    }
    sums = stage_sums(name, pp=pp, vpp=vpp, **durations)
    least = least_seconds(SCHEDULE_CODES[name], sums, pp=pp, vpp=vpp, microbatches=m)
    lists = schedule_actions(name, pp=pp, vpp=vpp, microbatches=m)
    assert least == pytest.approx(makespan_seconds(lists, **durations))


@given(shapes())
@settings(max_examples=200, deadline=None)
def test_held_closed_form_is_exact(shape):
    name, pp, vpp, m = shape
    lists = schedule_actions(name, pp=pp, vpp=vpp, microbatches=m)
    exact = peak_held(lists, np.ones(pp * vpp))
    code = SCHEDULE_CODES[name]
    form = held_chunks(code, pp=pp, vpp=vpp, microbatches=m, rank=np.arange(pp))
    assert form.tolist() == exact.tolist()
    ranks = stage_ranks(name, pp=pp, vpp=vpp)
    assert np.bincount(ranks, peak_in_flight(lists), pp).tolist() == exact.tolist()


@given(jobs())
@settings(max_examples=40, deadline=None)
def test_many_candidates_are_timed_as_one_by_one(job):
    name, pp, vpp, m, f, i, w, send = job
    program = compile_program(schedule_actions(name, pp=pp, vpp=vpp, microbatches=m))
    scales = np.array([[0.5, 1.0, 3.0], [1.0, 2.0, 0.0]])
    for overlap in (True, False):
        together = makespan_seconds(
            program,
            forward_seconds=f[:, None, None] * scales,
            input_gradient_seconds=i[:, None, None],
            weight_gradient_seconds=w[:, None, None] * np.ones(3),
            send_seconds=send,
            overlap=overlap,
        )
        assert together.shape == scales.shape
        for place in np.ndindex(scales.shape):
            alone = play(
                program, forward_seconds=f * scales[place], input_gradient_seconds=i,
                weight_gradient_seconds=w, send_seconds=send, overlap=overlap,
            )  # fmt: skip
            assert together[place] == pytest.approx(alone.makespan_seconds)
