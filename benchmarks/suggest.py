"""Measurements chosen by ``suggest`` against random and space-filling ones, on new conditions of two simulators.

    python -m benchmarks.suggest                   all of it: 50 new conditions of each simulator, a few minutes
    python -m benchmarks.suggest --only braking    one simulator
    python -m benchmarks.suggest --page            no measurements: figure and table from the files

Writes results/suggest/*.json, the figure beside them, and the table of docs/next-measurement.md.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.pages import with_part
from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.metrics import rmse
from lvmogp.plots.style import COLOURS, LINE_STYLES, MARKERS, tidy
from lvmogp.simulate import BRAKING_NOISE, FRICTIONS, SPEEDS, braking, braking_distance
from paper.synthetic import synthetic_grid

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- made by benchmarks/suggest.py, do not edit -->", "<!-- end of what it made -->"
FOLDER, PAGE = ROOT / "results" / "suggest", ROOT / "docs" / "next-measurement.md"
N_SETS, N_NEW, N_MEASUREMENTS, N_RANDOM = 5, 10, 6, 2
TITLES = {"braking": "Braking distances", "synthetic": "Synthetic, two latents"}


class NewCondition(NamedTuple):
    """A condition to be measured: candidates with the outcome each would have, and the truth over a region."""

    candidates: np.ndarray
    outcomes: np.ndarray
    region: np.ndarray
    truth: np.ndarray


def braking_sets() -> Iterator[tuple[LVMOGPRegressor, list[NewCondition]]]:
    """Ten trained tyres of five tests each; new ones can be tested at 28 speeds."""
    speeds = np.linspace(*SPEEDS, 28)[:, None]
    for seed in range(N_SETS):
        rng = np.random.default_rng(seed)
        drawn = braking(rng)
        model = LVMOGPRegressor(1, **PAPERS_MODEL, n_restarts=2).fit(
            drawn.speed[:, None], drawn.distance, conditions=drawn.condition
        )
        new = []
        for friction in rng.uniform(*FRICTIONS, N_NEW):
            truth = braking_distance(speeds[:, 0], friction)
            outcomes = truth + BRAKING_NOISE * rng.standard_normal(len(truth))
            new.append(NewCondition(speeds, outcomes, speeds, truth))
        yield model, new


def synthetic_sets() -> Iterator[tuple[LVMOGPRegressor, list[NewCondition]]]:
    """Thirty trained conditions of two latents at 50 inputs; ten others are new, and tested where there is no noise."""
    for seed in range(N_SETS):
        data = synthetic_grid(seed)
        n_trained = data.train_outputs.shape[1] - N_NEW
        model = LVMOGPRegressor(2, **PAPERS_MODEL, n_restarts=2).fit(
            data.train_inputs, data.train_outputs[:, :n_trained]
        )
        yield (
            model,
            [
                NewCondition(
                    data.train_inputs, data.train_outputs[:, held], data.test_inputs, data.test_values[:, held]
                )
                for held in range(n_trained, data.train_outputs.shape[1])
            ],
        )


SIMULATORS = {"braking": braking_sets, "synthetic": synthetic_sets}
# Which candidate to measure, given the model, the condition and the places measured so far.
Choose = Callable[[LVMOGPRegressor, NewCondition, list[int]], int]


def suggested(model: LVMOGPRegressor, new: NewCondition, measured: list[int]) -> int:
    free = np.setdiff1d(np.arange(len(new.candidates)), measured)
    found = model.suggest("new", new.candidates[free], region=new.region)
    return int(free[np.argmin(found.candidate_sd)])


def farthest(_: LVMOGPRegressor, new: NewCondition, measured: list[int]) -> int:
    """The middle first, then always the candidate farthest from all measured ones."""
    if not measured:
        return int(np.argmin(np.linalg.norm(new.candidates - np.median(new.candidates, axis=0), axis=1)))
    distances = np.linalg.norm(new.candidates[:, None] - new.candidates[measured], axis=2)
    return int(np.argmax(distances.min(axis=1)))


def evenly(_: LVMOGPRegressor, new: NewCondition, measured: list[int]) -> int:
    """The free candidate nearest to the next number of van der Corput's sequence (1/2, 1/4, 3/4, 1/8, …)."""
    number = len(measured) + 1
    share = int(f"{number:b}"[::-1], 2) / 2 ** number.bit_length()
    low, high = new.candidates.min(), new.candidates.max()
    distances = np.abs(new.candidates[:, 0] - (low + share * (high - low)))
    distances[measured] = np.inf
    return int(np.argmin(distances))


