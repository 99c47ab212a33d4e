"""Numbers out of tables and arrays of any make, or words for why not."""

import datetime
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from lvmogp.errors import DataError
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
