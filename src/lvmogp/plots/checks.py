"""Pictures that tell whether to trust a fit: relevance, convergence, calibration."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import binom

from lvmogp.errors import DataError, SettingError
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.plots.style import COLOURS, LINE_STYLES, own_axes, tidy
from lvmogp.relevance import feature_relevance, input_relevance, latent_relevance

LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())


def plot_relevance(model: LVMOGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Share of the variance of the predictions in which each input, feature and latent dimension has a part."""
    inputs, features, latents = input_relevance(model), feature_relevance(model), latent_relevance(model)
    names = [str(name) for name in (*inputs["input"], *features["feature"])]
    names += [f"latent dimension {dimension}" for dimension in latents["dimension"]]
    values = np.concatenate([table["relevance"] for table in (inputs, features, latents)]).astype(float)
    kinds = np.repeat([0, 1, 2], [len(inputs), len(features), len(latents)])
    ax = own_axes(ax, height=0.9 + 0.34 * len(names))
    for kind, colour, hatch, label in (
        (0, COLOURS[0], "", "inputs"),
        (1, COLOURS[2], "...", "features"),
        (2, COLOURS[1], "///", "latents"),
    ):
        chosen = np.flatnonzero(kinds == kind)
        ax.barh(chosen, values[chosen], height=0.6, color=colour, hatch=hatch, edgecolor="white", label=label)
    for place, value in enumerate(values):
        ax.annotate(f"{value:.2f}", (value, place), (3, 0), textcoords="offset points", va="center", fontsize="small")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.1 * max(1.0, values.max()))
    ax.set_xticks(np.linspace(0, 1, 6))
    ax.set_xlabel("relevance (0: does not matter)")
    return tidy(ax)


def plot_convergence(model: LVMOGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Bound against iteration of every start, the best marked, zoomed to where the starts part."""
    restarts = [restart for restart in model.outcome_.restarts if len(restart.history)]
    if not restarts:
        raise DataError("the model holds no history of its fit; convergence can be drawn for fitted models only")
    restarts.sort(key=lambda restart: restart.bound, reverse=True)
    ax = own_axes(ax)
    for number, restart in enumerate(restarts):
        is_best = number == 0
        ax.plot(
            np.arange(1, len(restart.history) + 1),
            restart.history,
            color=COLOURS[0] if is_best else "0.45",
            linewidth=2.0 if is_best else 1.1,
            linestyle="-" if is_best else LINE_STYLES[1:][(number - 1) % (len(LINE_STYLES) - 1)],
            zorder=3 if is_best else 2,
            label=f"{restart.recipe}: {restart.bound:.2f}{' (best)' if is_best else ''}".replace("-", "−"),
        )
    ax.plot(
        len(restarts[0].history),
        restarts[0].history[-1],
        marker="*",
        markersize=12,
        color=COLOURS[0],
        markeredgecolor="white",
        zorder=4,
    )
    ax.set_ylim(*_zoom([np.asarray(restart.history) for restart in restarts]))
    ax.set_xlabel("iteration")
    ax.set_ylabel("bound")
    ax.legend(title="start: bound", frameon=False, fontsize="small", title_fontsize="small")
    return tidy(ax)


def _zoom(histories: list[np.ndarray]) -> tuple[float, float]:
    # All that every start did in the second half of its run; the first rise is often a hundred times larger.
    late = np.concatenate([history[len(history) // 2 :] for history in histories])
    late = late[np.isfinite(late)]
    low, high = (float(late.min()), float(late.max())) if len(late) else (0.0, 1.0)
    room = max(high - low, 1.0)
    return low - 0.5 * room, high + 0.1 * room


def plot_calibration(
    model: LVMOGPRegressor,
    X: Any,
    y: Any,
    conditions: Any = None,
    *,
    levels: Sequence[float] = LEVELS,
    ax: Axes | None = None,
) -> Axes:
    """Share of held-out observations inside their central intervals, against the level of the intervals.

    Parameters
    ----------
    model : LVMOGPRegressor
        A fitted model.
    X, y, conditions
        Held-out observations, as for ``predict``; outputs that are NaN do not count.
    levels : sequence of float, optional
        Levels of the intervals; .05, .10, … .95 unless given.
    ax : Axes, optional
        Where to draw; a new figure unless given.

    Notes
    -----
    The grey band holds 95 % of such shares if the intervals are right and the observations independent. Those of
    one condition share its errors, so that a line somewhat outside says little where conditions are few.
    """
    asked = np.asarray(levels, dtype=float)
    if asked.ndim != 1 or len(asked) == 0 or not np.all((asked > 0) & (asked < 1)):
        raise SettingError(f"levels must be numbers between 0 and 1, got {levels!r}")
    below = model.predictive_cdf(X, y, conditions)
    below = below[np.isfinite(below)]
    n = len(below)
    if n == 0:
        raise DataError("there are no held-out observations: y is empty or holds NaN only")
    # Inside the central interval of a level: neither tail beyond the observation is smaller than (1 − level)/2.
    shares = [float(np.mean(np.abs(2 * below - 1) <= level)) for level in asked]
    ax = own_axes(ax, width=4.4, height=4.2)
    fine = np.linspace(0, 1, 201)
    ax.fill_between(
        fine,
        binom.ppf(0.025, n, fine) / n,
        binom.ppf(0.975, n, fine) / n,
        color="0.85",
        linewidth=0,
        label=f"sampling error of {n} observations (95 %)",
    )
    ax.plot([0, 1], [0, 1], color="0.4", linewidth=1, linestyle="--")
    ax.plot(asked, shares, color=COLOURS[0], marker="o", markersize=4.5, markeredgecolor="white", label="observed")
    ax.set_xlabel("level of the interval")
    ax.set_ylabel("share of observations inside")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_aspect("equal")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return tidy(ax)
