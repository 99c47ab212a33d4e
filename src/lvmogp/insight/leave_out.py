"""How well a fitted model predicts its own observations when they are left out."""

import dataclasses
import functools
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.predictive import Curves, moments_in_units, scores_in_units, statistic_of, trained_curves
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.calibration import LEVELS, Calibration, Forecasts, calibration, checked_levels
from lvmogp.fitted.model import FittedModel, ensemble_given
from lvmogp.ground.precision import in_double_precision
from lvmogp.inference.restarts import MINIBATCHES
from lvmogp.model.layouts import Data, GridData, LongData, layout_for_bounds, standardised
from lvmogp.tables.observations import Observations

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
    coverage, spread = float(found.coverage["coverage"][0]), float(np.std(observations.outputs))
    return LeaveOut(found.rmse, coverage, found.log_density, spread, found.n_observations)


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
    forecasts = _forecasts(trained, n_folds)
    return None if forecasts is None else calibration(forecasts, asked)


def _forecasts(trained: FittedModel, n_folds: int) -> Forecasts | None:
    # What is predicted of each observation from the other folds.
    observations, scaling = trained.observations, trained.scaling
    if observations is None or trained.fit.outcome.restarts[0].recipe == MINIBATCHES:
        return None  # minibatches are for data that are too many to go through at once
    data = standardised(observations, scaling)
    if isinstance(data, LongData) and trained.posterior.mean.size > _MOST_INDUCING:
        return None
    places = np.arange(len(observations.outputs))
    if isinstance(data, GridData):  # whole inputs are left out
        places = np.unique(observations.inputs, axis=0, return_inverse=True)[1].reshape(-1)
    n_places = int(places.max()) + 1
    if n_places < 2:
        return None
    folds = (np.random.default_rng(0).permutation(n_places) % min(n_folds, n_places))[places]
    inputs, found, weights = scaling.inputs(observations.inputs), np.empty(0), np.empty(0)
    for fold in range(folds.max() + 1):
        left_out = folds == fold
        ensemble = ensemble_given(trained, _rest(trained, observations, data, left_out), most_draws=_MOST_DRAWS)
        # All rows of long data, so that every fold has the same shapes and one compiled program serves all.
        rows = np.flatnonzero(left_out) if isinstance(data, GridData) else places
        mixture = trained_curves(ensemble, inputs[rows], observations.conditions[rows]).outputs(include_noise=True)
        weights, both = mixture.weights, np.stack([mixture.means, mixture.variances])[:, :, : len(rows)]
        found = found if fold else np.empty((2, len(weights), len(folds)))
        found[:, :, left_out] = both[:, :, left_out[rows]]
    if observations.errors is not None:
        found[1] += scaling.error_variances(observations.errors, observations.outputs)
    outputs, (means, variances) = observations.outputs, (jnp.asarray(part)[None] for part in found)
    curves = Curves(jnp.asarray(weights), means, variances, noise=jnp.zeros(len(outputs)))
    ask = functools.partial(statistic_of, curves, include_noise=False)
    predicted, _ = moments_in_units(ask, scaling, len(outputs))
    density, below = scores_in_units(ask, scaling, outputs, np.zeros_like(outputs))
    return Forecasts(below, density, predicted - outputs, observations.conditions, trained.ids)


def _rest(trained: FittedModel, observations: Observations, data: Data, left_out: np.ndarray) -> Data:
    # The data without some observations; the places of these in blocks of long data are emptied.
    if isinstance(data, GridData):
        return standardised(observations.some(~left_out), trained.scaling)
    layout = layout_for_bounds(observations.conditions, data.n_conditions)
    present = layout.present * ~left_out[layout.row]
    counts = np.bincount(observations.conditions[~left_out], minlength=data.n_conditions)
    arrays = (np.asarray(data.outputs) * present, present, counts.astype(float))
    outputs, present, counts = (jnp.asarray(array) for array in arrays)
    return dataclasses.replace(data, outputs=outputs, present=present, counts=counts)
