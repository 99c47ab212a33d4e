"""Everything that a fitted estimator answers about given points, through its public methods only."""

import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lvmogp import LVMOGPRegressor
from lvmogp.insight.summary import leave_out, leave_out_calibration

Answers = dict[str, np.ndarray]
LEVELS = (0.01, 0.3, 0.5, 0.975)
UNSEEN = "never seen"
SEED = 11


class New(NamedTuple):
    """A condition to be added: its observations, and how."""

    inputs: np.ndarray
    outputs: np.ndarray
    errors: np.ndarray | None
    features: Any
    method: str


# Compared by identity, so that an estimator with its conditions added can be kept for it.
@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked about: inputs of trained conditions and outputs there, latents, conditions to be added.

    ``features`` are those of a condition that is imagined, and ``kinds`` the kinds of answers wanted.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    errors: np.ndarray
    latents: np.ndarray
    candidates: np.ndarray
    trained: list
    features: Any
    new: dict[str, New]
    kinds: tuple[str, ...]


def asked_of(arrays: Mapping[str, np.ndarray]) -> Asked:
    """What is asked about, from the plain arrays that hold it."""
    document = json.loads(str(arrays["asked"]))
    new = {
        name: New(
            arrays[f"asked.new.{name}.inputs"],
            arrays[f"asked.new.{name}.outputs"],
            arrays.get(f"asked.new.{name}.errors"),
            **entry,
        )
        for name, entry in document["new"].items()
    }
    plain = {name: arrays[f"asked.{name}"] for name in ("inputs", "outputs", "errors", "latents", "candidates")}
    return Asked(**plain, trained=document["trained"], features=document["features"], new=new, kinds=document["kinds"])


