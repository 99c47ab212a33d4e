"""Data held back to see how good predictions are: which rows, and what their errors add up to.

Everything here works on plain arrays, whoever made the predictions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError
from lvmogp.typing import HostFloat, HostInt

NEW_SHARE = 0.25
REMOVED_SHARE = 0.3


# Splits


class Split(NamedTuple):
    """Places of rows to learn from, of the few rows of conditions that come later (often none), and of rows to predict.

    A row is in one of them at most.
    """

    train: HostInt
    few: HostInt
    test: HostInt


def new_conditions(
    conditions: Sequence[Any] | HostInt, rng: np.random.Generator, *, n_points: int, share: float = NEW_SHARE
) -> Split:
    """Hold back a share of the conditions, at least one, to be predicted from so many of their rows, chosen at random.

    At least one row of each is left to predict: a condition with too few has fewer to learn from, and one with a
    single row none.
    """
    numbers, ids = pd.factorize(np.asarray(conditions))
    if len(ids) < 2:
        raise DataError(
            f"predicting new conditions takes one to hold back and others to learn from; the data have {len(ids)}"
        )
    new = rng.permutation(len(ids))[: min(max(round(share * len(ids)), 1), len(ids) - 1)]
    few: list[HostInt] = []
    test: list[HostInt] = []
    for number in np.sort(new):
        places = rng.permutation(np.flatnonzero(numbers == number))
        n_few = min(n_points, len(places) - 1)
        few.append(places[:n_few])
        test.append(places[n_few:])
    return Split(np.flatnonzero(~np.isin(numbers, new)), np.concatenate(few), np.concatenate(test))


def rows_removed(
    conditions: Sequence[Any] | HostInt, rng: np.random.Generator, *, share: float = REMOVED_SHARE
) -> Split:
    """Hold back a share of all rows, chosen at random, but never the last row of a condition."""
    numbers, _ = pd.factorize(np.asarray(conditions))
    order = rng.permutation(len(numbers))[::-1]
    # The first row of a condition that comes up stays; the first of the others go.
    _, firsts = np.unique(numbers[order], return_index=True)
    others = np.delete(order, firsts)
    removed = others[: round(share * len(numbers))]
    kept = np.setdiff1d(np.arange(len(numbers)), removed)
    return Split(kept, np.zeros(0, dtype=int), np.sort(removed))


# Scores


class Forecast(NamedTuple):
    """What is said of each row: mean, interval, and the log density of what was observed."""

    mean: HostFloat
    lower: HostFloat
    upper: HostFloat
    log_density: HostFloat


class Tallies(NamedTuple):
    """Sums over the rows of each group: how many, squared errors, log densities, rows inside of intervals, widths."""

    n_rows: HostFloat
    squared_error: HostFloat
    log_density: HostFloat
    inside: HostFloat
    width: HostFloat


class Figure(NamedTuple):
    """A number with its standard error, which is NaN where a single group says nothing of it."""

    value: float
    standard_error: float


class PooledScores(NamedTuple):
    """Root mean squared error, mean log density, share inside of intervals and mean width, over all rows."""

    rmse: Figure
    log_density: Figure
    coverage: Figure
    width: Figure


def tallied(forecast: Forecast, outputs: HostFloat, groups: Sequence[Any] | HostInt) -> tuple[list[Any], Tallies]:
    """Return the groups of rows, mostly conditions, in the order of their first rows, and what each adds up to."""
    numbers, ids = pd.factorize(np.asarray(groups))
    inside = (forecast.lower <= outputs) & (outputs <= forecast.upper)
    each_row = (
        np.ones(len(outputs)),
        (forecast.mean - outputs) ** 2,
        forecast.log_density,
        inside,
        forecast.upper - forecast.lower,
    )
    return list(ids), Tallies(*(np.bincount(numbers, weights=values, minlength=len(ids)) for values in each_row))


def scores(tallies: Tallies) -> PooledScores:
    """Pool the rows of all groups.

    Standard errors count groups as independent of each other and rows of a group as anything: those of a ratio of
    two sums over groups, by the delta method.
    """
    squared = _ratio(tallies.squared_error, tallies.n_rows)
    rmse = np.sqrt(squared.value)
    rest = (_ratio(total, tallies.n_rows) for total in (tallies.log_density, tallies.inside, tallies.width))
    return PooledScores(Figure(float(rmse), squared.standard_error / (2 * rmse)), *rest)


def log_relative_error(tallies: Tallies, others: Tallies) -> Figure:
    """Return the logarithm of one RMSE over another's, of the same rows of the same groups; by the delta method."""
    own, other = tallies.squared_error, others.squared_error
    # ½ log Σa/Σb changes by ½ (a/ā − b/b̄)/G with what a group adds.
    influence = (own / own.mean() - other / other.mean()) / 2
    return Figure(float(np.log(own.sum() / other.sum()) / 2), _standard_error(influence))


def _ratio(numerator: HostFloat, denominator: HostFloat) -> Figure:
    # Σa/Σb, with r = Σa/Σb changing by (a − r b)/(G b̄).
    value = numerator.sum() / denominator.sum()
    return Figure(float(value), _standard_error((numerator - value * denominator) / denominator.mean()))


def _standard_error(influence: HostFloat) -> float:
    return float(influence.std(ddof=1) / np.sqrt(len(influence))) if len(influence) > 1 else float("nan")
