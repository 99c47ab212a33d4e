"""Draws from the posterior where conditions have features and measurements known errors."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import references
from drawn_models import with_draws
from scipy.stats import multivariate_normal
from small_models import MISSING, described_parameters, grid_case, long_case

from lvmogp import LVMOGPRegressor
from lvmogp.algebra.constraints import split
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts.chains import SamplerSettings, Target, run_chains
from lvmogp.inference.nuts.gibbs import log_likelihoods_of_scattered, log_likelihoods_on_grid, redrawn_latents
from lvmogp.inference.nuts.likelihoods import fitted_values, log_likelihood
from lvmogp.inference.nuts.parameters import chain_parameters
from lvmogp.inference.nuts.priors import Priors
from lvmogp.inference.nuts.sampling import sample_posterior
from lvmogp.model.layouts import GridData, SparseData, scattered, standardised

_log_likelihood, _fitted_values = compiled(log_likelihood), compiled(fitted_values)


def small_unknowns():
    parameters = described_parameters()
    return chain_parameters(parameters, parameters.latent_mean)


def coordinates_of(unknowns):
    """Latents and features, the missing ones put in by a loop."""
    described = unknowns.described
    together = np.hstack([unknowns.latents, described.values])
    for place, (condition, coordinate) in enumerate(zip(*MISSING, strict=True)):
        together[condition, unknowns.latents.shape[1] + coordinate] = described.missing[place]
    return together


def measured_case():
    """Long data with known errors, and the variances of these one observation after the other."""
    data = long_case().data
    variances = np.random.default_rng(6).uniform(0.0, 0.3, data.present.shape)
    return dataclasses.replace(data, error_variances=jnp.asarray(variances)), variances[np.asarray(data.present) > 0]


def measured_grid():
    """A grid whose measurements have all the same error."""
    data = grid_case().data
    return GridData(data.inputs, data.outputs, jnp.asarray(0.2))


def dense(unknowns, observations, errors):
    """Covariance of the function at all observations, their noise and the outputs."""
    coordinates = coordinates_of(unknowns)
    condition = np.repeat(np.arange(len(coordinates)), [len(outputs) for _, outputs in observations])
    inputs = np.concatenate([inputs for inputs, _ in observations])
    signal = references.covariance(unknowns.latent_kernel, coordinates[condition], coordinates[condition])
    signal = signal * references.covariance(unknowns.input_kernel, inputs, inputs)
    noise = np.broadcast_to(np.asarray(unknowns.noise.variance), len(coordinates))[condition] + errors
    return signal, noise, np.concatenate([outputs for _, outputs in observations])


def test_coordinates_of_features_follow_the_latents_and_measurement_errors_add_to_the_noise():
    unknowns = small_unknowns()
    for case, errors, data in (
        (grid_case(), 0.0, grid_case().data),
        (grid_case(), 0.2, measured_grid()),
        (long_case(), measured_case()[1], scattered(measured_case()[0])),
    ):
        signal, noise, outputs = dense(unknowns, case.observations, errors)
        expected = multivariate_normal(np.zeros(len(outputs)), signal + np.diag(noise)).logpdf(outputs)
        np.testing.assert_allclose(_log_likelihood(unknowns, data), expected, rtol=1e-11)


def test_the_sparse_likelihood_with_all_points_inducing_knows_features_and_errors():
    unknowns, (data, errors) = small_unknowns(), measured_case()
    points = np.unique(np.concatenate([inputs for inputs, _ in long_case().observations]), axis=0)
    sparse = SparseData(data, jnp.asarray(points), jnp.arange(len(unknowns.latents)))
    signal, noise, outputs = dense(unknowns, long_case().observations, errors)
    expected = multivariate_normal(np.zeros(len(outputs)), signal + np.diag(noise)).logpdf(outputs)
    np.testing.assert_allclose(_log_likelihood(unknowns, sparse), expected, rtol=1e-5)
    fitted = signal @ np.linalg.solve(signal + np.diag(noise), outputs)
    present = np.asarray(data.present) > 0
    np.testing.assert_allclose(np.asarray(_fitted_values(unknowns, sparse))[present], fitted, rtol=1e-4, atol=1e-5)
    grid = measured_grid()
    signal, noise, outputs = dense(unknowns, grid_case().observations, 0.2)
    by_condition = (signal @ np.linalg.solve(signal + np.diag(noise), outputs)).reshape(grid.n_conditions, -1)
    np.testing.assert_allclose(_fitted_values(unknowns, grid), by_condition.T, rtol=1e-9)
    rows = scattered(data)
    found = np.asarray(_fitted_values(unknowns, rows))[np.asarray(rows.present) > 0]
    np.testing.assert_allclose(found, fitted, rtol=1e-9)


@pytest.mark.parametrize("form", ["grid", "scattered"])
def test_a_condition_jumps_with_its_features(rng, form):
    unknowns = small_unknowns()
    latents = rng.normal(size=(4, 1))
    places = jnp.asarray(np.hstack([latents, np.tile(coordinates_of(unknowns)[1, 1:], (4, 1))]))
    data = measured_grid() if form == "grid" else scattered(measured_case()[0])
    if form == "grid":
        values, basis = jnp.linalg.eigh(references.covariance(unknowns.input_kernel, data.inputs, data.inputs))
        noise = jnp.full(data.n_conditions, unknowns.noise.variance[0] + 0.2)
        found = log_likelihoods_on_grid(unknowns, noise, values, basis.T @ data.outputs, jnp.asarray(1), places)
    else:
        found = log_likelihoods_of_scattered(unknowns, data, jnp.asarray(1), places)
    expected = np.asarray(
        [
            log_likelihood(eqx.tree_at(lambda tree: tree.latents, unknowns, unknowns.latents.at[1].set(own)), data)
            for own in latents
        ]
    )
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-8, atol=1e-8)
    moved = redrawn_latents(unknowns, data, jnp.tile(jnp.arange(4), 20), jax.random.key(0))
    assert moved.shape == unknowns.latents.shape
    assert np.all(np.asarray(moved) != np.asarray(unknowns.latents))


def test_without_observations_missing_features_come_from_the_prior_and_known_ones_stay():
    unknowns = small_unknowns()
    data = scattered(long_case().data)
    nothing = eqx.tree_at(
        lambda tree: (tree.outputs, tree.present), data, (jnp.zeros_like(data.outputs), jnp.zeros_like(data.present))
    )
    vector, fixed_leaves, structure = split(unknowns)
    target = Target(nothing, fixed_leaves, structure, Priors().checked())
    starts = jnp.tile(vector, (2, 1))
    chains, ended = run_chains(target, starts, jnp.ones_like(starts), SamplerSettings(2, 150, 500, 0))
    assert ended
    points = jax.vmap(target.parameters)(jnp.concatenate([chain.trace.position for chain in chains.values()]))
    np.testing.assert_allclose(points.described.missing.mean(axis=0), 0, atol=0.15)
    np.testing.assert_allclose(points.described.missing.std(axis=0), 1, atol=0.12)
    known = np.ones(points.described.values.shape[1:], dtype=bool)
    known[MISSING] = False
    coordinates = np.asarray(jax.vmap(lambda point: point.described.coordinates)(points))
    np.testing.assert_array_equal(np.ptp(coordinates[:, known], axis=0), 0.0)


# The estimator


def lines(n_conditions=6, n_each=5):
    """Lines whose slope is a feature, missing once, and whose offset is latent; measured with errors that are known."""
    rng = np.random.default_rng(42)
    slope, offset = np.linspace(-1, 1, n_conditions), rng.normal(size=n_conditions)
    numbers = np.repeat(np.arange(n_conditions), n_each)
    x = rng.uniform(-1, 1, len(numbers))
    errors = rng.uniform(0.02, 0.3, len(numbers))
    y = slope[numbers] * x + offset[numbers] + errors * rng.standard_normal(len(numbers))
    table = pd.DataFrame({"slope": np.where(np.arange(n_conditions) == 3, np.nan, slope)}, index=range(n_conditions))
    return x[:, None], y, numbers, table, errors


@pytest.fixture(scope="module")
def drawn():
    """A model with few draws of a short chain: what they are matters little, what is made of them does."""
    X, y, numbers, table, errors = lines()
    model = LVMOGPRegressor(
        1, inference="nuts", n_chains=2, n_warmup=30, n_draws=4, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=6
    )
    return model.fit(X, y, conditions=numbers, condition_features=table, y_std=errors)


def test_features_are_not_turned_when_draws_are_aligned(drawn):
    draws, known = drawn.model_.draws, drawn.model_.posterior.parameters.known
    aligned = np.asarray(drawn.model_.ensemble.latents @ drawn.model_.ensemble.rotations)
    np.testing.assert_array_equal(aligned[:, :, 1], np.asarray(draws.latents)[:, :, 1])
    others = np.arange(6) != 3
    np.testing.assert_array_equal(aligned[:, others, 1], np.tile(np.asarray(known.values)[others, 0], (8, 1)))
    assert np.ptp(aligned[:, 3, 1]) > 0.01  # the missing one was drawn
    np.testing.assert_array_equal(np.abs(aligned[:, :, 0]), np.abs(np.asarray(draws.latents)[:, :, 0]))


@pytest.mark.long
def test_without_latents_only_hyperparameters_are_drawn():
    X, y, numbers, table, errors = lines()
    model = LVMOGPRegressor(0, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=6)
    model.fit(X, y, conditions=numbers, condition_features=table.fillna(0.2), y_std=errors)
    trained = model.model_
    data = standardised(trained.observations, trained.scaling)
    settings = SamplerSettings(2, 30, 5, 0)
    with jax.enable_x64(True):
        draws, account = sample_posterior([trained.fit.outcome.parameters], data, Priors().checked(), settings)
    assert account.completed
    assert np.ptp(np.asarray(draws.latents), axis=0).max() == 0.0
    assert np.ptp(np.asarray(draws.noise_variance)) > 0
    model.model_ = with_draws(trained, draws)
    mean = model.predict(X, "new", condition_features={"new": {"slope": 0.4}})
    assert np.all(np.isfinite(mean))
    at = model.predict(X, 2)
    np.testing.assert_allclose(at, model.predict(X, "like 2", condition_features={"like 2": table.loc[2]}), rtol=1e-9)
