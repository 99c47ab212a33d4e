"""The data that we and the rivals get, as files of arrays."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals.environments import ROOT
from paper import problems
from paper.synthetic import synthetic_grid

_FOLDER = ROOT / "out" / "benchmarks"
_NOISE = 0.3
_FEATURES = 200
_TESTED = 10_000


def grid(n_inputs: int, n_conditions: int, n_columns: int) -> Path:
    """A complete grid of noise: what a bound costs does not depend on the values."""
    rng = np.random.default_rng(0)
    return _kept(
        f"grid-{n_inputs}-{n_conditions}-{n_columns}",
        inputs=rng.uniform(-2, 2, (n_inputs, n_columns)),
        outputs=rng.standard_normal((n_inputs, n_conditions)),
        test_inputs=rng.uniform(-2, 2, (200, n_columns)),
    )


def rows(n: int, n_conditions: int, n_columns: int) -> Path:
    """Rows of noise, conditions drawn evenly; none is without a row."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(n_conditions, size=n - n_conditions)
    return _kept(
        f"rows-{n}-{n_conditions}-{n_columns}",
        inputs=rng.uniform(-2, 2, (n, n_columns)),
        outputs=rng.standard_normal(n),
        conditions=np.sort(np.concatenate([np.arange(n_conditions), drawn])),
    )


def synthetic_complete(seed: int) -> Path:
    """The paper's synthetic data, complete, with inputs in standard units as all methods get them."""
    data = synthetic_grid(seed)
    center, scale = data.train_inputs.mean(), data.train_inputs.std()
    return _kept(
        f"synthetic-{seed}",
        inputs=(data.train_inputs - center) / scale,
        outputs=data.train_outputs,
        test_inputs=(data.test_inputs - center) / scale,
        test_values=data.test_values,
    )


def synthetic_missing(seed: int, n_groups: int = 10) -> Path:
    """The paper's synthetic data with uneven conditions; inputs lie in [0, 1], as BoTorch wants them."""
    problem = problems.synthetic_missing(seed, n_groups=n_groups)
    return _kept(f"synthetic-missing-{seed}-{n_groups}", **_train_and_test(problem.train, problem.test))


def _train_and_test(train: problems.LabelledRows, test: problems.LabelledRows) -> dict[str, Any]:
    return {
        **train._asdict(),
        "test_inputs": test.inputs,
        "test_values": test.outputs,
        "test_conditions": test.conditions,
    }


def many_rows(n: int, n_conditions: int) -> Path:
    """Very many rows of smooth functions of two inputs and two latents, with noise of sd .3.

    f(x, h) = √(2/R) Σ_r w_r cos(ω_rᵀx + ν_rᵀh + φ_r): draws from a GP with RBF kernels of lengthscale 1 over inputs in
    [−3, 3]² and over standard normal latents, to the precision of R random features. Test values are without noise.
    """
    rng = np.random.default_rng(0)
    latents = rng.standard_normal((n_conditions, 2))
    frequencies, of_latents = rng.standard_normal((2, _FEATURES)), rng.standard_normal((2, _FEATURES))
    phases, weights = rng.uniform(0, 2 * np.pi, _FEATURES), rng.standard_normal(_FEATURES)

    def values(inputs: Any, conditions: Any) -> Any:
        found = np.empty(len(inputs))
        for part in np.array_split(np.arange(len(inputs)), max(len(inputs) // 50_000, 1)):
            angles = inputs[part] @ frequencies + (latents @ of_latents + phases)[conditions[part]]
            found[part] = np.sqrt(2 / _FEATURES) * np.cos(angles) @ weights
        return found

    train = rng.uniform(-3, 3, (n, 2)), rng.integers(n_conditions, size=n)
    test = rng.uniform(-3, 3, (_TESTED, 2)), rng.integers(n_conditions, size=_TESTED)
    return _kept(
        f"many-{n}-{n_conditions}",
        inputs=train[0],
        outputs=values(*train) + _NOISE * rng.standard_normal(n),
        conditions=train[1],
        test_inputs=test[0],
        test_values=values(*test),
        test_conditions=test[1],
    )


def _kept(name: str, **arrays: Any) -> Path:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    path = _FOLDER / f"{name}.npz"
    np.savez(path, **arrays)
    return path
