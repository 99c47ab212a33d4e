"""What users hand in, checked once at the door and turned into plain arrays."""

import datetime
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from lvmogp.errors import DataError, warn
from lvmogp.tables.ids import Id, RowIds, check_sequence, distinct_ids, is_single_id, read_ids, row_conditions, row_ids
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import LARGEST
from lvmogp.typing import HostFloat


def as_pandas(values: Any) -> Any:
    """Return tables and columns of polars as those of pandas, and anything else as it is."""
    if type(values).__module__.partition(".")[0] != "polars":
        return values
    if type(values).__name__ == "DataFrame":
        return pd.DataFrame({name: values[name].to_numpy() for name in values.columns})
    return pd.Series(values.to_numpy(), name=values.name)


def check_column_names(frame: pd.DataFrame, table: str) -> None:
    """Refuse a table with two columns of one name."""
    # As text, since that is how they are known later: 1 and "1" could not be told apart.
    names = pd.Index([str(name) for name in frame.columns])
    repeated = names[names.duplicated()]
    if len(repeated):
        raise DataError(f"two columns of {table} have the same name {repeated[0]!r}; rename one of them")


def numeric_table(frame: pd.DataFrame) -> tuple[HostFloat, tuple[str, ...], tuple[str, ...]]:
    """Return the columns of X as numbers, their names, and the names of those that hold dates or durations.

    Dates become days since 1970-01-01, durations days.
    """
    columns, date_columns = [], []
    for name in frame.columns:
        column = pd.Series(frame[name])
        in_days = days(column)
        if in_days is not None:
            date_columns.append(str(name))
        _check_real(column.dtype, f"column {str(name)!r} of X")
        try:
            columns.append(column.to_numpy(dtype=float, na_value=np.nan) if in_days is None else in_days)
        except (TypeError, ValueError, OverflowError):
            example = next((value for value in column if not _is_number(value)), column.iloc[0])
            raise DataError(
                f"column {str(name)!r} of X must hold numbers or dates, got {example!r}; drop it, encode it, or name "
                "it as the condition column with condition="
            ) from None
    values = np.column_stack(columns) if columns else np.empty((len(frame), 0))
    return values, tuple(str(name) for name in frame.columns), tuple(date_columns)


def days(column: pd.Series) -> HostFloat | None:
    """Return dates as days since 1970-01-01 and durations as days, ``None`` for a column of anything else."""
    if column.dtype.kind == "O" and len(column) and all(isinstance(value, datetime.date) for value in column):
        column = pd.to_datetime(column, utc=True)
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if column.dtype.kind == "M":
        column = column - pd.Timestamp(0)
    if column.dtype.kind != "m":
        return None
    durations = cast("pd.Series[pd.Timedelta]", column)
    return (durations / pd.Timedelta(days=1)).to_numpy(dtype=float)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _check_real(dtype: Any, name: str) -> None:
    if getattr(dtype, "kind", "O") == "c":
        raise DataError(f"Complex data not supported: {name} must hold real numbers")


def _unmasked(values: Any) -> Any:
    # What is masked is missing, whatever number lies below the mask.
    if not np.ma.is_masked(values) or values.dtype.kind in "cMm":
        return values
    return values.astype(object).filled(np.nan)


def numeric_array(values: Any, name: str) -> HostFloat:
    """Return an array of real numbers as floats."""
    if issparse(values):
        raise DataError(f"{name} is sparse, which is not supported; pass a dense array, {name}.toarray()")
    array = _unmasked(values)
    with suppress(TypeError, ValueError, OverflowError):
        array = np.asarray(array)
        if array.dtype.kind not in "cMm":
            return array.astype(float)
    _check_real(getattr(array, "dtype", None), name)
    shown = f"of {values.dtype}" if hasattr(values, "dtype") else f"{values!r:.60}"
    raise DataError(f"{name} must hold real numbers in a rectangular array, got {type(values).__name__} {shown}")


