"""The obvious default: what a careful user would type without a planner.

Plain data parallelism if it fits, else sharded over all replicas (FSDP, or the framework's
highest ZeRO stage); else tensor parallelism inside the node; else a pipeline over nodes, no
deeper than needed. The largest microbatch that fits without recomputation, else the largest
with full recomputation; 1F1B, the framework's own split, the usual order of axes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from planner.rules import broken_rules
from planner.rules.core import divisors
from planner.rules.degrees import legal_tensor_degrees
from planner.search.constraints import Constraints
from planner.search.exact import played
from planner.search.modes import FULL, NONE, Fitting, fitting_modes
from planner.search.pricing import Pricing, timed
from planner.search.result import Candidate
from planner.search.space import build_space


def obvious_default(pricing: Pricing, constraints: Constraints) -> Candidate | None:
    """The first step of the ladder that fits; None where none does."""
    for degrees in _ladder(pricing):
        narrowed = _narrowed(constraints, degrees)
        if narrowed is not None and (found := _largest_microbatch(pricing, narrowed)):
            return found
    return None


def _ladder(pricing: Pricing) -> Iterator[Mapping[str, object]]:
    question, framework = pricing.question, pricing.question.framework
    devices = question.num_devices
    yield {"dp": devices, "zero_stage": 0}
    yield {"dp": devices, "zero_stage": framework.largest_zero_stage}
    node = min(question.cluster.devices_per_node, devices)
    legal = [t for t in legal_tensor_degrees(question) if t <= node and devices % t == 0]
    tp = max(legal, default=1)
    inside = {"tp": tp, "sequence_parallel": tp > 1}
    most = min(framework.largest_zero_stage, 1)
    yield {**inside, "dp": devices // tp, "zero_stage": most if devices > tp else 0}
    for pp in divisors(devices // tp)[1:]:
        dp = devices // tp // pp
        yield {**inside, "pp": pp, "dp": dp, "zero_stage": most if dp > 1 else 0}


def _narrowed(constraints: Constraints, degrees: Mapping[str, object]) -> Constraints | None:
    """The user's constraints and one step of the ladder; None where they contradict."""
    plain = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "vpp": 1, "zero_group": 0,
             "schedule": "1f1b", "offload_optimizer": False}  # fmt: skip
    allowed = dict(constraints.allowed)
    for name, value in {**plain, **degrees}.items():
        if value not in allowed.get(name, (value,)):
            return None
        allowed[name] = (value,)
    return Constraints(allowed=allowed, forbidden=constraints.forbidden)


def _largest_microbatch(pricing: Pricing, constraints: Constraints) -> Candidate | None:
    counts: Counter[str] = Counter()
    best: dict[int, Fitting] = {}
    for whole in build_space(pricing.question, constraints, full=False).chunks():
        broken, _ = broken_rules(whole, pricing.question)
        table = whole.take(~broken)
        if not len(table):
            continue
        for fit in fitting_modes(table, pricing, constraints, counts):
            mode = int(fit.table.recompute[0]) if len(fit.table) else -1
            if mode in (NONE, FULL) and not fit.table.recompute_layers.any():
                best.setdefault(mode, fit)
    for mode in (NONE, FULL):
        if mode in best:
            return _priced(best[mode], pricing)
    return None


def _priced(fit: Fitting, pricing: Pricing) -> Candidate:
    row = np.array([int(np.argmax(fit.table.microbatch))])
    table = fit.table.take(row)
    priced, _ = timed(table, pricing, fit.peak_bytes[row], fit.device_bytes[row])
    return played(priced, pricing).candidate(0, pricing)
