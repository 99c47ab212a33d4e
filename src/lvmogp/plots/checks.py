"""Pictures that tell whether to trust a fit: relevance, convergence, calibration."""

# pyright: reportUnknownMemberType=false

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from lvmogp.errors import DataError, LVMOGPWarning
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.calibration import Calibration
from lvmogp.insight.summary import relevances
from lvmogp.insight.variance import variance_shares
from lvmogp.plots.style import COLOURS, LINE_STYLES, OF_PARTS, own_axes, tidy

# Most conditions of a picture of shares, and the least share that has a number.
_MOST_BARS, _LEAST_LABELLED = 20, 0.06
LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())


def plot_relevance(model: LVMOGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Draw the share of the variance of predictions in which each input, feature and latent dimension has a part."""
    found = relevances(model)
    names = [*found.inputs["input"], *found.features["feature"]]
    names += [f"latent dimension {dimension}" for dimension in found.latents["dimension"]]
    ax = own_axes(ax, height=0.9 + 0.34 * len(names))
    kinds = ((found.inputs, COLOURS[0], ""), (found.features, COLOURS[2], "..."), (found.latents, COLOURS[1], "///"))
    looks = [(value, colour, hatch) for table, colour, hatch in kinds for value in table["relevance"]]
    values, colours, hatches = zip(*looks, strict=True)
    bars = ax.barh(range(len(names)), values, height=0.6, color=colours, hatch=hatches, edgecolor="white")
    ax.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlim=(0, max(1.1, 1.1 * ax.dataLim.x1)), xticks=np.linspace(0, 1, 6))
    ax.set_xlabel("relevance (0: does not matter)")
    return tidy(ax)


def plot_variance_shares(model: LVMOGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Draw how much of the variance is shared, latent, own and noise, over all conditions and for each of them.

    Of more than twenty conditions, twenty that are spread evenly from the least to the most explained.
    """
    found = variance_shares(model)
    parts = list(dict.fromkeys(found["part"]))
    shares = found["share"].to_numpy().reshape(-1, len(parts))
    names = ["all conditions", *map(str, found["condition"][len(parts) :: len(parts)])]
    places = np.arange(1, len(names))
    if len(places) > _MOST_BARS:
        by_noise = places[np.argsort(shares[1:, -1], kind="stable")]
        places = by_noise[np.linspace(0, len(by_noise) - 1, _MOST_BARS).astype(int)]
    chosen = [0, *places]
    ax = own_axes(ax, width=6.4, height=1.3 + 0.28 * len(chosen))
    heights = np.append(0.0, 0.5 + np.arange(1, len(chosen)))  # all conditions together stand apart
    starts = np.zeros(len(chosen))
    for number, part in enumerate(parts):
        colour, hatch = OF_PARTS[part]
        values = shares[chosen, number]
        bars = ax.barh(
            heights, values, left=starts, height=0.7, color=colour, hatch=hatch, edgecolor="white", label=part
        )
        labels = [f"{100 * value:.0f}" if value >= _LEAST_LABELLED else "" for value in values]
        frame = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        ax.bar_label(bars, labels, label_type="center", fontsize="small", bbox=frame)
        starts = starts + values
    for text in ax.texts:
        text.set_visible(bool(text.get_text()))
    ax.set_yticks(heights, [names[place] for place in chosen])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xticks=np.linspace(0, 1, 6), xlabel="share of the variance")
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(parts), frameon=False, fontsize="small")
    return tidy(ax)


def plot_convergence(model: LVMOGPRegressor, *, ax: Axes | None = None) -> Axes:
    """Draw the bound against iteration of every start, the best marked, zoomed to where the starts part."""
    restarts = [restart for restart in model.outcome_.restarts if len(restart.history)]
    if not restarts:
        raise DataError("the model holds no history of its fit; convergence can be drawn for fitted models only")
    restarts.sort(key=lambda restart: restart.bound, reverse=True)
    ax, dashes = own_axes(ax), LINE_STYLES[1:]
    for number, restart in enumerate(restarts):
        look: dict[str, Any] = {"color": COLOURS[0], "linewidth": 2.0, "zorder": 3}
        if number > 0:
            look = {"color": "0.45", "linewidth": 1.1, "linestyle": dashes[(number - 1) % len(dashes)]}
        label = f"{restart.recipe}: {restart.bound:.2f}{'' if number else ' (best)'}".replace("-", "−")
        ax.plot(np.arange(1, len(restart.history) + 1), restart.history, label=label, **look)
    best = restarts[0].history
    ax.plot(len(best), best[-1], "*", markersize=12, color=COLOURS[0], markeredgecolor="white", zorder=4)
    # All that every start did in the second half of its run; the first rise is often a hundred times larger.
    late = np.concatenate([restart.history[len(restart.history) // 2 :] for restart in restarts])
    late = late[np.isfinite(late)]
    low, high = (late.min(), late.max()) if len(late) else (0.0, 1.0)
    room = max(high - low, 1.0)
    ax.set(xlabel="iteration", ylabel="bound", ylim=(low - 0.5 * room, high + 0.1 * room))
    ax.legend(title="start: bound", frameon=False, fontsize="small", title_fontsize="small")
    return tidy(ax)


def plot_calibration(
    model: LVMOGPRegressor,
    X: Any,
    y: Any,
    conditions: Any = None,
    *,
    condition_features: Any = None,
    y_std: Any = None,
    levels: Sequence[float] = LEVELS,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of held-out observations inside their central intervals, against the level of the intervals.

    The observations are given as for ``LVMOGPRegressor.calibration``; outputs that are NaN do not count. The grey band
    holds 95 % of such shares if the intervals are right, observations of one condition sharing its errors as these do.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LVMOGPWarning)  # the picture says so
        found = model.calibration(X, y, conditions, condition_features=condition_features, y_std=y_std, levels=levels)
    return draw_calibration(found, ax)


def draw_calibration(found: Calibration, ax: Axes | None = None) -> Axes:
    """Draw a calibration that was computed before."""
    ax = own_axes(ax, width=4.4, height=4.2)
    levels, errors = found.coverage["level"].to_numpy(), found.coverage["standard_error"].to_numpy()
    lower, upper = (np.clip(np.r_[0, levels + side * errors, 1], 0, 1) for side in (-1.96, 1.96))
    label = f"sampling error of {found.n_observations} observations (95 %)"
    ax.fill_between(np.r_[0, levels, 1], lower, upper, color="0.85", linewidth=0, label=label)
    ax.plot([0, 1], [0, 1], color="0.4", linewidth=1, linestyle="--")
    look: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "markersize": 4.5, "markeredgecolor": "white"}
    ax.plot(levels, found.coverage["coverage"], label="observed", **look)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set(xlabel="level of the interval", ylabel="share of observations inside")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return tidy(ax)
