"""What users hand in, checked once at the door and turned into plain arrays."""

import datetime
import difflib
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.data import Data, GridData, long_data
from lvmogp.errors import DataError, LVMOGPWarning, UnknownConditionError
from lvmogp.scaling import Scaling
from lvmogp.typing import HostFloat, HostInt

Id = Hashable
_SIMPLE_ID_TYPES = (str, bool, int, float, datetime.date)
_ID_TYPES_IN_WORDS = "str, int, float, bool, date, datetime, or tuples of these"


class Inputs(NamedTuple):
    """Rows of inputs with the names of their columns and, where a column holds it, the condition of each row."""

    values: HostFloat
    columns: tuple[str, ...] | None
    row_ids: list[Id] | None


class Observations(NamedTuple):
    """Rows that were observed; ``ids`` lists all conditions, ``conditions`` numbers them."""

    inputs: HostFloat
    outputs: HostFloat
    conditions: HostInt
    ids: tuple[Id, ...]
    columns: tuple[str, ...] | None
    is_grid: bool


def read_inputs(
    X: Any,
    *,
    condition: str | None = None,
    columns: tuple[str, ...] | None = None,
    n_columns: int | None = None,
) -> Inputs:
    """Check a table of inputs; a condition column named ``condition`` is taken out of it.

    ``columns`` and ``n_columns`` are those of the training inputs, which a new table must have.
    """
    row_ids = None
    if isinstance(X, pd.DataFrame):
        frame = X
        _check_column_names(frame, "X")
        if condition is not None:
            if condition not in frame.columns:
                raise DataError(
                    f"the condition column {condition!r} is not among the columns {list(map(str, frame.columns))}"
                )
            row_ids = read_ids(frame[condition])
            frame = frame.drop(columns=[condition])
        own_columns = tuple(str(column) for column in frame.columns)
        values = _numeric_frame(frame)
    else:
        if condition is not None:
            raise DataError(
                f"condition={condition!r} names a column, so X must be a pandas DataFrame, got "
                f"{type(X).__name__}; or pass conditions= beside a plain array"
            )
        own_columns, values = None, _numeric_array(X, "X")
    if values.ndim != 2:
        raise DataError(
            f"X must be two-dimensional (rows × columns), got shape {values.shape}; reshape a single column with "
            "X.reshape(-1, 1) or a single row with X.reshape(1, -1)"
        )
    if values.shape[1] == 0:
        raise DataError("X has no columns; it needs at least one input")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        name = own_columns[column] if own_columns else int(column)
        raise DataError(
            f"X holds {len(bad)} NaN or infinite values, the first in row {row}, column {name!r}; inputs must be "
            "finite (only outputs may be missing)"
        )
    if columns is not None and own_columns is not None and own_columns != columns:
        if sorted(own_columns) != sorted(columns):
            raise DataError(f"X must have the columns {list(columns)}, got {list(own_columns)}")
        values = values[:, [own_columns.index(column) for column in columns]]
        own_columns = columns
    if n_columns is not None and values.shape[1] != n_columns:
        raise DataError(f"X has {values.shape[1]} columns, but the model was fitted with {n_columns}")
    return Inputs(values, own_columns, row_ids)


def _check_column_names(frame: pd.DataFrame, table: str) -> None:
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise DataError(f"two columns of {table} have the same name {str(repeated[0])!r}; rename one of them")


def _numeric_frame(frame: pd.DataFrame) -> HostFloat:
    columns = []
    for name in frame.columns:
        try:
            if frame[name].dtype.kind in "Mm":
                raise TypeError
            columns.append(frame[name].to_numpy(dtype=float, na_value=np.nan))
        except (TypeError, ValueError):
            example = next((value for value in frame[name] if not _is_number(value)), frame[name].iloc[0])
            raise DataError(
                f"column {str(name)!r} of X must hold numbers, got {example!r}; drop it, encode it, or name it as "
                "the condition column with condition="
            ) from None
    return np.column_stack(columns) if columns else np.empty((len(frame), 0))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _numeric_array(values: Any, name: str) -> HostFloat:
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cMm":
            raise TypeError
        return array.astype(float)
    except (TypeError, ValueError):
        raise DataError(f"{name} must hold real numbers in a rectangular array, got {_described(values)}") from None


def _described(values: Any) -> str:
    dtype = getattr(values, "dtype", None)
    return f"{type(values).__name__} of {dtype}" if dtype is not None else f"{type(values).__name__} {values!r:.60}"


def read_ids(values: Iterable[Any]) -> list[Id]:
    """Condition ids as plain Python values, each of a type that can be saved."""
    return [_plain_id(value) for value in values]


