"""The paper's figures for each experiment, and one of ours that shows calibration."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lvmogp.demo import run as run_demo
from lvmogp.plots import COLOURS, MARKERS
from lvmogp.plots.style import save_figure
from paper.methods import FittedMethod
from paper.plan import GP_IND, LMC, OURS, Experiment
from paper.problems import PaperProblem
from paper.records import LEVELS, Result
from paper.report import by_method

_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (8, 2)), (0, (2, 3)))


def draw(
    folder: Path, name: str, experiment: Experiment, results: Sequence[Result], *, data_dir: Path | None, quick: bool
) -> list[Path]:
    """Write the figures of an experiment into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-quick" if quick else name

    def saved(what: str, figure: Figure) -> Path:
        return save_figure(figure, folder / f"{stem}-{what}.png")

    def fitted(method: str) -> FittedMethod:
        return experiment.entries[method].fit(problem, quick=quick)

    problem = experiment.problem_of(0, data_dir, quick=quick)
    files = [
        saved("errors", box_plot(experiment, results)),
        saved("calibration", calibration_plot(experiment, results)),
    ]
    if name == "synthetic-missing":
        files.append(saved("functions", functions_plot(problem, fitted)))
    elif name == "servo":
        files += [saved("scarcity", scarcity_plot(problem)), saved("surface", surface_plot(problem, fitted(OURS)))]
    elif name == "braking":
        files += run_demo(folder / f"{stem}-figures").files
    return files


