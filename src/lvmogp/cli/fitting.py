"""The command that fits: a table or Parquet files, one process or several, to a model file."""

import os
import secrets
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import pandas as pd
import typer
from rich.markup import escape
from rich.prompt import Confirm

from lvmogp.cli.answers import check_target
from lvmogp.cli.files.parquet import open_parquet
from lvmogp.cli.files.roles import Roles, complete_rows, read_features, wide_rows
from lvmogp.cli.files.tables import is_parquet, read_table
from lvmogp.cli.screen import INTERRUPTED, Screen, counted, missing_words
from lvmogp.errors import ConvergenceWarning, LVMOGPError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.inference.minibatch.distributed import Rendezvous, gathered, join_processes
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.inference.restarts import Progress
from lvmogp.insight.summary import Summary, about_magnitudes, summary
from lvmogp.insight.variance import in_words as shares_in_words
from lvmogp.progress import in_words, job_progress, progress_bar
from lvmogp.storage.checkpoints import clear_checkpoints

_BAR = 20  # characters of the longest bar of a relevance
_IGNORED_SHOWN = 5
_Source = tuple[dict[str, Any], dict[str, Any]]


def fit(screen: Screen, data: Path, model: Path, *, wide: bool, keep_on_interrupt: bool, **options: Any) -> None:
    """Fit a model to a table, save it and tell how good it is."""
    check_target(model, data)
    condition_features, distributed = options.pop("condition_features"), options.pop("distributed")
    kept = {name: options.pop(name) for name in ("checkpoint", "checkpoint_seconds", "resume")}
    checkpoint = kept["checkpoint"]
    screen.after_failure = "no model was written"
    if checkpoint is not None:
        screen.after_failure = f"the same command with --resume goes on from the last checkpoint in {checkpoint}"
    meeting = Rendezvous(*(options.pop(name) for name in ("coordinator", "processes", "process")))
    inputs, *others = (options.pop(name) for name in ("inputs", "condition", "output", "error_column"))
    roles = Roles(tuple(inputs or ()), *others)
    _set_transforms(options)
    _set_kernels(options)
    is_stochastic = options["inference"] == "stochastic"  # all that is left are settings of the estimator
    in_pieces = is_parquet(data) and (is_stochastic or data.is_dir())
    if (in_pieces or not wide) and (roles.output is None or roles.condition is None):
        raise SettingError(
            "name the columns of the output and of the condition with --output and --condition, or say --wide for a "
            "table with one column per condition"
        )
    if not distributed and any(value is not None for value in meeting):
        raise SettingError("--coordinator, --processes and --process belong to --distributed; add it")
    if distributed and keep_on_interrupt:
        raise SettingError("--keep-on-interrupt is not for --distributed; keep --checkpoint, and go on with --resume")
    if distributed and not (is_parquet(data) and is_stochastic):
        raise SettingError(
            "--distributed fits Parquet files by minibatches; give a .parquet file or a folder of them, and "
            "--inference stochastic"
        )
    with ExitStack() as opened:
        if distributed:
            opened.enter_context(_among_others(screen, meeting))
        if in_pieces:
            arguments, about = _pieces(screen, opened, data, roles, condition_features)
        else:
            arguments, about = _table(screen, data, roles, condition_features, wide=wide)
            _note_magnitudes(screen, roles, arguments, options)
        estimator = LVMOGPRegressor(condition=roles.condition, **options)
        with _progress(screen, keep_on_interrupt=keep_on_interrupt) as report:
            estimator.fit(**arguments, **kept, on_progress=report)
        if jax.process_index() > 0:
            return
        if estimator.outcome_.status is Status.INTERRUPTED:
            _leave(screen, estimator, model, keep=keep_on_interrupt)
        save_somewhere(estimator, model)
        screen.after_failure = f"the model is in {model}"
        if checkpoint is not None:
            clear_checkpoints(checkpoint)
        found = summary(estimator)
        _say_summary(screen, found)
        screen.say_written("Model", model)
        screen.document({"model": model, "data": about, "summary": found.as_dict(), "notes": screen.notes})


def _set_transforms(options: dict[str, Any]) -> None:
    # As the estimator has them.
    logs: Sequence[str] = options.pop("log_inputs") or ()
    if logs and options["input_transform"] == "auto":
        raise SettingError(
            "name inputs with --log-input, or let the bound choose with --input-transform auto, not both"
        )
    for name in ("input_transform", "output_transform"):
        options[name] = None if options[name] == "none" else options[name]
    if logs:
        options["input_transform"] = dict.fromkeys(logs, "log")


def _set_kernels(options: dict[str, Any]) -> None:
    # Kernels that are given once, several times or with commas between; "none" for none.
    given = [name.strip() for text in options["input_kernel"] for name in text.split(",")]
    if len(given) > 1 and "none" in given:
        raise SettingError("--input-kernel none leaves latents out; name other kernels, or none alone")
    options["input_kernel"] = given if len(given) > 1 else given[0]
    for name in ("input_kernel", "shared_kernel", "own_kernel"):
        options[name] = None if options[name] == "none" else options[name]


