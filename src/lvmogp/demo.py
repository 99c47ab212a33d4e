"""The paper's braking example from data to figures: ten conditions, and an eleventh from one observation."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from lvmogp.estimator import LVMOGPRegressor
from lvmogp.metrics import r_squared_of_line, rmse
from lvmogp.plots import plot_curve, plot_data, plot_latents
from lvmogp.plots.style import COLOURS, save_figure, style, tidy
from lvmogp.simulate import BRAKING_NOISE, SPEEDS, Braking, braking, braking_distance
from lvmogp.typing import HostFloat

NEW = "new tyre"
_NEW_FRICTION = 0.35
_NEW_SPEED = 22.0
_GRID = np.linspace(*SPEEDS, 200)
Band = tuple[HostFloat, HostFloat]


class DemoResult(NamedTuple):
    """What the demo shows, as numbers and as files."""

    model: LVMOGPRegressor
    curves: pd.DataFrame  # of the new condition, a row for each speed; together is the one curve through all data
    error: float
    error_together: float
    r_squared: float
    files: tuple[Path, ...]


def run(out: Path, *, seed: int = 1) -> DemoResult:
    """Simulate, fit, add a condition from one observation, and write the figures into ``out``."""
    rng = np.random.default_rng(seed)
    data = braking(rng)
    model = LVMOGPRegressor(n_latent=1, random_state=seed)
    model.fit(data.speed[:, None], data.distance, conditions=[f"tyre {'ABCDEFGHIJ'[d]}" for d in data.condition])
    observed = braking_distance(np.array([_NEW_SPEED]), _NEW_FRICTION) + BRAKING_NOISE * rng.standard_normal(1)
    model.add_condition(NEW, [[_NEW_SPEED]], observed)

    truth = braking_distance(_GRID, _NEW_FRICTION)
    predicted = model.predict(_GRID[:, None], NEW)
    lower, upper = model.predict_interval(_GRID[:, None], NEW, include_noise=False)
    conditions = [data.condition == number for number in range(len(data.friction))]
    together, *alone = (_plain_gp(data.speed[rows], data.distance[rows]) for rows in (slice(None), *conditions))
    curves = {"truth": truth, "predicted": predicted, "lower": lower, "upper": upper, "together": together[0]}
    return DemoResult(
        model=model,
        curves=pd.DataFrame({"speed": _GRID, **curves}),
        error=rmse(predicted, truth),
        error_together=rmse(together[0], truth),
        r_squared=r_squared_of_line(model.latents_["mean_1"].to_numpy()[:-1], 1 / data.friction),
        files=_figures(out, data, model, together, alone),
    )


def _plain_gp(speed: HostFloat, distance: HostFloat) -> Band:
    # Mean and standard deviation on the grid.
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(10.0, (1.0, 1e3)) + WhiteKernel(0.1, (1e-6, 1e1))
    gp = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # five points a condition leave some hyperparameters at their limits
        gp.fit(speed[:, None], distance)
    mean, deviation = gp.predict(_GRID[:, None], return_std=True)
    return np.asarray(mean), np.asarray(deviation)


def _figures(out: Path, data: Braking, model: LVMOGPRegressor, together: Band, alone: list[Band]) -> tuple[Path, ...]:
    # Four pictures, each in a file of its own, and all in one.
    out.mkdir(parents=True, exist_ok=True)
    coloured: dict[str, Band] = dict(zip(COLOURS, alone, strict=True))
    drawings: dict[str, tuple[str, Callable[[Axes], None]]] = {
        "together.png": ("All data regressed together", lambda ax: _draw_bands(ax, model, {"0.25": together})),
        "alone.png": ("Each condition alone", lambda ax: _draw_bands(ax, model, coloured)),
        "joint.png": ("All conditions jointly, a new one from one observation", lambda ax: _draw_joint(ax, model)),
        "latent.png": ("What the latent found", lambda ax: _draw_latent(ax, data, model)),
    }
    pictures = {name: [drawing] for name, drawing in drawings.items()} | {"braking.png": [*drawings.values()]}
    files = []
    for name, drawn in pictures.items():
        each_way, size = (1, (5.2, 3.9)) if len(drawn) == 1 else (2, (10, 7.4))
        figure, axes = plt.subplots(each_way, each_way, figsize=size, layout="constrained", squeeze=False)
        for ax, (title, draw) in zip(axes.flat, drawn, strict=True):
            draw(ax)
            tidy(ax).set_title(title, fontsize=11)
        files.append(save_figure(figure, out / name))
    return tuple(files)


def _draw_data(ax: Axes, model: LVMOGPRegressor) -> None:
    for number, name in enumerate(model.conditions_[:-1]):
        plot_data(model, name, colour=style(number).colour, marker=style(number).marker, ax=ax)
    ax.set(xlabel="speed (m/s)", ylabel="braking distance (m)")


def _draw_bands(ax: Axes, model: LVMOGPRegressor, bands: dict[str, Band]) -> None:
    for colour, (mean, deviation) in bands.items():
        ax.fill_between(_GRID, mean - 1.96 * deviation, mean + 1.96 * deviation, color=colour, alpha=0.15, linewidth=0)
        ax.plot(_GRID, mean, color=colour, linewidth=1.2)
    _draw_data(ax, model)
    ax.set_ylim(-50, 200)  # where the data are


def _draw_joint(ax: Axes, model: LVMOGPRegressor) -> None:
    for number, name in enumerate(model.conditions_[:-1]):
        plot_curve(model, name, inputs=_GRID, colour=style(number).colour, label="", ax=ax)
    plot_curve(model, NEW, inputs=_GRID, colour="black", label="new condition, 95 % band", ax=ax)
    ax.plot(_GRID, braking_distance(_GRID, _NEW_FRICTION), color="black", linestyle=":", label="its true curve")
    _draw_data(ax, model)
    plot_data(model, NEW, colour="black", marker="*", ax=ax)
    ax.lines[-1].set(markersize=14, label="its only observation")
    ax.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_latent(ax: Axes, data: Braking, model: LVMOGPRegressor) -> None:
    plot_latents(model, 1 / data.friction, ax=ax)
    new = model.latents_.iloc[-1]
    ax.errorbar(
        1 / _NEW_FRICTION, new["mean_1"], yerr=2 * new["sd_1"], fmt="*", color="black", markersize=12, capsize=3
    )
    ax.set(xlabel="inverse friction 1/μ, never shown to the model", ylabel="latent, ± 2 sd")
