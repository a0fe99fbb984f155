"""How each framework shares layers out over pipeline stages when nobody tells it."""

import numpy as np

from planner.model import Model
from planner.ops import Implementation, Shard


def stage_layers(model: Model, rule: str, *, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """Layers of every (virtual) stage in pipeline order; empty without a pipeline.

    ``nanotron`` cuts where the running cost of the blocks passes each stage's share;
    ``torchtitan`` and ``even`` deal out equal counts, where that does not come out even the
    embedding and the head count as a layer each (Megatron's
    ``account-for-embedding-in-pipeline-split``, BLOOM's own partition); ``balanced`` is even.

    Raises:
        ValueError: If there are more stages than layers.

    >>> from planner.model import *
    >>> block = TransformerLayer(hidden=64, attention=SelfAttention(heads=1, kv_heads=1,
    ...     head_dim=64), feed_forward=FeedForward(ffn_hidden=256))
    >>> tiny = Model(name="tiny", family="decoder", embedding=Embedding(vocabulary=10, hidden=64),
    ...     layers=(Run(block=block, count=14),), head=Head(vocabulary=10, hidden=64),
    ...     sequence_length=8)
    >>> stage_layers(tiny, "even", pp=4), stage_layers(tiny, "even", pp=7)
    ((3, 4, 4, 3), (2, 2, 2, 2, 2, 2, 2))
    """
    stages = pp * vpp
    if stages == 1:
        return ()
    if rule == "nanotron":
        return _by_running_cost(model, stages)
    layers = model.num_layers
    if layers % stages == 0:
        return (layers // stages,) * stages
    if layers + 2 < stages:
        raise ValueError(f"{stages} stages need as many layers, {model.name} has {layers}")
    return _with_ends(layers, stages)


def _with_ends(layers: int, stages: int) -> tuple[int, ...]:
    """Equal counts of units, where embedding and head are a unit each; odd ones in front."""
    units = layers + 2
    counts = np.full(stages, units // stages)
    counts[1 : 1 + units % stages] += 1
    counts[0] -= 1
    counts[-1] -= 1
    while counts.sum() < layers:
        counts[int(np.argmin(counts))] += 1
    while counts.min() < 0:
        counts[int(np.argmax(counts))] -= 1
        counts[int(np.argmin(counts))] += 1
    return tuple(int(c) for c in counts)


def _by_running_cost(model: Model, stages: int) -> tuple[int, ...]:
    """Blocks go to the stage whose share of the running cost they reach.

    nanotron counts the matrix work of a layer and of the output projection, and moves on
    after the block that passes the threshold (nanotron, ``models/base.py``, build_model).
    """
    shard = Shard(sequence_length=1)
    costs = [
        sum(float(op.forward_flops) for op in block.ops(shard, Implementation()))
        for block, count in model.chain()
        for _ in range(count)
    ]
    costs[0] = 0.0
    running = np.cumsum(costs)
    thresholds = running[-1] * np.arange(1, stages + 1) / stages
    thresholds[-1] = np.inf
    counts, stage = np.zeros(stages, np.int64), 0
    for index, cost in enumerate(running):
        if 0 < index < len(running) - 1:
            counts[stage] += 1
        if cost > thresholds[stage]:
            stage += 1
    return tuple(int(c) for c in counts)
