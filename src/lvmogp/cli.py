"""The command line."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
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


def main() -> None:
    """Entry point of the ``lvmogp`` command."""
    app()
