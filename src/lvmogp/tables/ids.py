"""Ids of conditions: made plain, told apart by one rule, numbered.

The rule holds for every way in. Scalars of NumPy and pandas and members of enumerations become the plain Python value
that they stand for, tuples element by element; a missing id is refused. The ids of one model never mix True/False with
numbers, at any place of tuples of one length. Two ids are then the same condition exactly where Python calls them
equal: 1 and 1.0 are, 1 and "1" are not, nor are a date and midnight of that day.
"""

import datetime
import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lvmogp.errors import DataError, UnknownConditionError
from lvmogp.typing import HostInt

Id = Hashable
_SIMPLE_ID_TYPES = (str, bool, int, float, datetime.date)
# Members of enumerations and the like become the plain value that a file can hold.
_PLAIN: dict[type, Callable[[Any], Id]] = {bool: bool, str: str.__str__, int: int, float: float}
_ID_TYPES_IN_WORDS = "str, int, float, bool, date, datetime, or tuples of these"
# Their elements have no order that matches rows, or are no ids.
_NO_SEQUENCES = (Set, Mapping, pd.DataFrame, bytes, bytearray, memoryview)
# Beyond, comparing ids to guess what was meant takes long and helps nobody.
_MOST_COMPARED = 100
# An error names no more conditions than fit on its line.
_MOST_NAMED = 3
_MISSING = "a condition id is missing (None or NaN); drop those rows or give them an id"
# What pandas calls Python objects that are all of one kind, whose values are the same id exactly if they are equal.
_OBJECTS_OF_ONE_KIND = ("string", "integer", "boolean")


@dataclass(frozen=True, eq=False)
class RowIds:
    """The id of each row as a number into the different ids, which are in the order of first appearance."""

    distinct: tuple[Id, ...]
    numbers: HostInt

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.numbers)

    def numbers_in(self, known: Sequence[Id]) -> HostInt:
        """Return the number of each row's id in ``known``, −1 where it is unknown."""
        return numbers_of(self.distinct, known)[self.numbers]

    def rows(self) -> dict[Id, HostInt]:
        """Return the rows of each id that has any, in the order of first appearance."""
        ends = np.cumsum(np.bincount(self.numbers, minlength=len(self.distinct)))
        parts = np.split(np.argsort(self.numbers, kind="stable"), ends[:-1])
        return {name: rows for name, rows in zip(self.distinct, parts, strict=False) if len(rows)}


def plain_id(value: Any) -> Id:
    """Return an id as a plain Python value of a type that can be saved."""
    if isinstance(value, np.generic):
        value = value.item() if not isinstance(value, np.datetime64) else pd.Timestamp(value)
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value):
        raise DataError(_MISSING)
    if isinstance(value, tuple):
        return tuple(plain_id(part) for part in value)
    if not isinstance(value, _SIMPLE_ID_TYPES):
        raise DataError(f"a condition id must be {_ID_TYPES_IN_WORDS}, got {type(value).__name__} {value!r:.60}")
    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime()
    return next((plain(value) for kind, plain in _PLAIN.items() if isinstance(value, kind)), value)


def read_ids(values: Iterable[Any]) -> list[Id]:
    """Return condition ids as plain Python values that can be told apart."""
    ids = [plain_id(value) for value in values]
    check_kinds(ids)
    return ids


def check_kinds(ids: Iterable[Id]) -> None:
    """Refuse True/False beside numbers, which would compare equal."""
    ids = list(ids)
    kinds = set(map(type, ids))
    if bool in kinds and kinds & {int, float}:
        raise DataError("condition ids mix True/False with numbers, which compare equal; use strings instead")
    if tuple in kinds:
        # Tuples are equal only to tuples of their length, so each place of those is checked by itself.
        tuples = [value for value in ids if isinstance(value, tuple)]
        for length in set(map(len, tuples)):
            for place in zip(*(value for value in tuples if len(value) == length), strict=True):
                check_kinds(place)


def distinct_ids(ids: Sequence[Id]) -> tuple[Id, ...]:
    """Return each id once, sorted, so that the order of rows does not matter."""
    check_kinds(ids)
    return tuple(sorted(dict.fromkeys(ids), key=_sort_key))


