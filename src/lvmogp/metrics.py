"""Measures of how good predictions are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import norm

from lvmogp.typing import HostFloat


def rmse(predicted: HostFloat, actual: HostFloat) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((np.asarray(predicted) - np.asarray(actual)) ** 2)))


def coverage(lower: HostFloat, upper: HostFloat, actual: HostFloat) -> float:
    """Share of actual values inside their intervals."""
    return float(np.mean((np.asarray(lower) <= actual) & (np.asarray(actual) <= upper)))


def negative_log_density(mean: HostFloat, deviation: HostFloat, actual: HostFloat) -> float:
    """Mean negative log density of actual values under normal predictions."""
    return float(-np.mean(norm.logpdf(actual, mean, deviation)))


def calibration(mean: HostFloat, deviation: HostFloat, actual: HostFloat, levels: Sequence[float]) -> list[float]:
    """Share of actual values inside the central interval of each level, under normal predictions."""
    return share_in_central_intervals(np.asarray(norm.cdf(actual, mean, deviation)), levels)


def share_in_central_intervals(below: HostFloat, levels: Sequence[float]) -> list[float]:
    """Share of actual values inside the central interval of each level, from the probabilities of less than each."""
    return [float(np.mean(np.abs(2 * np.asarray(below) - 1) <= level)) for level in levels]


def log_density_score(model: Any, X: Any, y: Any, **conditions: Any) -> float:
    """Mean log predictive density of observations, as a ``scoring`` of scikit-learn: higher is better."""
    densities: HostFloat = model.log_predictive_density(X, y, **conditions)
    return float(np.nanmean(densities))


def r_squared_of_line(predictor: HostFloat, target: HostFloat) -> float:
    """Share of the target's variance that a straight line in the predictor explains."""
    return float(np.corrcoef(predictor, target)[0, 1] ** 2)
