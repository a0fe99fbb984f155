"""How each framework splits layers into stages when it is left to itself.

None of these looks at memory. Where a framework would silently drop layers or stop with a
terse message, the rule here says what it needs.
"""

from collections.abc import Sequence
from itertools import accumulate


def even_split(num_layers: int, *, stages: int) -> tuple[int, ...]:
    """As even as whole layers allow, the remainder on the first stages.

    Raises:
        ValueError: If a stage would be empty.

    >>> even_split(30, stages=4)
    (8, 8, 7, 7)
    """
    _at_least_one(num_layers, stages)
    least, more = divmod(num_layers, stages)
    return tuple(least + (stage < more) for stage in range(stages))


def centred_split(num_layers: int, *, stages: int) -> tuple[int, ...]:
    """As even as whole layers allow, the remainder in the middle: both ends hold more.

    What a plan that names no split means, to the estimate and to the executor alike.

    >>> centred_split(30, stages=4), centred_split(126, stages=8)
    ((7, 8, 8, 7), (15, 16, 16, 16, 16, 16, 16, 15))
    """
    base, rest = divmod(num_layers, stages)
    first = (stages - rest) // 2
    return tuple(base + (first <= stage < first + rest) for stage in range(stages))


def megatron_split(
    num_layers: int,
    *,
    stages: int,
    first_layers: int | None = None,
    last_layers: int | None = None,
    count_embedding: bool = False,
    count_loss: bool = False,
) -> tuple[int, ...]:
    """Megatron-LM: equal stages, or given ends, or embedding and loss counted as a layer each.

    ``--decoder-first-pipeline-num-layers``, ``--decoder-last-pipeline-num-layers``,
    ``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``.

    Raises:
        ValueError: If what remains does not divide (old versions drop the remainder and train
            a smaller model: Megatron-LM issues 1304 and 468).

    >>> megatron_split(46, stages=4, first_layers=11, last_layers=11)
    (11, 12, 12, 11)
    >>> megatron_split(126, stages=8, count_embedding=True, count_loss=True)
    (15, 16, 16, 16, 16, 16, 16, 15)
    """
    _at_least_one(num_layers, stages)
    if first_layers is not None or last_layers is not None:
        if count_embedding or count_loss:
            raise ValueError("megatron takes given ends or counted embedding and loss, not both")
        return _given_ends(num_layers, stages, first_layers, last_layers)
    slots = num_layers + count_embedding + count_loss
    if slots % stages:
        near = slots // stages * stages
        raise ValueError(
            f"layers={num_layers}: megatron needs {slots} slots to be a multiple of "
            f"pp * vpp = {stages} (next are {near} and {near + stages}); give the layers of the "
            "first and last stage, or a layout"
        )
    counts = [slots // stages] * stages
    counts[0] -= count_embedding
    counts[-1] -= count_loss
    return tuple(counts)


def _given_ends(
    num_layers: int, stages: int, first: int | None, last: int | None
) -> tuple[int, ...]:
    ends = (first is not None) + (last is not None)
    middle, left = stages - ends, num_layers - (first or 0) - (last or 0)
    if middle < 0 or left < middle or (left % middle if middle else left):
        raise ValueError(
            f"layers={num_layers}, first={first}, last={last}: megatron needs the {left} layers "
            f"left to be a positive multiple of the {middle} stages left; change first or last"
        )
    inner = [left // middle] * middle if middle else []
    return (*([first] if first is not None else []), *inner, *([last] if last is not None else []))


def torchtitan_split(
    num_layers: int, *, stages: int, embedding_layers: int = 1, head_layers: int = 1
) -> tuple[int, ...]:
    """torchtitan: embedding and head count as so many layers, remainder on the first stages.

    Reference: torchtitan, ``generate_llm_fqn_per_model_part`` in
    ``torchtitan/distributed/pipeline_parallel.py``.

    Raises:
        ValueError: If embedding or head outweigh a stage.

    >>> torchtitan_split(27, stages=4)
    (7, 7, 7, 6)
    """
    if stages == 1:
        return (num_layers,)
    least, more = divmod(num_layers + embedding_layers + head_layers, stages)
    needed = max(embedding_layers, head_layers, 1)
    if least < needed:
        raise ValueError(
            f"layers={num_layers}: torchtitan needs at least {needed} slots on each of "
            f"{stages} stages, got {least}; use fewer stages"
        )
    counts = [least + (stage < more) for stage in range(stages)]
    counts[0] -= embedding_layers
    counts[-1] -= head_layers
    return tuple(counts)


def nanotron_split(
    layer_costs: Sequence[float], *, stages: int, head_cost: float
) -> tuple[int, ...]:
    """nanotron: blocks in order; a stage ends with the block that exceeds its share of the cost.

    The embedding counts nothing, the head ``vocabulary * hidden``, a layer its projections
    ``4 * heads * head_dim * hidden + 3 * ffn * hidden``. A stage may end up without a layer.

    Reference: nanotron, ``build_model`` in ``src/nanotron/models/base.py``.

    >>> nanotron_split([1.0] * 8, stages=4, head_cost=2.0)
    (3, 3, 2, 0)
    """
    ends = list(accumulate(layer_costs))
    total = ends[-1] + head_cost
    counts, stage = [0] * stages, 0
    for end in ends:
        counts[stage] += 1
        if stage < stages - 1 and end > total * ((stage + 1) / stages):
            stage += 1
    return tuple(counts)


def _at_least_one(num_layers: int, stages: int) -> None:
    if stages < 1 or num_layers < stages:
        raise ValueError(
            f"{stages} stages need at least as many layers, got {num_layers}; "
            f"use pp * vpp of at most {num_layers}"
        )
