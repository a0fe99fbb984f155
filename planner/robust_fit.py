"""Robust least squares on a model that is nearly linear in its few constants.

Coordinates are widths of belief from the prior, so that the prior is a unit normal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROW_NOISE = 0.08  # of one published step time: rounding, jitter, unstated settings
PROBE = 0.2  # step of a constant, in widths, from which its slope is taken
LARGEST_SHIFT = 3.0  # widths from the prior


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """ln(measured / predicted) near a point: ``errors - slopes @ (vector - point)``."""

    point: Floats
    errors: Floats
    slopes: Floats


def linearise(errors_at: Callable[[Floats], Floats], point: Floats) -> Linear:
    """One prediction of all rows per constant, and one more.

    Args:
        errors_at: ln(measured / predicted) of every row at a point.
        point: Where; coordinates are in widths from the priors.
    """
    errors = errors_at(point)
    slopes = np.zeros((len(errors), len(point)))
    for place in range(len(point)):
        moved = point.copy()
        moved[place] += PROBE
        slopes[:, place] = (errors - errors_at(moved)) / PROBE
    return Linear(point=point, errors=errors, slopes=slopes)


def solve(linear: Linear, rows: NDArray[np.intp], groups: NDArray[Any]) -> tuple[Floats, Floats]:
    """The best point by some rows, and its uncertainty in units of each constant's width.

    Robust: a row that is far off pulls no harder than one that is moderately off. Each source
    weighs as the root of its size; the prior of every constant is one more row.
    """
    from scipy.optimize import least_squares

    names, counts = np.unique(groups[rows], return_counts=True)
    size = dict(zip(names.tolist(), counts.tolist(), strict=True))
    weight = np.array([size[group] ** -0.25 for group in groups[rows].tolist()]) / ROW_NOISE

    def residuals(vector: Floats) -> Floats:
        errors = linear.errors[rows] - linear.slopes[rows] @ (vector - linear.point)
        scaled = weight * errors
        robust = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([robust, vector])

    found = least_squares(residuals, linear.point, bounds=(-LARGEST_SHIFT, LARGEST_SHIFT))
    covariance = np.linalg.pinv(found.jac.T @ found.jac)
    return found.x, np.sqrt(np.diag(covariance))


def held_out_errors(
    linear: Linear, groups: NDArray[Any], teaches: NDArray[np.bool_] | None = None
) -> Floats:
    """ln(measured / predicted) of each source by constants of all other sources."""
    errors = linear.errors.copy()
    for group in np.unique(groups):
        held = np.flatnonzero(groups == group)
        kept = np.flatnonzero((groups != group) & (True if teaches is None else teaches))
        if len(kept):
            vector, _ = solve(linear, kept, groups)
            errors[held] -= linear.slopes[held] @ (vector - linear.point)
    return errors
