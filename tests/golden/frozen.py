"""Models that were frozen as plain arrays, and whether they give the answers that were kept beside them."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import KINDS, Answers, Asked, asked_of, of_kind
from thaw import thawed

from lvmogp import LVMOGPRegressor

FILES = {path.stem: path for path in (Path(__file__).parent / "models").glob("*.npz")}
PREFIX = "answers."
# Relative to the size of an answer. In single precision, variances are differences of numbers that are themselves
# rounded at the seventh digit.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3}
# Kinds of answers that are asked each time: every kind, and every kind of model, once. Of the others most of the time
# goes into programs for models of other shapes; ``pytest tests/golden -m ""`` asks all.
QUICK = {
    "grid": tuple(KINDS),
    "long": ("trained", "joint with added"),
    "grid-features-only": ("described",),
    "grid-errors": ("trained", "left out"),
    "grid-float32": ("trained",),
    "grid-sqrt": ("trained",),
    "long-log": ("trained", "joint"),
    "long-stochastic": ("trained",),
    "draws-grid": ("trained", "at latents", "joint", "added", "latents with added", "joint with added"),
    "draws-long": ("trained", "samples", "left out"),
    "draws-long-log": ("joint",),
}


@functools.cache
def arrays_of(model: str) -> Mapping[str, np.ndarray]:
    """Return what was frozen, each array read when it is asked for."""
    return np.load(FILES[model])


def shapes_of(model: str) -> tuple:
    # Models of similar shapes share compiled programs, which are forgotten when there are many: they come together.
    document = json.loads(str(arrays_of(model)["document"]))
    return (document["covariance"], repr(document["latent_kernel"]), document["settings"]["dtype"], model)


@functools.lru_cache(maxsize=1)
def thawed_model(model: str) -> tuple[LVMOGPRegressor, Asked]:
    arrays = arrays_of(model)
    return thawed(arrays), asked_of(arrays)


# By kind, so that one that cannot be answered does not hide the others.
@functools.lru_cache(maxsize=1)
def answered(model: str, kind: str) -> Answers:
    return of_kind(kind, *thawed_model(model))


# Rules that were changed on purpose since the answers were frozen; those of these kinds were frozen anew (refreeze.py).
CHANGED = {
    "unseen": "a condition without observations is quasi-random points of the prior, not the outcome of a search",
    "described": "as above",
    "suggestions": "as above",
    "left out": "observations left out are judged by the mixture that predicts, not by one Gaussian",
    "samples with added": "of draws, latents are drawn one condition after the other",
    "added": "of draws, particles are chosen along a curve of fewer cells, so that last digits do not choose",
    "many": "as above",
    "several added": "as above",
    "joint with added": "as above",
}
MODELS = sorted(FILES, key=shapes_of)


def case(model: str, answer: str) -> Any:
    is_quick = kind_of(answer) in QUICK.get(model, ())
    return pytest.param(model, answer, marks=[] if is_quick else [pytest.mark.long])


def kind_of(answer: str) -> str:
    return answer.partition(":")[0]


def cases(*, draws: bool) -> list:
    """Return all that was kept of the models that answer from draws, or of the others."""
    models = [model for model in MODELS if model.startswith("draws") == draws]
    names = [(model, name) for model in models for name in arrays_of(model) if name.startswith(PREFIX)]
    return [case(model, name.removeprefix(PREFIX)) for model, name in names]


def bounds(model: str, expected: np.ndarray) -> dict[str, float]:
    settings = json.loads(str(arrays_of(model)["document"]))["settings"]
    tolerance = TOLERANCES[settings["dtype"]]
    return {"rtol": tolerance, "atol": tolerance * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)}


def is_same(model: str, found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, **bounds(model, expected), equal_nan=True)


def check(model: str, answer: str) -> None:
    """Compare an answer with the one that was kept."""
    expected = arrays_of(model)[PREFIX + answer]
    found = answered(model, kind_of(answer))[answer]
    np.testing.assert_allclose(found, expected, **bounds(model, expected))
