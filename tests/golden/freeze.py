"""Make the golden numbers: fit small models, keep them as plain arrays, and keep their answers.

    python tests/golden/freeze.py [names of models]

Answers are kept of the thawed models, once they are known to be those of the fitted ones. Of each model it is said how
much its answers move where all that they are computed from moves in the last digits: what moves by far more depends on
the order in which sums are taken, and cannot be asked to come out again.
"""

import json
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from answers import KINDS, answers, asked_of
from thaw import BASES, COMPOSITES, DRAWS, KNOWN, KRONECKER, PARAMETERS, SPREAD, sparse_from_the_first, thawed

from lvmogp import RBF, Constant, Kernel, Linear, LVMOGPRegressor, Matern52, Periodic
from lvmogp.draws import Draws, NoiseSpread
from lvmogp.kernels import Composite
from lvmogp.posterior import KroneckerCovariance
from lvmogp.trained import TrainedModel, with_draws

FOLDER = Path(__file__).parent / "models"
# Fewer than any number of draws of which some only would answer.
N_DRAWS = 32
N_INPUTS, N_CONDITIONS, NOISE = 8, 8, 0.15
TRAINED = ("trained", "latents", "joint")
SOME = (*TRAINED, "added", "latents with added", "joint with added")
MORE = (*SOME, "at latents", "unseen")
ALL = (*MORE, "samples", "samples with added", "several added", "many", "suggestions", "left out")
OF_A_FIT = ("gaussian", "absorbed")


@dataclass(frozen=True)
class Recipe:
    """One model: its data, its settings, and what is asked of it.

    ``form`` is that of the data: a grid, a grid with gaps, or long. ``draws`` are answered from exactly, or through
    inducing points ("sparse").
    """

    name: str
    form: str = "long"
    kinds: tuple[str, ...] = ()
    n_latent: int = 2
    noise: str = "shared"
    inference: str = "auto"
    input_kernel: Kernel | str = "rbf"
    latent_kernel: Kernel | str = "rbf"
    transform: str | None = None
    features: str | None = None
    errors: str | None = None
    n_columns: int = 1
    n_conditions: int = N_CONDITIONS
    numbered: bool = False
    dtype: str = "float64"
    draws: str | None = None

    @property
    def own_noise(self) -> bool:
        return self.noise == "per-condition"

    @property
    def asks_all(self) -> bool:
        return "many" in self.kinds


PER_CONDITION = {"noise": "per-condition"}
LINEAR = Linear() + Constant()
RECIPES = (
    # Fits, asked everything; both data and noise differ between the two.
    Recipe("grid", "grid", (*ALL, *OF_A_FIT)),
    Recipe("long-own-noise", "long", (*ALL, *OF_A_FIT), **PER_CONDITION, numbered=True),
    # Other data, and other forms of q(v).
    Recipe("grid-own-noise", "grid", (*SOME, "unseen", "left out"), **PER_CONDITION),
    Recipe("long", "long", (*MORE, "samples", "samples with added", "left out", "absorbed")),
    Recipe("gaps", "gaps", (*SOME, "left out")),
    Recipe("grid-kronecker", "grid", (*SOME, "absorbed"), inference="kronecker"),
    Recipe("long-kronecker", "long", SOME, inference="kronecker"),
    Recipe("grid-full", "grid", SOME, inference="full"),
    Recipe("long-full", "long", (*SOME, "left out"), inference="full"),
    Recipe("long-stochastic", "long", SOME, inference="stochastic"),
    # Other latents and kernels.
    Recipe("grid-one-latent", "grid", SOME, n_latent=1, input_kernel="matern52"),
    Recipe("long-three-latents", "long", SOME, n_latent=3),
    Recipe("long-linear", "long", SOME, latent_kernel=LINEAR),
    Recipe("long-matern", "long", TRAINED, input_kernel=Matern52(), latent_kernel=Matern52()),
    Recipe("grid-periodic", "grid", TRAINED, input_kernel=RBF() + Periodic(period=4.0)),
    # Features of conditions.
    Recipe("long-features", "long", (*SOME, "described", "at latents", "absorbed"), n_latent=1, features="gaps"),
    Recipe("grid-features-only", "grid", (*SOME, "described"), n_latent=0, features="numbers", **PER_CONDITION),
    # Errors of measurements, transforms, columns, precision.
    Recipe("long-errors", "long", (*SOME, "left out"), errors="uneven"),
    Recipe("grid-errors", "grid", (*SOME, "left out"), errors="even", **PER_CONDITION),
    Recipe("long-log", "long", (*MORE, "samples"), transform="log", **PER_CONDITION),
    Recipe("grid-sqrt", "grid", (*MORE, "samples", "absorbed"), transform="sqrt"),
    Recipe("long-sqrt-errors", "long", (*SOME, "left out"), transform="sqrt", errors="uneven"),
    Recipe("two-columns", "long", SOME, n_columns=2),
    Recipe("grid-float32", "grid", TRAINED, dtype="float32"),
    Recipe("one-condition", "long", SOME, n_conditions=1, n_latent=1),
    # Draws, asked everything.
    Recipe("draws-grid-own-noise", "grid", ALL, draws="exact", **PER_CONDITION),
    Recipe("draws-long", "long", ALL, draws="exact"),
    # Draws of other models.
    Recipe("draws-grid", "grid", MORE, draws="exact"),
    Recipe("draws-long-own-noise", "long", SOME, draws="exact", **PER_CONDITION, numbered=True),
    Recipe("draws-long-sparse", "long", SOME, draws="sparse"),
    Recipe("draws-grid-sparse", "grid", SOME, draws="sparse", **PER_CONDITION),
    Recipe("draws-features", "long", (*SOME, "described", "at latents"), draws="exact", n_latent=1, features="gaps"),
    Recipe("draws-features-only", "grid", (*SOME, "described"), draws="exact", n_latent=0, features="numbers"),
    Recipe("draws-long-log", "long", (*MORE, "samples"), draws="exact", transform="log"),
    Recipe("draws-grid-sqrt", "grid", (*MORE, "samples"), draws="exact", transform="sqrt", **PER_CONDITION),
    Recipe("draws-errors", "long", (*SOME, "left out"), draws="exact", errors="uneven"),
    Recipe("draws-two-columns", "long", SOME, draws="exact", n_columns=2, input_kernel=Matern52()),
    Recipe("draws-linear", "grid", TRAINED, draws="exact", n_latent=1, latent_kernel=LINEAR),
)


