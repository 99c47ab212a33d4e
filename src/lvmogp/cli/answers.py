"""The commands that answer for the rows of a table: what to expect of them, and whether they were as expected."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lvmogp.cli.files.tables import table_bytes
from lvmogp.cli.model_rows import AskedRows, check_target, conditions_of, features_of, read_rows
from lvmogp.cli.screen import Screen, counted, missing_words, number
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.calibration import Calibration
from lvmogp.ground.writing import replace_file
from lvmogp.insight.summary import leave_out_calibration

_ROWS_SHOWN = 20


def predict(
    screen: Screen, path: Path, asked: AskedRows, output_file: Path | None, *, level: float, include_noise: bool
) -> None:
    """Predict the rows of a table, as a table."""
    if not 0 < level < 1:
        raise SettingError(f"level must lie between 0 and 1, got {level!r}")
    if output_file is not None:
        check_target(output_file, asked.data, path)
    frame, left_out = predicted(LVMOGPRegressor.load(path), asked, level=level, include_noise=include_noise)
    if left_out:
        screen.note(f"some rows cannot be predicted and are left out: {missing_words(left_out)}")
    if output_file is not None:
        replace_file(output_file, table_bytes(frame, output_file.suffix.lower()))
    if screen.for_people and screen.is_terminal:
        _show_predictions(screen, frame, level)
        if output_file is not None:
            screen.say_written("Predictions", output_file)
    elif screen.for_people and output_file is None:
        screen.raw(frame.to_csv(index=False))
    rows = {"rows": frame.to_dict("records")} if output_file is None else {}
    file = None if output_file is None else str(output_file)
    screen.document({"level": level, "file": file, "n_rows": len(frame), **rows, "notes": screen.notes})


def predicted(
    model: LVMOGPRegressor, asked: AskedRows, *, level: float, include_noise: bool
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows of a table with their predictions, and how many could not be predicted for lack of what."""
    rows = read_rows(model, Path(asked.data or ""), asked, observed=False)
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
    answers = {"mean": mean, "sd": deviation, "median": median, "lower": lower, "upper": upper}
    column = asked.condition_column or model.condition or "condition"
    return X.assign(**{column: pd.Series(ids, dtype=object)}, **answers), rows.left_out


def _show_predictions(screen: Screen, frame: pd.DataFrame, level: float) -> None:
    first = frame.head(_ROWS_SHOWN)
    # Two digits of the smallest standard deviation.
    smallest = max(float(np.min(first["sd"])), 1e-12)
    decimals = int(np.clip(1 - np.floor(np.log10(smallest)), 0, 8))
    answers = first[["mean", "sd", "median", "lower", "upper"]].map(lambda value: f"{value:.{decimals}f}")
    given = first.drop(columns=list(answers)).map(cell)
    texts = [str(name) for name in given if not pd.api.types.is_numeric_dtype(first[name])]
    columns = [f"{name} {100 * level:g} %" if name in ("lower", "upper") else str(name) for name in frame.columns]
    screen.show(pd.concat([given, answers], axis=1).to_numpy().tolist(), columns, left=texts)
    if len(first) < len(frame):
        screen.say(f"[dim]… and {counted(len(frame) - len(first), 'more row')}[/]")


def cell(value: Any) -> str:
    """Return a value of a table for people; a day without a time stays a day."""
    if isinstance(value, pd.Timestamp):
        return str(value.date()) if value == value.normalize() else str(value)
    return number(value) if isinstance(value, float) else str(value)


def calibration(screen: Screen, path: Path, asked: AskedRows, plot: Path | None) -> None:
    """Compare intervals with held-out observations, or with the training data left out in turn."""
    if plot is not None:
        check_target(plot, asked.data, path)
    if asked.data is None and asked != AskedRows(None):
        raise SettingError(
            "without a file the training data are left out in turn, and all is known of them; name a file of held-out "
            "observations, or leave out what is said about one"
        )
    model = LVMOGPRegressor.load(path)
    if asked.data is None:
        found = leave_out_calibration(model)
        if found is None:
            raise DataError(
                "the model has not kept its training data, or they are too many; give held-out data as a file"
            )
        remarks = found.remarks
    else:
        rows = read_rows(model, asked.data, asked, observed=True)
        features = features_of(model, asked.condition_features)
        ids = conditions_of(model, rows, asked, features)
        if rows.left_out:
            screen.note(f"some rows say nothing and are left out: {missing_words(rows.left_out)}")
        model.unseen = asked.unseen
        found = model.calibration(rows.X, rows.y, ids, condition_features=features, y_std=rows.y_std)
        remarks = found.remarks[int(found.intervals_are_off) :]  # the first was a warning
    for remark in remarks:
        screen.note(remark)
    _show_calibration(screen, found)
    if plot is not None:
        _draw_calibration(found, plot)
        screen.say_written("Figure", plot)
    screen.document({**found.as_dict(), "plot": None if plot is None else str(plot), "notes": screen.notes})


def _show_calibration(screen: Screen, found: Calibration) -> None:
    screen.say(
        f"{counted(found.n_observations, 'observation')} of {counted(found.n_conditions, 'condition')}: root mean "
        f"square error {number(found.rmse)}, mean log density {number(found.log_density)}"
    )
    levels = [
        [
            f"{100 * row['level']:g} %",
            f"{100 * row['coverage']:.1f} % ± {100 * row['standard_error']:.1f}",
            row["verdict"] or "as promised",
        ]
        for row in found.coverage.to_dict("records")
    ]
    screen.show(levels, ["interval", "holds", "verdict"], left=["verdict"])
    worst = found.by_condition.sort_values("coverage", kind="stable").head(_ROWS_SHOWN)
    of_conditions = [
        [str(row["condition"]), str(row["n"]), number(row["rmse"]), f"{100 * row['coverage']:.0f} %"]
        for row in worst.to_dict("records")
    ]
    inside = f"inside {100 * found.coverage['level'].max():g} %"
    screen.show(of_conditions, ["condition", "points", "error", inside], left=["condition"])
    if len(worst) < found.n_conditions:
        screen.say(f"[dim]… and {counted(found.n_conditions - len(worst), 'more condition')}[/]")


def _draw_calibration(found: Calibration, path: Path) -> None:
    import matplotlib.pyplot as plt

    from lvmogp.plots.checks import draw_calibration
    from lvmogp.plots.saving import save_figure

    figure, ax = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    draw_calibration(found, ax)
    save_figure(figure, path)
