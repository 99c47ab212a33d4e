"""Covariances of features against sums over fine grids, differences of moments, and fifty digits."""

import itertools

import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from small_models import PER_CONDITION, described_parameters, grid_case, long_case, small_parameters
from test_psi_statistics import (
    CLOSED_FORMS,
    THREE_TERMS,
    covariance,
    grids_of,
    random_inducing,
    random_latents,
    total_of,
)

from lvmogp.algebra.linalg import unpack_symmetric
from lvmogp.kernels.covariances import RBF, Linear, Matern52
from lvmogp.kernels.feature_covariances import feature_covariance, packed_covariance
from lvmogp.kernels.psi_statistics import LatentGaussians, psi1, psi2
from lvmogp.model.expected_likelihood import quadratic

SUMS = [
    *((name,) for name in CLOSED_FORMS),
    *itertools.combinations_with_replacement(CLOSED_FORMS, 2),
    *THREE_TERMS,
]


def covariance_on_grids(kernel, inducing, latents, n_nodes=65):
    """Centred products of the kernel with every pair of inducing points, as plain weighted sums."""
    found = []
    for points, weights in grids_of(latents, n_nodes):
        values = covariance(kernel, points[:, None], np.asarray(inducing))
        centred = values - weights @ values
        found.append(centred.T @ (weights[:, None] * centred))
    return np.stack(found)


@pytest.mark.parametrize("names", SUMS, ids=" + ".join)
def test_closed_forms_equal_sums_over_a_fine_grid(rng, names):
    kernel, inducing, latents = total_of(names), random_inducing(rng), random_latents(rng)
    expected = covariance_on_grids(kernel, inducing, latents)
    assert_allclose(feature_covariance(kernel, inducing, latents), expected, rtol=1e-9, atol=1e-11)


def test_quadrature_equals_sums_over_a_fine_grid(rng):
    kernel, inducing, latents = Matern52([0.9]), random_inducing(rng, 1), random_latents(rng, 3, 1)
    expected = covariance_on_grids(kernel, inducing, latents, n_nodes=4001)
    assert_allclose(feature_covariance(kernel, inducing, latents), expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("names", [("rbf",), THREE_TERMS[0]], ids=" + ".join)
def test_covariances_are_what_the_moments_differ_by(rng, names):
    kernel, inducing, latents = total_of(names), random_inducing(rng), random_latents(rng)
    mean, second = psi1(kernel, inducing, latents), psi2(kernel, inducing, latents)
    found = unpack_symmetric(packed_covariance(kernel, inducing, latents), inducing.shape[0])
    assert_allclose(found, second - mean[:, :, None] * mean[:, None, :], rtol=0, atol=1e-14)


def exact_rbf_covariance(lengthscale, mean, variance, z, other):
    """Φ − ΨΨ' of one pair of inducing points in one dimension, in fifty digits."""
    with mp.workdps(50):
        a, mu, s, z, other = (mp.mpf(float(each)) for each in (lengthscale**2, mean, variance, z, other))

        def first(point):
            return mp.exp(-((mu - point) ** 2) / (a + s) / 2) / mp.sqrt(1 + s / a)

        exponent = -((z - other) ** 2) / (4 * a) - (mu - (z + other) / 2) ** 2 / (a + 2 * s)
        return float(mp.exp(exponent) / mp.sqrt(1 + 2 * s / a) - first(z) * first(other))


@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("lengthscale", [0.5, 200.0])
def test_nearly_known_latents_keep_their_digits(rng, variance, lengthscale):
    inducing, mean = rng.normal(size=(3, 1)), rng.normal(size=(2, 1))
    latents = LatentGaussians(jnp.asarray(mean), jnp.full((2, 1), variance))
    found = feature_covariance(RBF([lengthscale]), jnp.asarray(inducing), latents)
    for d, m, n in np.ndindex(2, 3, 3):
        expected = exact_rbf_covariance(lengthscale, mean[d, 0], variance, inducing[m, 0], inducing[n, 0])
        assert_allclose(found[d, m, n], expected, rtol=1e-11)


def test_a_linear_kernel_covaries_by_the_variances_alone(rng):
    inducing, latents = random_inducing(rng), random_latents(rng)
    slopes = np.asarray(inducing) * np.array([0.4, 1.2])
    expected = [slopes @ np.diag(variance) @ slopes.T for variance in np.asarray(latents.variance)]
    assert_allclose(feature_covariance(Linear([0.4, 1.2]), inducing, latents), expected, rtol=1e-13)


@pytest.mark.parametrize(
    "parameters",
    [small_parameters(), small_parameters(2, noise=PER_CONDITION), described_parameters()],
    ids=["shared noise", "noise per condition", "features"],
)
@pytest.mark.parametrize("case", [grid_case(), long_case()], ids=["grid", "long"])
def test_care_changes_nothing_but_digits(parameters, case):
    plain, careful = (quadratic(parameters, case.data, careful=careful) for careful in (False, True))
    assert_allclose(careful.constant.total, plain.constant.total, rtol=1e-12)
    assert_allclose(careful.linear, plain.linear, rtol=1e-9, atol=1e-9)
    assert_allclose(careful.dense_gram(), plain.dense_gram(), rtol=1e-9, atol=1e-9)
