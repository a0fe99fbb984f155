"""The search against brute force, against the single-layout estimate, and against itself."""

import itertools
from collections import Counter
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.calibration import Calibration, StepConstants
from planner.catalogue import load_cluster, load_framework, load_model
from planner.cost.comm import default_communication
from planner.cost.compute import default_constants
from planner.cost.memory import memory
from planner.cost.step import estimate
from planner.framework import Framework
from planner.job import Job
from planner.layout_table import tabulate
from planner.model import Run
from planner.rules import Question, broken_rules, explain_rules
from planner.search import read_constraints, search
from planner.search.bounds import bounds_of
from planner.search.constraints import Constraints
from planner.search.exact import least_steps, played
from planner.search.modes import fitting_modes
from planner.search.orders import ORDERS, ideal, with_orders
from planner.search.pricing import Pricing, steps, timed
from planner.search.space import build_space

CALIBRATION = Calibration()
FRAMEWORK = Framework(name="free", backend="torch", chooses_fused_loss=False)


def pricing_of(model, *, devices, batch, cluster="a100-80g-8x200g", length=512, limit=0,
               framework=FRAMEWORK):  # fmt: skip
    question = Question(
        model=model, job=Job(global_batch=batch, sequence_length=length),
        cluster=load_cluster(cluster), framework=framework, num_devices=devices,
    )  # fmt: skip
    return Pricing(question=question, calibration=CALIBRATION, max_memory_bytes=limit)


def ask(pricing, **words):
    q = pricing.question
    return search(
        q.model, q.job, q.cluster, q.framework, pricing.calibration,
        num_devices=q.num_devices, max_memory_bytes=pricing.max_memory_bytes, **words,
    )  # fmt: skip


def small_model(layers, name="tiny-llama"):
    model = load_model(name)
    run = model.layers[0]
    return replace(model, layers=(Run(block=run.block, count=layers),))


