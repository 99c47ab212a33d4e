"""Predictive mixtures in the user's units: no digit is lost to a location, a scale or a logarithm."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from lvmogp.conditions.mixtures import Mixture, moments_in_units
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Logarithm

WEIGHTS = np.array([0.25, 0.5, 0.25])  # exact in single precision


def mixture(dtype="float64", variance=0.5):
    means = np.array([[-1.0, 0.25], [0.5, 0.5], [2.0, 0.75]])
    return Mixture(*(jnp.asarray(part, dtype) for part in (WEIGHTS, means, np.full((3, 2), variance))))


def in_units_of(location, scale, transform=None):
    return Scaling(np.zeros(1), np.ones(1), location, scale, transform)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("location", "scale"), [(0.0, 1.0), (1e9, 1.0), (1e9, 1e-4), (-3.0, 1e-12), (1e30, 1e28)])
def test_a_large_location_costs_neither_mean_nor_variance_their_digits(dtype, location, scale):
    mean, variance = moments_in_units(mixture(dtype), in_units_of(location, scale))
    assert_allclose((mean - location) / scale, [0.5, 0.5], atol=np.spacing(abs(location)) / scale)
    # ½ within each component, and between them 1.5²/2 and 0.25²/2
    assert_allclose(variance / scale**2, [0.5 + 1.125, 0.5 + 0.03125], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("location", [0.0, 300.0, -300.0])
def test_moments_of_log_normal_outputs_are_those_of_the_components(dtype, location):
    mean, variance = moments_in_units(mixture(dtype), in_units_of(location, 2.0, transform=Logarithm()))
    logs, spread = 2 * np.asarray(mixture().means), 4 * 0.5
    first = WEIGHTS @ np.exp(logs + spread / 2)
    second = WEIGHTS @ np.exp(2 * logs + 2 * spread)
    assert_allclose(mean / np.exp(location), first, rtol=1e-12)
    assert_allclose(variance / np.exp(location) / np.exp(location), second - first**2, rtol=1e-12)


@pytest.mark.parametrize("spread", [1e-10, 1e-17, 1e-30])
def test_a_small_variance_of_log_normal_outputs_is_not_lost(spread):
    rows = Mixture(jnp.ones(1), jnp.array([[0.3]]), jnp.array([[spread]]))
    mean, variance = moments_in_units(rows, in_units_of(0.0, 1.0, transform=Logarithm()))
    assert_allclose(mean, np.exp(0.3), rtol=1e-9)
    assert_allclose(variance, np.exp(0.6) * spread, rtol=1e-9)
