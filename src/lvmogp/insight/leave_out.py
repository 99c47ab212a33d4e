"""How well a fitted model predicts its own observations when they are left out."""

import dataclasses
import numbers
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.mixtures import Mixture, judged, moments_in_units, quantile
from lvmogp.conditions.predictive import trained_curves
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.calibration import LEVELS, Calibration, Forecasts, calibration, checked_levels
from lvmogp.fitted.model import FittedModel, ensemble_given
from lvmogp.ground.precision import in_double_precision
from lvmogp.inference.restarts import MINIBATCHES
from lvmogp.model.layouts import Data, GridData, LongData, layout_for_bounds, standardised
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import HostInt

LEVEL = 0.95
# A dense covariance over more pairs of inducing points than this is not formed for a check.
_MOST_INDUCING = 2_500
# Posterior draws that a check is made with.
_MOST_DRAWS = 64


class LeaveOut(NamedTuple):
    """Predictions of observations left out of q(U), kernels and latents as fitted.

    ``coverage`` is that of 95 % intervals, ``log_density`` the mean log predictive density, and ``spread`` the
    standard deviation of the outputs, which a model that knows nothing would have as its error.
    """

    rmse: float
    coverage: float
    log_density: float
    spread: float
    n_observations: int


@in_double_precision
def leave_out(model: LVMOGPRegressor, *, n_folds: int = 5) -> LeaveOut | None:
    """Predict each fold of the training data from the others, kernels and latents as fitted.

    Whole inputs are left out of a grid, single observations of long data. Latents have seen what is left out, so
    this is kinder than a refit; it costs no more than a few evaluations of the bound. ``None`` where the model has
    not kept its data, has one input only, or the check would need too large a matrix.
    """
    _check_folds(n_folds)
    found = _left_out(fitted_model(model), n_folds)
    return None if found is None else _measured(found)


@in_double_precision
def leave_out_calibration(
    model: LVMOGPRegressor, *, levels: Sequence[float] = LEVELS, n_folds: int = 5
) -> Calibration | None:
    """Calibration of the predictions of each fold of the training data from the others, as for ``leave_out``."""
    asked = checked_levels(levels)
    _check_folds(n_folds)
    trained = fitted_model(model)
    found = _left_out(trained, n_folds)
    if found is None:
        return None
    actual = found.observations.outputs
    predicted, _ = moments_in_units(found.rows, found.scaling)
    density, below = judged(found.rows, found.scaling, actual)
    forecasts = Forecasts(
        probability_below=below,
        log_density=density,
        error=predicted - actual,
        conditions=found.observations.conditions,
        names=trained.ids,
    )
    return calibration(forecasts, asked)


def _check_folds(n_folds: int) -> None:
    if not isinstance(n_folds, numbers.Integral) or n_folds < 2:
        raise SettingError(
            f"n_folds must be a whole number from 2 on, got {n_folds!r}: each is predicted from the others"
        )


class _LeftOut(NamedTuple):
    # Predictive distributions of all observations, each given the other folds.
    rows: Mixture
    scaling: Scaling
    observations: Observations


def _left_out(trained: FittedModel, n_folds: int) -> _LeftOut | None:
    observations = trained.observations
    if observations is None or len(observations.outputs) < 2:
        return None
    if trained.fit.outcome.restarts[0].recipe == MINIBATCHES:
        return None  # for data that are too many to go through at once
    data = standardised(observations, trained.scaling)
    if not isinstance(data, GridData) and trained.posterior.mean.size > _MOST_INDUCING:
        return None
    if isinstance(data, GridData) and len(data.inputs) < 2:
        return None  # whole inputs are left out, and this is the only one
    folds = _folds(observations, n_folds=n_folds, whole_inputs=isinstance(data, GridData))
    rows = _left_out_mixture(trained, observations, data, folds)
    if observations.errors is not None:
        errors = trained.scaling.error_variances(observations.errors, observations.outputs)
        rows = dataclasses.replace(rows, variances=rows.variances + errors)
    return _LeftOut(rows, trained.scaling, observations)


def _folds(observations: Observations, *, n_folds: int, whole_inputs: bool) -> HostInt:
    # The fold of each row.
    n_rows = len(observations.outputs)
    places, n_places = np.arange(n_rows), n_rows
    if whole_inputs:
        distinct, inverse = np.unique(observations.inputs, axis=0, return_inverse=True)
        places, n_places = inverse.reshape(-1), len(distinct)
    return (np.random.default_rng(0).permutation(n_places) % min(n_folds, n_places))[places]


def _each_fold(
    trained: FittedModel, observations: Observations, data: Data, folds: HostInt
) -> Iterator[tuple[np.ndarray, Data]]:
    # Which observations a fold leaves out, and the data without them.
    for fold in range(folds.max() + 1):
        left_out = folds == fold
        if isinstance(data, LongData):
            yield left_out, _masked(data, observations.conditions, left_out)
        else:
            yield left_out, standardised(observations.some(~left_out), trained.scaling)


def _left_out_mixture(trained: FittedModel, observations: Observations, data: Data, folds: HostInt) -> Mixture:
    # Predictive mixtures of all observations, each given the other folds, in standardised units.
    inputs, found, weights = trained.scaling.inputs(observations.inputs), None, np.empty(0)
    for left_out, rest in _each_fold(trained, observations, data, folds):
        ensemble = ensemble_given(trained, rest, most_draws=_MOST_DRAWS)
        # All rows of long data, so that every fold has the same shapes and one compiled program serves all.
        rows = np.arange(len(folds)) if isinstance(data, LongData) else np.flatnonzero(left_out)
        curves = trained_curves(ensemble, inputs[rows], observations.conditions[rows])
        both = np.asarray([curves.means[0], curves.variances[0] + curves.noise])
        found = np.empty((2, both.shape[1], len(folds))) if found is None else found
        found[:, :, left_out] = both[:, :, left_out[rows]]
        weights = curves.weights
    assert found is not None  # there are two folds at least
    return Mixture(jnp.asarray(weights), jnp.asarray(found[0]), jnp.asarray(found[1]))


def _masked(data: LongData, conditions: HostInt, left_out: np.ndarray) -> LongData:
    # Blocks with the places of some observations emptied.
    layout = layout_for_bounds(conditions, data.n_conditions)
    present = layout.present * ~left_out[layout.row]
    counts = np.bincount(conditions[~left_out], minlength=data.n_conditions)
    changed = {"outputs": np.asarray(data.outputs) * present, "present": present, "counts": counts}
    arrays = {name: jnp.asarray(np.asarray(values, data.outputs.dtype)) for name, values in changed.items()}
    return dataclasses.replace(data, **arrays)


def _measured(found: _LeftOut) -> LeaveOut:
    rows, scaling, actual = found.rows, found.scaling, found.observations.outputs
    predicted, _ = moments_in_units(rows, scaling)
    lower, upper = (quantile(rows, scaling, (1 + side * LEVEL) / 2) for side in (-1, 1))
    return LeaveOut(
        rmse=float(np.sqrt(np.mean((predicted - actual) ** 2))),
        coverage=float(np.mean((lower <= actual) & (actual <= upper))),
        log_density=float(np.mean(judged(rows, scaling, actual).log_density)),
        spread=float(np.std(actual)),
        n_observations=len(actual),
    )
