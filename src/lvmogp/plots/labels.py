"""Placing text beside points so that it hides neither other text nor points."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.text import Annotation

from lvmogp.typing import HostFloat

_DIRECTIONS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1], [1, -1], [-1, -1]], dtype=float)
_GAPS = (0.6, 1.4, 2.6, 4.0)  # between point and text, in heights of the text
_FROM_GAP_WITH_LINE = 1.4
# What a place costs: hiding text, hiding a point, leaving the axes (each as shares of the text), distance.
_TEXT, _POINT, _OUTSIDE, _DISTANCE = 10.0, 3.0, 10.0, 0.15


class _Place(NamedTuple):
    # Centre of a text in pixels.
    centre: HostFloat
    gap: float


def label_points(
    ax: Axes, points: HostFloat, texts: Sequence[str], *, avoid: HostFloat, size: float = 8.0
) -> list[Annotation]:
    """Write a text beside each point, each where it hides least, those in the thick of the crowd first.

    ``avoid`` are all points of the picture, labelled or not. The limits of the axes must be final. A text that
    had to move away from its point is joined to it by a line.
    """
    _settle(ax)
    pixels, all_pixels = ax.transData.transform(points), ax.transData.transform(avoid)
    sizes = [_size(ax, text, size) for text in texts]
    inside = np.array([ax.bbox.min, ax.bbox.max])
    boxes: list[HostFloat] = []
    annotations = []
    for number in _crowded_first(pixels):
        places = _places(pixels[number], sizes[number])
        costs = [_cost(place, sizes[number], boxes, all_pixels, inside) for place in places]
        best = places[int(np.argmin(costs))]
        boxes.append(_box(best, sizes[number]))
        annotations.append(_annotate(ax, texts[number], points[number], best, best.centre - pixels[number], size))
    return annotations


def _settle(ax: Axes) -> None:
    figure = ax.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    if isinstance(figure, Figure):
        figure.draw_without_rendering()  # automatic layouts find their sizes only then


def _crowded_first(pixels: HostFloat) -> list[int]:
    distance = np.linalg.norm(pixels[:, None] - pixels[None], axis=2)
    nearest = np.sort(distance, axis=1)[:, 1:4].sum(axis=1)
    return np.argsort(nearest, kind="stable").tolist()


def _places(point: HostFloat, size: HostFloat) -> list[_Place]:
    return [
        _Place(point + direction * (size / 2) + direction / np.linalg.norm(direction) * gap * size[1], gap)
        for gap in _GAPS
        for direction in _DIRECTIONS
    ]


def _box(place: _Place, size: HostFloat) -> HostFloat:
    return np.array([place.centre - size / 2, place.centre + size / 2])


def _cost(place: _Place, size: HostFloat, boxes: list[HostFloat], pixels: HostFloat, inside: HostFloat) -> float:
    box = _box(place, size)
    margin = size[1] * 0.3
    hidden_text = sum(_overlap(box, other) for other in boxes) / size.prod()
    hidden_points = np.all((pixels >= box[0] - margin) & (pixels <= box[1] + margin), axis=1).sum()
    outside = 1 - _overlap(box, inside) / size.prod()
    return _TEXT * hidden_text + _POINT * hidden_points + _OUTSIDE * outside + _DISTANCE * place.gap


def _overlap(first: HostFloat, second: HostFloat) -> float:
    sides = np.minimum(first[1], second[1]) - np.maximum(first[0], second[0])
    return float(np.prod(np.maximum(sides, 0.0)))


def _size(ax: Axes, text: str, size: float) -> HostFloat:
    # Width and height in pixels.
    written = ax.text(0, 0, text, fontsize=size)
    extent = written.get_window_extent()
    written.remove()
    return np.array([extent.width, extent.height])


def _annotate(ax: Axes, text: str, point: HostFloat, place: _Place, offset: HostFloat, size: float) -> Annotation:
    # Offsets in points rather than pixels: saving at another resolution keeps the picture.
    leader = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
    return ax.annotate(
        text,
        (float(point[0]), float(point[1])),
        xytext=tuple(offset * 72 / ax.figure.dpi),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=size,
        zorder=5,
        arrowprops=leader if place.gap >= _FROM_GAP_WITH_LINE else None,
    )
