"""Models that were frozen as plain arrays give the answers that were kept beside them.

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
    "draws-grid-own-noise",
    "draws-grid-sqrt",
    "draws-long-sparse",
    "draws-two-columns",
    "long-features",
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


MODELS = sorted(FILES, key=shapes_of)


def case(model: str, answer: str) -> Any:
    is_long = model in LONG_MODELS or (model.startswith("draws") and kind_of(answer) in LONG_KINDS_OF_DRAWS)
    return pytest.param(model, answer, marks=[pytest.mark.long] if is_long else [])


def kind_of(answer: str) -> str:
    return answer.partition(":")[0]


CASES = [
    case(model, name.removeprefix(PREFIX)) for model in MODELS for name in arrays_of(model) if name.startswith(PREFIX)
]


@functools.lru_cache(maxsize=1)
def golden(model: str) -> Mapping[str, np.ndarray]:
    return arrays_of(model)


@pytest.mark.parametrize(("model", "answer"), CASES)
def test_answers_are_those_that_were_kept(model, answer):
    kept = golden(model)
    expected = kept[PREFIX + answer]
    settings = json.loads(str(kept["document"]))["settings"]
    finite = np.abs(expected[np.isfinite(expected)])
    tolerance, scale = TOLERANCES[settings["dtype"]], finite.max(initial=0.0)
    found = answered(model, kind_of(answer))[answer]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
