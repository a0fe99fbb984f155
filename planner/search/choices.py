"""What can be chosen beside the degrees: short lists, each for one value of its key.

A choice is a set of columns of equal length. ``cross`` lays one list after the other beside
every row, whichever its key picks, without a loop over rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.constraints import COLUMN_OF, Constraints

Columns = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One list of options per distinct key, and which list each row uses."""

    lists: tuple[Columns, ...]
    key: NDArray[np.int64]
    """Index into ``lists``, one per row."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Options of each row."""
        lengths = np.array([_length(options) for options in self.lists], np.int64)
        return lengths[self.key]


def choose(
    keys: NDArray[np.int64] | Sequence[NDArray[np.int64]],
    make: Callable[..., Columns],
    constraints: Constraints,
) -> Choice:
    """Build a choice by calling ``make`` once for each distinct key (or tuple of keys)."""
    parts = [keys] if isinstance(keys, np.ndarray) else list(keys)
    stacked = np.stack(parts, axis=1)
    distinct, inverse = np.unique(stacked, axis=0, return_inverse=True)
    lists = tuple(admitted(make(*map(int, row)), constraints) for row in distinct)
    return Choice(lists=lists, key=np.ravel(inverse).astype(np.int64))


def admitted(options: Columns, constraints: Constraints) -> Columns:
    """The options that the constraints admit."""
    keep = np.ones(_length(options), bool)
    names = {COLUMN_OF.get(name, name): name for name in
             (*constraints.allowed, *constraints.forbidden)}  # fmt: skip
    for column, values in options.items():
        if column in names and column != "shard_group":
            keep &= constraints.admits(names[column], values)
    return {column: values[keep] for column, values in options.items()}


def _length(options: Mapping[str, NDArray[np.int64]]) -> int:
    return len(next(iter(options.values())))


def cross(choices: Sequence[Choice], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Columns]:
    """Every combination of options for the given rows.

    Returns:
        For each combination the row it belongs to, and the columns of its options.

    >>> key = np.array([0, 1])
    >>> lists = ({"m": np.array([1, 2])}, {"m": np.array([4])})
    >>> owner, columns = cross([Choice(lists=lists, key=key)], np.array([0, 1]))
    >>> owner.tolist(), columns["m"].tolist()
    ([0, 0, 1], [1, 2, 4])
    """
    owner = rows
    columns: Columns = {}
    for choice in choices:
        flat, starts = _flatten(choice)
        key = choice.key[owner]
        counts = np.array([_length(options) for options in choice.lists], np.int64)[key]
        repeat = np.repeat(np.arange(len(owner)), counts)
        place = np.arange(len(repeat)) - np.repeat(np.cumsum(counts) - counts, counts)
        option = starts[key][repeat] + place
        owner = owner[repeat]
        columns = {name: column[repeat] for name, column in columns.items()}
        columns |= {name: values[option] for name, values in flat.items()}
    return owner, columns


def _flatten(choice: Choice) -> tuple[Columns, NDArray[np.int64]]:
    lengths = [_length(options) for options in choice.lists]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    names = choice.lists[0].keys()
    flat = {name: np.concatenate([options[name] for options in choice.lists]) for name in names}
    return flat, starts
