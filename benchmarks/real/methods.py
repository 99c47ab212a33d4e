"""Every method as one function from a task to predictive means, deviations and log densities of the test rows."""

import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from benchmarks.real.problems import Task
from benchmarks.real.rivals import Moments, exact_gp, mixed_model
from benchmarks.rivals.environments import python_of
from lvmogp import LVMOGPRegressor
from lvmogp.typing import HostFloat

_BOTORCH_WORKER = Path(__file__).parent / "botorch_worker.py"
_MOST_ROWS_OF_BOTORCH = 250


class Predicted(NamedTuple):
    """What a method says of each test row: mean, 95 % interval and log density."""

    mean: HostFloat
    lower: HostFloat
    upper: HostFloat
    log_density: HostFloat


def ours(task: Task, **settings: Any) -> Predicted:
    """Fit, add the new conditions from their few points, predict."""
    model = LVMOGPRegressor(random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is no part of the question
        model.fit(task.train.inputs, task.train.outputs, conditions=task.train.conditions)
        for number in np.unique(task.few.conditions):
            chosen = task.few.conditions == number
            model.add_condition(number, task.few.inputs[chosen], task.few.outputs[chosen])
        mean = model.predict(task.test.inputs, task.test.conditions)
        lower, upper = model.predict_interval(task.test.inputs, task.test.conditions)
        densities = model.log_predictive_density(task.test.inputs, task.test.outputs, task.test.conditions)
    return Predicted(mean, lower, upper, densities)


def normal(task: Task, method: Callable[[Task], Moments]) -> Predicted:
    """Predictions that are normal."""
    mean, variance = method(task)
    deviation = np.sqrt(variance)
    lower, upper = norm.interval(0.95, mean, deviation)
    return Predicted(mean, lower, upper, np.asarray(norm.logpdf(task.test.outputs, mean, deviation)))


def botorch(task: Task) -> Moments:
    """BoTorch's MultiTaskGP, in the environment of the rivals; new conditions take part in its fit."""
    together = task.train.and_then(task.few)
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "task.npz", Path(folder) / "found.npz"
        rows = {"inputs": together.inputs, "outputs": together.outputs, "conditions": together.conditions}
        np.savez(given, **rows, test_inputs=task.test.inputs, test_conditions=task.test.conditions)
        subprocess.run([python_of("torch"), _BOTORCH_WORKER, given, found], check=True, capture_output=True)
        with np.load(found) as values:
            return values["mean"], values["variance"]


OURS = "lvmogp"
METHODS: dict[str, Callable[[Task], Predicted]] = {
    OURS: ours,
    **{
        name: partial(normal, method=partial(exact_gp, name))
        for name in ("hierarchical GP", "coregionalisation", "GPs alone")
    },
    "mixed model": partial(normal, method=mixed_model),
    "MultiTaskGP": partial(normal, method=botorch),
}


def can_take(name: str, task: Task) -> bool:
    """Whether a method can be asked: mixed models know one input here, and BoTorch's exact model few rows."""
    if name == "mixed model":
        return task.train.inputs.shape[1] == 1
    return name != "MultiTaskGP" or len(task.train.outputs) + len(task.few.outputs) <= _MOST_ROWS_OF_BOTORCH
