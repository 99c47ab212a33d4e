"""Predictions along the inputs: curves of conditions with their bands and data, and surfaces over two inputs."""

# pyright: reportUnknownMemberType=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Normalize
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import LineStyleType
from scipy.special import ndtri

from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.insight.summary import input_names
from lvmogp.plots.style import ADDED_COLOUR, COLOURS, OF_PARTS, SCALE, Style, outside_legend, own_axes, style, tidy
from lvmogp.tables.ids import Id, unknown_condition
from lvmogp.tables.reading import days
from lvmogp.typing import HostFloat

_N_EACH_WAY, _N_LEVELS = 50, 12  # points and colours of a surface
_NEAR = 0.1  # in standard deviations of an input: observations this close to a slice belong to it
_MOST_CURVES, _MOST_LEGEND_INSIDE = 12, 4
_OUTLINE: list[AbstractPathEffect] = [withStroke(linewidth=2.2, foreground="0.15")]  # white is seen on light ground too


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
    where = slice_through(model, (along,), at)
    grid = where.grid(inputs)
    points = where.points(grid)
    mean = model.predict(points, condition)
    lower, upper = model.predict_interval(points, condition, level=level, include_noise=include_noise)
    ax = ax or plt.gca()
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
    where = slice_through(model, (along,), at)
    inputs, outputs = observed(model, condition)
    values, near = inputs[:, where.running[0]], where.holds(inputs)
    ax = ax or plt.gca()
    common: dict[str, Any] = {"linestyle": "none", "marker": marker, "markersize": _size(marker), "color": colour}
    if not near.all():
        ax.plot(values[~near], outputs[~near], markerfacecolor="none", alpha=0.35, **common)
    ax.plot(values[near], outputs[near], markeredgecolor="white", markeredgewidth=0.5, **common)
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

    These are ``conditions``, or all unless given; of more than twelve, twelve that are spread evenly along the first
    latent dimension. Their observations are left out without ``data``. All else is as for :func:`plot_curve`.
    """
    chosen, where = _chosen(model, conditions), slice_through(model, (along,), at)
    grid = where.grid(inputs)
    ax = own_axes(ax, width=6.4)
    for number, condition in enumerate(chosen):
        only_added = list(model.model_.added) == [condition]
        look = Style(ADDED_COLOUR, "*", "-") if only_added else style(number)
        common: dict[str, Any] = {"along": along, "at": at, "colour": look.colour, "ax": ax}
        band: dict[str, Any] = {"inputs": grid, "level": level, "include_noise": include_noise}
        plot_curve(model, condition, line_style=look.line, **band, **common)
        if data:
            # On the curve itself the marker shows in the legend only.
            ax.lines[-1].set(marker=look.marker, markevery=[], markersize=_size(look.marker), markeredgecolor="white")
            plot_data(model, condition, marker=look.marker, **common)
    where.label(ax.xaxis)
    label_output(model, ax.yaxis)
    if where.held_in_words:
        ax.set_title(where.held_in_words, fontsize="medium")
    if len(chosen) > _MOST_LEGEND_INSIDE:
        outside_legend(ax)
    else:
        ax.legend(frameon=False, fontsize="small", handlelength=3.2)
    return tidy(ax)


def plot_parts(
    model: LVMOGPRegressor,
    condition: Id,
    *,
    along: str | int | None = None,
    at: Mapping[Any, Any] | None = None,
    inputs: Any = None,
    level: float = 0.95,
    axes: Iterable[Axes] | None = None,
) -> list[Axes]:
    """Draw the parts of a condition's curve side by side: what all share, what latents tell, what is its own.

    Bands hold each part with probability ``level``. All axes are of the same height in units of the output, or of its
    transform where that is modelled. All else is as for :func:`plot_curve`; ``axes`` are as many as there are parts.
    """
    where = slice_through(model, (along,), at)
    grid = where.grid(inputs)
    found = model.predict_parts(where.points(grid), condition)
    parts = list(dict.fromkeys(found["part"].tolist()))
    mean, half = (found[name].to_numpy(dtype=float).reshape(len(parts), -1) for name in ("mean", "sd"))
    lower, upper = mean - float(ndtri(0.5 + level / 2)) * half, mean + float(ndtri(0.5 + level / 2)) * half
    if axes is None:
        figure = plt.figure(figsize=(3.4 * len(parts), 3.2), layout="constrained")
        axes = [figure.add_subplot(1, len(parts), number + 1) for number in range(len(parts))]
    axes = list(axes)
    if len(axes) != len(parts):
        raise SettingError(f"the curves are sums of {len(parts)} parts, each on axes of its own; got {len(axes)} axes")
    tallest = 1.1 * float(np.max(np.ptp([lower.min(axis=1), upper.max(axis=1)], axis=0)))
    for number, (part, ax) in enumerate(zip(parts, axes, strict=True)):
        colour, _ = OF_PARTS[part]
        ax.fill_between(grid, lower[number], upper[number], color=colour, alpha=0.2, linewidth=0)
        ax.plot(grid, mean[number], color=colour)
        middle = float(lower[number].min() + upper[number].max()) / 2
        ax.set_ylim(middle - tallest / 2, middle + tallest / 2)  # so that sizes compare
        ax.set_title(f"own of {condition}" if part == "own" else part, fontsize="medium")
        where.label(ax.xaxis)
        tidy(ax)
    axes[0].set_ylabel(model.model_.scaling.label(model.model_.schema.output_name or "output"))
    return axes


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

    The two inputs named by ``along`` run, the first two unless given; ``at`` and ``include_noise`` are as for
    :func:`plot_curve`. Observations have the colours of their outputs, pale where they were taken elsewhere than the
    held inputs; they are left out without ``data``, and the scale of the mean without ``colour_bar``.
    """
    if model.model_.schema.n_columns < 2:
        raise SettingError("plot_surface needs a model of at least two inputs, this one has one; use plot_curves")
    if isinstance(along, str) or (along is not None and len(along) != 2):
        raise SettingError(f"along must name two inputs, got {along!r}")
    where = slice_through(model, (0, 1) if along is None else along, at)
    if len(set(where.running)) == 1:
        raise SettingError(f"along must name two different inputs, got {along!r}")
    first, second = (where.grid(place=place, n_points=_N_EACH_WAY) for place in (0, 1))
    points = where.points(first, second)
    mean, deviation = model.predict(points, condition, return_std=True, include_noise=include_noise)
    inputs, outputs = observed(model, condition)
    if not data:
        inputs, outputs = inputs[:0], outputs[:0]

    ax = own_axes(ax, width=5.4)
    everything = np.concatenate([mean, outputs])
    levels = MaxNLocator(_N_LEVELS).tick_values(float(everything.min()), float(everything.max()))
    norm = Normalize(levels[0], levels[-1])
    shape = (len(second), len(first))
    filled = ax.contourf(first, second, mean.reshape(shape), levels=levels, cmap=SCALE, norm=norm)
    if np.ptp(deviation) > 1e-9 * deviation.max():  # else there are no lines to draw
        lines = ax.contour(first, second, deviation.reshape(shape), levels=4, colors="white", linewidths=1.0)
        for item in (lines, *ax.clabel(lines, fontsize="small", fmt="%.3g")):
            item.set_path_effects(_OUTLINE)
    near = where.holds(inputs)
    for chosen, opacity in ((~near, 0.35), (near, 1.0)):
        places = inputs[chosen][:, where.running].T
        common = {"alpha": opacity, "clip_on": False, "zorder": 3}
        ax.scatter(*places, s=60, color="black", linewidths=0, **common)  # seen on light ground
        ax.scatter(*places, s=38, c=outputs[chosen], cmap=SCALE, norm=norm, edgecolors="white", **common)
    where.label(ax.xaxis)
    where.label(ax.yaxis, place=1)
    ax.set_title(" ".join(filter(None, (str(condition), where.held_in_words, "(lines: sd)"))), fontsize="medium")
    if colour_bar:
        ax.figure.colorbar(filled, ax=ax, label=model.model_.schema.output_name or "output")
    return ax


