"""The command that fits: a table or Parquet files, one process or several, to a model file."""

import contextlib
import os
import secrets
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
import pandas as pd
import typer
from rich.markup import escape
from rich.prompt import Confirm

from lvmogp.cli.files.parquet import Part, open_parquet
from lvmogp.cli.files.roles import CompleteRows, Roles, complete_rows, read_features, wide_rows
from lvmogp.cli.files.tables import FileTable, first_line, is_parquet, read_table
from lvmogp.cli.model_rows import check_target
from lvmogp.cli.screen import INTERRUPTED, Screen, counted, missing_words, number
from lvmogp.errors import ConvergenceWarning, LVMOGPError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.inference.minibatch.distributed import Rendezvous, join_processes, summed
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.inference.restarts import Progress
from lvmogp.insight.summary import Summary, summary
from lvmogp.progress import in_words, job_progress, progress_bar
from lvmogp.storage.checkpoints import clear_checkpoints

_BAR = 20  # characters of the longest bar of a relevance
_IGNORED_SHOWN = 5


class FitRequest(NamedTuple):
    """What the user asked to be fitted; ``settings`` are those of the estimator, ``checkpoints`` those of its fit."""

    data: Path
    model: Path
    roles: Roles
    wide: bool
    condition_features: Path | None
    settings: dict[str, Any]
    checkpoints: dict[str, Any]
    distributed: bool
    meeting: tuple[str | None, int | None, int | None]  # coordinator, number of processes, number of this one
    keep_on_interrupt: bool


def fit(screen: Screen, request: FitRequest) -> None:
    """Fit a model to a table, save it and tell how good it is."""
    check_target(request.model, request.data)
    folder = request.checkpoints["checkpoint"]
    screen.after_failure = "no model was written"
    if folder is not None:
        screen.after_failure = f"the same command with --resume goes on from the last checkpoint in {folder}"
    is_stochastic = request.settings["inference"] == "stochastic"
    if request.distributed:
        _fit_together(screen, request, is_stochastic=is_stochastic)
    elif any(value is not None for value in request.meeting):
        raise SettingError("--coordinator, --processes and --process belong to --distributed; add it")
    elif is_parquet(request.data) and (is_stochastic or request.data.is_dir()):
        _fit_pieces(screen, request)
    else:
        _fit_table(screen, request)


def _fit_table(screen: Screen, request: FitRequest) -> None:
    roles = request.roles
    if request.wide:
        for name, option in ((roles.condition, "--condition column"), (roles.errors, "--error-column")):
            if name is not None:
                raise SettingError(f"--wide has one column per condition, so there is no {option} to name")
        table = read_table(request.data)
        rows = wide_rows(table, roles.inputs)
        X = rows.X
    else:
        output, condition = _named_columns(roles)
        table = read_table(request.data, ids=[condition])
        rows = complete_rows(table, roles._replace(output=output, condition=condition))
        X = rows.X.assign(**{condition: pd.Series(rows.ids, dtype=object)})
        if len(rows.conditions) == len(X) > 1:
            screen.note(
                f"each of the {len(X)} rows has a {condition!r} of its own, so nothing can be learnt about any one of "
                "them; is it the right column?"
            )
    features = None
    if request.condition_features is not None:
        features = read_features(request.condition_features, condition=roles.condition, known=rows.conditions)
    _tell_understood(screen, table, rows, output=roles.output)
    estimator = LVMOGPRegressor(condition=roles.condition, **request.settings)
    _run(screen, request, estimator, X, rows.y, condition_features=features, y_std=rows.y_std)
    understood = {
        "file": str(table.path),
        "written": table.written,
        "n_rows": rows.n_rows,
        "left_out": rows.left_out,
        "ignored": list(rows.ignored),
    }
    _finish(screen, request, estimator, understood)


