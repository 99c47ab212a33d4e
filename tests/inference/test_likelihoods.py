"""Likelihoods given latents = normal densities with all matrices formed; gradients = finite differences."""

import dataclasses
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from scipy.stats import multivariate_normal
from small_models import MISSING, PER_CONDITION, D, described_parameters, grid_case, long_case, number, small_parameters

from lvmogp.algebra.constraints import join, split
from lvmogp.ground.compiling import compiled
from lvmogp.inference.nuts import likelihoods
from lvmogp.inference.nuts.parameters import chain_parameters
from lvmogp.kernels.covariances import RBF, Constant, Linear, Matern52, Periodic
from lvmogp.model.layouts import GridData, SparseData, scattered
from lvmogp.model.parameters import plain_kernels

log_likelihood, fitted_values = compiled(likelihoods.log_likelihood), compiled(likelihoods.fitted_values)
redraw = compiled(likelihoods.redrawn_latents)
NOISES = {"shared noise": {}, "noise per condition": {"noise": PER_CONDITION}}
# Conditions with features, of which some are missing, and measurements with errors that are known.
MEASURED = "features and known errors"


@cache
def point_of(kind):
    parameters = described_parameters() if kind == MEASURED else small_parameters(2, **NOISES[kind])
    return chain_parameters(parameters, parameters.latent_mean)


@cache
def data_of(form, kind):
    """Data as a bound has them, with variances of their errors one observation after the other."""
    data, errors = (grid_case() if form == "grid" else long_case()).data, 0.0
    if kind == MEASURED and form == "grid":
        data, errors = GridData(data.inputs, data.outputs, jnp.asarray(0.2)), 0.2
    elif kind == MEASURED:
        variances = np.random.default_rng(6).uniform(0.0, 0.3, data.present.shape)
        data = dataclasses.replace(data, error_variances=jnp.asarray(variances))
        errors = variances[np.asarray(data.present) > 0]
    return data, errors


def coordinates_of(point):
    """Latents and features, the missing ones put in by a loop."""
    if point.known is None:
        return np.asarray(point.latents)
    together = np.hstack([point.latents, point.known.values])
    for place, (condition, coordinate) in enumerate(zip(*MISSING, strict=True)):
        together[condition, point.latents.shape[1] + coordinate] = point.known.missing_mean[place]
    return together


def dense(form, kind):
    """Log density of all outputs, one observation after the other, and the posterior mean of the function there."""
    point, errors = point_of(kind), data_of(form, kind)[1]
    observations = (grid_case() if form == "grid" else long_case()).observations
    coordinates = coordinates_of(point)
    condition = np.repeat(np.arange(D), [len(outputs) for _, outputs in observations])
    inputs, outputs = (np.concatenate(parts) for parts in zip(*observations, strict=True))
    among = references.covariance(point.kernels.of_latents[0], coordinates[condition], coordinates[condition])
    signal = among * references.covariance(point.kernels.of_inputs[0], inputs, inputs)
    total = signal + np.diag(np.broadcast_to(np.asarray(point.noise.variance), D)[condition] + errors)
    return multivariate_normal(np.zeros(len(outputs)), total).logpdf(outputs), signal @ np.linalg.solve(total, outputs)


def in_order(values, data):
    """Values in the layout of the outputs, one observation after the other."""
    values = np.asarray(values)
    return values.T.ravel() if isinstance(data, GridData) else values[np.asarray(data.present) > 0]


@pytest.mark.parametrize("form", ["grid", "scattered"])
@pytest.mark.parametrize("kind", [*NOISES, MEASURED])
def test_observations_are_one_multivariate_normal(form, kind):
    data, _ = data_of(form, kind)
    if form == "scattered":
        data = scattered(data)
        assert len(data.outputs) > data.present.sum() == 18  # some places are empty
    expected, fitted = dense(form, kind)
    rtol = 1e-11 if kind == MEASURED else 1e-12
    np.testing.assert_allclose(log_likelihood(point_of(kind), data), expected, rtol=rtol)
    np.testing.assert_allclose(in_order(fitted_values(point_of(kind), data), data), fitted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("form", "kind"), [("grid", "noise per condition"), ("long", MEASURED)])
def test_sparse_likelihoods_are_exact_with_all_points_as_inducing_points(form, kind):
    (data, _), point = data_of(form, kind), point_of(kind)
    points = np.unique(np.asarray(data.inputs).reshape(-1, 2), axis=0)
    sparse = SparseData(data, jnp.asarray(points), jnp.arange(D))
    exact, fitted = dense(form, kind)
    # Up to the jitter of the gram matrices of the inducing points.
    likelihood, values = (1e-5, {"rtol": 1e-4, "atol": 1e-5}) if kind == MEASURED else (1e-4, {"atol": 1e-4})
    np.testing.assert_allclose(log_likelihood(point, sparse), exact, rtol=likelihood)
    np.testing.assert_allclose(in_order(fitted_values(point, sparse), data), fitted, **values)


@pytest.mark.parametrize("case", [grid_case, long_case], ids=["grid", "long"])
def test_sparse_likelihoods_are_the_collapsed_bound_as_variances_vanish(case):
    data, observations = case()
    parameters, point, chosen = (
        small_parameters(2, noise=PER_CONDITION),
        point_of("noise per condition"),
        jnp.asarray([0, 1, 3]),
    )
    certain = dataclasses.replace(
        parameters,
        inducing_latents=parameters.latent_mean[chosen],
        latent_variance=jnp.full_like(parameters.latent_variance, 1e-12),
        kernels=point.kernels,
    )
    bound = references.dense_collapsed(certain, observations) + references.latent_kl(certain)
    sparse = SparseData(data, parameters.inducing_inputs, chosen)
    np.testing.assert_allclose(log_likelihood(point, sparse), bound, rtol=1e-5)


