"""The commands, from their arguments to the last line they print."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from rich.prompt import Confirm

from lvmogp.cli.files.features import read_features
from lvmogp.cli.files.roles import Training, long_form, wide_form
from lvmogp.cli.files.tables import Table, read_table
from lvmogp.cli.interrupts import first_interrupt_asks, no_interrupt_is_lost
from lvmogp.cli.large_work import Keeping, Processes, is_streamed, streamed
from lvmogp.cli.printing import INTERRUPTED, Screen
from lvmogp.cli.table_work import (
    add_described,
    add_from_file,
    add_points,
    check_target,
    features_of_file,
    predict_table,
    save_somewhere,
    write_table,
)
from lvmogp.cli.telling import (
    missing_words,
    records,
    tell_latents,
    tell_model,
    tell_predictions,
    tell_streamed,
    tell_summary,
    tell_understood,
    tell_written,
)
from lvmogp.errors import ConvergenceWarning, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.model_file import encode_setting
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.inference.restarts import Progress
from lvmogp.insight.summary import input_names, summary
from lvmogp.progress import progress_bar

_NAME_THE_COLUMNS = (
    "name the columns of the output and of the condition with --output and --condition, or say --wide for a table with "
    "one column per condition"
)


class FitRequest(NamedTuple):
    """What the user asked to be fitted; ``settings`` are those of the estimator."""

    data: Path
    model: Path
    output: str | None
    condition: str | None
    inputs: Sequence[str]
    wide: bool
    settings: dict[str, Any]
    keeping: Keeping
    processes: Processes
    keep_on_interrupt: bool
    condition_features: Path | None = None
    error_column: str | None = None


class NewPoints(NamedTuple):
    """Where observations of new conditions come from: a file, or points given one by one; features may stand alone."""

    data: Path | None
    points: Sequence[str]
    condition: str | None
    condition_column: str | None
    output: str | None
    condition_features: Path | None = None
    error_column: str | None = None


def fit(screen: Screen, request: FitRequest) -> None:
    """Fit a model to a table, save it and tell how good it is."""
    check_target(request.model, request.data)
    screen.after_failure = request.keeping.way_on
    if request.processes.several and request.keep_on_interrupt:
        raise SettingError("--keep-on-interrupt is not for --distributed; keep --checkpoint, and go on with --resume")
    request.processes.join(screen, request.data, request.settings)
    if is_streamed(request.data, request.settings):
        if request.condition_features is not None or request.error_column is not None:
            raise SettingError(
                "data that are read in pieces cannot be fitted with --condition-features or --error-column; leave that "
                "out, or give a smaller file"
            )
        with request.processes.together():
            _fit_stream(screen, request)
        return
    table, training = _understood(request)
    features = _features(request, training)
    estimator = LVMOGPRegressor(condition=None if request.wide else request.condition, **request.settings)
    with _until_asked_to_stop(screen, may_keep=request.keep_on_interrupt or _can_ask(screen)) as stopping:
        tell_understood(screen, table, training, output=request.output)
        with progress_bar(shown=screen.for_people) as shown, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the summary says so
            estimator.fit(
                training.X,
                training.y,
                condition_features=features,
                y_std=training.errors,
                on_progress=stopping(shown),
                **request.keeping.arguments(),
            )
    understood = {
        "file": str(table.path),
        "written": table.written,
        "n_rows": training.n_rows,
        "left_out": training.left_out,
        "ignored": list(training.ignored),
    }
    _finish(screen, request, estimator, understood)


def _fit_stream(screen: Screen, request: FitRequest) -> None:
    # Parquet files read in pieces, by one process or several; the first one saves and tells.
    if request.output is None or request.condition is None:
        raise SettingError(_NAME_THE_COLUMNS)
    estimator = LVMOGPRegressor(condition=request.condition, **request.settings)
    is_first = request.processes.is_first
    # One of several processes cannot stop after a step of its own choice: the others would wait for it.
    may_keep = not request.processes.several and (request.keep_on_interrupt or _can_ask(screen))
    with (
        streamed(
            screen,
            request.data,
            output=request.output,
            condition=request.condition,
            inputs=request.inputs,
            processes=request.processes,
        ) as store,
        _until_asked_to_stop(screen, may_keep=may_keep) as stopping,
    ):
        tell_streamed(screen, request.data, store)
        with progress_bar(shown=screen.for_people and is_first) as shown, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the summary says so
            estimator.fit(store, on_progress=stopping(shown), **request.keeping.arguments())
        n_rows = request.processes.total(len(store.outputs))
    if is_first:
        _finish(screen, request, estimator, {"file": str(request.data), "n_rows": n_rows})


def _finish(screen: Screen, request: FitRequest, estimator: LVMOGPRegressor, understood: dict[str, Any]) -> None:
    if estimator.outcome_.status is Status.INTERRUPTED:
        _leave(screen, request, estimator)
    save_somewhere(estimator, request.model)
    screen.after_failure = f"the model is in {request.model}"
    request.keeping.done()
    found = summary(estimator)
    tell_summary(screen, found)
    tell_written(screen, "Model", request.model)
    screen.document(
        {"model": str(request.model), "data": understood, "summary": found.as_dict(), "notes": screen.notes}
    )


def _understood(request: FitRequest) -> tuple[Table, Training]:
    if request.wide:
        if request.condition is not None:
            raise SettingError("--wide has one column per condition, so there is no --condition column to name")
        if request.error_column is not None:
            raise SettingError("--wide has one column per condition, so there is no --error-column to name")
        table = read_table(request.data)
        return table, wide_form(table, inputs=request.inputs)
    if request.output is None or request.condition is None:
        raise SettingError(_NAME_THE_COLUMNS)
    table = read_table(request.data, ids=[request.condition])
    training = long_form(
        table,
        output=request.output,
        condition=request.condition,
        inputs=request.inputs,
        errors=request.error_column,
    )
    return table, training


def _features(request: FitRequest, training: Training) -> pd.DataFrame | None:
    if request.condition_features is None:
        return None
    wide = isinstance(training.y, pd.DataFrame)
    known = training.y.columns if wide else training.X[request.condition].unique()
    return read_features(request.condition_features, condition=request.condition, known=list(known))


def _can_ask(screen: Screen) -> bool:
    return screen.for_people and screen.is_terminal and sys.stdin.isatty()


@contextmanager
def _until_asked_to_stop(
    screen: Screen, *, may_keep: bool
) -> Iterator[Callable[[Callable[[Progress], None] | None], Callable[[Progress], None]]]:
    # Yields a function that makes a progress callback end the fit once Ctrl-C was pressed. Where nothing would be
    # kept, Ctrl-C interrupts at once as usual.
    words = "stopping after this iteration; press Ctrl-C again to stop at once"
    pressing = first_interrupt_asks(lambda: screen.note(words)) if may_keep else no_interrupt_is_lost()
    with pressing as pressed:

        def stopping(shown: Callable[[Progress], None] | None) -> Callable[[Progress], None]:
            def report(progress: Progress) -> None:
                if pressed():
                    raise StopFit if may_keep else KeyboardInterrupt
                if shown is not None:
                    shown(progress)

            return report

        yield stopping


def _leave(screen: Screen, request: FitRequest, estimator: LVMOGPRegressor) -> None:
    outcome = estimator.outcome_
    keep = request.keep_on_interrupt or Confirm.ask(
        f"Keep the best model so far (bound {outcome.bound:.1f}, {outcome.n_iterations} iterations)?", default=False
    )
    if keep:
        save_somewhere(estimator, request.model)
        screen.note(f"interrupted; the best model so far is in {request.model}")
    else:
        screen.note("interrupted; no model was written")
    screen.document({"model": str(request.model) if keep else None, "interrupted": True, "notes": screen.notes})
    raise typer.Exit(INTERRUPTED)


def predict(
    screen: Screen,
    model: Path,
    data: Path,
    *,
    condition: str | None,
    condition_column: str | None,
    condition_features: Path | None,
    output_file: Path | None,
    level: float,
    function: bool,
    unseen: str,
) -> None:
    """Predict the rows of a table, as a table."""
    if output_file is not None:
        check_target(output_file, data, model)
    found = predict_table(
        LVMOGPRegressor.load(model),
        data,
        condition=condition,
        condition_column=condition_column,
        condition_features=condition_features,
        level=level,
        function=function,
        unseen=unseen,
    )
    if found.left_out:
        screen.note(f"some rows cannot be predicted and are left out: {missing_words(found.left_out)}")
    if output_file is not None:
        write_table(found.frame, output_file)
    if screen.for_people and screen.is_terminal:
        tell_predictions(screen, found.frame, level)
        if output_file is not None:
            tell_written(screen, "Predictions", output_file)
    elif screen.for_people and output_file is None:
        screen.raw(found.frame.to_csv(index=False))
    written = None if output_file is None else str(output_file)
    rows = {} if written else {"rows": records(found.frame)}
    screen.document({"level": level, "file": written, "n_rows": len(found.frame), **rows, "notes": screen.notes})


def add_condition(screen: Screen, path: Path, given: NewPoints, *, out: Path | None) -> None:
    """Take in new conditions and save the model again."""
    alone = given.data is None and not given.points and given.condition_features is not None
    if (given.data is None) == (not given.points) and not alone:
        raise SettingError("give the points of the new condition as a file, or with --point, one of the two")
    if given.data is None and given.error_column is not None:
        raise SettingError("--error-column names a column of a table; leave it out where there is no file of points")
    target = path if out is None else out
    check_target(target, given.data)
    model = LVMOGPRegressor.load(path)
    features = features_of_file(model, given.condition_features)
    if alone:
        added = add_described(model, features, condition=given.condition)
    elif given.data is None:
        added = add_points(model, given.points, condition=given.condition, output=given.output, features=features)
    else:
        added = add_from_file(
            model,
            given.data,
            condition=given.condition,
            condition_column=given.condition_column,
            output=given.output,
            features=features,
            errors=given.error_column,
        )
    if added.left_out:
        screen.note(f"some rows say nothing and are left out: {missing_words(added.left_out)}")
    model.save(target)
    latents = conditions_table(model)
    is_new = latents["condition"].isin(list(added.points))
    latents = pd.DataFrame(latents[is_new]).drop(columns="added")
    latents["most like"] = most_alike(model, list(latents["condition"]))
    tell_latents(screen, latents)
    screen.say("[dim]± one standard deviation; knowing nothing would be 0 ± 1 in each latent.[/]")
    tell_written(screen, "Model", target)
    screen.document({"model": str(target), "added": records(latents), "notes": screen.notes})


def show(screen: Screen, path: Path) -> None:
    """Tell what a model file holds: what was learnt from, how it went, and what the fit was made with."""
    model = LVMOGPRegressor.load(path)
    trained, outcome, origin = model.model_, model.outcome_, model.origin_
    settings = {name: encode_setting(value) for name, value in model.get_params(deep=False).items()}
    content = {
        "model": str(path),
        "n_conditions": len(trained.ids),
        "n_added": len(trained.added),
        "n_observations": None if trained.observations is None else len(trained.observations.outputs),
        "inputs": input_names(model),
        "output": trained.schema.output_name,
        "bound": outcome.bound,
        "status": outcome.status.value,
        "settings": settings,
        "origin": None if origin is None else origin._asdict(),
    }
    defaults = LVMOGPRegressor().get_params(deep=False)
    tell_model(screen, content, {name: value for name, value in settings.items() if value != defaults[name]})
    screen.document(content)


def conditions(screen: Screen, path: Path) -> None:
    """Show where all conditions lie in the latent space."""
    table = conditions_table(LVMOGPRegressor.load(path))
    if screen.for_people and not screen.is_terminal:
        screen.raw(table.to_csv(index=False))
    else:
        marks = pd.Series(np.where(table["added"], "added", ""), table.index, name="")
        shown = table.drop(columns="added")
        tell_latents(screen, pd.concat([shown, marks], axis=1) if np.any(table["added"]) else shown)
    screen.document({"conditions": records(table)})


def conditions_table(model: LVMOGPRegressor) -> pd.DataFrame:
    """The latents of all conditions with the number of points of each, where the model has kept its data."""
    trained = model.model_
    table = model.latents_
    if trained.observations is not None:
        counts = np.bincount(trained.observations.conditions, minlength=len(trained.ids)).tolist()
        table["points"] = [*counts, *(len(entry.outputs) for entry in trained.added.values())]
    return table


def most_alike(model: LVMOGPRegressor, names: Sequence[Any]) -> list[str]:
    """The trained condition whose curve is expected to be most like that of each of these, with the correlation."""
    trained = list(model.model_.ids)
    between = model.similarities().loc[list(names), trained].to_numpy()
    return [f"{trained[int(row.argmax())]} ({row.max():.2f})" for row in between]


def report(screen: Screen, path: Path, out: Path | None) -> None:
    """Write the page to explore a model with."""
    from lvmogp.page.report import write_report

    target = path.with_suffix(".html") if out is None else out
    check_target(target, path)
    write_report(LVMOGPRegressor.load(path), target)
    tell_written(screen, "Page", target)
    screen.document({"page": str(target), "notes": screen.notes})