def _plain_id(value: Any) -> Id:
    if isinstance(value, np.generic):
        value = value.item() if not isinstance(value, np.datetime64) else pd.Timestamp(value)
    if value is pd.NaT:
        value = None
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime()
    if isinstance(value, tuple):
        return tuple(_plain_id(part) for part in value)
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        raise DataError("a condition id is missing (None or NaN); drop those rows or give them an id")
    if not isinstance(value, _SIMPLE_ID_TYPES):
        raise DataError(f"a condition id must be {_ID_TYPES_IN_WORDS}, got {type(value).__name__} {value!r:.60}")
    # Members of enumerations and the like become the plain value that a file can hold.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def is_single_id(conditions: Any) -> bool:
    """Whether ``conditions`` is one id for all rows; lists, arrays and Series are one id a row."""
    return isinstance(conditions, (*_SIMPLE_ID_TYPES, tuple, np.generic))


def row_conditions(conditions: Any, n_rows: int) -> list[Id]:
    """The condition of each row, from one id for all rows or one a row."""
    if is_single_id(conditions):
        return [_plain_id(conditions)] * n_rows
    if isinstance(conditions, np.ndarray) and conditions.ndim != 1:
        raise DataError(f"conditions must be one id, or one id a row, got an array of shape {conditions.shape}")
    if not isinstance(conditions, Iterable):
        raise DataError(
            f"conditions must be one id, or one id a row, got {type(conditions).__name__} {conditions!r:.60}"
        )
    ids = read_ids(conditions)
    if len(ids) != n_rows:
        raise DataError(f"conditions has {len(ids)} entries for {n_rows} rows of X; give one id, or one a row")
    return ids


def distinct_ids(ids: Sequence[Id]) -> tuple[Id, ...]:
    """Each id once, sorted, so that the order of rows does not matter."""
    _check_kinds(ids)
    return tuple(sorted(dict.fromkeys(ids), key=_sort_key))


def _check_kinds(ids: Sequence[Id]) -> None:
    # Tuples are equal only to tuples of their length, so each place of those is checked by itself.
    kinds = set(map(type, ids))
    if bool in kinds and kinds & {int, float}:
        raise DataError("condition ids mix True/False with numbers, which compare equal; use strings instead")
    if tuple in kinds:
        tuples = [value for value in ids if isinstance(value, tuple)]
        for length in set(map(len, tuples)):
            for place in zip(*(value for value in tuples if len(value) == length), strict=True):
                _check_kinds(place)


def _sort_key(value: Id) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        return ("tuple", tuple(_sort_key(part) for part in value))
    if isinstance(value, bool | int | float):
        return ("number", value)
    if isinstance(value, datetime.date):
        return ("date", value.isoformat())
    return ("str", value)


def numbers_of(ids: Sequence[Id], known: Sequence[Id]) -> HostInt:
    """Numbers of conditions in ``known``; −1 where unknown."""
    place = {value: number for number, value in enumerate(known)}
    return np.asarray([place.get(value, -1) for value in ids], dtype=int)


