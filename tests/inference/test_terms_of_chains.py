"""Fits and chains of models with several terms and own curves: likelihoods against dense Gaussians, known truths."""

import dataclasses
import warnings
from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import references
from dense_terms import covariance_of_rows, exact, quadratic
from drawn_models import fitted
from numpy.testing import assert_allclose
from papers_model import PapersModel

from lvmogp.inference.nuts import likelihoods
from lvmogp.inference.nuts.parameters import Priors, chain_parameters, log_prior
from lvmogp.kernels.covariances import RBF, Linear
from lvmogp.model.layouts import SparseData, scattered, standardised
from lvmogp.model.parameters import Term

FORMS = {"grid": "shared", "long": "per-condition"}


@cache
def setting(form):
    """A point of a chain, its data in long form, and one pair of inputs and outputs for each condition."""
    model = fitted(form, answers="fit", noise=FORMS[form], own=True).model_
    parameters, data = model.posterior.parameters, standardised(model.observations, model.scaling)
    inputs, outputs = model.scaling.inputs(model.observations.inputs), model.scaling.outputs(model.observations.outputs)
    # A grid has its inputs in order.
    order = np.argsort(inputs[:, 0]) if form == "grid" else np.arange(len(inputs))
    places = [order[model.observations.conditions[order] == d] for d in range(5)]
    point = chain_parameters(parameters, parameters.latent_mean)
    long = data.as_long() if form == "grid" else data
    return point, long, [(inputs[own], outputs[own]) for own in places]


def dense(point, observations):
    latents, own, noise = (
        np.asarray(each) for each in (point.latents, point.own_per_condition, point.noise_per_condition)
    )
    return exact(point.kernels, latents, own, noise, observations)


