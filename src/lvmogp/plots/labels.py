"""Placing text beside points so that it hides neither other text nor points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation

from lvmogp.typing import HostFloat

# Where a text may stand: sides and corners first, which look best, then between them.
_ANGLES = np.radians([0, 180, 90, 270, 45, 135, 225, 315, 22.5, 67.5, 112.5, 157.5, 202.5, 247.5, 292.5, 337.5])
_GAPS = np.array([0.6, 1.0, 1.6, 2.4, 3.4, 4.6, 6.0, 8.0])  # between point and text, in heights of the text
_AIR = 2.0  # in pixels
_FROM_GAP_WITH_LINE = 1.6
_LEADER = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
_LOOK: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "zorder": 5, "fontsize": 8.0}
_N_ROUNDS = 8  # after the first, every text knows where all others are
# What a place costs: text hidden and text outside the axes (as shares of its area), each point hidden, distance.
_TEXT, _POINT, _OUTSIDE, _DISTANCE = 30.0, 3.0, 30.0, 0.15


def label_points(ax: Axes, points: HostFloat, texts: Sequence[str], *, avoid: HostFloat) -> list[Annotation]:
    """Write a text beside each point, each where it hides least, those in the thick of the crowd first.

    ``avoid`` are all points of the picture, labelled or not. The limits of the axes must be final. A text that
    had to move away from its point is joined to it by a line.
    """
    ax.figure.canvas.figure.draw_without_rendering()  # automatic layouts find their sizes only then
    pixels, all_pixels = ax.transData.transform(points), ax.transData.transform(avoid)
    # Widths and heights in pixels, with a little air around.
    written = [ax.text(0, 0, text, fontsize=_LOOK["fontsize"]) for text in texts]
    sizes = [np.array(each.get_window_extent().size) + _AIR for each in written]
    for each in written:
        each.remove()
    inside = np.array([[ax.bbox.min, ax.bbox.max]])
    gaps = np.repeat(_GAPS, len(_ANGLES))
    boxes = np.full((len(texts), 2, 2), np.nan)  # corners in pixels; NaN hides nothing
    chosen = np.zeros(len(texts), dtype=int)
    distances = np.linalg.norm(pixels[:, None] - pixels, axis=2)
    crowded_first = np.argsort(np.sort(distances, axis=1)[:, 1:4].sum(axis=1), kind="stable")
    for number in np.tile(crowded_first, _N_ROUNDS):
        places, area = _places(pixels[number], sizes[number]), sizes[number].prod()
        margin = 0.3 * sizes[number][1]
        over = (all_pixels >= places[:, None, 0] - margin) & (all_pixels <= places[:, None, 1] + margin)
        costs = (
            _TEXT * _overlaps(places, np.delete(boxes, number, axis=0)).sum(axis=1) / area
            + _POINT * np.sum(np.all(over, axis=2), axis=1)
            + _OUTSIDE * (1 - _overlaps(places, inside)[:, 0] / area)
            + _DISTANCE * gaps
        )
        chosen[number] = np.argmin(costs)
        boxes[number] = places[chosen[number]]
    # Offsets in points rather than pixels: saving at another resolution keeps the picture.
    offsets = (boxes.mean(axis=1) - pixels) * 72 / ax.figure.dpi
    leaders = [_LEADER if gap >= _FROM_GAP_WITH_LINE else None for gap in gaps[chosen]]
    return [
        ax.annotate(text, tuple(point), xytext=tuple(offset), arrowprops=leader, **_LOOK)
        for text, point, offset, leader in zip(texts, points, offsets, leaders, strict=True)
    ]


def _places(point: HostFloat, size: HostFloat) -> HostFloat:
    # Boxes of a text of this size at all gaps and angles, of shape (gaps · angles, 2 corners, 2).
    directions = np.column_stack([np.cos(_ANGLES), np.sin(_ANGLES)])
    # The text faces the point with a side, or at a slant with a corner.
    facing = directions / np.abs(directions).max(axis=1, keepdims=True)
    centres = point + facing * size / 2 + directions * (_GAPS[:, None, None] * size[1])
    return centres.reshape(-1, 1, 2) + np.array([[-0.5], [0.5]]) * size


def _overlaps(boxes: HostFloat, others: HostFloat) -> HostFloat:
    # Areas that two lists of boxes share, of shape (boxes, others).
    low = np.maximum(boxes[:, None, 0], others[None, :, 0])
    high = np.minimum(boxes[:, None, 1], others[None, :, 1])
    return np.nan_to_num(np.prod(np.maximum(high - low, 0.0), axis=2))
