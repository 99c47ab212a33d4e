"""How a new condition comes to be known: its latents with its prediction, before and after each observation."""

# Matplotlib's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde

from lvmogp.conditions.condition import Condition, KnownLatents, aligned_latents
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.model import FittedModel, known_of
from lvmogp.ground.precision import double_precision
from lvmogp.plots.curves import plot_curve, plot_data
from lvmogp.plots.latent_density import log_latent_density
from lvmogp.plots.latent_space import main_dimensions, tell_features
from lvmogp.plots.slices import column_of, label_input, output_name
from lvmogp.plots.style import COLOURS, tidy
from lvmogp.tables.reading import read_inputs, read_outputs

_MOST_STEPS = 4
_N_LINE, _N_EACH_WAY = 801, 121
_MASSES = (0.95, 0.5)
_CROSSES: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 4, "color": "0.3"}
_SHADES = ("#BFD9EA", "#4F93C0")


def plot_new_condition(
    model: LVMOGPRegressor,
    X: Any,
    y: Any,
    *,
    features: Any = None,
    steps: Sequence[int] | None = None,
    along: str | int | None = None,
    at: Mapping[Any, Any] | None = None,
    inputs: Any = None,
    level: float = 0.95,
    axes: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the posterior of a new condition's latents, and below it its prediction, as its observations come in.

    The model stays as it is: the condition is added to a copy.

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model.
    X, y : arrays of shape (n, columns) and (n,)
        Observations of the new condition, in the order in which they come in.
    features : mapping or sequence, optional
        Its known features, as for ``add_condition``.
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
    the two dimensions that matter most, large where they weigh much; so they are where features of the condition are
    missing, and of a model with posterior draws, whose density in one dimension is smoothed from them. Trained
    conditions are marked by crosses.
    """
    fitted = model.model_
    points = read_inputs(X, columns=fitted.schema.columns, n_columns=fitted.schema.n_columns).values
    outputs = read_outputs(y, len(points)).reshape(-1)
    if len(outputs) != len(points) or not np.isfinite(outputs).all():
        raise DataError(f"y must hold one finite output for each of the {len(points)} rows of X")
    counts = _steps(steps, len(points))
    name, column = _unused_name(model), column_of(model, along)
    stages = [
        copy.copy(model).add_condition(name, points[:count], outputs[:count], features=features) for count in counts
    ]
    reach = max(_reach(extended) for extended in stages)
    panels = _panels(axes, len(counts))
    for place, (count, extended) in enumerate(zip(counts, stages, strict=True)):
        above, below = panels[:, place]
        _draw_latents(extended, name, reach, above)
        above.set_title(_title(count), fontsize="medium")
        plot_curve(extended, name, along=along, at=at, inputs=inputs, level=level, ax=below)
        plot_data(extended, name, along=along, at=at, colour="black", ax=below)
        label_input(model, below.xaxis, column)
        tidy(below)
    panels[1, 0].set_ylabel(output_name(model))
    for ax in panels[:, 1:].flat:
        ax.set_ylabel("")
    return panels


def _panels(axes: np.ndarray | None, n_steps: int) -> np.ndarray:
    if axes is None:
        size = (0.6 + 2.7 * n_steps, 5.4)
        figure = plt.figure(figsize=size, layout="constrained")
        return figure.subplots(2, n_steps, sharex="row", sharey="row", squeeze=False)
    given = np.asarray(axes)
    if given.shape == (2,) and n_steps == 1:
        given = given[:, None]
    if given.shape != (2, n_steps):
        raise SettingError(f"axes must have the shape (2, {n_steps}), one column per step, got {given.shape}")
    return given


def _title(count: int) -> str:
    if count == 0:
        return "before any observation"
    return "after 1 observation" if count == 1 else f"after {count} observations"


def _steps(steps: Sequence[int] | None, n: int) -> list[int]:
    if steps is None:
        return [*range(min(n, _MOST_STEPS) + 1), *([n] if n > _MOST_STEPS else [])]
    given: list[object] = list(steps)
    if len(given) == 0 or not all(isinstance(step, (int, np.integer)) and 0 <= step <= n for step in given):
        raise SettingError(f"steps must be whole numbers from 0 to {n}, the number of observations, got {steps!r}")
    return [int(step) for step in steps]


def _unused_name(model: LVMOGPRegressor) -> str:
    name = "new condition"
    while name in model.conditions_:
        name += " "
    return name


def _reach(model: LVMOGPRegressor) -> float:
    # How far from the origin the picture of the latent space goes: the prior, all conditions, the new one surely.
    if model.n_latent_ == 0:
        return 0.0
    mean, deviation = (model.latents_.filter(regex=f"^{kind}_").to_numpy() for kind in ("mean", "sd"))
    mean = np.abs(mean)
    return float(max(3.0, 1.05 * mean.max(), (mean + 3 * deviation)[-1].max()))


def _draw_latents(model: LVMOGPRegressor, name: str, reach: float, ax: Axes) -> None:
    if model.n_latent_ == 0:
        tell_features(model, ax)
        return
    fitted, condition = model.model_, model.model_.added[name].condition
    trained = model.latents_.filter(regex="^mean_").to_numpy()[: len(fitted.ids)]
    with double_precision():
        known = known_of(fitted, fitted.added[name].features)
    # The density can be evaluated where one process and the latents alone decide it.
    exact = len(known.unknown) == model.n_latent_ and fitted.ensemble.n_processes == 1
    if model.n_latent_ == 1:
        _draw_density(fitted, condition, reach, ax, known if exact else None)
        height = np.full(len(trained), 0.03)
        ax.plot(trained[:, 0], height, transform=ax.get_xaxis_transform(), **_CROSSES)
        ax.set(xlabel="latent", ylabel="density, peak = 1")
    else:
        first, second = main_dimensions(model)
        if model.n_latent_ == 2 and exact:
            _draw_regions(fitted, condition, reach, ax, known)
        else:
            _draw_particles(fitted, condition, (first - 1, second - 1), ax)
        ax.plot(trained[:, first - 1], trained[:, second - 1], **_CROSSES)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set(xlabel=f"latent dimension {first}", ylabel=f"latent dimension {second}")
    tidy(ax)


def _weighted_latents(model: FittedModel, condition: Condition) -> tuple[np.ndarray, np.ndarray]:
    # Latents of all particles as they compare between processes, and their weights.
    weights = condition.weights.reshape(-1)
    with double_precision():
        return np.asarray(aligned_latents(model.ensemble, condition)).reshape(len(weights), -1), weights


def _draw_density(model: FittedModel, condition: Condition, reach: float, ax: Axes, known: KnownLatents | None) -> None:
    # On a line where it is exact, else smoothed from the particles.
    grid = np.linspace(-reach, reach, _N_LINE)
    if known is not None:
        density = _to_peak(log_latent_density(model.ensemble, condition.seen, grid[:, None], known))
    else:
        latents, weights = _weighted_latents(model, condition)
        density = gaussian_kde(latents[:, 0], weights=weights)(grid)
        density = density / density.max()
    ax.fill_between(grid, density, color=_SHADES[0], linewidth=0)
    ax.plot(grid, density, color=COLOURS[0])


def _draw_regions(model: FittedModel, condition: Condition, reach: float, ax: Axes, known: KnownLatents) -> None:
    grid = np.linspace(-reach, reach, _N_EACH_WAY)
    across, up = np.meshgrid(grid, grid)
    latents = np.column_stack([across.reshape(-1), up.reshape(-1)])
    density = _to_peak(log_latent_density(model.ensemble, condition.seen, latents, known))
    levels = [_height_that_holds(density, mass) for mass in _MASSES]
    shown = density.reshape(across.shape)
    ax.contourf(grid, grid, shown, levels=[*levels, np.inf], colors=_SHADES)
    edges = ax.contour(grid, grid, shown, levels=levels, colors=COLOURS[0], linewidths=0.8)
    if condition.seen.n_present == 0:  # said once, in the panel of the prior
        names = {level: f"{100 * mass:.0f} %" for level, mass in zip(levels, _MASSES, strict=True)}
        ax.clabel(edges, fmt=names, fontsize="small", colors="black")


def _draw_particles(model: FittedModel, condition: Condition, places: tuple[int, int], ax: Axes) -> None:
    latents, weights = _weighted_latents(model, condition)
    first, second = latents[:, places].T
    ax.scatter(first, second, s=4000 * weights, color=COLOURS[0], alpha=0.4, linewidths=0)


def _to_peak(log_density: np.ndarray) -> np.ndarray:
    # The density relative to its peak, so that sharp and flat ones can be seen side by side.
    return np.exp(log_density - log_density.max())


def _height_that_holds(density: np.ndarray, mass: float) -> float:
    # The density above which the highest parts hold this share of all.
    falling = np.sort(density)[::-1]
    return float(falling[np.searchsorted(np.cumsum(falling), mass * falling.sum())])