def _fit_pieces(screen: Screen, request: FitRequest) -> None:
    # Parquet files read in pieces, by one process or several; the first one saves and tells.
    if request.condition_features is not None or request.roles.errors is not None:
        raise SettingError(
            "data that are read in pieces cannot be fitted with --condition-features or --error-column; leave that "
            "out, or give a smaller file"
        )
    output, condition = _named_columns(request.roles)
    columns = {"output": output, "condition": condition, "inputs": request.roles.inputs}
    part = Part(jax.process_index(), jax.process_count())
    estimator = LVMOGPRegressor(condition=condition, **request.settings)
    with ExitStack() as opened:
        with job_progress("rows read", shown=screen.for_people and part.first == 0) as report:
            store = opened.enter_context(open_parquet(request.data, **columns, part=part, on_progress=report))
        inputs = _input_words(store.columns or (), store.date_columns)
        points = f"{counted(len(store.outputs), 'point')} of {counted(len(store.ids or ()), 'condition')}"
        file = f"{escape(str(request.data))}  [dim]Parquet, read in pieces[/]"
        screen.say_facts({"file": file, "points": points, "inputs": inputs, "output": escape(output)})
        _run(screen, request, estimator, store)
        n_rows = int(summed(np.asarray([len(store.outputs)]))[0])  # all processes must ask
    if part.first == 0:
        _finish(screen, request, estimator, {"file": str(request.data), "n_rows": n_rows})


