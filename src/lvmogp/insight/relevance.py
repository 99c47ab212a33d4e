"""How much each input, latent dimension and condition feature matters for what a fitted model predicts."""

from collections.abc import Callable
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.conditions.drawn_model import chunks, drawn_model
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.model import TrainedModel
from lvmogp.ground.compiling import compiled
from lvmogp.model.draws import Draws, thinned
from lvmogp.model.layouts import standardised
from lvmogp.model.posterior import Posterior
from lvmogp.model.process import Conditional
from lvmogp.typing import Array, Float, HostFloat

_N_POINTS = 4_096
# Posterior draws over which relevances are averaged.
_MOST_DRAWS = 16


def input_names(model: LVMOGPRegressor) -> list[str]:
    """Names of the inputs; numbered where the training data had none."""
    trained = fitted_model(model)
    if trained.columns is not None:
        return list(trained.columns)
    return [f"input {q + 1}" for q in range(trained.n_columns)]


def coordinate_names(model: LVMOGPRegressor) -> list[str]:
    """Names of all coordinates of a condition: its latents, then those of its features."""
    trained = fitted_model(model)
    features = () if trained.descriptions is None else trained.descriptions.coordinate_names
    return [*(f"latent {number + 1}" for number in range(model.n_latent_)), *features]


def input_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Share of the variance of the predictions in which each input has a part.

    Sobol's total effect: half the mean squared change of the predicted mean when one input alone is taken from
    another observation, divided by the variance of the predicted mean over observations. 0 means that the input
    does not matter. Shares add up to more than one where inputs act together.
    """
    trained = fitted_model(model)
    found = _total_effects(trained)[: trained.n_columns]
    return pd.DataFrame({"input": input_names(model), "relevance": found})


def latent_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Share of the variance of the predictions in which each latent dimension has a part, as for inputs."""
    trained = fitted_model(model)
    n_latent = trained.posterior.parameters.latent_mean.shape[1]
    found = _total_effects(trained)[trained.n_columns :][:n_latent]
    return pd.DataFrame({"dimension": np.arange(1, n_latent + 1), "relevance": found})


def feature_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Share of the variance of the predictions in which each known feature of the conditions has a part, as for inputs.

    The coordinates of a category are moved together.
    """
    trained = fitted_model(model)
    names = [] if trained.descriptions is None else [feature.name for feature in trained.descriptions.features]
    found = _total_effects(trained)[trained.n_columns + trained.posterior.parameters.latent_mean.shape[1] :]
    return pd.DataFrame({"feature": names, "relevance": found})


def _total_effects(trained: TrainedModel) -> HostFloat:
    with jax.enable_x64(True):
        if trained.draws is not None:
            return _effects_over_draws(trained, trained.draws)
        latents = np.asarray(trained.posterior.parameters.latents.mean, dtype=float)
        points = _observed_points(trained, latents)
        return _effects(points, lambda points: _means(trained, points), _places(trained))


def _effects(points: HostFloat, means: Callable[[HostFloat], HostFloat], places: list[slice]) -> HostFloat:
    # T_q = ⟨(f(z) − f(z with z_q from z'))²⟩ / 2 Var f over pairs of observations z = (x, h), z' = (x', h'), for each
    # input, latent and feature q.
    rng = np.random.default_rng(0)
    here, other = (points[rng.integers(len(points), size=_N_POINTS)] for _ in range(2))
    values = means(here)
    variance = np.var(values)
    if variance == 0:
        return np.zeros(len(places))
    effects: list[float] = []
    for q in places:
        moved = here.copy()
        moved[:, q] = other[:, q]
        effects.append(float(np.mean((means(moved) - values) ** 2) / (2 * variance)))
    return np.asarray(effects)


def _places(trained: TrainedModel) -> list[slice]:
    # Columns of a point that belong to each input, latent and feature.
    n_single = trained.n_columns + trained.posterior.parameters.latent_mean.shape[1]
    features = () if trained.descriptions is None else trained.descriptions.places
    singles = [slice(q, q + 1) for q in range(n_single)]
    return singles + [slice(n_single + place.start, n_single + place.stop) for place in features]


def _effects_over_draws(trained: TrainedModel, draws: Draws) -> HostFloat:
    # The average over some draws, each with latents of its own in aligned coordinates.
    assert trained.observations is not None  # draws are conditioned on them
    data = standardised(trained.observations, trained.scaling)
    drawn = drawn_model(thinned(draws, _MOST_DRAWS), data, trained.posterior.parameters)
    aligned, weights = np.asarray(drawn.aligned), drawn.weights
    places = _places(trained)
    effects = np.zeros(len(places))
    for numbers, conditionals in chunks(drawn):
        for place, number in enumerate(numbers):
            process = jax.tree.map(itemgetter(place), conditionals)
            turn = np.asarray(drawn.rotations[number])

            def means(points: HostFloat, process: Conditional = process, turn: HostFloat = turn) -> HostFloat:
                inputs, latents = points[:, : trained.n_columns], points[:, trained.n_columns :] @ turn.T
                return np.asarray(_mean_under_draw(process, jnp.asarray(inputs), jnp.asarray(latents)))

            effects += weights[number] * _effects(_observed_points(trained, aligned[number]), means, places)
    return effects


def _observed_points(trained: TrainedModel, latents: HostFloat) -> HostFloat:
    # Inputs beside latents, a row an observation; without the data, inducing inputs beside all conditions.
    if trained.observations is not None:
        inputs = trained.scaling.inputs(trained.observations.inputs)
        return np.hstack([inputs, latents[trained.observations.conditions]])
    inputs = np.asarray(trained.posterior.parameters.inducing_inputs, dtype=float)
    return np.hstack([np.repeat(inputs, len(latents), axis=0), np.tile(latents, (len(inputs), 1))])


def _means(trained: TrainedModel, points: HostFloat) -> HostFloat:
    n_columns, dtype = trained.n_columns, trained.posterior.mean.dtype
    inputs, latents = jnp.asarray(points[:, :n_columns], dtype), jnp.asarray(points[:, n_columns:], dtype)
    return np.asarray(_mean_at(trained.posterior, inputs, latents), dtype=float)


@compiled
def _mean_at(model: Posterior, inputs: Float[Array, "n Q_X"], latents: Float[Array, "n Q_H"]) -> Float[Array, " n"]:
    """f(x, h) = aᵀ M c with a = L_X⁻¹k_u(x) and c = L_H⁻¹k_u(h)."""
    return jnp.sum((model.input_basis.features(inputs) @ model.mean) * model.latent_basis.features(latents), axis=1)


@compiled
def _mean_under_draw(
    process: Conditional, inputs: Float[Array, "n Q_X"], latents: Float[Array, "n Q_H"]
) -> Float[Array, " n"]:
    """f(x, h) given one draw and the data."""
    features = (process.input_features(inputs)[:, None, :], process.latent_features(latents))
    return jax.vmap(process.mean)(*features)[:, 0]
