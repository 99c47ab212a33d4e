"""Pictures of a fitted model; each function draws on given axes and returns them."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.ids import Id
from lvmogp.typing import HostFloat

# Okabe and Ito's colours, distinguishable for the colour-blind, with markers for greyscale.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#332288", "#117733", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
_N_POINTS = 200


def plot_curve(
    model: LVMOGPRegressor,
    condition: Id,
    *,
    inputs: HostFloat | None = None,
    level: float = 0.95,
    include_noise: bool = False,
    colour: str = COLOURS[0],
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Mean curve of a condition with a band that holds the function (or an observation) at the given level."""
    if model.model_.n_columns != 1:
        raise SettingError(f"plot_curve draws curves of one input; this model has {model.model_.n_columns}")
    ax = plt.gca() if ax is None else ax
    grid = default_grid(model) if inputs is None else np.asarray(inputs, dtype=float).reshape(-1)
    column = grid[:, None]
    mean = model.predict(column, condition)
    lower, upper = model.predict_interval(column, condition, level=level, include_noise=include_noise)
    ax.fill_between(grid, lower, upper, color=colour, alpha=0.2, linewidth=0)
    ax.plot(grid, mean, color=colour, label=str(condition) if label is None else label)
    return ax


def plot_data(
    model: LVMOGPRegressor, condition: Id, *, colour: str = COLOURS[0], marker: str = "o", ax: Axes | None = None
) -> Axes:
    """The observations of a condition, where the model has kept them."""
    ax = plt.gca() if ax is None else ax
    inputs, outputs = observed(model, condition)
    ax.plot(
        inputs[:, 0], outputs, linestyle="none", marker=marker, markersize=4.5, color=colour, markeredgecolor="white"
    )
    return ax


def plot_latents(
    model: LVMOGPRegressor,
    against: Any,
    *,
    dimension: int = 1,
    colour: str = COLOURS[0],
    ax: Axes | None = None,
) -> Axes:
    """One latent dimension of the trained conditions against known values, with bars of two standard deviations."""
    ax = plt.gca() if ax is None else ax
    table = model.latents_
    table = table[~table["added"]]
    mean, deviation = table[f"mean_{dimension}"], table[f"sd_{dimension}"]
    ax.errorbar(against, mean, yerr=2 * deviation, fmt="o", color=colour, capsize=3, markersize=5)
    return ax


def default_grid(model: LVMOGPRegressor) -> HostFloat:
    """Points across the range of the only input, from the training data or from their mean and scale."""
    observations = model.model_.observations
    if observations is not None:
        column = observations.inputs[:, 0]
        return np.linspace(column.min(), column.max(), _N_POINTS)
    mean, scale = float(model.model_.scaling.input_mean[0]), float(model.model_.scaling.input_scale[0])
    return np.linspace(mean - 2 * scale, mean + 2 * scale, _N_POINTS)


def observed(model: LVMOGPRegressor, condition: Id) -> tuple[HostFloat, HostFloat]:
    """Inputs and outputs of a condition that the model holds, in the user's units."""
    trained = model.model_
    if condition in trained.added:
        entry = trained.added[condition]
        return entry.inputs, entry.outputs
    if trained.observations is None or condition not in trained.ids:
        return np.empty((0, trained.n_columns)), np.empty(0)
    chosen = trained.observations.conditions == trained.ids.index(condition)
    return trained.observations.inputs[chosen], trained.observations.outputs[chosen]