# What the estimator is fitted to, and what to say of it to people and to programs


def _table(screen: Screen, path: Path, roles: Roles, condition_features: Path | None, *, wide: bool) -> _Source:
    if wide:
        for name, option in ((roles.condition, "--condition column"), (roles.errors, "--error-column")):
            if name is not None:
                raise SettingError(f"--wide has one column per condition, so there is no {option} to name")
        table = read_table(path)
        rows = wide_rows(table, roles.inputs)
        X, conditions = rows.X, list(pd.DataFrame(rows.y))
    else:
        condition = str(roles.condition)
        table = read_table(path, ids=[condition])
        rows = complete_rows(table, roles)
        X = rows.X.assign(**{condition: pd.Series(rows.ids, dtype=object)})
        conditions = list(dict.fromkeys(rows.ids or ()))
        if len(conditions) == len(X) > 1:
            screen.note(
                f"each of the {len(X)} rows has a {condition!r} of its own, so nothing can be learnt about any one of "
                "them; is it the right column?"
            )
    features = read_features(condition_features, condition=roles.condition, known=conditions)
    outputs, dates = pd.DataFrame(rows.y), list(map(str, rows.X.select_dtypes("datetime")))
    n_points = int(outputs.notna().to_numpy().sum())
    facts = _facts(path, table.written, (n_points, len(conditions)), rows.X.columns, dates, roles.output)
    left_out = f"{counted(len(table.frame) - len(rows.X), 'row')}: {escape(missing_words(rows.left_out))}"
    missing = f"{counted(outputs.size - n_points, 'cell')} of {outputs.size:,}".replace(",", " ")
    shown = ", ".join(rows.ignored[:_IGNORED_SHOWN]) + (", …" if len(rows.ignored) > _IGNORED_SHOWN else "")
    facts["left out"] = left_out if rows.left_out else None
    facts["missing"] = missing if wide else None
    facts["ignored"] = f"{escape(shown)} [dim](not numbers)[/]" if rows.ignored else None
    screen.say_facts(facts)
    about = {"written": table.written, "n_rows": len(table.frame), "left_out": rows.left_out, "ignored": rows.ignored}
    return {"X": X, "y": rows.y, "condition_features": features, "y_std": rows.y_std}, {"file": path, **about}


def _note_magnitudes(screen: Screen, roles: Roles, arguments: dict[str, Any], options: dict[str, Any]) -> None:
    # Before a fit that may take long, what the summary would say after it.
    inputs: pd.DataFrame = arguments["X"].select_dtypes("number")
    asked, outputs = options["input_transform"], np.ravel(arguments["y"].to_numpy(dtype=float))
    left = {} if asked == "auto" else inputs.drop(columns=[roles.condition, *(asked or ())], errors="ignore")
    columns = {str(name): np.asarray(values, dtype=float) for name, values in left.items()}
    observed = outputs[np.isfinite(outputs)] if options["output_transform"] is None else None
    for remark in about_magnitudes(columns, observed, roles.output):
        screen.note(remark)


def _pieces(screen: Screen, opened: ExitStack, path: Path, roles: Roles, condition_features: Path | None) -> _Source:
    # Parquet files read in pieces, by one process or several.
    if condition_features is not None or roles.errors is not None:
        raise SettingError(
            "data that are read in pieces cannot be fitted with --condition-features or --error-column; leave that "
            "out, or give a smaller file"
        )
    part = slice(jax.process_index(), None, jax.process_count())
    columns: dict[str, Any] = {"output": roles.output, "condition": roles.condition, "inputs": roles.inputs}
    with job_progress("rows read", shown=screen.for_people and jax.process_index() == 0) as report:
        store = opened.enter_context(open_parquet(path, **columns, part=part, on_progress=report))
    counts, inputs = (len(store.outputs), len(store.ids)), store.columns or ()
    screen.say_facts(_facts(path, "Parquet, read in pieces", counts, inputs, store.date_columns, roles.output))
    n_rows = sum(gathered(len(store.outputs), int))  # all processes must ask
    return {"X": store}, {"file": path, "n_rows": n_rows}


def _facts(
    path: Path, written: str, counts: tuple[int, int], inputs: Iterable[str], dates: Sequence[str], output: str | None
) -> dict[str, str | None]:
    n_points, n_conditions = counts
    return {
        "file": f"{escape(str(path))}  [dim]{escape(written)}[/]",
        "points": f"{counted(n_points, 'point')} of {counted(n_conditions, 'condition')}",
        "inputs": escape(", ".join(f"{name} (dates)" if name in dates else name for name in inputs)),
        "output": None if output is None else escape(output),
    }