def numeric_outputs(y: Any) -> HostFloat:
    """Return the outputs as floats, NaN where nothing was observed."""
    if isinstance(y, pd.DataFrame):
        for name, dtype in y.dtypes.items():
            _check_real(dtype, f"column {str(name)!r} of y")
            if not pd.api.types.is_numeric_dtype(dtype):
                raise DataError(f"column {str(name)!r} of y must hold numbers, got {dtype}")
        return y.to_numpy(dtype=float, na_value=np.nan)
    if isinstance(y, pd.Series):
        y = y.astype(object).where(y.notna(), np.nan).to_numpy()
    try:
        array = np.asarray(_unmasked(y))
    except ValueError:
        raise DataError("y must hold numbers in a rectangular array, got rows of different lengths") from None
    if array.dtype.kind in "Mm":
        raise DataError(f"y must hold numbers, got dates or durations ({array.dtype})")
    if array.dtype.kind in "OUS":
        for row, value in enumerate(np.ravel(array).tolist()):
            if value is not None and not (_is_number(value) and not isinstance(value, str)):
                # A whole number may have more digits than Python will write out.
                shown = f"a number of {value.bit_length()} bits" if isinstance(value, int) else repr(value)
                raise DataError(f"y must hold numbers, got {shown} in row {row}")
    return numeric_array(y, "y")


# Inputs, outputs and their errors


class Inputs(NamedTuple):
    """Rows of inputs with the names of their columns and, where a column holds it, the condition of each row."""

    values: HostFloat
    columns: tuple[str, ...] | None
    row_ids: RowIds | None
    date_columns: tuple[str, ...] = ()


def read_inputs(X: Any, *, condition: str | None = None, schema: Observations | None = None) -> Inputs:
    """Check a table of inputs, from which a column named ``condition`` is taken out.

    ``schema`` describes the training data, whose columns a new table must have.
    """
    table = as_pandas(X)
    if isinstance(table, pd.DataFrame):
        check_column_names(table, "X")
        if condition is not None and condition not in table.columns:
            names = list(map(str, table.columns))
            raise DataError(f"the condition column {condition!r} is not among the columns {names}")
        own_ids = None if condition is None else row_ids(table[condition])
        values, names, dates = numeric_table(table if condition is None else table.drop(columns=[condition]))
        inputs = Inputs(values, names, own_ids, dates)
    elif condition is None:
        inputs = Inputs(numeric_array(table, "X"), None, None)
    else:
        raise DataError(
            f"condition={condition!r} names a column, so X must be a pandas or polars DataFrame, got "
            f"{type(X).__name__}; or pass conditions= beside a plain array"
        )
    values = inputs.values
    if values.ndim != 2:
        raise DataError(
            f"X must be two-dimensional (rows × columns), got shape {values.shape}. Reshape your data: a single "
            "column with X.reshape(-1, 1), a single row with X.reshape(1, -1)"
        )
    if values.shape[1] == 0:
        raise DataError(f"X has 0 feature(s) (shape={values.shape}) while a minimum of 1 is required.")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        name = inputs.columns[column] if inputs.columns else int(column)
        raise DataError(
            f"X holds {len(bad)} NaN or infinite values, the first in row {row}, column {name!r}; inputs must be "
            "finite (only outputs may be missing)"
        )
    return inputs if schema is None else _as_trained(inputs, schema)


def _as_trained(inputs: Inputs, schema: Observations) -> Inputs:
    own, columns, dates = inputs.columns, schema.columns, schema.date_columns
    if own is not None and columns is not None:
        if sorted(own) != sorted(columns):
            raise DataError(f"X must have the columns {list(columns)}, got {list(own)}")
        for name in sorted(set(inputs.date_columns) ^ set(dates)):
            before, now = ("dates", "numbers") if name in dates else ("numbers", "dates")
            raise DataError(f"column {name!r} of X held {before} when the model was fitted, but holds {now} now")
        return inputs._replace(values=inputs.values[:, [own.index(column) for column in columns]], columns=columns)
    if inputs.values.shape[1] != schema.n_columns:
        raise DataError(
            f"X has {inputs.values.shape[1]} features, but LVMOGPRegressor is expecting {schema.n_columns} features as "
            "input, as it was fitted with"
        )
    return inputs


def read_outputs(y: Any, n_rows: int) -> HostFloat:
    """Return outputs as a float array of one or two dimensions with a row for each row of X."""
    values = numeric_outputs(as_pandas(y))
    if values.ndim not in (1, 2):
        raise DataError(f"y must have one dimension (long form) or two (inputs × conditions), got shape {values.shape}")
    if len(values) != n_rows:
        raise DataError(f"X has {n_rows} rows but y has {len(values)}; each row of X needs its output")
    for row, *_ in np.argwhere(np.isinf(values)):
        raise DataError(f"y is infinite in row {row}; outputs must be finite, or NaN where not observed")
    return values


