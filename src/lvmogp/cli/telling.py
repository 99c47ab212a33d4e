"""The results of commands as words and tables for people."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape

from lvmogp.cli.files.roles import Training
from lvmogp.cli.files.tables import Table
from lvmogp.cli.printing import Screen, number
from lvmogp.fitted.suggestions import Suggestion
from lvmogp.insight.summary import Summary
from lvmogp.progress import in_words
from lvmogp.tables.observations import ObservationStore

_MOST_ROWS = 20
_BAR = 20


def counted(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}".replace(",", " ")


def missing_words(left_out: dict[str, int]) -> str:
    """What rows lacked, such as "2 without 'speed'"."""
    return ", ".join(f"{count:,} without {name!r}".replace(",", " ") for name, count in left_out.items())


def tell_understood(screen: Screen, table: Table, training: Training, *, output: str | None) -> None:
    """What a table was understood to say."""
    inputs = ", ".join(f"{name} (dates)" if name in training.dates else name for name in training.inputs)
    facts = {
        "file": f"{escape(str(table.path))}  [dim]{escape(table.written)}[/]",
        "points": f"{counted(training.n_points, 'point')} of {counted(training.n_conditions, 'condition')}",
        "inputs": escape(inputs),
    }
    if output is not None:
        facts["output"] = escape(output)
    if training.left_out:
        n_lost = training.n_rows - len(training.X)
        facts["left out"] = f"{counted(n_lost, 'row')}: {escape(missing_words(training.left_out))}"
    if isinstance(training.y, pd.DataFrame):
        n_missing = training.y.size - training.n_points
        facts["missing"] = f"{counted(n_missing, 'cell')} of {training.y.size:,}".replace(",", " ")
    if training.ignored:
        shown = ", ".join(training.ignored[:5]) + (", …" if len(training.ignored) > 5 else "")
        facts["ignored"] = f"{escape(shown)} [dim](not numbers)[/]"
    _tell_facts(screen, facts)


def tell_streamed(screen: Screen, path: Path, store: ObservationStore) -> None:
    """What Parquet files that are read in pieces were understood to say."""
    inputs = ", ".join(f"{name} (dates)" if name in store.date_columns else name for name in store.columns or ())
    _tell_facts(
        screen,
        {
            "file": f"{escape(str(path))}  [dim]Parquet, read in pieces[/]",
            "points": f"{counted(len(store.outputs), 'point')} of {counted(len(store.ids or ()), 'condition')}",
            "inputs": escape(inputs),
            "output": escape(str(store.output_name)),
        },
    )


def _tell_facts(screen: Screen, facts: dict[str, str]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        screen.say(f"[bold]{name:<{width}}[/]  {value}")


def tell_summary(screen: Screen, found: Summary) -> None:
    """How a fit went and what was learnt."""
    screen.say()
    parts = [escape(part) for part in (found.output_transform, found.output) if part is not None]
    output = f" of {' '.join(parts)}" if parts else ""
    facts = {
        "bound": f"{found.bound:.1f}  [dim]{found.status}; best of {counted(found.n_starts, 'start')}, "
        f"{in_words(found.seconds)}[/]",
        "noise": f"{number(found.noise_sd)}  [dim]standard deviation{output}[/]",
    }
    if found.n_draws > 0:
        facts["answers from"] = f"{counted(found.n_draws, 'draw')}  [dim]from the posterior, by Markov chains[/]"
    if found.leave_out is not None:
        facts["left-out error"] = (
            f"{number(found.leave_out.rmse)}  [dim]of points left out, against {number(found.leave_out.spread)} "
            f"without a model; 95 % intervals hold {100 * found.leave_out.coverage:.0f} %[/]"
        )
    _tell_facts(screen, facts)
    screen.say()
    latents = [(f"latent {number}", relevance) for number, relevance in found.latent_relevance.itertuples(index=False)]
    features = found.feature_relevance.itertuples(index=False, name=None)
    _tell_relevance(screen, [*found.input_relevance.itertuples(index=False, name=None), *features, *latents])
    for remark in found.remarks:
        screen.note(remark)


def _tell_relevance(screen: Screen, named: Sequence[tuple[str, float]]) -> None:
    screen.say("[bold]relevance[/]  [dim]0 changes nothing, 1 everything[/]")
    width = max(len(name) for name, _ in named)
    for name, value in named:
        filled = round(_BAR * float(np.clip(value, 0, 1)))
        bar = f"[cyan]{'━' * filled}[/]{' ' * (_BAR - filled)}"
        screen.say(f"  {escape(f'{name:<{width}}')}  {bar} {value:.2f}")


def tell_written(screen: Screen, what: str, path: Path) -> None:
    """Where a file went."""
    screen.say(f"{what} written to [bold]{escape(str(path))}[/]")


def tell_model(screen: Screen, content: dict[str, Any], chosen: dict[str, Any]) -> None:
    """What a model file holds; of the settings those that somebody chose."""
    n_points, origin = content["n_observations"], content["origin"]
    learnt_from = counted(content["n_conditions"], "condition")
    if n_points is not None:
        learnt_from = f"{counted(n_points, 'point')} of {learnt_from}"
    facts = {
        "learnt from": learnt_from + (f"; {content['n_added']} added later" if content["n_added"] else ""),
        "inputs": escape(", ".join(content["inputs"])),
        "output": escape(str(content["output"] or "not named")),
        "bound": f"{content['bound']:.1f}  [dim]{content['status']}[/]",
        "settings": escape(", ".join(f"{name}={value!r}" for name, value in chosen.items()) or "as they come"),
    }
    if origin is None:
        facts["made with"] = "not known: the file was written before this was kept"
    else:
        versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
        facts |= {"seed": str(origin["seed"]), "made with": f"{versions}  [dim]{escape(origin['machine'])}[/]"}
    _tell_facts(screen, facts)


def tell_latents(screen: Screen, frame: pd.DataFrame) -> None:
    """A table of latents, mean ± standard deviation; further columns as they are."""
    n_latent = sum(name.startswith("mean_") for name in frame.columns)
    others = [name for name in frame.columns if not name.startswith(("mean_", "sd_")) and name != "condition"]
    columns = ["condition", *(f"latent {place}" for place in range(1, n_latent + 1)), *others]
    rows = [
        [
            str(row["condition"]),
            *(f"{row[f'mean_{place}']:+.2f} ± {row[f'sd_{place}']:.2f}" for place in range(1, n_latent + 1)),
            *(str(row[name]) for name in others),
        ]
        for row in frame.to_dict("records")
    ]
    screen.show(rows, columns, left=["condition", "most like"])


def tell_predictions(screen: Screen, frame: pd.DataFrame, level: float) -> None:
    """The first rows of a table of predictions."""
    percent = f"{100 * level:g} %"
    columns = [f"{name} {percent}" if name in ("lower", "upper") else str(name) for name in frame.columns]
    first = frame.head(_MOST_ROWS)
    decimals = _decimals(first["sd"].to_numpy())
    found = first[["mean", "sd", "median", "lower", "upper"]].map(lambda value: f"{value:.{decimals}f}")
    given = first.drop(columns=list(found)).map(_cell)
    texts = [str(name) for name in given if not pd.api.types.is_numeric_dtype(first[name])]
    screen.show(pd.concat([given, found], axis=1).to_numpy().tolist(), columns, left=texts)
    _tell_rest(screen, len(frame), len(first))


def tell_suggested(screen: Screen, found: Suggestion, output: str) -> None:
    """Measurements to make, with what is expected to be left of the uncertainty after each."""
    quantity = "the latents" if found.goal == "latents" else output
    screen.say(
        f"[bold]{escape(str(found.condition))}[/]  [dim]{counted(found.n_measured, 'point')} so far; "
        f"sd of {escape(quantity)} now {number(found.sd_before)}[/]"
    )
    frame = found.table
    rows = [
        [str(place), *map(_cell, values[:-1]), number(values[-1])]
        for place, values in zip(frame.index, frame.to_numpy().tolist(), strict=True)
    ]
    screen.show(rows, ["measure", *map(str, frame.columns[:-1]), "expected sd after"])


def _tell_rest(screen: Screen, n_rows: int, n_shown: int) -> None:
    if n_shown < n_rows:
        screen.say(f"[dim]… and {counted(n_rows - n_shown, 'more row')}[/]")


def _decimals(deviations: np.ndarray) -> int:
    # Two digits of the smallest standard deviation.
    smallest = max(float(np.min(deviations)), 1e-12)
    return int(np.clip(1 - np.floor(np.log10(smallest)), 0, 8))


def _cell(value: Any) -> str:
    if isinstance(value, pd.Timestamp):
        return str(value.date()) if value == value.normalize() else str(value)
    return number(value) if isinstance(value, float) else str(value)


def records(frame: pd.DataFrame) -> Sequence[dict[str, Any]]:
    """A table as a list of plain dictionaries, dates as ISO text."""
    return [
        {str(name): value.isoformat() if isinstance(value, pd.Timestamp) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]
