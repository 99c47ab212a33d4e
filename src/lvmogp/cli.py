"""The command line."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from lvmogp.__about__ import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Gaussian processes for data from many conditions.")


def _show_version(asked: bool) -> None:
    if asked:
        Console().print(f"lvmogp {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # handled by its callback


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated experiments.")] = 1,
) -> None:
    """Run the braking example: fit ten tyres, add an eleventh from one observation, draw the figures.

    Example: lvmogp demo --out out
    """
    from lvmogp.demo import NEW, run  # imports JAX and matplotlib, which --help should not wait for
    from lvmogp.simulate import SPEEDS

    console = Console()
    with console.status("Simulating 50 braking experiments and fitting the joint model …"):
        result = run(out, seed=seed)
    console.print(f"10 tyres, 5 experiments each. {str(result.model.outcome_).capitalize()}.", highlight=False)
    speeds = np.linspace(*SPEEDS, 200)
    table = Table(title="A new tyre from one observation: braking distance (m)", title_justify="left")
    for column in ("speed (m/s)", "truth", "predicted", "95 % interval", "ignoring the tyre"):
        table.add_column(column, justify="right")
    for speed in (5, 10, 15, 20, 25, 30):
        place = int(np.argmin(np.abs(speeds - speed)))
        table.add_row(
            f"{speeds[place]:.0f}",
            f"{result.truth[place]:.1f}",
            f"{result.predicted[place]:.1f}",
            f"{result.lower[place]:.1f} to {result.upper[place]:.1f}",
            f"{result.together[place]:.1f}",
        )
    console.print(table)
    console.print(
        f"Error over all speeds for '{NEW}': {result.error:.2f} m, against {result.error_together:.2f} m for one curve "
        f"through all data.\nThe latent explains {100 * result.r_squared:.1f} % of the variance of 1/friction, "
        "which the model never saw.",
        highlight=False,
    )
    console.print(f"Figures: {', '.join(str(path) for path in result.files)}", highlight=False, soft_wrap=True)


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
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Run the paper's experiments with every baseline: tables with the paper's numbers beside ours, and its figures.

    Each finished repeat is kept in the folder, and a second run goes on from there.

    Example: lvmogp reproduce servo --jobs 2 --data-dir data
    """
    from lvmogp.errors import LVMOGPError
    from lvmogp.experiments.plan import experiments
    from lvmogp.experiments.reproduce import reproduce as run_experiment
    from lvmogp.progress import job_progress

    console = Console()
    try:
        for one in list(experiments()) if name == "all" else [name]:
            with job_progress(one) as on_progress:
                found = run_experiment(
                    one,
                    out,
                    repeats=repeats,
                    quick=quick,
                    methods=method,
                    n_jobs=jobs,
                    data_dir=data_dir,
                    with_figures=figures,
                    on_progress=on_progress,
                )
            console.print(Markdown(found.table))
            console.print(f"Files: {', '.join(str(path) for path in found.files)}", highlight=False, soft_wrap=True)
    except LVMOGPError as error:
        if debug:
            raise
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def main() -> None:
    """Entry point of the ``lvmogp`` command."""
    app()