def read_errors(y_std: Any, outputs: HostFloat, y: Any = None) -> HostFloat | None:
    """Return standard deviations of measurements, from one number for all or one per output; any where none is.

    Columns of a table are matched by name to those of ``y``, the table that the outputs were read from.
    """
    if y_std is None:
        return None
    y_std = as_pandas(y_std)
    if isinstance(y, pd.DataFrame) and isinstance(y_std, pd.DataFrame) and y_std.shape[1] == y.shape[1]:
        if set(y_std.columns) != set(y.columns):
            strange = next(name for name in y_std.columns if name not in set(y.columns))
            raise DataError(
                f"y_std has a column {strange!r} that y has not; name its columns as those of y, or pass it as an array"
            )
        y_std = y_std[list(y.columns)]
    values = numeric_array(y_std, "y_std")
    if values.shape == (len(outputs), 1) and outputs.ndim == 1:
        values = values[:, 0]
    if values.ndim > 0 and values.shape != outputs.shape:
        raise DataError(
            f"y_std must be one number or have the shape of y, {outputs.shape}, got shape {values.shape}; give the "
            "standard deviation of each measurement"
        )
    values = np.broadcast_to(values, outputs.shape)
    wrong = np.isfinite(outputs) & ~((values >= 0) & (values <= LARGEST))
    if wrong.any():
        raise DataError(
            f"y_std must hold standard deviations, finite and not negative, got {values[wrong][0]:g}; use 0 where a "
            f"measurement has no error but the noise, and at most {LARGEST:g}"
        )
    return np.array(values)


def read_training(X: Any, y: Any, conditions: Any, *, condition: str | None = None, y_std: Any = None) -> Observations:
    """Check training data of either form and return the observed rows."""
    if y is None:
        raise DataError("fit(X, y, conditions=…) requires y to be passed, but the target y is None")
    inputs, y = read_inputs(X, condition=condition), as_pandas(y)
    if isinstance(conditions, Iterator):
        conditions = list(conditions)
    if conditions is not None:
        check_sequence(conditions)
    n_rows = len(inputs.values)
    if n_rows == 0:
        raise DataError("X has no rows; at least one observation is needed")
    if inputs.row_ids is not None and conditions is not None:
        raise DataError(f"conditions were given twice: in the column {condition!r} and as conditions=; use one")
    outputs = read_outputs(y, n_rows)
    if outputs.ndim == 2 and outputs.shape[1] == 1 and _names_rows(inputs, y, conditions):
        outputs, y = outputs[:, 0], y.iloc[:, 0] if isinstance(y, pd.DataFrame) else y
    is_grid = outputs.ndim == 2
    if is_grid and inputs.row_ids is not None:
        raise DataError("y must have one dimension when each row of X names its condition")
    observed = np.isfinite(outputs)
    if not observed.any():
        raise DataError("every output is NaN; at least one observation is needed")
    if is_grid:
        ids = _grid_ids(y, outputs.shape[1], conditions)
        numbers, rows = np.nonzero(observed.T)
        cells = rows, numbers
    else:
        named = inputs.row_ids or row_conditions(0 if conditions is None else conditions, n_rows)
        ids = distinct_ids(named.distinct)
        cells = rows = np.flatnonzero(observed)
        numbers = named.numbers_in(ids)[rows]
        if len(rows) < n_rows:
            warn(f"{n_rows - len(rows)} of {n_rows} rows have no output (NaN) and count as not observed")
    errors, name = read_errors(y_std, outputs, y), getattr(y, "name", None)
    return Observations(
        inputs.values[rows],
        outputs[cells],
        numbers,
        ids,
        inputs.columns,
        output_name=None if is_grid or name is None else str(name),
        date_columns=inputs.date_columns,
        errors=None if errors is None else errors[cells],
        is_grid=is_grid,
    )


def _names_rows(inputs: Inputs, y: Any, conditions: Any) -> bool:
    # Whether a single column of outputs is long form: each row has a condition, or there are no names at all.
    if inputs.row_ids is not None or not isinstance(y, pd.DataFrame):
        return True
    return conditions is not None and not is_single_id(conditions) and len(conditions) == len(inputs.values)


def _grid_ids(y: Any, n_conditions: int, conditions: Any) -> tuple[Id, ...]:
    if conditions is not None:
        names = read_ids([conditions] if is_single_id(conditions) else conditions)
        if len(names) != n_conditions:
            raise DataError(f"conditions has {len(names)} entries for {n_conditions} columns of y; give one per column")
    else:
        names = read_ids(y.columns if isinstance(y, pd.DataFrame) else range(n_conditions))
    if len(set(names)) != len(names):
        raise DataError("two columns of y have the same name; each condition needs a name of its own")
    return tuple(names)
