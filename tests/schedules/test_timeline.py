"""The player on known cases, and what it says of lists that cannot run."""

import re

import numpy as np
import pytest

from planner.schedules import from_texts, schedule_actions, why_not
from planner.schedules.closed_form import held_chunks
from planner.schedules.program import compile_program, program_of
from planner.schedules.timeline import makespan_seconds, play


def played(name, *, pp, microbatches, vpp=1, f=1.0, i=1.0, w=1.0, **more):
    return play(
        schedule_actions(name, pp=pp, vpp=vpp, microbatches=microbatches),
        forward_seconds=f / vpp,
        input_gradient_seconds=i / vpp,
        weight_gradient_seconds=w / vpp,
        **more,
    )


def test_four_stages_eight_microbatches_take_33_forwards():
    timeline = played("1f1b", pp=4, microbatches=8)
    assert timeline.makespan_seconds == 33.0
    assert timeline.busy_seconds.tolist() == [24.0] * 4
    assert timeline.bubble_fraction == pytest.approx(9 / 33)


@pytest.mark.parametrize(
    ("name", "vpp", "microbatches", "utilisation"),
    [
        # an often repeated claim: "4 stages and 8 microbatches lift utilisation from about 50 %
        # to 85 %". With m = 1 one stage of four works (25 %), with m = 4 57 %, and with m = 8
        # 73 % under GPipe and under 1F1B alike: m / (m + p - 1). 85 % needs m = 17, or two
        # chunks per rank (84 %), or a schedule that fills the bubble with weight gradients.
        ("gpipe", 1, 1, 1 / 4),
        ("gpipe", 1, 4, 4 / 7),
        ("1f1b", 1, 4, 4 / 7),
        ("gpipe", 1, 8, 8 / 11),
        ("1f1b", 1, 8, 8 / 11),
        ("1f1b", 1, 17, 17 / 20),
        ("interleaved", 2, 8, 16 / 19),
        ("zb-h1", 1, 8, 24 / 27),
        ("zbv", 2, 8, 48 / 51),
        ("dualpipe", 2, 8, 48 / 51),
    ],
)
def test_utilisation_of_four_stages(name, vpp, microbatches, utilisation):
    timeline = played(name, pp=4, vpp=vpp, microbatches=microbatches)
    assert 1 - timeline.bubble_fraction == pytest.approx(utilisation)


@pytest.mark.parametrize(
    ("name", "vpp", "idle"),
    # idle time in units of F, I, W, from the papers' tables: (p - 1) times ...
    [
        ("gpipe", 1, lambda f, i, w: f + i + w),
        ("1f1b", 1, lambda f, i, w: f + i + w),
        ("interleaved", 4, lambda f, i, w: (f + i + w) / 4),
        ("zb-h1", 1, lambda f, i, w: f + i - w),
    ],
)
@pytest.mark.parametrize("halves", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75)])
def test_idle_time_is_the_papers(name, vpp, idle, halves):
    f, i, w = halves
    timeline = played(name, pp=4, vpp=vpp, microbatches=16, f=f, i=i, w=w)
    expected = 16 * (f + i + w) + 3 * idle(f, i, w)
    assert timeline.makespan_seconds == pytest.approx(expected)


def test_1f1b_pays_one_round_trip_of_sends_per_pp_microbatches():
    # a rank holds pp microbatches, so every pp-th waits for a trip down and up again
    alone = played("1f1b", pp=4, microbatches=9).makespan_seconds
    assert played("1f1b", pp=4, microbatches=9, send_seconds=0.1).makespan_seconds == (
        pytest.approx(alone + 3 * 2 * 3 * 0.1)
    )


