"""What the values of a table's column are: numbers, dates or other text."""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.tables import FileTable, missing
from lvmogp.errors import DataError

NUMBER, DATE, TEXT, EMPTY = "number", "date", "text", "empty"
_TIMES = ("", " %H:%M", " %H:%M:%S")
_DATES = ("%d.%m.%Y", "%Y/%m/%d", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y")
_DATE_FORMATS = ("ISO8601", *(date + time for date in _DATES for time in _TIMES))
_DAY_FIRST = tuple("%d/%m/%Y" + time for time in _TIMES)
_MONTH_FIRST = tuple("%m/%d/%Y" + time for time in _TIMES)
_MOSTLY = 0.5
# A whole number for each row is a row number or a key rather than a measurement …
_FEWEST_ROWS_OF_KEYS = 20
_DISTINCT_SHARE_OF_KEYS = 0.95
# … if the numbers follow each other, are huge, or if the column is called so.
_HUGE = 1_000_000
_KEY_NAME = re.compile(r"(?:^|[_\W])(?:id|key|index|idx|row|nr|no|number|uuid|serial)(?:$|[_\W\d])", re.IGNORECASE)


class Column(NamedTuple):
    """A column as numbers or dates, missing where it has none; ``unreadable`` lists rows with other text."""

    name: str
    kind: str
    values: pd.Series
    unreadable: pd.Index


def read_column(table: FileTable, name: str) -> Column:
    """Find out what a column holds; one that is mostly numbers or dates is taken as meant to be that."""
    values = table.column(name)
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return Column(name, DATE, _without_zone(values), values.index[:0])
    absent = missing(values)
    if absent.all():
        return Column(name, EMPTY, pd.Series(np.nan, values.index), values.index[:0])
    if pd.api.types.is_numeric_dtype(values.dtype):
        return Column(name, NUMBER, values.astype(float), values.index[:0])
    texts = pd.Series(values.astype(object).where(~absent, None))
    no_number = values.index[:0]
    for kind, read in ((NUMBER, _numbers), (DATE, _dates)):
        found = read(texts, table, name)
        unreadable = values.index[(found.isna() & ~absent).to_numpy()]
        if len(unreadable) < _MOSTLY * (~absent).sum():
            return Column(name, kind, found, unreadable)
        no_number = unreadable if kind == NUMBER else no_number
    return Column(name, TEXT, pd.Series(np.nan, values.index), no_number)


def readable(table: FileTable, name: str, *, dates: bool) -> Column:
    """Read a column that must hold numbers, or dates where these are allowed."""
    column = read_column(table, name)
    check_readable(table, column, dates=dates)
    return column


def check_readable(table: FileTable, column: Column, *, dates: bool) -> None:
    """Refuse a column without values, or with others than numbers, or dates where these are allowed."""
    if column.kind == EMPTY:
        raise DataError(f"column {column.name!r} of {table.path} holds no values")
    others = column.unreadable
    if len(others) == 0 and (dates or column.kind != DATE):
        return
    row = int(others[0] if len(others) else column.values.index[int(column.values.notna().argmax())])
    value = str(table.frame.at[row, column.name])
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    advice = "correct it, or leave it empty where nothing was measured"
    if re.fullmatch(r"[-+]?[0-9.,' ]+", value):
        decimal = "comma" if table.dialect is not None and table.dialect.decimal == "," else "point"
        advice = f"numbers are read here with a decimal {decimal}: leave out separators of thousands"
    elif column.kind == TEXT or len(others) == 0:
        advice = "choose another column"
    raise DataError(
        f"column {column.name!r} of {table.path} must hold {'numbers or dates' if dates else 'numbers'}, got "
        f"{value!r:.60} in {table.place(row)}{more}; {advice}"
    )


def looks_like_key(column: Column) -> bool:
    """Whether a column numbers the rows, as row numbers and keys of databases do."""
    values = column.values.dropna().to_numpy()
    if column.kind != NUMBER or len(values) < _FEWEST_ROWS_OF_KEYS or np.any(values != np.floor(values)):
        return False
    distinct = np.unique(values)
    if len(distinct) < _DISTINCT_SHARE_OF_KEYS * len(values):
        return False
    consecutive = distinct[-1] - distinct[0] == len(distinct) - 1
    return bool(consecutive or np.abs(values).max() >= _HUGE or _KEY_NAME.search(column.name))


def _numbers(texts: pd.Series, table: FileTable, name: str) -> pd.Series:
    if table.dialect is not None and table.dialect.decimal == ",":
        texts = texts.map(lambda text: str(text).replace(".", " ").replace(",", "."), na_action="ignore")
    return pd.Series(pd.to_numeric(texts, errors="coerce"), dtype=float, name=name)


def _dates(texts: pd.Series, table: FileTable, name: str) -> pd.Series:
    # Dates in the first format that reads most of the column.
    present = texts.dropna().astype(str)
    wanted = _MOSTLY * len(present)
    for form in _DATE_FORMATS:
        if (found := _in_format(present, form)).notna().sum() > wanted:
            return found.reindex(texts.index)
    for day, month in zip(_DAY_FIRST, _MONTH_FIRST, strict=True):
        day_first, month_first = _in_format(present, day), _in_format(present, month)
        if max(day_first.notna().sum(), month_first.notna().sum()) <= wanted:
            continue
        if day_first.notna().all() and month_first.notna().all() and not day_first.equals(month_first):
            raise DataError(
                f"column {name!r} of {table.path} holds dates such as {present.iloc[0]!r} that may begin with the day "
                "or with the month; write them as year-month-day"
            )
        better = day_first if day_first.notna().sum() >= month_first.notna().sum() else month_first
        return better.reindex(texts.index)
    return pd.Series(pd.NaT, texts.index, dtype="datetime64[us]")


def _in_format(present: pd.Series, form: str) -> pd.Series:
    few = present.iloc[:20]
    if len(present) > 1000 and _in_format(few, form).isna().all():
        return pd.Series(pd.NaT, present.index, dtype="datetime64[us]")
    return _without_zone(pd.to_datetime(present, format=form, errors="coerce", utc=True))


def _without_zone(times: pd.Series) -> pd.Series:
    # Times with an offset count in UTC.
    if times.dt.tz is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return times.astype("datetime64[us]")