@contextmanager
def _among_others(screen: Screen, meeting: Rendezvous) -> Iterator[None]:
    # One of several processes that fit one model, as a launcher such as SLURM has started it. The library through
    # which they talk on CPUs prints to the standard output, where the result is to stand alone: what it says goes to
    # the standard error.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    join_processes(meeting)
    try:
        yield
    except BaseException as failure:
        if isinstance(failure, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(failure):
            failure = LVMOGPError(
                f"another process of this fit was lost, or cannot be reached ({failure!s:.200}); start all of them "
                "again, with --resume where there are checkpoints"
            )
        code = screen.fail(failure)
        sys.stdout.flush()
        os._exit(code)  # an exit of the usual kind would wait for the others, which wait for this one


@contextmanager
def _progress(screen: Screen, *, keep_on_interrupt: bool) -> Iterator[Callable[[Progress], None] | None]:
    # A bar, and Ctrl-C that asks the fit to stop with the best model so far; pressed again, it interrupts at once.
    can_ask = screen.for_people and screen.is_terminal and sys.stdin.isatty()
    asked = False

    def ask(signal_number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.note("stopping after this iteration; press Ctrl-C again to stop at once")

    def report(progress: Progress) -> None:
        if asked:
            raise StopFit
        if bar is not None:
            bar(progress)

    with progress_bar(shown=screen.for_people and jax.process_index() == 0) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the summary says so
        # One of several processes cannot stop after a step of its own choice: the others would wait for it.
        if not (keep_on_interrupt or can_ask) or jax.process_count() > 1:
            yield bar
            return
        previous = signal.signal(signal.SIGINT, ask)
        try:
            yield report
        finally:
            signal.signal(signal.SIGINT, previous)


def _leave(screen: Screen, estimator: LVMOGPRegressor, path: Path, *, keep: bool) -> None:
    outcome = estimator.outcome_
    question = f"Keep the best model so far (bound {outcome.bound:.1f}, {outcome.n_iterations} iterations)?"
    keep = keep or Confirm.ask(question, default=False)
    if keep:
        save_somewhere(estimator, path)
    screen.note(f"interrupted; {f'the best model so far is in {path}' if keep else 'no model was written'}")
    screen.document({"model": path if keep else None, "interrupted": True, "notes": screen.notes})
    raise typer.Exit(INTERRUPTED)


def save_somewhere(model: LVMOGPRegressor, path: Path) -> None:
    """Save a model that took long to fit; if its disk has become full or read-only, to where there is room."""
    try:
        model.save(path)
    except OSError as error:
        for folder in (Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
            elsewhere = folder / f"{path.stem}-{secrets.token_hex(4)}{path.suffix}"
            with suppress(OSError):
                model.save(elsewhere)
                raise SettingError(
                    f"{path} cannot be written ({error.strerror}); the fitted model is in {elsewhere} instead, move it "
                    "to where you want it"
                ) from None
        raise


def _say_summary(screen: Screen, found: Summary) -> None:
    screen.say()
    parts = [escape(part) for part in (found.output_transform, found.output) if part is not None]
    output = f" of {' '.join(parts)}" if parts else ""
    starts = f"best of {counted(found.n_starts, 'start')}, {in_words(found.seconds)}"
    drawn = f"{counted(found.n_draws, 'draw')}  [dim]from the posterior, by Markov chains[/]"
    left_out = found.leave_out and (
        f"{found.leave_out.rmse:.4g}  [dim]of points left out, against {found.leave_out.spread:.4g} "
        f"without a model; 95 % intervals hold {100 * found.leave_out.coverage:.0f} %[/]"
    )
    screen.say_facts(
        {
            "bound": f"{found.bound:.1f}  [dim]{found.status}; {starts}[/]",
            "noise": f"{found.noise_sd:.4g}  [dim]standard deviation{output}[/]",
            "variance": shares_in_words(found.variance_shares),
            "log inputs": escape(", ".join(found.input_transform)),
            "answers from": drawn if found.n_draws else None,
            "left-out error": left_out,
        }
    )
    screen.say("\n[bold]relevance[/]  [dim]0 changes nothing, 1 everything[/]")
    latents = [(f"latent {place}", value) for place, value in found.latent_relevance.itertuples(index=False)]
    named = [*found.input_relevance.itertuples(index=False), *found.feature_relevance.itertuples(index=False), *latents]
    width = max(len(name) for name, _ in named)
    for name, value in named:
        filled = round(_BAR * float(np.clip(value, 0, 1)))
        bar = f"[cyan]{'━' * filled}[/]{' ' * (_BAR - filled)}"
        screen.say(f"  {escape(f'{name:<{width}}')}  {bar} {value:.2f}")
    for remark in found.remarks:
        if remark not in screen.notes:  # which one before the fit may be
            screen.note(remark)
