"""The commands with their arguments and help; each hands over to the module that does its work."""

import gc
from pathlib import Path
from typing import Annotated, Any

import typer

from lvmogp.__about__ import __version__
from lvmogp.cli.options import (
    AsJson,
    ConditionColumn,
    ConditionFeatures,
    Debug,
    ErrorColumn,
    Goal,
    Inference,
    Model,
    Noise,
    OneCondition,
    OutputColumn,
    Quiet,
    Transform,
    Unseen,
    column,
    latent_count,
    long_fit,
    modelled,
    search_count,
    searched,
)
from lvmogp.cli.screen import reported

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


@app.command()
def fit(
    data: Annotated[
        Path, typer.Argument(help="Table: CSV, Excel, Parquet, or a folder of Parquet.", show_default=False)
    ],
    model: Annotated[Path, typer.Option(help="Model file to write.", show_default=False)],
    output: Annotated[str | None, column("To be predicted.")] = None,
    condition: Annotated[str | None, column("Id of the condition of each row.")] = None,
    inputs: Annotated[
        list[str] | None,
        column(
            "An input; may be repeated. Default: all others with numbers or dates; with --wide the first.", "--input"
        ),
    ] = None,
    wide: Annotated[bool, column("One column per condition beside the inputs.", "--wide", metavar=None)] = False,
    error_column: Annotated[
        str | None, column("Standard deviation of the error of each measurement, which adds to the noise.")
    ] = None,
    condition_features: ConditionFeatures = None,
    latents: Annotated[Any, latent_count("Dimensions of the latent space; 0 with features alone.")] = "2",
    noise: Annotated[Noise, modelled("One noise for all conditions, or one for each.")] = "shared",
    input_kernel: Annotated[str, modelled("Over inputs: rbf, matern52, matern32, …")] = "rbf",
    latent_kernel: Annotated[str, modelled("Over latents: rbf, linear, auto, …")] = "rbf",
    output_transform: Annotated[
        Transform,
        modelled("Model the logarithm or the square root of the output, for noise that grows with it; auto chooses."),
    ] = "none",
    inducing_inputs: Annotated[Any, search_count("Inducing inputs; more are more exact.")] = "auto",
    inducing_latents: Annotated[Any, search_count("Inducing latents; more are more exact.")] = "auto",
    restarts: Annotated[Any, search_count("Starts, of which the best wins.")] = "auto",
    max_iter: Annotated[Any, search_count("Most iterations of each start.")] = "auto",
    seed: Annotated[int, searched("Same seed, same answer.", min=0)] = 0,
    inference: Annotated[
        Inference,
        searched("Variational family; stochastic goes by minibatches, nuts draws from the posterior.", metavar="NAME"),
    ] = "auto",
    batch_size: Annotated[Any, search_count("Observations in a minibatch.")] = "auto",
    chains: Annotated[Any, search_count("Markov chains, with --inference nuts.")] = "auto",
    warmup: Annotated[Any, search_count("Steps in which each chain learns how to move.")] = "auto",
    draws: Annotated[Any, search_count("Draws that each chain keeps.")] = "auto",
    checkpoint: Annotated[
        Path | None, long_fit("Folder for checkpoints, from which --resume goes on after a crash.", metavar="FOLDER")
    ] = None,
    checkpoint_seconds: Annotated[float, long_fit("Seconds between two checkpoints.", min=0.0)] = 60.0,
    resume: Annotated[bool, long_fit("Go on from the checkpoints.", "--resume")] = False,
    distributed: Annotated[
        bool,
        long_fit("Fit with other processes, started with the same command, each reading its part.", "--distributed"),
    ] = False,
    coordinator: Annotated[
        str | None,
        long_fit("Address of the first process; found out under SLURM, MPI, Kubernetes.", metavar="HOST:PORT"),
    ] = None,
    processes: Annotated[int | None, long_fit("How many processes there are.", min=1)] = None,
    process: Annotated[int | None, long_fit("Which of them this is, from 0.", min=0)] = None,
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
        import lvmogp.cli.fitting as fitting

        settings = {
            "n_latent": latents,
            "noise": noise,
            "input_kernel": input_kernel,
            "latent_kernel": latent_kernel,
            "n_inducing_inputs": inducing_inputs,
            "n_inducing_latents": inducing_latents,
            "output_transform": None if output_transform == "none" else output_transform,
            "n_restarts": restarts,
            "max_iter": max_iter,
            "batch_size": batch_size,
            "n_chains": chains,
            "n_warmup": warmup,
            "n_draws": draws,
            "inference": inference,
            "random_state": seed,
        }
        fitting.fit(
            screen,
            fitting.FitRequest(
                data,
                model,
                fitting.Roles(tuple(inputs or ()), condition, output, error_column),
                wide,
                condition_features,
                settings,
                {"checkpoint": checkpoint, "checkpoint_seconds": checkpoint_seconds, "resume": resume},
                distributed,
                (coordinator, processes, process),
                keep_on_interrupt,
            ),
        )


@app.command()
def predict(
    model: Model,
    data: Annotated[Path, typer.Argument(help="Table with the inputs to predict at.", show_default=False)],
    condition: OneCondition = None,
    condition_column: ConditionColumn = None,
    condition_features: ConditionFeatures = None,
    output_file: Annotated[
        Path | None, typer.Option(help="Write the predictions here (.csv, .xlsx or .parquet).")
    ] = None,
    level: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability of the interval.")] = 0.95,
    function: Annotated[
        bool, typer.Option("--function", help="Intervals of the function behind the observations, without their noise.")
    ] = False,
    unseen: Unseen = "error",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table: mean, standard deviation, median and interval of a new observation.

    On a terminal the first rows are shown; into a file or another program all rows go as CSV.

    [bold]Example:[/] lvmogp predict brakes.lvmogp new.csv --condition tyre-A --output-file predicted.csv
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.answers as answers

        asked = answers.AskedRows(data, condition, condition_column, None, None, condition_features, unseen)
        answers.predict(screen, model, asked, output_file, level=level, include_noise=not function)


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
        import lvmogp.cli.conditions as conditions

        asked = conditions.AskedRows(data, condition, condition_column, output, error_column, condition_features)
        conditions.add_condition(screen, model, asked, point or [], out)


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
    goal: Annotated[
        Goal, typer.Option(help="Learn about the condition's predictions, or its latents.")
    ] = "predictions",
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
        import lvmogp.cli.suggestions as suggestions

        suggestions.suggest(
            screen,
            model,
            condition.strip(),
            candidates=candidates,
            grid=grid or [],
            n=n,
            goal=goal,
            region=region,
            condition_features=condition_features,
        )


@app.command()
def calibration(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Argument(help="Table with held-out observations; default: the training data, left out in turn."),
    ] = None,
    condition: OneCondition = None,
    condition_column: ConditionColumn = None,
    condition_features: ConditionFeatures = None,
    error_column: ErrorColumn = None,
    output: OutputColumn = None,
    unseen: Unseen = "error",
    plot: Annotated[Path | None, typer.Option(help="Draw coverage against level into this file.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check whether intervals hold as many observations as they promise.

    [bold]Example:[/] lvmogp calibration brakes.lvmogp held-out.csv --plot calibration.png
    """
    with reported(as_json=as_json, quiet=quiet, debug=debug) as screen:
        import lvmogp.cli.answers as answers

        asked = answers.AskedRows(data, condition, condition_column, output, error_column, condition_features, unseen)
        answers.calibration(screen, model, asked, plot)


@app.command()
def conditions(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show where the conditions lie in the latent space.

    [bold]Example:[/] lvmogp conditions brakes.lvmogp
    """
    with reported(as_json=as_json, debug=debug) as screen:
        import lvmogp.cli.conditions as conditions

        conditions.show_conditions(screen, model)


@app.command()
def show(model: Model, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show what a model file holds: data, settings, seed, and the versions that the fit was made with.

    [bold]Example:[/] lvmogp show brakes.lvmogp
    """
    with reported(as_json=as_json, debug=debug) as screen:
        import lvmogp.cli.showing as showing

        showing.show(screen, model)


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
        import lvmogp.cli.showing as showing

        showing.report(screen, model, out)


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
        import lvmogp.cli.showing as showing

        showing.demo(screen, out, seed=seed)


def main() -> None:
    """Entry point of the ``lvmogp`` command."""
    # Imports make very many objects, all of which stay: looking for garbage among them takes an eighth of their time,
    # and a last look when the process ends a tenth of a small fit's.
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    try:
        app()
    finally:
        gc.freeze()
