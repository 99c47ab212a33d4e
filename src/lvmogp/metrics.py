"""Measures of how good predictions are."""

import numpy as np

from lvmogp.typing import HostFloat


def rmse(predicted: HostFloat, actual: HostFloat) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((np.asarray(predicted) - np.asarray(actual)) ** 2)))


def coverage(lower: HostFloat, upper: HostFloat, actual: HostFloat) -> float:
    """Share of actual values inside their intervals."""
    return float(np.mean((np.asarray(lower) <= actual) & (np.asarray(actual) <= upper)))


def r_squared_of_line(predictor: HostFloat, target: HostFloat) -> float:
    """Share of the target's variance that a straight line in the predictor explains."""
    return float(np.corrcoef(predictor, target)[0, 1] ** 2)
