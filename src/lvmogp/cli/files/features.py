"""A file with one row a condition: its id, and what is known of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lvmogp.cli.files.columns import TEXT, read_column, readable
from lvmogp.cli.files.roles import new_ids
from lvmogp.cli.files.tables import Table, check_columns, id_texts, read_table
from lvmogp.errors import DataError


def read_features(path: Path, *, condition: str | None, known: Sequence[Any]) -> pd.DataFrame:
    """Features with the conditions' ids as the index; ids that are ``known`` become those of the model.

    The column of ids is named as in the data, or ``condition`` where these have none. Columns of numbers or dates are
    that, others are categories.
    """
    name = "condition" if condition is None else condition
    table = read_table(path, ids=[name])
    check_columns(table, [name])
    texts = id_texts(table.column(name))
    without = np.flatnonzero(texts == "")
    if len(without):
        row = int(texts.index[int(without[0])])
        raise DataError(f"{path} has no id in column {name!r} in {table.place(row)}; each row needs one")
    columns = {str(other): _values(table, str(other)) for other in table.frame.columns if other != name}
    index = pd.Index(new_ids(texts.tolist(), known), dtype=object, tupleize_cols=False)
    return pd.DataFrame(columns).set_axis(index, axis=0)


def _values(table: Table, name: str) -> pd.Series:
    if pd.api.types.is_bool_dtype(table.column(name)):
        return table.column(name)
    if read_column(table, name).kind != TEXT:
        return readable(table, name, dates=True).values
    levels = id_texts(table.column(name))
    return levels.where(levels != "", None)
