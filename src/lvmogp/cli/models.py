"""The commands about a model as a whole: new conditions, where all lie, what the file holds, its page, an example."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from lvmogp.cli.answers import AskedRows, check_target, described, input_names, named_values, output_name, read_rows
from lvmogp.cli.files.roles import CompleteRows, ids_of_texts, model_ids
from lvmogp.cli.screen import Screen, counted
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.model_file import encode_setting
from lvmogp.insight import summary
from lvmogp.insight.variance import in_words, variance_shares

_SHOWN_SPEEDS = (5, 10, 15, 20, 25, 30)


def add_condition(screen: Screen, model: Path, *, point: list[str] | None, out: Path | None, **about_rows: Any) -> None:
    """Take in new conditions and save the model again."""
    asked = AskedRows(**about_rows)
    described_only = asked.data is None and not point and asked.condition_features is not None
    if (asked.data is None) == (not point) and not described_only:
        raise SettingError("give the points of the new condition as a file, or with --point, one of the two")
    if asked.data is None and asked.error_column is not None:
        raise SettingError("--error-column names a column of a table; leave it out where there is no file of points")
    target = model if out is None else out
    check_target(target, asked.data)
    fitted = LVMOGPRegressor.load(model)
    features, _ = described(fitted, asked.condition_features)
    if features is not None and described_only:
        # Nothing but features is known: of all conditions of the table that are new, or of the one named.
        added = [name for name in features.index if name not in fitted.conditions_]
        if asked.condition is not None:
            added = [name for name in added if str(name) == asked.condition.strip()]
        if not added:
            called = "" if asked.condition is None else f" and called {asked.condition!r}"
            raise DataError(f"the table describes no condition that is new to the model{called}; name one that is")
        for name in added:
            fitted.add_condition(name, [], [], features=features.loc[name].to_dict())
    else:
        rows = _points(fitted, point, asked) if point else read_rows(screen, fitted, asked, observed=True)
        if rows.ids is None:
            wanted = "--condition NAME for all rows, or --condition-column NAME for those of a file"
            raise DataError(f"say which condition the points belong to: {wanted}")
        added = model_ids(rows.ids, fitted.conditions_)
        fitted.add_conditions(rows.X, rows.y, added, condition_features=features, y_std=rows.y_std)
    fitted.save(target)
    latents = _conditions_table(fitted)
    latents = pd.DataFrame(latents[latents["condition"].isin(added)]).drop(columns="added")
    # The trained condition whose curve is expected to be most like that of each, with the correlation.
    alike = fitted.similarities().loc[list(latents["condition"]), list(fitted.model_.ids)]
    latents["most like"] = [f"{row.idxmax()} ({row.max():.2f})" for _, row in alike.iterrows()]
    _show_latents(screen, latents)
    screen.say("[dim]± one standard deviation; knowing nothing would be 0 ± 1 in each latent.[/]")
    screen.say_written("Model", target)
    screen.document({"model": target, "added": latents.to_dict("records"), "notes": screen.notes})


def _points(model: LVMOGPRegressor, texts: Sequence[str], asked: AskedRows) -> CompleteRows:
    # Points of one condition, each written as speed=20,distance=25.
    inputs, output, dates = input_names(model), output_name(model, asked), model.model_.schema.date_columns
    names, points = [*inputs, output], []
    example = ",".join(f"{name}=…" for name in names)
    for text in texts:
        given = named_values(text.split(","), names)
        if given is None:
            raise SettingError(f"a point must be given as {example} (decimals with a point), got {text!r}")
        try:
            points.append([pd.Timestamp(given[name]) if name in dates else float(given[name]) for name in names])
        except ValueError:
            raise SettingError(f"the values of a point must be numbers, or dates, got {text!r}") from None
    frame = pd.DataFrame(points, columns=pd.Index(names))
    ids = None if asked.condition is None else ids_of_texts([asked.condition.strip()]) * len(points)
    return CompleteRows(frame[list(inputs)], frame[output], {}, ids)


def conditions(screen: Screen, model: Path) -> None:
    """Show where all conditions lie in the latent space."""
    table = _conditions_table(LVMOGPRegressor.load(model))
    if screen.for_people and not screen.is_terminal:
        screen.raw(table.to_csv(index=False))
    else:
        marks = {"": np.where(table["added"], "added", "")} if np.any(table["added"]) else {}
        _show_latents(screen, table.drop(columns="added").assign(**marks))
    screen.document({"conditions": table.to_dict("records")})


def _conditions_table(model: LVMOGPRegressor) -> pd.DataFrame:
    # The latents of all conditions with the number of points of each, where the model has kept its data.
    trained, table = model.model_, model.latents_
    if trained.observations is not None:
        counts = np.bincount(trained.observations.conditions, minlength=len(trained.ids)).tolist()
        table["points"] = [*counts, *(len(entry.outputs) for entry in trained.added.values())]
    return table


def _show_latents(screen: Screen, frame: pd.DataFrame) -> None:
    # Latents as mean ± standard deviation, further columns as they are.
    shown = frame[["condition"]].copy()
    for place in range(1, 1 + sum(name.startswith("mean_") for name in frame.columns)):
        pairs = zip(frame[f"mean_{place}"], frame[f"sd_{place}"], strict=True)
        shown[f"latent {place}"] = [f"{mean:+.2f} ± {deviation:.2f}" for mean, deviation in pairs]
    others = [name for name in frame.columns if not name.startswith(("condition", "mean_", "sd_"))]
    screen.show(pd.concat([shown, frame[others]], axis=1), left=["condition", "most like"])


def show(screen: Screen, model: Path) -> None:
    """Tell what a model file holds: what was learnt from, how it went, and what the fit was made with."""
    fitted = LVMOGPRegressor.load(model)
    trained, outcome, origin = fitted.model_, fitted.outcome_, fitted.origin_
    settings = {name: encode_setting(value) for name, value in fitted.get_params(deep=False).items()}
    defaults = LVMOGPRegressor().get_params(deep=False)
    chosen = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value != defaults[name])
    shares = variance_shares(fitted)
    found = {
        "model": model,
        "n_conditions": len(trained.ids),
        "n_added": len(trained.added),
        "n_observations": None if trained.observations is None else len(trained.observations.outputs),
        "inputs": summary.input_names(fitted),
        "input_transform": fitted.input_transform_,
        "output": trained.schema.output_name,
        "output_transform": fitted.output_transform_,
        "bound": outcome.bound,
        "status": outcome.status.value,
        "variance_shares": shares.to_dict("records"),
        "settings": settings,
        "origin": None if origin is None else origin._asdict(),
    }
    points = "" if trained.observations is None else f"{counted(found['n_observations'], 'point')} of "
    later = f"; {len(trained.added)} added later" if trained.added else ""
    screen.say_facts(
        {
            "learnt from": points + counted(len(trained.ids), "condition") + later,
            "inputs": escape(", ".join(trained.scaling.input_labels(found["inputs"]))),
            "output": escape(trained.scaling.label(trained.schema.output_name or "not named")),
            "bound": f"{outcome.bound:.1f}  [dim]{outcome.status.value}[/]",
            "variance": in_words(shares),
            "settings": escape(chosen or "as they come"),
            "made with": escape(str(origin or "")),
        }
    )
    screen.document(found)


def report(screen: Screen, model: Path, *, out: Path | None) -> None:
    """Write the page to explore a model with."""
    from lvmogp.page.report import write_report

    target = model.with_suffix(".html") if out is None else out
    check_target(target, model)
    write_report(LVMOGPRegressor.load(model), target)
    screen.say_written("Page", target)
    screen.document({"page": target, "notes": screen.notes})


def demo(screen: Screen, *, out: Path, seed: int) -> None:
    """Run the braking example and show what it found."""
    from lvmogp.demo import NEW, run

    with Console(stderr=True).status("Simulating 50 braking experiments and fitting the joint model …"):
        found = run(out, seed=seed)
    rows = found.curves.iloc[[int((found.curves["speed"] - speed).abs().argmin()) for speed in _SHOWN_SPEEDS]]
    shown = rows.map("{:.1f}".format).assign(speed=rows["speed"].map("{:.0f}".format))
    shown["95 % interval"] = shown["lower"] + " to " + shown["upper"]
    titles = {"speed": "speed (m/s)", "together": "ignoring the tyre"}
    screen.say(f"10 tyres, 5 experiments each. {str(found.model.outcome_).capitalize()}.")
    screen.say("A new tyre from one observation: braking distance (m)\n")
    screen.show(shown[["speed", "truth", "predicted", "95 % interval", "together"]].rename(columns=titles))
    screen.say(
        f"Error over all speeds for '{NEW}': {found.error:.2f} m, against {found.error_together:.2f} m for one curve "
        f"through all data.\nThe latent explains {100 * found.r_squared:.1f} % of the variance of 1/friction, "
        "which the model never saw."
    )
    screen.say(f"Figures: {', '.join(map(str, found.files))}")
    measures = {name: getattr(found, name) for name in ("error", "error_together", "r_squared")}
    screen.document({"predictions": rows.to_dict("records"), **measures, "figures": found.files})