def unknown_condition(value: Id, known: Sequence[Id]) -> UnknownConditionError:
    """The error for a condition that the model has never seen."""
    close = difflib.get_close_matches(str(value), [str(name) for name in known], n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return UnknownConditionError(
        f"condition {value!r} is not known to the model{hint}; add it with add_condition(name, X, y), or create the "
        'estimator with unseen="prior" to predict it from the prior'
    )


def read_outputs(y: Any, n_rows: int) -> HostFloat:
    """Outputs as a float array of one or two dimensions with a row for each row of X."""
    values = _numeric_frame_outputs(y) if isinstance(y, pd.DataFrame) else _numeric_outputs(y)
    if values.ndim not in (1, 2):
        raise DataError(f"y must have one dimension (long form) or two (inputs × conditions), got shape {values.shape}")
    if len(values) != n_rows:
        raise DataError(f"X has {n_rows} rows but y has {len(values)}; each row of X needs its output")
    if np.any(np.isinf(values)):
        first = np.argwhere(np.isinf(values))[0]
        raise DataError(f"y is infinite in row {first[0]}; outputs must be finite, or NaN where not observed")
    return values


def _numeric_outputs(y: Any) -> HostFloat:
    if isinstance(y, pd.Series):
        y = y.astype(object).where(y.notna(), np.nan).to_numpy()
    try:
        array = np.asarray(y)
    except ValueError:
        raise DataError("y must hold numbers in a rectangular array, got rows of different lengths") from None
    if array.dtype.kind in "Mm":
        raise DataError(f"y must hold numbers, got dates or durations ({array.dtype})")
    if array.dtype.kind in "OUS":
        for row, value in enumerate(np.ravel(array).tolist()):
            if value is not None and not (_is_number(value) and not isinstance(value, str)):
                raise DataError(f"y must hold numbers, got {value!r} in row {row}")
    return _numeric_array(y, "y")


def _numeric_frame_outputs(y: pd.DataFrame) -> HostFloat:
    if y.columns.has_duplicates:
        raise DataError("two columns of y have the same name; each condition needs a name of its own")
    for name in y.columns:
        if not pd.api.types.is_numeric_dtype(y[name]):
            raise DataError(f"column {str(name)!r} of y must hold numbers, got {y[name].dtype}")
    return y.to_numpy(dtype=float, na_value=np.nan)


def read_training(X: Any, y: Any, conditions: Any, *, condition: str | None = None) -> Observations:
    """Check training data of either form and return the observed rows."""
    if y is None:
        raise DataError("y is missing: fit(X, y, conditions=…) needs the outputs")
    inputs = read_inputs(X, condition=condition)
    if isinstance(conditions, Iterator):
        conditions = list(conditions)
    if len(inputs.values) == 0:
        raise DataError("X has no rows; at least one observation is needed")
    if inputs.row_ids is not None and conditions is not None:
        raise DataError(f"conditions were given twice: in the column {condition!r} and as conditions=; use one")
    outputs = read_outputs(y, len(inputs.values))
    if outputs.ndim == 2 and outputs.shape[1] == 1 and _names_rows(inputs, y, conditions):
        outputs = outputs[:, 0]
    if outputs.ndim == 2 and inputs.row_ids is None:
        return _observed_grid(inputs, outputs, _grid_ids(y, outputs.shape[1], conditions))
    if outputs.ndim == 2:
        raise DataError("y must have one dimension when each row of X names its condition")
    row_ids = inputs.row_ids
    if row_ids is None:
        row_ids = [0] * len(outputs) if conditions is None else row_conditions(conditions, len(outputs))
    ids = distinct_ids(row_ids)
    observed = np.isfinite(outputs)
    _check_any_observed(observed)
    if not observed.all():
        warnings.warn(
            f"{int((~observed).sum())} of {len(outputs)} rows have no output (NaN) and count as not observed",
            LVMOGPWarning,
            stacklevel=3,
        )
    numbers = numbers_of(row_ids, ids)
    return Observations(
        inputs.values[observed], outputs[observed], numbers[observed], ids, inputs.columns, is_grid=False
    )


def _names_rows(inputs: Inputs, y: Any, conditions: Any) -> bool:
    # Whether a single column of outputs is long form: each row has a condition, or there are no names at all.
    if inputs.row_ids is not None or not isinstance(y, pd.DataFrame):
        return True
    return conditions is not None and not is_single_id(conditions) and len(conditions) == len(inputs.values)


def standardised(observations: Observations, scaling: Scaling) -> Data:
    """The observations in standardised units: a grid if every condition was observed once at every input."""
    inputs, outputs = scaling.inputs(observations.inputs), scaling.outputs(observations.outputs)
    n_conditions = len(observations.ids)
    distinct, places = np.unique(inputs, axis=0, return_inverse=True)
    cells = places.reshape(-1) * n_conditions + observations.conditions
    if len(np.unique(cells)) == len(cells) == len(distinct) * n_conditions:
        grid = np.empty(len(cells))
        grid[cells] = outputs
        return GridData(jnp.asarray(distinct), jnp.asarray(grid.reshape(len(distinct), n_conditions)))
    return long_data(inputs, outputs, observations.conditions, n_conditions)


def _grid_ids(y: Any, n_conditions: int, conditions: Any) -> tuple[Id, ...]:
    if conditions is not None:
        names = [_plain_id(conditions)] if is_single_id(conditions) else read_ids(conditions)
        if len(names) != n_conditions:
            raise DataError(f"conditions has {len(names)} entries for {n_conditions} columns of y; give one a column")
    elif isinstance(y, pd.DataFrame):
        names = read_ids(y.columns)
    else:
        names = list(range(n_conditions))
    _check_kinds(names)
    if len(set(names)) != len(names):
        raise DataError("two columns of y have the same name; each condition needs a name of its own")
    return tuple(names)


def _observed_grid(inputs: Inputs, outputs: HostFloat, ids: tuple[Id, ...]) -> Observations:
    observed = np.isfinite(outputs)
    _check_any_observed(observed)
    numbers, rows = np.nonzero(observed.T)
    return Observations(inputs.values[rows], outputs[rows, numbers], numbers, ids, inputs.columns, is_grid=True)


def _check_any_observed(observed: np.ndarray) -> None:
    if not observed.any():
        raise DataError("every output is NaN; at least one observation is needed")
