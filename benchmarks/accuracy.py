"""Accuracy of the core on the data sets it is judged by: every repeat, no picking.

    python benchmarks/accuracy.py synthetic --inducing 10 30     the paper's sizes
    python benchmarks/accuracy.py synthetic                      the library's own defaults
    python benchmarks/accuracy.py servo ../shared/data/servo/servo.data
    python benchmarks/accuracy.py braking                        a latent kernel of RBF form
    python benchmarks/accuracy.py braking --latent-kernel auto   chosen by the bound
    python benchmarks/accuracy.py added

Each prints one line a repeat and the summary, and with --json FILE writes all of it.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from lvmogp import LVMOGPRegressor
from lvmogp.metrics import coverage, r_squared_of_line, rmse
from lvmogp.simulate import (
    BRAKING_NOISE,
    FRICTIONS,
    SPEEDS,
    braking,
    braking_distance,
    synthetic_grid,
)


def synthetic(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Complete synthetic data, seeds 0 to 9: error and coverage of the noise-free test values."""
    rows = []
    for seed in range(options.repeats):
        data = synthetic_grid(seed)
        model = LVMOGPRegressor(**_sizes(options))
        began = time.perf_counter()
        model.fit(data.train_inputs, data.train_outputs)
        seconds = time.perf_counter() - began
        lower, upper = model.predict_interval(data.test_inputs, include_noise=False)
        rows.append(
            {
                "seed": seed,
                "rmse": rmse(model.predict(data.test_inputs), data.test_values),
                "coverage": coverage(lower, upper, data.test_values),
                "bound": model.outcome_.bound,
                "status": model.outcome_.status.value,
                "seconds": seconds,
            }
        )
        _show(rows[-1])
    return rows


