"""Where the conditions lie in the latent space, and how surely."""

# Matplotlib's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Ellipse

from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.insight.relevance import feature_relevance, latent_relevance
from lvmogp.plots.labels import label_points
from lvmogp.plots.style import ADDED_COLOUR, COLOURS, current_axes, own_axes, tidy
from lvmogp.tables.ids import Id, unknown_condition

_MOST_LABELS = 40
_IRRELEVANT = 0.005
_TRAINED, _ADDED = COLOURS[0], ADDED_COLOUR


def plot_latents(
    model: LVMOGPRegressor,
    against: Any,
    *,
    dimension: int = 1,
    colour: str = COLOURS[0],
    ax: Axes | None = None,
) -> Axes:
    """Draw a latent dimension of the trained conditions against known values, with bars of two standard deviations."""
    if not 1 <= dimension <= model.n_latent_:
        raise SettingError(f"dimension must be a number from 1 to {model.n_latent_}, got {dimension!r}")
    ax = current_axes(ax)
    table = model.latents_
    table = table[~table["added"]]
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

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model.
    dimensions : int or pair of int, optional
        Which dimensions, numbered from 1 as in ``latents_``. Unless given: the two that matter most, or the
        only one that matters.
    labels : bool or sequence of ids, optional
        Whose ids to write. Unless given: all up to 40 conditions, above that those added only.
    n_sd : float, default=2.0
        Standard deviations from the mean to the edge of an ellipse or the end of a bar.
    ax : Axes, optional
        Where to draw; a new figure unless given.

    Notes
    -----
    Conditions added after the fit are black stars with dashed ellipses. An added condition's posterior may have
    several peaks; here it is shown by its mean and standard deviations (see :func:`plot_new_condition`). A model
    without latents says so.
    """
    if model.n_latent_ == 0:
        return tell_features(model, own_axes(ax))
    chosen = _dimensions(model, dimensions)
    table = model.latents_
    named = _labelled(model, labels)
    if len(chosen) == 1:
        return _list(table, chosen[0], named, n_sd, ax)
    return _map(table, chosen, named, n_sd, ax)


def tell_features(model: LVMOGPRegressor, ax: Axes) -> Axes:
    """Write words in the place of a latent space that is not there."""
    names = ", ".join(feature_relevance(model)["feature"])
    ax.text(0.5, 0.5, f"no latents: conditions are told apart by\n{names}", ha="center", va="center", wrap=True)
    ax.set_axis_off()
    return ax


def main_dimensions(model: LVMOGPRegressor) -> tuple[int, ...]:
    """Return the only latent dimension, or the two that matter most, numbered from 1."""
    relevance = latent_relevance(model)["relevance"].to_numpy()
    return tuple(sorted(int(place) + 1 for place in np.argsort(-relevance, kind="stable")[:2]))


def _dimensions(model: LVMOGPRegressor, asked: int | Sequence[int] | None) -> tuple[int, ...]:
    n_latent = model.n_latent_
    if asked is None:
        relevance = latent_relevance(model)["relevance"].to_numpy()
        return tuple(one for one in main_dimensions(model) if relevance[one - 1] >= _IRRELEVANT) or (1,)
    chosen = (asked,) if isinstance(asked, int) else tuple(asked)
    if len(chosen) > 2 or len(set(chosen)) < len(chosen) or not all(1 <= one <= n_latent for one in chosen):
        raise SettingError(f"dimensions must be one or two different numbers from 1 to {n_latent}, got {asked!r}")
    return chosen


def _labelled(model: LVMOGPRegressor, labels: bool | Sequence[Id] | None) -> set[Id]:
    everything = model.conditions_
    if labels is None:
        return set(everything if len(everything) <= _MOST_LABELS else model.model_.added)
    if isinstance(labels, bool):
        return set(everything if labels else ())
    for condition in labels:
        if condition not in everything:
            raise unknown_condition(condition, everything)
    return set(labels)


def _list(table: pd.DataFrame, dimension: int, named: set[Id], n_sd: float, ax: Axes | None) -> Axes:
    table = table.sort_values(f"mean_{dimension}", kind="stable")
    ax = own_axes(ax, height=min(max(2.4, 0.8 + 0.2 * len(table)), 9.0))
    for added, colour, marker in ((False, _TRAINED, "o"), (True, _ADDED, "*")):
        chosen = (table["added"] == added).to_numpy()
        ax.errorbar(
            table[f"mean_{dimension}"][chosen],
            np.flatnonzero(chosen),
            xerr=n_sd * table[f"sd_{dimension}"][chosen],
            fmt=marker,
            color=colour,
            markersize=9 if added else 5,
            capsize=2.5,
            linewidth=1.2,
        )
    shown = [place for place, condition in enumerate(table["condition"]) if condition in named]
    size = "medium" if len(table) <= 15 else "small" if len(table) <= 30 else "x-small"
    ax.set_yticks(shown, [str(table["condition"].iloc[place]) for place in shown], fontsize=size)
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.set_xlabel(f"latent dimension {dimension}, ± {n_sd:g} sd")
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    return tidy(ax)


def _map(table: pd.DataFrame, dimensions: tuple[int, ...], named: set[Id], n_sd: float, ax: Axes | None) -> Axes:
    ax = own_axes(ax, width=5.6, height=5.2)
    mean = table[[f"mean_{one}" for one in dimensions]].to_numpy()
    deviation = table[[f"sd_{one}" for one in dimensions]].to_numpy()
    added = table["added"].to_numpy()
    for centre, sd, is_added in zip(mean, deviation, added, strict=True):
        colour = _ADDED if is_added else _TRAINED
        ax.add_patch(
            Ellipse(
                (centre[0], centre[1]),
                *(2 * n_sd * sd),
                facecolor=to_rgba(colour, 0.08),
                edgecolor=to_rgba(colour, 0.45),
                linestyle="--" if is_added else "-",
                linewidth=0.9,
            )
        )
    ax.plot(*mean[~added].T, linestyle="none", marker="o", markersize=5, color=_TRAINED, markeredgecolor="white")
    ax.plot(*mean[added].T, linestyle="none", marker="*", markersize=11, color=_ADDED, markeredgecolor="white")
    ax.set(xlabel=f"latent dimension {dimensions[0]}", ylabel=f"latent dimension {dimensions[1]}")
    ax.set_aspect("equal", adjustable="datalim")
    edges = np.concatenate([mean - n_sd * deviation, mean + n_sd * deviation])
    ax.update_datalim(edges)
    ax.autoscale_view()
    chosen = np.array([condition in named for condition in table["condition"]])
    label_points(ax, mean[chosen], [str(condition) for condition in table["condition"][chosen]], avoid=mean)
    return tidy(ax)
