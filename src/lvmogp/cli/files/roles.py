"""What a table's columns hold (numbers, dates, text, ids of conditions), their roles, and the rows that have all of it.

Ids are text or whole numbers; which of them are one id is for ``lvmogp.tables.ids``. A Parquet file says by the type of
a column whether its ids are whole numbers. In CSV and Excel files they are if every one of them is written so, without
leading zeros. Any other id is the text that stands in the file.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.tables import MISSING, FileTable, hint, is_parquet, read_table
from lvmogp.errors import DataError, UnknownConditionError
from lvmogp.tables.ids import Id

NUMBER, DATE, TEXT, EMPTY = "number", "date", "text", "empty"
_DATES = ("%d.%m.%Y", "%Y/%m/%d", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S")
# Those that the same text may fit stand together.
_DATE_FORMATS = (
    ("ISO8601",),
    *((date + time,) for date in _DATES for time in _TIMES),
    *(("%d/%m/%Y" + time, "%m/%d/%Y" + time) for time in _TIMES),
)
_MOSTLY = 0.5
# A whole number for each row is a row number or a key rather than a measurement …
_FEWEST_KEYS, _DISTINCT_SHARE = 20, 0.95
# … if the numbers follow each other, are huge, or if the column is called so.
_HUGE = 1_000_000
_KEY_NAME = re.compile(r"(?:^|[_\W])(?:id|key|index|idx|row|nr|no|number|uuid|serial)(?:$|[_\W\d])", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")  # digits of other scripts are text


class Column(NamedTuple):
    """A column as numbers or dates, missing where it has none; ``unreadable`` lists rows with other text."""

    table: FileTable
    name: str
    kind: str
    values: pd.Series
    unreadable: pd.Index

    def checked(self, *, dates: bool) -> "Column":
        """Refuse a column without values, or with others than numbers, or dates where these are allowed."""
        table, others = self.table, self.unreadable
        if self.kind == EMPTY:
            raise DataError(f"column {self.name!r} of {table.path} holds no values")
        if len(others) == 0 and (dates or self.kind != DATE):
            return self
        row = int(others[0] if len(others) else self.values.index[int(self.values.notna().argmax())])
        value = str(table.frame.at[row, self.name])
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        advice = "correct it, or leave it empty where nothing was measured"
        if re.fullmatch(r"[-+]?[0-9.,' ]+", value):
            mark = "point" if table.dialect is None else table.dialect.mark
            advice = f"numbers are read here with a decimal {mark}: leave out separators of thousands"
        elif self.kind == TEXT or len(others) == 0:
            advice = "choose another column"
        raise DataError(
            f"column {self.name!r} of {table.path} must hold {'numbers or dates' if dates else 'numbers'}, got "
            f"{value!r:.60} in {table.place(row)}{more}; {advice}"
        )

    @property
    def looks_like_key(self) -> bool:
        """Whether a column numbers the rows, as row numbers and keys of databases do."""
        values = self.values.dropna().to_numpy()
        if self.kind != NUMBER or len(values) < _FEWEST_KEYS or np.any(values != np.floor(values)):
            return False
        distinct = np.unique(values)
        if len(distinct) < _DISTINCT_SHARE * len(values):
            return False
        consecutive = distinct[-1] - distinct[0] == len(distinct) - 1
        return bool(consecutive or np.abs(values).max() >= _HUGE or _KEY_NAME.search(self.name))


def read_column(table: FileTable, name: str) -> Column:
    """Find out what a column holds; one that is mostly numbers or dates is taken as meant to be that."""
    values = table.frame[name]
    none = values.index[:0]
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return Column(table, name, DATE, _times(values), none)
    if pd.api.types.is_numeric_dtype(values.dtype):
        return Column(table, name, EMPTY if values.isna().all() else NUMBER, values.astype(float), none)
    objects = values.astype(object)
    texts = pd.Series(objects[values.notna() & ~objects.isin(MISSING)])
    written = texts
    if table.dialect is not None and table.dialect.decimal == ",":
        written = texts.map(lambda text: str(text).replace(".", " ").replace(",", "."))
    kind, found = NUMBER, pd.Series(pd.to_numeric(written, errors="coerce"), dtype=float)
    if found.isna().sum() >= _MOSTLY * len(texts):
        dates = _dates(texts.astype(str), table, name)
        kind, found = (TEXT, found) if dates is None else (DATE, dates)
    unreadable = found.index[found.isna().to_numpy()]
    return Column(table, name, kind if len(texts) else EMPTY, found.reindex(values.index), unreadable)


def _dates(texts: pd.Series, table: FileTable, name: str) -> pd.Series | None:
    # Dates in the first format that reads most of the column.
    for forms in _DATE_FORMATS:
        if len(texts) > 1000 and all(_times(texts.iloc[:20], form).isna().all() for form in forms):
            continue
        found = [_times(texts, form) for form in forms]
        best = max(found, key=lambda dates: dates.notna().sum())
        if best.notna().sum() <= _MOSTLY * len(texts):
            continue
        if all(dates.notna().all() for dates in found) and not all(dates.equals(best) for dates in found):
            raise DataError(
                f"column {name!r} of {table.path} holds dates such as {texts.iloc[0]!r} that may begin with the day "
                "or with the month; write them as year-month-day"
            )
        return best
    return None


def _times(values: pd.Series, form: str | None = None) -> pd.Series:
    # Times with an offset count in UTC; what is no time in this format is missing.
    times = pd.to_datetime(values, format=form, errors="coerce", utc=True)
    return times.dt.tz_localize(None).astype("datetime64[us]")


# Ids


def id_texts(values: pd.Series) -> pd.Series:
    """Return ids as text without surrounding blanks, ``None`` where there is none."""
    # As objects, since whole numbers beside empty cells would become floats on the way, and lose digits.
    objects = values.astype(object).where(values.notna(), "")
    # In an Excel sheet a whole number may be kept as a float.
    whole = [int(each) if isinstance(each, float) and each.is_integer() else each for each in objects]
    return pd.Series([str(each).strip() or None for each in whole], values.index, dtype=object, name=values.name)


def ids_of_texts(texts: Sequence[str], *, whole: bool | None = None) -> list[Id]:
    """Return ids as whole numbers or as text; ``whole`` says which, else how all of them are written."""
    if whole is None:
        whole = all(_WHOLE_NUMBER.fullmatch(text) for text in set(texts))
    return [int(text) for text in texts] if whole else list(texts)


def model_ids(ids: Sequence[Id], known: Sequence[Id], *, may_be_new: bool = True) -> list[Id]:
    """Return the model's own ids for those of a file or a command.

    New ones are whole numbers if all of the model's are and all of these too, else text; or an error.
    """
    if not all(isinstance(name, int) for name in (*known, *ids)):
        ids = [str(name) for name in ids]
    by_text = {str(name): name for name in known}
    unknown = [str(name) for name in ids if str(name) not in by_text]
    if unknown and not may_be_new:
        raise UnknownConditionError(
            f"the model knows no condition {unknown[0]!r}{hint(unknown[0], by_text)}; add it with 'lvmogp "
            "add-condition', or predict it from the prior with --unseen prior"
        )
    return [by_text.get(str(name), name) for name in ids]


class Roles(NamedTuple):
    """Which columns are what; without inputs, all others of numbers or dates are. ``errors`` are of measurements."""

    inputs: tuple[str, ...] = ()
    condition: str | None = None
    output: str | None = None
    errors: str | None = None


class CompleteRows(NamedTuple):
    """Rows of a table in which nothing is missing, as the estimator takes them, and how many others lack what."""

    X: pd.DataFrame
    y: pd.Series | pd.DataFrame | None  # a column per condition in wide form
    left_out: dict[str, int]
    ids: list[Id] | None = None
    y_std: pd.Series | None = None
    ignored: tuple[str, ...] = ()  # columns that are neither numbers nor dates


def complete_rows(table: FileTable, roles: Roles, *, dates: Sequence[str] | None = None) -> CompleteRows:
    """Read the columns that have a role, one row per observation; ``dates`` says which inputs must be dates."""
    others = [name for name in roles[1:] if name is not None]
    table.check_columns([*roles.inputs, *others])
    if roles.inputs:
        columns, ignored = {name: _input(table, name, dates) for name in roles.inputs}, ()
    else:
        columns, ignored = _other_inputs(table, others)
    inputs = list(columns)
    if roles.condition is not None:
        columns[roles.condition] = id_texts(table.frame[roles.condition])
    for name in (roles.output, roles.errors):
        if name is not None:
            columns[name] = read_column(table, name).checked(dates=False).values
    kept, left_out = _kept(table, columns, list(columns))
    ids = None
    if roles.condition is not None:
        kinds = pd.api.types.infer_dtype(table.frame[roles.condition].astype(object), skipna=True)
        ids = ids_of_texts(kept[roles.condition].tolist(), whole=kinds == "integer" if is_parquet(table.path) else None)
    y, y_std = (None if name is None else pd.Series(kept[name]) for name in (roles.output, roles.errors))
    return CompleteRows(kept[inputs], y, left_out, ids, y_std, ignored)


def wide_rows(table: FileTable, inputs: Sequence[str]) -> CompleteRows:
    """Read one column per condition beside the inputs, which are the first column unless named."""
    table.check_columns(inputs)
    names = list(inputs) or [str(table.frame.columns[0])]
    columns = {name: _input(table, name, None) for name in names}
    others, ignored = _usable(table, names)
    if not others:
        raise DataError(f"{table.path} has no column of numbers beside {', '.join(names)}; is it in long form?")
    outputs = {column.name: column.checked(dates=False).values for column in others}
    kept, left_out = _kept(table, columns | outputs, names)
    y = kept[list(outputs)].set_axis(pd.Index(ids_of_texts(list(outputs)), dtype=object), axis=1)
    return CompleteRows(kept[names], y, left_out, ignored=ignored)


def _kept(table: FileTable, columns: dict[str, pd.Series], needed: list[str]) -> tuple[pd.DataFrame, dict[str, int]]:
    # Rows in which nothing that is needed is missing, and how many lack what.
    frame = pd.DataFrame(columns)
    absent = frame[needed].isna()
    kept = frame[~absent.any(axis=1)].reset_index(drop=True)
    if len(kept) == 0:
        raise DataError(f"no row of {table.path} has all of {', '.join(needed)}")
    return kept, {str(name): int(count) for name, count in absent.sum().items() if count}


def _input(table: FileTable, name: str, dates: Sequence[str] | None) -> pd.Series:
    column = read_column(table, name).checked(dates=dates is None or name in dates)
    if dates is not None and name in dates and column.kind != DATE:
        raise DataError(f"column {name!r} of {table.path} must hold dates, as those the model was fitted to")
    return column.values


def _usable(table: FileTable, taken: Sequence[str]) -> tuple[list[Column], tuple[str, ...]]:
    # Columns of numbers or dates without another role, and the names of those that are neither.
    columns = [read_column(table, str(name)) for name in table.frame.columns if name not in taken]
    ignored = tuple(column.name for column in columns if column.kind in (TEXT, EMPTY))
    return [column for column in columns if column.name not in ignored], ignored


def _other_inputs(table: FileTable, taken: Sequence[str]) -> tuple[dict[str, pd.Series], tuple[str, ...]]:
    chosen, ignored = _usable(table, taken)
    for column in chosen:
        try:
            column.checked(dates=True)
        except DataError as error:
            raise DataError(f"{error}; or leave the column out by naming the inputs with --input") from None
        if column.looks_like_key:
            raise DataError(
                f"column {column.name!r} of {table.path} looks like a row number or key ({column.values.nunique()} "
                f"different whole numbers in {len(column.values)} rows), not like an input; name the inputs with "
                "--input"
            )
    if not chosen:
        beside = " and ".join(taken)
        raise DataError(f"{table.path} has no column of numbers or dates left to be an input beside {beside}")
    return {column.name: column.values for column in chosen}, ignored


def read_features(path: Path | None, *, condition: str | None, known: Sequence[Id]) -> pd.DataFrame | None:
    """Read a file with one row per condition, if there is one; ids become the index, those ``known`` the model's own.

    The column of ids is named as in the data, or ``condition`` where these have none. Columns of numbers or dates are
    that, others are categories.
    """
    if path is None:
        return None
    name = condition or "condition"
    table = read_table(path, ids=[name])
    table.check_columns([name])
    texts = id_texts(table.frame[name])
    if texts.isna().any():
        row = int(texts.index[int(texts.isna().argmax())])
        raise DataError(f"{path} has no id in column {name!r} in {table.place(row)}; each row needs one")
    columns = {str(other): _feature(table, str(other)) for other in table.frame.columns if other != name}
    index = pd.Index(model_ids(ids_of_texts(texts.tolist()), known), dtype=object, tupleize_cols=False)
    return pd.DataFrame(columns).set_axis(index, axis=0)


def _feature(table: FileTable, name: str) -> pd.Series:
    values = table.frame[name]
    if pd.api.types.is_bool_dtype(values):
        return values
    column = read_column(table, name)
    return id_texts(values) if column.kind == TEXT else column.checked(dates=True).values
