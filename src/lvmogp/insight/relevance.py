"""How much each input, latent dimension and condition feature matters for what a fitted model predicts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.conditions.curves import picked
from lvmogp.conditions.ensemble import chunks
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.model import FittedModel, ensemble_given
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_double_precision
from lvmogp.model.layouts import standardised
from lvmogp.model.process import Process
from lvmogp.typing import Array, Float, HostFloat

_N_POINTS = 4_096
# Processes over which relevances are averaged.
_MOST_DRAWS = 16


def input_names(model: LVMOGPRegressor) -> list[str]:
    """Return the names of the inputs; numbered where the training data had none."""
    trained = fitted_model(model)
    if trained.schema.columns is not None:
        return list(trained.schema.columns)
    return [f"input {q + 1}" for q in range(trained.schema.n_columns)]


def coordinate_names(model: LVMOGPRegressor) -> list[str]:
    """Return the names of all coordinates of a condition: its latents, then those of its features."""
    trained = fitted_model(model)
    features = () if trained.descriptions is None else trained.descriptions.coordinate_names
    return [*(f"latent {number + 1}" for number in range(model.n_latent_)), *features]


class Relevances(NamedTuple):
    """Relevance of each input, of each latent dimension and of each known feature of the conditions, as tables."""

    inputs: pd.DataFrame
    latents: pd.DataFrame
    features: pd.DataFrame


@in_double_precision
def relevances(model: LVMOGPRegressor) -> Relevances:
    """Return the share of the variance of the predictions in which each input, latent and feature has a part.

    Sobol's total effect: half the mean squared change of the predicted mean when one of them alone is taken from
    another observation, divided by the variance of the predicted mean over observations. 0 means that it does not
    matter. Shares add up to more than one where they act together. The coordinates of a category are moved together.
    """
    trained = fitted_model(model)
    effects, inputs = _total_effects(trained), input_names(model)
    features = [] if trained.descriptions is None else [each.name for each in trained.descriptions.features]
    of_inputs, of_latents, of_features = np.split(effects, [len(inputs), len(inputs) + trained.n_latent])
    return Relevances(
        pd.DataFrame({"input": inputs, "relevance": of_inputs}),
        pd.DataFrame({"dimension": np.arange(1, trained.n_latent + 1), "relevance": of_latents}),
        pd.DataFrame({"feature": features, "relevance": of_features}),
    )


def input_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the share of the variance of the predictions in which each input has a part (:func:`relevances`)."""
    return relevances(model).inputs


def latent_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the share of the variance in which each latent dimension has a part (:func:`relevances`)."""
    return relevances(model).latents


def feature_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the share of the variance in which each feature of the conditions has a part (:func:`relevances`)."""
    return relevances(model).features


def _total_effects(trained: FittedModel) -> HostFloat:
    # The average over some processes, each with latents of its own in aligned coordinates.
    ensemble, places = trained.ensemble, _places(trained)
    if ensemble.n_processes > _MOST_DRAWS and trained.observations is not None:
        data = standardised(trained.observations, trained.scaling)
        ensemble = ensemble_given(trained, data, most_draws=_MOST_DRAWS)
    aligned = np.asarray(ensemble.latents @ ensemble.rotations, dtype=float)
    effects = np.zeros(len(places))
    for some, processes in chunks(ensemble):
        for place, number in enumerate(some):
            points = jnp.asarray(_observed_points(trained, aligned[number]), ensemble.dtype)
            found = _effects(picked(processes, place), ensemble.rotations[number], points, places)
            effects += ensemble.weights[number] * found
    return effects


def _effects(
    process: Process, rotation: Float[Array, "Q_H Q_H"], points: Float[Array, "n Q"], places: list[slice]
) -> HostFloat:
    # T_q = ⟨(f(z) − f(z with z_q from z'))²⟩ / 2 Var f over pairs of observations z = (x, h), z' = (x', h'), for each
    # input, latent and feature q.
    rng = np.random.default_rng(0)
    here, other = (points[rng.integers(len(points), size=_N_POINTS)] for _ in range(2))
    values = np.asarray(_means(process, rotation, here), dtype=float)
    variance = np.var(values)
    if variance == 0:
        return np.zeros(len(places))
    moved = (_means(process, rotation, here.at[:, q].set(other[:, q])) for q in places)
    return np.array([np.mean((np.asarray(each, dtype=float) - values) ** 2) / (2 * variance) for each in moved])


@compiled
def _means(process: Process, rotation: Float[Array, "Q_H Q_H"], points: Float[Array, "n Q"]) -> Float[Array, " n"]:
    """Return the mean of f(x, h) at rows (x, g); a point g in aligned coordinates is h = gRᵀ in those of a process."""
    inputs, aligned = points[:, : -len(rotation)], points[:, -len(rotation) :]
    features = process.latents(aligned @ rotation.T)
    return jax.vmap(process.explained.mean)(process.inputs(inputs)[:, None, :], features)[:, 0]


def _places(trained: FittedModel) -> list[slice]:
    # Columns of a point that belong to each input, latent and feature.
    n_single = trained.schema.n_columns + trained.n_latent
    features = () if trained.descriptions is None else trained.descriptions.places
    singles = [slice(q, q + 1) for q in range(n_single)]
    return singles + [slice(n_single + place.start, n_single + place.stop) for place in features]


def _observed_points(trained: FittedModel, latents: HostFloat) -> HostFloat:
    # Inputs beside latents, one row per observation; without the data, inducing inputs beside all conditions.
    if trained.observations is not None:
        inputs = trained.scaling.inputs(trained.observations.inputs)
        return np.hstack([inputs, latents[trained.observations.conditions]])
    inputs = np.asarray(trained.posterior.parameters.inducing_inputs, dtype=float)
    return np.hstack([np.repeat(inputs, len(latents), axis=0), np.tile(latents, (len(inputs), 1))])