def _chosen(model: LVMOGPRegressor, conditions: Sequence[Id] | None) -> list[Id]:
    if isinstance(conditions, str):
        raise SettingError(f"conditions must be a list of ids, got the string {conditions!r}; write [{conditions!r}]")
    if conditions is None:
        table = model.latents_
        by_latent = (table.sort_values("mean_1", kind="stable") if model.n_latent_ else table)["condition"].tolist()
        spread = np.linspace(0, len(by_latent) - 1, _MOST_CURVES).round().astype(int)
        kept = {by_latent[place] for place in spread}
        return [condition for condition in model.conditions_ if condition in kept]
    for condition in conditions:
        if condition not in model.conditions_ and model.unseen == "error":
            raise unknown_condition(condition, model.conditions_)
    return list(conditions)


def _size(marker: str) -> float:
    return 11.0 if marker == "*" else 6.0  # a star has thin arms


class Slice(NamedTuple):
    """A cut through the inputs of a model: some of them run, the others are held at one value each."""

    model: LVMOGPRegressor
    running: tuple[int, ...]
    held: HostFloat

    def grid(self, inputs: Any = None, *, place: int = 0, n_points: int = 200) -> HostFloat:
        """Return the given values of an input that runs, or points across its range in the training data.

        Where its logarithm is modelled, these are even in the logarithm.
        """
        if inputs is None:
            fitted, column = self.model.model_, self.running[place]
            # Where the data were not kept, two standard deviations to each side of their mean.
            values = fitted.scaling.input_mean[column] + np.array([-2, 2]) * fitted.scaling.input_scale[column]
            if fitted.observations is not None:
                values = fitted.scaling.transformed_inputs(fitted.observations.inputs)[:, column]
            even = np.linspace(float(values.min()), float(values.max()), n_points)
            return np.exp(even) if column in fitted.scaling.log_columns else even
        values = _as_numbers(inputs)
        if len(values) == 0 or not np.isfinite(values).all():
            raise DataError("inputs must hold at least one value of the input that runs, all of them finite")
        return values

    def points(self, *grids: HostFloat) -> HostFloat:
        """Return inputs on a grid of the values of those that run, the first the quickest."""
        values = [each.reshape(-1) for each in np.meshgrid(*grids)]
        inputs = np.tile(self.held, (len(values[0]), 1))
        inputs[:, self.running] = np.column_stack(values)
        return inputs

    def holds(self, inputs: HostFloat) -> HostFloat:
        """Return whether each observation lies where inputs are held, to a tenth of their spread."""
        scaling = self.model.model_.scaling
        own, held = scaling.transformed_inputs(inputs), scaling.transformed_inputs(self.held)
        distance = np.abs(own - held) / scaling.input_scale
        distance[:, self.running] = 0.0
        return np.all(distance <= _NEAR, axis=1)

    @property
    def held_in_words(self) -> str:
        """Where inputs are held, as in "at vgain = 2"; empty where all run."""
        dates, words = self.model.model_.schema.date_columns, list[str]()
        for place, name in enumerate(input_names(self.model)):
            value = float(self.held[place])
            shown = str(pd.Timestamp(value, unit="D").round("s")) if name in dates else f"{value:.4g}"
            words += [] if place in self.running else [f"{name} = {shown}"]
        return f"at {', '.join(words)}" if words else ""

    def label(self, axis: Axis, *, place: int = 0) -> None:
        """Name an axis after its input; dates are written as dates, and of a logarithm the axis is logarithmic."""
        name = input_names(self.model)[self.running[place]]
        axis.set_label_text(name)
        if self.running[place] in self.model.model_.scaling.log_columns:
            _set_log(axis)
        if name in self.model.model_.schema.date_columns:
            locator = mdates.AutoDateLocator()  # whose days count from 1970 as ours do
            axis.set_major_locator(locator)
            axis.set_major_formatter(mdates.ConciseDateFormatter(locator))


