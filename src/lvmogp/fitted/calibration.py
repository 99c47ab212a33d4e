"""Whether the intervals of predictions hold as many observations as they promise.

Observations of one condition share its errors, so that conditions, not observations, are what is drawn independently:
standard errors are those of sums over conditions (docs/mathematics.md, equation 49), and at least those of
independent observations. With fewer than five conditions only the latter are known.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from scipy.stats import binom, chi2, f, t

from lvmogp.errors import DataError, SettingError
from lvmogp.tables.ids import Id, listed
from lvmogp.typing import HostFloat, HostInt

LEVELS = (0.5, 0.8, 0.9, 0.95)
# How often right intervals may be called wrong, over all levels together.
_FALSE_ALARMS = 0.05
# The same over all conditions, were their observations independent; they share errors, so it is much smaller.
_FALSE_ALARMS_OF_CONDITIONS = 1e-4
_FEWEST_CLUSTERS = 5


class Forecasts(NamedTuple):
    """What was predicted of observations: the probability below each, its density, the error of the mean.

    ``conditions`` are numbers of ``names``.
    """

    probability_below: HostFloat
    log_density: HostFloat
    error: HostFloat
    conditions: HostInt
    names: Sequence[Id]


class Calibration(NamedTuple):
    """How predictions and their intervals fit observations that the model has not seen.

    ``coverage`` has a row for each level: the share of observations inside the central interval, its standard error and
    a verdict where the two differ by more than chance explains. ``uniformity`` is the probability of predictive
    probabilities less uniform than these if predictions were right (Neyman's smooth test with two terms, which see
    predictions that are too high or low, and too sure or unsure). ``by_condition`` has a row for each condition,
    ``probability_below`` the predictive probability of an output below each observation.
    """

    n_observations: int
    n_conditions: int
    coverage: pd.DataFrame
    uniformity: float
    rmse: float
    log_density: float
    by_condition: pd.DataFrame
    probability_below: HostFloat
    remarks: list[str]

    @property
    def intervals_are_off(self) -> bool:
        """Whether intervals of some level are too narrow or too wide beyond chance."""
        return bool(np.any(self.coverage["verdict"] != ""))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold, without the probability of each observation."""
        found = self._asdict()
        del found["probability_below"]
        return {**found, **{name: found[name].to_dict("records") for name in ("coverage", "by_condition")}}


def checked_levels(levels: Any) -> HostFloat:
    """Levels of intervals or quantiles as an array, or words for why not."""
    try:
        asked = np.asarray(levels, dtype=float)
    except (TypeError, ValueError):
        asked = np.empty(0)
    if asked.ndim != 1 or len(asked) == 0 or not np.all((asked > 0) & (asked < 1)):
        raise SettingError(f"levels must be numbers between 0 and 1, at least one, got {levels!r}")
    return asked


def calibration(given: Forecasts, levels: HostFloat) -> Calibration:
    """Compare predictions with what was observed."""
    if len(given.error) == 0:
        raise DataError("there are no held-out observations: y is empty or holds NaN only")
    distinct, clusters = np.unique(given.conditions, return_inverse=True)
    inside = np.abs(2 * given.probability_below[:, None] - 1) <= levels
    coverage = _coverage(inside, levels, clusters)
    by_condition = _by_condition(given, [given.names[number] for number in distinct], clusters, levels)
    return Calibration(
        n_observations=len(given.error),
        n_conditions=len(distinct),
        coverage=coverage,
        uniformity=_uniformity(given.probability_below, clusters),
        rmse=float(np.sqrt(np.mean(given.error**2))),
        log_density=float(np.mean(given.log_density)),
        by_condition=by_condition,
        probability_below=given.probability_below,
        remarks=[
            *_about_intervals(coverage, len(given.error)),
            *_about_predictions(given.probability_below, clusters),
            *_about_conditions(by_condition, float(levels.max())),
        ],
    )


def _sums(values: HostFloat, clusters: HostInt) -> HostFloat:
    # Sums over the observations of each condition, (conditions, columns).
    return np.stack([np.bincount(clusters, weights=column) for column in values.T], axis=1)


def _standard_errors(deviations: HostFloat, variance: HostFloat, clusters: HostInt) -> tuple[HostFloat, float]:
    """Return standard errors of means, and their degrees of freedom (equation 49).

    ``variance`` is that of one observation of each column if predictions are right.
    """
    n, n_clusters = len(deviations), int(clusters.max()) + 1
    independent = np.sqrt(variance / n)
    if n_clusters < _FEWEST_CLUSTERS:
        return independent, np.inf
    clustered = np.sqrt(n_clusters) * np.std(_sums(deviations, clusters), axis=0, ddof=1) / n
    return np.maximum(independent, clustered), n_clusters - 1


