"""The parts that the columns of a user's table play: inputs, output, condition."""

import difflib
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from lvmogp.cli.files.columns import DATE, EMPTY, TEXT, Column, looks_like_key, read_column, readable
from lvmogp.cli.files.tables import Table, as_ids, check_columns, id_texts
from lvmogp.errors import DataError, LVMOGPWarning, UnknownConditionError


class Training(NamedTuple):
    """What a table says, ready for ``LVMOGPRegressor.fit(X, y)``, and what was made of it."""

    X: pd.DataFrame
    y: pd.Series | pd.DataFrame
    inputs: tuple[str, ...]
    dates: tuple[str, ...]
    n_points: int
    n_conditions: int
    n_rows: int
    left_out: dict[str, int]
    ignored: tuple[str, ...]
    errors: pd.Series | None = None


class Rows(NamedTuple):
    """Rows to predict or to learn a new condition from; ``condition`` is the text of each row's id, if known."""

    X: pd.DataFrame
    condition: list[str] | None
    y: pd.Series | None
    left_out: dict[str, int]
    errors: pd.Series | None = None


def long_form(
    table: Table, *, output: str, condition: str, inputs: Sequence[str], errors: str | None = None
) -> Training:
    """One row an observation; without named inputs, all other columns of numbers or dates.

    ``errors`` names a column with the standard deviations of the measurements.
    """
    taken = [output, condition, *([] if errors is None else [errors])]
    _check_roles([*taken, *inputs])
    check_columns(table, [*taken, *inputs])
    observed = readable(table, output, dates=False).values
    texts = id_texts(table.column(condition))
    chosen, ignored = _inputs(table, inputs, taken)
    absent = {output: observed.isna(), condition: texts == "", **{each.name: each.values.isna() for each in chosen}}
    deviations = None if errors is None else readable(table, errors, dates=False).values
    if errors is not None and deviations is not None:
        absent[errors] = deviations.isna()
    kept, left_out = _kept(table, absent)
    ids = as_ids(texts[kept].tolist())
    n_conditions = len(set(ids))
    if n_conditions == len(ids) > 1:
        warnings.warn(
            f"each of the {len(ids)} rows has a {condition!r} of its own, so nothing can be learnt about any one of "
            "them; is it the right column?",
            LVMOGPWarning,
            stacklevel=2,
        )
    X = _frame(chosen, kept).assign(**{condition: pd.Series(ids, dtype=object)})
    y = _observed(observed, kept, output)
    names, dates = _names(chosen)
    known = None if deviations is None else _observed(deviations, kept, errors)
    return Training(X, y, names, dates, len(y), n_conditions, len(table.frame), left_out, ignored, known)


def wide_form(table: Table, *, inputs: Sequence[str]) -> Training:
    """One column a condition beside the inputs, which are the first column unless named."""
    _check_roles(inputs)
    check_columns(table, inputs)
    names = list(inputs) or [str(table.frame.columns[0])]
    chosen = [readable(table, name, dates=True) for name in names]
    outputs: dict[str, pd.Series] = {}
    ignored = []
    for name in table.frame.columns:
        if name in names:
            continue
        if read_column(table, name).kind in (TEXT, EMPTY):
            ignored.append(name)
        else:
            outputs[name] = readable(table, name, dates=False).values
    if not outputs:
        raise DataError(f"{table.path} has no column of numbers beside {', '.join(names)}; is it in long form?")
    kept, left_out = _kept(table, {column.name: column.values.isna() for column in chosen})
    y = pd.DataFrame(outputs)[kept].reset_index(drop=True)
    y.columns = pd.Index(as_ids(list(outputs)), dtype=object)
    n_points = int(y.notna().to_numpy().sum())
    names, dates = _names(chosen)
    return Training(
        _frame(chosen, kept), y, names, dates, n_points, y.shape[1], len(table.frame), left_out, tuple(ignored)
    )


