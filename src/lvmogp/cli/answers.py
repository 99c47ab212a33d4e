"""The commands that answer: what to expect of rows, whether they were as expected, and where to measure next."""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.markup import escape

from lvmogp.cli.files.roles import CompleteRows, Roles, complete_rows, ids_of_texts, model_ids, read_features
from lvmogp.cli.files.tables import read_table, table_bytes
from lvmogp.cli.screen import Screen, counted, missing_words
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.ground.writing import check_replaceable, replace_file
from lvmogp.insight.summary import leave_out_calibration
from lvmogp.tables.ids import Id

_ROWS_SHOWN = 20


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


def read_questions(
    screen: Screen, model: LVMOGPRegressor, asked: AskedRows, *, observed: bool
) -> tuple[CompleteRows, pd.DataFrame | None]:
    """Read rows, with the condition of each as the model knows it, and what a table says of conditions.

    A condition may be new only if ``asked.unseen`` says so, of which the model is told. Rows without ids ask a grid for
    all of its conditions, if nothing is observed.
    """
    rows = read_rows(screen, model, asked, observed=observed)
    features, known = described(model, asked.condition_features)
    model.unseen = asked.unseen
    if rows.ids is not None:
        return rows._replace(ids=model_ids(rows.ids, known, may_be_new=asked.unseen == "prior")), features
    names = model.conditions_
    if len(names) > 1 and (observed or not model.model_.schema.is_grid):
        wanted = f"has no column {model.condition!r}" if model.condition else "does not say the condition of its rows"
        raise DataError(
            f"{asked.data} {wanted}; name another column with --condition-column, or one condition for all rows with "
            "--condition"
        )
    every = pd.concat([rows.X] * len(names), ignore_index=True)
    return rows._replace(X=every, ids=[name for name in names for _ in range(len(rows.X))]), features


def described(model: LVMOGPRegressor, path: Path | None) -> tuple[pd.DataFrame | None, list[Id]]:
    """Read what a file says of conditions, if there is one; also return all conditions that are known then."""
    features = read_features(path, condition=model.condition, known=model.conditions_)
    return features, [*model.conditions_, *(() if features is None else features.index)]


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


def named_values(texts: Sequence[str], names: Sequence[str]) -> dict[str, str] | None:
    """Return values written as speed=20, or nothing unless each name has one of them."""
    given = {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in texts)}
    return given if sorted(given) == sorted(names) and len(given) == len(texts) else None