def _sort_key(value: Id) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        return ("tuple", tuple(_sort_key(part) for part in value))
    if isinstance(value, bool | int | float):
        return ("number", value)
    if isinstance(value, datetime.date):
        return ("date", value.isoformat())
    return ("str", value)


def numbers_of(ids: Sequence[Id], known: Sequence[Id]) -> HostInt:
    """Return the numbers of conditions in ``known``, −1 where they are unknown; both obey the rule together."""
    place = {value: number for number, value in enumerate(known)}
    return np.asarray([place.get(value, -1) for value in ids], dtype=int)


def row_ids(values: Iterable[Any]) -> RowIds:
    """Read condition ids, one per row; only the different ones are looked at where these can be found at once."""
    if not isinstance(values, list | np.ndarray | pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        values = list(values)
    numbers, different = _factorised(values)
    if np.any(numbers < 0):
        raise DataError(_MISSING)
    # Different values can be one id: the times of a microsecond, members of an enumeration and their plain value.
    places: dict[Id, int] = {}
    merged = np.asarray([places.setdefault(value, len(places)) for value in read_ids(different)], dtype=int)
    return RowIds(tuple(places), merged[numbers])


def _factorised(values: Any) -> tuple[HostInt, Iterable[Any]]:
    # Number of each row and the different values in order of appearance; every value where they cannot be told at once.
    everything = np.arange(len(values)), values
    if type(values) is list or values.dtype == object or values.dtype.kind == "U":
        kind = None if isinstance(values, pd.MultiIndex) else pd.api.types.infer_dtype(values, skipna=False)
        if kind not in _OBJECTS_OF_ONE_KIND:
            return everything
        values = np.asarray(values, dtype=object)
    elif isinstance(values, np.ndarray):
        # Of other types pandas knows nothing, nor of masks.
        is_known = values.dtype.kind in "iubfM" and values.dtype.isnative and type(values) is np.ndarray
        if not is_known or values.dtype in (np.float16, np.longdouble):
            return everything
    return pd.factorize(values)


def is_single_id(conditions: Any) -> bool:
    """Whether ``conditions`` is one id for all rows; lists, arrays and Series are one id per row."""
    return isinstance(conditions, (*_SIMPLE_ID_TYPES, tuple, np.generic))


def check_sequence(conditions: Any) -> None:
    """Refuse what is neither one id nor a sequence of ids."""
    if isinstance(conditions, np.ndarray) and conditions.ndim != 1:
        shown = f"an array of shape {conditions.shape}"
    elif is_single_id(conditions) or (isinstance(conditions, Iterable) and not isinstance(conditions, _NO_SEQUENCES)):
        return
    else:
        shown = f"{type(conditions).__name__} {conditions!r:.60}"
    raise DataError(f"conditions must be one id, or one id per row, got {shown}")


def row_conditions(conditions: Any, n_rows: int) -> RowIds:
    """Read the condition of each row, from one id for all rows or one per row."""
    if is_single_id(conditions):
        return RowIds((plain_id(conditions),), np.zeros(n_rows, dtype=int))
    check_sequence(conditions)
    ids = row_ids(conditions)
    if len(ids) != n_rows:
        raise DataError(f"conditions has {len(ids)} entries for {n_rows} rows of X; give one id, or one per row")
    return ids


def unknown_condition(value: Id, known: Sequence[Id]) -> UnknownConditionError:
    """Return the error for a condition that the model has never seen."""
    shown = {str(name)[:_MOST_COMPARED]: repr(name)[:_MOST_COMPARED] for name in known}
    close = difflib.get_close_matches(str(value)[:_MOST_COMPARED], list(shown), n=1)
    hint = f" (did you mean {shown[close[0]]}?)" if close else ""
    return UnknownConditionError(
        f"condition {repr(value)[:_MOST_COMPARED]} is not known to the model{hint}; add it with add_condition(name, X, "
        'y), or create the estimator with unseen="prior" to predict it from the prior'
    )


def listed(names: Sequence[Id]) -> str:
    """Name some conditions in words, the first three by their ids."""
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMED])
    return f"{len(names)} conditions ({shown}, …)" if len(names) > _MOST_NAMED else f"condition {shown}"
