"""The commands about measurements: which to make next, and whether intervals hold those that were made."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp.cli.files.roles import new_ids
from lvmogp.cli.printing import Screen, number
from lvmogp.cli.table_work import (
    Reading,
    check_target,
    features_of_file,
    held_out,
    input_names,
    known_conditions,
    points_table,
)
from lvmogp.cli.telling import counted, missing_words, records, tell_suggested, tell_written
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.calibration import Calibration
from lvmogp.insight.summary import leave_out_calibration

_MOST_SHOWN = 20


class Choice(NamedTuple):
    """From what to choose measurements, how many, and what for."""

    candidates: Path | None
    grid: Sequence[str]
    region: Path | None
    n: int
    goal: str
    condition_features: Path | None


def suggest(screen: Screen, path: Path, condition: str, choice: Choice) -> None:
    """Choose the inputs of a condition that are worth measuring."""
    if choice.candidates is not None and choice.grid:
        raise SettingError(
            "give the candidates as a file, with --candidates, or as a grid, with --grid, one of the two"
        )
    model = LVMOGPRegressor.load(path)
    candidates = None
    if choice.candidates is not None:
        candidates = points_table(model, choice.candidates)
    elif choice.grid:
        candidates = grid_table(choice.grid, input_names(model), model.model_.schema.date_columns)
    region = None if choice.region is None else points_table(model, choice.region)
    features = features_of_file(model, choice.condition_features)
    (name,) = new_ids([condition.strip()], known_conditions(model, features))
    found = model.suggest(name, candidates, choice.n, goal=choice.goal, region=region, condition_features=features)
    if name not in model.conditions_:
        screen.note(f"the model knows no condition {condition!r}; it is taken to be new, with nothing measured so far")
    tell_suggested(screen, found, model.model_.scaling.label(model.model_.schema.output_name or "the output"))
    screen.document(
        {
            "condition": found.condition,
            "goal": found.goal,
            "n_measured": found.n_measured,
            "sd_before": found.sd_before,
            "measurements": records(found.table),
            "notes": screen.notes,
        }
    )


def grid_table(texts: Sequence[str], inputs: tuple[str, ...], dates: tuple[str, ...]) -> pd.DataFrame:
    """All combinations of values written as ``speed=3:30:28`` (from, to, how many) or ``load=2``."""
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


def calibration(screen: Screen, path: Path, data: Path | None, reading: Reading, plot: Path | None) -> None:
    """Compare intervals with held-out observations, or with the training data left out in turn."""
    if plot is not None:
        check_target(plot, data, path)
    if data is None and reading != Reading():
        raise SettingError(
            "without a file the training data are left out in turn, and all is known of them; name a file of held-out "
            "observations, or leave out what is said about one"
        )
    model = LVMOGPRegressor.load(path)
    if data is None:
        found = leave_out_calibration(model)
        if found is None:
            raise DataError(
                "the model has not kept its training data, or they are too many; give held-out data as a file"
            )
        for remark in found.remarks:
            screen.note(remark)
    else:
        rows = held_out(model, data, reading)
        if rows.left_out:
            screen.note(f"some rows say nothing and are left out: {missing_words(rows.left_out)}")
        model.unseen = reading.unseen
        found = model.calibration(rows.X, rows.y, rows.ids, condition_features=rows.features, y_std=rows.errors)
        for remark in found.remarks[int(found.intervals_are_off) :]:  # the first was a warning
            screen.note(remark)
    _tell_calibration(screen, found)
    if plot is not None:
        _draw(found, plot)
        tell_written(screen, "Figure", plot)
    screen.document({**found.as_dict(), "plot": None if plot is None else str(plot), "notes": screen.notes})


def _tell_calibration(screen: Screen, found: Calibration) -> None:
    screen.say(
        f"{counted(found.n_observations, 'observation')} of {counted(found.n_conditions, 'condition')}: root mean "
        f"square error {number(found.rmse)}, mean log density {number(found.log_density)}"
    )
    screen.show(
        [
            [
                f"{100 * row['level']:g} %",
                f"{100 * row['coverage']:.1f} % ± {100 * row['standard_error']:.1f}",
                row["verdict"] or "as promised",
            ]
            for row in found.coverage.to_dict("records")
        ],
        ["interval", "holds", "verdict"],
        left=["verdict"],
    )
    worst = found.by_condition.sort_values("coverage", kind="stable").head(_MOST_SHOWN)
    screen.show(
        [
            [str(row["condition"]), str(row["n"]), number(row["rmse"]), f"{100 * row['coverage']:.0f} %"]
            for row in worst.to_dict("records")
        ],
        ["condition", "points", "error", f"inside {100 * found.coverage['level'].max():g} %"],
        left=["condition"],
    )
    if len(worst) < found.n_conditions:
        screen.say(f"[dim]… and {counted(found.n_conditions - len(worst), 'more condition')}[/]")


def _draw(found: Calibration, path: Path) -> None:
    import matplotlib.pyplot as plt

    from lvmogp.plots.checks import draw_calibration
    from lvmogp.plots.saving import save_figure

    figure, ax = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    draw_calibration(found, ax)
    save_figure(figure, path)