def of_kind(kind: str, estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    """Answers of one kind, each by the name of the kind and its own."""
    found = KINDS[kind](estimator, asked)
    return {f"{kind}: {name}": np.asarray(values, dtype=float) for name, values in found.items()}


# Rows


def _rows(asked: Asked, names: list) -> tuple[np.ndarray, list]:
    # All inputs for each condition, the conditions taking turns.
    return np.repeat(asked.inputs, len(names), axis=0), names * len(asked.inputs)


def _with(estimator: LVMOGPRegressor, asked: Asked, *names: str) -> LVMOGPRegressor:
    extended = copy.copy(estimator)
    for name in names:
        inputs, outputs, errors, features, method = asked.new[name]
        extended.add_condition(name, inputs, outputs, y_std=errors, features=features, method=method)
    return extended


@functools.lru_cache(maxsize=1)
def _with_few(estimator: LVMOGPRegressor, asked: Asked) -> LVMOGPRegressor:
    # Several kinds of answers are about the same added conditions.
    return _with(estimator, asked, *_few(asked))


def _few(asked: Asked) -> list[str]:
    return [name for name in asked.new if name not in ("many", "gaussian")]


# Views of the predictive distributions of rows


def _moments(estimator: LVMOGPRegressor, asked: Asked, X: np.ndarray, ids: list, **features: Any) -> Answers:
    mean, std = estimator.predict(X, ids, return_std=True, **features)
    _, of_function = estimator.predict(X, ids, return_std=True, include_noise=False, **features)
    return {"mean": mean, "std": std, "std of the function": of_function}


def _quantiles(estimator: LVMOGPRegressor, asked: Asked, X: np.ndarray, ids: list, **features: Any) -> Answers:
    ask = functools.partial(estimator.predict_quantiles, X, ids, levels=LEVELS, **features)
    interval = np.stack(estimator.predict_interval(X, ids, level=0.8, **features))
    return {"quantiles": ask(), "quantiles of the function": ask(include_noise=False), "interval": interval}


def _judgements(estimator: LVMOGPRegressor, asked: Asked, X: np.ndarray, ids: list) -> Answers:
    y, errors = np.resize(asked.outputs, len(X)), np.resize(asked.errors, len(X))
    methods = {"log density": estimator.log_predictive_density, "probability below": estimator.predictive_cdf}
    ways = {"": {}, " with errors": {"y_std": errors}, " of the function": {"include_noise": False}}
    return {f"{name}{words}": ask(X, y, ids, **way) for name, ask in methods.items() for words, way in ways.items()}


def _gradients(estimator: LVMOGPRegressor, asked: Asked, X: np.ndarray, ids: list) -> Answers:
    of_mean, of_variance = estimator.predict_gradient(X, ids)
    _, of_function = estimator.predict_gradient(X, ids, include_noise=False)
    return {
        "gradient of the mean": of_mean,
        "gradient of the variance": of_variance,
        "gradient of the function's variance": of_function,
    }


ALL_VIEWS = (_moments, _quantiles, _judgements, _gradients)


def _views(estimator: LVMOGPRegressor, asked: Asked, names: list, views: Any, **features: Any) -> Answers:
    rows = _rows(asked, names)
    return {name: values for view in views for name, values in view(estimator, asked, *rows, **features).items()}


def _covariances(estimator: LVMOGPRegressor, asked: Asked, names: list, what: str) -> Answers:
    ask = functools.partial(estimator.predict, *_rows(asked, names), return_cov=True)
    return {f"covariance of {what}": ask()[1], f"covariance of the functions of {what}": ask(include_noise=False)[1]}


def _samples_of(estimator: LVMOGPRegressor, asked: Asked, names: list) -> Answers:
    ask = functools.partial(estimator.sample, *_rows(asked, names), 3, random_state=SEED)
    return {"samples": ask(), "samples with noise": ask(include_noise=True)}


def _numbers_of(table: pd.DataFrame) -> np.ndarray:
    return table.select_dtypes(["number", "bool"]).to_numpy(dtype=float)


def _latents(estimator: LVMOGPRegressor) -> Answers:
    return {"latents": _numbers_of(estimator.latents_), "similarities": _numbers_of(estimator.similarities())}


def _with_latents(estimator: LVMOGPRegressor, asked: Asked, name: str, views: Any) -> Answers:
    extended = _with(estimator, asked, name)
    return {
        "latents": _numbers_of(extended.latents_)[-1],
        **_views(extended, asked, [name], views),
        **_covariances(extended, asked, [asked.trained[0], name], "one trained and it"),
    }


# Kinds of answers that take more than a line


def _grid(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    # Without conditions, a model of a grid answers for all of them.
    mean, std = estimator.predict(asked.inputs, return_std=True)
    return {
        "mean alone": estimator.predict(asked.inputs),
        "mean": mean,
        "std": std,
        "std of the function": estimator.predict(asked.inputs, return_std=True, include_noise=False)[1],
        "quantiles": estimator.predict_quantiles(asked.inputs, levels=LEVELS),
        "gradient of the mean": estimator.predict_gradient(asked.inputs)[0],
    }


def _at_latents(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    found = {}
    for words, latents in (("one latent", asked.latents[0]), ("a latent a row", asked.latents)):
        ask = functools.partial(estimator.predict_at_latent, asked.inputs, latents, features=asked.features)
        found[f"mean at {words}"], found[f"std at {words}"] = ask(return_std=True)
        found[f"std of the function at {words}"] = ask(return_std=True, include_noise=False)[1]
    return found


def _several_added(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    # New conditions that are asked about together change each other's weights.
    extended, three = _with_few(estimator, asked), [asked.trained[-1], "three", "six"]
    alone = _covariances(extended, asked, ["six"], "one added")
    return alone | _covariances(extended, asked, three, "one trained and two added")


def _unseen(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    answering = copy.copy(estimator).set_params(unseen="prior")
    together = _covariances(answering, asked, [asked.trained[0], UNSEEN], "one trained and it")
    return _views(answering, asked, [UNSEEN], ALL_VIEWS[:3]) | together


def _absorbed(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    absorbing, names = copy.copy(_with_few(estimator, asked)).absorb(), [asked.trained[0], "one", "three"]
    together = _covariances(absorbing, asked, names, "trained and absorbed")
    return _latents(absorbing) | _views(absorbing, asked, names, ALL_VIEWS[:2]) | together


def _suggestions(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    extended, found = _with_few(estimator, asked), {}
    # Some of all combinations: each takes a program of its own.
    for name, goal, n in (
        (asked.trained[0], "predictions", 1),
        (asked.trained[0], "latents", 2),
        ("three", "latents", 1),
        ("three", "predictions", 2),
        (UNSEEN, "latents", 1),
        (UNSEEN, "predictions", 2),
    ):
        suggestion = extended.suggest(name, asked.candidates, n, goal=goal)
        for part in ("inputs", "sd_before", "sd_after", "candidate_sd"):
            found[f"{part} of {n} for {goal} of {name}"] = getattr(suggestion, part)
    within = extended.suggest(asked.trained[0], asked.candidates, region=asked.inputs)
    return {**found, "candidate_sd in a region": within.candidate_sd}


def _left_out(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    measured, calibration = leave_out(estimator), leave_out_calibration(estimator)
    assert measured is not None
    assert calibration is not None
    return {
        **{f"{name} of observations left out": value for name, value in measured._asdict().items()},
        "probability below those left out": calibration.probability_below,
        "uniformity": calibration.uniformity,
        "coverage": _numbers_of(calibration.coverage),
        "calibration by condition": _numbers_of(calibration.by_condition),
    }


KINDS: dict[str, Callable[[LVMOGPRegressor, Asked], Answers]] = {
    "trained": lambda model, asked: _views(model, asked, asked.trained, ALL_VIEWS),
    "grid": _grid,
    "latents": lambda model, asked: _latents(model),
    "at latents": _at_latents,
    "joint": lambda model, asked: _covariances(model, asked, asked.trained, "trained ones"),
    "samples": lambda model, asked: _samples_of(model, asked, asked.trained[:2]),
    "added": lambda model, asked: _views(_with_few(model, asked), asked, _few(asked), ALL_VIEWS),
    "latents with added": lambda model, asked: _latents(_with_few(model, asked)),
    "joint with added": lambda model, asked: _covariances(
        _with_few(model, asked), asked, [asked.trained[0], "three"], "both"
    ),
    "samples with added": lambda model, asked: _samples_of(_with_few(model, asked), asked, [asked.trained[0], "three"]),
    "several added": _several_added,
    # More observations than a new condition keeps as they are.
    "many": lambda model, asked: _with_latents(model, asked, "many", ALL_VIEWS[:2]),
    "gaussian": lambda model, asked: _with_latents(model, asked, "gaussian", ALL_VIEWS),
    "unseen": _unseen,
    # A condition of which the features are all that is known.
    "described": lambda model, asked: _views(
        model, asked, [UNSEEN], ALL_VIEWS[:2], condition_features={UNSEEN: asked.features}
    ),
    "absorbed": _absorbed,
    "suggestions": _suggestions,
    "left out": _left_out,
}
