"""Transforms of outputs against the integrals that they stand for."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from lvmogp.conditions.mixtures import Mixture, judged, moments_in_units, quantile
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import TRANSFORMS, Logarithm, SquareRoot

BOTH = [Logarithm(), SquareRoot()]
BACKWARD = {"log": np.exp, "sqrt": lambda values: np.where(values > 0, values, 0) ** 2}
# A fine grid, since a square that ends at zero is no polynomial.
GRID = np.linspace(-9, 9, 180_001)
MASSES = norm.pdf(GRID) / norm.pdf(GRID).sum()


def of(transform):
    return transform.name


@pytest.mark.parametrize("transform", BOTH, ids=of)
def test_names_are_those_that_users_give(transform):
    assert TRANSFORMS[transform.name] == transform
    assert TRANSFORMS[None] is None


@pytest.mark.parametrize("transform", BOTH, ids=of)
def test_forward_and_backward_are_inverse_and_known(transform):
    outputs = np.array([1e-8, 0.3, 1.0, 17.0, 1e9])
    assert_allclose(BACKWARD[transform.name](transform.forward(outputs)), outputs, rtol=1e-14)
    assert_allclose(transform.backward(transform.forward(outputs)), outputs, rtol=1e-14)
    assert_array_equal(transform.backward(np.array([-3.0])), BACKWARD[transform.name](np.array([-3.0])))


@pytest.mark.parametrize("transform", BOTH, ids=of)
def test_slopes_are_finite_differences(transform):
    outputs, step = np.array([0.02, 0.3, 1.0, 17.0]), 1e-6
    ends = transform.forward(outputs * (1 + step)) - transform.forward(outputs * (1 - step))
    assert_allclose(transform.log_slope(outputs), np.log(ends / (2 * step * outputs)), atol=1e-9)


def test_what_can_be_taken():
    outputs = np.array([-1.0, -0.0, 0.0, 1e-300, np.nan])
    assert_array_equal(Logarithm().takes(outputs), [False, False, False, True, True])
    assert_array_equal(SquareRoot().takes(outputs), [False, True, True, True, True])


@pytest.mark.parametrize("transform", BOTH, ids=of)
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


@pytest.mark.parametrize("transform", BOTH, ids=of)
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


@pytest.mark.parametrize("transform", BOTH, ids=of)
def test_covariances_are_positive_semidefinite(transform, rng):
    mean = jnp.asarray(rng.normal(0, 0.6, 12))
    root = rng.normal(0, 0.3, (12, 4))
    found = transform.covariance(mean, jnp.asarray(root @ root.T + 1e-4 * np.eye(12)))
    eigenvalues = np.linalg.eigvalsh(found)
    assert eigenvalues.min() > -1e-12 * eigenvalues.max()


@pytest.mark.parametrize("transform", BOTH, ids=of)
def test_excess_keeps_its_digits_near_one(transform):
    mean = jnp.asarray(transform.forward(np.ones(1)) + 1e-13)
    slope = np.exp(-transform.log_slope(np.ones(1)))  # dy/dg at one
    exact = slope * (np.asarray(mean) - transform.forward(np.ones(1)))
    assert_allclose(transform.excess(mean, jnp.full(1, 1e-20)), exact, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e30])
def test_a_small_variance_of_a_square_is_not_lost(scale):
    mean, variance = jnp.asarray(3.0 * scale), jnp.asarray(1e-20 * scale**2)
    assert_allclose(SquareRoot().variance(mean, variance) / scale**4, 4 * 9 * 1e-20, rtol=1e-12)


def test_squares_of_what_is_hardly_positive_are_small_and_not_negative():
    means = -jnp.asarray([3.0, 8.0, 20.0, 38.0, 100.0, 1e6])
    ones = jnp.ones_like(means)
    mean, variance = SquareRoot().mean(means, ones), SquareRoot().variance(means, ones)
    assert np.all(np.asarray(mean) >= 0)
    assert np.all(np.asarray(variance) >= 0)
    tail = 2 * norm.pdf(8.0) / 8.0**3  # the first term of its asymptotic series
    assert_allclose(mean[1], tail, rtol=0.1)


@pytest.mark.parametrize("transform", BOTH, ids=of)
def test_a_divided_output_is_the_output_divided(transform):
    outputs, values = np.array([0.02, 3.0, 4e8]), np.array([-0.4, 1.2, 0.1])
    location, scale = transform.divided(1.7, 0.6, outputs)
    expected = transform.backward(1.7 + 0.6 * values) / outputs
    assert_allclose(transform.backward(location + scale * values), expected, rtol=1e-12)


# Mixtures of roots that may be negative, in the user's units

WEIGHTS = np.array([0.2, 0.5, 0.3])
MEANS = np.array([[-1.6, 0.4, 3.0], [-0.9, 1.2, 2.0], [-1.1, -0.5, 2.5]])
VARIANCES = np.array([[0.3, 0.2, 0.1], [0.5, 1.5, 0.4], [0.1, 0.7, 0.2]])
ROOTS = Scaling(np.zeros(1), np.ones(1), 0.8, 0.6, SquareRoot())


def rows(dtype="float64"):
    return Mixture(*(jnp.asarray(part, dtype) for part in (WEIGHTS, MEANS, VARIANCES)))


def below(value, row):
    """P(y ≤ value), component by component."""
    return WEIGHTS @ norm.cdf(np.sqrt(value), 0.8 + 0.6 * MEANS[:, row], 0.6 * np.sqrt(VARIANCES[:, row]))


def test_probabilities_and_densities_of_squares():
    outputs = np.array([0.15, 1.0, 4.0])
    found = judged(rows(), ROOTS, outputs)
    assert_allclose(found.probability_below, [below(value, row) for row, value in enumerate(outputs)], rtol=1e-12)
    step = 1e-5
    slopes = [(below(y + step, row) - below(y - step, row)) / (2 * step) for row, y in enumerate(outputs)]
    assert_allclose(np.exp(found.log_density), slopes, rtol=1e-7)


def test_zero_has_the_probability_of_all_that_is_not_positive():
    found = judged(rows(), ROOTS, np.zeros(3))
    expected = [below(0.0, row) for row in range(3)]
    assert_allclose(found.probability_below, expected, rtol=1e-12)
    assert_allclose(np.exp(found.log_density), expected, rtol=1e-12)


def test_negative_outputs_cannot_be_squares():
    found = judged(rows(), ROOTS, np.array([-1.0, -1e-9, 1.0]))
    assert_array_equal(np.isneginf(found.log_density), [True, True, False])
    assert_array_equal(found.probability_below[:2], 0)


@pytest.mark.parametrize("level", [0.025, 0.5, 0.975, 1 - 1e-6])
def test_quantiles_of_squares(level):
    found = quantile(rows(), ROOTS, level)
    for row, value in enumerate(found):
        if value > 0:
            assert_allclose(below(value, row), level, rtol=1e-9)
        else:
            assert below(0.0, row) >= level
    assert np.any(found > 0)


def test_samples_of_squares_agree_with_moments_and_probabilities(rng):
    component = rng.choice(3, size=200_000, p=WEIGHTS)
    for row in range(3):
        values = MEANS[component, row] + np.sqrt(VARIANCES[component, row]) * rng.standard_normal(len(component))
        outputs = ROOTS.quantity(values)
        mean, variance = (part[row] for part in moments_in_units(rows(), ROOTS))
        assert abs(outputs.mean() - mean) < 4 * outputs.std() / np.sqrt(len(outputs))
        assert_allclose(outputs.var(), variance, rtol=0.03)
        assert_allclose(np.mean(outputs <= 0.5), below(0.5, row), atol=0.005)


def test_single_precision_keeps_what_it_can():
    outputs = np.array([0.15, 1.0, 4.0])
    single, double = judged(rows("float32"), ROOTS, outputs), judged(rows(), ROOTS, outputs)
    assert_allclose(single.log_density, double.log_density, rtol=1e-5, atol=1e-6)
    assert_allclose(quantile(rows("float32"), ROOTS, 0.9), quantile(rows(), ROOTS, 0.9), rtol=1e-5)
