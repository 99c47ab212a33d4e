"""Observations that a user keeps in files or memory-mapped arrays, described for a fit that never loads them whole."""

from typing import Any, NamedTuple

import numpy as np

from lvmogp.errors import DataError
from lvmogp.tables.ids import Id, distinct_ids, read_ids
from lvmogp.tables.reading import Observations
from lvmogp.tables.sources import Rows
from lvmogp.typing import HostFloat, HostInt


class ObservationStore(NamedTuple):
    """Observations as three arrays with a row each, which may be memory-mapped.

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

    Examples
    --------
    >>> import numpy as np
    >>> from lvmogp import ObservationStore
    >>> store = ObservationStore(np.zeros((4, 1)), np.arange(4.0), np.array([0, 0, 1, 1]), ids=("a", "b"))
    >>> store.rows.outputs.sum()
    np.float64(6.0)
    """

    inputs: HostFloat
    outputs: HostFloat
    conditions: HostInt
    ids: tuple[Id, ...] | None = None
    columns: tuple[str, ...] | None = None
    output_name: str | None = None
    date_columns: tuple[str, ...] = ()

    @property
    def rows(self) -> Rows:
        """The three arrays."""
        return Rows(self.inputs, self.outputs, self.conditions)

    def checked(self) -> "ObservationStore":
        """The same store, once its arrays are known to fit together, with ids as plain values."""
        if np.ndim(self.inputs) != 2 or np.ndim(self.outputs) != 1 or np.ndim(self.conditions) != 1:
            raise DataError(
                "an ObservationStore needs inputs of shape (n, columns), outputs and conditions of shape (n,), got "
                f"{np.shape(self.inputs)}, {np.shape(self.outputs)} and {np.shape(self.conditions)}"
            )
        lengths = {len(self.inputs), len(self.outputs), len(self.conditions)}
        if len(lengths) > 1 or 0 in lengths:
            raise DataError(
                "inputs, outputs and conditions of an ObservationStore must have the same number of rows, at least "
                f"one, got {len(self.inputs)}, {len(self.outputs)} and {len(self.conditions)}"
            )
        if self.conditions.dtype.kind not in "iu":
            raise DataError(
                f"conditions of an ObservationStore must be whole numbers that count ids, got {self.conditions.dtype}"
            )
        lowest, highest = int(self.conditions.min()), int(self.conditions.max())
        ids: tuple[Any, ...] = tuple(range(highest + 1)) if self.ids is None else tuple(read_ids(self.ids))
        if lowest < 0 or highest >= len(ids):
            raise DataError(
                f"conditions of an ObservationStore must lie between 0 and {len(ids) - 1}, the last of its ids; they "
                f"reach from {lowest} to {highest}"
            )
        if len(distinct_ids(ids)) < len(ids):
            raise DataError("two ids of an ObservationStore are the same; each condition needs a name of its own")
        return self._replace(ids=ids)


def store_of(observations: Observations) -> ObservationStore:
    """Observations in memory as a store."""
    return ObservationStore(
        observations.inputs,
        observations.outputs,
        observations.conditions,
        observations.ids,
        observations.columns,
        observations.output_name,
        observations.date_columns,
    )


def observations_of(store: ObservationStore) -> Observations:
    """A store as observations, whose arrays stay where they are."""
    return Observations(
        store.inputs,
        store.outputs,
        store.conditions,
        store.ids or (),
        store.columns,
        is_grid=False,
        date_columns=store.date_columns,
        output_name=store.output_name,
    )
