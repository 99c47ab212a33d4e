"""Predictive mixtures in the user's units: no digit is lost to a location, a scale or a logarithm."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.stats import norm

from lvmogp.conditions.mixtures import (
    Mixture,
    asked_of,
    moments_in_units,
    quantiles_in_units,
    scores_in_units,
    with_variances,
)
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Logarithm, SquareRoot

WEIGHTS = np.array([0.25, 0.5, 0.25])  # exact in single precision


def mixture(dtype="float64", variance=0.5):
    means = np.array([[-1.0, 0.25], [0.5, 0.5], [2.0, 0.75]])
    return Mixture(*(jnp.asarray(part, dtype) for part in (WEIGHTS, means, np.full((3, 2), variance))))


def in_units_of(location, scale, transform=None):
    return Scaling(np.zeros(1), np.ones(1), location, scale, transform)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("location", "scale"), [(0.0, 1.0), (1e9, 1.0), (1e9, 1e-4), (-3.0, 1e-12), (1e30, 1e28)])
def test_a_large_location_costs_neither_mean_nor_variance_their_digits(dtype, location, scale):
    mean, variance = moments_in_units(asked_of(mixture(dtype)), in_units_of(location, scale), 2)
    assert_allclose((mean - location) / scale, [0.5, 0.5], atol=np.spacing(abs(location)) / scale)
    # ½ within each component, and between them 1.5²/2 and 0.25²/2
    assert_allclose(variance / scale**2, [0.5 + 1.125, 0.5 + 0.03125], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("location", [0.0, 300.0, -300.0])
def test_moments_of_log_normal_outputs_are_those_of_the_components(dtype, location):
    mean, variance = moments_in_units(asked_of(mixture(dtype)), in_units_of(location, 2.0, transform=Logarithm()), 2)
    logs, spread = 2 * np.asarray(mixture().means), 4 * 0.5
    first = WEIGHTS @ np.exp(logs + spread / 2)
    second = WEIGHTS @ np.exp(2 * logs + 2 * spread)
    assert_allclose(mean / np.exp(location), first, rtol=1e-12)
    assert_allclose(variance / np.exp(location) / np.exp(location), second - first**2, rtol=1e-12)


@pytest.mark.parametrize("spread", [1e-10, 1e-17, 1e-30])
def test_a_small_variance_of_log_normal_outputs_is_not_lost(spread):
    rows = Mixture(jnp.ones(1), jnp.array([[0.3]]), jnp.array([[spread]]))
    mean, variance = moments_in_units(asked_of(rows), in_units_of(0.0, 1.0, transform=Logarithm()), 1)
    assert_allclose(mean, np.exp(0.3), rtol=1e-9)
    assert_allclose(variance, np.exp(0.6) * spread, rtol=1e-9)


def quantile(scaling, probability):
    return quantiles_in_units(asked_of(mixture()), scaling, np.full((2, 1), probability))[:, 0]


def judged(scaling, outputs):
    return scores_in_units(asked_of(mixture()), scaling, outputs, np.zeros(2))


def below(value, row, variance=0.5):
    return WEIGHTS @ norm.cdf(value, np.asarray(mixture().means)[:, row], np.sqrt(variance))


@pytest.mark.parametrize("probability", [0.01, 0.5, 0.9])
def test_quantiles_are_those_of_the_mixture_in_the_users_units(probability):
    roots = [brentq(lambda value, row=row: below(value, row) - probability, -20, 20, xtol=1e-13) for row in range(2)]
    assert_allclose(quantile(in_units_of(3.0, 2.0), probability), 3 + 2 * np.array(roots), rtol=1e-8)
    logs = quantile(in_units_of(3.0, 2.0, transform=Logarithm()), probability)
    assert_allclose(logs, np.exp(3 + 2 * np.array(roots)), rtol=1e-8)


def test_outputs_are_judged_in_the_users_units():
    density, probability = judged(in_units_of(3.0, 2.0), np.array([3.5, 2.0]))
    z = np.array([0.25, -0.5])
    assert_allclose(probability, [below(z[row], row) for row in range(2)], rtol=1e-9)
    densities = WEIGHTS @ norm.pdf(z, mixture().means, np.sqrt(0.5))
    assert_allclose(density, np.log(densities / 2), rtol=1e-9)
    # What the transform cannot take cannot happen; the lowest output has a probability, being that of many values.
    logs = judged(in_units_of(0.0, 1.0, transform=Logarithm()), np.array([-1.0, 2.0]))
    assert (logs.log_density[0], logs.probability_below[0]) == (-np.inf, 0.0)
    assert_allclose(logs.probability_below[1], below(np.log(2.0), 1), rtol=1e-9)
    roots = judged(in_units_of(0.3, 1.0, transform=SquareRoot()), np.array([0.0, 4.0]))
    assert_allclose(roots.log_density[0], np.log(below(-0.3, 0)), rtol=1e-9)
    density = WEIGHTS @ norm.pdf(1.7, np.asarray(mixture().means)[:, 1], np.sqrt(0.5)) / 4
    assert_allclose(roots.log_density[1], np.log(density), rtol=1e-9)


def test_covariances_get_other_variances_with_the_same_correlations():
    root = np.random.default_rng(1).normal(size=(3, 3))
    covariance, variance = root @ root.T, np.array([2.0, 0.5, 3.0])
    found = with_variances(covariance, variance)
    assert_allclose(np.diag(found), variance, rtol=0)
    scale = np.sqrt(np.diag(covariance))
    assert_allclose(found / np.sqrt(np.outer(variance, variance)), covariance / np.outer(scale, scale), rtol=1e-12)
    assert_allclose(with_variances(np.diag([0.0, 4.0]), np.array([1.0, 2.0])), np.diag([1.0, 2.0]), rtol=0)
