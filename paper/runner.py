"""Running the repeats of an experiment: in parallel, each on disk when done, taken up again where it stopped."""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import joblib
import numpy as np

from lvmogp.__about__ import __version__
from lvmogp.errors import LVMOGPError
from lvmogp.ground.writing import replace_file
from lvmogp.metrics import calibration, negative_log_density, rmse, share_in_central_intervals
from paper.baselines import gpy
from paper.methods import Fitted, Task
from paper.plan import (
    GP_IND_OWN,
    GPY,
    OURS_NUTS,
    OURS_NUTS_LARGER,
    OURS_NUTS_NOISE,
    OURS_NUTS_TRANSFORM,
    OURS_OWN,
    OURS_PLAIN,
    Experiment,
)
from paper.problems import Problem, Rows
from paper.records import LEVELS, Result, results_in, sealed

_NOT_QUICK = (OURS_OWN, OURS_PLAIN, OURS_NUTS, OURS_NUTS_NOISE, OURS_NUTS_TRANSFORM, OURS_NUTS_LARGER, GP_IND_OWN, GPY)


class Job(NamedTuple):
    """One repeat of one method."""

    experiment: str
    method: str
    repeat: int
    quick: bool

    def path(self, folder: Path) -> Path:
        """Where its result lies."""
        name = "".join(letter if letter.isalnum() else "-" for letter in self.method.lower())
        return folder / "repeats" / self.experiment / f"{name}-{self.repeat:02d}{'-quick' if self.quick else ''}.json"


def jobs(name: str, experiment: Experiment, *, repeats: int, quick: bool) -> list[Job]:
    """All repeats of all methods; a repeat's methods stand together, so that comparisons are complete early."""
    left_out = _NOT_QUICK if quick else () if gpy.is_installed() else (GPY,)
    methods = [method for method in experiment.entries if method not in left_out]
    return [Job(name, method, repeat, quick) for repeat in range(repeats) for method in methods]


def stored(name: str, folder: Path, *, quick: bool) -> dict[Job, Result]:
    """Results of earlier runs with this version: those in the file of the experiment, and single repeats."""
    paths = [summary_path(name, folder, quick=quick), *sorted((folder / "repeats" / name).glob("*.json"))]
    return {
        Job(name, result["method"], result["repeat"], quick): result
        for path in paths
        for result in results_in(path)
        if result["version"] == __version__ and result["quick"] == quick
    }


def summary_path(name: str, folder: Path, *, quick: bool) -> Path:
    """The file that holds all repeats of an experiment."""
    return folder / f"{name}{'-quick' if quick else ''}.json"


def problem_of(job: Job, experiment: Experiment, data_dir: Path | None) -> Problem:
    """The data of a job; quick runs of large experiments use a part."""
    make = experiment.quick_problem if job.quick and experiment.quick_problem else experiment.problem
    return make(job.repeat, data_dir)


def run_job(job: Job, experiment: Experiment, folder: Path, data_dir: Path | None) -> Result:
    """Fit, predict, measure, and write the result."""
    problem = problem_of(job, experiment, data_dir)
    entry = experiment.entries[job.method]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is in the report
        fitted = entry.method(Task(problem, entry.family, job.quick))
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


def _measures(fitted: Fitted, test: Rows) -> dict[str, Any]:
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
