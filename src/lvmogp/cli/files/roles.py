"""The roles of a table's columns, and the rows that have all that these need."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lvmogp.cli.files.columns import (
    DATE,
    EMPTY,
    TEXT,
    Column,
    check_readable,
    looks_like_key,
    read_column,
    readable,
)
from lvmogp.cli.files.ids import holds_whole_numbers, id_texts, ids_of_texts, new_ids
from lvmogp.cli.files.tables import FileTable, is_parquet, read_table
from lvmogp.errors import DataError
from lvmogp.tables.ids import Id


class Roles(NamedTuple):
    """Which columns are what; without inputs, all others of numbers or dates are. ``errors`` are of measurements."""

    inputs: tuple[str, ...] = ()
    condition: str | None = None
    output: str | None = None
    errors: str | None = None

    @property
    def others(self) -> list[str]:
        """Columns that are no inputs."""
        return [name for name in self[1:] if name is not None]


class CompleteRows(NamedTuple):
    """Rows of a table in which nothing is missing, as the estimator takes them, and what became of the others."""

    X: pd.DataFrame
    y: pd.Series | pd.DataFrame | None  # a column per condition in wide form
    ids: list[Id] | None
    y_std: pd.Series | None
    dates: tuple[str, ...]
    ignored: tuple[str, ...]
    n_rows: int
    left_out: dict[str, int]

    @property
    def conditions(self) -> list[Id]:
        """Each condition once."""
        return list(self.y.columns) if isinstance(self.y, pd.DataFrame) else list(dict.fromkeys(self.ids or ()))

    @property
    def n_points(self) -> int:
        """Outputs that are there."""
        return 0 if self.y is None else int(self.y.notna().to_numpy().sum())


def complete_rows(table: FileTable, roles: Roles, *, dates: Sequence[str] | None = None) -> CompleteRows:
    """Read the columns that have a role, one row per observation; ``dates`` says which inputs must be dates."""
    _check_named(table, [*roles.inputs, *roles.others])
    inputs, ignored = [_input(table, name, dates) for name in roles.inputs], ()
    if not inputs:
        inputs, ignored = _other_inputs(table, roles.others)
    columns = {column.name: column.values for column in inputs}
    if roles.condition is not None:
        columns[roles.condition] = id_texts(table.column(roles.condition))
    for name in (roles.output, roles.errors):
        if name is not None:
            columns[name] = readable(table, name, dates=False).values
    kept, left_out = _kept(table, pd.DataFrame(columns), list(columns))
    ids = None
    if roles.condition is not None:
        whole = holds_whole_numbers(table.column(roles.condition)) if is_parquet(table.path) else None
        ids = ids_of_texts(kept[roles.condition].tolist(), whole=whole)
    return CompleteRows(
        pd.DataFrame(kept[[column.name for column in inputs]]),
        None if roles.output is None else pd.Series(kept[roles.output]),
        ids,
        None if roles.errors is None else pd.Series(kept[roles.errors]),
        tuple(column.name for column in inputs if column.kind == DATE),
        ignored,
        len(table.frame),
        left_out,
    )


def wide_rows(table: FileTable, inputs: Sequence[str]) -> CompleteRows:
    """Read one column per condition beside the inputs, which are the first column unless named."""
    _check_named(table, inputs)
    names = list(inputs) or [str(table.frame.columns[0])]
    chosen = [readable(table, name, dates=True) for name in names]
    others = [str(name) for name in table.frame.columns if name not in names]
    ignored = [name for name in others if read_column(table, name).kind in (TEXT, EMPTY)]
    outputs = {name: readable(table, name, dates=False).values for name in others if name not in ignored}
    if not outputs:
        raise DataError(f"{table.path} has no column of numbers beside {', '.join(names)}; is it in long form?")
    columns = {column.name: column.values for column in chosen}
    kept, left_out = _kept(table, pd.DataFrame(columns | outputs), names)
    y = kept[list(outputs)].set_axis(pd.Index(ids_of_texts(list(outputs)), dtype=object), axis=1)
    dates = tuple(column.name for column in chosen if column.kind == DATE)
    return CompleteRows(kept[names], y, None, None, dates, tuple(ignored), len(table.frame), left_out)


def _check_named(table: FileTable, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"column {name!r} was named twice; output, condition and inputs must be different columns")
    table.check_columns(names)


def _kept(table: FileTable, columns: pd.DataFrame, needed: list[str]) -> tuple[pd.DataFrame, dict[str, int]]:
    # Rows in which nothing that is needed is missing, and how many lack what.
    absent = columns[needed].isna()
    kept = columns[~absent.any(axis=1)].reset_index(drop=True)
    if len(kept) == 0:
        raise DataError(f"no row of {table.path} has all of {', '.join(needed)}")
    return kept, {str(name): int(count) for name, count in absent.sum().items() if count}


def _input(table: FileTable, name: str, dates: Sequence[str] | None) -> Column:
    column = readable(table, name, dates=dates is None or name in dates)
    if dates is not None and name in dates and column.kind != DATE:
        raise DataError(f"column {name!r} of {table.path} must hold dates, as those the model was fitted to")
    return column


def _other_inputs(table: FileTable, taken: Sequence[str]) -> tuple[list[Column], tuple[str, ...]]:
    # All columns of numbers or dates without another role, and those that are neither.
    columns = [read_column(table, str(name)) for name in table.frame.columns if name not in taken]
    chosen = [column for column in columns if column.kind not in (TEXT, EMPTY)]
    for column in chosen:
        try:
            check_readable(table, column, dates=True)
        except DataError as error:
            raise DataError(f"{error}; or leave the column out by naming the inputs with --input") from None
        if looks_like_key(column):
            raise DataError(
                f"column {column.name!r} of {table.path} looks like a row number or key ({column.values.nunique()} "
                f"different whole numbers in {len(column.values)} rows), not like an input; name the inputs with "
                "--input"
            )
    if not chosen:
        raise DataError(
            f"{table.path} has no column of numbers or dates left to be an input beside {' and '.join(taken)}"
        )
    return chosen, tuple(column.name for column in columns if column.kind in (TEXT, EMPTY))


def read_features(path: Path, *, condition: str | None, known: Sequence[Id]) -> pd.DataFrame:
    """Read a file with one row per condition, whose ids become the index; those that are ``known`` become the model's.

    The column of ids is named as in the data, or ``condition`` where these have none. Columns of numbers or dates are
    that, others are categories.
    """
    name = "condition" if condition is None else condition
    table = read_table(path, ids=[name])
    table.check_columns([name])
    texts = id_texts(table.column(name))
    if texts.isna().any():
        row = int(texts.index[int(texts.isna().argmax())])
        raise DataError(f"{path} has no id in column {name!r} in {table.place(row)}; each row needs one")
    columns = {str(other): _feature(table, str(other)) for other in table.frame.columns if other != name}
    index = pd.Index(new_ids(ids_of_texts(texts.tolist()), known), dtype=object, tupleize_cols=False)
    return pd.DataFrame(columns).set_axis(index, axis=0)


def _feature(table: FileTable, name: str) -> pd.Series:
    if pd.api.types.is_bool_dtype(table.column(name)):
        return table.column(name)
    if read_column(table, name).kind != TEXT:
        return readable(table, name, dates=True).values
    return id_texts(table.column(name))