def servo(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Servo, random 70/30 splits, errors in raw rise time; linkages with no training point count, from the prior."""
    table = pd.read_csv(options.file, header=None, skipinitialspace=True)
    table.columns = ["motor", "screw", "pgain", "vgain", "rise"]
    table["linkage"] = table["motor"].str.strip() + table["screw"].str.strip()
    rows = []
    for seed in range(options.repeats):
        order = np.random.RandomState(seed).permutation(len(table))
        train, test = table.iloc[order[:117]], table.iloc[order[117:]]
        model = LVMOGPRegressor(
            condition="linkage",
            unseen="prior",
            output_transform="log" if options.log else None,
            **(_sizes(options) or {"n_inducing_inputs": 10, "n_inducing_latents": 5}),
        )
        columns = ["linkage", "pgain", "vgain"]
        began = time.perf_counter()
        model.fit(train[columns], train["rise"])
        seconds = time.perf_counter() - began
        lower, upper = model.predict_interval(test[columns])
        rows.append(
            {
                "seed": seed,
                "rmse": rmse(model.predict(test[columns]), test["rise"].to_numpy()),
                "coverage": coverage(lower, upper, test["rise"].to_numpy()),
                "bound": model.outcome_.bound,
                "status": model.outcome_.status.value,
                "seconds": seconds,
            }
        )
        _show(rows[-1])
    return rows


def braking_worlds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Braking, simulated worlds: one observation of each of ten new conditions at a random speed."""
    speeds = np.linspace(*SPEEDS, 100)[:, None]
    rows = []
    for world in range(options.repeats):
        rng = np.random.default_rng(world)
        data = braking(rng)
        model = LVMOGPRegressor(n_latent=1, latent_kernel=options.latent_kernel)
        model.fit(data.speed[:, None], data.distance, conditions=data.condition)
        ignoring = _ignoring_conditions(data.speed[:, None], data.distance).predict(speeds)
        squared, squared_ignoring, covered = [], [], []
        for _ in range(10):
            friction = rng.uniform(*FRICTIONS)
            speed = rng.uniform(*SPEEDS, (1, 1))
            distance = braking_distance(speed[:, 0], friction) + BRAKING_NOISE * rng.standard_normal(1)
            model.add_condition("new", speed, distance)
            truth = braking_distance(speeds[:, 0], friction)
            lower, upper = model.predict_interval(speeds, "new", include_noise=False)
            squared.append(np.mean((model.predict(speeds, "new") - truth) ** 2))
            squared_ignoring.append(np.mean((ignoring - truth) ** 2))
            covered.append(coverage(lower, upper, truth))
            model.remove_condition("new")
        rows.append(
            {
                "seed": world,
                "r_squared": r_squared_of_line(model.latents_["mean_1"].to_numpy(), 1 / data.friction),
                "rmse": float(np.sqrt(np.mean(squared))),
                "rmse_ignoring": float(np.sqrt(np.mean(squared_ignoring))),
                "ratio": float(np.sqrt(np.mean(squared) / np.mean(squared_ignoring))),
                "coverage": float(np.mean(covered)),
                "status": model.outcome_.status.value,
            }
        )
        _show(rows[-1])
    return rows


def added(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A condition added with 50 points against the same condition in the training: ratio of test errors."""
    rows = []
    for seed in range(options.repeats):
        data = synthetic_grid(seed)
        held = seed  # a different condition in each data set
        others = [d for d in range(40) if d != held]
        settings = _sizes(options)
        trained = LVMOGPRegressor(**settings).fit(data.train_inputs, data.train_outputs)
        later = LVMOGPRegressor(**settings).fit(data.train_inputs, data.train_outputs[:, others], conditions=others)
        later.add_condition(held, data.train_inputs, data.train_outputs[:, held])
        truth = data.test_values[:, held]
        from_start = rmse(trained.predict(data.test_inputs, held), truth)
        from_later = rmse(later.predict(data.test_inputs, held), truth)
        rows.append({"seed": seed, "rmse": from_later, "rmse_trained": from_start, "ratio": from_later / from_start})
        _show(rows[-1])
    return rows


def _ignoring_conditions(inputs: np.ndarray, outputs: np.ndarray) -> GaussianProcessRegressor:
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(10.0, (1.0, 1e3)) + WhiteKernel(0.1, (1e-6, 1e1))
    gp = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gp.fit(inputs, outputs)


def _sizes(options: argparse.Namespace) -> dict[str, int]:
    if options.inducing is None:
        return {}
    return {"n_inducing_inputs": options.inducing[0], "n_inducing_latents": options.inducing[1]}


def _show(row: dict[str, Any]) -> None:
    parts = (f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items())
    print("  ".join(parts), flush=True)


EXPERIMENTS = {
    "synthetic": (synthetic, 10),
    "servo": (servo, 10),
    "braking": (braking_worlds, 20),
    "added": (added, 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("file", nargs="?", help="servo.data")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--inducing", type=int, nargs=2, metavar=("INPUTS", "LATENTS"))
    parser.add_argument("--log", action="store_true", help="servo: model the logarithm of the rise time")
    parser.add_argument("--latent-kernel", default="rbf", help='braking: "rbf", or "auto" to choose by the bound')
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run, default_repeats = EXPERIMENTS[options.experiment]
    options.repeats = options.repeats or default_repeats
    rows = run(options)
    numeric = [name for name, value in rows[0].items() if isinstance(value, float)]
    summary = {
        name: {"mean": float(np.mean([row[name] for row in rows])), "sd": float(np.std([row[name] for row in rows]))}
        for name in numeric
    }
    for name, values in summary.items():
        ends = min(row[name] for row in rows), max(row[name] for row in rows)
        print(f"{name}: {values['mean']:.4g} ± {values['sd']:.2g} ({ends[0]:.4g} to {ends[1]:.4g})")
    if options.json:
        options.json.write_text(json.dumps({"repeats": rows, "summary": summary}, indent=2) + "\n")


if __name__ == "__main__":
    main()
