"""Fitted models used on the tables in users' files."""

import contextlib
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lvmogp.cli.files.features import read_features
from lvmogp.cli.files.roles import Rows, known_ids, new_ids, new_rows
from lvmogp.cli.files.tables import read_table, table_bytes
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.queries import central_levels
from lvmogp.ground.writing import check_replaceable, replace_file


class Added(NamedTuple):
    """Conditions taken in by a model, with the points of each."""

    model: LVMOGPRegressor
    points: dict[Any, int]
    left_out: dict[str, int]


class Predicted(NamedTuple):
    """A table of predictions, and how many rows could not be predicted for lack of what."""

    frame: pd.DataFrame
    left_out: dict[str, int]


class Reading(NamedTuple):
    """Which columns of a table of observations are what, and what is known of conditions that are new."""

    condition: str | None = None
    condition_column: str | None = None
    output: str | None = None
    error_column: str | None = None
    condition_features: Path | None = None
    unseen: str = "error"


class HeldOut(NamedTuple):
    """Observations with their conditions and what is known of these, and how many rows lacked what."""

    X: pd.DataFrame
    y: pd.Series | None
    ids: list[Any]
    left_out: dict[str, int]
    errors: pd.Series | None
    features: pd.DataFrame | None


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


def input_names(model: LVMOGPRegressor) -> tuple[str, ...]:
    """Names of a model's inputs; a model of plain arrays has none to ask a table for."""
    columns = model.model_.schema.columns
    if columns is None:
        raise DataError(
            "the model was fitted to arrays without column names, so a table cannot be matched to its inputs; use it "
            "from Python, or fit it to a file or a DataFrame"
        )
    return columns


def predict_table(
    model: LVMOGPRegressor,
    path: Path,
    *,
    condition: str | None,
    condition_column: str | None,
    condition_features: Path | None,
    level: float,
    function: bool,
    unseen: str,
) -> Predicted:
    """Predict the rows of a table."""
    inputs = input_names(model)
    rows = _rows(model, path, inputs, condition, condition_column)
    features = features_of_file(model, condition_features)
    texts = rows.condition if condition is None else [condition.strip()] * len(rows.X)
    if texts is not None:
        ids = _ids(texts, known_conditions(model, features), unseen)
    elif model.model_.schema.is_grid:  # every condition at every row
        ids = [name for name in model.conditions_ for _ in range(len(rows.X))]
        rows = rows._replace(X=pd.concat([rows.X] * len(model.conditions_), ignore_index=True))
    else:
        ids = _only(model, path) * len(rows.X)
    model.unseen = unseen
    asked: dict[str, Any] = {"include_noise": not function, "condition_features": features}
    mean, deviation = model.predict(rows.X, ids, return_std=True, **asked)
    lower, upper, median = model.predict_quantiles(rows.X, ids, levels=(*central_levels(level), 0.5), **asked).T
    found = {"mean": mean, "sd": deviation, "median": median, "lower": lower, "upper": upper}
    name = condition_column or model.condition or "condition"
    return Predicted(rows.X.assign(**{name: pd.Series(ids, dtype=object)}, **found), rows.left_out)


def _ids(texts: Sequence[str], known: Sequence[Any], unseen: str) -> list[Any]:
    if unseen == "prior":
        return new_ids(texts, known)
    return known_ids(texts, known, advice=", or predict it from the prior with --unseen prior")


def features_of_file(model: LVMOGPRegressor, path: Path | None) -> pd.DataFrame | None:
    """What a file says of conditions, if there is one."""
    return None if path is None else read_features(path, condition=model.condition, known=model.conditions_)


def known_conditions(model: LVMOGPRegressor, features: pd.DataFrame | None) -> list[Any]:
    """Ids of the conditions of a model, and of those that a table describes."""
    return [*model.conditions_, *([] if features is None else features.index)]


def _rows(
    model: LVMOGPRegressor, path: Path, inputs: tuple[str, ...], condition: str | None, column: str | None
) -> Rows:
    asked = column if condition is None else None
    default = model.condition if condition is None else None
    table = read_table(path, ids=[name for name in (asked or default,) if name is not None])
    if asked is None and default is not None and default in table.frame.columns:
        asked = default
    return new_rows(table, inputs=inputs, dates=model.model_.schema.date_columns, condition=asked)


def points_table(model: LVMOGPRegressor, path: Path) -> pd.DataFrame:
    """The inputs in a table, whatever else is in it."""
    rows = new_rows(read_table(path), inputs=input_names(model), dates=model.model_.schema.date_columns, condition=None)
    return rows.X


def held_out(model: LVMOGPRegressor, path: Path, reading: Reading) -> HeldOut:
    """Observations in a table of conditions that the model knows, or may learn of from their features."""
    column = None if reading.condition is not None else reading.condition_column or model.condition
    rows = new_rows(
        read_table(path, ids=[] if column is None else [column]),
        inputs=input_names(model),
        dates=model.model_.schema.date_columns,
        condition=column,
        output=output_name(model, reading.output),
        errors=reading.error_column,
    )
    features = features_of_file(model, reading.condition_features)
    texts = rows.condition if reading.condition is None else [reading.condition.strip()] * len(rows.X)
    if texts is None:
        ids = _only(model, path) * len(rows.X)
    else:
        ids = _ids(texts, known_conditions(model, features), reading.unseen)
    return HeldOut(rows.X, rows.y, ids, rows.left_out, rows.errors, features)


