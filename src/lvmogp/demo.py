"""The paper's braking example from data to figures: ten conditions, and an eleventh from one observation."""

import warnings
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from lvmogp.estimator import LVMOGPRegressor
from lvmogp.metrics import coverage, r_squared_of_line, rmse
from lvmogp.plots import COLOURS, MARKERS, plot_curve, plot_data, plot_latents
from lvmogp.plots.saving import save_figure
from lvmogp.simulate import BRAKING_NOISE, SPEEDS, Braking, braking, braking_distance
from lvmogp.typing import HostFloat

NEW = "new tyre"
_NEW_FRICTION = 0.35
_NEW_SPEED = 22.0
_GRID = np.linspace(*SPEEDS, 200)


class DemoResult(NamedTuple):
    """What the demo shows, as numbers and as files."""

    model: LVMOGPRegressor
    truth: HostFloat
    predicted: HostFloat
    lower: HostFloat
    upper: HostFloat
    together: HostFloat
    error: float
    error_together: float
    covered: float
    r_squared: float
    files: tuple[Path, ...]


def run(out: Path, *, seed: int = 1) -> DemoResult:
    """Simulate, fit, add a condition from one observation, and write the figures into ``out``."""
    rng = np.random.default_rng(seed)
    data = braking(rng)
    model = LVMOGPRegressor(n_latent=1, random_state=seed)
    model.fit(data.speed[:, None], data.distance, conditions=[condition_name(d) for d in data.condition])
    observed = braking_distance(np.array([_NEW_SPEED]), _NEW_FRICTION) + BRAKING_NOISE * rng.standard_normal(1)
    model.add_condition(NEW, [[_NEW_SPEED]], observed)

    truth = braking_distance(_GRID, _NEW_FRICTION)
    predicted = model.predict(_GRID[:, None], NEW)
    lower, upper = model.predict_interval(_GRID[:, None], NEW, include_noise=False)
    together, together_deviation = _plain_gp(data.speed, data.distance)
    alone = [_plain_gp(data.speed[chosen], data.distance[chosen]) for chosen in _by_condition(data)]
    files = _figures(out, data, model, (together, together_deviation), alone)
    return DemoResult(
        model=model,
        truth=truth,
        predicted=predicted,
        lower=lower,
        upper=upper,
        together=together,
        error=rmse(predicted, truth),
        error_together=rmse(together, truth),
        covered=coverage(lower, upper, truth),
        r_squared=r_squared_of_line(model.latents_["mean_1"].to_numpy()[:-1], 1 / data.friction),
        files=files,
    )


def condition_name(number: int) -> str:
    """Name of a simulated condition; letters sort in the order of the numbers."""
    return f"tyre {chr(ord('A') + int(number))}"


def _plain_gp(speed: HostFloat, distance: HostFloat) -> tuple[HostFloat, HostFloat]:
    # Mean and standard deviation on the grid.
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(10.0, (1.0, 1e3)) + WhiteKernel(0.1, (1e-6, 1e1))
    gp = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # five points a condition leave some hyperparameters at their limits
        gp.fit(speed[:, None], distance)
    mean, deviation = gp.predict(_GRID[:, None], return_std=True)
    return np.asarray(mean), np.asarray(deviation)


def _by_condition(data: Braking) -> list[HostFloat]:
    return [data.condition == number for number in range(len(data.friction))]


Band = tuple[HostFloat, HostFloat]


def _figures(out: Path, data: Braking, model: LVMOGPRegressor, together: Band, alone: list[Band]) -> tuple[Path, ...]:
    out.mkdir(parents=True, exist_ok=True)
    drawings = {
        "together.png": ("All data regressed together", lambda ax: _draw_together(ax, data, together)),
        "alone.png": ("Each condition alone", lambda ax: _draw_alone(ax, data, alone)),
        "joint.png": ("All conditions jointly, a new one from one observation", lambda ax: _draw_joint(ax, model)),
        "latent.png": ("What the latent found", lambda ax: _draw_latent(ax, data, model)),
    }
    files = []
    for name, (title, draw) in drawings.items():
        figure, ax = plt.subplots(figsize=(5.2, 3.9), layout="constrained")
        draw(ax)
        ax.set_title(title, fontsize=11)
        files.append(save_figure(figure, out / name))
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.4), layout="constrained")
    for ax, (title, draw) in zip(axes.flat, drawings.values(), strict=True):
        draw(ax)
        ax.set_title(title, fontsize=11)
    files.append(save_figure(figure, out / "braking.png"))
    return tuple(files)


def _draw_observations(ax: Axes, data: Braking) -> None:
    for number, chosen in enumerate(_by_condition(data)):
        ax.plot(
            data.speed[chosen],
            data.distance[chosen],
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            markersize=5,
            markeredgecolor="white",
        )


def _label_axes(ax: Axes) -> None:
    ax.set_xlabel("speed (m/s)")
    ax.set_ylabel("braking distance (m)")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_band(ax: Axes, band: Band, colour: str) -> None:
    mean, deviation = band
    ax.fill_between(_GRID, mean - 1.96 * deviation, mean + 1.96 * deviation, color=colour, alpha=0.15, linewidth=0)
    ax.plot(_GRID, mean, color=colour, linewidth=1.2)


def _draw_together(ax: Axes, data: Braking, together: Band) -> None:
    _draw_band(ax, together, "0.25")
    _draw_observations(ax, data)
    _label_axes(ax)


def _draw_alone(ax: Axes, data: Braking, alone: list[Band]) -> None:
    for number, band in enumerate(alone):
        _draw_band(ax, band, COLOURS[number % len(COLOURS)])
    _draw_observations(ax, data)
    ax.set_ylim(min(0.0, data.distance.min()) - 20, data.distance.max() + 30)
    _label_axes(ax)


def _draw_joint(ax: Axes, model: LVMOGPRegressor) -> None:
    for number, name in enumerate(model.conditions_[:-1]):
        colour = COLOURS[number % len(COLOURS)]
        plot_curve(model, name, inputs=_GRID, colour=colour, label="", ax=ax)
        plot_data(model, name, colour=colour, marker=MARKERS[number % len(MARKERS)], ax=ax)
    plot_curve(model, NEW, inputs=_GRID, colour="black", label="new condition, 95 % band", ax=ax)
    ax.plot(_GRID, braking_distance(_GRID, _NEW_FRICTION), color="black", linestyle=":", label="its true curve")
    plot_data(model, NEW, colour="black", marker="*", ax=ax)
    ax.lines[-1].set(markersize=14, label="its only observation")
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    _label_axes(ax)


def _draw_latent(ax: Axes, data: Braking, model: LVMOGPRegressor) -> None:
    plot_latents(model, 1 / data.friction, ax=ax)
    added = model.latents_.iloc[-1]
    ax.errorbar(
        1 / _NEW_FRICTION, added["mean_1"], yerr=2 * added["sd_1"], fmt="*", color="black", markersize=12, capsize=3
    )
    ax.set_xlabel("inverse friction 1/μ, never shown to the model")
    ax.set_ylabel("latent, ± 2 sd")
    ax.spines[["top", "right"]].set_visible(False)
