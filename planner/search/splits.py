"""Stage splits worth pricing: balanced by time, balanced by parameters, the framework's own."""

from functools import lru_cache

import numpy as np

from planner.layout_table import Split
from planner.model import Model
from planner.ops import Implementation, count_parameters
from planner.partition import chunked_split, optimal_split
from planner.rules.core import Question
from planner.search.constraints import Constraints
from planner.split_rules import centred_split


def candidate_splits(
    question: Question, constraints: Constraints, *, pp: int, vpp: int, v_shaped: bool, full: bool
) -> list[Split]:
    """Distinct splits for so many stages, the one balanced by time first."""
    stages = pp * vpp
    asked = [tuple(s) for s in constraints.wanted("stage_layers") if len(s) == stages]
    if constraints.wanted("stage_layers"):
        found = asked
    elif stages > question.model.num_layers:
        return []
    elif not question.framework.takes_uneven_stages:
        even = centred_split(question.model.num_layers, stages=stages)
        found = [even] if len(set(even)) == 1 else []
    else:
        # Chunks even out both ends, and experts make the space large enough without them.
        ways = (True, False) if vpp == 1 or full or not question.experts else (True,)
        found = [_balanced(question.model, pp, vpp, v_shaped, by_time=way) for way in ways]
    return [Split(pp=pp, vpp=vpp, layers=s, v_shaped=v_shaped) for s in dict.fromkeys(found)]


@lru_cache(maxsize=1024)
def _balanced(
    model: Model, pp: int, vpp: int, v_shaped: bool, *, by_time: bool
) -> tuple[int, ...]:
    costs, first, last = _costs(model, by_time=by_time)
    stages = pp * vpp
    if vpp == 1:
        found = optimal_split(costs, stages=stages, first_cost=first, last_cost=last)
    else:
        ranks = Split(pp=pp, vpp=vpp, layers=(1,) * stages, v_shaped=v_shaped).rank_of_stage()
        found = chunked_split(
            len(costs), ranks=tuple(ranks.tolist()), layer_cost=float(costs.mean()),
            first_cost=first, last_cost=last,
        )  # fmt: skip
    assert found is not None, "without a memory limit there is always a split"
    return found


@lru_cache(maxsize=32)
def _costs(model: Model, *, by_time: bool) -> tuple[np.ndarray, float, float]:
    """Cost of every layer, of the embedding and of the head: matrix FLOPs, or parameters."""
    blocks = (model.embedding, *model.layer_kinds, model.head)
    values = []
    for block in blocks:
        ops = block.ops(model.whole, Implementation())
        flops = float(sum(float(op.forward_flops) for op in ops))
        values.append(flops if by_time else float(count_parameters(ops).total))
    return np.array(values[1:-1])[model.layer_kind_indices()], values[0], values[-1]
