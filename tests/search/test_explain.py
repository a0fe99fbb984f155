"""What is said about a plan: rivals, knobs, crossings, lessons, sweeps."""

from dataclasses import replace

import pytest

from planner.calibration import Calibration
from planner.layout import Layout
from planner.rules import Question
from planner.search import Pricing, explain, search, teach
from planner.setting import resolve
from planner.sweep import summarise, sweep


@pytest.fixture(scope="module")
def asked():
    setting = resolve(model="llama-2-13b", num_devices=32)
    question = Question(
        model=setting.model, job=setting.job, cluster=setting.cluster,
        framework=setting.framework, num_devices=32,
    )  # fmt: skip
    pricing = Pricing(question=question, calibration=Calibration())
    result = search(
        setting.model, setting.job, setting.cluster, setting.framework, Calibration(),
        num_devices=32, top=12,
    )  # fmt: skip
    return pricing, result


def test_shares_sum_to_the_step(asked):
    pricing, result = asked
    found = explain(result.best.layout, pricing)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.candidate.step_seconds == pytest.approx(result.best.step_seconds, rel=1e-9)
    assert found.binds in {*found.shares, "memory"} - {"work"}


def test_rivals_lose_term_by_term_or_cannot_run(asked):
    pricing, result = asked
    batch = pricing.question.job.global_batch
    slow = Layout(tp=8, dp=4, microbatches=batch // 4, sequence_parallel=True, zero_stage=1)
    wrong = Layout(tp=16, dp=2, microbatches=batch // 2)
    lost, refused = explain(result.best.layout, pricing, against=[slow, wrong]).rivals
    gap = lost.candidate.step_seconds - result.best.step_seconds
    assert sum(lost.loss.terms.values()) == pytest.approx(gap)
    assert lost.loss.term in lost.loss.terms and gap > 0
    assert refused.candidate is None
    assert {r.rule for r in refused.rejected} == {"heads", "kv heads"}


def test_no_single_step_beats_the_best(asked):
    pricing, result = asked
    knobs = explain(result.best.layout, pricing).knobs
    assert {"microbatch", "zero_stage", "recompute"} <= {k.field for k in knobs}
    for knob in knobs:
        if knob.rival.candidate is not None:
            assert knob.rival.candidate.step_seconds >= result.best.step_seconds * (1 - 1e-9)


def test_a_slower_network_turns_the_answer(asked):
    pricing, result = asked
    crossings = explain(result.best.layout, pricing, ranked=result.ranked).crossings
    network = [c for c in crossings if c.factor < 1]
    assert network
    factor, tiers = network[0].factor, pricing.question.cluster.tiers
    assert 1 / 16 <= factor < 1
    name = network[0].quantity.removeprefix("bandwidth of ")
    assert name in {tier.name for tier in tiers}


def test_lesson_names_its_numbers_and_its_differences(asked):
    pricing, result = asked
    lesson = teach(pricing, result)
    assert len(lesson.branches) == 4
    assert not lesson.branches[0].answer, "13e9 x 18 bytes are no 80 GB"
    assert lesson.branches[3].answer, "NVLink in the node"
    assert lesson.gain >= 1
    for difference in lesson.differences:
        assert difference.rule_of_thumb != difference.optimum


def test_sweep_finds_where_another_node_is_slower():
    """deepspeed#5770: two GPUs in a node against four in two nodes on a slow link."""
    settings = []
    for count in (1, 2, 4):
        setting = resolve(
            model="qwen2.5-1.5b", num_devices=count, cluster="a100-80g-8x200g",
            global_batch=8, sequence_length=512,
        )  # fmt: skip
        inner, outer = setting.cluster.tiers[0], setting.cluster.tiers[-1]
        slow = replace(outer, bytes_per_second=2e8, uplink_bytes_per_second=2e8,
                       latency_seconds=1e-4)  # fmt: skip
        cluster = replace(setting.cluster, tiers=(replace(inner, size=2), slow),
                          devices_per_host=2)  # fmt: skip
        settings.append(replace(setting, cluster=cluster))
    points = list(sweep(settings, Calibration()))
    summary = summarise(points, tokens=1e9)
    assert [p.num_devices for p in summary.slower_from] == [4]
    assert summary.fastest.num_devices == 2
    assert points[1].speedup > 1.2


def test_cheapest_within_a_deadline():
    settings = [resolve(model="llama-7b", num_devices=n, cluster="p4de.24xlarge",
                        global_batch=512) for n in (8, 16, 32)]  # fmt: skip
    points = list(sweep(settings, Calibration()))
    tokens = 1e10
    unhurried = summarise(points, tokens=tokens)
    hurry = points[-1].seconds_for(tokens) * 1.01
    assert summarise(points, tokens=tokens, deadline_seconds=hurry).cheapest is points[-1]
    assert unhurried.cheapest.usd_for(tokens) == min(p.usd_for(tokens) for p in points)
    assert summarise(points, tokens=tokens, budget_usd=1.0).cheapest is None