def brute_force(pricing, constraints):
    """Every layout of the full space, every k and every order, all of them played."""
    q = pricing.question
    layers = q.model.num_layers
    everything = []
    for table in build_space(q, constraints, full=True).chunks():
        broken, _ = broken_rules(table, q)
        for i in np.flatnonzero(~broken):
            plain = table.layout(int(i))
            modes = [("none", 0), *(("full", k) for k in range(-(-layers // plain.pp)))]
            for (mode, k), order in itertools.product(modes, distinct_orders(plain)):
                everything.append(
                    replace(plain, recompute=mode, recompute_layers=k, axis_order=order)
                )
    if not everything:
        return np.inf
    table = tabulate(everything)
    found = memory(q.model, q.job, q.framework, table, device=q.cluster.device)
    fits = found.device <= pricing.limit_bytes
    if not fits.any():
        return np.inf
    priced, _ = timed(table.take(fits), pricing, found.allocated[fits], found.device[fits])
    return played(priced, pricing).step_seconds.min()


def distinct_orders(layout):
    """Orders that differ in the sequence of the axes in use."""
    used = [a for a in ("tp", "cp", "dp", "pp") if getattr(layout, a) > 1]
    seen = {}
    for order in ORDERS:
        seen.setdefault(tuple(a for a in order if a in used), order)
    return seen.values()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    devices=st.sampled_from([2, 3, 4, 6]),
    layers=st.integers(2, 4),
    batch=st.sampled_from([4, 6, 12]),
    share=st.floats(0.05, 1.2),
    schedule=st.sampled_from(["1f1b", "interleaved", "zb-h1", "zbv"]),
    zero=st.sampled_from([0, 1, 3]),
)
def test_result_equals_brute_force(  # noqa: PLR0917
    devices, layers, batch, share, schedule, zero
):
    """On small random jobs, some of them short of memory, nothing beats the answer."""
    model = small_model(layers)
    # Nodes of two, so that the order of axes matters.
    two = replace(load_cluster("a100-80g-8x200g"), devices_per_host=2)
    two = replace(two, tiers=(replace(two.tiers[0], size=2), *two.tiers[1:]))
    free = pricing_of(model, devices=devices, batch=batch)
    free = replace(free, question=replace(free.question, cluster=two))
    words = {"only": [f"schedule={schedule},1f1b", f"zero=0,{zero}"],
             "forbid": ["cp", "offload", "sp"]}  # fmt: skip
    roomy = ask(free, **words)
    assume(roomy.best is not None)
    limit = int(roomy.best.device_bytes * (0.9 + 0.2 * share))
    pricing = replace(free, max_memory_bytes=limit)
    answer = ask(pricing, full=True, **words)
    constraints = read_constraints(**words)
    expected = brute_force(pricing, constraints)
    found = answer.best.step_seconds if answer.best else np.inf
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.fixture(scope="module")
def llama():
    return pricing_of(load_model("llama-7b"), devices=32, batch=256, length=2048)


def sample_table(pricing, rows=400, seed=0):
    tables = list(build_space(pricing.question, Constraints(), full=False).chunks())
    table = tables[-1]
    broken, _ = broken_rules(table, pricing.question)
    legal = np.flatnonzero(~broken)
    return table.take(np.random.default_rng(seed).choice(legal, rows, replace=False))


def test_played_equals_estimate(llama):
    """Many at once, long programs by their first rounds: the same as one by one."""
    table = sample_table(llama, rows=120)
    zeros = np.zeros(len(table))
    priced, _ = timed(table, llama, zeros, zeros)
    many = played(priced, llama).step_seconds
    q = llama.question
    one_by_one = [
        estimate(q.model, q.job, q.cluster, q.framework, table.layout(i), CALIBRATION).step_seconds
        for i in range(len(table))
    ]
    np.testing.assert_allclose(many, one_by_one, rtol=1e-9)


def test_least_step_is_never_above_the_exact_step(llama):
    """The bound that makes it safe to play only some: nothing is faster than its least step."""
    table = sample_table(llama, rows=300, seed=1)
    zeros = np.zeros(len(table))
    priced, found = timed(table, llama, zeros, zeros)
    exact = played(priced, llama).step_seconds
    least = least_steps(table, found, llama, np.arange(len(table)))
    assert (least <= exact * (1 + 1e-9)).all()
    bare = bounds_of(table, llama)
    assert (bare.seconds <= exact * (1 + 1e-9)).all()
    q = llama.question
    held = memory(q.model, q.job, q.framework, table, device=q.cluster.device).allocated
    assert (bare.state_bytes <= held * (1 + 1e-9)).all()


def test_no_order_beats_neighbouring_ranks(llama):
    """With every axis innermost at once, no layout is slower than in any real order."""
    table = sample_table(llama, rows=150, seed=2)
    spread, owner = with_orders(table, llama.question.cluster, ORDERS)
    bound = steps(ideal(table), llama)
    least = bound.step_seconds - bound.parts["bubble"]
    assert (least[owner] <= steps(spread, llama).step_seconds * (1 + 1e-9)).all()


def test_partial_recompute_takes_the_least_that_fits():
    """One layer less would not fit, by memory itself."""
    pricing = pricing_of(
        load_model("llama-7b"), devices=8, batch=64, length=4096, limit=40 * 2**30
    )
    q = pricing.question
    checked = 0
    for table in build_space(q, read_constraints(only=["zero=1,3"]), full=False).chunks():
        broken, _ = broken_rules(table, q)
        for fit in fitting_modes(table.take(~broken), pricing, Constraints(), Counter()):
            rows = np.flatnonzero(fit.table.recompute_layers > 1)[:50]
            if not len(rows):
                continue
            fewer = fit.table.take(rows)
            fewer = replace(fewer, recompute_layers=fewer.recompute_layers - 1)
            found = memory(q.model, q.job, q.framework, fewer, device=q.cluster.device)
            share = float((found.device > pricing.limit_bytes).mean())
            assert share > 0.9  # the chord may be one layer on the safe side
            checked += len(rows)
    assert checked


def test_same_question_same_answer(llama):
    first, second = ask(llama), ask(llama)
    assert first.ranked == second.ranked
    assert first.rejected == second.rejected


def shaken(value, noise, name=""):
    """The same constants, every fitted rate and time up to 1 % off."""
    if isinstance(value, float) and "exponent" not in name:
        return value * float(noise.uniform(0.99, 1.01))
    if isinstance(value, dict):
        return {key: shaken(item, noise, key) for key, item in value.items()}
    if is_dataclass(value):
        parts = {f.name: shaken(getattr(value, f.name), noise, f.name) for f in fields(value)}
        try:
            return replace(value, **parts)
        except ValueError:  # a share of 1 cannot grow
            return value
    return value


@pytest.mark.parametrize("seed", range(4))
def test_one_percent_noise_moves_the_best_step_by_at_most_two(llama, seed):
    """Constants a little off do not turn the predicted time round."""
    noise = np.random.default_rng(seed)
    noisy = Calibration(
        kernels=shaken(default_constants(llama.question.cluster.device), noise),
        communication=shaken(default_communication(), noise),
        step=shaken(StepConstants(), noise),
    )
    best = ask(replace(llama, calibration=noisy)).best.step_seconds
    assert best != ask(llama).best.step_seconds
    assert best == pytest.approx(ask(llama).best.step_seconds, rel=0.02)


def test_the_pick_is_never_worse_than_the_obvious_default(llama):
    answer = ask(llama)
    assert answer.default is not None
    assert answer.gain >= 1.0
    assert answer.best.step_seconds == min(c.step_seconds for c in answer.ranked)


def test_losses_sum_to_the_difference(llama):
    answer = ask(llama)
    for rival, loss in zip(answer.ranked, answer.losses, strict=True):
        difference = rival.step_seconds - answer.best.step_seconds
        assert sum(loss.terms.values()) == pytest.approx(difference, abs=1e-9)
        assert loss.seconds == max(loss.terms.values())


def test_front_has_no_beaten_member(llama):
    front = ask(llama).pareto
    for one, other in itertools.pairwise(front):
        assert one.step_seconds <= other.step_seconds
        assert one.device_bytes > other.device_bytes


def test_counts_add_up(llama):
    answer = ask(llama)
    spared = answer.outpaced + sum(answer.rejected.values())
    assert answer.considered == answer.fitting + spared
    assert answer.fitting > 0 and answer.outpaced >= 0
    assert answer.priced <= answer.considered


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 6, 7, 12, 24, 48, 100])
def test_any_number_of_devices_gets_a_plan(devices):
    """Odd numbers too: uneven pipelines, odd data parallelism."""
    model = load_model("tinyllama-1.1b")
    answer = ask(pricing_of(model, devices=devices, batch=devices * 8, length=2048))
    assert answer.best is not None
    assert answer.best.layout.world_size == devices
    q = pricing_of(model, devices=devices, batch=devices * 8, length=2048).question
    assert not explain_rules(answer.best.layout, model, q.job, q.cluster, q.framework)


def test_nothing_fits_is_an_answer_with_remedies():
    answer = ask(pricing_of(load_model("llama-2-70b"), devices=2, batch=64, length=4096))
    assert answer.best is None
    assert answer.rejected["memory"] > 0
    more = [r for r in answer.remedies if r.change.startswith("--gpus")]
    assert more and more[0].num_devices > 2
    assert more[0].candidate.device_bytes <= more[0].candidate.limit_bytes


def test_constraints_are_kept():
    pricing = pricing_of(load_model("llama-7b"), devices=16, batch=64, length=2048)
    answer = ask(pricing, fixed="tp=2", only=["zero=0,1"], forbid=["cp", "schedule=zbv"])
    for candidate in answer.ranked:
        layout = candidate.layout
        assert (layout.tp, layout.cp) == (2, 1)
        assert layout.zero_stage in (0, 1)
        assert layout.schedule != "zbv"


def test_contradicting_constraints_are_refused():
    with pytest.raises(ValueError, match="tp is asked for and forbidden"):
        read_constraints(fixed="tp=2", forbid=["tp=2"])
    with pytest.raises(ValueError, match="asked for twice"):
        read_constraints(fixed="pp=2", forbid=["pp"])
    with pytest.raises(ValueError, match="layout has no"):
        read_constraints(only=["colour=red"])


def test_framework_limits_are_kept():
    megatron = load_framework("megatron-core")
    pricing = pricing_of(load_model("llama-7b"), devices=16, batch=64, length=2048,
                         framework=megatron)  # fmt: skip
    for candidate in ask(pricing).ranked:
        assert not explain_rules(
            candidate.layout, pricing.question.model, pricing.question.job,
            pricing.question.cluster, megatron,
        )  # fmt: skip


def test_objectives(llama):
    least, fastest = ask(llama, objective="memory"), ask(llama, objective="cost")
    assert least.best.device_bytes == min(c.device_bytes for c in fastest.pareto)
    assert fastest.best == ask(llama).best
    with pytest.raises(ValueError, match="objective is one of time, cost, memory"):
        ask(llama, objective="beauty")
