"""Every way to write the number of devices as dp x tp x pp x cp, with ep and etp inside."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.rules.core import Question, divisors
from planner.search.constraints import Constraints

Integers = NDArray[np.int64]
DEGREES = ("dp", "tp", "pp", "cp", "ep", "etp")
USUAL_TOKENS_PER_RANK = 1024
"""Of one sequence that the usual space leaves a rank under context parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Columns of degrees, one row per factorisation."""

    columns: dict[str, Integers]

    def __len__(self) -> int:
        return len(self.columns["dp"])

    def take(self, chosen: NDArray[np.generic]) -> "Degrees":
        """The rows that a mask or indices pick."""
        return Degrees(columns={name: column[chosen] for name, column in self.columns.items()})


def factorisations(number: int, parts: int) -> list[tuple[int, ...]]:
    """Every ordered way to write a number as a product.

    >>> factorisations(4, 2)
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        return [(number,)]
    return [
        (first, *rest)
        for first in divisors(number)
        for rest in factorisations(number // first, parts - 1)
    ]


def all_degrees(question: Question, constraints: Constraints, *, full: bool = True) -> Degrees:
    """The factorisations of the world that the constraints admit; the usual ones, or all."""
    world = np.array(factorisations(question.num_devices, 4), np.int64).T
    columns = dict(zip(("dp", "tp", "pp", "cp"), world, strict=True))
    columns = _admitted(columns, constraints)
    if not full:
        usual = _usual(columns, question, constraints)
        columns = {name: column[usual] for name, column in columns.items()}
    rows: list[tuple[int, int, int]] = []
    for i, stage in enumerate((columns["dp"] * columns["cp"] * columns["tp"]).tolist()):
        tp = int(columns["tp"][i])
        rows += [
            (i, ep, etp)
            for ep, etp in _expert_degrees(question, stage, tp, constraints, full=full)
        ]
    index, ep, etp = (np.array(r, np.int64) for r in zip(*rows, strict=True)) if rows else (
        np.zeros(0, np.int64),) * 3  # fmt: skip
    whole = {name: column[index] for name, column in columns.items()} | {"ep": ep, "etp": etp}
    # Rows of one pipeline depth lie together, so that a chunk meets few stage splits.
    order = np.argsort(whole["pp"], kind="stable")
    return Degrees(columns=_admitted({n: c[order] for n, c in whole.items()}, constraints))


def _usual(
    columns: dict[str, Integers], question: Question, constraints: Constraints
) -> NDArray[np.bool_]:
    """Tensor parallelism inside the fastest domain, context parallelism of long sequences."""
    usual = np.ones(len(columns["dp"]), bool)
    if not constraints.wanted("tp"):
        usual &= columns["tp"] <= question.cluster.devices_per_node
    if not constraints.wanted("cp"):
        length = question.job.sequence_length
        usual &= (columns["cp"] == 1) | (columns["cp"] * USUAL_TOKENS_PER_RANK <= length)
    return usual


def _expert_degrees(
    question: Question, stage: int, tp: int, constraints: Constraints, *, full: bool
) -> list[tuple[int, int]]:
    """Degrees of the experts that fit into one stage; what was asked for, legal or not."""
    eps, etps = {1}, {1}
    for part in question.experts:
        eps |= set(divisors(part.num_experts))
        etps |= {d for d in ((1, tp) if not full else divisors(tp)) if part.ffn_hidden % d == 0}
    asked_ep, asked_etp = constraints.wanted("ep"), constraints.wanted("etp")
    if asked_ep or asked_etp:
        return [(int(e), int(t)) for e in asked_ep or sorted(eps) for t in asked_etp or (1,)]
    return [(e, t) for e in sorted(eps) for t in sorted(etps) if stage % (e * t) == 0]


def _admitted(columns: dict[str, Integers], constraints: Constraints) -> dict[str, Integers]:
    keep = np.ones(len(columns["dp"]), bool)
    for name, column in columns.items():
        keep &= constraints.admits(name, column)
    return {name: column[keep] for name, column in columns.items()}
