"""Many fits and predictions of varying shapes in one process: whether memory stays flat and answers stay the same.

    python benchmarks/endurance.py --fits 500 --predictions 10000

Every fifth fit has other numbers of conditions, points, inputs and inducing points than the one before, in turn one of
twelve sets of such numbers, which need more programs than are kept. Each is asked for its share of the predictions in
all ways there are, for any number of rows. Memory, mappings of memory and compiled programs are noted after every tenth
fit. A first model is asked the same at the start and at the end, and is fitted anew at the end. Compiled programs are
kept in a folder, as the command line does. Writes results/endurance.json. With --unbounded programs are never
forgotten, to see what that would come to.
"""

import argparse
import gc
import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import lvmogp.ground.compiling as compiling
from lvmogp import PAPERS_MODEL, LVMOGPRegressor

RESULTS = Path(__file__).parents[1] / "results"
# Memory may grow by so much from the second quarter of the run to the last.
MOST_GROWTH = 1.10
_EVERY = 10
_N_SHAPES, _FITS_IN_A_ROW = 12, 5


class Shape(NamedTuple):
    """The sizes of one fit."""

    n_conditions: int
    n_points: int
    n_columns: int
    n_latent: int
    n_inducing_inputs: int
    on_grid: bool


class State(NamedTuple):
    """What a process holds after some fits."""

    n_fits: int
    n_predictions: int
    seconds: float
    resident_mb: float
    n_mappings: int
    n_programs_alive: int
    n_programs: int


def shape(rng: np.random.Generator) -> Shape:
    """Some sizes of a fit."""
    n_conditions, n_points = int(rng.integers(2, 13)), int(rng.integers(4, 31))
    n_inducing = int(rng.integers(3, n_points + 1))
    return Shape(
        n_conditions, n_points, int(rng.integers(1, 4)), int(rng.integers(1, 3)), n_inducing, bool(rng.integers(2))
    )


def shapes(seed: int) -> Iterator[Shape]:
    """Sizes of fits, for ever."""
    rng = np.random.default_rng(seed)
    return cycle([each for _ in range(_N_SHAPES) for each in [shape(rng)] * _FITS_IN_A_ROW])


def fitted(sizes: Shape, seed: int) -> LVMOGPRegressor:
    """A short fit of one start to made-up data of these sizes."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(0, 3, (sizes.n_points, sizes.n_columns))
    offsets = rng.normal(size=sizes.n_conditions)
    curves = np.sin(inputs.sum(axis=1)[:, None] + offsets) + 0.1 * rng.normal(size=(sizes.n_points, sizes.n_conditions))
    settings = {"n_latent": sizes.n_latent, "n_inducing_inputs": sizes.n_inducing_inputs}
    model = LVMOGPRegressor(**PAPERS_MODEL, **settings, n_restarts=1, max_iter=10, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten iterations are no fit to be proud of
        if sizes.on_grid:
            return model.fit(inputs, curves)
        rows = np.tile(inputs, (sizes.n_conditions, 1))
        return model.fit(rows, curves.T.reshape(-1), conditions=np.repeat(np.arange(sizes.n_conditions), len(inputs)))


def asked(model: LVMOGPRegressor, n_rows: int, kind: int, rng: np.random.Generator) -> list[np.ndarray]:
    """One question to a model, of one of five kinds."""
    points = rng.uniform(0, 3, (n_rows, model.n_features_in_))
    ids = rng.choice(list(model.model_.ids), n_rows)
    if kind == 0:
        return [model.predict(points, ids)]
    if kind == 1:
        return [*model.predict(points, ids, return_std=True)]
    if kind == 2:
        return [*model.predict_interval(points[:200], ids[:200])]
    if kind == 3:
        return [*model.predict(points[:60], ids[:60], return_cov=True)]
    return [model.sample(points[:60], ids[:60], 2, random_state=0)]


def answers(model: LVMOGPRegressor) -> list[np.ndarray]:
    """A few questions of every kind, the same each time."""
    rng = np.random.default_rng(7)
    return [each for n_rows in (1, 17, 300) for kind in range(5) for each in asked(model, n_rows, kind, rng)]


def same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Whether arrays agree bit for bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(some, others, strict=True))


def parameters_of(model: LVMOGPRegressor) -> list[np.ndarray]:
    """All that was learnt."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(model.model_.posterior)]