@pytest.mark.parametrize("form", FORMS)
def test_likelihoods_are_those_of_dense_gaussians(form):
    point, data, observations = setting(form)
    process, flat = dense(point, observations), scattered(data)
    assert_allclose(likelihoods.log_likelihood(point, flat), process.log_likelihood, rtol=1e-10)
    signal = covariance_of_rows(point.kernels, process.data, process.data)
    expected = signal @ np.linalg.solve(process.total, process.y)  # of shared, latent and own curves together
    conditions, present = np.asarray(flat.conditions), np.asarray(flat.present) > 0
    order = np.concatenate([np.flatnonzero((conditions == d) & present) for d in range(5)])
    assert_allclose(np.asarray(likelihoods.fitted_values(point, flat))[order], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_sparse_likelihoods_are_bounds_for_latents_that_are_known(form):
    point, data, observations = setting(form)
    sparse = SparseData(data, jnp.array([[-1.3], [0.0], [0.9]]), jnp.array([0, 2, 4]))
    given = (point.kernels, point.coordinates, point.noise.variance, point.own_per_condition)
    constant, linear, gram = quadratic(sparse.parameters(*given), observations)
    precision = np.eye(len(linear)) + gram
    expected = constant - references.log_det(precision) / 2 + linear @ np.linalg.solve(precision, linear) / 2
    found = likelihoods.log_likelihood(point, sparse)
    assert_allclose(found, expected, rtol=1e-7)
    assert found < dense(point, observations).log_likelihood


@pytest.mark.parametrize("form", FORMS)
def test_a_condition_given_the_others_is_a_difference_of_likelihoods(form):
    point, data, observations = setting(form)
    candidates = np.random.default_rng(3).normal(size=(4, 1))
    for number in (0, 2):
        flat = scattered(data)
        found = likelihoods.log_likelihoods_of_scattered(point, jnp.asarray(number), jnp.asarray(candidates), data=flat)
        heights = []
        for candidate in candidates:
            moved = dataclasses.replace(point, latents=point.latents.at[number].set(candidate))
            heights.append(dense(moved, observations).log_likelihood)
        empty = [(x[:0], y[:0]) if d == number else (x, y) for d, (x, y) in enumerate(observations)]
        # Places that are left empty are observations of nothing with unit noise.
        n_empty = flat.places.shape[1] - len(observations[number][1])
        conditional = np.array(heights) - dense(point, empty).log_likelihood
        assert_allclose(found, conditional - n_empty * np.log(2 * np.pi) / 2, rtol=1e-8)


def test_the_prior_of_own_variances_is_that_of_their_deviations():
    """log ρ_d² = spread ε_d, both known before any data."""
    point, priors = setting("long")[0], Priors()
    median, spread = priors.noise_spread
    expected = 0.0
    for each in np.asarray(point.own.deviations):
        expected -= each**2 / 2
    expected -= (np.log(float(point.own.spread) / median) / spread) ** 2 / 2 + np.log(spread)
    assert_allclose(
        log_prior(point, priors) - log_prior(dataclasses.replace(point, own=None), priors), expected, rtol=1e-9
    )
    assert_allclose(point.own_per_condition, [1.2, 0.6, 0.9, 1.7, 0.8], rtol=1e-12)


@pytest.mark.parametrize("part", ["latents", "shared", "own"])
def test_a_part_may_all_but_vanish(part):
    point, priors = setting("long")[0], Priors()
    median, spread = priors.part_variance
    place = {
        "latents": lambda point: point.kernels.terms[0].input_kernel.variance,
        "shared": lambda point: point.kernels.terms[-1].input_kernel.variance,
        "own": lambda point: point.kernels.own.variance,
    }[part]

    def log_density(variance):
        return log_prior(eqx.tree_at(place, point, jnp.asarray(variance)), priors)

    scores = (np.log(np.array([1e-3, 1.0])) - np.log(median)) / spread
    assert_allclose(log_density(1e-3) - log_density(1.0), (scores[1] ** 2 - scores[0] ** 2) / 2, rtol=1e-8)
    assert log_density(1.0) - log_density(1e-3) < 2


def test_of_a_product_with_proportions_one_variance_is_free():
    """k_H k_X stays the same when one is doubled and the other halved."""
    parameters = fitted("long", answers="fit", noise="per-condition", own=True).model_.posterior.parameters
    term = Term(RBF(jnp.array([0.7]), jnp.asarray(1.8)), Linear(jnp.array([0.4])))
    changed = eqx.tree_at(lambda tree: tree.kernels.terms, parameters, (term, *parameters.kernels.terms[1:]))
    found = chain_parameters(changed, changed.latent_mean).kernels.terms[0]
    assert_allclose(found.input_kernel.variance, 1.0)
    assert "variance" in found.input_kernel.fixed
    assert_allclose(found.latent_kernel.variance, [0.4 * 1.8])
    held = Term(RBF(jnp.array([0.7]), jnp.asarray(1.8), fixed=("variance",)), term.latent_kernel)
    changed = eqx.tree_at(lambda tree: tree.kernels.terms, parameters, (held, *parameters.kernels.terms[1:]))
    kept = chain_parameters(changed, changed.latent_mean).kernels.terms[0]
    assert_allclose(kept.input_kernel.variance, 1.8)
    assert_allclose(kept.latent_kernel.variance, [0.4])


# Whole fits


def hierarchical_curves(seed, *, n_conditions=20, n_points=12, sd=0.1):
    """A common and an own curve of each condition, no latents; the first half of the rows of each is to train on."""
    rng, n_rows = np.random.default_rng(seed), 2 * n_points
    x = rng.uniform(0, 10, (n_conditions, n_rows))

    def curve(points, lengthscale):
        covariance = np.exp(-(((points[:, None] - points) / lengthscale) ** 2) / 2) + 1e-9 * np.eye(len(points))
        return np.linalg.cholesky(covariance) @ rng.standard_normal(len(points))

    common = curve(x.ravel(), 2.0).reshape(x.shape)
    y = common + np.stack([0.6 * curve(points, 1.5) for points in x]) + sd * rng.standard_normal(x.shape)
    names, is_trained = np.repeat(np.arange(n_conditions), n_rows), np.tile(np.arange(n_rows) < n_points, n_conditions)
    return x.reshape(-1, 1), y.ravel(), names, is_trained


def held_out(model, x, y, names, is_trained):
    """Root mean squared error, and the share of held-out rows within 95 % intervals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few iterations, or chains that are short
        model.fit(x[is_trained], y[is_trained], names[is_trained])
    given = x[~is_trained], names[~is_trained]
    low, high = model.predict_interval(*given)
    assert np.all(np.isfinite([low, high]))
    error = model.predict(*given) - y[~is_trained]
    return np.sqrt(np.mean(error**2)), np.mean((y[~is_trained] > low) & (y[~is_trained] < high))


@pytest.mark.long
def test_own_curves_are_not_explained_by_latents():
    """With latents at their mode they would be, at twice the error: q(H) decides what is latent and what is own."""
    data = hierarchical_curves(0)
    options = {"shared_kernel": "auto", "own_kernel": "auto", "random_state": 0}
    error, coverage = held_out(PapersModel(2, **options), *data)
    least, _ = held_out(PapersModel(input_kernel=None, **options), *data)
    assert error < 1.1 * least
    assert 0.88 <= coverage <= 0.99


@pytest.mark.long
def test_chains_of_a_model_with_own_curves():
    data = hierarchical_curves(1, n_conditions=6, n_points=6)
    options = {"shared_kernel": "auto", "own_kernel": "auto", "random_state": 0, "inference": "nuts"}
    model = PapersModel(1, **options, n_draws=100, n_warmup=100, n_chains=2)
    error, coverage = held_out(model, *data)
    assert error < np.std(data[1])
    assert coverage > 0.8
