"""The command that says where to measure next."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape

from lvmogp.cli.answers import cell
from lvmogp.cli.files.ids import ids_of_texts, new_ids
from lvmogp.cli.model_rows import AskedRows, features_of, input_names, known_conditions, read_rows
from lvmogp.cli.screen import Screen, counted, number
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor


def suggest(
    screen: Screen,
    path: Path,
    condition: str,
    *,
    candidates: Path | None,
    grid: Sequence[str],
    n: int,
    goal: str,
    region: Path | None,
    condition_features: Path | None,
) -> None:
    """Choose the inputs of a condition that are worth measuring."""
    if candidates is not None and grid:
        raise SettingError(
            "give the candidates as a file, with --candidates, or as a grid, with --grid, one of the two"
        )
    model = LVMOGPRegressor.load(path)
    inputs = _grid(grid, input_names(model), model.model_.schema.date_columns) if grid else _inputs(model, candidates)
    features = features_of(model, condition_features)
    (name,) = new_ids(ids_of_texts([condition]), known_conditions(model, features))
    found = model.suggest(name, inputs, n, goal=goal, region=_inputs(model, region), condition_features=features)
    if name not in model.conditions_:
        screen.note(f"the model knows no condition {condition!r}; it is taken to be new, with nothing measured so far")
    output = model.model_.scaling.label(model.model_.schema.output_name or "the output")
    screen.say(
        f"[bold]{escape(str(found.condition))}[/]  [dim]{counted(found.n_measured, 'point')} so far; sd of "
        f"{escape('the latents' if found.goal == 'latents' else output)} now {number(found.sd_before)}[/]"
    )
    rows = [
        [str(place), *map(cell, values[:-1]), number(values[-1])]
        for place, values in zip(found.table.index, found.table.to_numpy().tolist(), strict=True)
    ]
    screen.show(rows, ["measure", *map(str, found.table.columns[:-1]), "expected sd after"])
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
    return None if path is None else read_rows(model, path, AskedRows(path, condition=""), observed=False).X


def _grid(texts: Sequence[str], inputs: Sequence[str], dates: Sequence[str]) -> pd.DataFrame:
    # All combinations of values written as speed=3:30:28 (from, to, how many) or load=2.
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