@pytest.mark.parametrize("kind", ["grid", "scattered", "sparse"])
def test_gradients_are_finite_differences(kind):
    point, long = point_of("noise per condition"), long_case().data
    data = scattered(long)
    if kind == "sparse":
        data = SparseData(long, small_parameters(2).inducing_inputs, jnp.asarray([0, 2, 3]))
    if kind == "grid":
        # Inputs twice and two conditions at the same place: K_X and K_H both have eigenvalues zero.
        inputs, outputs = grid_case().data.inputs, grid_case().data.outputs
        data = GridData(jnp.concatenate([inputs, inputs[:3]]), jnp.concatenate([outputs, outputs[2:5]]))
        point = eqx.tree_at(lambda tree: tree.latents, point, point.latents.at[1].set(point.latents[0]))
    vector, fixed_leaves, structure = split(point)
    value = jax.jit(lambda vector: likelihoods.log_likelihood(join(vector, fixed_leaves, structure), data))
    steps = 1e-5 * jnp.eye(len(vector))
    slopes = [(value(vector + step) - value(vector - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(jax.jit(jax.grad(value))(vector), slopes, rtol=2e-5, atol=2e-6)


def redrawn(point, data):
    """Latents after each condition could move often enough for one that can to do so."""
    return np.asarray(redraw(point, data, jnp.tile(jnp.arange(D), 40), jax.random.key(0), number(1.0)))


@pytest.mark.parametrize("form", ["grid", "scattered"])
@pytest.mark.parametrize("kind", [*NOISES, MEASURED])
def test_the_likelihood_of_one_condition_is_that_of_all_but_for_a_constant(rng, kind, form):
    (data, errors), point = data_of(form, kind), point_of(kind)
    n_latent = point.latents.shape[1]
    latents = rng.normal(size=(4, n_latent))
    places = jnp.asarray(np.hstack([latents, np.tile(coordinates_of(point)[2, n_latent:], (4, 1))]))
    if form == "grid":
        values, basis = jnp.linalg.eigh(references.covariance(point.kernels.of_inputs[0], data.inputs, data.inputs))
        noise = point.noise_per_condition + errors
        observed = {"noise": noise, "input_values": values, "rotated": basis.T @ data.outputs}
        found = likelihoods.log_likelihoods_on_grid(point, jnp.asarray(2), places, **observed)
    else:
        data = scattered(data)
        found = likelihoods.log_likelihoods_of_scattered(point, jnp.asarray(2), places, data=data)

    def moved_to(own):
        return eqx.tree_at(lambda tree: tree.latents, point, point.latents.at[2].set(own))

    expected = np.asarray([log_likelihood(moved_to(own), data) for own in latents])
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-9, atol=1e-9)
    if kind == MEASURED:
        assert not np.any(redrawn(point, data) == np.asarray(point.latents))


@pytest.mark.parametrize("most", [2, 0], ids=["some", "all"])
def test_a_condition_with_too_many_observations_stays_where_it_is(monkeypatch, most):
    monkeypatch.setattr("lvmogp.model.layouts._MOST_PLACES", most)
    point, data = point_of("shared noise"), scattered(long_case().data)
    counts = np.bincount(np.asarray(data.conditions)[np.asarray(data.present) > 0], minlength=D)
    assert (counts > most).sum() == (D if most == 0 else 3)
    stayed = np.all(redrawn(point, data) == np.asarray(point.latents), axis=1)
    np.testing.assert_array_equal(stayed, counts > most)


@pytest.mark.parametrize(
    ("kernel", "scaled"),
    [
        (RBF(number(1.0), number(2.0)), 4.0),
        (RBF(number(1.0), number(2.0)) + Constant(number(3.0)), [4.0, 6.0]),
        (RBF(number(1.0), number(2.0), fixed="variance") * Matern52(number(1.0), number(3.0)), [2.0, 6.0]),
        (RBF(number(1.0), number(2.0), fixed="variance") + Linear(jnp.ones(2)), None),
    ],
)
def test_the_variance_of_a_stationary_latent_kernel_moves_to_the_input_kernel(kernel, scaled):
    latent_kernel = Periodic(number(3.0), number(1.0), number(2.0))
    parameters = dataclasses.replace(small_parameters(2), kernels=plain_kernels(kernel, latent_kernel))
    point = chain_parameters(parameters, parameters.latent_mean)
    if scaled is None:  # held by the user, so the other one is not redundant
        assert eqx.tree_equal(point.kernels.of_inputs[0], kernel)
        assert eqx.tree_equal(point.kernels.of_latents[0], latent_kernel)
    else:
        terms = getattr(point.kernels.of_inputs[0], "terms", [point.kernels.of_inputs[0]])
        assert [float(term.variance) for term in terms] == np.atleast_1d(scaled).tolist()
        assert point.kernels.of_latents[0].variance == 1
        free = split(parameters.kernels.of_inputs[0])[0]
        assert len(split(point)[0]) == len(free) + 1 + 2 * D + 1  # less that variance
    points = np.asarray(parameters.latent_mean)
    product = [
        references.covariance(each.kernels.of_inputs[0], points, points)
        * references.covariance(each.kernels.of_latents[0], points, points)
        for each in (parameters, point)
    ]
    np.testing.assert_allclose(product[1], product[0], rtol=1e-12)
