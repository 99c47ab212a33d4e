"""Observations on the host: in memory, or in memory-mapped files that are read a part at a time."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from lvmogp.errors import DataError
from lvmogp.ground.rules import NOT_NEGATIVE, Along, Below
from lvmogp.tables.ids import Id, distinct_ids, read_ids
from lvmogp.tables.scaling import ColumnMoments, Transform, check_positive, column_moments
from lvmogp.typing import Float, HostFloat, HostInt, Int

# Tens of megabytes in memory, and few enough parts that reading them costs nothing beside the rows.
_ROWS_AT_ONCE = 1_000_000


class Observations(NamedTuple):
    """Rows that were observed, as arrays in memory or memory-mapped; public as ``ObservationStore``.

    A store is described by the attributes up to ``date_columns``. It is checked when it is fitted, by minibatches and
    without being loaded.

    Attributes
    ----------
    inputs : array of shape (n, columns)
        Inputs, finite.
    outputs : array of shape (n,)
        Outputs, finite.
    conditions : array of whole numbers of shape (n,)
        Which of ``ids`` each observation belongs to, counting from 0.
    ids : sequence of ids, optional
        Names of the conditions; by default their numbers.
    columns : sequence of str, optional
        Names of the columns of the inputs.
    output_name : str, optional
        Name of the output.
    date_columns : sequence of str
        Columns that were dates, and are days since 1970-01-01 here.
    errors : array of shape (n,), optional
        Known standard deviations of the measurements.
    is_grid : bool
        Whether the outputs came as a table with a column for each condition.
    is_streamed : bool
        Whether rows are read as they are needed, and not kept with a model.

    Examples
    --------
    >>> import numpy as np
    >>> from lvmogp import ObservationStore
    >>> store = ObservationStore(np.zeros((4, 1)), np.arange(4.0), np.array([0, 0, 1, 1]), ids=("a", "b"))
    >>> store.counts
    array([2, 2])
    """

    inputs: Float[np.ndarray, "n Q_X"]
    outputs: Float[np.ndarray, " n"]
    conditions: Annotated[Int[np.ndarray, " n"], Below("D")]
    ids: Annotated[tuple[Id, ...], Along("D")] = ()
    columns: Annotated[tuple[str, ...], Along("Q_X")] | None = None
    output_name: str | None = None
    date_columns: tuple[str, ...] = ()
    errors: Annotated[Float[np.ndarray, " n"], NOT_NEGATIVE] | None = None
    is_grid: bool = False
    is_streamed: bool = False

    @property
    def n_rows(self) -> int:
        """Number of observations."""
        return len(self.outputs)

    @property
    def n_columns(self) -> int:
        """Number of columns of the inputs."""
        return self.inputs.shape[1]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the columns of the inputs; numbered where they have none."""
        return tuple(self.columns or (f"input {place + 1}" for place in range(self.n_columns)))

    @property
    def column_keys(self) -> tuple[str | int, ...]:
        """What users call the columns of the inputs: their names or, where they have none, numbers from 0."""
        return tuple(self.columns or range(self.n_columns))

    @property
    def counts(self) -> HostInt:
        """Observations of each condition."""
        counts = np.zeros(len(self.ids), dtype=np.int64)
        for chunk in self.chunks():
            counts += np.bincount(chunk.conditions, minlength=len(self.ids))
        return counts

    @property
    def is_complete_grid(self) -> bool:
        """Whether the data came as a grid without gaps: each condition has the same inputs in the same order."""
        n_conditions = len(self.ids)
        if not self.is_grid or self.n_rows % n_conditions or np.ptp(self.counts) > 0:
            return False
        by_condition = self.inputs.reshape(n_conditions, -1, self.inputs.shape[1])
        return bool(np.all(by_condition == by_condition[0]))

    def without_rows(self) -> "Observations":
        """Return what describes the data, without the data."""
        nothing = np.empty((0, self.n_columns)), np.empty(0), np.empty(0, dtype=int)
        return self._replace(inputs=nothing[0], outputs=nothing[1], conditions=nothing[2], errors=None)

    def some(self, rows: HostInt | slice) -> "Observations":
        """Return some rows, in memory."""
        return self._replace(
            inputs=np.asarray(self.inputs[rows]),
            outputs=np.asarray(self.outputs[rows]),
            conditions=np.asarray(self.conditions[rows]),
            errors=None if self.errors is None else np.asarray(self.errors[rows]),
        )

    def chunks(self) -> Iterator["Observations"]:
        """Yield all rows in order, a million at a time."""
        for begin in range(0, self.n_rows, _ROWS_AT_ONCE):
            yield self.some(slice(begin, begin + _ROWS_AT_ONCE))

    def moments(self, transform: Transform | None = None, log_columns: tuple[int, ...] = ()) -> ColumnMoments:
        """Return the moments of all columns, after transforms of theirs if there are any, in one pass."""
        total: ColumnMoments | None = None
        for chunk in self.chunks():
            if not (np.all(np.isfinite(chunk.inputs)) and np.all(np.isfinite(chunk.outputs))):
                raise DataError("inputs or outputs hold NaN or infinite values; leave those rows out of the store")
            check_positive(chunk.inputs, log_columns, self.column_keys)
            found = column_moments(chunk.inputs, chunk.outputs, transform=transform, log_columns=log_columns)
            total = found if total is None else total.merged(found)
        if total is None:
            raise DataError("there are no observations; at least one is needed")
        return total

    def sample(self, chances: HostFloat, seed: int) -> "Observations":
        """Draw each observation with the chance that its condition has, in one pass."""
        rng = np.random.default_rng(seed)
        return joined([chunk.some(rng.random(chunk.n_rows) < chances[chunk.conditions]) for chunk in self.chunks()])

    def as_store(self) -> "Observations":
        """Return what a user hands in as a store, with ids as plain values, once its arrays are known to fit."""
        shapes = [np.shape(values) for values in self[:3]]
        if [len(shape) for shape in shapes] != [2, 1, 1] or len({0, *(shape[0] for shape in shapes)}) != 2:
            raise DataError(
                "an ObservationStore needs inputs of shape (n, columns), outputs and conditions of shape (n,) with "
                f"the same number of rows, at least one, got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )
        if self.conditions.dtype.kind not in "iu":
            raise DataError(
                f"conditions of an ObservationStore must be whole numbers that count ids, got {self.conditions.dtype}"
            )
        if self.errors is not None:
            raise DataError("an ObservationStore is fitted by minibatches, which cannot take errors; leave them out")
        lowest, highest = int(self.conditions.min()), int(self.conditions.max())
        given = cast(Any, self.ids)  # of any sequence, or None
        ids = tuple(read_ids(range(highest + 1) if given is None or len(given) == 0 else given))
        if lowest < 0 or highest >= len(ids):
            raise DataError(
                f"conditions of an ObservationStore must lie between 0 and {len(ids) - 1}, the last of its ids; they "
                f"reach from {lowest} to {highest}"
            )
        if len(distinct_ids(ids)) < len(ids):
            raise DataError("two ids of an ObservationStore are the same; each condition needs a name of its own")
        return self._replace(ids=ids, is_grid=False, is_streamed=True)


# What users call the container that they fill themselves.
ObservationStore = Observations


def joined(parts: list[Observations]) -> Observations:
    """Return rows of several parts, one after the other, as those of the first; errors not known are zero."""
    inputs, outputs, conditions = (np.concatenate(each) for each in zip(*(part[:3] for part in parts), strict=True))
    errors = None
    if any(part.errors is not None for part in parts):
        errors = np.concatenate([np.zeros(part.n_rows) if part.errors is None else part.errors for part in parts])
    return parts[0]._replace(inputs=inputs, outputs=outputs, conditions=conditions, errors=errors)


class Order(NamedTuple):
    """Which row, and which condition, comes at each place."""

    rows: HostInt
    conditions: HostInt

    @property
    def places(self) -> HostInt:
        """Where each condition went."""
        return np.argsort(self.conditions)


def canonical_order(observations: Observations, coordinates: HostFloat | None = None) -> Order:
    """Give observations an order of their own, so that a fit knows neither the order they came in nor any name.

    Rows of each condition are ordered by input, then output; conditions by their rows, then by what is known of them.
    Sums round by the order of their terms, and a search for an optimum can come to a fork by rounding. Comparisons of
    values survive another unit of measurement, so the order does too. Conditions that are copies of each other stay in
    the order in which they are.
    """
    columns = [*observations.inputs.T, observations.outputs]
    ranks = _ranks(columns if observations.errors is None else [*columns, observations.errors])
    n_conditions = len(observations.ids)
    described = np.zeros(n_conditions, dtype=int)
    if coordinates is not None:
        described = _ranks([*np.nan_to_num(coordinates, nan=np.inf).T])
    by_condition = np.lexsort((ranks, observations.conditions))
    ends = np.cumsum(np.bincount(observations.conditions, minlength=n_conditions))
    # Bytes of whole numbers that begin with the largest digit compare as the lists of numbers do.
    sequences = np.split(ranks[by_condition].astype(">i8"), ends[:-1])
    keys = [(sequence.tobytes(), rank) for sequence, rank in zip(sequences, described, strict=True)]
    conditions = np.asarray(sorted(range(n_conditions), key=keys.__getitem__))
    rows = np.lexsort((ranks, np.argsort(conditions)[observations.conditions]))
    return Order(rows, conditions)


def _ranks(columns: list[HostFloat]) -> HostInt:
    # The place of each row among all different rows, compared column by column.
    return pd.Series(0, range(len(columns[0]))).groupby(columns).ngroup().to_numpy()


def in_order(observations: Observations, order: Order) -> Observations:
    """Return the observations with rows and conditions in that order."""
    return observations.some(order.rows)._replace(
        conditions=order.places[observations.conditions][order.rows],
        ids=tuple(observations.ids[number] for number in order.conditions),
    )
