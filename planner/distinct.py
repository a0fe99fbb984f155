"""Distinct rows of integer columns, by look-up instead of sorting where values are dense."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]
_TABLE = 2**16
"""Smallest look-up table that is worth its memory whatever the number of rows."""


def distinct_rows(columns: Iterable[ArrayLike]) -> tuple[Integers, Integers]:
    """First index of each distinct row, and for each row its distinct one.

    Args:
        columns: Equal in length; floats and wide ranges are sorted, the rest is looked up.

    >>> first, inverse = distinct_rows([[1, 2, 1, 1], [5, 5, 5, 6]])
    >>> first.tolist(), inverse.tolist()
    ([0, 3, 1], [0, 2, 0, 1])
    """
    code, width = np.zeros(1, np.int64), 1
    for column in columns:
        values, size = dense_codes(np.asarray(column))
        code, width = code * size + values, width * size
        if width > max(_TABLE, 4 * len(code)):
            code, width = dense_codes(code)
    inverse, size = dense_codes(code)
    first = np.zeros(size, np.int64)
    first[inverse[::-1]] = np.arange(len(inverse) - 1, -1, -1)
    return first, inverse


def dense_codes(values: NDArray[np.generic]) -> tuple[Integers, int]:
    """Each value's place among the distinct ones, in order, and how many there are.

    >>> dense_codes(np.array([7, 9, 7]))
    (array([0, 1, 0]), 2)
    """
    if not len(values):
        return np.zeros(0, np.int64), 0
    if values.dtype == bool:
        values = values.view(np.int8)
    if values.dtype.kind == "f":
        return _sorted_codes(values)
    low, high = int(values.min()), int(values.max())
    width = high - low + 1
    if width > max(_TABLE, 4 * len(values)):
        return _sorted_codes(values)
    shifted = values - low if low else values
    seen = np.zeros(width, bool)
    seen[shifted] = True
    if seen.all():
        return np.asarray(shifted, np.int64), width
    place = np.cumsum(seen) - 1
    return place[shifted].astype(np.int64), int(place[-1]) + 1


def _sorted_codes(values: NDArray[np.generic]) -> tuple[Integers, int]:
    distinct, inverse = np.unique(values, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)
