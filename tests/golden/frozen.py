"""Models that were frozen as plain arrays, and whether they give the answers that were kept beside them.

Most of the time goes into programs for models of different shapes. Those marked as long have shapes of their own, or
ask what takes longest; ``pytest tests/golden -m ""`` asks all.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import Answers, Asked, asked_of, of_kind
from thaw import thawed

from lvmogp import LVMOGPRegressor

FILES = {path.stem: path for path in (Path(__file__).parent / "models").glob("*.npz")}
PREFIX = "answers."
# Relative to the size of an answer. In single precision, variances are differences of numbers that are themselves
# rounded at the seventh digit.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3}
LONG_MODELS = (
    "draws-errors",
    "draws-features",
    "draws-features-only",
    "draws-grid-own-noise",
    "draws-grid-sparse",
    "draws-grid-sqrt",
    "draws-linear",
    "draws-long-own-noise",
    "draws-long-sparse",
    "draws-two-columns",
    "grid-features-only",
    "grid-full",
    "grid-one-latent",
    "grid-periodic",
    "long-errors",
    "long-features",
    "long-kronecker",
    "long-linear",
    "long-matern",
    "long-own-noise",
    "long-sqrt-errors",
    "long-three-latents",
    "one-condition",
    "two-columns",
)
LONG_KINDS_OF_DRAWS = ("many", "suggestions")


def arrays_of(model: str) -> Mapping[str, np.ndarray]:
    with np.load(FILES[model]) as file:
        return dict(file)


def shapes_of(model: str) -> tuple:
    # Models of the same shapes share compiled programs, which are forgotten when there are many: they come together.
    arrays = arrays_of(model)
    described = json.loads(str(arrays["document"]))
    is_kept = ("parameters.", "inducing.", "draws.")
    shapes = [(name, values.shape) for name, values in arrays.items() if name.startswith(is_kept)]
    return ("draws.latents" in arrays, described["covariance"], repr(described["latent_kernel"]), repr(shapes), model)


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
    is_long = model in LONG_MODELS or (model.startswith("draws") and kind_of(answer) in LONG_KINDS_OF_DRAWS)
    return pytest.param(model, answer, marks=[pytest.mark.long] if is_long else [])


def kind_of(answer: str) -> str:
    return answer.partition(":")[0]


def cases(*, draws: bool) -> list:
    """Return all that was kept of the models that answer from draws, or of the others."""
    models = [model for model in MODELS if model.startswith("draws") == draws]
    names = [(model, name) for model in models for name in arrays_of(model) if name.startswith(PREFIX)]
    return [case(model, name.removeprefix(PREFIX)) for model, name in names]


@functools.lru_cache(maxsize=1)
def golden(model: str) -> Mapping[str, np.ndarray]:
    return arrays_of(model)


def bounds(model: str, expected: np.ndarray) -> dict[str, float]:
    settings = json.loads(str(golden(model)["document"]))["settings"]
    tolerance = TOLERANCES[settings["dtype"]]
    return {"rtol": tolerance, "atol": tolerance * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)}


def is_same(model: str, found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, **bounds(model, expected), equal_nan=True)


def check(model: str, answer: str) -> None:
    """Compare an answer with the one that was kept."""
    expected = golden(model)[PREFIX + answer]
    found = answered(model, kind_of(answer))[answer]
    np.testing.assert_allclose(found, expected, **bounds(model, expected))
