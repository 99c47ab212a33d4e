"""Where conditions lie in the latent space, how surely, and how a new one comes to be known."""

# pyright: reportUnknownMemberType=false

import copy
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Ellipse
from scipy.stats import gaussian_kde

from lvmogp.conditions.condition import Condition, KnownLatents, aligned_latents
from lvmogp.conditions.curves import FewObservations
from lvmogp.conditions.ensemble import Ensemble
from lvmogp.conditions.infer import log_posterior
from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.model import known_of
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import double_precision
from lvmogp.insight.summary import feature_relevance, latent_relevance
from lvmogp.plots.curves import label_output, plot_curve, plot_data, slice_through
from lvmogp.plots.labels import label_points
from lvmogp.plots.style import ADDED_COLOUR, COLOURS, own_axes, tidy
from lvmogp.tables.ids import Id, unknown_condition
from lvmogp.tables.reading import read_inputs, read_outputs
from lvmogp.typing import Array, Float, HostFloat

_jax: Any = jax  # whose types are partly open
_MOST_LABELS = 40
_IRRELEVANT = 0.005
_MOST_STEPS = 4
_N_LINE, _N_EACH_WAY = 801, 121
_N_NOISE_NODES = 31
_POINTS_AT_ONCE = 4_096
_MASSES, _SHADES = (0.95, 0.5), ("#BFD9EA", "#4F93C0")  # of the regions, from the outside
_CROSSES: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 4, "color": "0.3"}


def plot_latents(
    model: LVMOGPRegressor, against: Any, *, dimension: int = 1, colour: str = COLOURS[0], ax: Axes | None = None
) -> Axes:
    """Draw a latent dimension of the trained conditions against known values, with bars of two standard deviations."""
    if not 1 <= dimension <= model.n_latent_:
        raise SettingError(f"dimension must be a number from 1 to {model.n_latent_}, got {dimension!r}")
    ax = ax or plt.gca()
    table = model.latents_[~model.latents_["added"]]
    mean, deviation = table[f"mean_{dimension}"], table[f"sd_{dimension}"]
    ax.errorbar(against, mean, yerr=2 * deviation, fmt="o", color=colour, capsize=3, markersize=5)
    return ax


