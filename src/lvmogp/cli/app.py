"""The command line."""

import gc
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lvmogp.__about__ import __version__
from lvmogp.cli.printing import reported

# What needs JAX, pandas or matplotlib is imported inside the commands, so that --help is quick.
app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Gaussian processes for data from many conditions: fit a table, predict, add conditions from a few points.",
)

_OBJECTS_BEFORE_COLLECTION = 100_000

Model = Annotated[Path, typer.Argument(help="A model file, made by 'lvmogp fit'.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for other programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
ConditionColumn = Annotated[
    str | None,
    typer.Option(help="Column with the condition of each row; default: the one the model was fitted with."),
]
OutputColumn = Annotated[
    str | None, typer.Option(help="Column with the output; default: the one the model was fitted with.")
]
ConditionFeatures = Annotated[
    Path | None,
    typer.Option(
        help="Table of what is known of the conditions: a row each, their ids in a column named as in the data.",
        metavar="FILE",
        show_default=False,
    ),
]

ErrorColumn = Annotated[
    str | None, typer.Option(help="Column of the data with the standard deviation of each measurement.")
]


class Noise(StrEnum):
    """Whether the conditions share one noise variance."""

    SHARED = "shared"
    PER_CONDITION = "per-condition"


class OutputTransform(StrEnum):
    """What is modelled in place of the output."""

    NONE = "none"
    LOG = "log"
    SQRT = "sqrt"
    AUTO = "auto"


class Inference(StrEnum):
    """How the inducing variables are treated."""

    AUTO = "auto"
    COLLAPSED = "collapsed"
    FULL = "full"
    KRONECKER = "kronecker"
    STOCHASTIC = "stochastic"
    NUTS = "nuts"


class Unseen(StrEnum):
    """What to do with a condition never seen."""

    ERROR = "error"
    PRIOR = "prior"


UnseenCondition = Annotated[
    Unseen, typer.Option(help="A condition never seen is an error, or predicted from the prior.")
]


class Goal(StrEnum):
    """What a measurement is to tell about."""

    PREDICTIONS = "predictions"
    LATENTS = "latents"


def _count_or_auto(text: str) -> str:
    if text != "auto" and not (text.isdecimal() and int(text) >= 1):
        raise typer.BadParameter(f"{text!r} is neither a whole number of at least 1 nor 'auto'")
    return text


def _count_of_latents(text: str) -> str:
    return text if text == "0" else _count_or_auto(text)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lvmogp {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # handled by its callback


def _column(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, metavar="COLUMN", rich_help_panel="Columns", show_default=False)


def _model(text: str) -> Any:
    return typer.Option(help=text, metavar="NAME", rich_help_panel="Model")


def _count(text: str, panel: str) -> Any:
    return typer.Option(callback=_count_or_auto, metavar="N|auto", help=text, rich_help_panel=panel)


_LONG = "Long fits"


def _search(text: str) -> Any:
    return typer.Option(help=text, metavar="NAME", rich_help_panel="Search")


def _long(text: str, **options: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=_LONG, show_default=False, **options)


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=_LONG)


@app.command()
def fit(
    data: Annotated[
        Path,
        typer.Argument(help="Table: CSV, Excel, Parquet, or a folder of Parquet.", show_default=False),
    ],
    model: Annotated[Path, typer.Option(help="Model file to write.", show_default=False)],
    output: Annotated[str | None, _column("To be predicted.")] = None,
    condition: Annotated[str | None, _column("Id of the condition of each row.")] = None,
    inputs: Annotated[
        list[str] | None,
        _column(
            "An input; may be repeated. Default: all others with numbers or dates; with --wide the first.", "--input"
        ),
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="One column per condition beside the inputs.", rich_help_panel="Columns")
    ] = False,
    error_column: Annotated[
        str | None, _column("Standard deviation of the error of each measurement, which adds to the noise.")
    ] = None,
    condition_features: ConditionFeatures = None,
    latents: Annotated[
        str,
        typer.Option(
            callback=_count_of_latents,
            metavar="N|auto",
            help="Dimensions of the latent space; 0 with features alone.",
            rich_help_panel="Model",
        ),
    ] = "2",
    noise: Annotated[Noise, _model("One noise for all conditions, or one for each.")] = Noise.SHARED,
    input_kernel: Annotated[str, _model("Over inputs: rbf, matern52, matern32, …")] = "rbf",
    latent_kernel: Annotated[str, _model("Over latents: rbf, linear, auto, …")] = "rbf",
    output_transform: Annotated[
        OutputTransform,
        _model("Model the logarithm or the square root of the output, for noise that grows with it; auto chooses."),
    ] = OutputTransform.NONE,
    inducing_inputs: Annotated[str, _count("Inducing inputs; more are more exact.", "Search")] = "auto",
    inducing_latents: Annotated[str, _count("Inducing latents; more are more exact.", "Search")] = "auto",
    restarts: Annotated[str, _count("Starts, of which the best wins.", "Search")] = "auto",
    max_iter: Annotated[str, _count("Most iterations of each start.", "Search")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same answer.", rich_help_panel="Search")] = 0,
    inference: Annotated[
        Inference,
        _search("Variational family; stochastic goes by minibatches, nuts draws from the posterior."),
    ] = Inference.AUTO,
    batch_size: Annotated[str, _count("Observations in a minibatch.", "Search")] = "auto",
    chains: Annotated[str, _count("Markov chains, with --inference nuts.", "Search")] = "auto",
    warmup: Annotated[str, _count("Steps in which each chain learns how to move.", "Search")] = "auto",
    draws: Annotated[str, _count("Draws that each chain keeps.", "Search")] = "auto",
    checkpoint: Annotated[
        Path | None, _long("Folder for checkpoints, from which --resume goes on after a crash.", metavar="FOLDER")
    ] = None,
    checkpoint_seconds: Annotated[float, _long("Seconds between two checkpoints.", min=0.0)] = 60.0,
    resume: Annotated[bool, _flag("--resume", "Go on from the checkpoints.")] = False,
    distributed: Annotated[
        bool,
        _flag("--distributed", "Fit with other processes, started with the same command, each reading its part."),
    ] = False,
    coordinator: Annotated[
        str | None, _long("Address of the first process; found out under SLURM, MPI, Kubernetes.", metavar="HOST:PORT")
    ] = None,
    processes: Annotated[int | None, _long("How many processes there are.", min=1)] = None,
    process: Annotated[int | None, _long("Which of them this is, from 0.", min=0)] = None,
    keep_on_interrupt: Annotated[
        bool, typer.Option("--keep-on-interrupt", help="After Ctrl-C, save the best model so far.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model to a table and save it.

    Delimiter, decimal mark and encoding of a CSV file are found by themselves.
    Rows without an output, an input or a condition are left out and counted.

    [bold]Example:[/] lvmogp fit data.csv --output distance --condition tyre --model brakes.lvmogp
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.commands as commands
        import lvmogp.cli.large_work as large_work

        settings: dict[str, Any] = {
            "n_latent": _number_or_auto(latents),
            "noise": noise.value,
            "input_kernel": input_kernel,
            "latent_kernel": latent_kernel,
            "n_inducing_inputs": _number_or_auto(inducing_inputs),
            "n_inducing_latents": _number_or_auto(inducing_latents),
            "output_transform": None if output_transform is OutputTransform.NONE else output_transform.value,
            "n_restarts": _number_or_auto(restarts),
            "max_iter": _number_or_auto(max_iter),
            "batch_size": _number_or_auto(batch_size),
            "n_chains": _number_or_auto(chains),
            "n_warmup": _number_or_auto(warmup),
            "n_draws": _number_or_auto(draws),
            "inference": inference.value,
            "random_state": seed,
        }
        request = commands.FitRequest(
            data,
            model,
            output,
            condition,
            inputs or [],
            wide,
            settings,
            large_work.Keeping(checkpoint, checkpoint_seconds, resume),
            large_work.Processes(distributed, large_work.Rendezvous(coordinator, processes, process)),
            keep_on_interrupt=keep_on_interrupt,
            condition_features=condition_features,
            error_column=error_column,
        )
        commands.fit(screen, request)


def _number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


@app.command()
def predict(
    model: Model,
    data: Annotated[Path, typer.Argument(help="Table with the inputs to predict at.", show_default=False)],
    condition: Annotated[str | None, typer.Option(help="One condition for all rows.")] = None,
    condition_column: ConditionColumn = None,
    condition_features: ConditionFeatures = None,
    output_file: Annotated[
        Path | None, typer.Option(help="Write the predictions here (.csv, .xlsx or .parquet).")
    ] = None,
    level: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability of the interval.")] = 0.95,
    function: Annotated[
        bool, typer.Option("--function", help="Intervals of the function behind the observations, without their noise.")
    ] = False,
    unseen: UnseenCondition = Unseen.ERROR,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table: mean, standard deviation, median and interval of a new observation.

    On a terminal the first rows are shown; into a file or another program all rows go as CSV.

    [bold]Example:[/] lvmogp predict brakes.lvmogp new.csv --condition tyre-A --output-file predicted.csv
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.commands as commands

        commands.predict(
            screen,
            model,
            data,
            condition=condition,
            condition_column=condition_column,
            condition_features=condition_features,
            output_file=output_file,
            level=level,
            function=function,
            unseen=unseen.value,
        )


@app.command()
def add_condition(
    model: Model,
    data: Annotated[
        Path | None, typer.Argument(help="Table with a few observations of new conditions.", show_default=False)
    ] = None,
    point: Annotated[
        list[str] | None, typer.Option(help="An observation, such as speed=20,distance=25; may be given several times.")
    ] = None,
    condition: Annotated[str | None, typer.Option(help="Name of the new condition, for all points.")] = None,
    condition_column: ConditionColumn = None,
    condition_features: ConditionFeatures = None,
    error_column: ErrorColumn = None,
    output: OutputColumn = None,
    out: Annotated[Path | None, typer.Option(help="Write the model here instead of replacing it.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Add conditions to a model from a few points or known features; what was learnt before stays as it is.

    [bold]Example:[/] lvmogp add-condition brakes.lvmogp --condition tyre-K --point speed=20,distance=25
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.commands as commands

        new = commands.NewPoints(
            data, point or [], condition, condition_column, output, condition_features, error_column
        )
        commands.add_condition(screen, model, new, out=out)


@app.command()
def suggest(
    model: Model,
    condition: Annotated[
        str, typer.Option(help="The condition to measure: a new one, or one of the model's.", show_default=False)
    ],
    candidates: Annotated[
        Path | None, typer.Option(help="Table with the inputs that could be measured.", show_default=False)
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Candidates as a grid, such as speed=3:30:28 or load=2; once for each input."),
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many measurements to choose.")] = 1,
    goal: Annotated[Goal, typer.Option(help="Learn about the condition's predictions, or its latents.")] = (
        Goal.PREDICTIONS
    ),
    region: Annotated[
        Path | None, typer.Option(help="Table with the inputs where predictions matter; default: the candidates.")
    ] = None,
    condition_features: ConditionFeatures = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Say where to measure a condition next, and how much each measurement is expected to tell.

    Without candidates, the range of the training inputs is covered.

    [bold]Example:[/] lvmogp suggest brakes.lvmogp --condition tyre-K --grid speed=3:30:28 --n 3
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.measuring as measuring

        choice = measuring.Choice(candidates, grid or [], region, n, goal.value, condition_features)
        measuring.suggest(screen, model, condition, choice)


@app.command()
def calibration(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Argument(help="Table with held-out observations; default: the training data, left out in turn."),
    ] = None,
    condition: Annotated[str | None, typer.Option(help="One condition for all rows.")] = None,
    condition_column: ConditionColumn = None,
    condition_features: ConditionFeatures = None,
    error_column: ErrorColumn = None,
    output: OutputColumn = None,
    unseen: UnseenCondition = Unseen.ERROR,
    plot: Annotated[Path | None, typer.Option(help="Draw coverage against level into this file.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check whether intervals hold as many observations as they promise.

    [bold]Example:[/] lvmogp calibration brakes.lvmogp held-out.csv --plot calibration.png
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.measuring as measuring

        reading = measuring.Reading(condition, condition_column, output, error_column, condition_features, unseen.value)
        measuring.calibration(screen, model, data, reading, plot)


@app.command()
def conditions(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show where the conditions lie in the latent space.

    [bold]Example:[/] lvmogp conditions brakes.lvmogp
    """
    with reported(as_json=as_json, debug=debug) as screen:
        import lvmogp.cli.commands as commands

        commands.conditions(screen, model)


@app.command()
def show(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show what a model file holds: data, settings, seed, and the versions that the fit was made with.

    [bold]Example:[/] lvmogp show brakes.lvmogp
    """
    with reported(as_json=as_json, debug=debug) as screen:
        import lvmogp.cli.commands as commands

        commands.show(screen, model)


@app.command()
def report(
    model: Model,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Page to write; default: beside the model.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a page to explore a model with: one file that works offline in any browser.

    [bold]Example:[/] lvmogp report brakes.lvmogp -o brakes.html
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.commands as commands

        commands.report(screen, model, out)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated experiments.")] = 1,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run the braking example: fit ten tyres, add an eleventh from one observation, draw the figures.

    [bold]Example:[/] lvmogp demo --out out
    """
    with reported(as_json=as_json, debug=debug) as screen:
        import lvmogp.cli.showcase as showcase

        showcase.demo(screen, out, seed=seed)


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(help="braking, synthetic, synthetic-missing, servo, sensors, or all.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for results, tables and figures.")] = Path("results"),
    repeats: Annotated[int | None, typer.Option(min=1, help="Repeats; 20 as in the paper.", show_default=False)] = None,
    quick: Annotated[
        bool, typer.Option(help="One repeat of the main methods with short fits, to see that all works.")
    ] = False,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Repeats to run at the same time.")] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with servo.data and NEW-DATA-1.T15.txt; else $LVMOGP_DATA, else they are fetched."),
    ] = None,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run the paper's experiments with every baseline: tables with the paper's numbers beside ours, and its figures.

    Each finished repeat is kept in the folder, and a second run goes on from there.

    [bold]Example:[/] lvmogp reproduce servo --jobs 2 --data-dir data
    """
    with reported(as_json=as_json, debug=debug) as screen:
        import lvmogp.cli.showcase as showcase

        settings = {
            "repeats": repeats,
            "quick": quick,
            "methods": method,
            "n_jobs": jobs,
            "data_dir": data_dir,
            "with_figures": figures,
        }
        showcase.reproduce(screen, showcase.ReproduceRequest(name, out, settings))


def main() -> None:
    """Entry point of the ``lvmogp`` command."""
    # Imports make very many objects, all of which stay: looking for garbage among them takes an eighth of their time,
    # and a last look when the process ends a tenth of a small fit's.
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    try:
        app()
    finally:
        gc.freeze()
