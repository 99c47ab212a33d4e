"""Standardising is undone exactly, whatever the units, and never divides by nothing."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lvmogp.errors import DataError
from lvmogp.tables.scaling import differs_in_last_digits_only, scaling_of
from lvmogp.tables.transforms import TRANSFORMS, Logarithm, SquareRoot


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(50, 3)) * [1.0, 1e-6, 1e6] + [0.0, 5.0, -3.0]


@pytest.fixture
def outputs(rng):
    return 7.0 + 0.3 * rng.normal(size=50)


def test_standardised_inputs_have_mean_zero_and_unit_deviation(inputs, outputs):
    standardised = scaling_of(inputs, outputs).inputs(inputs)
    assert_allclose(standardised.mean(axis=0), 0, atol=1e-9)
    assert_allclose(standardised.std(axis=0), 1, rtol=1e-9)


def test_standardised_outputs_have_mean_zero_and_unit_deviation(inputs, outputs):
    standardised = scaling_of(inputs, outputs).outputs(outputs)
    assert_allclose([standardised.mean(), standardised.std()], [0, 1], atol=1e-12)


def test_standardising_is_an_affine_map_with_the_documented_numbers():
    scaling = scaling_of(np.array([[1.0], [3.0]]), np.array([10.0, 30.0]))
    assert_allclose(scaling.inputs(np.array([[5.0]])), [[3.0]])  # mean 2, deviation 1
    assert_allclose(scaling.outputs(np.array([40.0])), [2.0])  # mean 20, deviation 10
    assert_allclose(scaling.location(np.array([2.0])), [40.0])
    assert_allclose(scaling.variance(np.array([2.0])), [200.0])
    assert_allclose(scaling.quantity(np.array([-1.0])), [10.0])


@pytest.mark.parametrize("transform", TRANSFORMS.values())
def test_outputs_come_back_in_their_own_units(inputs, outputs, transform):
    scaling = scaling_of(inputs, outputs, transform=transform)
    assert_allclose(scaling.quantity(scaling.outputs(outputs)), outputs, rtol=1e-13)


def test_a_logarithm_is_taken_before_standardising(inputs, outputs):
    scaling = scaling_of(inputs, outputs, transform=Logarithm())
    plain = scaling_of(inputs, np.log(outputs))
    assert_allclose(scaling.outputs(outputs), plain.outputs(np.log(outputs)), rtol=1e-12)
    assert (scaling.output_mean, scaling.output_scale) == (plain.output_mean, plain.output_scale)


def test_a_root_is_taken_before_standardising(inputs, outputs):
    scaling = scaling_of(inputs, outputs, transform=SquareRoot())
    plain = scaling_of(inputs, np.sqrt(outputs))
    assert_allclose(scaling.outputs(outputs), plain.outputs(np.sqrt(outputs)), rtol=1e-12)
    assert scaling.outputs(np.zeros(1)) == -plain.output_mean / plain.output_scale


def test_location_and_variance_under_a_logarithm_are_those_of_the_logarithm(inputs, outputs):
    scaling = scaling_of(inputs, outputs, transform=Logarithm())
    assert_allclose(scaling.location(scaling.outputs(outputs)), np.log(outputs), rtol=1e-13)
    assert_allclose(scaling.variance(np.ones(1)), np.log(outputs).var(), rtol=1e-12)


def test_a_constant_column_is_shifted_only(outputs, rng):
    inputs = np.column_stack([rng.normal(size=50), np.full(50, 0.1)])
    scaling = scaling_of(inputs, outputs)
    assert scaling.input_scale[1] == 1.0
    assert_allclose(scaling.inputs(inputs)[:, 1], 0, atol=1e-15)
    assert_allclose(scaling.inputs(np.array([[0.0, 2.1]]))[0, 1], 2.0)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e9, 1e-9, 1e12])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_constant_outputs_are_shifted_only(value, count):
    # The deviation of equal values is of rounding size, not zero: 0.1 a thousand times, for one.
    scaling = scaling_of(np.arange(float(count))[:, None], np.full(count, value))
    assert scaling.output_scale == 1.0
    assert_allclose(scaling.outputs(np.full(count, value)), 0, atol=1e-12 * abs(value))


@pytest.mark.parametrize("value", [1e17, -1e100])
def test_bands_around_a_large_constant_can_be_told_from_it(value):
    scaling = scaling_of(np.arange(3.0)[:, None], np.full(3, value))
    assert scaling.output_scale == abs(value) * 2.0**-40
    assert_array_equal(np.unique(scaling.location(np.linspace(-1, 1, 100))).size, 100)


def test_a_single_row_is_shifted_only():
    scaling = scaling_of(np.array([[3.0, 4.0]]), np.array([5.0]))
    assert_array_equal(scaling.inputs(np.array([[3.0, 4.0]])), [[0.0, 0.0]])
    assert_array_equal(scaling.inputs(np.array([[4.0, 6.0]])), [[1.0, 2.0]])


@pytest.mark.parametrize("offset", [1e9, -1e9])
def test_an_offset_of_a_billion_changes_nothing_but_the_last_digits(offset, rng):
    inputs, outputs = rng.normal(size=(50, 2)), rng.normal(size=50)
    near = scaling_of(inputs, outputs)
    far = scaling_of(inputs + offset, outputs + offset)
    resolution = np.spacing(1e9)
    assert_allclose(far.inputs(inputs + offset), near.inputs(inputs), atol=10 * resolution)
    assert_allclose(far.outputs(outputs + offset), near.outputs(outputs), atol=10 * resolution)
    assert_allclose(far.quantity(far.outputs(outputs + offset)) - offset, outputs, atol=10 * resolution)


def test_milliseconds_in_times_since_1970_are_a_scale(rng):
    times = 1.7e9 + 1e-3 * rng.random((50, 1))  # representable to 2.4e-7
    scaling = scaling_of(times, rng.normal(size=50))
    assert_allclose(scaling.inputs(times).std(), 1, rtol=1e-3)


def test_a_tiny_spread_around_zero_is_a_scale(rng):
    outputs = 1e-100 * rng.normal(size=50)
    scaling = scaling_of(rng.normal(size=(50, 1)), outputs)
    assert_allclose(scaling.outputs(outputs).std(), 1, rtol=1e-9)


@pytest.mark.parametrize("size", [1e150, 1e300, 1e-150, 1e-320])
def test_sizes_whose_squares_no_computer_holds_fail_in_words(size, rng):
    inputs, outputs = rng.normal(size=(5, 2)), rng.normal(size=5)
    with pytest.raises(DataError, match="the output has values of the size of .*, too extreme to compute with"):
        scaling_of(inputs, outputs * size)
    with pytest.raises(DataError, match="input column 1 has values of the size of .*; change its unit so that the lar"):
        scaling_of(inputs * [1.0, size], outputs)


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_logarithms_do_not_help_where_a_variance_of_the_outputs_cannot_be_told(size, rng):
    with pytest.raises(DataError, match="the output has values of the size of .*, too extreme to compute with"):
        scaling_of(rng.normal(size=(50, 1)), np.exp(rng.normal(size=50)) * size, transform=Logarithm())


def test_what_differs_in_its_last_digits_only_is_told_from_what_varies_and_what_does_not(rng):
    columns = np.column_stack([1 + 1e-15 * rng.random(50), 1 + 1e-12 * rng.random(50), np.full(50, 0.1)])
    assert_array_equal(differs_in_last_digits_only(columns), [True, False, False])
    assert scaling_of(columns, columns[:, 0]).output_scale == 1.0


@pytest.mark.parametrize("bad", [[1.0, 0.0, -2.0], [0.0, 1.0, -1e-300]])
def test_a_logarithm_of_what_is_not_positive_fails_in_words(bad):
    with pytest.raises(DataError, match='output_transform="log" needs positive outputs, but 2 of 3 are zero or neg'):
        scaling_of(np.arange(3.0)[:, None], np.array(bad), transform=Logarithm())


def test_a_root_of_what_is_negative_fails_in_words():
    with pytest.raises(DataError, match='output_transform="sqrt" needs outputs of zero or more, but 1 of 3 are neg'):
        scaling_of(np.arange(3.0)[:, None], np.array([0.0, 2.0, -1e-9]), transform=SquareRoot())
