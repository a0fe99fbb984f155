"""The article's checklist with a job's own numbers, and where the optimum differs from it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from planner.cost.memory.states import bytes_per_parameter
from planner.layout import Layout
from planner.ops import Implementation, count_parameters
from planner.search.pricing import Pricing
from planner.search.result import Candidate, SearchResult
from planner.units import format_bytes, format_count

WIDE_PARAMETERS = 10**8
"""A layer this large keeps a device busy even when it is cut (12 h^2 for h = 2,900)."""
DEEP_LAYERS_PER_STAGE = 4
"""Fewer layers on a stage than this, and uneven ends make the pipeline idle."""
FAST_BYTES_PER_SECOND = 10**11
"""Between two devices: NVLink and its like are above, PCIe and the network below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One question of the checklist."""

    question: str
    numbers: Mapping[str, str]
    """This job's own, ready to read."""
    answer: bool
    advice: str
    """What the rule of thumb says then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field in which the computed optimum departs from the rule of thumb."""

    field: str
    rule_of_thumb: object
    optimum: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The walk through the checklist and its outcome."""

    branches: tuple[Branch, ...]
    rule_of_thumb: Candidate | None
    """The obvious default."""
    optimum: Candidate | None
    differences: tuple[Difference, ...]
    gain: float
    """How many times faster the optimum is; 0 if unknown."""


def teach(pricing: Pricing, result: SearchResult) -> Lesson:
    """Walk the checklist for a question that has been searched."""
    branches = (_fits(pricing), _deep(pricing), _wide(pricing), _linked(pricing))
    return Lesson(
        branches=branches,
        rule_of_thumb=result.default,
        optimum=result.best,
        differences=_differences(result.default, result.best),
        gain=result.gain,
    )


def _fits(pricing: Pricing) -> Branch:
    q = pricing.question
    weights = bytes_per_parameter(q.job, q.framework)
    each = weights.parameter + weights.gradient + weights.master + weights.optimizer
    states = int(each * q.model.total_parameters)
    fits = states < pricing.limit_bytes
    return Branch(
        question="Do the model's states fit on one device?",
        numbers={
            "parameters": format_count(q.model.total_parameters),
            "bytes per parameter": f"{each:g}",
            "states": format_bytes(states),
            "device": format_bytes(pricing.limit_bytes),
        },
        answer=fits,
        advice=(
            "replicate it: data parallelism, one copy per device"
            if fits
            else "cut it: shard states over replicas first, then cut the model itself"
        ),
    )


def _deep(pricing: Pricing) -> Branch:
    q = pricing.question
    nodes = max(q.num_devices // q.cluster.devices_per_node, 1)
    deep = q.model.num_layers >= DEEP_LAYERS_PER_STAGE * max(nodes, 2)
    return Branch(
        question="Is it deep enough to cut between layers?",
        numbers={
            "layers": str(q.model.num_layers),
            "nodes": str(nodes),
            "layers per stage with a stage per node": f"{q.model.num_layers / nodes:.3g}",
        },
        answer=deep,
        advice=(
            "a pipeline over nodes is possible: it sends least over the slow links"
            if deep
            else "a pipeline would idle: prefer sharding or cutting inside layers"
        ),
    )


def _wide(pricing: Pricing) -> Branch:
    q = pricing.question
    largest = max(
        float(count_parameters(block.ops(q.model.whole, Implementation())).total)
        for block in q.model.layer_kinds
    )
    return Branch(
        question="Are its layers wide enough to cut inside?",
        numbers={
            "parameters of the largest layer": format_count(round(largest)),
            "hidden": str(q.model.hidden),
        },
        answer=largest >= WIDE_PARAMETERS,
        advice=(
            "tensor parallelism inside the node keeps its matrices large enough"
            if largest >= WIDE_PARAMETERS
            else "cut matrices would be too small to fill a device"
        ),
    )


def _linked(pricing: Pricing) -> Branch:
    cluster = pricing.question.cluster
    inner = cluster.tiers[0]
    rates = {
        f"{tier.name} ({tier.link})": f"{tier.bytes_per_second / 1e9:.4g} GB/s"
        for tier in cluster.tiers
    }
    fast = inner.bytes_per_second >= FAST_BYTES_PER_SECOND and cluster.devices_per_node > 1
    return Branch(
        question="Are devices of one node joined by a fast link?",
        numbers={**rates, "devices per node": str(cluster.devices_per_node)},
        answer=fast,
        advice=(
            "tensor parallelism belongs there, and nowhere else"
            if fast
            else "avoid tensor parallelism: every layer would wait for the link"
        ),
    )


def _differences(rule: Candidate | None, optimum: Candidate | None) -> tuple[Difference, ...]:
    if rule is None or optimum is None:
        return ()
    return tuple(
        Difference(
            field=f.name,
            rule_of_thumb=getattr(rule.layout, f.name),
            optimum=getattr(optimum.layout, f.name),
        )
        for f in fields(Layout)
        if getattr(rule.layout, f.name) != getattr(optimum.layout, f.name)
    )
