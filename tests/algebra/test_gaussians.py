"""Closed forms about Gaussians against dense formulas and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matrices import random_factor
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

from lvmogp.algebra import gaussians


def dense_kl_to_standard_normal(mean, covariance):
    """½ (mᵀm + tr Σ − log|Σ| − M) with the matrix formed."""
    return (mean @ mean + np.trace(covariance) - np.linalg.slogdet(covariance)[1] - len(mean)) / 2


def test_divergences_equal_the_dense_formula(rng):
    mean, variance = rng.normal(size=(3, 2)), rng.uniform(0.1, 2.0, size=(3, 2))
    expected = sum(dense_kl_to_standard_normal(m, np.diag(s)) for m, s in zip(mean, variance, strict=True))
    assert_allclose(gaussians.kl_to_standard_normal(jnp.asarray(mean), jnp.asarray(variance)), expected, rtol=1e-13)

    mean, input_factor, latent_factor = rng.normal(size=(2, 3)), random_factor(rng, 2), random_factor(rng, 3)
    covariance = np.kron(latent_factor @ latent_factor.T, input_factor @ input_factor.T)
    result = gaussians.kl_kronecker_to_standard_normal(*map(jnp.asarray, (mean, input_factor, latent_factor)))
    assert_allclose(result, dense_kl_to_standard_normal(mean.T.ravel(), covariance), rtol=1e-13)


def test_densities_and_distributions_equal_those_of_scipy(rng):
    residual, factor = rng.normal(size=4), random_factor(rng, 4)
    expected = multivariate_normal(np.zeros(4), factor @ factor.T).logpdf(residual)
    assert_allclose(gaussians.log_density(jnp.asarray(residual), jnp.asarray(factor)), expected, rtol=1e-12)
    scores = np.linspace(-30, 8, 20)  # into the tail, where one less the other side would be zero
    assert_allclose(gaussians.normal_distribution(jnp.asarray(scores)), norm.cdf(scores), rtol=1e-12)


# Mixtures: five components an entry, a different mixture for each of four entries.


def random_mixtures(rng):
    means, variances = rng.normal(size=(5, 4), scale=2.0), rng.uniform(0.05, 2.0, size=(5, 4))
    return means, variances, rng.dirichlet(np.ones(5), size=4).T


def mixture_cdf(value, means, variances, weights):
    return np.sum(weights * norm.cdf(value, means, np.sqrt(variances)), axis=0)


quantile, scores = jax.jit(gaussians.mixture_quantile), jax.jit(gaussians.mixture_scores)


def test_mixtures_equal_sums_of_scipy(rng):
    means, variances, weights = random_mixtures(rng)
    value = rng.normal(size=4)
    log_density, distribution = scores(value, means, variances, weights)
    expected = np.log(np.sum(weights * norm.pdf(value, means, np.sqrt(variances)), axis=0))
    assert_allclose(log_density, expected, rtol=1e-12)
    assert_allclose(distribution, mixture_cdf(value, means, variances, weights), rtol=1e-12)
    # Far out, where densities underflow:
    log_density, _ = scores(np.array([100.0]), np.array([[0.0], [1.0]]), np.ones((2, 1)), np.array([[0.5], [0.5]]))
    expected = np.log(0.5) + np.logaddexp(norm.logpdf(100.0), norm.logpdf(99.0))
    assert_allclose(log_density, [expected], rtol=1e-13)


def test_components_of_zero_weight_are_ignored(rng):
    mixtures, value = random_mixtures(rng), rng.normal(size=4)
    padded = [np.concatenate([part, np.full((3, 4), fill)]) for part, fill in zip(mixtures, (1e12, 1, 0), strict=True)]
    assert_allclose(quantile(0.3, *padded), quantile(0.3, *mixtures), rtol=1e-13)
    assert_allclose(scores(value, *padded), scores(value, *mixtures), rtol=1e-13)


@pytest.mark.parametrize("n_components", [1, 7])
@pytest.mark.parametrize("probability", [1e-6, 0.025, 0.5, 0.6, 0.975, 1 - 1e-6])
def test_mixture_quantiles_equal_those_of_brentq(rng, probability, n_components):
    # Narrow components far apart among wide ones, where plain Newton steps would fly away.
    shape = n_components, 40
    means, variances = rng.normal(size=shape, scale=3.0), 10.0 ** rng.uniform(-4, 1, size=shape)
    weights = rng.dirichlet(np.full(n_components, 0.3), size=40).T
    result = quantile(*map(jnp.asarray, (probability, means, variances, weights)))
    centre = np.sum(weights * means, axis=0)
    deviation = np.sqrt(np.sum(weights * (variances + (means - centre) ** 2), axis=0))
    for entry in range(40):
        own = [values[:, entry] for values in (means, variances, weights)]
        root = brentq(lambda value, own=own: mixture_cdf(value, *own) - probability, -60, 60, xtol=1e-14, rtol=1e-14)
        density = np.sum(own[2] * norm.pdf(root, own[0], np.sqrt(own[1])))
        rounding = 4e-16 / density  # of the reference itself, whose distribution function is near one
        assert abs(float(result[entry]) - root) <= 1e-12 * deviation[entry] + rounding + 2e-14 * abs(root)
