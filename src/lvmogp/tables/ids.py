"""Condition ids as users give them, made plain, told apart, numbered."""

import datetime
import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from lvmogp.errors import DataError, UnknownConditionError
from lvmogp.typing import HostInt

Id = Hashable
_SIMPLE_ID_TYPES = (str, bool, int, float, datetime.date)
_ID_TYPES_IN_WORDS = "str, int, float, bool, date, datetime, or tuples of these"
# Their elements have no order that matches rows, or are no ids.
_NO_SEQUENCES = (Set, Mapping, pd.DataFrame, bytes, bytearray, memoryview)
# Beyond, comparing ids to guess what was meant takes long and helps nobody.
_MOST_COMPARED = 100
_MISSING = "a condition id is missing (None or NaN); drop those rows or give them an id"
# What pandas calls Python objects that are all of one kind, whose values are the same id exactly if they are equal.
_OBJECTS_OF_ONE_KIND = ("string", "integer", "boolean")


@dataclass(frozen=True, eq=False)
class RowIds:
    """The id of each row as a number into the different ids, which are in the order of first appearance.

    Ids that compare equal though they are of different kinds, such as 1 and True, stay apart.
    """

    distinct: tuple[Id, ...]
    numbers: HostInt

    def __len__(self) -> int:
        """Rows."""
        return len(self.numbers)

    @property
    def listed(self) -> list[Id]:
        """The id of each row."""
        return [self.distinct[number] for number in self.numbers.tolist()]

    def numbers_in(self, known: Sequence[Id]) -> HostInt:
        """Number of each row's id in ``known``; −1 where unknown."""
        return numbers_of(self.distinct, known)[self.numbers]

    def rows(self) -> dict[Id, HostInt]:
        """Rows of each id, in the order of first appearance."""
        places: dict[Id, int] = {}
        merged = np.asarray([places.setdefault(name, len(places)) for name in self.distinct], dtype=int)[self.numbers]
        order = np.argsort(merged, kind="stable")
        ends = np.cumsum(np.bincount(merged, minlength=len(places)))
        names_with_rows = zip(places, np.split(order, ends[:-1]), strict=True) if places else ()
        return {name: rows for name, rows in names_with_rows if len(rows)}


def read_ids(values: Iterable[Any]) -> list[Id]:
    """Condition ids as plain Python values, each of a type that can be saved."""
    return [plain_id(value) for value in values]


