"""Observations that need not fit into memory: read by their numbers, a few at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lvmogp.errors import DataError
from lvmogp.tables.scaling import Scaling, check_sizes, positive_scale
from lvmogp.tables.transforms import Transform, check_outputs
from lvmogp.typing import HostFloat, HostInt

_ROWS_AT_ONCE = 1_000_000


class Rows(NamedTuple):
    """Some observations: inputs, outputs and the number of the condition of each."""

    inputs: HostFloat
    outputs: HostFloat
    conditions: HostInt

    def at(self, places: HostInt | slice) -> "Rows":
        """Some of them."""
        return Rows(*(np.asarray(column[places]) for column in self))


class Source(NamedTuple):
    """Observations in the user's units as arrays, in memory or memory-mapped, and how many each condition has.

    The arrays number conditions in their own way; ``numbers`` says which condition among all each of these is.
    """

    rows: Rows
    counts: HostInt
    numbers: HostInt

    @property
    def n_rows(self) -> int:
        """Number of observations."""
        return len(self.rows.outputs)

    def at(self, places: HostInt | slice) -> Rows:
        """Some observations, with the numbers of their conditions among all."""
        rows = self.rows.at(places)
        return rows._replace(conditions=self.numbers[rows.conditions])

    def chunks(self) -> Iterator[Rows]:
        """All observations in order, a million at a time."""
        for begin in range(0, self.n_rows, _ROWS_AT_ONCE):
            yield self.at(slice(begin, begin + _ROWS_AT_ONCE))


def source_of(rows: Rows, n_conditions: int, numbers: HostInt | None = None) -> Source:
    """Count the observations of each condition; by default conditions are numbered as among all."""
    numbers = np.arange(n_conditions, dtype=np.int32) if numbers is None else numbers
    counts = np.zeros(n_conditions, dtype=np.int64)
    source = Source(rows, counts, numbers)
    for chunk in source.chunks():
        counts += np.bincount(chunk.conditions, minlength=n_conditions)
    return source


class ColumnMoments(NamedTuple):
    """Count, mean, sum of squared deviations and largest size of each column; the output is the last."""

    n_rows: float
    mean: HostFloat
    squares: HostFloat
    largest: HostFloat

    def merged(self, other: "ColumnMoments") -> "ColumnMoments":
        """Moments of both sets of rows together."""
        total = self.n_rows + other.n_rows
        apart = other.mean - self.mean
        return ColumnMoments(
            total,
            self.mean + apart * (other.n_rows / total),
            self.squares + other.squares + apart**2 * (self.n_rows * other.n_rows / total),
            np.maximum(self.largest, other.largest),
        )


def column_moments(source: Source, *, transform: Transform | None = None) -> ColumnMoments:
    """Moments of all columns in one pass."""
    total: ColumnMoments | None = None
    for chunk in source.chunks():
        check_outputs(transform, chunk.outputs)
        if not (np.all(np.isfinite(chunk.inputs)) and np.all(np.isfinite(chunk.outputs))):
            raise DataError("inputs or outputs hold NaN or infinite values; leave those rows out of the store")
        outputs = chunk.outputs if transform is None else transform.forward(chunk.outputs)
        columns = np.column_stack([chunk.inputs, outputs]).astype(float)
        with np.errstate(over="ignore", invalid="ignore"):  # too large a column is refused at the end, in words
            mean = columns.mean(axis=0)
            squares = np.sum((columns - mean) ** 2, axis=0)
        found = ColumnMoments(float(len(columns)), mean, squares, np.abs(columns).max(axis=0))
        total = found if total is None else total.merged(found)
    if total is None:
        raise DataError("there are no observations; at least one is needed")
    return total


def scaling_from(moments: ColumnMoments, *, transform: Transform | None = None) -> Scaling:
    """Shifts and scales of columns with these moments."""
    check_sizes(moments.largest)
    scale = positive_scale(np.sqrt(moments.squares / moments.n_rows), moments.largest)
    return Scaling(moments.mean[:-1], scale[:-1], float(moments.mean[-1]), float(scale[-1]), transform)


def sample(source: Source, counts: HostInt, per_condition: int, seed: int) -> Rows:
    """About this many observations of each condition, all of those that have fewer, in one pass.

    ``counts`` are those of all observations, of which the source may hold a part.
    """
    rng = np.random.default_rng(seed)
    chances = np.minimum(per_condition / np.maximum(counts, 1), 1.0)
    parts = []
    for chunk in source.chunks():
        parts.append(chunk.at(np.flatnonzero(rng.random(len(chunk.outputs)) < chances[chunk.conditions])))
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
