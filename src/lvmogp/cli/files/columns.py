"""What the values of a table's column are: numbers, dates, other text, or ids of conditions.

Ids are text or whole numbers; which of them are one id is for ``lvmogp.tables.ids``. A Parquet file says by the type of
a column whether its ids are whole numbers. In CSV and Excel files they are if every one of them is written so, without
leading zeros. Any other id is the text that stands in the file.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.tables import MISSING, FileTable
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
_FEWEST_ROWS_OF_KEYS = 20
_DISTINCT_SHARE_OF_KEYS = 0.95
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
        if self.kind != NUMBER or len(values) < _FEWEST_ROWS_OF_KEYS or np.any(values != np.floor(values)):
            return False
        distinct = np.unique(values)
        if len(distinct) < _DISTINCT_SHARE_OF_KEYS * len(values):
            return False
        consecutive = distinct[-1] - distinct[0] == len(distinct) - 1
        return bool(consecutive or np.abs(values).max() >= _HUGE or _KEY_NAME.search(self.name))


def read_column(table: FileTable, name: str) -> Column:
    """Find out what a column holds; one that is mostly numbers or dates is taken as meant to be that."""
    values = table.column(name)
    none = values.index[:0]
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return Column(table, name, DATE, _without_zone(values), none)
    if pd.api.types.is_numeric_dtype(values.dtype):
        return Column(table, name, EMPTY if values.isna().all() else NUMBER, values.astype(float), none)
    objects = values.astype(object)
    absent = values.isna() | objects.isin(MISSING)
    nothing = pd.Series(np.nan, values.index)
    if absent.all():
        return Column(table, name, EMPTY, nothing, none)
    texts = pd.Series(objects.where(~absent, None))
    numbers = _numbers(texts, table)
    no_numbers = values.index[(numbers.isna() & ~absent).to_numpy()]
    if len(no_numbers) < _MOSTLY * (~absent).sum():
        return Column(table, name, NUMBER, numbers, no_numbers)
    dates = _dates(texts.dropna().astype(str), table, name)
    if dates is None:
        return Column(table, name, TEXT, nothing, no_numbers)
    return Column(table, name, DATE, dates.reindex(values.index), dates.index[dates.isna().to_numpy()])


def _numbers(texts: pd.Series, table: FileTable) -> pd.Series:
    if table.dialect is not None and table.dialect.decimal == ",":
        texts = texts.map(lambda text: str(text).replace(".", " ").replace(",", "."), na_action="ignore")
    return pd.Series(pd.to_numeric(texts, errors="coerce"), dtype=float)


def _dates(texts: pd.Series, table: FileTable, name: str) -> pd.Series | None:
    # Dates in the first format that reads most of the column.
    for forms in _DATE_FORMATS:
        found = [_in_format(texts, form) for form in forms]
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


def _in_format(texts: pd.Series, form: str) -> pd.Series:
    if len(texts) > 1000 and _in_format(texts.iloc[:20], form).isna().all():
        return pd.Series(pd.NaT, texts.index, dtype="datetime64[us]")
    return _without_zone(pd.to_datetime(texts, format=form, errors="coerce", utc=True))


def _without_zone(times: pd.Series) -> pd.Series:
    # Times with an offset count in UTC.
    if times.dt.tz is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return times.astype("datetime64[us]")


# Ids


def id_texts(values: pd.Series) -> pd.Series:
    """Return ids as text without surrounding blanks, ``None`` where there is none."""
    # As objects, since whole numbers beside empty cells would become floats on the way, and lose digits.
    texts = [None if each is None or each is pd.NA or each != each else _text(each) for each in values.astype(object)]
    return pd.Series([text or None for text in texts], values.index, dtype=object, name=values.name)


def _text(value: Any) -> str:
    # In an Excel sheet a whole number may be kept as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


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
        close = difflib.get_close_matches(unknown[0], by_text, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownConditionError(
            f"the model knows no condition {unknown[0]!r}{hint}; add it with 'lvmogp add-condition', or predict it "
            "from the prior with --unseen prior"
        )
    return [by_text.get(str(name), name) for name in ids]
