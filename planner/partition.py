"""Which layers each pipeline stage gets: the split whose slowest rank is fastest, within memory.

Costs are any one unit (seconds of a microbatch's forward and backward, or parameters); the
embedding is charged to the first stage, the final norm, head and loss to the last. Of all
splits with the same slowest rank the most even one is taken, and of those the one whose
longer stages come first.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_CLOSE = 1e-9  # relative difference below which two costs count as equal


def optimal_split(
    layer_costs: ArrayLike,
    *,
    stages: int,
    first_cost: float = 0.0,
    last_cost: float = 0.0,
    layer_bytes: ArrayLike = 0.0,
    first_bytes: float = 0.0,
    last_bytes: float = 0.0,
    limit_bytes: ArrayLike = np.inf,
    stage_speeds: ArrayLike = 1.0,
) -> tuple[int, ...] | None:
    """Layers of each stage, at least one, or None where no split fits the memory.

    A dynamic programme over (stages, layers): the least slowest stage first, then the least
    sum of squares among splits that reach it. Exact for unlike layers and unlike limits.

    Args:
        layer_costs: Cost of every layer in model order.
        stages: Stages in model order.
        first_cost: Embedding, charged to the first stage.
        last_cost: Final norm, head and loss, charged to the last stage.
        layer_bytes: What a layer takes on the stage it lies on: one number, one per layer, or
            (stages, layers); states and held activations, whose number differs by stage.
        first_bytes: Embedding on the first stage.
        last_bytes: Head and logits on the last stage.
        limit_bytes: Room on every stage, or on each.
        stage_speeds: What divides the cost on every stage, or on each: relative speeds of
            unlike devices.

    Raises:
        ValueError: If there are fewer layers than stages, a cost is negative or a speed is
            not positive.

    >>> optimal_split([1.0] * 70, stages=12, first_cost=1.46, last_cost=1.46)
    (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)
    """
    costs = np.ascontiguousarray(layer_costs, dtype=float)
    if stages < 1 or costs.ndim != 1 or len(costs) < stages:
        raise ValueError(
            f"{stages} stages need at least as many layers, got {costs.size}; "
            f"use pp * vpp of at most {costs.size}"
        )
    if costs.min() < 0 or first_cost < 0 or last_cost < 0:
        raise ValueError("costs of layers, embedding and head must not be negative")
    speeds = np.broadcast_to(np.asarray(stage_speeds, float), (stages,)).copy()
    if speeds.min() <= 0:
        raise ValueError(f"stage speeds must be positive, got {speeds.min():g}")
    room = np.broadcast_to(np.asarray(limit_bytes, float), (stages,)).copy()
    room[0] -= first_bytes
    room[-1] -= last_bytes
    if np.isinf(room).all():
        taken = np.zeros((1, 1))
    else:
        taken = np.ascontiguousarray(layer_bytes, dtype=float)
        taken = np.broadcast_to(np.atleast_2d(taken), (stages, len(costs)))
    ends = (float(first_cost), float(last_cost))
    return _solve(costs.tobytes(), speeds.tobytes(), ends, taken.tobytes(), room.tobytes())


@lru_cache(maxsize=4096)
def _solve(
    costs: bytes, speeds: bytes, ends: tuple[float, float], taken: bytes, room: bytes
) -> tuple[int, ...] | None:
    layer_costs, stage_speeds = np.frombuffer(costs), np.frombuffer(speeds)
    stages = len(stage_speeds)
    spans = _spans(layer_costs)
    extra = np.zeros(stages)
    extra[0] += ends[0]
    extra[-1] += ends[1]
    seconds = [(spans + more) / speed for more, speed in zip(extra, stage_speeds, strict=True)]
    rooms, bytes_of = np.frombuffer(room), np.frombuffer(taken)
    allowed = np.triu(np.ones_like(spans, dtype=bool), 1)
    fits = [allowed] * stages
    if np.isfinite(rooms).any():
        per_stage = bytes_of.reshape(stages, len(layer_costs))
        fits = [
            allowed & (_spans(b) <= r * (1 + _CLOSE))
            for b, r in zip(per_stage, rooms, strict=True)
        ]
    slowest = _least_slowest(seconds, fits)
    if not np.isfinite(slowest):
        return None
    return _most_even(seconds, fits, slowest)


def _spans(layers: Floats) -> Floats:
    """[i, j] -> sum of layers i .. j - 1."""
    sums = np.concatenate([[0.0], np.cumsum(layers)])
    return sums[None, :] - sums[:, None]


def _least_slowest(costs: list[Floats], fits: list[NDArray[np.bool_]]) -> float:
    """Cost of the slowest stage of the best split; infinite where none fits."""
    best = np.where(fits[0][0], costs[0][0], np.inf)
    for cost, fit in zip(costs[1:], fits[1:], strict=True):
        best = np.maximum(best[:, None], np.where(fit, cost, np.inf)).min(axis=0)
    return float(best[-1])


def _most_even(
    costs: list[Floats], fits: list[NDArray[np.bool_]], slowest: float
) -> tuple[int, ...]:
    """Of the splits whose slowest stage is ``slowest``, the one with the least sum of squares."""
    stages = len(costs)
    squares = []
    for stage, cost in enumerate(costs):
        good = fits[stage] & (cost <= slowest * (1 + _CLOSE))
        squares.append(np.where(good, cost * cost, np.inf))
    best = [squares[0][0]]
    for stage in range(1, stages):
        best.append((best[-1][:, None] + squares[stage]).min(axis=0))
    counts, end = [], costs[0].shape[0] - 1
    for stage in range(stages - 1, 0, -1):
        totals = best[stage - 1] + squares[stage][:, end]
        ties = np.flatnonzero(totals <= totals.min() * (1 + _CLOSE))
        counts.append(end - int(ties[-1]))
        end = int(ties[-1])
    return (end, *reversed(counts))


def chunked_split(
    num_layers: int,
    *,
    ranks: tuple[int, ...],
    layer_cost: float = 1.0,
    first_cost: float = 0.0,
    last_cost: float = 0.0,
    most_layers: tuple[int, ...] = (),
) -> tuple[int, ...] | None:
    """Layers of each stage where ranks hold several stages and all layers cost the same.

    What counts then is the sum over each rank's chunks. Layers are handed out one by one to
    the rank that they slow down least, which is optimal for equal layers; within a rank its
    chunks stay as even as they can, embedding and head counted.

    Args:
        num_layers: Layers of the model.
        ranks: Rank of every stage, as ``schedules.stage_ranks`` says.
        layer_cost: Cost of one layer.
        first_cost: Embedding, charged to the first stage.
        last_cost: Head and loss, charged to the last stage.
        most_layers: What each rank has room for; empty for no limit.

    Returns:
        Layers per stage in model order, at least one each, or None where they do not fit.

    Raises:
        ValueError: If there are fewer layers than stages.

    >>> chunked_split(14, ranks=(0, 1, 0, 1), last_cost=2.0)
    (4, 4, 4, 2)
    """
    if num_layers < len(ranks):
        raise ValueError(
            f"{len(ranks)} stages need at least as many layers, got {num_layers}; "
            f"use pp * vpp of at most {num_layers}"
        )
    pp = max(ranks) + 1
    counts = [1] * len(ranks)
    stage_costs = [layer_cost] * len(ranks)
    stage_costs[0] += first_cost
    stage_costs[-1] += last_cost
    rank_costs, rank_layers = [0.0] * pp, [0] * pp
    for rank, cost in zip(ranks, stage_costs, strict=True):
        rank_costs[rank] += cost
        rank_layers[rank] += 1
    room = list(most_layers) or [num_layers] * pp
    if any(layers > most for layers, most in zip(rank_layers, room, strict=True)):
        return None
    for _ in range(num_layers - len(ranks)):
        free = [rank for rank in range(pp) if rank_layers[rank] < room[rank]]
        if not free:
            return None
        rank = min(free, key=lambda r: (round(rank_costs[r] + layer_cost, 12), r))
        own = (stage for stage in range(len(ranks)) if ranks[stage] == rank)
        stage = min(own, key=lambda s: (stage_costs[s], s))
        counts[stage] += 1
        stage_costs[stage] += layer_cost
        rank_costs[rank] += layer_cost
        rank_layers[rank] += 1
    return tuple(counts)
