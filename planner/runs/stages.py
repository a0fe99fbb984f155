"""Which layers each pipeline stage held in a run, by its framework's own rule."""

import numpy as np

from planner.model import Layer, Model, TransformerLayer
from planner.ops import Implementation, Shard
from planner.split_rules import megatron_split, nanotron_split, torchtitan_split


def stage_layers(model: Model, rule: str, *, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """Layers of every (virtual) stage in pipeline order; empty without a pipeline.

    Where equal stages do not come out, embedding and head count as a layer each (Megatron's
    ``account-for-embedding-in-pipeline-split``; BLOOM's own partition), and what is left over
    goes to the stages in front.

    Raises:
        ValueError: If there are more stages than layers.
    """
    stages = pp * vpp
    if stages == 1:
        return ()
    layers = model.num_layers
    if rule == "nanotron":
        kinds = [_projections(kind) for kind in model.layer_kinds]
        costs = [kinds[index] for index in model.layer_kind_indices()]
        return nanotron_split(costs, stages=stages, head_cost=model.vocabulary * model.hidden)
    if layers % stages == 0:
        return (layers // stages,) * stages
    if (layers + 2) % stages == 0:
        ends = 1 if layers + 2 > stages else 0
        if not ends:
            return (0, *([1] * (stages - 2)), 0)
        return megatron_split(layers, stages=stages, count_embedding=True, count_loss=True)
    return torchtitan_split(layers, stages=stages)


def _projections(layer: Layer) -> float:
    """``4 * heads * head_dim * hidden + 3 * ffn * hidden``, as nanotron weighs a layer."""
    if isinstance(layer, TransformerLayer):
        attention = layer.attention
        width = getattr(layer.feed_forward, "ffn_hidden", 0)
        return layer.hidden * (4.0 * attention.heads * attention.head_dim + 3.0 * width)
    shard = Shard(sequence_length=1)
    return sum(float(np.sum(op.forward_flops)) for op in layer.ops(shard, Implementation()))
