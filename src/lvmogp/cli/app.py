"""The commands with their arguments, options and help; the work is done by the functions that they name."""

import gc
import inspect
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import typer

from lvmogp.__about__ import __version__
from lvmogp.cli.screen import reported

app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Gaussian processes for data from many conditions: fit a table, predict, add conditions from a few points.",
)


# Arguments and options, whose first argument is the default; that of what must be given is "..."


def _option(default: Any, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(default, *names, help=text, **more)


def _count(text: str, *, least: int = 0) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < least:
        raise typer.BadParameter(f"{text!r} is neither a whole number of at least {least} nor 'auto'")
    return int(text)


_column = partial(_option, rich_help_panel="Columns", metavar="COLUMN")
_modelled = partial(_option, rich_help_panel="Model", metavar="NAME")
_latent_count = partial(_modelled, metavar="N|auto", parser=_count)
_searched = partial(_option, rich_help_panel="Search")
_search_count = partial(_searched, metavar="N|auto", parser=partial(_count, least=1))
_long_fit = partial(_option, rich_help_panel="Long fits")

_MODEL = typer.Argument(..., help="A model file, made by 'lvmogp fit'.")
_CONDITION = _option(None, "One condition for all rows.")
_CONDITION_COLUMN = _option(None, "Column with the condition of each row; default: the one the model was fitted with.")
_OUTPUT_COLUMN = _option(None, "Column with the output; default: the one the model was fitted with.")
_ERROR_COLUMN = _option(None, "Column of the data with the standard deviation of each measurement.")
_CONDITION_FEATURES = _option(
    None,
    "Table of what is known of conditions: a row each, their ids in a column named as in the data.",
    metavar="FILE",
)
_UNSEEN = _option("error", "A condition never seen is an error, or predicted from the prior.")
_OF_THE_SCREEN = {
    "as_json": _option(False, "Print the result as JSON, for other programs.", "--json"),
    "quiet": _option(False, "Print nothing but errors.", "--quiet", "-q"),
    "debug": _option(False, "Show the traceback of an error.", "--debug"),
}


def _command(module: str) -> Callable[[Callable[..., None]], None]:
    """Register a command that is declared without a body: a function of its name in a module here does the work.

    The function gets a screen, for which the command has some more options, and the values of all others by their
    names. Its module is imported when the command runs, so that help needs neither JAX nor pandas.
    """

    def register(declared: Callable[..., None]) -> None:
        @wraps(declared)
        def run(**options: Any) -> None:
            with reported(**{name: options.pop(name) for name in _OF_THE_SCREEN}) as screen:
                getattr(import_module(f"lvmogp.cli.{module}"), declared.__name__)(screen, **options)

        own = inspect.signature(declared)
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool)
            for name, option in _OF_THE_SCREEN.items()
        ]
        vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *added])
        app.command()(run)

    return register


@app.callback(invoke_without_command=True)
def _common(version: bool = _option(False, "Show the version and exit.", "--version")) -> None:
    if version:
        typer.echo(f"lvmogp {__version__}")
        raise typer.Exit


