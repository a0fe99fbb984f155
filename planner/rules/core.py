"""What a rule is, and the few words that all of them share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster
from planner.framework import Framework
from planner.job import Job
from planner.layout import Layout
from planner.layout_table import LayoutTable
from planner.model import (
    Experts,
    LatentAttention,
    LinearAttention,
    Model,
    SelfAttention,
    TransformerLayer,
)

Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that is given; what is left to choose is the layout."""

    model: Model
    job: Job
    cluster: Cluster
    framework: Framework
    num_devices: int

    @property
    def layers(self) -> tuple[TransformerLayer, ...]:
        """The distinct transformer layers; none for a conv net."""
        return tuple(b for b in self.model.layer_kinds if isinstance(b, TransformerLayer))

    @property
    def attentions(self) -> tuple[SelfAttention | LatentAttention | LinearAttention, ...]:
        """The distinct self-attentions."""
        return tuple(layer.attention for layer in self.layers)

    @property
    def experts(self) -> tuple[Experts, ...]:
        """The distinct expert blocks; none for a dense model."""
        parts = (layer.feed_forward for layer in self.layers)
        return tuple(part for part in parts if isinstance(part, Experts))

    @property
    def divides_heads(self) -> tuple[int, ...]:
        """Numbers that ``tp`` must divide, whatever happens to key and value heads."""
        widths = {attention.heads for attention in self.attentions}
        for layer in self.layers:
            part = layer.feed_forward
            widths.add(part.shared_ffn_hidden if isinstance(part, Experts) else part.ffn_hidden)
        return tuple(sorted(widths - {0}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition under which a layout cannot run."""

    name: str
    """Short, for counting."""
    broken: Callable[[LayoutTable, Question], Booleans]
    reason: Callable[[Layout, Question], str]
    """Field, value, rule and two legal alternatives; only called for a layout that breaks it."""


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def two_nearest(legal: Iterable[int], value: int) -> str:
    """The legal values on both sides of an illegal one, or the two nearest.

    >>> two_nearest([1, 2, 4, 7, 14, 28], 8), two_nearest([1, 5], 4), two_nearest([1], 4)
    ('7 or 14', '1 or 5', '1')
    """
    ordered = sorted(set(legal) - {value})
    below = [v for v in ordered if v < value][-2:]
    above = [v for v in ordered if v > value][:2]
    chosen = [below[-1], above[0]] if below and above else (below or above)
    return " or ".join(str(v) for v in chosen)
