"""Predictions over two inputs at once."""

# Matplotlib's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.ticker import MaxNLocator

from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.plots.slices import (
    column_of,
    held_in_words,
    held_values,
    label_input,
    observed,
    on_slice,
    output_name,
    span,
)
from lvmogp.plots.style import SCALE, own_axes
from lvmogp.tables.ids import Id
from lvmogp.typing import HostFloat

_N_EACH_WAY = 50
_N_LEVELS = 12
_OUTLINE: list[AbstractPathEffect] = [withStroke(linewidth=2.2, foreground="0.15")]  # white is seen on light ground too


def plot_surface(
    model: LVMOGPRegressor,
    condition: Id,
    *,
    along: Sequence[str | int] | None = None,
    at: Mapping[Any, Any] | None = None,
    include_noise: bool = False,
    data: bool = True,
    colour_bar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean of a condition over two inputs in colours, its standard deviation as lines, its data as points.

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model of at least two inputs.
    condition : id
        Whose surface.
    along : pair of str or int, optional
        The two inputs that run, by name or by number from 0; the first two unless given.
    at : mapping, optional
        Values of other inputs, by name or number; those not named are held at their medians.
    include_noise : bool, default=False
        Whether the standard deviation is that of a new observation, or of the function behind it.
    data : bool, default=True
        Whether to draw the observations, in the colours of their outputs; those taken elsewhere than the held
        inputs are pale.
    colour_bar : bool, default=True
        Whether to draw the scale of the mean beside the axes.
    ax : Axes, optional
        Where to draw; a new figure unless given.
    """
    columns = _two_columns(model, along)
    held = held_values(model, at)
    first, second = (span(model, column, _N_EACH_WAY) for column in columns)
    points = np.tile(held, (len(first) * len(second), 1))
    across, up = np.meshgrid(first, second)
    points[:, columns[0]], points[:, columns[1]] = across.reshape(-1), up.reshape(-1)
    mean, deviation = model.predict(points, condition, return_std=True, include_noise=include_noise)
    inputs, outputs = observed(model, condition) if data else (np.empty((0, len(held))), np.empty(0))

    ax = own_axes(ax, width=5.4)
    everything = np.concatenate([mean, outputs])
    levels = MaxNLocator(_N_LEVELS).tick_values(float(everything.min()), float(everything.max()))
    norm = Normalize(levels[0], levels[-1])
    filled = ax.contourf(first, second, mean.reshape(across.shape), levels=levels, cmap=SCALE, norm=norm)
    _draw_deviation(ax, first, second, deviation.reshape(across.shape))
    near = on_slice(model, inputs, held, columns)
    for chosen, opacity in ((~near, 0.35), (near, 1.0)):
        places = inputs[chosen][:, columns].T
        common = {"alpha": opacity, "clip_on": False, "zorder": 3}
        ax.scatter(*places, s=60, color="black", linewidths=0, **common)  # seen on light ground
        ax.scatter(*places, s=38, c=outputs[chosen], cmap=SCALE, norm=norm, edgecolors="white", **common)
    label_input(model, ax.xaxis, columns[0])
    label_input(model, ax.yaxis, columns[1])
    where = held_in_words(model, held, columns)
    place = f"{condition} at {where}" if where else str(condition)
    ax.set_title(f"{place} (lines: sd)", fontsize="medium")
    if colour_bar:
        ax.figure.colorbar(filled, ax=ax, label=output_name(model))
    return ax


def _draw_deviation(ax: Axes, first: HostFloat, second: HostFloat, deviation: HostFloat) -> None:
    if np.ptp(deviation) <= 1e-9 * deviation.max():
        return  # the same everywhere: no lines to draw
    lines = ax.contour(first, second, deviation, levels=4, colors="white", linewidths=1.0)
    lines.set_path_effects(_OUTLINE)
    for text in ax.clabel(lines, fontsize="small", fmt="%.3g"):
        text.set_path_effects(_OUTLINE)


def _two_columns(model: LVMOGPRegressor, along: Sequence[str | int] | None) -> tuple[int, int]:
    if model.model_.schema.n_columns < 2:
        raise SettingError("plot_surface needs a model of at least two inputs, this one has one; use plot_curves")
    if along is None:
        return (0, 1)
    if isinstance(along, str) or len(along) != 2:
        raise SettingError(f"along must name two inputs, got {along!r}")
    columns = (column_of(model, along[0]), column_of(model, along[1]))
    if columns[0] == columns[1]:
        raise SettingError(f"along must name two different inputs, got {along!r}")
    return columns
