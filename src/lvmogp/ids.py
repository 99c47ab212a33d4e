"""Condition ids as users give them, made plain, told apart, numbered."""

import datetime
import difflib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lvmogp.errors import DataError, UnknownConditionError
from lvmogp.typing import HostInt

Id = Hashable
_SIMPLE_ID_TYPES = (str, bool, int, float, datetime.date)
_ID_TYPES_IN_WORDS = "str, int, float, bool, date, datetime, or tuples of these"


def read_ids(values: Iterable[Any]) -> list[Id]:
    """Condition ids as plain Python values, each of a type that can be saved."""
    return [plain_id(value) for value in values]


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
        return [plain_id(conditions)] * n_rows
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
    close = difflib.get_close_matches(str(value), [str(name) for name in known], n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return UnknownConditionError(
        f"condition {value!r} is not known to the model{hint}; add it with add_condition(name, X, y), or create the "
        'estimator with unseen="prior" to predict it from the prior'
    )