def test_sends_without_overlap_keep_the_sender():
    lists = [from_texts(t.split()) for t in ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")]
    times = {"forward_seconds": 1, "input_gradient_seconds": 1, "weight_gradient_seconds": 0}
    beside = play(lists, send_seconds=0.5, **times)
    kept = play(lists, send_seconds=0.5, overlap=False, **times)
    starts = {str(e.action): e.start_seconds for e in kept.events()}
    assert starts["0F1"] == 1.5
    assert starts["1F1"] == 3.0
    assert kept.makespan_seconds > beside.makespan_seconds
    assert kept.busy_seconds.tolist() == beside.busy_seconds.tolist() == [4.0, 4.0]


def test_merged_pairs_save_what_they_hide():
    lists = schedule_actions("dualpipe", pp=2, vpp=2, microbatches=8)
    times = {"forward_seconds": 1, "input_gradient_seconds": 1, "weight_gradient_seconds": 1}
    apart = play(lists, **times)
    merged = play(lists, merged_forward_seconds=0.8, merged_backward_seconds=1.8, **times)
    pairs = [sum(a.merged for a in rank_actions) for rank_actions in lists]
    saved = apart.busy_seconds - merged.busy_seconds
    assert saved == pytest.approx(0.4 * np.array(pairs))
    assert merged.makespan_seconds < apart.makespan_seconds


def test_in_flight_over_time_peaks_at_the_closed_form():
    timeline = played("1f1b", pp=4, microbatches=8)
    for stage in range(4):
        times, held = timeline.in_flight(stage)
        assert held.max() == held_chunks(1, pp=4, vpp=1, microbatches=8, rank=stage)
        assert held[-1] == 0
        assert (np.diff(times) >= 0).all()


def test_deadlock_names_who_waits_for_what():
    lists = [from_texts(t.split()) for t in ("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")]
    with pytest.raises(
        ValueError, match=r"deadlocks: 0B0 on rank 0 waits for 1B0; 1F1 on rank 1 waits for 0F1"
    ):
        compile_program(lists)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["0F0 0F0 0B0"], "0F0 appears twice"),
        (["0F0 0B0", "1B0"], "0B0 waits for 1B0|1B0 waits for 1F0, which no rank runs"),
        (["0F0 1F0 0B0", "1B0"], "stage 1 runs on rank"),
        (["0B0 0F0"], "0B0 on rank 0 waits for 0F0"),
        ([""], "no actions"),
    ],
)
def test_lists_that_cannot_run(texts, message):
    with pytest.raises(ValueError, match=message):
        compile_program([from_texts(t.split()) for t in texts])


def test_durations_of_the_wrong_number_of_stages():
    program = program_of("1f1b", pp=4, microbatches=4)
    with pytest.raises(ValueError, match="durations of 3 stages, but the schedule has 4"):
        makespan_seconds(
            program,
            forward_seconds=np.ones(3),
            input_gradient_seconds=1,
            weight_gradient_seconds=1,
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1b", 4, 1, 2, "torch"), r"at least pp=4; use microbatches=4 or schedule=gpipe"),
        (("interleaved", 4, 2, 10, "megatron"), r"multiple of pp=4; use microbatches=8 or 12"),
        (("interleaved", 4, 2, 2, "megatron"), r"multiple of pp=4; use microbatches=4 or sched"),
        (("interleaved", 4, 2, 11, "torch"), r"2 equal rounds.*use microbatches=8 or 12"),
        (("interleaved", 4, 1, 8, "any"), "at least two chunks; use vpp=2 or schedule=1f1b"),
        (("1f1b", 4, 2, 8, "any"), "one chunk per rank; use vpp=1 or schedule=interleaved"),
        (("zbv", 4, 1, 8, "any"), "exactly two chunks per rank; use vpp=2 or schedule=zb-h1"),
        (("dualpipe", 4, 2, 7, "any"), "at least 2 pp = 8; use microbatches=8 or schedule=zbv"),
        (("zb-h1", 4, 1, 8, "megatron"), "megatron runs only 1f1b, interleaved"),
        (("interleaved", 1, 2, 8, "megatron"), "pp=1 has no pipeline"),
    ],
)
def test_rules_say_what_would_be_legal(arguments, message):
    name, pp, vpp, microbatches, backend = arguments
    reason = why_not(name, pp=pp, vpp=vpp, microbatches=microbatches, backend=backend)
    assert reason is not None
    assert re.search(message, reason), reason


@pytest.mark.parametrize("microbatches", [10, 8, 3])
def test_torch_takes_equal_rounds_that_megatron_refuses(microbatches):
    refused = {
        backend: why_not("interleaved", pp=4, vpp=2, microbatches=microbatches, backend=backend)
        for backend in ("torch", "megatron")
    }
    assert refused["torch"] is None
    assert (refused["megatron"] is None) == (microbatches % 4 == 0)
