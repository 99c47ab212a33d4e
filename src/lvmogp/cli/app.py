"""The commands with their arguments, options and help; the work is done by the functions that they name."""

import gc
import inspect
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

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
_OBJECTS_BEFORE_COLLECTION = 100_000


# Arguments and options


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **more)


def _argument(text: str, *, show_default: bool = False) -> Any:
    return typer.Argument(help=text, show_default=show_default)


def _count(text: str, *, least: int = 0) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a whole number nor 'auto'")
    if int(text) < least:
        raise typer.BadParameter(f"{text} is neither a whole number of at least {least} nor 'auto'")
    return int(text)


_column = partial(_option, rich_help_panel="Columns", metavar="COLUMN", show_default=False)
_modelled = partial(_option, rich_help_panel="Model", metavar="NAME")
_latent_count = partial(_modelled, metavar="N|auto", parser=_count)
_searched = partial(_option, rich_help_panel="Search")
_search_count = partial(_searched, metavar="N|auto", parser=partial(_count, least=1))
_long_fit = partial(_option, rich_help_panel="Long fits", show_default=False)

_Model = Annotated[Path, _argument("A model file, made by 'lvmogp fit'.")]
_Condition = Annotated[str | None, _option("One condition for all rows.")]
_ConditionColumn = Annotated[
    str | None, _option("Column with the condition of each row; default: the one the model was fitted with.")
]
_OutputColumn = Annotated[str | None, _option("Column with the output; default: the one the model was fitted with.")]
_ErrorColumn = Annotated[str | None, _option("Column of the data with the standard deviation of each measurement.")]
_ConditionFeatures = Annotated[
    Path | None,
    _option(
        "Table of what is known of the conditions: a row each, their ids in a column named as in the data.",
        metavar="FILE",
        show_default=False,
    ),
]
_Unseen = Annotated[
    Literal["error", "prior"], _option("A condition never seen is an error, or predicted from the prior.")
]
_OF_THE_SCREEN = {
    "as_json": Annotated[bool, _option("Print the result as JSON, for other programs.", "--json")],
    "quiet": Annotated[bool, _option("Print nothing but errors.", "--quiet", "-q")],
    "debug": Annotated[bool, _option("Show the traceback of an error.", "--debug")],
}


# Commands