def plot_latent_space(
    model: LVMOGPRegressor,
    dimensions: int | Sequence[int] | None = None,
    *,
    labels: bool | Sequence[Id] | None = None,
    n_sd: float = 2.0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the conditions in the latent space: points with ellipses, or in one dimension a list with bars.

    One or two ``dimensions`` are numbered from 1 as in ``latents_``; unless given, they are the two that matter most,
    or the only one that matters. ``labels`` say whose ids to write; unless given, all up to 40 conditions, above that
    those added only. Ellipses and bars reach ``n_sd`` standard deviations from the mean.

    Conditions added after the fit are black stars with dashed ellipses. An added condition's posterior may have
    several peaks; here it is shown by its mean and standard deviations (see :func:`plot_new_condition`). A model
    without latents says so.
    """
    if model.n_latent_ == 0:
        return _tell_features(model, own_axes(ax))
    chosen, table = _dimensions(model, dimensions, _IRRELEVANT), model.latents_
    if labels is None:
        labels = len(table) <= _MOST_LABELS or list(model.model_.added)
    written = labels if not isinstance(labels, bool) else model.conditions_ if labels else []
    for condition in written:
        if condition not in model.conditions_:
            raise unknown_condition(condition, model.conditions_)
    named = table["condition"].isin(written).to_numpy()
    if len(chosen) == 1:
        return _list(table, chosen[0], named, n_sd, ax)
    return _map(table, chosen, named, n_sd, ax)


def _tell_features(model: LVMOGPRegressor, ax: Axes) -> Axes:
    # Words in the place of a latent space that is not there.
    names = ", ".join(feature_relevance(model)["feature"])
    ax.text(0.5, 0.5, f"no latents: conditions are told apart by\n{names}", ha="center", va="center", wrap=True)
    ax.set_axis_off()
    return ax


def _dimensions(model: LVMOGPRegressor, asked: int | Sequence[int] | None, least: float) -> tuple[int, ...]:
    # Unless asked for, the two that matter most, in order, if they matter.
    if asked is None:
        relevance = latent_relevance(model)["relevance"].to_numpy()
        first = np.sort(np.argsort(-relevance, kind="stable")[:2])
        return tuple(int(place) + 1 for place in first if relevance[place] >= least) or (1,)
    chosen, most = (asked,) if isinstance(asked, int) else tuple(asked), model.n_latent_
    if len(chosen) > 2 or len(set(chosen)) < len(chosen) or not all(1 <= one <= most for one in chosen):
        raise SettingError(f"dimensions must be one or two different numbers from 1 to {most}, got {asked!r}")
    return chosen


def _list(table: pd.DataFrame, dimension: int, named: np.ndarray, n_sd: float, ax: Axes | None) -> Axes:
    order = np.argsort(table[f"mean_{dimension}"].to_numpy(), kind="stable")
    table, named = table.iloc[order], named[order]
    ax = own_axes(ax, height=min(max(2.4, 0.8 + 0.2 * len(table)), 9.0))
    for is_added, marker, colour, size in ((False, "o", COLOURS[0], 5), (True, "*", ADDED_COLOUR, 9)):
        chosen = (table["added"] == is_added).to_numpy()
        mean, reach = table[f"mean_{dimension}"][chosen], n_sd * table[f"sd_{dimension}"][chosen]
        look: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": size}
        ax.errorbar(mean, np.flatnonzero(chosen), xerr=reach, capsize=2.5, linewidth=1.2, **look)
    size = "medium" if len(table) <= 15 else "small" if len(table) <= 30 else "x-small"
    ax.set_yticks(np.flatnonzero(named), table["condition"][named].astype(str), fontsize=size)
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.set_xlabel(f"latent dimension {dimension}, ± {n_sd:g} sd")
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    return tidy(ax)


def _map(table: pd.DataFrame, dimensions: tuple[int, ...], named: np.ndarray, n_sd: float, ax: Axes | None) -> Axes:
    ax = own_axes(ax, height=5.2)
    mean, deviation = (table[[f"{kind}_{one}" for one in dimensions]].to_numpy() for kind in ("mean", "sd"))
    added = table["added"].to_numpy()
    for centre, size, is_added in zip(mean, 2 * n_sd * deviation, added, strict=True):
        colour, line = (ADDED_COLOUR, "--") if is_added else (COLOURS[0], "-")
        shade = {"facecolor": to_rgba(colour, 0.08), "edgecolor": to_rgba(colour, 0.45)}
        ax.add_patch(Ellipse(tuple(centre), *size, linestyle=line, linewidth=0.9, **shade))
    points: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "white"}
    ax.plot(*mean[~added].T, marker="o", markersize=5, color=COLOURS[0], **points)
    ax.plot(*mean[added].T, marker="*", markersize=11, color=ADDED_COLOUR, **points)
    ax.set(xlabel=f"latent dimension {dimensions[0]}", ylabel=f"latent dimension {dimensions[1]}")
    ax.set_aspect("equal", adjustable="datalim")
    ax.update_datalim(np.concatenate([mean - n_sd * deviation, mean + n_sd * deviation]))
    ax.autoscale_view()
    label_points(ax, mean[named], [str(condition) for condition in table["condition"][named]], avoid=mean)
    return tidy(ax)


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

    ``X`` and ``y`` are its observations in the order in which they come in, ``features`` what else is known of it, as
    for ``add_condition``; it is added to a copy, and the model stays as it is. ``steps`` say after how many
    observations to draw, each in a column of panels, 0 being the prior; unless given, 0, 1, 2, … up to four, and all.
    ``along``, ``at``, ``inputs`` and ``level`` are as for :func:`plot_curve`; the band is for the function. ``axes``,
    where given, and the axes returned have the shape (2, steps).

    With one or two latent dimensions the posterior is computed exactly on a grid: its density relative to
    the peak, or the regions of highest density that hold half and 95 % of it. With more, its particles are drawn in
    the two dimensions that matter most, large where they weigh much; so they are where features of the condition are
    missing, and of a model with posterior draws, whose density in one dimension is smoothed from them. Trained
    conditions are marked by crosses.
    """
    schema, where = model.model_.schema, slice_through(model, (along,), at)
    points = read_inputs(X, schema=schema).values
    outputs = read_outputs(y, len(points)).reshape(-1)
    if len(outputs) != len(points) or not np.isfinite(outputs).all():
        raise DataError(f"y must hold one finite output for each of the {len(points)} rows of X")
    counts, name = _steps(steps, len(points)), "new condition"
    while name in model.conditions_:
        name += " "
    stages = [copy.copy(model).add_condition(name, points[:n], outputs[:n], features=features) for n in counts]
    reach = max(_reach(extended) for extended in stages)
    panels = _panels(axes, len(counts))
    for count, extended, (above, below) in zip(counts, stages, panels.T, strict=True):
        _draw_latents(extended, name, reach, above)
        after = f"after {count} observation{'' if count == 1 else 's'}"
        above.set_title(after if count else "before any observation", fontsize="medium")
        plot_curve(extended, name, along=along, at=at, inputs=inputs, level=level, ax=below)
        plot_data(extended, name, along=along, at=at, colour="black", ax=below)
        where.label(below.xaxis)
        label_output(model, below.yaxis)
        tidy(below)
    for ax in panels[:, 1:].flat:
        ax.set_ylabel("")
    return panels


def _steps(steps: Sequence[int] | None, n: int) -> list[int]:
    given: list[Any] = sorted({*range(min(n, _MOST_STEPS) + 1), n}) if steps is None else list(steps)
    if not given or not all(isinstance(step, (int, np.integer)) and 0 <= step <= n for step in given):
        raise SettingError(f"steps must be whole numbers from 0 to {n}, the number of observations, got {steps!r}")
    return given


def _panels(axes: np.ndarray | None, n_steps: int) -> np.ndarray:
    if axes is None:
        figure = plt.figure(figsize=(0.6 + 2.7 * n_steps, 5.4), layout="constrained")
        return figure.subplots(2, n_steps, sharex="row", sharey="row", squeeze=False)
    given = np.asarray(axes)
    if given.shape != (2, n_steps) and (given.shape, n_steps) != ((2,), 1):
        raise SettingError(f"axes must have the shape (2, {n_steps}), one column per step, got {given.shape}")
    return given.reshape(2, n_steps)


def _reach(model: LVMOGPRegressor) -> float:
    # How far from the origin the picture of the latent space goes: the prior, all conditions, the new one surely.
    mean, deviation = (np.abs(model.latents_.filter(regex=f"^{kind}_").to_numpy()) for kind in ("mean", "sd"))
    return float(max(3.0, 1.05 * mean.max(initial=0.0), (mean + 3 * deviation)[-1].max(initial=0.0)))


def _draw_latents(model: LVMOGPRegressor, name: str, reach: float, ax: Axes) -> None:
    if model.n_latent_ == 0:
        _tell_features(model, ax)
        return
    fitted, condition = model.model_, model.model_.added[name].condition
    shown = [number - 1 for number in _dimensions(model, None, 0.0)]
    trained = model.latents_.filter(regex="^mean_").to_numpy()[: len(fitted.ids), shown]
    with double_precision():
        known = known_of(fitted, fitted.added[name].features)
        latents = np.asarray(aligned_latents(fitted.ensemble, condition)).reshape(condition.weights.size, -1)[:, shown]
    # The density can be evaluated where one process and the latents alone decide it.
    exact = len(known.unknown) == model.n_latent_ and fitted.ensemble.n_processes == 1
    if model.n_latent_ == 1:
        grid = np.linspace(-reach, reach, _N_LINE)
        if exact:
            density = _density(fitted.ensemble, condition, grid[:, None], known)
        else:
            density = gaussian_kde(latents[:, 0], weights=condition.weights.reshape(-1))(grid)
        ax.fill_between(grid, density / density.max(), color=_SHADES[0], linewidth=0)
        ax.plot(grid, density / density.max(), color=COLOURS[0])
        ax.plot(trained[:, 0], np.full(len(trained), 0.03), transform=ax.get_xaxis_transform(), **_CROSSES)
        ax.set(xlabel="latent", ylabel="density, peak = 1")
    else:
        if model.n_latent_ == 2 and exact:
            _draw_regions(fitted.ensemble, condition, reach, ax, known)
        else:
            sizes = 4000 * condition.weights.reshape(-1)
            ax.scatter(*latents.T, s=sizes, color=COLOURS[0], alpha=0.4, linewidths=0)
        ax.plot(*trained.T, **_CROSSES)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set(xlabel=f"latent dimension {shown[0] + 1}", ylabel=f"latent dimension {shown[1] + 1}")
    tidy(ax)


def _draw_regions(ensemble: Ensemble, condition: Condition, reach: float, ax: Axes, known: KnownLatents) -> None:
    grid = np.linspace(-reach, reach, _N_EACH_WAY)
    latents = np.stack(np.meshgrid(grid, grid), axis=-1)
    density = _density(ensemble, condition, latents.reshape(-1, 2), known)
    # The densities above which the highest parts hold these shares of all.
    falling = np.sort(density)[::-1]
    levels = [float(falling[np.searchsorted(np.cumsum(falling), mass * falling.sum())]) for mass in _MASSES]
    shown = density.reshape(latents.shape[:2])
    ax.contourf(grid, grid, shown, levels=[*levels, np.inf], colors=_SHADES)
    edges = ax.contour(grid, grid, shown, levels=levels, colors=COLOURS[0], linewidths=0.8)
    if condition.seen.n_present == 0:  # said once, in the panel of the prior
        names = {level: f"{100 * mass:.0f} %" for level, mass in zip(levels, _MASSES, strict=True)}
        ax.clabel(edges, fmt=names, fontsize="small", colors="black")


def _density(ensemble: Ensemble, condition: Condition, latents: HostFloat, known: KnownLatents) -> HostFloat:
    """Return p(h | y) up to a factor (equation 19); a noise of its own is integrated out by Gauss–Hermite.

    ``latents`` are all the coordinates that are not ``known``, and the ensemble is of one process.
    """
    nodes, weights = np.zeros((1, 0)), np.ones(1)
    if not ensemble.noise_prior.shared:
        # ∫ g(z) dz = Σ wᵢ exp(zᵢ²/2) g(zᵢ): the log posterior holds the density of z already.
        nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NOISE_NODES)
        nodes, weights = nodes[:, None], weights * np.exp(nodes**2 / 2)
    thetas = np.hstack([np.repeat(latents, len(nodes), axis=0), np.tile(nodes, (len(latents), 1))])
    with double_precision():
        found = np.asarray(_log_posteriors(ensemble, condition.seen, known, jnp.asarray(thetas, ensemble.dtype)))
    return np.exp(found - found.max()).reshape(-1, len(nodes)) @ weights


@compiled
def _log_posteriors(
    ensemble: Ensemble, seen: FewObservations, known: KnownLatents, thetas: Float[Array, "n T"]
) -> Float[Array, " n"]:
    process, prior = _jax.tree.map(itemgetter(0), (ensemble.processes, ensemble.noise_prior))
    return _jax.lax.map(log_posterior(process, seen, known, prior), thetas, batch_size=_POINTS_AT_ONCE)
