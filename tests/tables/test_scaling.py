"""Standardising is undone exactly, whatever the units; transforms of outputs are the integrals that they stand for."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from lvmogp.errors import DataError
from lvmogp.tables.scaling import (
    TRANSFORMS,
    Logarithm,
    SquareRoot,
    check_positive,
    differs_in_last_digits_only,
    is_spread_over_magnitudes,
    scaling_of,
    spans_a_magnitude,
)

both = pytest.mark.parametrize("transform", [Logarithm(), SquareRoot()], ids=lambda transform: transform.name)
BACKWARD = {None: lambda values: values, "log": np.exp, "sqrt": lambda values: np.where(values > 0, values, 0) ** 2}
# A fine grid, since a square that ends at zero is no polynomial.
GRID = np.linspace(-9, 9, 180_001)
MASSES = norm.pdf(GRID) / norm.pdf(GRID).sum()


@pytest.mark.parametrize("name", BACKWARD)
def test_outputs_are_transformed_then_standardised_and_come_back(rng, name):
    inputs, outputs = rng.normal(size=(50, 3)) * [1.0, 1e-6, 1e6] + [0.0, 5.0, -3.0], 7.0 + 0.3 * rng.normal(size=50)
    scaling = scaling_of(inputs, outputs, transform=TRANSFORMS[name])
    standardised = scaling.outputs(outputs)
    assert_allclose([standardised.mean(), standardised.std()], [0, 1], atol=1e-12)
    assert_allclose(scaling.inputs(inputs).mean(axis=0), 0, atol=1e-9)
    assert_allclose(scaling.inputs(inputs).std(axis=0), 1, rtol=1e-9)
    assert_allclose(BACKWARD[name](scaling.location(standardised)), outputs, rtol=1e-13)
    assert_allclose(scaling.quantity(standardised), outputs, rtol=1e-13)
    modelled = outputs if name is None else TRANSFORMS[name].forward(outputs)
    assert_allclose(scaling.variance(np.ones(1)), modelled.var(), rtol=1e-12)
    step = 1e-6
    slopes = (scaling.outputs(outputs + step) - scaling.outputs(outputs - step)) / (2 * step)
    assert_allclose(np.exp(scaling.log_slopes(outputs)), slopes, rtol=1e-8)
    assert_allclose(scaling.error_variances(np.full(50, step), outputs), (slopes * step) ** 2, rtol=1e-5)
    assert scaling.transform_name == name
    assert scaling.label("grip") == ("grip" if name is None else f"{name} grip")


def test_what_can_be_taken_and_what_stands_for_all_below():
    outputs = np.array([-1.0, -0.0, 0.0, 1e-300, np.nan])
    takes = {None: [1, 1, 1, 1, 1], "log": [0, 0, 0, 1, 1], "sqrt": [0, 1, 1, 1, 1]}
    for name, expected in takes.items():
        scaling = scaling_of(np.ones((2, 1)), np.array([1.0, 2.0]), transform=TRANSFORMS[name])
        assert_array_equal(scaling.takes(outputs), expected)
        assert_array_equal(scaling.are_lowest(outputs), np.array([0, 1, 1, 0, 0]) * (name == "sqrt"))


def test_logarithms_of_inputs_are_standardised_and_come_back(rng):
    inputs = np.column_stack([rng.normal(size=50), 10 ** rng.uniform(-160, 150, 50), 10 ** rng.uniform(0, 2, 50)])
    given = inputs.copy()
    scaling = scaling_of(inputs, rng.normal(size=50), log_columns=(1, 2))
    expected = np.column_stack([inputs[:, 0], np.log(inputs[:, 1]), np.log(inputs[:, 2])])
    assert_allclose(scaling.transformed_inputs(inputs), expected, rtol=1e-15)
    assert_allclose(scaling.inputs(inputs), (expected - expected.mean(axis=0)) / expected.std(axis=0), atol=1e-12)
    assert_allclose(scaling.restored_inputs(expected), inputs, rtol=1e-12)
    assert_array_equal(inputs, given)
    step = 1e-6 * np.abs(inputs)
    slopes = (scaling.inputs(inputs + step) - scaling.inputs(inputs - step)) / (2 * step)
    assert_allclose(scaling.input_slopes(inputs), slopes, rtol=1e-6)
    assert scaling.input_labels(["a", "b", "c"]) == ["a", "log b", "log c"]
    with pytest.raises(
        DataError, match=r"column 'b' of X must be positive, .* but 2 of 3 values are not, the lowest -1"
    ):
        check_positive(np.array([[0.0, 2.0], [0.0, 0.0], [0.0, -1.0]]), (1,), ["a", "b"])


def test_columns_that_span_orders_of_magnitude_are_told_from_those_that_only_come_near_zero(rng):
    spread = {
        "dilutions": np.repeat([0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0], 5),
        "two decades": 10 ** rng.uniform(0, 2, 2000),
        "three decades": 10 ** rng.uniform(-1, 2, 200),
    }
    others = {
        "even": rng.uniform(0, 1, 2000),
        "exponential": rng.exponential(size=2000),
        "one decade": np.linspace(1, 10, 30),
        "an outlier": np.r_[1e-6, rng.uniform(1, 2, 50), 1e3],
        "with zero": np.r_[0.0, 10 ** rng.uniform(-1, 2, 200)],
        "negative": -(10 ** rng.uniform(-1, 2, 200)),
    }
    assert [name for name, values in (spread | others).items() if is_spread_over_magnitudes(values)] == list(spread)
    tried = [name for name, values in (spread | others).items() if spans_a_magnitude(values)]
    assert tried == [*spread, "even", "exponential", "one decade", "an outlier"]


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e9, 1e-9, 1e12])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_what_is_constant_is_shifted_only(value, count):
    # The deviation of equal values is of rounding size, not zero: 0.1 a thousand times, for one.
    inputs = np.column_stack([np.arange(float(count)), np.full(count, value)])
    scaling = scaling_of(inputs, inputs[:, 1])
    assert scaling.output_scale == scaling.input_scale[1] == 1.0
    assert_allclose(scaling.outputs(inputs[:, 1]), 0, atol=1e-12 * abs(value))
    assert_allclose(scaling.inputs(inputs + 2.0)[:, 1], 2.0, atol=1e-12 * abs(value), rtol=1e-15)


@pytest.mark.parametrize("value", [1e17, -1e100])
def test_bands_around_a_large_constant_can_be_told_from_it(value):
    scaling = scaling_of(np.arange(3.0)[:, None], np.full(3, value))
    assert scaling.output_scale == abs(value) * 2.0**-40
    assert np.unique(scaling.location(np.linspace(-1, 1, 100))).size == 100


@pytest.mark.parametrize("offset", [1e9, -1e9])
def test_an_offset_of_a_billion_changes_nothing_but_the_last_digits(offset, rng):
    inputs, outputs = rng.normal(size=(50, 2)), rng.normal(size=50)
    near, far = scaling_of(inputs, outputs), scaling_of(inputs + offset, outputs + offset)
    resolution = np.spacing(1e9)
    assert_allclose(far.inputs(inputs + offset), near.inputs(inputs), atol=10 * resolution)
    assert_allclose(far.outputs(outputs + offset), near.outputs(outputs), atol=10 * resolution)
    assert_allclose(far.quantity(far.outputs(outputs + offset)) - offset, outputs, atol=10 * resolution)


def test_a_spread_that_floats_can_tell_is_a_scale(rng):
    outputs, times = 1e-100 * rng.normal(size=50), 1.7e9 + 1e-3 * rng.random((50, 1))  # representable to 2.4e-7
    scaling = scaling_of(times, outputs)
    assert_allclose(scaling.outputs(outputs).std(), 1, rtol=1e-9)
    assert_allclose(scaling.inputs(times).std(), 1, rtol=1e-3)


@pytest.mark.parametrize("size", [1e150, 1e300, 1e-150, 1e-320])
def test_sizes_whose_squares_no_computer_holds_fail_in_words(size, rng):
    inputs, outputs = rng.normal(size=(5, 2)), 1 + rng.random(size=5)
    words = "the output has values of the size of .*, too extreme to compute with; change its unit so that the largest"
    for transform in (None, Logarithm()):  # whose values would do, but not a variance in the user's units
        with pytest.raises(DataError, match=words):
            scaling_of(inputs, outputs * size, transform=transform)
    with pytest.raises(DataError, match="input column 1 has values of the size of .* lies between 1e-140 and 1e\\+140"):
        scaling_of(inputs * [1.0, size], outputs)
    scaling_of(inputs * [1.0, 0.0], outputs)  # a column of zeros has no size


def test_what_differs_in_its_last_digits_only_is_told_from_what_varies_and_what_does_not(rng):
    columns = np.column_stack([1 + 1e-15 * rng.random(50), 1 + 1e-12 * rng.random(50), np.full(50, 0.1)])
    assert_array_equal(differs_in_last_digits_only(columns), [True, False, False])
    assert scaling_of(columns, columns[:, 0]).output_scale == 1.0


def test_outputs_that_a_transform_cannot_take_fail_in_words():
    for transform, bad, words in (
        (Logarithm(), [1.0, 0.0, -2.0], '"log" needs positive outputs, but 2 of 3 are zero or negative'),
        (SquareRoot(), [0.0, 2.0, -1e-9], '"sqrt" needs outputs of zero or more, but 1 of 3 are negative'),
    ):
        with pytest.raises(DataError, match=f"output_transform={words}"):
            scaling_of(np.arange(3.0)[:, None], np.array(bad), transform=transform)


# Transforms


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
