"""The arguments and options of the commands: what several share, and short ways to write the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Model = Annotated[Path, typer.Argument(help="A model file, made by 'lvmogp fit'.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for other programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
OneCondition = Annotated[str | None, typer.Option(help="One condition for all rows.")]
ConditionColumn = Annotated[
    str | None,
    typer.Option(help="Column with the condition of each row; default: the one the model was fitted with."),
]
OutputColumn = Annotated[
    str | None, typer.Option(help="Column with the output; default: the one the model was fitted with.")
]
ErrorColumn = Annotated[
    str | None, typer.Option(help="Column of the data with the standard deviation of each measurement.")
]
ConditionFeatures = Annotated[
    Path | None,
    typer.Option(
        help="Table of what is known of the conditions: a row each, their ids in a column named as in the data.",
        metavar="FILE",
        show_default=False,
    ),
]
Unseen = Annotated[
    Literal["error", "prior"],
    typer.Option(help="A condition never seen is an error, or predicted from the prior."),
]
Noise = Literal["shared", "per-condition"]
Transform = Literal["none", "log", "sqrt", "auto"]
Inference = Literal["auto", "collapsed", "full", "kronecker", "stochastic", "nuts"]
Goal = Literal["predictions", "latents"]


def _options(panel: str, **shared: Any) -> Callable[..., Any]:
    # A function that makes an option for one panel of the help from its words, its names and what else sets it apart.
    return lambda text, *names, **more: typer.Option(*names, help=text, rich_help_panel=panel, **(shared | more))


def _count(text: str) -> int | str:
    if text != "auto" and not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a whole number nor 'auto'")
    return text if text == "auto" else int(text)


def _count_from_one(text: str) -> int | str:
    if _count(text) == 0:
        raise typer.BadParameter("0 is neither a whole number of at least 1 nor 'auto'")
    return _count(text)


column = _options("Columns", metavar="COLUMN", show_default=False)
modelled = _options("Model", metavar="NAME")
latent_count = _options("Model", metavar="N|auto", parser=_count)
searched = _options("Search")
search_count = _options("Search", metavar="N|auto", parser=_count_from_one)
long_fit = _options("Long fits", show_default=False)