def _fit_together(screen: Screen, request: FitRequest, *, is_stochastic: bool) -> None:
    # One of several processes that fit one model, as a launcher such as SLURM has started it.
    if request.keep_on_interrupt:
        raise SettingError("--keep-on-interrupt is not for --distributed; keep --checkpoint, and go on with --resume")
    if not is_parquet(request.data) or not is_stochastic:
        raise SettingError(
            "--distributed fits Parquet files by minibatches; give a .parquet file or a folder of them, and "
            "--inference stochastic"
        )
    # The library through which processes talk on CPUs prints to the standard output, where the result is to stand
    # alone: what it says goes to the standard error.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    join_processes(Rendezvous(*request.meeting))
    try:
        _fit_pieces(screen, request)
    except BaseException as failure:
        if isinstance(failure, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(failure):
            reason = first_line(failure)
            failure = LVMOGPError(
                f"another process of this fit was lost, or cannot be reached ({reason:.200}); start all "
                "of them again, with --resume where there are checkpoints"
            )
        code = screen.fail(failure)
        sys.stdout.flush()
        os._exit(code)  # an exit of the usual kind would wait for the others, which wait for this one


def _named_columns(roles: Roles) -> tuple[str, str]:
    if roles.output is None or roles.condition is None:
        raise SettingError(
            "name the columns of the output and of the condition with --output and --condition, or say --wide for a "
            "table with one column per condition"
        )
    return roles.output, roles.condition


# The fit itself


def _run(screen: Screen, request: FitRequest, estimator: LVMOGPRegressor, *data: Any, **more: Any) -> None:
    can_ask = screen.for_people and screen.is_terminal and sys.stdin.isatty()
    # One of several processes cannot stop after a step of its own choice: the others would wait for it.
    may_keep = (request.keep_on_interrupt or can_ask) and jax.process_count() == 1
    with (
        progress_bar(shown=screen.for_people and jax.process_index() == 0) as shown,
        _interruptible(screen, shown) if may_keep else contextlib.nullcontext(shown) as report,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)  # the summary says so
        estimator.fit(*data, **more, on_progress=report, **request.checkpoints)


@contextmanager
def _interruptible(
    screen: Screen, shown: Callable[[Progress], None] | None
) -> Iterator[Callable[[Progress], None] | None]:
    # Ctrl-C asks the fit to stop with the best model so far; pressed again, it interrupts at once, as usual.
    asked = False

    def ask(signal_number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.note("stopping after this iteration; press Ctrl-C again to stop at once")

    def report(progress: Progress) -> None:
        if asked:
            raise StopFit
        if shown is not None:
            shown(progress)

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield report
    finally:
        signal.signal(signal.SIGINT, previous)


def _finish(screen: Screen, request: FitRequest, estimator: LVMOGPRegressor, understood: dict[str, Any]) -> None:
    if estimator.outcome_.status is Status.INTERRUPTED:
        _leave(screen, request, estimator)
    save_somewhere(estimator, request.model)
    screen.after_failure = f"the model is in {request.model}"
    if request.checkpoints["checkpoint"] is not None:
        clear_checkpoints(request.checkpoints["checkpoint"])
    found = summary(estimator)
    _tell_summary(screen, found)
    screen.say_written("Model", request.model)
    screen.document(
        {"model": str(request.model), "data": understood, "summary": found.as_dict(), "notes": screen.notes}
    )


def _leave(screen: Screen, request: FitRequest, estimator: LVMOGPRegressor) -> NoReturn:
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


# In words


def _input_words(names: tuple[str, ...], dates: tuple[str, ...]) -> str:
    return escape(", ".join(f"{name} (dates)" if name in dates else name for name in names))


def _tell_understood(screen: Screen, table: FileTable, rows: CompleteRows, *, output: str | None) -> None:
    facts = {
        "file": f"{escape(str(table.path))}  [dim]{escape(table.written)}[/]",
        "points": f"{counted(rows.n_points, 'point')} of {counted(len(rows.conditions), 'condition')}",
        "inputs": _input_words(tuple(rows.X.columns), rows.dates),
    }
    if output is not None:
        facts["output"] = escape(output)
    if rows.left_out:
        facts["left out"] = f"{counted(rows.n_rows - len(rows.X), 'row')}: {escape(missing_words(rows.left_out))}"
    if isinstance(rows.y, pd.DataFrame):
        facts["missing"] = f"{counted(rows.y.size - rows.n_points, 'cell')} of {rows.y.size:,}".replace(",", " ")
    if rows.ignored:
        shown = ", ".join(rows.ignored[:_IGNORED_SHOWN]) + (", …" if len(rows.ignored) > _IGNORED_SHOWN else "")
        facts["ignored"] = f"{escape(shown)} [dim](not numbers)[/]"
    screen.say_facts(facts)


def _tell_summary(screen: Screen, found: Summary) -> None:
    screen.say()
    parts = [escape(part) for part in (found.output_transform, found.output) if part is not None]
    output = f" of {' '.join(parts)}" if parts else ""
    starts = f"best of {counted(found.n_starts, 'start')}, {in_words(found.seconds)}"
    facts = {
        "bound": f"{found.bound:.1f}  [dim]{found.status}; {starts}[/]",
        "noise": f"{number(found.noise_sd)}  [dim]standard deviation{output}[/]",
    }
    if found.n_draws > 0:
        facts["answers from"] = f"{counted(found.n_draws, 'draw')}  [dim]from the posterior, by Markov chains[/]"
    if found.leave_out is not None:
        facts["left-out error"] = (
            f"{number(found.leave_out.rmse)}  [dim]of points left out, against {number(found.leave_out.spread)} "
            f"without a model; 95 % intervals hold {100 * found.leave_out.coverage:.0f} %[/]"
        )
    screen.say_facts(facts)
    screen.say("\n[bold]relevance[/]  [dim]0 changes nothing, 1 everything[/]")
    latents = [(f"latent {place}", value) for place, value in found.latent_relevance.itertuples(index=False)]
    named = [*found.input_relevance.itertuples(index=False), *found.feature_relevance.itertuples(index=False), *latents]
    width = max(len(name) for name, _ in named)
    for name, value in named:
        filled = round(_BAR * float(np.clip(value, 0, 1)))
        bar = f"[cyan]{'━' * filled}[/]{' ' * (_BAR - filled)}"
        screen.say(f"  {escape(f'{name:<{width}}')}  {bar} {value:.2f}")
    for remark in found.remarks:
        screen.note(remark)
