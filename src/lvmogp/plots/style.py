"""Colours, markers, line styles, axes, files: what all pictures share."""

# pyright: reportUnknownMemberType=false

import io
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import LineStyleType

from lvmogp.errors import SettingError
from lvmogp.ground.writing import replace_file

# Okabe and Ito's colours, distinguishable for the colour-blind, with markers and line styles for greyscale.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#332288", "#117733", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
_DASHES: tuple[LineStyleType, ...] = ((0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (9, 2)), (0, (3, 3)))
LINE_STYLES: tuple[LineStyleType, ...] = ("-", "--", "-.", *_DASHES)
ADDED_COLOUR = "black"
SCALE = "cividis"  # light means large, in colour and in greyscale alike
# Colour and hatch of each part of the variance.
OF_PARTS = {
    "shared": (COLOURS[0], ""),
    "latent": (COLOURS[1], "///"),
    "own": (COLOURS[2], "..."),
    "noise": ("0.75", ""),
}
_DOTS_PER_INCH = 150


class Style(NamedTuple):
    """How one condition is drawn in every picture."""

    colour: str
    marker: str
    line: LineStyleType


def style(number: int) -> Style:
    """Return the style of the ``number``-th condition of a picture; the first seventy differ."""
    return Style(COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], LINE_STYLES[number % len(LINE_STYLES)])


def own_axes(ax: Axes | None, *, width: float = 5.6, height: float = 4.0) -> Axes:
    """Return the given axes, or those of a new figure: for pictures that stand alone."""
    if ax is None:
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return ax


def tidy(ax: Axes) -> Axes:
    """Return axes without the two lines that carry no scale."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def outside_legend(ax: Axes) -> None:
    """Put a legend to the right of the axes, where it hides nothing."""
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small", handlelength=3.2)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the ending of its file says, whole or not at all, and close it."""
    plt.close(figure)
    kind, known = path.suffix.removeprefix(".").lower(), sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        raise SettingError(f"cannot draw into {path}; give it one of the endings {', '.join(known)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH)
    replace_file(path, buffer.getvalue())
    return path
