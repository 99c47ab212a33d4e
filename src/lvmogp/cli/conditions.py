"""The commands about conditions: take in new ones, and show where all of them lie."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lvmogp.cli.files.ids import ids_of_texts, new_ids
from lvmogp.cli.model_rows import AskedRows, check_target, features_of, input_names, output_name, read_rows
from lvmogp.cli.screen import Screen, missing_words
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.tables.ids import Id


def add_condition(screen: Screen, path: Path, asked: AskedRows, points: Sequence[str], out: Path | None) -> None:
    """Take in new conditions and save the model again."""
    described_only = asked.data is None and not points and asked.condition_features is not None
    if (asked.data is None) == (not points) and not described_only:
        raise SettingError("give the points of the new condition as a file, or with --point, one of the two")
    if asked.data is None and asked.error_column is not None:
        raise SettingError("--error-column names a column of a table; leave it out where there is no file of points")
    target = path if out is None else out
    check_target(target, asked.data)
    model = LVMOGPRegressor.load(path)
    features = features_of(model, asked.condition_features)
    if asked.data is not None:
        added = _add_from_file(screen, model, asked.data, asked, features)
    elif features is not None and not points:
        added = _add_described(model, features, asked.condition)
    else:
        added = _add_points(model, points, asked, features)
    model.save(target)
    latents = _conditions_table(model)
    latents = pd.DataFrame(latents[latents["condition"].isin(added)]).drop(columns="added")
    latents["most like"] = _most_alike(model, list(latents["condition"]))
    _show_latents(screen, latents)
    screen.say("[dim]± one standard deviation; knowing nothing would be 0 ± 1 in each latent.[/]")
    screen.say_written("Model", target)
    screen.document({"model": str(target), "added": latents.to_dict("records"), "notes": screen.notes})


def _add_from_file(
    screen: Screen, model: LVMOGPRegressor, path: Path, asked: AskedRows, features: pd.DataFrame | None
) -> list[Id]:
    rows = read_rows(model, path, asked, observed=True)
    if rows.ids is None:
        raise DataError(
            "say which condition the points belong to: --condition NAME for all rows, or --condition-column NAME"
        )
    if rows.left_out:
        screen.note(f"some rows say nothing and are left out: {missing_words(rows.left_out)}")
    ids = new_ids(rows.ids, model.conditions_)
    model.add_conditions(rows.X, rows.y, ids, condition_features=features, y_std=rows.y_std)
    return ids


def _add_points(
    model: LVMOGPRegressor, points: Sequence[str], asked: AskedRows, features: pd.DataFrame | None
) -> list[Id]:
    # One condition from points written as speed=20,distance=25.
    if asked.condition is None:
        raise DataError("say which condition the points belong to with --condition NAME")
    inputs, output = list(input_names(model)), output_name(model, asked.output)
    rows = pd.DataFrame([_point(text, [*inputs, output], model.model_.schema.date_columns) for text in points])
    ids = new_ids(ids_of_texts([asked.condition.strip()]), model.conditions_)
    model.add_conditions(rows[inputs], rows[output], ids * len(rows), condition_features=features)
    return ids


def _point(text: str, wanted: Sequence[str], dates: Sequence[str]) -> dict[str, Any]:
    pairs = [part.partition("=") for part in text.split(",")]
    given = {name.strip(): value.strip() for name, _, value in pairs}
    if sorted(given) != sorted(wanted) or len(pairs) != len(wanted):
        example = ",".join(f"{name}=…" for name in wanted)
        raise SettingError(f"a point must be given as {example} (decimals with a point), got {text!r}")
    try:
        return {name: pd.Timestamp(given[name]) if name in dates else float(given[name]) for name in wanted}
    except ValueError:
        raise SettingError(
            f"the values of a point must be numbers (or dates, where the input is one), got {text!r}"
        ) from None


def _add_described(model: LVMOGPRegressor, features: pd.DataFrame, condition: str | None) -> list[Id]:
    # Conditions of which nothing but features is known: those of the table that are new, or the one named.
    names = [name for name in features.index if name not in model.conditions_]
    if condition is not None:
        names = [name for name in names if str(name) == condition.strip()]
    if not names:
        raise DataError(
            f"the table of features describes no condition that is new to the model"
            f"{'' if condition is None else f' and called {condition!r}'}; give the name of one that is"
        )
    for name in names:
        model.add_condition(name, [], [], features=features.loc[name].to_dict())
    return names


def show_conditions(screen: Screen, path: Path) -> None:
    """Show where all conditions lie in the latent space."""
    table = _conditions_table(LVMOGPRegressor.load(path))
    if screen.for_people and not screen.is_terminal:
        screen.raw(table.to_csv(index=False))
    else:
        marks = pd.Series(np.where(table["added"], "added", ""), table.index, name="")
        shown = table.drop(columns="added")
        _show_latents(screen, pd.concat([shown, marks], axis=1) if np.any(table["added"]) else shown)
    screen.document({"conditions": table.to_dict("records")})


def _conditions_table(model: LVMOGPRegressor) -> pd.DataFrame:
    # The latents of all conditions with the number of points of each, where the model has kept its data.
    trained, table = model.model_, model.latents_
    if trained.observations is not None:
        counts = np.bincount(trained.observations.conditions, minlength=len(trained.ids)).tolist()
        table["points"] = [*counts, *(len(entry.outputs) for entry in trained.added.values())]
    return table


def _most_alike(model: LVMOGPRegressor, names: Sequence[Id]) -> list[str]:
    # The trained condition whose curve is expected to be most like that of each of these, with the correlation.
    trained = list(model.model_.ids)
    between = model.similarities().loc[list(names), trained].to_numpy()
    return [f"{trained[int(row.argmax())]} ({row.max():.2f})" for row in between]


def _show_latents(screen: Screen, frame: pd.DataFrame) -> None:
    # Latents as mean ± standard deviation, further columns as they are.
    places = range(1, 1 + sum(name.startswith("mean_") for name in frame.columns))
    others = [name for name in frame.columns if not name.startswith(("mean_", "sd_")) and name != "condition"]
    rows = [
        [
            str(row["condition"]),
            *(f"{row[f'mean_{place}']:+.2f} ± {row[f'sd_{place}']:.2f}" for place in places),
            *(str(row[name]) for name in others),
        ]
        for row in frame.to_dict("records")
    ]
    columns = ["condition", *(f"latent {place}" for place in places), *others]
    screen.show(rows, columns, left=["condition", "most like"])
