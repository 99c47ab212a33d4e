"""Predictive mixtures in the user's units: no digit is lost to a location, a scale or a transform."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from lvmogp.conditions.predictive import (
    Curves,
    moments_in_units,
    quantiles_in_units,
    scores_in_units,
    statistic_of,
    with_variances,
)
from lvmogp.tables.scaling import Logarithm, Scaling, SquareRoot

WEIGHTS = np.array([0.25, 0.5, 0.25])  # exact in single precision
MEANS = np.array([[-1.5, 0.5, 3.0], [-0.75, 1.25, 2.0], [-1.0, -0.5, 2.5]])
VARIANCES = np.array([[0.25, 0.5, 0.125], [0.5, 1.5, 0.25], [0.125, 0.75, 0.25]])


def ask(dtype="float64", variances=VARIANCES):
    """Ask mixtures of three rows; their variances have a part from noise."""
    parts = (WEIGHTS, MEANS[None], variances[None] / 2, variances / 2)
    curves = Curves(*(jnp.asarray(part, dtype) for part in parts))
    return functools.partial(statistic_of, curves, include_noise=True)


def in_units_of(location, scale, transform=None):
    return Scaling(np.zeros(1), np.ones(1), location, scale, transform)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("location", "scale"), [(0.0, 1.0), (1e9, 1e-4), (-3.0, 1e-12), (1e30, 1e28)])
def test_a_large_location_costs_neither_mean_nor_variance_their_digits(dtype, location, scale):
    mean, variance = moments_in_units(ask(dtype), in_units_of(location, scale), 3)
    centre = WEIGHTS @ MEANS
    assert_allclose((mean - location) / scale, centre, rtol=1e-12, atol=np.spacing(abs(location)) / scale)
    expected = WEIGHTS @ (VARIANCES + (MEANS - centre) ** 2)
    assert_allclose(variance / scale**2, expected, rtol=1e-12 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("location", [0.0, 300.0, -300.0])
def test_moments_of_log_normal_outputs_are_those_of_the_components(dtype, location):
    mean, variance = moments_in_units(ask(dtype), in_units_of(location, 2.0, transform=Logarithm()), 3)
    first = WEIGHTS @ np.exp(2 * MEANS + 2 * VARIANCES)
    second = WEIGHTS @ np.exp(4 * MEANS + 8 * VARIANCES)
    assert_allclose(mean / np.exp(location), first, rtol=1e-12)
    assert_allclose(variance / np.exp(location) / np.exp(location), second - first**2, rtol=1e-12)


@pytest.mark.parametrize("spread", [1e-10, 1e-30])
def test_a_small_variance_of_log_normal_outputs_is_not_lost(spread):
    rows = Curves(jnp.ones(1), jnp.full((1, 1, 1), 0.3), jnp.full((1, 1, 1), spread), jnp.zeros(1))
    asked = functools.partial(statistic_of, rows, include_noise=False)
    mean, variance = moments_in_units(asked, in_units_of(0.0, 1.0, transform=Logarithm()), 1)
    assert_allclose(mean, np.exp(0.3), rtol=1e-9)
    assert_allclose(variance, np.exp(0.6) * spread, rtol=1e-9)


# Outputs y = t⁻¹(location + scale · z), component by component. Roots may be negative, and then have an output of zero.
UNITS = {
    "itself": in_units_of(3.0, 2.0),
    "logarithm": in_units_of(3.0, 2.0, Logarithm()),
    "root": in_units_of(0.8, 0.6, SquareRoot()),
}
FORWARD = {"itself": lambda y: y, "logarithm": np.log, "root": np.sqrt}


def below(name, value, row, error=0.0):
    """P(y ≤ value), measured with an error of this variance in standardised units."""
    location, scale = UNITS[name].output_mean, UNITS[name].output_scale
    deviations = scale * np.sqrt(VARIANCES[:, row] + error)
    return WEIGHTS @ norm.cdf(FORWARD[name](value), location + scale * MEANS[:, row], deviations)


@pytest.mark.parametrize("name", UNITS)
def test_quantiles_are_those_of_the_mixture(name):
    for level in (0.025, 0.5, 0.975, 1 - 1e-6):
        found = quantiles_in_units(ask(), UNITS[name], np.full((3, 1), level))[:, 0]
        for row, value in enumerate(found):
            if value == 0:
                assert below(name, 0.0, row) >= level
            else:
                assert_allclose(below(name, value, row), level, rtol=1e-9)
        assert np.any(found > 0)
        if level < 0.99:
            single = quantiles_in_units(ask("float32"), UNITS[name], np.full((3, 1), level))[:, 0]
            assert_allclose(single, found, rtol=1e-5)


@pytest.mark.parametrize("errors", [np.zeros(3), np.array([0.1, 0.0, 2.0])])
@pytest.mark.parametrize("name", UNITS)
def test_outputs_are_judged_by_density_and_probability(name, errors):
    outputs = np.array([0.15, 1.0, 4.0])
    found = scores_in_units(ask(), UNITS[name], outputs, errors)
    rows = list(zip(outputs, range(3), UNITS[name].error_variances(errors, outputs), strict=True))
    assert_allclose(found.probability_below, [below(name, *row) for row in rows], rtol=1e-12)
    step = 1e-5
    slopes = [(below(name, y + step, *row) - below(name, y - step, *row)) / (2 * step) for y, *row in rows]
    assert_allclose(np.exp(found.log_density), slopes, rtol=1e-6)
    single = scores_in_units(ask("float32"), UNITS[name], outputs, errors)
    assert_allclose(single.log_density, found.log_density, rtol=1e-5, atol=1e-6)


def test_what_a_transform_cannot_take_cannot_happen():
    """The lowest output that it can have is that of many values, and has their probability."""
    for name in ("logarithm", "root"):
        found = scores_in_units(ask(), UNITS[name], np.array([-1.0, -1e-9, 1.0]), np.zeros(3))
        assert_array_equal(np.isneginf(found.log_density), [True, True, False])
        assert_array_equal(found.probability_below[:2], 0)
    found = scores_in_units(ask(), UNITS["root"], np.zeros(3), np.zeros(3))
    expected = [below("root", 0.0, row) for row in range(3)]
    assert_allclose(found.probability_below, expected, rtol=1e-12)
    assert_allclose(np.exp(found.log_density), expected, rtol=1e-12)


def test_samples_of_squares_agree_with_moments_and_probabilities(rng):
    component = rng.choice(3, size=200_000, p=WEIGHTS)
    values = MEANS[component] + np.sqrt(VARIANCES[component]) * rng.standard_normal((len(component), 3))
    outputs = UNITS["root"].quantity(values)
    mean, variance = moments_in_units(ask(), UNITS["root"], 3)
    assert np.all(np.abs(outputs.mean(axis=0) - mean) < 4 * outputs.std(axis=0) / np.sqrt(len(outputs)))
    assert_allclose(outputs.var(axis=0), variance, rtol=0.03)


def test_covariances_get_other_variances_with_the_same_correlations():
    root = np.random.default_rng(1).normal(size=(3, 3))
    covariance, variance = root @ root.T, np.array([2.0, 0.5, 3.0])
    found = with_variances(covariance, variance)
    assert_allclose(np.diag(found), variance, rtol=0)
    scale = np.sqrt(np.diag(covariance))
    assert_allclose(found / np.sqrt(np.outer(variance, variance)), covariance / np.outer(scale, scale), rtol=1e-12)
    assert_allclose(with_variances(np.diag([0.0, 4.0]), np.array([1.0, 2.0])), np.diag([1.0, 2.0]), rtol=0)