def check_target(path: Path, *sources: Path | None) -> None:
    """Refuse, before any long work, a file that could not be written or would replace the data."""
    check_replaceable(path)
    if not path.parent.is_dir():
        raise SettingError(f"there is no folder {path.parent} to write {path.name} into; create it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        words = f"the folder {path.parent} cannot be written to ({error.strerror}); choose another one"
        raise SettingError(words) from None
    if any(source is not None and source.exists() and path.exists() and source.samefile(path) for source in sources):
        raise SettingError(f"{path} is the file that is read; write to another one")


def predict(
    screen: Screen, model: Path, *, output_file: Path | None, level: float, function: bool, **about_rows: Any
) -> None:
    """Predict the rows of a table, as a table."""
    asked = AskedRows(**about_rows)
    if not 0 < level < 1:
        raise SettingError(f"level must lie between 0 and 1, got {level!r}")
    if output_file is not None:
        check_target(output_file, asked.data, model)
    fitted = LVMOGPRegressor.load(model)
    rows, features = read_questions(screen, fitted, asked, observed=False)
    more: dict[str, Any] = {"include_noise": not function, "condition_features": features}
    mean, deviation = fitted.predict(rows.X, rows.ids, return_std=True, **more)
    levels = ((1 - level) / 2, (1 + level) / 2, 0.5)
    lower, upper, median = fitted.predict_quantiles(rows.X, rows.ids, levels=levels, **more).T
    named = {asked.condition_column or fitted.condition or "condition": pd.Series(rows.ids, dtype=object)}
    frame = rows.X.assign(**named, mean=mean, sd=deviation, median=median, lower=lower, upper=upper)
    if output_file is not None:
        replace_file(output_file, table_bytes(frame, output_file.suffix.lower()))
    if screen.for_people and screen.is_terminal:
        first = frame.head(_ROWS_SHOWN)
        # Two digits of the smallest standard deviation.
        decimals = int(np.clip(1 - np.floor(np.log10(max(first["sd"].min(), 1e-12))), 0, 8))
        answers = first[["mean", "sd", "median", "lower", "upper"]].map(lambda value: f"{value:.{decimals}f}")
        texts = [name for name in first.columns if not pd.api.types.is_numeric_dtype(first[name])]
        titles = {name: f"{name} {100 * level:g} %" for name in ("lower", "upper")}
        screen.show(first.drop(columns=answers.columns).join(answers).rename(columns=titles), left=texts)
        if len(first) < len(frame):
            screen.say(f"[dim]… and {counted(len(frame) - len(first), 'more row')}[/]")
        if output_file is not None:
            screen.say_written("Predictions", output_file)
    elif screen.for_people and output_file is None:
        screen.raw(frame.to_csv(index=False))
    rows = {"rows": frame.to_dict("records")} if output_file is None else {}
    screen.document({"level": level, "file": output_file, "n_rows": len(frame), **rows, "notes": screen.notes})


def calibration(screen: Screen, model: Path, *, plot: Path | None, **about_rows: Any) -> None:
    """Compare intervals with held-out observations, or with the training data left out in turn."""
    asked = AskedRows(**about_rows)
    if plot is not None:
        check_target(plot, asked.data, model)
    if asked.data is None and asked != AskedRows():
        raise SettingError(
            "without a file the training data are left out in turn, and all is known of them; name a file of held-out "
            "observations, or leave out what is said about one"
        )
    fitted = LVMOGPRegressor.load(model)
    if asked.data is None:
        found = leave_out_calibration(fitted)
        if found is None:
            raise DataError("the model has not kept its data, or they are too many; give held-out data as a file")
        remarks = found.remarks
    else:
        rows, features = read_questions(screen, fitted, asked, observed=True)
        found = fitted.calibration(rows.X, rows.y, rows.ids, condition_features=features, y_std=rows.y_std)
        remarks = found.remarks[int(found.intervals_are_off) :]  # the first was a warning
    for remark in remarks:
        screen.note(remark)
    screen.say(
        f"{counted(found.n_observations, 'observation')} of {counted(found.n_conditions, 'condition')}: root mean "
        f"square error {found.rmse:.4g}, mean log density {found.log_density:.4g}"
    )
    percent = (100 * found.coverage[["level", "coverage", "standard_error"]]).to_numpy()
    levels = pd.DataFrame({"interval": [f"{level:g} %" for level, _, _ in percent]})
    levels["holds"] = [f"{held:.1f} % ± {error:.1f}" for _, held, error in percent]
    levels["verdict"] = found.coverage["verdict"].replace("", "as promised")
    screen.show(levels, left=["verdict"])
    worst = found.by_condition.sort_values("coverage", kind="stable").head(_ROWS_SHOWN)
    shown = worst[["condition", "n", "rmse"]].set_axis(["condition", "points", "error"], axis=1)
    inside = worst["coverage"].map(lambda share: f"{100 * share:.0f} %")
    screen.show(shown.assign(**{f"inside {100 * found.coverage['level'].max():g} %": inside}), left=["condition"])
    if len(worst) < found.n_conditions:
        screen.say(f"[dim]… and {counted(found.n_conditions - len(worst), 'more condition')}[/]")
    if plot is not None:
        from lvmogp.plots.checks import draw_calibration
        from lvmogp.plots.style import save_figure

        save_figure(draw_calibration(found).figure.canvas.figure, plot)
        screen.say_written("Figure", plot)
    screen.document({**found.as_dict(), "plot": plot, "notes": screen.notes})


def suggest(screen: Screen, model: Path, condition: str, *, grid: list[str] | None, **options: Any) -> None:
    """Choose the inputs of a condition that are worth measuring."""
    candidates, region, about = (options.pop(name) for name in ("candidates", "region", "condition_features"))
    if candidates is not None and grid:
        raise SettingError("give the candidates as a file, with --candidates, or as a grid, with --grid, not both")
    fitted = LVMOGPRegressor.load(model)
    inputs = _grid(fitted, grid) if grid else _inputs(fitted, candidates)
    features, known = described(fitted, about)
    (name,) = model_ids(ids_of_texts([condition.strip()]), known)
    found = fitted.suggest(name, inputs, region=_inputs(fitted, region), condition_features=features, **options)
    if name not in fitted.conditions_:
        screen.note(f"the model knows no condition {str(name)!r}; it is taken to be new, with nothing measured so far")
    output = fitted.model_.scaling.label(fitted.model_.schema.output_name or "the output")
    screen.say(
        f"[bold]{escape(str(found.condition))}[/]  [dim]{counted(found.n_measured, 'point')} so far; sd of "
        f"{escape('the latents' if found.goal == 'latents' else output)} now {found.sd_before:.4g}[/]"
    )
    screen.show(found.table.rename(columns={"sd_after": "expected sd after"}).reset_index(names="measure"))
    told = {name: getattr(found, name) for name in ("condition", "goal", "n_measured", "sd_before")}
    screen.document({**told, "measurements": found.table.to_dict("records"), "notes": screen.notes})


def _inputs(model: LVMOGPRegressor, path: Path | None) -> pd.DataFrame | None:
    # The inputs in a table, whatever else is in it.
    if path is None:
        return None
    return complete_rows(read_table(path), Roles(input_names(model)), dates=model.model_.schema.date_columns).X


def _grid(model: LVMOGPRegressor, texts: Sequence[str]) -> pd.DataFrame:
    # All combinations of values written as speed=3:30:28 (from, to, how many) or load=2.
    inputs, dates = input_names(model), model.model_.schema.date_columns
    example = " ".join(f"--grid {name}=FROM:TO:COUNT" for name in inputs)
    given = named_values(texts, inputs)
    if given is None:
        raise SettingError(f"a grid needs each input once, as in {example}, got {' '.join(texts)!r}")
    logs = model.model_.scaling.log_columns
    columns = [_grid_values(given[name], name in dates, column in logs) for column, name in enumerate(inputs)]
    return pd.DataFrame(list(itertools.product(*columns)), columns=pd.Index(inputs))


def _grid_values(text: str, are_dates: bool, are_logs: bool) -> Sequence[Any]:
    first, *rest = text.split("," if are_dates else ":")
    try:
        if not rest:
            return [pd.Timestamp(first) if are_dates else float(first)]
        last, count = rest
        if are_dates:
            return list(pd.date_range(first, last, periods=int(count)))
        low, high = float(first), float(last)
        if are_logs and min(low, high) > 0:  # others are refused with the column's name
            return np.geomspace(low, high, int(count)).tolist()
        return np.linspace(low, high, int(count)).tolist()
    except ValueError:
        form = "FROM,TO,COUNT" if are_dates else "FROM:TO:COUNT"
        raise SettingError(f"the values of a grid must be {form} or one value, got {text!r}") from None
