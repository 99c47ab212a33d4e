"""Every method as one function from a task to means, 95 % intervals and log densities of the test rows."""

import functools
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import joblib
import numpy as np
from scipy.stats import norm

from benchmarks.real.exact import KINDS, Moments, exact_gp
from benchmarks.real.problems import OURS, GroupedRows, Task
from benchmarks.real.serving import answer
from benchmarks.rivals.environments import python_of
from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.insight.validation import Forecast

MIXED, BOTORCH = "mixed model", "MultiTaskGP"
_MOST_ROWS_OF_BOTORCH = 250
# Of ours, as LVMOGPRegressor takes them.
SETTINGS: dict[str, dict[str, Any]] = {
    OURS: {},
    f"{OURS}, the paper's model": dict(PAPERS_MODEL),
    f"{OURS}, nuts": {"inference": "nuts"},
}


def ours(task: Task, settings: Mapping[str, Any]) -> tuple[Forecast, float]:
    """Fit, add the new conditions from their few points, predict; with the seconds that fit and answers took."""
    model, seconds = _fitted(_Training(task.train, settings))
    began = time.perf_counter()
    numbers = np.unique(task.test.conditions[~np.isin(task.test.conditions, task.train.conditions)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            chosen = task.few.conditions == number
            model.add_condition(number, task.few.inputs[chosen], task.few.outputs[chosen])
        mean = model.predict(task.test.inputs, task.test.conditions)
        lower, upper = model.predict_interval(task.test.inputs, task.test.conditions)
        densities = model.log_predictive_density(task.test.inputs, task.test.outputs, task.test.conditions)
    for number in numbers:
        model.remove_condition(number)
    return Forecast(mean, lower, upper, densities), seconds + time.perf_counter() - began


class _Training:
    # Rows to learn from and settings, which are told apart by what they hold.
    def __init__(self, rows: GroupedRows, settings: Mapping[str, Any]) -> None:
        self.rows, self.settings = rows, settings
        self.digest = joblib.hash((rows, sorted(settings.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Training) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@functools.lru_cache(maxsize=1)  # tasks that differ in the few points of new conditions come one after the other
def _fitted(training: _Training) -> tuple[LVMOGPRegressor, float]:
    began = time.perf_counter()
    model = LVMOGPRegressor(**{"random_state": 0, **training.settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is no part of the question
        model.fit(training.rows.inputs, training.rows.outputs, conditions=training.rows.conditions)
    return model, time.perf_counter() - began


def normal(task: Task, method: Callable[[Task], Moments]) -> Forecast:
    """Predictions that are normal."""
    mean, variance = method(task)
    deviation = np.sqrt(variance)
    lower, upper = norm.interval(0.95, mean, deviation)
    return Forecast(mean, lower, upper, np.asarray(norm.logpdf(task.test.outputs, mean, deviation)))


def elsewhere(task: Task, environment: str, module: str) -> Moments:
    """Ask a rival that lives in an environment of its own; new conditions take part in its fit."""
    together = task.train.and_then(task.few)
    asked = {"test_inputs": task.test.inputs, "test_conditions": task.test.conditions}
    found = answer(python_of(environment), f"benchmarks.real.{module}", {**together._asdict(), **asked})
    return found["mean"], found["variance"]


RIVALS: dict[str, Callable[[Task], Forecast]] = {
    **{name: partial(normal, method=partial(exact_gp, name)) for name in KINDS},
    MIXED: partial(normal, method=partial(elsewhere, environment="statsmodels", module="mixed_worker")),
    BOTORCH: partial(normal, method=partial(elsewhere, environment="torch", module="botorch_worker")),
}


def can_take(name: str, task: Task) -> bool:
    """Whether a method can be asked: mixed models know one input here, and BoTorch's exact model few rows."""
    if name == MIXED:
        return task.train.inputs.shape[1] == 1
    return name != BOTORCH or len(task.train.outputs) + len(task.few.outputs) <= _MOST_ROWS_OF_BOTORCH
