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
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int

_N_PAIRS = 4_096
# Processes over which relevances are averaged.
_MOST_DRAWS = 16


def input_names(model: LVMOGPRegressor) -> list[str]:
    """Return the names of the inputs; numbered where the training data had none."""
    return list(fitted_model(model).schema.input_names)


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
    trained, inputs = fitted_model(model), input_names(model)
    features = [] if trained.condition_features is None else [each.name for each in trained.condition_features.features]
    named = {"input": inputs, "dimension": np.arange(1, trained.n_latent + 1), "feature": features}
    effects = np.split(_total_effects(trained), [len(inputs), len(inputs) + trained.n_latent])
    tables = zip(named.items(), effects, strict=True)
    return Relevances(*(pd.DataFrame({kind: names, "relevance": own}) for (kind, names), own in tables))


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
    """Return T_q = ⟨(f(z) − f(z with z_q from z'))²⟩ / 2 Var f for each input, latent and feature q.

    The mean is over pairs of observations z = (x, h) and z' = (x', h'), and over some processes, each with latents of
    its own. Coordinates are moved as they are aligned: h = gRᵀ is a latent g in the coordinates of a process.
    """
    ensemble = trained.ensemble
    if ensemble.n_processes > _MOST_DRAWS and trained.observations is not None:
        data = standardised(trained.observations, trained.scaling)
        ensemble = ensemble_given(trained, data, most_draws=_MOST_DRAWS)
    latents, rotations = np.asarray(ensemble.latents, dtype=float), np.asarray(ensemble.rotations, dtype=float)
    inputs, conditions = _observed(trained)
    pairs, moved = np.random.default_rng(0).integers(len(inputs), size=(2, _N_PAIRS)), _moved(trained)
    effects = np.zeros(len(moved) - 1)
    for some, processes in chunks(ensemble):
        for place, number in enumerate(some):
            aligned = latents[number] @ rotations[number]
            here, other = (np.hstack([inputs[rows], aligned[conditions[rows]]]) for rows in pairs)
            points = np.where(moved[:, None], other, here)
            points[..., inputs.shape[1] :] @= rotations[number].T
            process, *sets = (jnp.asarray(each) for each in (np.array(place), *points.astype(ensemble.dtype)))
            values = np.array([_means(processes, process, each) for each in sets], dtype=float)
            variance = np.var(values[0])
            if variance > 0:
                effects += ensemble.weights[number] * np.mean((values[1:] - values[0]) ** 2, axis=1) / (2 * variance)
    return effects


@compiled
def _means(processes: Process, place: Int[Array, ""], points: Float[Array, "n Q"]) -> Float[Array, " n"]:
    """Return the mean of f(x, h) at rows (x, h) under one of the processes."""
    process = picked(processes, place)
    inputs, latents = jnp.split(points, [process.inputs.points.shape[1]], axis=1)
    return jax.vmap(process.explained.mean)(process.inputs(inputs)[:, None, :], process.latents(latents))[:, 0]


def _observed(trained: FittedModel) -> tuple[HostFloat, HostInt]:
    # Inputs and conditions of all observations; without the data, inducing inputs with each of the conditions.
    if trained.observations is not None:
        return trained.scaling.inputs(trained.observations.inputs), trained.observations.conditions
    inputs, numbers = np.asarray(trained.posterior.parameters.inducing_inputs), np.arange(len(trained.ids))
    return np.repeat(inputs, len(numbers), axis=0), np.tile(numbers, len(inputs))


def _moved(trained: FittedModel) -> np.ndarray:
    # Which coordinates of a point are moved: none, then those of each input, latent and feature.
    places = () if trained.condition_features is None else trained.condition_features.places
    sizes = [1] * (trained.schema.n_columns + trained.n_latent) + [place.stop - place.start for place in places]
    return np.repeat(np.arange(len(sizes)), sizes) == np.arange(-1, len(sizes))[:, None]
