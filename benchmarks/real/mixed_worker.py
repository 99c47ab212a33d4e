"""A linear mixed model of statsmodels: a natural spline for all, and a polynomial of each condition's own.

Degrees of freedom of the spline and degree of the polynomials are chosen by AIC among fits by maximum likelihood; the
chosen model is fitted once more by restricted maximum likelihood, which does not take few conditions for alike.
"""

import itertools
import warnings
from typing import NamedTuple

import numpy as np
import statsmodels.api as sm
from patsy import DesignMatrix, build_design_matrices, dmatrix

from benchmarks.real.serving import Arrays, serve

_MOST_FREEDOM = 6
_MOST_DEGREE = 2
# With few conditions the first may say that it has converged well before the second does.
_OPTIMISERS = ("lbfgs", "powell")


class Fitted(NamedTuple):
    """Coefficients for all, covariance of those of a condition, variance of the noise, and the log-likelihood."""

    common: np.ndarray
    between: np.ndarray
    noise: float
    log_likelihood: float


def predict(task: Arrays) -> Arrays:
    """Fit, and predict observations by best linear unbiased prediction, with the variance components fixed."""
    inputs, outputs, conditions = task["inputs"][:, 0], task["outputs"], task["conditions"]
    n_distinct = len(np.unique(inputs))
    found: dict[tuple[int, int], float] = {}

    def criterion(freedom: int, degree: int) -> float:
        if (freedom, degree) not in found:
            fit = fitted(_spline(inputs, freedom), outputs, conditions, _powers(inputs, degree), restricted=False)
            n_values = freedom + 1 + (degree + 1) * (degree + 2) / 2 + 1
            found[freedom, degree] = np.inf if fit is None else 2 * n_values - 2 * fit.log_likelihood
        return found[freedom, degree]

    # One after the other, and once more: all pairs would take three times as long.
    freedoms, degrees = range(1, min(_MOST_FREEDOM, n_distinct - 1) + 1), range(_MOST_DEGREE + 1)
    freedom, degree = max(freedoms), 1
    for _ in range(2):
        degree = min(degrees, key=lambda each: criterion(freedom, each))
        freedom = min(freedoms, key=lambda each: criterion(each, degree))
    chosen = _spline(inputs, freedom)
    for restricted, fewer in itertools.product((True, False), range(degree + 1)):
        effects = _powers(inputs, degree - fewer)
        fit = fitted(chosen, outputs, conditions, effects, restricted=restricted)
        if fit is not None:
            asked = np.asarray(build_design_matrices([chosen.design_info], {"x": task["test_inputs"][:, 0]})[0])
            wanted = _powers(task["test_inputs"][:, 0], degree - fewer)
            return _moments(fit, (chosen, effects, outputs, conditions), (asked, wanted, task["test_conditions"]))
    raise RuntimeError("no mixed model could be fitted")


def fitted(
    common: np.ndarray, outputs: np.ndarray, conditions: np.ndarray, effects: np.ndarray, *, restricted: bool
) -> Fitted | None:
    """Fit by each optimiser and take the likeliest; ``None`` if all failed."""
    tried = []
    for optimiser in _OPTIMISERS:
        try:
            result = sm.MixedLM(outputs, np.asarray(common), conditions, effects).fit(
                reml=restricted, method=optimiser, skip_hessian=True
            )
        except (np.linalg.LinAlgError, ValueError):
            continue
        fit = Fitted(np.asarray(result.fe_params), np.asarray(result.cov_re), result.scale, float(result.llf))
        if np.isfinite(fit.log_likelihood) and np.all(np.isfinite(fit.common)) and fit.noise > 0:
            tried.append(fit)
    return max(tried, key=lambda fit: fit.log_likelihood, default=None)


def _moments(
    fit: Fitted,
    known: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    asked: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Arrays:
    common, effects, outputs, conditions = (np.asarray(part) for part in known)
    # V = Z B Zᵀ + σ² I for the rows of each condition; the coefficients for all have covariance (Σ Xᵀ V⁻¹ X)⁻¹.
    rows = {number: np.flatnonzero(conditions == number) for number in np.unique(conditions)}
    covariances = {
        number: effects[own] @ fit.between @ effects[own].T + fit.noise * np.eye(len(own))
        for number, own in rows.items()
    }
    precision = sum(common[own].T @ np.linalg.solve(covariances[number], common[own]) for number, own in rows.items())
    uncertainty = np.linalg.pinv(precision, hermitian=True)
    mean, variance = np.empty(len(asked[0])), np.empty(len(asked[0]))
    for number in np.unique(asked[2]):
        chosen = asked[2] == number
        own = rows[number]
        design, wanted = asked[0][chosen], asked[1][chosen]
        # G = Z* B Zᵀ V⁻¹; the mean is X* β + G (y − X β).
        gain = np.linalg.solve(covariances[number], effects[own] @ fit.between @ wanted.T).T
        mean[chosen] = design @ fit.common + gain @ (outputs[own] - common[own] @ fit.common)
        left = wanted @ fit.between @ wanted.T - gain @ effects[own] @ fit.between @ wanted.T
        difference = design - gain @ common[own]
        variance[chosen] = np.diag(left + difference @ uncertainty @ difference.T) + fit.noise
    return {"mean": mean, "variance": variance}


def _spline(inputs: np.ndarray, freedom: int) -> DesignMatrix:
    # Natural splines, which go on as lines; with one degree of freedom a line.
    formula = f"cr(x, df={freedom}, constraints='center')" if freedom > 1 else "x"
    return dmatrix(formula, {"x": inputs})


def _powers(inputs: np.ndarray, degree: int) -> np.ndarray:
    return inputs[:, None] ** np.arange(degree + 1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(predict)