def at_random(seed: int) -> Choose:
    rng = np.random.default_rng(seed)

    def choose(_: LVMOGPRegressor, new: NewCondition, measured: list[int]) -> int:
        return int(rng.choice(np.setdiff1d(np.arange(len(new.candidates)), measured)))

    return choose


def methods(seed: int) -> dict[str, list[Choose]]:
    return {
        "suggest": [suggested],
        "farthest": [farthest],
        "evenly": [evenly],
        "random": [at_random(N_RANDOM * seed + repeat) for repeat in range(N_RANDOM)],
    }


def errors(model: LVMOGPRegressor, new: NewCondition, choose: Choose) -> list[float]:
    """Errors of the predictions after 0, 1, … measurements."""
    measured: list[int] = []
    model.add_condition("new", [], [])
    found = [rmse(model.predict(new.region, "new"), new.truth)]
    for _ in range(N_MEASUREMENTS):
        place = choose(model, new, measured)
        measured.append(place)
        model.add_condition("new", new.candidates[[place]], new.outcomes[[place]])
        found.append(rmse(model.predict(new.region, "new"), new.truth))
    model.remove_condition("new")
    return found


def measured(name: str) -> dict:
    """Errors of all methods on all new conditions: (conditions, measurements), random ones averaged over repeats."""
    began = time.perf_counter()
    found: dict[str, list[list[float]]] = {}
    number = 0
    for model, news in SIMULATORS[name]():
        for new in news:
            for method, repeats in methods(number).items():
                curves = [errors(model, new, choose) for choose in repeats]
                found.setdefault(method, []).append(np.mean(curves, axis=0).round(5).tolist())
            number += 1
        print(f"{name}: {number} conditions, {time.perf_counter() - began:.0f} s", flush=True)
    return {"simulator": name, "n_conditions": number, "n_random": N_RANDOM, "errors": found}


LABELS = {
    "suggest": "suggest",
    "farthest": "space-filling: farthest point",
    "evenly": "space-filling: van der Corput",
    "random": "random",
}


def figure(results: dict[str, dict]) -> plt.Figure:
    """Mean error against the number of measurements, with standard errors over conditions."""
    drawn, axes = plt.subplots(1, len(results), figsize=(4.6 * len(results), 3.6), layout="constrained", squeeze=False)
    for ax, (name, found) in zip(axes[0], results.items(), strict=True):
        for place, (method, label) in enumerate(LABELS.items()):
            curves = np.asarray(found["errors"][method])[:, 1:]
            steps = np.arange(1, curves.shape[1] + 1) + 0.05 * (place - 1.5)
            ax.errorbar(
                steps,
                curves.mean(axis=0),
                curves.std(axis=0) / np.sqrt(len(curves)),
                color=COLOURS[place],
                marker=MARKERS[place],
                linestyle=LINE_STYLES[place],
                markersize=5,
                linewidth=1.8 if method == "suggest" else 1.2,
                elinewidth=0.9,
                label=label,
            )
        ax.set_title(TITLES[name], fontsize="medium")
        ax.set_xlabel("measurements of a new condition")
        ax.set_ylabel("root mean square error")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        tidy(ax)
    axes[0][0].legend(frameon=False, fontsize="small")
    return drawn


def table(results: dict[str, dict]) -> str:
    """Mean errors, and how many measurements reach what random ones reach with the most."""
    lines = []
    for name, found in results.items():
        steps = range(1, N_MEASUREMENTS + 1)
        lines += [
            f"| {TITLES[name]} | " + " | ".join(f"{step}" for step in steps) + " | as good as 6 random |",
            "| --- " * (N_MEASUREMENTS + 2) + "|",
        ]
        means = {method: np.mean(found["errors"][method], axis=0) for method in LABELS}
        for method, label in LABELS.items():
            reached = np.flatnonzero(means[method][1:] <= means["random"][-1]) + 1
            enough = f"{reached[0]}" if len(reached) else "more than 6"
            cells = " | ".join(f"{value:.3g}" for value in means[method][1:])
            lines.append(f"| {label} | {cells} | {enough} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def page_text(text: str, folder: Path) -> str:
    """The page with the table that follows from the files."""
    return with_part(text, BEGIN, END, table(stored(folder)))


def stored(folder: Path) -> dict[str, dict]:
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in SIMULATORS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SIMULATORS))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    matplotlib.use("agg")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not options.page:
        for name in [options.only] if options.only else SIMULATORS:
            (FOLDER / f"{name}.json").write_text(json.dumps(measured(name)) + "\n")
    if all((FOLDER / f"{name}.json").exists() for name in SIMULATORS):
        figure(stored(FOLDER)).savefig(FOLDER / "errors.png", dpi=120)
        PAGE.write_text(page_text(PAGE.read_text(), FOLDER))


if __name__ == "__main__":
    main()