def _only(model: LVMOGPRegressor, path: Path) -> list[Any]:
    if len(model.conditions_) == 1:
        return list(model.conditions_)
    wanted = f"has no column {model.condition!r}" if model.condition else "does not say the condition of its rows"
    raise DataError(
        f"{path} {wanted}; name another column with --condition-column, or one condition for all rows with --condition"
    )


def add_from_file(
    model: LVMOGPRegressor,
    path: Path,
    *,
    condition: str | None,
    condition_column: str | None,
    output: str | None,
    features: pd.DataFrame | None = None,
    errors: str | None = None,
) -> Added:
    """Take in the conditions of a table; ``errors`` names a column of standard deviations of the measurements."""
    column = None if condition is not None else condition_column or model.condition
    if condition is None and column is None:
        raise DataError(
            "say which condition the points belong to: --condition NAME for all rows, or --condition-column NAME"
        )
    table = read_table(path, ids=[] if column is None else [column])
    rows = new_rows(
        table,
        inputs=input_names(model),
        dates=model.model_.schema.date_columns,
        condition=column,
        output=output_name(model, output),
        errors=errors,
    )
    return _added(model, rows, condition, features)


def add_points(
    model: LVMOGPRegressor,
    points: Sequence[str],
    *,
    condition: str | None,
    output: str | None,
    features: pd.DataFrame | None = None,
) -> Added:
    """Take in one condition from points written as ``speed=20,distance=25``."""
    if condition is None:
        raise DataError("say which condition the points belong to with --condition NAME")
    inputs, target = input_names(model), output_name(model, output)
    parsed = pd.DataFrame([_point(text, inputs, target, model.model_.schema.date_columns) for text in points])
    return _added(model, Rows(parsed.drop(columns=target), None, pd.Series(parsed[target]), {}), condition, features)


def add_described(model: LVMOGPRegressor, features: pd.DataFrame | None, *, condition: str | None) -> Added:
    """Take in conditions of which nothing but features is known: those of the table that are new, or the one named."""
    table = pd.DataFrame(features)
    names = [name for name in table.index if name not in model.conditions_]
    if condition is not None:
        names = [name for name in names if str(name) == condition.strip()]
    if not names:
        raise DataError(
            f"the table of features describes no condition that is new to the model"
            f"{'' if condition is None else f' and called {condition!r}'}; give the name of one that is"
        )
    for name in names:
        model.add_condition(name, [], [], features=table.loc[name].to_dict())
    return Added(model, dict.fromkeys(names, 0), {})


def _added(model: LVMOGPRegressor, rows: Rows, condition: str | None, features: pd.DataFrame | None) -> Added:
    texts = rows.condition if condition is None else [condition.strip()] * len(rows.X)
    ids = new_ids(texts or [], model.conditions_)
    model.add_conditions(rows.X, rows.y, ids, condition_features=features, y_std=rows.errors)
    counts = pd.Series(ids, dtype=object).value_counts(sort=False)
    return Added(model, {name: int(count) for name, count in counts.items()}, rows.left_out)


def output_name(model: LVMOGPRegressor, asked: str | None) -> str:
    """The column that holds the output: the one asked for, or the one the model was fitted to."""
    name = asked or model.model_.schema.output_name
    if name is None:
        raise DataError("the model does not know the name of its output; give it with --output")
    return name


def _point(text: str, inputs: tuple[str, ...], output: str, dates: tuple[str, ...]) -> dict[str, Any]:
    wanted = (*inputs, output)
    example = ",".join(f"{name}=…" for name in wanted)
    pairs = [part.partition("=") for part in text.split(",")]
    given = {name.strip(): value.strip() for name, _, value in pairs}
    if sorted(given) != sorted(wanted) or len(pairs) != len(wanted):
        raise SettingError(f"a point must be given as {example} (decimals with a point), got {text!r}")
    try:
        return {name: pd.Timestamp(given[name]) if name in dates else float(given[name]) for name in wanted}
    except ValueError:
        raise SettingError(
            f"the values of a point must be numbers (or dates, where the input is one), got {text!r}"
        ) from None


def save_somewhere(model: LVMOGPRegressor, path: Path) -> None:
    """Save a model that took long to fit; if its disk has become full or read-only, to where there is room."""
    try:
        model.save(path)
    except OSError as error:
        for folder in (Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
            elsewhere = folder / f"{path.stem}-{secrets.token_hex(4)}{path.suffix}"
            with contextlib.suppress(OSError):
                model.save(elsewhere)
                raise SettingError(
                    f"{path} cannot be written ({error.strerror}); the fitted model is in {elsewhere} instead, move it "
                    "to where you want it"
                ) from None
        raise


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table by the ending of its file, whole or not at all."""
    replace_file(path, table_bytes(frame, path.suffix.lower()))
