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
from lvmogp.insight.leave_out import leave_out, leave_out_calibration

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


def answers(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    """All answers of the kinds that are wanted, by name."""
    return {name: values for kind in asked.kinds for name, values in of_kind(kind, estimator, asked).items()}


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


def _with_prior(estimator: LVMOGPRegressor) -> LVMOGPRegressor:
    return copy.copy(estimator).set_params(unseen="prior")


# Views of the predictive distributions of rows


def _moments(estimator: LVMOGPRegressor, X: np.ndarray, ids: list, **features: Any) -> Answers:
    mean, std = estimator.predict(X, ids, return_std=True, **features)
    _, of_function = estimator.predict(X, ids, return_std=True, include_noise=False, **features)
    return {"mean": mean, "std": std, "std of the function": of_function}


def _quantiles(estimator: LVMOGPRegressor, X: np.ndarray, ids: list, **features: Any) -> Answers:
    lower, upper = estimator.predict_interval(X, ids, level=0.8, **features)
    return {
        "quantiles": estimator.predict_quantiles(X, ids, levels=LEVELS, **features),
        "quantiles of the function": estimator.predict_quantiles(
            X, ids, levels=LEVELS, include_noise=False, **features
        ),
        "interval": np.stack([lower, upper]),
    }


def _judgements(estimator: LVMOGPRegressor, X: np.ndarray, ids: list, asked: Asked) -> Answers:
    y, errors = np.resize(asked.outputs, len(X)), np.resize(asked.errors, len(X))
    density, below = estimator.log_predictive_density, estimator.predictive_cdf
    return {
        "log density": density(X, y, ids),
        "log density with errors": density(X, y, ids, y_std=errors),
        "log density of the function": density(X, y, ids, include_noise=False),
        "probability below": below(X, y, ids),
        "probability below with errors": below(X, y, ids, y_std=errors),
        "probability below of the function": below(X, y, ids, include_noise=False),
    }


def _gradients(estimator: LVMOGPRegressor, X: np.ndarray, ids: list) -> Answers:
    of_mean, of_variance = estimator.predict_gradient(X, ids)
    _, of_function = estimator.predict_gradient(X, ids, include_noise=False)
    return {
        "gradient of the mean": of_mean,
        "gradient of the variance": of_variance,
        "gradient of the function's variance": of_function,
    }


def _covariances(estimator: LVMOGPRegressor, X: np.ndarray, ids: list, what: str) -> Answers:
    return {
        f"covariance of {what}": estimator.predict(X, ids, return_cov=True)[1],
        f"covariance of the functions of {what}": estimator.predict(X, ids, return_cov=True, include_noise=False)[1],
    }


def _numbers_of(table: pd.DataFrame) -> np.ndarray:
    return table.select_dtypes(["number", "bool"]).to_numpy(dtype=float)


# Kinds of answers


def _trained(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    rows = _rows(asked, asked.trained)
    return {
        **_moments(estimator, *rows),
        **_quantiles(estimator, *rows),
        **_judgements(estimator, *rows, asked),
        **_gradients(estimator, *rows),
    }


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


def _latents(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    return {
        "latents": _numbers_of(estimator.latents_),
        "similarities": _numbers_of(estimator.similarities()),
    }


def _at_latents(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    found = {}
    for words, latents in (("one latent", asked.latents[0]), ("a latent a row", asked.latents)):
        ask = functools.partial(estimator.predict_at_latent, asked.inputs, latents, features=asked.features)
        found[f"mean at {words}"], found[f"std at {words}"] = ask(return_std=True)
        found[f"std of the function at {words}"] = ask(return_std=True, include_noise=False)[1]
    return found


def _joint(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    return _covariances(estimator, *_rows(asked, asked.trained), "trained ones")


def _samples(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    return _samples_of(estimator, asked, asked.trained[:2])


def _samples_of(estimator: LVMOGPRegressor, asked: Asked, names: list) -> Answers:
    rows = _rows(asked, names)
    return {
        "samples": estimator.sample(*rows, 3, random_state=SEED),
        "samples with noise": estimator.sample(*rows, 3, random_state=SEED, include_noise=True),
    }


def _added(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    extended, rows = _with_few(estimator, asked), _rows(asked, _few(asked))
    return {
        **_moments(extended, *rows),
        **_quantiles(extended, *rows),
        **_judgements(extended, *rows, asked),
        **_gradients(extended, *rows),
    }


def _latents_with_added(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    return _latents(_with_few(estimator, asked), asked)


def _joint_with_added(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    return _covariances(_with_few(estimator, asked), *_rows(asked, [asked.trained[0], "three"]), "both")


def _several_added(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    # New conditions that are asked about together change each other's weights.
    extended = _with_few(estimator, asked)
    return {
        **_covariances(extended, *_rows(asked, ["six"]), "one added"),
        **_covariances(extended, *_rows(asked, [asked.trained[-1], "three", "six"]), "one trained and two added"),
    }


def _samples_with_added(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    return _samples_of(_with_few(estimator, asked), asked, [asked.trained[0], "three"])


def _many(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    # More observations than a new condition keeps as they are.
    extended = _with(estimator, asked, "many")
    rows = _rows(asked, ["many"])
    return {
        "latents": _numbers_of(extended.latents_)[-1],
        **_moments(extended, *rows),
        **_quantiles(extended, *rows),
        **_covariances(extended, *_rows(asked, [asked.trained[0], "many"]), "one trained and it"),
    }


def _gaussian(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    extended, rows = _with(estimator, asked, "gaussian"), _rows(asked, ["gaussian"])
    return {
        "latents": _numbers_of(extended.latents_)[-1],
        **_moments(extended, *rows),
        **_quantiles(extended, *rows),
        **_judgements(extended, *rows, asked),
        **_gradients(extended, *rows),
        **_covariances(extended, *_rows(asked, [asked.trained[0], "gaussian"]), "one trained and it"),
    }


def _unseen(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    answering, rows = _with_prior(estimator), _rows(asked, [UNSEEN])
    return {
        **_moments(answering, *rows),
        **_quantiles(answering, *rows),
        **_judgements(answering, *rows, asked),
        **_covariances(answering, *_rows(asked, [asked.trained[0], UNSEEN]), "one trained and it"),
    }


def _described(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    # A condition of which the features are all that is known.
    rows, features = _rows(asked, [UNSEEN]), {UNSEEN: asked.features}
    return {
        **_moments(estimator, *rows, condition_features=features),
        **_quantiles(estimator, *rows, condition_features=features),
    }


def _absorbed(estimator: LVMOGPRegressor, asked: Asked) -> Answers:
    absorbing = copy.copy(_with_few(estimator, asked)).absorb()
    names = [asked.trained[0], "one", "three"]
    return {
        **_latents(absorbing, asked),
        **_moments(absorbing, *_rows(asked, names)),
        **_quantiles(absorbing, *_rows(asked, names)),
        **_covariances(absorbing, *_rows(asked, names), "trained and absorbed"),
    }


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
    "trained": _trained,
    "grid": _grid,
    "latents": _latents,
    "at latents": _at_latents,
    "joint": _joint,
    "samples": _samples,
    "added": _added,
    "latents with added": _latents_with_added,
    "joint with added": _joint_with_added,
    "samples with added": _samples_with_added,
    "several added": _several_added,
    "many": _many,
    "gaussian": _gaussian,
    "unseen": _unseen,
    "described": _described,
    "absorbed": _absorbed,
    "suggestions": _suggestions,
    "left out": _left_out,
}