# Data


def curve(inputs: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Curves that change smoothly with two unknown coordinates of their conditions."""
    shape = np.sin(0.7 * inputs[:, 0] + position[..., 0]) * (1 + 0.4 * position[..., 1])
    return shape if inputs.shape[1] == 1 else shape + 0.1 * inputs[:, 1] * position[..., 1]


def outputs_of(recipe: Recipe, inputs: np.ndarray, position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    values = curve(inputs, position) + NOISE * rng.standard_normal(len(inputs))
    if recipe.transform == "log":
        return np.exp(1 + 0.6 * values)
    return (4 + values) ** 2 if recipe.transform == "sqrt" else 20 + 5 * values


@dataclass(frozen=True)
class Data:
    """What is handed to ``fit``."""

    X: Any
    y: Any
    conditions: list
    y_std: Any
    features: Any


def data_of(recipe: Recipe, rng: np.random.Generator) -> tuple[Data, np.ndarray]:
    """Data of a recipe, and where its conditions are."""
    n_conditions = recipe.n_conditions
    position = np.column_stack([np.linspace(-1, 1, n_conditions), rng.uniform(-1, 1, n_conditions)])
    ids = [10 * number for number in range(n_conditions)] if recipe.numbered else list("abcdefgh")[:n_conditions]
    if recipe.form == "long":
        counts = N_INPUTS + np.asarray([-3, 2, 0, 1, -1, 3, -2, 0]) if n_conditions > 1 else [2 * N_INPUTS]
        numbers = rng.permutation(np.repeat(np.arange(n_conditions), counts))
        X, conditions = rng.uniform(0, 10, (len(numbers), recipe.n_columns)), [ids[number] for number in numbers]
        y = outputs_of(recipe, X, position[numbers], rng)
    else:
        X, conditions = np.linspace(0, 10, N_INPUTS)[:, None] + 0.2 * rng.uniform(size=(N_INPUTS, 1)), ids
        y = np.column_stack([outputs_of(recipe, X, own, rng) for own in position])
    if recipe.form == "gaps":
        y[rng.uniform(size=y.shape) < 0.2] = np.nan
    y_std = {None: None, "even": 0.8, "uneven": rng.uniform(0, 2, y.shape)}[recipe.errors]
    if recipe.n_columns == 2:
        X, y = pd.DataFrame(X, columns=["time", "dose"]), pd.Series(y, name="yield")
    return Data(X, y, conditions, y_std, features_of(recipe, ids, position)), position


def features_of(recipe: Recipe, ids: list, position: np.ndarray) -> pd.DataFrame | None:
    if recipe.features is None:
        return None
    numbers = pd.DataFrame({"angle": 3 + 2 * position[:, 0], "height": 10 - position[:, 1]}, index=ids)
    if recipe.features == "numbers":
        return numbers
    numbers.loc[ids[2], "angle"] = np.nan
    kinds = pd.Series(np.resize(["red", "green", "blue"], len(ids)), index=ids, dtype=object)
    kinds.loc[ids[5]] = None
    return pd.DataFrame({"angle": numbers["angle"], "kind": kinds})


# Models


def fitted(recipe: Recipe, data: Data) -> LVMOGPRegressor:
    stochastic = recipe.inference == "stochastic"
    estimator = LVMOGPRegressor(
        recipe.n_latent,
        input_kernel=recipe.input_kernel,
        latent_kernel=recipe.latent_kernel,
        n_inducing_inputs=N_INPUTS,
        n_inducing_latents=4,
        noise=recipe.noise,
        inference=recipe.inference,
        n_restarts=1,
        max_iter=60 if stochastic else 20,
        batch_size=16 if stochastic else "auto",
        output_transform=recipe.transform,
        dtype=recipe.dtype,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such fits have not converged
        estimator.fit(data.X, data.y, data.conditions, condition_features=data.features, y_std=data.y_std)
    if recipe.draws is None:
        return estimator
    with jax.enable_x64(True):
        draws = made_draws(estimator.model_)
        with sparse_from_the_first() if recipe.draws == "sparse" else nullcontext():
            estimator.model_ = with_draws(estimator.model_, draws)
    return estimator


def made_draws(model: TrainedModel) -> Draws:
    """The variational fit, disturbed: other hyperparameters, turned and moved latents, unequal weights."""
    rng = np.random.default_rng(3)
    parameters = model.posterior.parameters

    def around(leaf: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(leaf) * np.exp(0.2 * rng.standard_normal((N_DRAWS, *leaf.shape))))

    mean = np.asarray(parameters.latent_mean)
    turns = np.linalg.qr(rng.standard_normal((N_DRAWS, mean.shape[1], mean.shape[1])))[0]
    turns[::2, :, :1] *= -1  # some turn, some mirror
    latents = (mean + 0.15 * rng.standard_normal((N_DRAWS, *mean.shape))) @ turns
    known = parameters.known
    if known is not None:
        values = np.tile(np.asarray(known.values), (N_DRAWS, 1, 1))
        normals = rng.standard_normal((N_DRAWS, len(known.missing_mean)))
        missing = np.asarray(known.missing_mean) + 0.5 * np.sqrt(np.asarray(known.missing_variance)) * normals
        values[:, np.asarray(known.missing_condition), np.asarray(known.missing_coordinate)] = missing
        latents = np.concatenate([latents, values], axis=2)
    log_weight, own_noise = 0.5 * rng.standard_normal(N_DRAWS), parameters.noise_variance.shape[0] > 1
    return Draws(
        input_kernel=jax.tree.map(around, parameters.input_kernel),
        latent_kernel=jax.tree.map(around, parameters.latent_kernel),
        latents=jnp.asarray(latents),
        noise_variance=around(parameters.noise_variance),
        chain=jnp.asarray(np.arange(N_DRAWS) % 2),
        log_weight=jnp.asarray(log_weight - np.log(np.sum(np.exp(log_weight)))),
        noise_spread=NoiseSpread(*jnp.asarray(rng.uniform(0.3, 0.6, (2, N_DRAWS)))) if own_noise else None,
    )


# Freezing


def frozen(estimator: LVMOGPRegressor, *, sparse: bool) -> dict[str, np.ndarray]:
    """A fitted estimator as plain arrays and one document of words."""
    model = estimator.model_
    observations, parameters, scaling = model.observations, model.posterior.parameters, model.scaling
    covariance, draws, features = model.posterior.covariance, model.draws, model.descriptions
    arrays: dict[str, Any] = {f"data.{name}": getattr(observations, name) for name in ("inputs", "outputs")}
    arrays["data.conditions"] = observations.conditions
    if observations.errors is not None:
        arrays["data.errors"] = observations.errors
    for name in ("input_mean", "input_scale", "output_mean", "output_scale"):
        arrays[f"scaling.{name}"] = getattr(scaling, name)
    arrays |= {f"parameters.{name}": getattr(parameters, name) for name in PARAMETERS}
    if parameters.known is not None:
        arrays |= {f"known.{name}": getattr(parameters.known, name) for name in KNOWN}
    arrays["inducing.mean"] = model.posterior.mean
    is_kronecker = isinstance(covariance, KroneckerCovariance)
    if is_kronecker:
        arrays |= {f"inducing.{name}": getattr(covariance, name) for name in KRONECKER}
    else:
        arrays["inducing.covariance"] = covariance.matrix
    if estimator.dtype == "float32":
        arrays |= {f"{name}.factor": getattr(model.posterior, name).factor for name in BASES}
    if features is not None:
        arrays |= {f"features.{name}": getattr(features, name) for name in ("values", "mean", "scale")}
    if draws is not None:
        arrays |= {f"draws.{name}": getattr(draws, name) for name in DRAWS}
        for name in ("input_kernel", "latent_kernel"):
            arrays |= kernel_arrays(getattr(draws, name), f"draws.{name}")
        if draws.noise_spread is not None:
            arrays |= {f"draws.noise_spread.{name}": getattr(draws.noise_spread, name) for name in SPREAD}
        if sparse:
            arrays["draws.inducing_conditions"] = model.drawn.data.inducing_conditions
    document = {
        "settings": {
            "n_latent": estimator.n_latent,
            "noise": estimator.noise,
            "inference": estimator.inference if draws is None else "nuts",
            "output_transform": estimator.output_transform,
            "dtype": estimator.dtype,
        },
        "ids": model.ids,
        "columns": model.columns,
        "output_name": model.output_name,
        "is_grid": model.is_grid,
        "transform": scaling.transform_name,
        "covariance": "kronecker" if is_kronecker else "dense",
        "features": None
        if features is None
        else {"ids": features.ids, "columns": [feature._asdict() for feature in features.features]},
        "sparse": sparse,
    }
    for name in ("input_kernel", "latent_kernel"):
        document[name] = specification(getattr(parameters, name), name)
        arrays |= kernel_arrays(getattr(parameters, name), name)
    plain = {name: np.asarray(values) for name, values in arrays.items()}
    return {**plain, "document": np.asarray(json.dumps(document))}


def kernel_arrays(kernel: Kernel, prefix: str) -> dict[str, Any]:
    if isinstance(kernel, Composite):
        parts = (kernel_arrays(term, f"{prefix}.{place}") for place, term in enumerate(kernel.terms))
        return {name: values for part in parts for name, values in part.items()}
    return {f"{prefix}.{name}": values for name, values in vars(kernel).items() if isinstance(values, jax.Array)}


def specification(kernel: Kernel, prefix: str) -> dict[str, Any]:
    """A kernel in words, with the names of the arrays that hold its numbers."""
    kind = type(kernel).__name__
    if isinstance(kernel, Composite):
        assert kind in COMPOSITES
        terms = [specification(term, f"{prefix}.{place}") for place, term in enumerate(kernel.terms)]
        return {"kind": kind, "terms": terms}
    names = kernel_arrays(kernel, prefix)
    plain = {"columns": kernel.columns} if getattr(kernel, "columns", None) is not None else {}
    return {"kind": kind, "arrays": {name.rpartition(".")[2]: name for name in names}, "plain": plain}


def asked_about(recipe: Recipe, data: Data, position: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Points to ask about: between observations, at their edge and beyond it."""
    inputs = np.asarray([[1.3], [4.9], [9.2], [12.5]]) * np.asarray([1.0, 0.6])[: recipe.n_columns]
    places = [0, 3, 6] if recipe.n_conditions > 1 else [0]
    ids = list(dict.fromkeys(data.conditions))
    ids.sort()
    rows = np.repeat(inputs, len(places), axis=0)
    outputs = outputs_of(recipe, rows, np.tile(position[places], (len(inputs), 1)), rng)
    outputs[1] = np.nan
    if recipe.transform is not None:
        outputs[2], outputs[3] = 0.0, -1.0  # at the end of its range, and beyond
    new, entries = {}, {}
    for name, own in new_conditions(recipe, rng).items():
        entries[name] = {"features": own["features"], "method": "gaussian" if name == "gaussian" else "exact"}
        new |= {f"asked.new.{name}.{part}": own[part] for part in ("inputs", "outputs", "errors") if part in own}
    with_grid = ("grid",) if recipe.form != "long" and recipe.n_conditions > 1 else ()
    kinds = [kind for kind in KINDS if kind in (*recipe.kinds, *with_grid)]
    document = {
        "trained": [ids[place] for place in places],
        "features": new_features(recipe),
        "kinds": kinds,
        "new": entries,
    }
    return {
        "asked": np.asarray(json.dumps(document)),
        "asked.inputs": inputs,
        "asked.outputs": outputs,
        "asked.errors": rng.uniform(0.2, 1, len(outputs)),
        "asked.latents": rng.uniform(-1, 1, (len(inputs), recipe.n_latent)),
        "asked.candidates": np.linspace(0, 10, 9)[:, None] * np.ones(recipe.n_columns),
        **new,
    }


def new_features(recipe: Recipe) -> Any:
    if recipe.features is None:
        return None
    return {"angle": 3.4, "kind": "green"} if recipe.features == "gaps" else {"angle": 3.4, "height": 10.2}


def new_conditions(recipe: Recipe, rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """Conditions to add, from few points and many, with what is known of them."""
    counts = {"one": 1, "three": 3}
    if recipe.asks_all or recipe.errors:
        counts["measured"] = 3
    if recipe.asks_all:
        # As many as there are inducing inputs are padded to the same size as what is left of many.
        counts |= {"six": 6, "many": 40}
    if "gaussian" in recipe.kinds:
        counts["gaussian"] = 3
    features = new_features(recipe)
    known = {"one": None, "three": features, "six": None, "many": features, "gaussian": features}
    if features is not None:
        known["one"] = {**features, "angle": None}
    found = {}
    for number, (name, count) in enumerate(counts.items()):
        inputs = rng.uniform(0, 10, (count, recipe.n_columns))
        position = np.asarray([0.9 * np.cos(number), 0.8 * np.sin(number)])
        found[name] = {
            "inputs": inputs,
            "outputs": outputs_of(recipe, inputs, position, rng),
            "features": known.get(name),
        }
        if name == "measured":
            found[name]["errors"] = rng.uniform(0.5, 2, count)
    return found


# Checking


def disturbed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model with its last digits changed; what is given from outside stays as it is."""
    rng = np.random.default_rng(0)
    groups = ("parameters.", "inducing.", "draws.", "input_kernel.", "latent_kernel.", "data.outputs")

    def changed(name: str, values: np.ndarray) -> np.ndarray:
        if not name.startswith(groups) or values.dtype.kind != "f":
            return values
        size = 1e-14 if values.dtype == np.float64 else 1e-7
        return (values * (1 + size * rng.standard_normal(values.shape))).astype(values.dtype)

    return {name: changed(name, values) for name, values in arrays.items()}


def differences(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each answer, relative to its size."""
    assert list(first) == list(second)

    def one(own: np.ndarray, other: np.ndarray) -> float:
        finite = np.isfinite(own)
        np.testing.assert_array_equal(own[~finite], other[~finite])
        size = np.max(np.abs(own[finite]), initial=np.finfo(float).tiny)
        return float(np.max(np.abs(own[finite] - other[finite]), initial=0.0) / size)

    return {name: one(first[name], second[name]) for name in first}


def worst(found: dict[str, float]) -> str:
    name = max(found, key=lambda each: found[each])
    return f"{found[name]:.0e} ({name})"


def freeze(recipe: Recipe) -> None:
    start = time.perf_counter()
    rng = np.random.default_rng(sum(map(ord, recipe.name)))
    data, position = data_of(recipe, rng)
    estimator = fitted(recipe, data)
    arrays = frozen(estimator, sparse=recipe.draws == "sparse")
    arrays |= asked_about(recipe, data, position, rng)
    asked = asked_of(arrays)
    found = answers(thawed(arrays), asked)
    lost = differences(answers(estimator, asked), found)
    assert max(lost.values()) < 1e-8, worst(lost)
    moved = differences(answers(thawed(disturbed(arrays)), asked), found)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{recipe.name}.npz"
    np.savez_compressed(path, **arrays, **{f"answers.{name}": values for name, values in found.items()})
    print(
        f"{recipe.name}: {len(found)} answers, {path.stat().st_size / 1e3:.0f} kB, "
        f"{time.perf_counter() - start:.0f} s; lost by freezing {worst(lost)}, moved by last digits {worst(moved)}",
        flush=True,
    )
    for name, by in moved.items():
        if by > (1e-8 if recipe.dtype == "float64" else 1e-4):
            print(f"    {by:.0e} {name}", flush=True)


def main() -> None:
    names = sys.argv[1:] or [recipe.name for recipe in RECIPES]
    for recipe in RECIPES:
        if recipe.name in names:
            freeze(recipe)


if __name__ == "__main__":
    main()
