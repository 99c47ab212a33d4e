"""Transforms of outputs against the integrals that they stand for."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from lvmogp.tables.transforms import TRANSFORMS, Logarithm, SquareRoot

both = pytest.mark.parametrize("transform", [Logarithm(), SquareRoot()], ids=lambda transform: transform.name)
BACKWARD = {"log": np.exp, "sqrt": lambda values: np.where(values > 0, values, 0) ** 2}
# A fine grid, since a square that ends at zero is no polynomial.
GRID = np.linspace(-9, 9, 180_001)
MASSES = norm.pdf(GRID) / norm.pdf(GRID).sum()


@both
def test_forward_and_backward_are_inverse_and_known(transform):
    assert TRANSFORMS[transform.name] == transform
    outputs = np.array([1e-8, 0.3, 1.0, 17.0, 1e9])
    assert_allclose(BACKWARD[transform.name](transform.forward(outputs)), outputs, rtol=1e-14)
    assert_allclose(transform.backward(transform.forward(outputs)), outputs, rtol=1e-14)
    assert_array_equal(transform.backward(np.array([-3.0])), BACKWARD[transform.name](np.array([-3.0])))


@both
@pytest.mark.parametrize(
    ("mean", "variance"), [(0.7, 0.3), (0.0, 0.5), (-0.2, 0.5), (-1.5, 0.4), (-3.0, 0.5), (1.5, 1e-4), (4.0, 0.8)]
)
def test_moments_are_integrals_over_the_gaussian(transform, mean, variance):
    values = BACKWARD[transform.name](mean + np.sqrt(variance) * GRID)
    first = MASSES @ values
    given = jnp.asarray(mean), jnp.asarray(variance)
    assert_allclose(transform.mean(*given), first, rtol=1e-7)
    assert_allclose(transform.excess(*given), first - 1, rtol=1e-7)
    assert_allclose(transform.variance(*given), MASSES @ (values - first) ** 2, rtol=1e-7)


@both
@pytest.mark.parametrize("correlation", [-0.7, 0.3, 0.95])
@pytest.mark.parametrize("means", [(0.7, 1.4), (0.1, -0.3), (-1.0, 2.0)])
def test_covariances_are_integrals_over_the_joint_gaussian(transform, correlation, means):
    deviations = np.array([0.6, 0.5])
    covariance = np.outer(deviations, deviations) * np.array([[1, correlation], [correlation, 1]])
    found = np.asarray(transform.covariance(jnp.asarray(means), jnp.asarray(covariance)))
    some = GRID[::100]
    masses = norm.pdf(some) / norm.pdf(some).sum()
    first = BACKWARD[transform.name](means[0] + deviations[0] * some)
    other = correlation * some[:, None] + np.sqrt(1 - correlation**2) * some
    second = BACKWARD[transform.name](means[1] + deviations[1] * other)
    expected = masses @ (first * (second @ masses)) - (masses @ first) * (masses @ second @ masses)
    variances = np.diag(found)
    assert_allclose(found[0, 1] / np.sqrt(variances.prod()), expected / np.sqrt(variances.prod()), atol=1e-3)
    assert_array_equal(found, found.T)
    of_each = transform.variance(jnp.asarray(means), jnp.diag(jnp.asarray(covariance)))
    assert_allclose(variances, of_each, rtol=1e-12)


@both
def test_excess_keeps_its_digits_near_one(transform):
    mean = jnp.asarray(transform.forward(np.ones(1)) + 1e-13)
    slope = np.exp(-transform.log_slope(np.ones(1)))  # dy/dg at one
    exact = slope * (np.asarray(mean) - transform.forward(np.ones(1)))
    assert_allclose(transform.excess(mean, jnp.full(1, 1e-20)), exact, rtol=1e-6)


def test_a_small_variance_of_a_square_is_not_lost_and_none_is_negative():
    scale = np.array([1.0, 1e5, 1e30])
    small = SquareRoot().variance(jnp.asarray(3.0 * scale), jnp.asarray(1e-20 * scale**2))
    assert_allclose(small / scale**4, 4 * 9 * 1e-20, rtol=1e-12)
    means = -jnp.asarray([3.0, 8.0, 20.0, 38.0, 100.0, 1e6])
    ones = jnp.ones_like(means)
    mean, variance = SquareRoot().mean(means, ones), SquareRoot().variance(means, ones)
    assert np.all(np.asarray(mean) >= 0)
    assert np.all(np.asarray(variance) >= 0)
    tail = 2 * norm.pdf(8.0) / 8.0**3  # the first term of its asymptotic series
    assert_allclose(mean[1], tail, rtol=0.1)


@both
def test_a_divided_output_is_the_output_divided(transform):
    outputs, values = np.array([0.02, 3.0, 4e8]), np.array([-0.4, 1.2, 0.1])
    location, scale = transform.divided(1.7, 0.6, outputs)
    expected = transform.backward(1.7 + 0.6 * values) / outputs
    assert_allclose(transform.backward(location + scale * values), expected, rtol=1e-12)