def _plain(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _is_ours(name: str) -> bool:
    return name.casefold().startswith(OURS.casefold())  # the library's name or its model's


def box_plot(experiment: Experiment, results: Sequence[Result]) -> Figure:
    """Errors of all methods over the repeats, every repeat a dot."""
    methods = by_method(results)
    names = [name for name in experiment.entries if name in methods]
    errors = [[result["rmse"] for result in methods[name].values()] for name in names]
    figure, ax = plt.subplots(figsize=(7, 0.45 * len(names) + 1.3), layout="constrained")
    places = np.arange(len(names))[::-1]
    ax.boxplot(
        errors,
        positions=places,
        orientation="horizontal",
        widths=0.55,
        showfliers=False,
        medianprops={"color": "black"},
    )
    for place, values, name in zip(places, errors, names, strict=True):
        scatter = np.linspace(-0.15, 0.15, len(values))
        ax.plot(
            values,
            place + scatter,
            linestyle="none",
            marker=".",
            color=COLOURS[0] if _is_ours(name) else "0.5",
            alpha=0.7,
        )
    ax.set_yticks(places, names)
    largest = max(np.median(values) for values in errors)
    if max(map(max, errors)) > 4 * largest:
        ax.set_xlim(0, 4 * largest)
    else:
        ax.set_xlim(left=0)
    ax.set_xlabel("RMSE")
    ax.set_title(experiment.title, fontsize=11)
    _plain(ax)
    return figure


def calibration_plot(experiment: Experiment, results: Sequence[Result]) -> Figure:
    """Share of test values inside central intervals against what the intervals promise, over all repeats."""
    methods = by_method(results)
    names = [name for name in experiment.entries if name in methods]
    # The square of the curves leaves no room by itself for the names beside it.
    width = 5.4 + 0.062 * max(len(name) for name in names)
    figure, ax = plt.subplots(figsize=(width, 4.2), layout="constrained")
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for number, name in enumerate(names):
        shares = np.mean([result["calibration"] for result in methods[name].values()], axis=0)
        ax.plot(
            LEVELS,
            shares,
            color=COLOURS[number % len(COLOURS)],
            linestyle=_DASHES[number % len(_DASHES)],
            linewidth=2.2 if _is_ours(name) else 1.2,
            label=name,
        )
    ax.set(xlabel="promised share", ylabel="share of test values inside", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    ax.set_title("Calibration", fontsize=11)
    _plain(ax)
    return figure


def functions_plot(problem: PaperProblem, fitted: Callable[[str], FittedMethod]) -> Figure:
    """What three methods make of a condition with few training data (the paper's figure)."""
    counts = np.bincount(problem.train.conditions, minlength=problem.n_conditions)
    number = int(np.argmin(np.where(counts >= 3, counts, counts.max())))
    grid = np.linspace(0, 1, 200)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    train = problem.train.conditions == number
    test = problem.test.conditions == number
    for ax, method in zip(axes, (GP_IND, LMC, OURS), strict=True):
        mean, deviation = fitted(method).predict(grid[:, None], np.full(len(grid), number))
        ax.fill_between(
            grid, mean - 1.96 * deviation, mean + 1.96 * deviation, color=COLOURS[0], alpha=0.2, linewidth=0
        )
        ax.plot(grid, mean, color=COLOURS[0], label="mean and 95 % band")
        ax.plot(
            problem.test.inputs[test, 0], problem.test.outputs[test], "x", color="black", markersize=4, label="test"
        )
        ax.plot(problem.train.inputs[train, 0], problem.train.outputs[train], "s", color=COLOURS[5], label="training")
        ax.set(title=method, xlabel="input")
        _plain(ax)
    axes[0].set_ylabel("output")
    axes[-1].legend(frameon=False, fontsize=8)
    return figure


def scarcity_plot(problem: PaperProblem) -> Figure:
    """How many observations each linkage has, for training and for test."""
    train = np.bincount(problem.train.conditions, minlength=problem.n_conditions)
    test = np.bincount(problem.test.conditions, minlength=problem.n_conditions)
    names = [linkage(number) for number in range(problem.n_conditions)]
    figure, ax = plt.subplots(figsize=(7.5, 3), layout="constrained")
    ax.bar(names, train, color=COLOURS[0], label="training")
    ax.bar(names, test, bottom=train, color=COLOURS[1], hatch="//", edgecolor="white", label="test")
    ax.set(xlabel="motor and screw", ylabel="observations", title="Servo: data are scarce in every condition")
    ax.tick_params(axis="x", labelsize=8)
    ax.legend(frameon=False)
    _plain(ax)
    return figure


def linkage(number: int) -> str:
    """Name of a servo's linkage: its motor and its screw."""
    return "ABCDE"[number // 5] + "ABCDE"[number % 5]


def surface_plot(problem: PaperProblem, model: FittedMethod) -> Figure:
    """The surface learnt for the condition with the smallest amount of data."""
    counts = np.bincount(problem.train.conditions, minlength=problem.n_conditions)
    number = int(np.argmin(np.where(counts > 0, counts, counts.max())))
    pgain, vgain = np.meshgrid(np.linspace(2.8, 6.2, 35), np.linspace(0.8, 5.2, 45))
    points = np.column_stack([pgain.ravel(), vgain.ravel()])
    mean, _ = model.predict(points, np.full(len(points), number))
    figure, ax = plt.subplots(figsize=(5.4, 4.2), layout="constrained")
    filled = ax.contourf(pgain, vgain, mean.reshape(pgain.shape), levels=12, cmap="cividis")
    figure.colorbar(filled, ax=ax, label="rise time")
    for rows, marker, label in ((problem.train, MARKERS[1], "training"), (problem.test, MARKERS[6], "test")):
        chosen = rows.conditions == number
        ax.plot(
            *rows.inputs[chosen].T, linestyle="none", marker=marker, color="white", markeredgecolor="black", label=label
        )
        for (x, y), value in zip(rows.inputs[chosen], rows.outputs[chosen], strict=True):
            ax.annotate(f"{value:.2f}", (x, y), textcoords="offset points", xytext=(6, 4), color="white", fontsize=9)
    ax.set(
        xlabel="pgain", ylabel="vgain", title=f"Servo {linkage(number)}, observations for training: {counts[number]}"
    )
    ax.legend(fontsize=8)
    return figure
