"""Ids of conditions in users' files: text, or whole numbers; which of them are one id is for ``lvmogp.tables.ids``.

A Parquet file says by the type of a column whether its ids are whole numbers. In CSV and Excel files they are if every
one of them is written so, without leading zeros. Any other id is the text that stands in the file.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from lvmogp.errors import UnknownConditionError
from lvmogp.tables.ids import Id

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")  # digits of other scripts are text


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


def holds_whole_numbers(values: pd.Series) -> bool:
    """Whether a column holds whole numbers, however missing ones are marked."""
    return pd.api.types.infer_dtype(values.astype(object), skipna=True) == "integer"


def known_ids(ids: Iterable[Id], known: Sequence[Id], *, advice: str = "") -> list[Id]:
    """Return the model's own ids for those of a file or a command; unknown ones are an error, with advice."""
    by_text = {str(name): name for name in known}
    found: list[Id] = []
    for text in map(str, ids):
        if text not in by_text:
            close = difflib.get_close_matches(text, by_text, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise UnknownConditionError(
                f"the model knows no condition {text!r}{hint}; add it with 'lvmogp add-condition'{advice}"
            )
        found.append(by_text[text])
    return found


def new_ids(ids: Sequence[Id], known: Sequence[Id]) -> list[Id]:
    """Return ids that may be new to a model: whole numbers if all of its own are and all of these too, else text."""
    if not all(isinstance(name, int) for name in (*known, *ids)):
        ids = [str(name) for name in ids]
    by_text = {str(name): name for name in known}
    return [by_text.get(str(name), name) for name in ids]
