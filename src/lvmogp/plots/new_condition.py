"""How a new condition comes to be known: its latents with its prediction, before and after each observation."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.intake import read_inputs, read_outputs
from lvmogp.new_condition import ConditionPosterior
from lvmogp.plots.curves import plot_curve, plot_data
from lvmogp.plots.latent_density import log_latent_density
from lvmogp.plots.slices import column_of, label_input, output_name
from lvmogp.plots.style import COLOURS, tidy

_MOST_STEPS = 4
_GRID = {1: 801, 2: 121}
_MASSES = (0.95, 0.5)
_SHADES = ("#BFD9EA", "#4F93C0")


def plot_new_condition(
    model: LVMOGPRegressor,
    X: Any,
    y: Any,
    *,
    steps: Sequence[int] | None = None,
    along: str | int | None = None,
    at: Mapping[Any, Any] | None = None,
    inputs: Any = None,
    level: float = 0.95,
    axes: np.ndarray | None = None,
) -> np.ndarray:
    """Posterior of a new condition's latents (above) and its prediction (below) as its observations come in.

    The model stays as it is: the condition is added to a copy.

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model.
    X, y : arrays of shape (n, columns) and (n,)
        Observations of the new condition, in the order in which they come in.
    steps : sequence of int, optional
        After how many observations to draw, one column of panels each; 0 is the prior. Unless given: 0, 1, 2, … up
        to four, and all.
    along, at, inputs, level
        As for :func:`plot_curve`; the band is for the function.
    axes : array of Axes of shape (2, steps), optional
        Where to draw; a new figure unless given.

    Returns
    -------
    array of Axes of shape (2, steps)

    With one or two latent dimensions the posterior is computed exactly on a grid: its density relative to
    the peak, or the regions of highest density that hold half and 95 % of it. With more, its particles are drawn in
    the first two dimensions, large where they weigh much. Trained conditions are marked by crosses.
    """
    fitted = model.model_
    points = read_inputs(X, columns=fitted.columns, n_columns=fitted.n_columns).values
    outputs = read_outputs(y, len(points)).reshape(-1)
    if len(outputs) != len(points) or not np.isfinite(outputs).all():
        raise DataError(f"y must hold one finite output for each of the {len(points)} rows of X")
    counts = _steps(steps, len(points))
    if axes is None:
        _, axes = plt.subplots(
            2, len(counts), figsize=(0.6 + 2.7 * len(counts), 5.4), layout="constrained", sharex="row", sharey="row"
        )
    axes = np.reshape(axes, (2, -1)) if np.size(axes) == 2 * len(counts) else np.asarray(axes)
    if axes.shape != (2, len(counts)):
        raise SettingError(f"axes must have the shape (2, {len(counts)}), one column a step, got {axes.shape}")

    name = _unused_name(model)
    column = column_of(model, along)
    for place, count in enumerate(counts):
        extended = copy.copy(model).add_condition(name, points[:count], outputs[:count])
        above, below = axes[:, place]
        _draw_latents(extended, name, above)
        above.set_title(_title(count), fontsize="medium")
        plot_curve(extended, name, along=along, at=at, inputs=inputs, level=level, ax=below)
        plot_data(extended, name, along=along, at=at, colour="black", ax=below)
        label_input(model, below.xaxis, column)
        tidy(below)
    axes[0, 0].set_ylabel("density, peak = 1" if model.n_latent_ == 1 else "latent dimension 2")
    axes[1, 0].set_ylabel(output_name(model))
    return axes


def _title(count: int) -> str:
    if count == 0:
        return "before any observation"
    return "after 1 observation" if count == 1 else f"after {count} observations"


def _steps(steps: Sequence[int] | None, n: int) -> list[int]:
    if steps is None:
        return [*range(min(n, _MOST_STEPS) + 1), *([n] if n > _MOST_STEPS else [])]
    if len(steps) == 0 or not all(isinstance(step, (int, np.integer)) and 0 <= step <= n for step in steps):
        raise SettingError(f"steps must be whole numbers from 0 to {n}, the number of observations, got {steps!r}")
    return [int(step) for step in steps]


def _unused_name(model: LVMOGPRegressor) -> str:
    name = "new condition"
    while name in model.conditions_:
        name += " "
    return name


def _draw_latents(model: LVMOGPRegressor, name: str, ax: Axes) -> None:
    fitted = model.model_
    condition = fitted.added[name].posterior
    assert isinstance(condition, ConditionPosterior)  # what method="exact" gives
    trained = np.asarray(fitted.posterior.parameters.latent_mean)
    reach = max(3.0, float(np.abs(trained).max()) * 1.05)
    ax.set_xlabel("latent dimension 1" if model.n_latent_ > 1 else "latent")
    if model.n_latent_ == 1:
        grid = np.linspace(-reach, reach, _GRID[1])
        density = _to_peak(log_latent_density(fitted.posterior, condition, grid[:, None]))
        ax.fill_between(grid, density, color=_SHADES[0], linewidth=0)
        ax.plot(grid, density, color=COLOURS[0])
        ax.plot(
            trained[:, 0],
            np.full(len(trained), 0.03),
            transform=ax.get_xaxis_transform(),
            linestyle="none",
            marker="x",
            markersize=4,
            color="0.3",
        )
    else:
        if model.n_latent_ == 2:
            _draw_regions(model, condition, reach, ax)
        else:
            _draw_particles(condition, ax)
        ax.plot(trained[:, 0], trained[:, 1], linestyle="none", marker="x", markersize=4, color="0.3")
        ax.set_xlim(-reach, reach)
        ax.set_ylim(-reach, reach)
        ax.set_aspect("equal")
    tidy(ax)


def _draw_regions(model: LVMOGPRegressor, condition: ConditionPosterior, reach: float, ax: Axes) -> None:
    grid = np.linspace(-reach, reach, _GRID[2])
    across, up = np.meshgrid(grid, grid)
    latents = np.column_stack([across.reshape(-1), up.reshape(-1)])
    density = _to_peak(log_latent_density(model.model_.posterior, condition, latents))
    levels = [_height_that_holds(density, mass) for mass in _MASSES]
    shown = density.reshape(across.shape)
    ax.contourf(grid, grid, shown, levels=[*levels, np.inf], colors=_SHADES)
    edges = ax.contour(grid, grid, shown, levels=levels, colors=COLOURS[0], linewidths=0.8)
    if not condition.evidence.present.any():  # the prior: said once what the two regions hold
        ax.clabel(edges, fmt=dict(zip(levels, ("95 %", "50 %"), strict=True)), fontsize="small", colors="black")


def _draw_particles(condition: ConditionPosterior, ax: Axes) -> None:
    weights = np.asarray(condition.weights, dtype=float)
    latents = np.asarray(condition.latents)
    ax.scatter(latents[:, 0], latents[:, 1], s=4000 * weights, color=COLOURS[0], alpha=0.4, linewidths=0)


def _to_peak(log_density: np.ndarray) -> np.ndarray:
    # The density relative to its peak, so that sharp and flat ones can be seen side by side.
    return np.exp(log_density - log_density.max())


def _height_that_holds(density: np.ndarray, mass: float) -> float:
    # The density above which the highest parts hold this share of all.
    falling = np.sort(density)[::-1]
    return float(falling[np.searchsorted(np.cumsum(falling), mass * falling.sum())])