def state(n_fits: int, n_predictions: int, began: float) -> State:
    """What the process holds now."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    return State(
        n_fits=n_fits,
        n_predictions=n_predictions,
        seconds=round(time.perf_counter() - began, 1),
        resident_mb=round(resident, 1),
        n_mappings=len(Path("/proc/self/maps").read_text().splitlines()),
        n_programs_alive=len(jax.devices()[0].client.live_executables()),
        n_programs=compiling.n_programs(),
    )


def endured(n_fits: int, n_predictions: int, seed: int) -> tuple[list[State], dict[str, bool]]:
    """What the process held in the course of the run, and whether answers stayed the same."""
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    some = shapes(seed)
    first_shape = next(some)
    first = fitted(first_shape, seed)
    at_start = answers(first)
    states, n_asked = [state(0, 0, began)], 0
    for number in range(1, n_fits + 1):
        model = fitted(next(some), seed + number)
        while n_asked < n_predictions * number // n_fits:
            asked(model, int(rng.integers(1, 2_000)), n_asked % 5, rng)
            n_asked += 1
        if number % _EVERY == 0 or number == n_fits:
            states.append(state(number, n_asked, began))
            print(states[-1], flush=True)
    again = fitted(first_shape, seed)
    checks = {
        "the first model answers the same, bit for bit": same(at_start, answers(first)),
        "the first fit made anew is the same, bit for bit": same(parameters_of(first), parameters_of(again)),
    }
    return states, checks


def growth(states: list[State]) -> float:
    """Median memory in the last quarter of the run over that in the second, when all has been seen once."""
    resident = [each.resident_mb for each in states]
    quarter = max(len(resident) // 4, 1)
    return float(np.median(resident[-quarter:]) / np.median(resident[quarter : 2 * quarter]))


def account(states: list[State], checks: dict[str, bool], command: str) -> dict[str, Any]:
    """The run as JSON."""
    grown = growth(states)
    return {
        "what": "fits and predictions of varying shapes in one process",
        "n_fits": states[-1].n_fits,
        "n_predictions": states[-1].n_predictions,
        "seconds": states[-1].seconds,
        "memory_of_last_quarter_over_second": round(grown, 3),
        "memory_is_flat": grown <= MOST_GROWTH,
        "most_resident_mb": max(each.resident_mb for each in states),
        "most_mappings": max(each.n_mappings for each in states),
        "most_programs_alive": max(each.n_programs_alive for each in states),
        "checks": checks,
        "versions": {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__},
        "device": f"CPU, {platform.machine()}",
        "command": command,
        "over_time": [each._asdict() for each in states],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=500)
    parser.add_argument("--predictions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unbounded", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "endurance.json")
    arguments = parser.parse_args()
    if arguments.unbounded:
        compiling.MOST_PROGRAMS = 10**9
    with tempfile.TemporaryDirectory() as kept:
        jax.config.update("jax_compilation_cache_dir", kept)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        states, checks = endured(arguments.fits, arguments.predictions, arguments.seed)
    numbers = f"--fits {arguments.fits} --predictions {arguments.predictions} --seed {arguments.seed}"
    found = account(states, checks, f"python benchmarks/endurance.py {numbers}" + " --unbounded" * arguments.unbounded)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "over_time"}, indent=2))
    if not (found["memory_is_flat"] and all(checks.values())):
        raise SystemExit("memory grew, or answers changed; see the account")


if __name__ == "__main__":
    main()
