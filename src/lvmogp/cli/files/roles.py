"""The roles of a table's columns, and the rows that have all that these need."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lvmogp.cli.files.columns import DATE, EMPTY, TEXT, Column, id_texts, ids_of_texts, model_ids, read_column
from lvmogp.cli.files.tables import FileTable, is_parquet, read_table
from lvmogp.errors import DataError
from lvmogp.tables.ids import Id


class Roles(NamedTuple):
    """Which columns are what; without inputs, all others of numbers or dates are. ``errors`` are of measurements."""

    inputs: tuple[str, ...] = ()
    condition: str | None = None
    output: str | None = None
    errors: str | None = None


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
    others = [name for name in roles[1:] if name is not None]
    table.check_columns([*roles.inputs, *others])
    inputs, ignored = [_input(table, name, dates) for name in roles.inputs], ()
    if not inputs:
        inputs, ignored = _other_inputs(table, others)
    columns = {column.name: column.values for column in inputs}
    if roles.condition is not None:
        columns[roles.condition] = id_texts(table.column(roles.condition))
    for name in (roles.output, roles.errors):
        if name is not None:
            columns[name] = read_column(table, name).checked(dates=False).values
    kept, left_out = _kept(table, columns, list(columns))
    ids = None
    if roles.condition is not None:
        kinds = pd.api.types.infer_dtype(table.column(roles.condition).astype(object), skipna=True)
        ids = ids_of_texts(kept[roles.condition].tolist(), whole=kinds == "integer" if is_parquet(table.path) else None)
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
    table.check_columns(inputs)
    names = list(inputs) or [str(table.frame.columns[0])]
    chosen = [read_column(table, name).checked(dates=True) for name in names]
    others = [read_column(table, str(name)) for name in table.frame.columns if name not in names]
    ignored = tuple(column.name for column in others if column.kind in (TEXT, EMPTY))
    outputs = {column.name: column.checked(dates=False).values for column in others if column.name not in ignored}
    if not outputs:
        raise DataError(f"{table.path} has no column of numbers beside {', '.join(names)}; is it in long form?")
    kept, left_out = _kept(table, {column.name: column.values for column in chosen} | outputs, names)
    y = kept[list(outputs)].set_axis(pd.Index(ids_of_texts(list(outputs)), dtype=object), axis=1)
    dates = tuple(column.name for column in chosen if column.kind == DATE)
    return CompleteRows(kept[names], y, None, None, dates, ignored, len(table.frame), left_out)


def _kept(table: FileTable, columns: dict[str, pd.Series], needed: list[str]) -> tuple[pd.DataFrame, dict[str, int]]:
    # Rows in which nothing that is needed is missing, and how many lack what.
    frame = pd.DataFrame(columns)
    absent = frame[needed].isna()
    kept = frame[~absent.any(axis=1)].reset_index(drop=True)
    if len(kept) == 0:
        raise DataError(f"no row of {table.path} has all of {', '.join(needed)}")
    return kept, {str(name): int(count) for name, count in absent.sum().items() if count}


def _input(table: FileTable, name: str, dates: Sequence[str] | None) -> Column:
    column = read_column(table, name).checked(dates=dates is None or name in dates)
    if dates is not None and name in dates and column.kind != DATE:
        raise DataError(f"column {name!r} of {table.path} must hold dates, as those the model was fitted to")
    return column


def _other_inputs(table: FileTable, taken: Sequence[str]) -> tuple[list[Column], tuple[str, ...]]:
    # All columns of numbers or dates without another role, and those that are neither.
    columns = [read_column(table, str(name)) for name in table.frame.columns if name not in taken]
    chosen = [column for column in columns if column.kind not in (TEXT, EMPTY)]
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
    index = pd.Index(model_ids(ids_of_texts(texts.tolist()), known), dtype=object, tupleize_cols=False)
    return pd.DataFrame(columns).set_axis(index, axis=0)


def _feature(table: FileTable, name: str) -> pd.Series:
    values = table.column(name)
    if pd.api.types.is_bool_dtype(values):
        return values
    column = read_column(table, name)
    return id_texts(values) if column.kind == TEXT else column.checked(dates=True).values
