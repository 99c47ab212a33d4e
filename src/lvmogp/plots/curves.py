"""Predicted curves of conditions with their bands, over the data."""

# Matplotlib's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.typing import LineStyleType

from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.plots.slices import (
    column_of,
    held_in_words,
    held_values,
    label_input,
    line,
    observed,
    on_slice,
    output_name,
    running_values,
)
from lvmogp.plots.style import ADDED_COLOUR, COLOURS, Style, current_axes, outside_legend, own_axes, style, tidy
from lvmogp.tables.ids import Id, unknown_condition

_MOST_CURVES = 12
_MOST_LEGEND_INSIDE = 4


def plot_curve(
    model: LVMOGPRegressor,
    condition: Id,
    *,
    along: str | int | None = None,
    at: Mapping[Any, Any] | None = None,
    inputs: Any = None,
    level: float = 0.95,
    include_noise: bool = False,
    colour: str = COLOURS[0],
    line_style: LineStyleType = "-",
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean curve of a condition with a band, on the current axes.

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model.
    condition : id
        Whose curve.
    along : str or int, optional
        The input that runs, by name or by number from 0; the first one unless given.
    at : mapping, optional
        Values of other inputs, by name or number; those not named are held at their medians.
    inputs : array, optional
        Values of the input that runs; its whole range unless given.
    level : float, default=0.95
        Probability that the band holds the function (or an observation).
    include_noise : bool, default=False
        Whether the band is for a new observation, or for the function behind it.
    colour, line_style, label
        As in matplotlib; the label is the id unless given.
    ax : Axes, optional
        Where to draw; pyplot's current axes unless given.
    """
    column = column_of(model, along)
    grid = running_values(model, column, inputs)
    points = line(held_values(model, at), column, grid)
    mean = model.predict(points, condition)
    lower, upper = model.predict_interval(points, condition, level=level, include_noise=include_noise)
    ax = current_axes(ax)
    ax.fill_between(grid, lower, upper, color=colour, alpha=0.2, linewidth=0)
    ax.plot(grid, mean, color=colour, linestyle=line_style, label=str(condition) if label is None else label)
    return ax


def plot_data(
    model: LVMOGPRegressor,
    condition: Id,
    *,
    along: str | int | None = None,
    at: Mapping[Any, Any] | None = None,
    colour: str = COLOURS[0],
    marker: str = "o",
    ax: Axes | None = None,
) -> Axes:
    """Draw the observations of a condition, where the model has kept them, on the current axes.

    With several inputs, those taken where the other inputs are held (to a tenth of their standard deviation)
    are filled, the rest pale and hollow. The parameters are those of :func:`plot_curve`.
    """
    column, held = column_of(model, along), held_values(model, at)
    inputs, outputs = observed(model, condition)
    near = on_slice(model, inputs, held, (column,))
    ax = current_axes(ax)
    common: dict[str, Any] = {"linestyle": "none", "marker": marker, "markersize": _size(marker)}
    if not near.all():
        ax.plot(inputs[~near, column], outputs[~near], color=colour, markerfacecolor="none", alpha=0.35, **common)
    ax.plot(inputs[near, column], outputs[near], color=colour, markeredgecolor="white", markeredgewidth=0.5, **common)
    return ax


def plot_curves(
    model: LVMOGPRegressor,
    conditions: Sequence[Id] | None = None,
    *,
    along: str | int | None = None,
    at: Mapping[Any, Any] | None = None,
    inputs: Any = None,
    level: float = 0.95,
    include_noise: bool = False,
    data: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw data and predicted curves with bands of several conditions, each with its own colour, marker and line.

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model.
    conditions : sequence of ids, optional
        Which conditions; all unless given, and of more than twelve, twelve that are spread evenly along the first
        latent dimension.
    along, at, inputs, level, include_noise
        As for :func:`plot_curve`.
    data : bool, default=True
        Whether to draw the observations too.
    ax : Axes, optional
        Where to draw; a new figure unless given.
    """
    chosen = _chosen(model, conditions)
    column, held = column_of(model, along), held_values(model, at)
    curve: dict[str, Any] = {"inputs": running_values(model, column, inputs), "level": level}
    ax = own_axes(ax, width=6.4)
    for number, condition in enumerate(chosen):
        only_added = list(model.model_.added) == [condition]
        look = Style(ADDED_COLOUR, "*", "-") if only_added else style(number)
        common: dict[str, Any] = {"along": along, "at": at, "colour": look.colour, "ax": ax}
        plot_curve(model, condition, line_style=look.line, include_noise=include_noise, **curve, **common)
        if data:
            # On the curve itself the marker shows in the legend only.
            ax.lines[-1].set(marker=look.marker, markevery=[], markersize=_size(look.marker), markeredgecolor="white")
            plot_data(model, condition, marker=look.marker, **common)
    label_input(model, ax.xaxis, column)
    ax.set_ylabel(output_name(model))
    where = held_in_words(model, held, (column,))
    if where:
        ax.set_title(f"at {where}", fontsize="medium")
    if len(chosen) > _MOST_LEGEND_INSIDE:
        outside_legend(ax)
    else:
        ax.legend(frameon=False, fontsize="small", handlelength=3.2)
    return tidy(ax)


def _chosen(model: LVMOGPRegressor, conditions: Sequence[Id] | None) -> list[Id]:
    if isinstance(conditions, str):
        raise SettingError(f"conditions must be a list of ids, got the string {conditions!r}; write [{conditions!r}]")
    if conditions is None:
        table = model.latents_
        by_latent = (table.sort_values("mean_1", kind="stable") if model.n_latent_ else table)["condition"].tolist()
        spread = np.unique(np.linspace(0, len(by_latent) - 1, _MOST_CURVES).round().astype(int))
        kept = {by_latent[place] for place in spread}
        return [condition for condition in model.conditions_ if condition in kept]
    for condition in conditions:
        if condition not in model.conditions_ and model.unseen == "error":
            raise unknown_condition(condition, model.conditions_)
    return list(conditions)


def _size(marker: str) -> float:
    return 11.0 if marker == "*" else 6.0  # a star has thin arms