# The options that are settings of the estimator have its names.
@_command("fitting")
def fit(
    data: Path = typer.Argument(..., help="Table: CSV, Excel, Parquet, or a folder of Parquet."),
    model: Path = _option(..., "Model file to write."),
    output: str | None = _column(None, "To be predicted."),
    condition: str | None = _column(None, "Id of the condition of each row."),
    inputs: list[str] | None = _column(
        None, "An input; may be repeated. Default: all others with numbers or dates; with --wide the first.", "--input"
    ),
    wide: bool = _column(False, "One column per condition beside the inputs.", "--wide", metavar=None),
    error_column: str | None = _column(None, "Standard deviation of each measurement's error, beside the noise."),
    condition_features: Path | None = _CONDITION_FEATURES,
    n_latent: Any = _latent_count("2", "Dimensions of the latent space; 0 with features alone.", "--latents"),
    noise: Literal["shared", "per-condition"] = _modelled(
        "per-condition", "One noise for all conditions, or one for each, pooled."
    ),
    input_kernel: list[str] = _modelled(
        ["auto"], "Over inputs: auto, rbf, matern52, …; of several, as in rbf,matern32, the curves are added up."
    ),
    latent_kernel: str = _modelled("auto", "Over latents: auto, rbf, linear, …"),
    shared_kernel: str = _modelled("auto", "Of a curve that all conditions share: auto, none, rbf, …"),
    own_kernel: str = _modelled("auto", "Of a curve that each condition has for itself: auto, none, rbf, …"),
    log_inputs: list[str] | None = _modelled(
        None, "An input whose logarithm to model; may be repeated.", "--log-input", metavar="COLUMN"
    ),
    input_transform: Literal["none", "auto"] = _modelled(
        "none", "auto lets the bound choose the inputs whose logarithms to model."
    ),
    output_transform: Literal["none", "log", "sqrt", "auto"] = _modelled(
        "none", "Model the logarithm or the square root of the output, for noise that grows with it; auto chooses."
    ),
    n_inducing_inputs: Any = _search_count("auto", "Inducing inputs; more are more exact.", "--inducing-inputs"),
    n_inducing_latents: Any = _search_count("auto", "Inducing latents; more are more exact.", "--inducing-latents"),
    n_restarts: Any = _search_count("auto", "Starts, of which the best wins.", "--restarts"),
    max_iter: Any = _search_count("auto", "Most iterations of each start."),
    random_state: int = _searched(0, "Same seed, same answer.", "--seed", min=0),
    inference: Literal["auto", "collapsed", "full", "kronecker", "stochastic", "nuts"] = _searched(
        "auto", "Variational family; stochastic goes by minibatches, nuts draws from the posterior.", metavar="NAME"
    ),
    batch_size: Any = _search_count("auto", "Observations in a minibatch."),
    n_chains: Any = _search_count("auto", "Markov chains, with --inference nuts.", "--chains"),
    n_warmup: Any = _search_count("auto", "Steps in which each chain learns how to move.", "--warmup"),
    n_draws: Any = _search_count("auto", "Draws that each chain keeps.", "--draws"),
    checkpoint: Path | None = _long_fit(None, "For checkpoints, from which --resume goes on.", metavar="FOLDER"),
    checkpoint_seconds: float = _long_fit(60.0, "Seconds between two checkpoints.", min=0.0),
    resume: bool = _long_fit(False, "Go on from the checkpoints.", "--resume"),
    distributed: bool = _long_fit(False, "Fit with other processes, started with the same command.", "--distributed"),
    coordinator: str | None = _long_fit(None, "First process; known to SLURM, MPI, Kubernetes.", metavar="HOST:PORT"),
    processes: int | None = _long_fit(None, "How many processes there are.", min=1),
    process: int | None = _long_fit(None, "Which of them this is, from 0.", min=0),
    keep_on_interrupt: bool = _option(False, "After Ctrl-C, save the best model so far.", "--keep-on-interrupt"),
) -> None:
    """Fit a model to a table and save it.

    Delimiter, decimal mark and encoding of a CSV file are found by themselves.
    Rows without an output, an input or a condition are left out and counted.

    [bold]Example:[/] lvmogp fit data.csv --output distance --condition tyre --model brakes.lvmogp
    """


@_command("answers")
def predict(
    model: Path = _MODEL,
    data: Path = typer.Argument(..., help="Table with the inputs to predict at."),
    condition: str | None = _CONDITION,
    condition_column: str | None = _CONDITION_COLUMN,
    condition_features: Path | None = _CONDITION_FEATURES,
    output_file: Path | None = _option(None, "Write the predictions here (.csv, .xlsx or .parquet)."),
    level: float = _option(0.95, "Probability of the interval.", min=0.0, max=1.0),
    function: bool = _option(False, "Intervals of the function, without the noise of observations.", "--function"),
    unseen: Literal["error", "prior"] = _UNSEEN,
) -> None:
    """Predict the rows of a table: mean, standard deviation, median and interval of a new observation.

    On a terminal the first rows are shown; into a file or another program all rows go as CSV.

    [bold]Example:[/] lvmogp predict brakes.lvmogp new.csv --condition tyre-A --output-file predicted.csv
    """


