"""The commands that answer: what to expect of rows, whether they were as expected, and where to measure next."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape

from lvmogp.cli.files.columns import ids_of_texts, model_ids
from lvmogp.cli.files.roles import Roles, complete_rows
from lvmogp.cli.files.tables import read_table, table_bytes
from lvmogp.cli.model_rows import (
    AskedRows,
    check_target,
    conditions_of,
    features_of,
    input_names,
    known_conditions,
    read_rows,
)
from lvmogp.cli.screen import Screen, counted, number
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.calibration import Calibration
from lvmogp.ground.writing import replace_file
from lvmogp.insight.summary import leave_out_calibration

_ROWS_SHOWN = 20


def predict(
    screen: Screen, model: Path, *, output_file: Path | None, level: float, function: bool, **about_rows: Any
) -> None:
    """Predict the rows of a table, as a table."""
    asked = AskedRows(**about_rows)
    if not 0 < level < 1:
        raise SettingError(f"level must lie between 0 and 1, got {level!r}")
    if output_file is not None:
        check_target(output_file, asked.data, model)
    frame = _predicted(screen, LVMOGPRegressor.load(model), asked, level, include_noise=not function)
    if output_file is not None:
        replace_file(output_file, table_bytes(frame, output_file.suffix.lower()))
    if screen.for_people and screen.is_terminal:
        _show_predictions(screen, frame, level)
        if output_file is not None:
            screen.say_written("Predictions", output_file)
    elif screen.for_people and output_file is None:
        screen.raw(frame.to_csv(index=False))
    rows = {"rows": frame.to_dict("records")} if output_file is None else {}
    screen.document({"level": level, "file": output_file, "n_rows": len(frame), **rows, "notes": screen.notes})


def _predicted(
    screen: Screen, model: LVMOGPRegressor, asked: AskedRows, level: float, *, include_noise: bool
) -> pd.DataFrame:
    rows = read_rows(screen, model, asked, observed=False)
    features = features_of(model, asked.condition_features)
    X = rows.X
    if rows.ids is None and model.model_.schema.is_grid:  # every condition at every row
        ids = [name for name in model.conditions_ for _ in range(len(X))]
        X = pd.concat([X] * len(model.conditions_), ignore_index=True)
    else:
        ids = conditions_of(model, rows, asked, features)
    model.unseen = asked.unseen
    more: dict[str, Any] = {"include_noise": include_noise, "condition_features": features}
    mean, deviation = model.predict(X, ids, return_std=True, **more)
    levels = ((1 - level) / 2, (1 + level) / 2, 0.5)
    lower, upper, median = model.predict_quantiles(X, ids, levels=levels, **more).T
    column = asked.condition_column or model.condition or "condition"
    answers = {"mean": mean, "sd": deviation, "median": median, "lower": lower, "upper": upper}
    return X.assign(**{column: pd.Series(ids, dtype=object)}, **answers)


def _show_predictions(screen: Screen, frame: pd.DataFrame, level: float) -> None:
    first = frame.head(_ROWS_SHOWN)
    # Two digits of the smallest standard deviation.
    smallest = max(float(np.min(first["sd"])), 1e-12)
    decimals = int(np.clip(1 - np.floor(np.log10(smallest)), 0, 8))
    answers = first[["mean", "sd", "median", "lower", "upper"]].map(lambda value: f"{value:.{decimals}f}")
    texts = [name for name in first.columns.difference(answers) if not pd.api.types.is_numeric_dtype(first[name])]
    named = {name: f"{name} {100 * level:g} %" for name in ("lower", "upper")}
    screen.show(first.assign(**answers).rename(columns=named), left=texts)
    if len(first) < len(frame):
        screen.say(f"[dim]… and {counted(len(frame) - len(first), 'more row')}[/]")


# Calibration


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
            raise DataError(
                "the model has not kept its training data, or they are too many; give held-out data as a file"
            )
        remarks = found.remarks
    else:
        rows = read_rows(screen, fitted, asked, observed=True)
        features = features_of(fitted, asked.condition_features)
        ids = conditions_of(fitted, rows, asked, features)
        fitted.unseen = asked.unseen
        found = fitted.calibration(rows.X, rows.y, ids, condition_features=features, y_std=rows.y_std)
        remarks = found.remarks[int(found.intervals_are_off) :]  # the first was a warning
    for remark in remarks:
        screen.note(remark)
    _show_calibration(screen, found)
    if plot is not None:
        _draw_calibration(found, plot)
        screen.say_written("Figure", plot)
    screen.document({**found.as_dict(), "plot": plot, "notes": screen.notes})


def _show_calibration(screen: Screen, found: Calibration) -> None:
    screen.say(
        f"{counted(found.n_observations, 'observation')} of {counted(found.n_conditions, 'condition')}: root mean "
        f"square error {number(found.rmse)}, mean log density {number(found.log_density)}"
    )
    of_levels = [
        (f"{100 * level:g} %", f"{100 * held:.1f} % ± {100 * error:.1f}", verdict or "as promised")
        for level, held, error, verdict in found.coverage[
            ["level", "coverage", "standard_error", "verdict"]
        ].itertuples(index=False)
    ]
    screen.show(pd.DataFrame(of_levels, columns=["interval", "holds", "verdict"]), left=["verdict"])
    worst = found.by_condition.sort_values("coverage", kind="stable").head(_ROWS_SHOWN)
    shown = worst[["condition", "n", "rmse"]].set_axis(["condition", "points", "error"], axis=1)
    inside = worst["coverage"].map(lambda share: f"{100 * share:.0f} %")
    screen.show(shown.assign(**{f"inside {100 * found.coverage['level'].max():g} %": inside}), left=["condition"])
    if len(worst) < found.n_conditions:
        screen.say(f"[dim]… and {counted(found.n_conditions - len(worst), 'more condition')}[/]")


def _draw_calibration(found: Calibration, path: Path) -> None:
    import matplotlib.pyplot as plt

    from lvmogp.plots.checks import draw_calibration
    from lvmogp.plots.saving import save_figure

    figure, ax = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    draw_calibration(found, ax)
    save_figure(figure, path)


# The next measurement


def suggest(
    screen: Screen,
    model: Path,
    condition: str,
    candidates: Path | None,
    grid: list[str] | None,
    region: Path | None,
    condition_features: Path | None,
    **more: Any,
) -> None:
    """Choose the inputs of a condition that are worth measuring."""
    if candidates is not None and grid:
        raise SettingError(
            "give the candidates as a file, with --candidates, or as a grid, with --grid, one of the two"
        )
    fitted = LVMOGPRegressor.load(model)
    inputs = _grid(fitted, grid) if grid else _inputs(fitted, candidates)
    features = features_of(fitted, condition_features)
    (name,) = model_ids(ids_of_texts([condition.strip()]), known_conditions(fitted, features))
    found = fitted.suggest(name, inputs, region=_inputs(fitted, region), condition_features=features, **more)
    if name not in fitted.conditions_:
        screen.note(
            f"the model knows no condition {condition.strip()!r}; it is taken to be new, with nothing measured so far"
        )
    output = fitted.model_.scaling.label(fitted.model_.schema.output_name or "the output")
    screen.say(
        f"[bold]{escape(str(found.condition))}[/]  [dim]{counted(found.n_measured, 'point')} so far; sd of "
        f"{escape('the latents' if found.goal == 'latents' else output)} now {number(found.sd_before)}[/]"
    )
    screen.show(found.table.rename(columns={"sd_after": "expected sd after"}).reset_index(names="measure"))
    screen.document(
        {
            "condition": found.condition,
            "goal": found.goal,
            "n_measured": found.n_measured,
            "sd_before": found.sd_before,
            "measurements": found.table.to_dict("records"),
            "notes": screen.notes,
        }
    )


def _inputs(model: LVMOGPRegressor, path: Path | None) -> pd.DataFrame | None:
    # The inputs in a table, whatever else is in it.
    if path is None:
        return None
    return complete_rows(read_table(path), Roles(input_names(model)), dates=model.model_.schema.date_columns).X


def _grid(model: LVMOGPRegressor, texts: Sequence[str]) -> pd.DataFrame:
    # All combinations of values written as speed=3:30:28 (from, to, how many) or load=2.
    inputs, dates = input_names(model), model.model_.schema.date_columns
    given = {name.strip(): values for name, _, values in (text.partition("=") for text in texts)}
    if sorted(given) != sorted(inputs) or len(given) != len(texts):
        example = " ".join(f"--grid {name}=FROM:TO:COUNT" for name in inputs)
        raise SettingError(f"a grid needs each input once, as in {example}, got {' '.join(texts)!r}")
    columns = [_grid_values(given[name], name in dates) for name in inputs]
    return pd.DataFrame(list(itertools.product(*columns)), columns=pd.Index(inputs))


def _grid_values(text: str, are_dates: bool) -> Sequence[Any]:
    first, *rest = text.split("," if are_dates else ":")
    try:
        if not rest:
            return [pd.Timestamp(first) if are_dates else float(first)]
        last, count = rest
        if are_dates:
            return list(pd.date_range(first, last, periods=int(count)))
        return np.linspace(float(first), float(last), int(count)).tolist()
    except ValueError:
        form = "FROM,TO,COUNT" if are_dates else "FROM:TO:COUNT"
        raise SettingError(f"the values of a grid must be {form} or one value, got {text!r}") from None
