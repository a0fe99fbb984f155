"""One search from question to answer."""

import time
from collections.abc import Iterable, Mapping

import numpy as np

from planner.calibration import Calibration
from planner.cluster import Cluster
from planner.framework import Framework
from planner.job import Job
from planner.model import Model
from planner.rules import Question
from planner.search.constraints import Constraints, read_constraints
from planner.search.exact import played
from planner.search.obvious import obvious_default
from planner.search.pricing import Priced, Pricing
from planner.search.rank import best_of_each, degree_codes, ordered, pareto_front
from planner.search.remedies import fewer_devices, reference, remedies
from planner.search.result import Candidate, SearchResult, loss_of
from planner.search.scan import Scan, finalists
from planner.search.space import build_space

FINALISTS = 256
"""Layouts played at least, the best by the closed form."""
OBJECTIVES = ("time", "cost", "memory")
FEW = 32
"""The same where only the best is asked for."""
TIE_SHARE = 0.03
"""Layouts of one job share most of their error: what is left decides within a few percent."""


def search(
    model: Model,
    job: Job,
    cluster: Cluster,
    framework: Framework,
    calibration: Calibration,
    *,
    num_devices: int = 0,
    fixed: Mapping[str, object] | str = "",
    only: Iterable[str] = (),
    forbid: Iterable[str] = (),
    max_memory_bytes: int = 0,
    top: int = 6,
    full: bool = False,
    objective: str = "time",
) -> SearchResult:
    """Find the best layouts of a job on so many devices.

    Args:
        model: What is trained.
        job: Global batch, sequence length, numbers.
        cluster: Where.
        framework: What can be run, and its habits.
        calibration: Fitted constants of the time model.
        num_devices: Devices to use; 0 for all that the cluster states, or one node.
        fixed: ``"tp=8,sp"`` or keyword arguments of ``Layout``.
        only: ``["zero=1,3"]``.
        forbid: ``["pp", "schedule=gpipe"]``.
        max_memory_bytes: Of one device; 0 for all it has.
        top: Ranked layouts to return.
        full: Also what rarely helps: offload, shard groups wider than a node.
        objective: ``time``, ``memory`` (the least bytes, in whatever time), or ``cost``, which
            for a fixed number of devices is time.

    Raises:
        ValueError: For an unknown objective, and for constraints that name unknown fields or
            contradict themselves.
    """
    began = time.perf_counter()
    if objective not in OBJECTIVES:
        raise ValueError(f"objective is one of {', '.join(OBJECTIVES)}, got {objective!r}")
    devices = num_devices or cluster.num_devices or cluster.devices_per_node
    question = Question(
        model=model, job=job, cluster=cluster, framework=framework, num_devices=devices
    )
    pricing = Pricing(
        question=question, calibration=calibration, max_memory_bytes=max_memory_bytes
    )
    constraints = read_constraints(fixed=fixed, only=only, forbid=forbid)
    scan = Scan(pricing=pricing, constraints=constraints)
    kept = scan.run(build_space(question, constraints, full=full))
    ranked = ranking(kept, pricing, top, objective) if kept is not None else []
    best = ranked[0] if ranked else None
    alone, alone_devices = reference(pricing, constraints, best_of)
    if best is not None and alone is None:
        alone = best
    return SearchResult(
        num_devices=devices,
        best=best,
        ranked=tuple(ranked),
        losses=tuple(loss_of(candidate, ranked[0]) for candidate in ranked),
        pareto=front(kept, pricing) if kept is not None else (),
        default=obvious_default(pricing, constraints),
        reference=alone,
        reference_devices=alone_devices,
        ties=ties(ranked),
        remedies=(
            fewer_devices(pricing, constraints, best_of, best)
            if best is not None
            else remedies(pricing, constraints, best_of)
        ),
        considered=scan.considered,
        fitting=scan.fitting,
        outpaced=scan.outpaced,
        priced=scan.priced,
        rejected=dict(scan.counts),
        search_seconds=time.perf_counter() - began,
    )


def ranking(kept: Priced, pricing: Pricing, top: int, objective: str) -> list[Candidate]:
    """The best by an objective, one for each combination of degrees, all of them played."""
    if objective != "memory":
        return rank(finalists(kept, pricing, FINALISTS), pricing, top)
    smallest = kept.take(best_of_each(degree_codes(kept.table), kept.device_bytes))
    final = played(smallest, pricing)
    order = ordered(final, final.device_bytes)[:top]
    return [final.candidate(int(i), pricing) for i in order]


def best_of(
    pricing: Pricing, constraints: Constraints, full: bool, bound: float = np.inf
) -> Candidate | None:
    """Only the best layout of a question, or None if nothing fits or beats the bound."""
    scan = Scan(pricing=pricing, constraints=constraints, bound=bound)
    kept = scan.run(build_space(pricing.question, constraints, full=full))
    if kept is None:
        return None
    return rank(finalists(kept, pricing, FEW), pricing, 1)[0]


def ties(ranked: list[Candidate]) -> tuple[Candidate, ...]:
    """Rivals so close to the best that the error of the model may turn them round."""
    return tuple(
        c for c in ranked[1:] if c.step_seconds < (1 + TIE_SHARE) * ranked[0].step_seconds
    )


def rank(kept: Priced, pricing: Pricing, top: int) -> list[Candidate]:
    """The best layout of each of the best combinations of degrees, best first."""
    best_first = kept.take(ordered(kept))
    firsts = best_of_each(degree_codes(best_first.table), np.arange(len(kept), dtype=np.float64))
    return [best_first.candidate(i, pricing) for i in sorted(firsts.tolist())[:top]]


def front(kept: Priced, pricing: Pricing) -> tuple[Candidate, ...]:
    """Layouts that none beats in time and memory at once, fastest first."""
    costs = np.stack([kept.step_seconds, kept.device_bytes], axis=1)
    return tuple(kept.candidate(int(i), pricing) for i in pareto_front(costs))
