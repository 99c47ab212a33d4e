"""Rows of users' tables for fitted models, and the files that commands write."""

import tempfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lvmogp.cli.files.columns import ids_of_texts, model_ids
from lvmogp.cli.files.roles import CompleteRows, Roles, complete_rows, read_features
from lvmogp.cli.files.tables import read_table
from lvmogp.cli.screen import Screen, missing_words
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.ground.writing import check_replaceable
from lvmogp.tables.ids import Id


class AskedRows(NamedTuple):
    """Rows of a file for a model: their condition or its column, output, errors, and what is known of conditions."""

    data: Path | None = None
    condition: str | None = None
    condition_column: str | None = None
    output: str | None = None
    error_column: str | None = None
    condition_features: Path | None = None
    unseen: str = "error"


def read_rows(screen: Screen, model: LVMOGPRegressor, asked: AskedRows, *, observed: bool) -> CompleteRows:
    """Read rows with the model's inputs and, if ``observed``, its output; without ids where the file has none."""
    column = None if asked.condition is not None else asked.condition_column or model.condition
    table = read_table(Path(asked.data or ""), ids=[] if column is None else [column])
    if asked.condition_column is None and column not in table.frame.columns:
        column = None
    roles = Roles(input_names(model), column, output_name(model, asked) if observed else None, asked.error_column)
    rows = complete_rows(table, roles, dates=model.model_.schema.date_columns)
    if asked.condition is not None:
        rows = rows._replace(ids=ids_of_texts([asked.condition.strip()]) * len(rows.X))
    if rows.left_out:
        verb = "say nothing" if observed else "cannot be predicted"
        screen.note(f"some rows {verb} and are left out: {missing_words(rows.left_out)}")
    return rows


def conditions_of(
    model: LVMOGPRegressor, rows: CompleteRows, asked: AskedRows, features: pd.DataFrame | None
) -> list[Id]:
    """Return the condition of each row as the model knows it; one that is new only where that may be."""
    if rows.ids is not None:
        return model_ids(rows.ids, known_conditions(model, features), may_be_new=asked.unseen == "prior")
    if len(model.conditions_) == 1:
        return list(model.conditions_) * len(rows.X)
    wanted = f"has no column {model.condition!r}" if model.condition else "does not say the condition of its rows"
    raise DataError(
        f"{asked.data} {wanted}; name another column with --condition-column, or one condition for all rows with "
        "--condition"
    )


def known_conditions(model: LVMOGPRegressor, features: pd.DataFrame | None) -> list[Id]:
    """Return the ids of a model's conditions, and of those that a table describes."""
    return [*model.conditions_, *([] if features is None else features.index)]


def features_of(model: LVMOGPRegressor, path: Path | None) -> pd.DataFrame | None:
    """Read what a file says of conditions, if there is one."""
    return None if path is None else read_features(path, condition=model.condition, known=model.conditions_)


def input_names(model: LVMOGPRegressor) -> tuple[str, ...]:
    """Return the names of a model's inputs; a model of plain arrays has none to ask a table for."""
    columns = model.model_.schema.columns
    if columns is None:
        raise DataError(
            "the model was fitted to arrays without column names, so a table cannot be matched to its inputs; use it "
            "from Python, or fit it to a file or a DataFrame"
        )
    return columns


def output_name(model: LVMOGPRegressor, asked: AskedRows) -> str:
    """Return the column that holds the output: the one asked for, or the one the model was fitted to."""
    name = asked.output or model.model_.schema.output_name
    if name is None:
        raise DataError("the model does not know the name of its output; give it with --output")
    return name


def check_target(path: Path, *sources: Path | None) -> None:
    """Refuse, before any long work, a file that could not be written or would replace the data."""
    check_replaceable(path)
    if not path.parent.is_dir():
        raise SettingError(f"there is no folder {path.parent} to write {path.name} into; create it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SettingError(
            f"the folder {path.parent} cannot be written to ({error.strerror}); choose another one"
        ) from None
    if any(source is not None and source.exists() and path.exists() and source.samefile(path) for source in sources):
        raise SettingError(f"{path} is the file that is read; write to another one")