@_command("models")
def add_condition(
    model: Path = _MODEL,
    data: Path | None = typer.Argument(None, help="Table with a few observations of new conditions."),
    point: list[str] | None = _option(None, "An observation, such as speed=20,distance=25; may be repeated."),
    condition: str | None = _option(None, "Name of the new condition, for all points."),
    condition_column: str | None = _CONDITION_COLUMN,
    condition_features: Path | None = _CONDITION_FEATURES,
    error_column: str | None = _ERROR_COLUMN,
    output: str | None = _OUTPUT_COLUMN,
    out: Path | None = _option(None, "Write the model here instead of replacing it."),
) -> None:
    """Add conditions to a model from a few points or known features; what was learnt before stays as it is.

    [bold]Example:[/] lvmogp add-condition brakes.lvmogp --condition tyre-K --point speed=20,distance=25
    """


@_command("answers")
def suggest(
    model: Path = _MODEL,
    condition: str = _option(..., "The condition to measure: a new one, or one of the model's."),
    candidates: Path | None = _option(None, "Table with the inputs that could be measured."),
    grid: list[str] | None = _option(
        None, "Grid of candidates, once for each input: speed=3:30:28, even in the logarithm if modelled, or load=2."
    ),
    n: int = _option(1, "How many measurements to choose.", "--n", "-n", min=1),
    goal: Literal["predictions", "latents"] = _option("predictions", "What to learn about the condition."),
    region: Path | None = _option(None, "Table with the inputs where predictions matter; default: the candidates."),
    condition_features: Path | None = _CONDITION_FEATURES,
) -> None:
    """Say where to measure a condition next, and how much each measurement is expected to tell.

    Without candidates, the range of the training inputs is covered.

    [bold]Example:[/] lvmogp suggest brakes.lvmogp --condition tyre-K --grid speed=3:30:28 --n 3
    """


@_command("answers")
def calibration(
    model: Path = _MODEL,
    data: Path | None = typer.Argument(
        None, help="Held-out observations; default: the training data, left out in turn."
    ),
    condition: str | None = _CONDITION,
    condition_column: str | None = _CONDITION_COLUMN,
    condition_features: Path | None = _CONDITION_FEATURES,
    error_column: str | None = _ERROR_COLUMN,
    output: str | None = _OUTPUT_COLUMN,
    unseen: Literal["error", "prior"] = _UNSEEN,
    plot: Path | None = _option(None, "Draw coverage against level into this file."),
) -> None:
    """Check whether intervals hold as many observations as they promise.

    [bold]Example:[/] lvmogp calibration brakes.lvmogp held-out.csv --plot calibration.png
    """


@_command("models")
def conditions(model: Path = _MODEL) -> None:
    """Show where the conditions lie in the latent space.

    [bold]Example:[/] lvmogp conditions brakes.lvmogp
    """


@_command("models")
def show(model: Path = _MODEL) -> None:
    """Show what a model file holds: data, settings, seed, and the versions that the fit was made with.

    [bold]Example:[/] lvmogp show brakes.lvmogp
    """


@_command("models")
def report(
    model: Path = _MODEL,
    out: Path | None = _option(None, "Page to write; default: beside the model.", "--out", "-o"),
) -> None:
    """Write a page to explore a model with: one file that works offline in any browser.

    [bold]Example:[/] lvmogp report brakes.lvmogp -o brakes.html
    """


@_command("models")
def demo(
    out: Path = _option(Path("out"), "Folder for the figures."),
    seed: int = _option(1, "Seed of the simulated experiments.", min=0),
) -> None:
    """Run the braking example: fit ten tyres, add an eleventh from one observation, draw the figures.

    [bold]Example:[/] lvmogp demo --out out
    """


def main() -> None:
    """Entry point of the ``lvmogp`` command."""
    # Imports make very many objects, all of which stay: looking for garbage among them takes an eighth of their time,
    # and a last look when the process ends a tenth of a small fit's.
    gc.set_threshold(100_000)
    try:
        app()
    finally:
        gc.freeze()
