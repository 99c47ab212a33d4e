"""An experiment from data to tables and figures; a second run goes on from the repeats that are on disk."""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import joblib
import numpy as np

from lvmogp.__about__ import __version__
from lvmogp.errors import LVMOGPError, SettingError
from lvmogp.ground.writing import replace_file
from lvmogp.metrics import calibration, negative_log_density, rmse, share_in_central_intervals
from paper import figures, report
from paper.baselines import gpy
from paper.methods import FittedMethod
from paper.plan import GPY, NOT_QUICK, Experiment, experiments
from paper.problems import LabelledRows
from paper.records import LEVELS, Job, Result, sealed, stored

REPEATS = 20


class Reproduction(NamedTuple):
    """What an experiment gave."""

    name: str
    results: list[dict[str, Any]]
    table: str
    files: list[Path]


def jobs(name: str, experiment: Experiment, *, repeats: int, quick: bool) -> list[Job]:
    """All repeats of all methods; a repeat's methods stand together, so that comparisons are complete early."""
    left_out = NOT_QUICK if quick else () if gpy.is_installed() else (GPY,)
    methods = [method for method in experiment.entries if method not in left_out]
    return [Job(name, method, repeat, quick) for repeat in range(repeats) for method in methods]


def run_job(job: Job, experiment: Experiment, folder: Path, data_dir: Path | None) -> Result:
    """Fit, predict, measure, and write the result."""
    problem = experiment.problem_of(job.repeat, data_dir, quick=job.quick)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is in the report
        fitted = experiment.entries[job.method].fit(problem, quick=job.quick)
        seconds = time.perf_counter() - began
        measures = _measures(fitted, problem.test)
    result = {
        **job._asdict(),
        "version": __version__,
        **measures,
        "seconds": seconds,
        "device": jax.devices()[0].device_kind,
        "n_test": len(problem.test.outputs),
        **fitted.report,
    }
    path = job.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(sealed(result), indent=1) + "\n").encode())
    return result


def _measures(fitted: FittedMethod, test: LabelledRows) -> dict[str, Any]:
    # How good predictions are; those without a distribution of their own are taken as normal.
    mean, deviation = fitted.predict(test.inputs, test.conditions)
    actual, levels = test.outputs, [0.95, *LEVELS]
    if fitted.distribution is None:
        nlpd, shares = negative_log_density(mean, deviation, actual), calibration(mean, deviation, actual, levels)
    else:
        below, densities = fitted.distribution(test.inputs, test.conditions, actual)
        nlpd, shares = float(-np.mean(densities)), share_in_central_intervals(below, levels)
    return {"rmse": rmse(mean, actual), "nlpd": nlpd, "coverage": shares[0], "calibration": shares[1:]}


def run(
    pending: list[Job],
    experiment: Experiment,
    folder: Path,
    *,
    data_dir: Path | None,
    n_jobs: int,
    on_result: Callable[[Result], None],
) -> None:
    """Run jobs through joblib, whose backend a caller may have chosen with ``joblib.parallel_config``."""
    tasks = (joblib.delayed(run_job)(job, experiment, folder, data_dir) for job in pending)
    n_done = 0
    try:
        for result in _results(tasks, n_jobs):
            n_done += 1
            on_result(result)
    except BrokenProcessPool as error:
        raise LVMOGPError(
            f"one of the {n_jobs} processes that run repeats was ended from outside, as happens when memory is short; "
            f"{n_done} of {len(pending)} repeats are done and kept in {folder}: run the same again to go on from "
            "there, with fewer at the same time (--jobs)"
        ) from error


def _results(tasks: Iterator[Any], n_jobs: int) -> Iterator[Result]:
    if n_jobs > 1:
        # One thread each: the repeats themselves fill the cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return cast(Iterator[Result], joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(tasks))


def reproduce(
    name: str,
    folder: Path,
    *,
    repeats: int | None = None,
    quick: bool = False,
    methods: Sequence[str] | None = None,
    n_jobs: int = 1,
    data_dir: Path | None = None,
    with_figures: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reproduction:
    """Run what is not yet on disk, then write the JSON of all repeats, the table and the figures."""
    experiment = chosen(name, methods)
    n_repeats = repeats or (1 if quick else REPEATS)
    everything = jobs(name, experiment, repeats=n_repeats, quick=quick)
    experiment.problem_of(0, data_dir, quick=quick)  # missing data files are told before any work
    earlier = stored(name, folder, quick=quick)
    pending = [job for job in everything if job not in earlier]
    n_done = len(everything) - len(pending)

    def collect(_: dict[str, Any]) -> None:
        nonlocal n_done
        n_done += 1
        on_progress(n_done, len(everything))

    on_progress(n_done, len(everything))
    run(pending, experiment, folder, data_dir=data_dir, n_jobs=n_jobs, on_result=collect)
    # Of all methods, also those that this run left alone.
    experiment = experiments()[name]
    kept = stored(name, folder, quick=quick).values()
    results = [result for result in kept if result["method"] in experiment.entries]
    files = report.write(folder, name, experiment, results, quick=quick)
    if with_figures:
        files += figures.draw(folder, name, experiment, results, data_dir=data_dir, quick=quick)
    return Reproduction(name, results, report.markdown(name, experiment, results), files)


def chosen(name: str, methods: Sequence[str] | None) -> Experiment:
    """An experiment by name, with some of its methods or all."""
    table = experiments()
    if name not in table:
        raise SettingError(f"there is no experiment {name!r}; choose one of {', '.join(table)}, or all")
    experiment = table[name]
    if not methods:
        return experiment
    unknown = [method for method in methods if method not in experiment.entries]
    if unknown:
        raise SettingError(
            f"{name} has no method {unknown[0]!r}; choose among {', '.join(map(repr, experiment.entries))}"
        )
    if GPY in methods and not gpy.is_installed():
        raise SettingError("GPy is not installed; install it with: pip install GPy")
    return experiment._replace(entries={method: experiment.entries[method] for method in methods})
