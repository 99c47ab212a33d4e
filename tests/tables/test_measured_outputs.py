"""Known errors of measurements as users give them: beside which output, and in which units."""

import numpy as np
import pandas as pd
import pytest

from lvmogp import LVMOGPRegressor
from lvmogp.errors import DataError, SettingError
from lvmogp.tables.reading import read_errors, read_training
from lvmogp.tables.scaling import scaling_of
from lvmogp.tables.transforms import Logarithm, SquareRoot


def test_a_square_root_carries_errors_over():
    """To first order where they are small; at zero as half of the root of the error."""
    outputs, errors = np.array([1.0, 10.0, 100.0, 0.0, 1.0]), np.array([1e-4, 1e-4, 2e-3, 0.04, 3.0])
    scaling = scaling_of(np.arange(5.0)[:, None], outputs, transform=SquareRoot())
    found = np.sqrt(scaling.error_variances(errors, outputs)) * np.sqrt(outputs).std()
    np.testing.assert_allclose(found[:3], errors[:3] / (2 * np.sqrt(outputs[:3])), rtol=1e-7)
    np.testing.assert_allclose(found[3:], [0.1, 1.0], rtol=1e-12)


def test_a_logarithm_carries_errors_over():
    outputs, errors = np.array([1.0, 10.0, 100.0]), np.array([0.1, 0.1, 20.0])
    scaling = scaling_of(np.arange(3.0)[:, None], outputs, transform=Logarithm())
    expected = (errors / outputs / np.log(outputs).std()) ** 2
    np.testing.assert_allclose(scaling.error_variances(errors, outputs), expected)


def test_tables_of_errors_are_matched_by_the_names_of_their_columns():
    y = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "b"])
    errors = pd.DataFrame([[0.2, 0.1], [0.4, 0.3]], columns=["b", "a"])
    found = read_training([[0.0], [1.0]], y, None, y_std=errors)
    np.testing.assert_array_equal(
        np.asarray(found.errors)[np.lexsort((found.inputs[:, 0], found.conditions))], [0.1, 0.3, 0.2, 0.4]
    )
    with pytest.raises(DataError, match="y_std has a column 'c' that y has not"):
        read_training([[0.0], [1.0]], y, None, y_std=errors.rename(columns={"a": "c"}))


def test_errors_have_the_shape_of_the_outputs():
    outputs = np.array([[1.0, np.nan], [2.0, 3.0]])
    np.testing.assert_array_equal(read_errors(0.5, outputs), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(read_errors([[0.1, np.nan], [0.2, 0.3]], outputs), [[0.1, np.nan], [0.2, 0.3]])
    with pytest.raises(DataError, match=r"have the shape of y, \(2, 2\), got shape \(2,\)"):
        read_errors([0.1, 0.2], outputs)
    for wrong in (-0.1, np.nan, np.inf, 1e200):
        with pytest.raises(DataError, match="finite and not negative"):
            read_errors(wrong, outputs)
    with pytest.raises(SettingError, match="cannot take y_std"):
        LVMOGPRegressor(inference="stochastic").fit([[0.0], [1.0]], [0.0, 1.0], ["a", "b"], y_std=0.1)
