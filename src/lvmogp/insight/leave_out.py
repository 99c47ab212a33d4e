"""How well a fitted model predicts its own observations when they are left out."""

import dataclasses
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.mixtures import Mixture, asked_of, judged_in_units, moments_in_units
from lvmogp.conditions.predictive import trained_curves
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.calibration import LEVELS, Calibration, Forecasts, calibration, checked_levels
from lvmogp.fitted.model import FittedModel, ensemble_given
from lvmogp.ground.precision import in_double_precision
from lvmogp.inference.restarts import MINIBATCHES
from lvmogp.model.layouts import Data, GridData, LongData, layout_for_bounds, standardised
from lvmogp.tables.observations import Observations
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


def leave_out(model: LVMOGPRegressor, *, n_folds: int = 5) -> LeaveOut | None:
    """Predict each fold of the training data from the others, kernels and latents as fitted.

    Whole inputs are left out of a grid, single observations of long data. Latents have seen what is left out, so
    this is kinder than a refit; it costs no more than a few evaluations of the bound. ``None`` where the model has
    not kept its data, has one input only, or the check would need too large a matrix.
    """
    found, observations = leave_out_calibration(model, levels=[LEVEL], n_folds=n_folds), model.model_.observations
    if found is None or observations is None:
        return None
    return LeaveOut(
        rmse=found.rmse,
        coverage=float(found.coverage["coverage"][0]),
        log_density=found.log_density,
        spread=float(np.std(observations.outputs)),
        n_observations=found.n_observations,
    )


@in_double_precision
def leave_out_calibration(
    model: LVMOGPRegressor, *, levels: Sequence[float] = LEVELS, n_folds: int = 5
) -> Calibration | None:
    """Return the calibration of predictions of each fold of the training data from the others, as in ``leave_out``."""
    asked, trained = checked_levels(levels), fitted_model(model)
    if not isinstance(n_folds, numbers.Integral) or n_folds < 2:
        raise SettingError(
            f"n_folds must be a whole number from 2 on, got {n_folds!r}: each is predicted from the others"
        )
    observations = trained.observations
    if observations is None or len(observations.outputs) < 2:
        return None
    rows = _left_out(trained, observations, n_folds)
    if rows is None:
        return None
    outputs, ask = observations.outputs, asked_of(rows)
    predicted, _ = moments_in_units(ask, trained.scaling, len(outputs))
    density, below = judged_in_units(ask, trained.scaling, outputs, np.zeros_like(outputs))
    error = predicted - outputs
    return calibration(Forecasts(below, density, error, observations.conditions, trained.ids), asked)


def _left_out(trained: FittedModel, observations: Observations, n_folds: int) -> Mixture | None:
    # Predictive mixtures of all observations, each given the other folds, in standardised units.
    if trained.fit.outcome.restarts[0].recipe == MINIBATCHES:
        return None  # for data that are too many to go through at once
    data = standardised(observations, trained.scaling)
    if not isinstance(data, GridData) and trained.posterior.mean.size > _MOST_INDUCING:
        return None
    if isinstance(data, GridData) and len(data.inputs) < 2:
        return None  # whole inputs are left out, and this is the only one
    folds = _folds(observations, n_folds=n_folds, whole_inputs=isinstance(data, GridData))
    inputs, found, weights = trained.scaling.inputs(observations.inputs), np.empty(0), np.empty(0)
    for fold in range(folds.max() + 1):
        left_out = folds == fold
        ensemble = ensemble_given(trained, _rest(trained, observations, data, left_out), most_draws=_MOST_DRAWS)
        # All rows of long data, so that every fold has the same shapes and one compiled program serves all.
        rows = np.arange(len(folds)) if isinstance(data, LongData) else np.flatnonzero(left_out)
        mixture = trained_curves(ensemble, inputs[rows], observations.conditions[rows]).outputs(include_noise=True)
        both, weights = np.asarray([mixture.means, mixture.variances]), mixture.weights
        found = found if fold else np.empty((2, both.shape[1], len(folds)))
        found[:, :, left_out] = both[:, :, : len(rows)][:, :, left_out[rows]]
    if observations.errors is not None:
        found[1] += trained.scaling.error_variances(observations.errors, observations.outputs)
    return Mixture(jnp.asarray(weights), jnp.asarray(found[0]), jnp.asarray(found[1]))


def _folds(observations: Observations, *, n_folds: int, whole_inputs: bool) -> HostInt:
    # The fold of each row.
    n_rows = len(observations.outputs)
    places, n_places = np.arange(n_rows), n_rows
    if whole_inputs:
        distinct, inverse = np.unique(observations.inputs, axis=0, return_inverse=True)
        places, n_places = inverse.reshape(-1), len(distinct)
    return (np.random.default_rng(0).permutation(n_places) % min(n_folds, n_places))[places]


def _rest(trained: FittedModel, observations: Observations, data: Data, left_out: np.ndarray) -> Data:
    # The data without some observations; the places of these in blocks of long data are emptied.
    if not isinstance(data, LongData):
        return standardised(observations.some(~left_out), trained.scaling)
    conditions = observations.conditions
    layout = layout_for_bounds(conditions, data.n_conditions)
    present = layout.present * ~left_out[layout.row]
    counts = np.bincount(conditions[~left_out], minlength=data.n_conditions)
    changed = {"outputs": np.asarray(data.outputs) * present, "present": present, "counts": counts}
    arrays = {name: jnp.asarray(np.asarray(values, data.outputs.dtype)) for name, values in changed.items()}
    return dataclasses.replace(data, **arrays)