def _coverage(inside: np.ndarray, levels: HostFloat, clusters: HostInt) -> pd.DataFrame:
    shares = inside.mean(axis=0)
    errors, n_free = _standard_errors(inside - shares, levels * (1 - levels), clusters)
    tolerance = errors * t.ppf(1 - _FALSE_ALARMS / 2 / len(levels), n_free)
    verdict = np.where(shares < levels - tolerance, "too narrow", np.where(shares > levels + tolerance, "too wide", ""))
    return pd.DataFrame({"level": levels, "coverage": shares, "standard_error": errors, "verdict": verdict})


def _uniformity(below: HostFloat, clusters: HostInt) -> float:
    """Neyman's smooth test: Legendre polynomials of uniform values have mean zero and variance one."""
    u = 2 * below - 1
    scores = np.stack([np.sqrt(3) * u, np.sqrt(5) * (3 * u**2 - 1) / 2], axis=1)
    n_terms, n_clusters = int(scores.shape[1]), int(clusters.max()) + 1
    if n_clusters < _FEWEST_CLUSTERS:
        return float(chi2.sf(float(np.sum(scores.sum(axis=0) ** 2)) / len(scores), n_terms))
    # Hotelling's test that sums over conditions have mean zero.
    sums = _sums(scores, clusters)
    mean, covariance = sums.mean(axis=0), np.cov(sums.T) + 1e-12 * np.eye(n_terms)
    squared = cast(float, n_clusters * mean @ np.linalg.solve(covariance, mean))
    return float(f.sf(squared * (n_clusters - n_terms) / (n_terms * (n_clusters - 1)), n_terms, n_clusters - n_terms))


def _by_condition(given: Forecasts, names: list[Id], clusters: HostInt, levels: HostFloat) -> pd.DataFrame:
    counts = np.bincount(clusters)
    inside = np.abs(2 * given.probability_below - 1) <= levels.max()
    columns = np.stack([given.error**2, inside, given.log_density, given.probability_below], axis=1)
    means = _sums(columns, clusters) / counts[:, None]
    means[:, 0] = np.sqrt(means[:, 0])
    own = dict(zip(("rmse", "coverage", "log_density", "mean_probability_below"), means.T, strict=True))
    return pd.DataFrame({"condition": pd.Series(names, dtype=object), "n": counts, **own})


# Remarks


def _about_intervals(coverage: pd.DataFrame, n: int) -> list[str]:
    # The level that is off by most standard errors speaks for all.
    off = coverage[coverage["verdict"] != ""]
    if len(off) == 0:
        return []
    sizes = np.abs(np.asarray((off["coverage"] - off["level"]) / off["standard_error"]))
    worst = off.iloc[int(np.argmax(sizes))]
    level, share, size = f"{100 * worst['level']:g}", f"{100 * worst['coverage']:.0f}", f"{sizes.max():.1f}"
    if worst["verdict"] == "too narrow":
        return [
            f"{level} % intervals hold only {share} % of {n} observations, {size} standard errors too few: they are "
            "too narrow. Try noise='per-condition', more inducing points, another kernel, or inference='nuts'."
        ]
    return [
        f"{level} % intervals hold {share} % of {n} observations, {size} standard errors too many: they are too wide. "
        "Try noise='per-condition', or log outputs where errors grow with the output."
    ]


def _about_predictions(below: HostFloat, clusters: HostInt) -> list[str]:
    # A t-test of the mean of the probabilities, which is one half where predictions are right.
    errors, n_free = _standard_errors(below[:, None] - 0.5, np.array([1 / 12]), clusters)
    shift = float(np.mean(below)) - 0.5
    if abs(shift) < t.ppf(1 - _FALSE_ALARMS / 10, n_free) * float(np.max(errors)):
        return []
    words = ("above", "low") if shift > 0 else ("below", "high")
    return [f"The observations lie {words[0]} their predictions more often than not: predictions are too {words[1]}."]


def _about_conditions(by_condition: pd.DataFrame, level: float) -> list[str]:
    counts = np.asarray(by_condition["n"])
    hits = np.rint(np.asarray(by_condition["coverage"]) * counts)
    chances = np.asarray(binom.cdf(hits, counts, level))  # of so few inside
    poor = by_condition.loc[chances < _FALSE_ALARMS_OF_CONDITIONS / len(counts), "condition"]
    if len(by_condition) < 2 or len(poor) == 0:
        return []
    return [f"Intervals are too narrow for {listed(list(poor))}: look at the data there, or try noise='per-condition'."]