def _command(module: str, *, can_be_quiet: bool = True) -> Callable[[Callable[..., None]], None]:
    """Register a command that is declared without a body: a function of its name in a module here does the work.

    The function gets a screen, for which the command has some more options, and the values of all others by their
    names. Its module is imported when the command runs, so that help needs neither JAX nor pandas.
    """

    def register(declared: Callable[..., None]) -> None:
        @wraps(declared)
        def run(*, as_json: bool, debug: bool, quiet: bool = False, **options: Any) -> None:
            with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
                getattr(import_module(f"lvmogp.cli.{module}"), declared.__name__)(screen, **options)

        own = inspect.signature(declared)
        added = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for option, kind in _OF_THE_SCREEN.items()
            if can_be_quiet or option != "quiet"
        ]
        vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *added])
        app.command()(run)

    return register


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lvmogp {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, _option("Show the version and exit.", "--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    del version  # handled by its callback


# The options that are settings of the estimator have its names.
@_command("fitting")
def fit(
    data: Annotated[Path, _argument("Table: CSV, Excel, Parquet, or a folder of Parquet.")],
    model: Annotated[Path, _option("Model file to write.", show_default=False)],
    output: Annotated[str | None, _column("To be predicted.")] = None,
    condition: Annotated[str | None, _column("Id of the condition of each row.")] = None,
    inputs: Annotated[
        list[str] | None,
        _column(
            "An input; may be repeated. Default: all others with numbers or dates; with --wide the first.", "--input"
        ),
    ] = None,
    wide: Annotated[bool, _column("One column per condition beside the inputs.", "--wide", metavar=None)] = False,
    error_column: Annotated[
        str | None, _column("Standard deviation of the error of each measurement, which adds to the noise.")
    ] = None,
    condition_features: _ConditionFeatures = None,
    n_latent: Annotated[
        Any, _latent_count("Dimensions of the latent space; 0 with features alone.", "--latents")
    ] = "2",
    noise: Annotated[
        Literal["shared", "per-condition"], _modelled("One noise for all conditions, or one for each.")
    ] = "shared",
    input_kernel: Annotated[str, _modelled("Over inputs: rbf, matern52, matern32, …")] = "rbf",
    latent_kernel: Annotated[str, _modelled("Over latents: rbf, linear, auto, …")] = "rbf",
    output_transform: Annotated[
        Literal["none", "log", "sqrt", "auto"],
        _modelled("Model the logarithm or the square root of the output, for noise that grows with it; auto chooses."),
    ] = "none",
    n_inducing_inputs: Annotated[
        Any, _search_count("Inducing inputs; more are more exact.", "--inducing-inputs")
    ] = "auto",
    n_inducing_latents: Annotated[
        Any, _search_count("Inducing latents; more are more exact.", "--inducing-latents")
    ] = "auto",
    n_restarts: Annotated[Any, _search_count("Starts, of which the best wins.", "--restarts")] = "auto",
    max_iter: Annotated[Any, _search_count("Most iterations of each start.")] = "auto",
    random_state: Annotated[int, _searched("Same seed, same answer.", "--seed", min=0)] = 0,
    inference: Annotated[
        Literal["auto", "collapsed", "full", "kronecker", "stochastic", "nuts"],
        _searched("Variational family; stochastic goes by minibatches, nuts draws from the posterior.", metavar="NAME"),
    ] = "auto",
    batch_size: Annotated[Any, _search_count("Observations in a minibatch.")] = "auto",
    n_chains: Annotated[Any, _search_count("Markov chains, with --inference nuts.", "--chains")] = "auto",
    n_warmup: Annotated[Any, _search_count("Steps in which each chain learns how to move.", "--warmup")] = "auto",
    n_draws: Annotated[Any, _search_count("Draws that each chain keeps.", "--draws")] = "auto",
    checkpoint: Annotated[
        Path | None, _long_fit("Folder for checkpoints, from which --resume goes on after a crash.", metavar="FOLDER")
    ] = None,
    checkpoint_seconds: Annotated[float, _long_fit("Seconds between two checkpoints.", min=0.0)] = 60.0,
    resume: Annotated[bool, _long_fit("Go on from the checkpoints.", "--resume")] = False,
    distributed: Annotated[
        bool,
        _long_fit("Fit with other processes, started with the same command, each reading its part.", "--distributed"),
    ] = False,
    coordinator: Annotated[
        str | None,
        _long_fit("Address of the first process; found out under SLURM, MPI, Kubernetes.", metavar="HOST:PORT"),
    ] = None,
    processes: Annotated[int | None, _long_fit("How many processes there are.", min=1)] = None,
    process: Annotated[int | None, _long_fit("Which of them this is, from 0.", min=0)] = None,
    keep_on_interrupt: Annotated[
        bool, _option("After Ctrl-C, save the best model so far.", "--keep-on-interrupt")
    ] = False,
) -> None:
    """Fit a model to a table and save it.

    Delimiter, decimal mark and encoding of a CSV file are found by themselves.
    Rows without an output, an input or a condition are left out and counted.

    [bold]Example:[/] lvmogp fit data.csv --output distance --condition tyre --model brakes.lvmogp
    """


@_command("answers")
def predict(
    model: _Model,
    data: Annotated[Path, _argument("Table with the inputs to predict at.")],
    condition: _Condition = None,
    condition_column: _ConditionColumn = None,
    condition_features: _ConditionFeatures = None,
    output_file: Annotated[Path | None, _option("Write the predictions here (.csv, .xlsx or .parquet).")] = None,
    level: Annotated[float, _option("Probability of the interval.", min=0.0, max=1.0)] = 0.95,
    function: Annotated[
        bool, _option("Intervals of the function behind the observations, without their noise.", "--function")
    ] = False,
    unseen: _Unseen = "error",
) -> None:
    """Predict the rows of a table: mean, standard deviation, median and interval of a new observation.

    On a terminal the first rows are shown; into a file or another program all rows go as CSV.

    [bold]Example:[/] lvmogp predict brakes.lvmogp new.csv --condition tyre-A --output-file predicted.csv
    """


@_command("models")
def add_condition(
    model: _Model,
    data: Annotated[Path | None, _argument("Table with a few observations of new conditions.")] = None,
    point: Annotated[
        list[str] | None, _option("An observation, such as speed=20,distance=25; may be given several times.")
    ] = None,
    condition: Annotated[str | None, _option("Name of the new condition, for all points.")] = None,
    condition_column: _ConditionColumn = None,
    condition_features: _ConditionFeatures = None,
    error_column: _ErrorColumn = None,
    output: _OutputColumn = None,
    out: Annotated[Path | None, _option("Write the model here instead of replacing it.")] = None,
) -> None:
    """Add conditions to a model from a few points or known features; what was learnt before stays as it is.

    [bold]Example:[/] lvmogp add-condition brakes.lvmogp --condition tyre-K --point speed=20,distance=25
    """


@_command("answers")
def suggest(
    model: _Model,
    condition: Annotated[
        str, _option("The condition to measure: a new one, or one of the model's.", show_default=False)
    ],
    candidates: Annotated[
        Path | None, _option("Table with the inputs that could be measured.", show_default=False)
    ] = None,
    grid: Annotated[
        list[str] | None, _option("Candidates as a grid, such as speed=3:30:28 or load=2; once for each input.")
    ] = None,
    n: Annotated[int, _option("How many measurements to choose.", "--n", "-n", min=1)] = 1,
    goal: Annotated[
        Literal["predictions", "latents"], _option("Learn about the condition's predictions, or its latents.")
    ] = "predictions",
    region: Annotated[
        Path | None, _option("Table with the inputs where predictions matter; default: the candidates.")
    ] = None,
    condition_features: _ConditionFeatures = None,
) -> None:
    """Say where to measure a condition next, and how much each measurement is expected to tell.

    Without candidates, the range of the training inputs is covered.

    [bold]Example:[/] lvmogp suggest brakes.lvmogp --condition tyre-K --grid speed=3:30:28 --n 3
    """


@_command("answers")
def calibration(
    model: _Model,
    data: Annotated[
        Path | None,
        _argument("Table with held-out observations; default: the training data, left out in turn.", show_default=True),
    ] = None,
    condition: _Condition = None,
    condition_column: _ConditionColumn = None,
    condition_features: _ConditionFeatures = None,
    error_column: _ErrorColumn = None,
    output: _OutputColumn = None,
    unseen: _Unseen = "error",
    plot: Annotated[Path | None, _option("Draw coverage against level into this file.")] = None,
) -> None:
    """Check whether intervals hold as many observations as they promise.

    [bold]Example:[/] lvmogp calibration brakes.lvmogp held-out.csv --plot calibration.png
    """


@_command("models", can_be_quiet=False)
def conditions(model: _Model) -> None:
    """Show where the conditions lie in the latent space.

    [bold]Example:[/] lvmogp conditions brakes.lvmogp
    """


@_command("models", can_be_quiet=False)
def show(model: _Model) -> None:
    """Show what a model file holds: data, settings, seed, and the versions that the fit was made with.

    [bold]Example:[/] lvmogp show brakes.lvmogp
    """


@_command("models")
def report(
    model: _Model,
    out: Annotated[
        Path | None, _option("Page to write; default: beside the model.", "--out", "-o", show_default=False)
    ] = None,
) -> None:
    """Write a page to explore a model with: one file that works offline in any browser.

    [bold]Example:[/] lvmogp report brakes.lvmogp -o brakes.html
    """


@_command("models", can_be_quiet=False)
def demo(
    out: Annotated[Path, _option("Folder for the figures.")] = Path("out"),
    seed: Annotated[int, _option("Seed of the simulated experiments.", min=0)] = 1,
) -> None:
    """Run the braking example: fit ten tyres, add an eleventh from one observation, draw the figures.

    [bold]Example:[/] lvmogp demo --out out
    """


def main() -> None:
    """Entry point of the ``lvmogp`` command."""
    # Imports make very many objects, all of which stay: looking for garbage among them takes an eighth of their time,
    # and a last look when the process ends a tenth of a small fit's.
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    try:
        app()
    finally:
        gc.freeze()