def row_ids(values: Iterable[Any]) -> RowIds:
    """Condition ids, one a row; only the different ones are looked at where equal values are the same id."""
    if not isinstance(values, list | np.ndarray | pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        values = list(values)
    found = _factorised(values)
    if found is None:
        plain = read_ids(values)
        firsts: dict[Any, int] = {}
        numbers = [firsts.setdefault(_kind_key(value), len(firsts)) for value in plain]
        _, rows = np.unique(numbers, return_index=True)
        return RowIds(tuple(plain[row] for row in rows.tolist()), np.asarray(numbers, dtype=int))
    numbers, different = found
    if np.any(numbers < 0):
        raise DataError(_MISSING)
    # Different values can be one id: the times of a microsecond, members of an enumeration and their plain value.
    places: dict[Id, int] = {}
    merged = np.asarray([places.setdefault(value, len(places)) for value in read_ids(different)], dtype=int)
    return RowIds(tuple(places), merged[numbers])


def _factorised(values: Any) -> tuple[HostInt, Iterable[Any]] | None:
    # Number of each row and the different values in order of appearance, where those can be told apart at once.
    if isinstance(values, pd.MultiIndex):
        return None
    if isinstance(values, pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        if values.dtype != object:
            # Any of these will do, though pandas' types do not say so of all of them together.
            numbers, different = pd.factorize(cast(pd.Series, values))
            return numbers, different
        values = values.to_numpy()
    if type(values) is np.ndarray and values.dtype.kind in "iubUfM":
        return _factorised_array(values)
    if type(values) is not list and (type(values) is not np.ndarray or values.dtype != object):
        return None
    if pd.api.types.infer_dtype(values, skipna=False) not in _OBJECTS_OF_ONE_KIND:
        return None
    numbers, different = pd.factorize(np.asarray(values, dtype=object))
    return numbers, different


def _factorised_array(values: np.ndarray) -> tuple[HostInt, Iterable[Any]] | None:
    kind = values.dtype.kind
    if (kind == "f" and values.dtype.itemsize not in (4, 8)) or not values.dtype.isnative:
        return None
    if kind == "M":
        numbers, distinct = pd.factorize(np.ascontiguousarray(values).view(np.int64))
        return numbers, np.asarray(distinct).view(values.dtype)
    numbers, distinct = pd.factorize(values.astype(object) if kind == "U" else values)
    return numbers, distinct


def _kind_key(value: Id) -> Any:
    if isinstance(value, tuple):
        return tuple(_kind_key(part) for part in value)
    return type(value), value


def plain_id(value: Any) -> Id:
    """An id as a plain Python value of a type that can be saved."""
    if isinstance(value, np.generic):
        value = value.item() if not isinstance(value, np.datetime64) else pd.Timestamp(value)
    if value is pd.NaT:
        value = None
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime()
    if isinstance(value, tuple):
        return tuple(plain_id(part) for part in value)
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        raise DataError(_MISSING)
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


def check_sequence(conditions: Any) -> None:
    """Refuse what is neither one id nor a sequence of ids."""
    if is_single_id(conditions):
        return
    if isinstance(conditions, np.ndarray) and conditions.ndim != 1:
        raise DataError(f"conditions must be one id, or one id a row, got an array of shape {conditions.shape}")
    if isinstance(conditions, _NO_SEQUENCES) or not isinstance(conditions, Iterable):
        raise DataError(
            f"conditions must be one id, or one id a row, got {type(conditions).__name__} {conditions!r:.60}"
        )


def row_conditions(conditions: Any, n_rows: int) -> RowIds:
    """The condition of each row, from one id for all rows or one a row."""
    if is_single_id(conditions):
        return RowIds((plain_id(conditions),), np.zeros(n_rows, dtype=int))
    check_sequence(conditions)
    ids = row_ids(conditions)
    if len(ids) != n_rows:
        raise DataError(f"conditions has {len(ids)} entries for {n_rows} rows of X; give one id, or one a row")
    return ids


def distinct_ids(ids: Sequence[Id]) -> tuple[Id, ...]:
    """Each id once, sorted, so that the order of rows does not matter."""
    check_kinds(ids)
    return tuple(sorted(dict.fromkeys(ids), key=_sort_key))


def check_kinds(ids: Sequence[Id]) -> None:
    """Refuse ids that would compare equal though they are of different kinds."""
    # Tuples are equal only to tuples of their length, so each place of those is checked by itself.
    kinds = set(map(type, ids))
    if bool in kinds and kinds & {int, float}:
        raise DataError("condition ids mix True/False with numbers, which compare equal; use strings instead")
    if tuple in kinds:
        tuples = [value for value in ids if isinstance(value, tuple)]
        for length in set(map(len, tuples)):
            for place in zip(*(value for value in tuples if len(value) == length), strict=True):
                check_kinds(place)


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
    shown = {str(name)[:_MOST_COMPARED]: repr(name)[:_MOST_COMPARED] for name in known}
    close = difflib.get_close_matches(str(value)[:_MOST_COMPARED], list(shown), n=1)
    hint = f" (did you mean {shown[close[0]]}?)" if close else ""
    return UnknownConditionError(
        f"condition {repr(value)[:_MOST_COMPARED]} is not known to the model{hint}; add it with add_condition(name, X, "
        'y), or create the estimator with unseen="prior" to predict it from the prior'
    )


def listed(names: list[Id]) -> str:
    """Some conditions in words, the first three by name."""
    shown = ", ".join(repr(name) for name in names[:3])
    return f"{len(names)} conditions ({shown}, …)" if len(names) > 3 else f"condition {shown}"
