"""Whole fits: time to a given quality, compilation included, against GPy and BoTorch."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite import problems
from benchmarks.suite.processes import OURS, answer_of
from benchmarks.suite.records import Bar, Found, Record, Trace, record, timing

_COMPLETE = {"n_latent": 2, "n_inducing_inputs": 10, "n_inducing_latents": 30}
_MISSING = {**_COMPLETE, "unseen": "prior"}  # some conditions have no training rows at all
_SEEDS = 5
_BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
_MISSING_BUDGETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_TORCH_SECONDS = 300


def _ours(data: Path, estimator: Mapping[str, Any], cache: Path, **more: Any) -> list[dict[str, Any]]:
    # Kept programs make the second process warm; all of them are kept, as the command line keeps them.
    changes = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return answer_of(OURS, {"task": "fit", "data": str(data), "estimator": dict(estimator), **more}, changes)["fits"]


def _cold_and_warm(data: Path, estimator: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
    # A process that finds nothing compiled, then one that finds everything; a whole fit is then repeated there.
    with tempfile.TemporaryDirectory() as name:
        cold = _ours(data, estimator, Path(name), seconds=seconds)
        warm = _ours(data, estimator, Path(name), seconds=seconds, n_fits=2 if seconds is None else 1)
    return {"cold": cold[0], "warm cache": warm[0], "again in the process": warm[-1]}


def complete(*, quick: bool) -> Found:
    """Synthetic complete (50 × 40, 10/30) against GPy's ``optimize_auto``."""
    gpy, ours = [], []
    for seed in range(1 if quick else _SEEDS):
        data = problems.synthetic_complete(seed)
        settings = {"task": "fit", "data": str(data), "n_latent": 2, "n_inducing": [10, 30]}
        gpy.append(answer_of("gpy", {**settings, "max_iterations": 100 if quick else 10_000}))
        ours.append(_cold_and_warm(data, _COMPLETE))
    their_seconds = [found["trace"][-1]["seconds"] for found in gpy]
    their_errors = [found["trace"][-1]["rmse"] for found in gpy]
    records = []
    for name, bar in (("cold", Bar(10)), ("warm cache", Bar(30)), ("again in the process", None)):
        errors = [found[name]["rmse"] for found in ours]
        seconds = [found[name]["seconds"] for found in ours]
        records.append(
            record(
                f"synthetic, complete: {name}",
                ours=timing(seconds),
                rival=timing(their_seconds),
                against=f"GPy {gpy[0]['version']}, optimize_auto",
                measured=float(np.sum(their_seconds) / np.sum(seconds)),
                bar=bar,
                passed=bool(np.mean(errors) <= np.mean(their_errors)),
                rmse=float(np.mean(errors)),
                rival_rmse=float(np.mean(their_errors)),
                by_seed={
                    "ours": list(zip(seconds, errors, strict=True)),
                    "rival": list(zip(their_seconds, their_errors, strict=True)),
                },
            )
        )
    budgets = () if quick else _BUDGETS
    traces = [{"problem": "synthetic, complete", "who": "GPy", "points": gpy[0]["trace"]}]
    traces += _our_traces("synthetic, complete", problems.synthetic_complete(0), _COMPLETE, budgets, ours[0])
    return Found(records, tuple(traces))


def _our_traces(
    problem: str, data: Path, estimator: Mapping[str, Any], budgets: tuple[float, ...], whole: Mapping[str, Any]
) -> list[Trace]:
    # Each point is a whole process of its own, stopped in time: our estimator shows its model at the end only.
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm cache": []}
    for budget in budgets:
        stopped = _cold_and_warm(data, estimator, seconds=budget)
        for name, points in found.items():
            points.append({"seconds": stopped[name]["seconds"], "rmse": stopped[name]["rmse"]})
    for name, points in found.items():
        points.append({"seconds": whole[name]["seconds"], "rmse": whole[name]["rmse"]})
    return [{"problem": problem, "who": f"lvmogp, {name}", "points": points} for name, points in found.items()]


def missing(*, quick: bool) -> Found:
    """Synthetic with uneven conditions (2 000 rows) against BoTorch's exact models and GPy's ``MD`` class."""
    problem = "synthetic, uneven"
    data = problems.synthetic_missing(0, 2 if quick else 10)
    whole = _cold_and_warm(data, _MISSING)
    traces = _our_traces(problem, data, _MISSING, () if quick else _MISSING_BUDGETS, whole)
    ours = {name: trace["points"] for name, trace in zip(("cold", "warm cache"), traces, strict=True)}
    records = []
    for name, (who, settings, bar) in _rivals_of_missing(quick=quick).items():
        found = answer_of(who, {"data": str(data), "n_latent": 2, **settings})
        records += [
            _to_better(f"{problem}, time to a better RMSE: {kind}", points, f"{name} ({found['version']})", found, bar)
            for kind, points in ours.items()
        ]
        traces.append({"problem": problem, "who": name, "points": found["trace"]})
    return Found(records, tuple(traces))


def _rivals_of_missing(*, quick: bool) -> dict[str, tuple[str, dict[str, Any], Bar | None]]:
    exact = {"task": "exact", "seconds": 3 if quick else _TORCH_SECONDS}
    gpy = {"task": "fit", "n_inducing": [10, 5 if quick else 30], "max_iterations": 50 if quick else 10_000}
    return {
        "BoTorch MultiTaskGP": ("torch", {**exact, "model": "MultiTaskGP"}, Bar(30)),
        "BoTorch LCEMGP": ("torch", {**exact, "model": "LCEMGP"}, Bar(30)),
        "GPy GPMultioutRegressionMD": ("gpy", gpy, None),
    }


def _to_better(
    what: str, points: list[dict[str, float]], against: str, found: dict[str, Any], bar: Bar | None
) -> Record:
    their_last = found["trace"][-1]
    reached = time_to_better(points, their_last["rmse"])
    return record(
        what,
        ours=None if reached is None else timing([reached["seconds"]]),
        rival=timing([their_last["seconds"]]),
        against=against,
        measured=None if reached is None else their_last["seconds"] / reached["seconds"],
        bar=bar,
        rmse=points[-1]["rmse"] if reached is None else reached["rmse"],
        rival_rmse=their_last["rmse"],
        rival_best_rmse=min(point["rmse"] for point in found["trace"]),
        threads=found.get("threads", 1),
    )


def time_to_better(points: list[dict[str, float]], error: float) -> dict[str, float] | None:
    """The quickest of the fits from the first one on after which all are better; later ones had more time."""
    n_better = 0
    for point in reversed(points):
        if point["rmse"] >= error:
            break
        n_better += 1
    return min(points[-n_better:], key=lambda point: point["seconds"]) if n_better else None