def new_rows(
    table: Table,
    *,
    inputs: Sequence[str],
    dates: Sequence[str],
    condition: str | None,
    output: str | None = None,
    errors: str | None = None,
) -> Rows:
    """Rows with the inputs of a trained model and, where asked for, their condition, output and its error."""
    check_columns(table, [*inputs, *(name for name in (condition, output, errors) if name is not None)])
    chosen = [readable(table, name, dates=name in dates) for name in inputs]
    for column in chosen:
        if column.name in dates and column.kind != DATE:
            raise DataError(f"column {column.name!r} of {table.path} must hold dates, as those the model was fitted to")
    absent = {column.name: column.values.isna() for column in chosen}
    texts = observed = deviations = None
    if condition is not None:
        texts = id_texts(table.column(condition))
        absent[condition] = texts == ""
    if output is not None:
        observed = readable(table, output, dates=False).values
        absent[output] = observed.isna()
    if errors is not None:
        deviations = readable(table, errors, dates=False).values
        absent[errors] = deviations.isna()
    kept, left_out = _kept(table, absent)
    return Rows(
        _frame(chosen, kept),
        None if texts is None else texts[kept].tolist(),
        None if observed is None else _observed(observed, kept, output),
        left_out,
        None if deviations is None else _observed(deviations, kept, errors),
    )


def known_ids(texts: Iterable[str], known: Sequence[Any], *, advice: str = "") -> list[Any]:
    """The model's own ids for ids given as text; unknown ones are an error, which ends with further advice."""
    by_text = {str(name): name for name in known}
    found = []
    for text in texts:
        if text not in by_text:
            close = difflib.get_close_matches(text, by_text, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise UnknownConditionError(
                f"the model knows no condition {text!r}{hint}; add it with 'lvmogp add-condition'{advice}"
            )
        found.append(by_text[text])
    return found


def new_ids(texts: Sequence[str], known: Sequence[Any]) -> list[Any]:
    """Ids for conditions that may be new: numbers if all ids of the model and these are whole numbers, else text."""
    numbered = all(isinstance(name, int) for name in known)
    plain = as_ids(texts) if numbered else list(texts)
    by_text = {str(name): name for name in known}
    return [by_text.get(text, name) for text, name in zip(texts, plain, strict=True)]


def _inputs(table: Table, named: Sequence[str], taken: Sequence[str]) -> tuple[list[Column], tuple[str, ...]]:
    if named:
        return [readable(table, name, dates=True) for name in named], ()
    chosen, ignored = [], []
    for name in table.frame.columns:
        if name in taken:
            continue
        column = read_column(table, name)
        if column.kind in (TEXT, EMPTY):
            ignored.append(name)
            continue
        if len(column.unreadable):
            try:
                readable(table, name, dates=True)
            except DataError as error:
                raise DataError(f"{error}; or leave the column out by naming the inputs with --input") from None
        if looks_like_key(column):
            raise DataError(
                f"column {name!r} of {table.path} looks like a row number or key ({column.values.nunique()} different "
                f"whole numbers in {len(column.values)} rows), not like an input; name the inputs with --input"
            )
        chosen.append(column)
    if not chosen:
        raise DataError(
            f"{table.path} has no column of numbers or dates left to be an input beside {' and '.join(taken)}"
        )
    return chosen, tuple(ignored)


def _check_roles(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"column {name!r} was named twice; output, condition and inputs must be different columns")


def _kept(table: Table, absent: dict[str, pd.Series]) -> tuple[pd.Series, dict[str, int]]:
    # Rows in which nothing is missing, and how many lack what.
    kept = ~pd.concat(absent, axis=1).any(axis=1)
    counts = {name: int(rows.sum()) for name, rows in absent.items() if rows.any()}
    if not kept.any():
        raise DataError(f"no row of {table.path} has all of {', '.join(absent)}")
    return kept, counts


def _frame(columns: Sequence[Column], kept: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({column.name: column.values[kept] for column in columns}).reset_index(drop=True)


def _observed(values: pd.Series, kept: pd.Series, name: str | None) -> pd.Series:
    return pd.Series(values.to_numpy()[kept.to_numpy()], name=name)


def _names(columns: Sequence[Column]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(column.name for column in columns), tuple(each.name for each in columns if each.kind == DATE)
