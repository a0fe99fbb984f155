"""What the user set, allowed or forbade: ``--set tp=8``, ``--only zero=1,3``, ``--forbid pp``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layout import Layout, parse_layout_settings
from planner.layout_table import RECOMPUTES, SCHEDULES

_CODES: dict[str, Mapping[object, int]] = {
    "recompute": {name: code for code, name in enumerate(RECOMPUTES)},
    "schedule": {name: code for code, name in enumerate(SCHEDULES)},
    "cp_kind": {"ring": 0, "ulysses": 1},
}
COLUMN_OF = {"cp_kind": "ulysses", "zero_group": "shard_group"}
"""Fields whose column has another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Values that each field may take; a field that is not named is free."""

    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    forbidden: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def wanted(self, name: str) -> tuple[Any, ...]:
        """The values asked for, or none where the field is free."""
        return self.allowed.get(name, ())

    def admits(self, name: str, column: NDArray[np.generic]) -> NDArray[np.bool_]:
        """Which entries of a field's column (coded as in ``LayoutTable``) may be used."""
        codes = _CODES.get(name, {})
        keep = np.ones(len(column), bool)
        if name in self.allowed:
            keep &= np.isin(column, [codes.get(v, v) for v in self.allowed[name]])
        if name in self.forbidden:
            keep &= ~np.isin(column, [codes.get(v, v) for v in self.forbidden[name]])
        return keep


def read_constraints(
    *,
    fixed: Mapping[str, object] | str = "",
    only: Iterable[str] = (),
    forbid: Iterable[str] = (),
) -> Constraints:
    """Constraints from the words of the command line.

    Args:
        fixed: ``"tp=8,sp"``, or keyword arguments of ``Layout``.
        only: Words such as ``"zero=1,3"``: the values that the field may take.
        forbid: Words such as ``"pp"`` (leave the feature out) or ``"schedule=gpipe"``.

    Raises:
        ValueError: For an unknown field or value, or a field that is both fixed and forbidden.

    >>> read_constraints(fixed="tp=8", only=["zero=1,3"], forbid=["pp"]).allowed
    {'tp': (8,), 'zero_stage': (1, 3), 'pp': (1,)}
    """
    settings = parse_layout_settings(fixed) if isinstance(fixed, str) else dict(fixed)
    allowed: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in settings.items()}
    forbidden: dict[str, tuple[Any, ...]] = {}
    for word in only:
        name, values = _values(word)
        _put(allowed, name, values, word)
    for word in forbid:
        name, values = _values(word)
        if "=" in word:
            forbidden[name] = (*forbidden.get(name, ()), *values)
        else:
            _put(allowed, name, (_plain(name),), word)
    for name, values in forbidden.items():
        if name in allowed and set(allowed[name]) <= set(values):
            raise ValueError(f"{name} is asked for and forbidden at once; drop one of the two")
    return Constraints(allowed=allowed, forbidden=forbidden)


def _put(
    allowed: dict[str, tuple[Any, ...]], name: str, values: tuple[Any, ...], word: str
) -> None:
    both = tuple(v for v in values if v in allowed.get(name, values))
    if not both:
        raise ValueError(f"{name} is asked for twice, as {allowed[name]} and as {word!r}")
    allowed[name] = both


def _values(word: str) -> tuple[str, tuple[Any, ...]]:
    name, equals, texts = word.partition("=")
    if not equals:
        field_name = next(iter(parse_layout_settings(f"{name}=1" if name else "?")), "")
        return field_name, ()
    found = [parse_layout_settings(f"{name}={text}") for text in texts.split(",")]
    field_name = next(iter(found[0]))
    return field_name, tuple(f[field_name] for f in found)


def _plain(name: str) -> object:
    """The value of a field that leaves its feature out."""
    return getattr(Layout(), name)
