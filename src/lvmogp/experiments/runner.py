"""Running the repeats of an experiment: in parallel, each on disk when done, taken up again where it stopped."""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import joblib

from lvmogp.__about__ import __version__
from lvmogp.baselines import gpy
from lvmogp.experiments.methods import Task
from lvmogp.experiments.plan import GP_IND_OWN, GPY, OURS_NUTS, OURS_OWN, OURS_PLAIN, Experiment
from lvmogp.experiments.problems import Problem
from lvmogp.metrics import calibration, negative_log_density, rmse
from lvmogp.storage import replace_file

_NOT_QUICK = (OURS_OWN, OURS_PLAIN, OURS_NUTS, GP_IND_OWN, GPY)
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))


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


def stored(name: str, folder: Path, *, quick: bool) -> dict[Job, dict[str, Any]]:
    """Results of earlier runs with this version: those in the file of the experiment, and single repeats."""
    found: list[Any] = []
    summary = _read(summary_path(name, folder, quick=quick))
    if isinstance(summary, dict):
        found += summary.get("repeats", [])
    found += [_read(path) for path in sorted((folder / "repeats" / name).glob("*.json"))]
    return {
        Job(name, result["method"], result["repeat"], quick): result
        for result in found
        if isinstance(result, dict) and result.get("version") == __version__ and result.get("quick") == quick
    }


def summary_path(name: str, folder: Path, *, quick: bool) -> Path:
    """The file that holds all repeats of an experiment."""
    return folder / f"{name}{'-quick' if quick else ''}.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # not there, or damaged: it is run again


def problem_of(job: Job, experiment: Experiment, data_dir: Path | None) -> Problem:
    """The data of a job; quick runs of large experiments use a part."""
    make = experiment.quick_problem if job.quick and experiment.quick_problem else experiment.problem
    return make(job.repeat, data_dir)


def run_job(job: Job, experiment: Experiment, folder: Path, data_dir: Path | None) -> dict[str, Any]:
    """Fit, predict, measure, and write the result."""
    problem = problem_of(job, experiment, data_dir)
    entry = experiment.entries[job.method]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is in the report
        fitted = entry.method(Task(problem, entry.family, job.quick))
        seconds = time.perf_counter() - began
        mean, deviation = fitted.predict(problem.test.inputs, problem.test.conditions)
    actual = problem.test.outputs
    result = {
        **job._asdict(),
        "version": __version__,
        "rmse": rmse(mean, actual),
        "nlpd": negative_log_density(mean, deviation, actual),
        "coverage": calibration(mean, deviation, actual, [0.95])[0],
        "calibration": calibration(mean, deviation, actual, LEVELS),
        "seconds": seconds,
        "device": jax.devices()[0].device_kind,
        "n_test": len(actual),
        **fitted.report,
    }
    path = job.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(result, indent=1) + "\n").encode())
    return result


def run(
    pending: list[Job],
    experiment: Experiment,
    folder: Path,
    *,
    data_dir: Path | None,
    n_jobs: int,
    on_result: Callable[[dict[str, Any]], None],
) -> None:
    """Run jobs through joblib, whose backend a caller may have chosen with ``joblib.parallel_config``."""
    tasks = (joblib.delayed(run_job)(job, experiment, folder, data_dir) for job in pending)
    for result in _results(tasks, n_jobs):
        on_result(result)


def _results(tasks: Iterator[Any], n_jobs: int) -> Iterator[dict[str, Any]]:
    if n_jobs > 1:
        # One thread each: the repeats themselves fill the cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return cast(Iterator[dict[str, Any]], joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(tasks))