def label_output(model: LVMOGPRegressor, axis: Axis) -> None:
    """Name an axis after the output; where its logarithm is modelled, the axis is logarithmic."""
    axis.set_label_text(model.model_.schema.output_name or "output")
    if model.output_transform_ == "log":
        _set_log(axis)


def _set_log(axis: Axis) -> None:
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")


def slice_through(model: LVMOGPRegressor, along: Sequence[str | int | None], at: Mapping[Any, Any] | None) -> Slice:
    """Return the slice along some inputs, the others held where told, else at their medians (or means)."""
    scaling, known = model.model_.scaling, model.model_.observations
    middle = scaling.restored_inputs(scaling.input_mean) if known is None else np.median(known.inputs, axis=0)
    held = np.array(middle, dtype=float)
    for which, value in (at or {}).items():
        number = _as_numbers(value)
        if number.size != 1 or not np.isfinite(number).all():
            raise SettingError(f"input {which!r} must be held at one finite value, got {value!r}")
        held[_column(model, which)] = number[0]
    return Slice(model, tuple(_column(model, which) for which in along), held)


def _column(model: LVMOGPRegressor, which: str | int | None) -> int:
    # The place of an input that is given by name, or by number from 0; the first unless given.
    names = input_names(model)
    if isinstance(which, str) and which in names:
        return names.index(which)
    if which is None or (isinstance(which, (int, np.integer)) and 0 <= which < len(names)):
        return int(which or 0)
    wanted = f"one of the names {names} or a number from 0 to {len(names) - 1}"
    raise SettingError(f"there is no input {which!r}; give {wanted}")


def _as_numbers(values: Any) -> HostFloat:
    # Values of an input as the model sees them: dates become days since 1970.
    try:
        column = pd.Series(np.ravel(np.asarray(values)))
        in_days = days(column)
        return column.to_numpy(dtype=float) if in_days is None else in_days
    except (TypeError, ValueError):
        raise DataError(f"values of an input must be numbers or dates, got {values!r:.60}") from None


def default_grid(model: LVMOGPRegressor) -> HostFloat:
    """Return points across the range of the first input."""
    return slice_through(model, (0,), None).grid()


def observed(model: LVMOGPRegressor, condition: Id) -> tuple[HostFloat, HostFloat]:
    """Return inputs and outputs of a condition that the model holds, in the user's units."""
    trained = model.model_
    if condition in trained.added:
        entry = trained.added[condition]
        return entry.inputs, entry.outputs
    if trained.observations is None or condition not in trained.ids:
        return np.empty((0, trained.schema.n_columns)), np.empty(0)
    chosen = trained.observations.conditions == trained.ids.index(condition)
    return trained.observations.inputs[chosen], trained.observations.outputs[chosen]
