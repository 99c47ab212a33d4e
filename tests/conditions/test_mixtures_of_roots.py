"""Mixtures of roots that may be negative, in the user's units, against sums over their components."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from lvmogp.conditions.mixtures import Mixture, asked_of, moments_in_units, quantiles_in_units, scores_in_units
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import SquareRoot

WEIGHTS = np.array([0.2, 0.5, 0.3])
MEANS = np.array([[-1.6, 0.4, 3.0], [-0.9, 1.2, 2.0], [-1.1, -0.5, 2.5]])
VARIANCES = np.array([[0.3, 0.2, 0.1], [0.5, 1.5, 0.4], [0.1, 0.7, 0.2]])
ROOTS = Scaling(np.zeros(1), np.ones(1), 0.8, 0.6, SquareRoot())


def ask(dtype="float64"):
    return asked_of(Mixture(*(jnp.asarray(part, dtype) for part in (WEIGHTS, MEANS, VARIANCES))))


def judged(outputs, dtype="float64"):
    return scores_in_units(ask(dtype), ROOTS, outputs, np.zeros(3))


def quantile(level, dtype="float64"):
    return quantiles_in_units(ask(dtype), ROOTS, np.full((3, 1), level))[:, 0]


def below(value, row):
    """P(y ≤ value), component by component."""
    return WEIGHTS @ norm.cdf(np.sqrt(value), 0.8 + 0.6 * MEANS[:, row], 0.6 * np.sqrt(VARIANCES[:, row]))


def test_probabilities_and_densities_of_squares():
    outputs = np.array([0.15, 1.0, 4.0])
    found = judged(outputs)
    assert_allclose(found.probability_below, [below(value, row) for row, value in enumerate(outputs)], rtol=1e-12)
    step = 1e-5
    slopes = [(below(y + step, row) - below(y - step, row)) / (2 * step) for row, y in enumerate(outputs)]
    assert_allclose(np.exp(found.log_density), slopes, rtol=1e-7)


def test_zero_has_the_probability_of_all_that_is_not_positive():
    found = judged(np.zeros(3))
    expected = [below(0.0, row) for row in range(3)]
    assert_allclose(found.probability_below, expected, rtol=1e-12)
    assert_allclose(np.exp(found.log_density), expected, rtol=1e-12)


def test_negative_outputs_cannot_be_squares():
    found = judged(np.array([-1.0, -1e-9, 1.0]))
    assert_array_equal(np.isneginf(found.log_density), [True, True, False])
    assert_array_equal(found.probability_below[:2], 0)


@pytest.mark.parametrize("level", [0.025, 0.5, 0.975, 1 - 1e-6])
def test_quantiles_of_squares(level):
    found = quantile(level)
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
        mean, variance = (part[row] for part in moments_in_units(ask(), ROOTS, 3))
        assert abs(outputs.mean() - mean) < 4 * outputs.std() / np.sqrt(len(outputs))
        assert_allclose(outputs.var(), variance, rtol=0.03)
        assert_allclose(np.mean(outputs <= 0.5), below(0.5, row), atol=0.005)


def test_single_precision_keeps_what_it_can():
    outputs = np.array([0.15, 1.0, 4.0])
    single, double = judged(outputs, "float32"), judged(outputs)
    assert_allclose(single.log_density, double.log_density, rtol=1e-5, atol=1e-6)
    assert_allclose(quantile(0.9, "float32"), quantile(0.9), rtol=1e-5)
