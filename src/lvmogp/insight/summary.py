"""What a fitted model says about itself: relevances, noise, errors on points left out, remarks in words."""

import dataclasses
import functools
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.conditions.curves import picked
from lvmogp.conditions.ensemble import chunks
from lvmogp.conditions.predictive import Curves, moments_in_units, scores_in_units, statistic_of, trained_curves
from lvmogp.errors import SettingError
from lvmogp.estimator import LVMOGPRegressor, fitted_model
from lvmogp.fitted.calibration import LEVELS, Calibration, Forecasts, calibration, checked_levels
from lvmogp.fitted.model import FittedModel, ensemble_given, noise_variances
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_double_precision
from lvmogp.inference.restarts import MINIBATCHES, Outcome
from lvmogp.insight.variance import variance_shares
from lvmogp.model.layouts import Data, GridData, LongData, layout_for_bounds, standardised
from lvmogp.model.parameters import Kernels
from lvmogp.model.process import Process
from lvmogp.tables.ids import Id, listed
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import is_spread_over_magnitudes
from lvmogp.typing import Array, Float, HostFloat, Int

LEVEL = 0.95
_N_PAIRS = 4_096
# Processes over which relevances are averaged, and with which predictions of what is left out are made.
_DRAWS_OF_RELEVANCE, _DRAWS_OF_LEAVE_OUT = 16, 64
# A dense covariance over more pairs of inducing points than this is not formed for a check.
_MOST_INDUCING = 2_500
_IRRELEVANT = 0.005
_NEARLY_NO_NOISE = 1e-3
_NEARLY_ALL_NOISE = 0.95
_NOTABLE_NATS = 2.0


# Relevance


def input_names(model: LVMOGPRegressor) -> list[str]:
    """Return the names of the inputs; numbered where the training data had none."""
    return list(fitted_model(model).schema.input_names)


class Relevances(NamedTuple):
    """Relevance of each input, of each latent dimension and of each known feature of the conditions, as tables."""

    inputs: pd.DataFrame
    latents: pd.DataFrame
    features: pd.DataFrame


@in_double_precision
def relevances(model: LVMOGPRegressor) -> Relevances:
    """Return the share of the variance of the predictions in which each input, latent and feature has a part.

    Sobol's total effect: half the mean squared change of the predicted mean when one of them alone is taken from
    another observation, divided by the variance of the predicted mean over observations. 0 means that it does not
    matter. Shares add up to more than one where they act together. The coordinates of a category are moved together.
    """
    trained, inputs = fitted_model(model), input_names(model)
    features = [] if trained.condition_features is None else [each.name for each in trained.condition_features.features]
    named = {"input": inputs, "dimension": np.arange(1, trained.n_latent + 1), "feature": features}
    effects = np.split(_total_effects(trained), [len(inputs), len(inputs) + trained.n_latent])
    tables = zip(named.items(), effects, strict=True)
    return Relevances(*(pd.DataFrame({kind: names, "relevance": own}) for (kind, names), own in tables))


def input_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the share of the variance of the predictions in which each input has a part (:func:`relevances`)."""
    return relevances(model).inputs


def latent_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the share of the variance in which each latent dimension has a part (:func:`relevances`)."""
    return relevances(model).latents


def feature_relevance(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the share of the variance in which each feature of the conditions has a part (:func:`relevances`)."""
    return relevances(model).features


def _total_effects(trained: FittedModel) -> HostFloat:
    """Return T_q = ⟨(f(z) − f(z with z_q from z'))²⟩ / 2 Var f for each input, latent and feature q.

    The mean is over pairs of observations z = (x, h) and z' = (x', h'), and over some processes, each with latents of
    its own. Coordinates are moved as they are aligned: h = gRᵀ is a latent g in the coordinates of a process.
    """
    ensemble = trained.ensemble
    if ensemble.n_processes > _DRAWS_OF_RELEVANCE and trained.observations is not None:
        data = standardised(trained.observations, trained.scaling)
        ensemble = ensemble_given(trained, data, most_draws=_DRAWS_OF_RELEVANCE)
    latents, rotations = np.asarray(ensemble.latents, dtype=float), np.asarray(ensemble.rotations, dtype=float)
    if trained.observations is not None:
        inputs, conditions = trained.scaling.inputs(trained.observations.inputs), trained.observations.conditions
    else:  # inducing inputs with each of the conditions
        points, n_conditions = np.asarray(trained.posterior.parameters.inducing_inputs), len(trained.ids)
        inputs, conditions = np.repeat(points, n_conditions, axis=0), np.tile(np.arange(n_conditions), len(points))
    pairs = np.random.default_rng(0).integers(len(inputs), size=(2, _N_PAIRS))
    # Which coordinates of a point are moved: none, then those of each input, latent and feature.
    places = () if trained.condition_features is None else trained.condition_features.places
    sizes = [1] * (inputs.shape[1] + trained.n_latent) + [place.stop - place.start for place in places]
    moved = np.repeat(np.arange(len(sizes)), sizes) == np.arange(-1, len(sizes))[:, None]
    effects = np.zeros(len(sizes))
    for some, processes in chunks(ensemble):
        for place, number in enumerate(some):
            aligned = latents[number] @ rotations[number]
            here, other = (np.hstack([inputs[rows], aligned[conditions[rows]]]) for rows in pairs)
            points = np.where(moved[:, None], other, here)
            points[..., inputs.shape[1] :] @= rotations[number].T
            process, *sets = (jnp.asarray(each) for each in (np.array(place), *points.astype(ensemble.dtype)))
            values = np.array([_means(processes, process, each) for each in sets], dtype=float)
            variance = np.var(values[0])
            if variance > 0:
                effects += ensemble.weights[number] * np.mean((values[1:] - values[0]) ** 2, axis=1) / (2 * variance)
    return effects


@compiled
def _means(processes: Process, place: Int[Array, ""], points: Float[Array, "n Q"]) -> Float[Array, " n"]:
    """Return the mean of f(x, h) at rows (x, h) under one of the processes."""
    process = picked(processes, place)
    inputs, latents = jnp.split(points, [process.inputs.points.shape[1]], axis=1)
    return jax.vmap(process.explained.mean)(process.inputs(inputs)[:, None, :], process.latents(latents))[:, 0]


# Observations left out


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
    observations, scaling = trained.observations, trained.scaling
    if not isinstance(n_folds, numbers.Integral) or n_folds < 2:
        raise SettingError(
            f"n_folds must be a whole number from 2 on, got {n_folds!r}: each is predicted from the others"
        )
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
        ensemble = ensemble_given(trained, _rest(trained, observations, data, left_out), most_draws=_DRAWS_OF_LEAVE_OUT)
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
    return calibration(Forecasts(below, density, predicted - outputs, observations.conditions, trained.ids), asked)


def _rest(trained: FittedModel, observations: Observations, data: Data, left_out: np.ndarray) -> Data:
    # The data without some observations; the places of these in blocks of long data are emptied.
    if isinstance(data, GridData):
        return standardised(observations.some(~left_out), trained.scaling)
    layout = layout_for_bounds(observations.conditions, data.n_conditions)
    present = layout.present * ~left_out[layout.row]
    counts = np.bincount(observations.conditions[~left_out], minlength=data.n_conditions)
    outputs = jnp.asarray(np.asarray(data.outputs) * present)
    return dataclasses.replace(data, outputs=outputs, present=jnp.asarray(present), counts=jnp.asarray(counts, float))


# Summary


class Summary(NamedTuple):
    """All there is to say about a fitted model in one place."""

    n_observations: int | None
    n_conditions: int
    conditions_added: list[Id]
    inputs: list[str]
    input_transform: dict[str, str]
    output: str | None
    n_latent: int
    bound: float
    status: str
    n_starts: int
    seconds: float
    noise_sd: float
    noise: pd.DataFrame
    input_relevance: pd.DataFrame
    latent_relevance: pd.DataFrame
    feature_relevance: pd.DataFrame
    leave_out: LeaveOut | None
    remarks: list[str]
    variance_shares: pd.DataFrame
    n_draws: int = 0
    output_transform: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; ids that it cannot hold become text."""
        found = self._asdict()
        for name in ("noise", "input_relevance", "latent_relevance", "feature_relevance", "variance_shares"):
            found[name] = [{key: _plain(value) for key, value in row.items()} for row in found[name].to_dict("records")]
        found["conditions_added"] = [_plain(name) for name in self.conditions_added]
        found["leave_out"] = None if self.leave_out is None else self.leave_out._asdict()
        return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)


def summary(model: LVMOGPRegressor) -> Summary:
    """Return all there is to say about a fitted model, each thing computed once."""
    trained, names = fitted_model(model), input_names(model)
    outcome, own_noise, relevance, left_out = trained.fit.outcome, noise(model), relevances(model), leave_out(model)
    return Summary(
        n_observations=None if trained.observations is None else len(trained.observations.outputs),
        n_conditions=len(trained.ids),
        conditions_added=list(trained.added),
        inputs=names,
        input_transform={names[column]: "log" for column in trained.scaling.log_columns},
        output=trained.schema.output_name,
        n_latent=model.n_latent_,
        bound=outcome.bound,
        status=outcome.status.value,
        n_starts=len(outcome.restarts),
        seconds=outcome.seconds,
        noise_sd=float(np.sqrt(np.mean(own_noise["noise_sd"] ** 2))),
        noise=own_noise,
        input_relevance=relevance.inputs,
        latent_relevance=relevance.latents,
        feature_relevance=relevance.features,
        leave_out=left_out,
        remarks=[
            *_about_the_fit(outcome),
            *([] if trained.chains is None else trained.chains.diagnostics.remarks),
            *_about_relevance(relevance, len(trained.ids), trained.posterior.parameters.kernels),
            *_about_noise(own_noise, trained.scaling.output_scale),
            *_about_observations(left_out, trained.observations),
            *_about_scales(model, trained.observations),
        ],
        variance_shares=variance_shares(model),
        n_draws=0 if trained.draws is None else trained.draws.n_draws,
        output_transform=trained.scaling.transform_name,
    )


def remarks(model: LVMOGPRegressor) -> list[str]:
    """Return what a careful reader should know before using the model, each in a sentence or two."""
    return summary(model).remarks


def noise(model: LVMOGPRegressor) -> pd.DataFrame:
    """Return the standard deviation of each trained condition's noise, in units of the output or of its transform."""
    trained = fitted_model(model)
    deviations = np.sqrt(trained.scaling.variance(noise_variances(trained)))
    return pd.DataFrame({"condition": pd.Series(list(trained.ids), dtype=object), "noise_sd": deviations})


def _about_the_fit(outcome: Outcome) -> Iterator[str]:
    if not outcome.converged:
        yield f"The fit did not converge ({outcome.status.value}); raise max_iter for a better one."
    if outcome.notable_jitter is not None:
        yield (
            f"A jitter of {outcome.notable_jitter:.0e} of the variance was needed to keep the algebra stable; use "
            "fewer inducing points."
        )
    bounds = sorted((restart.bound for restart in outcome.restarts if np.isfinite(restart.bound)), reverse=True)
    if len(bounds) > 1 and bounds[0] - bounds[1] > _NOTABLE_NATS:
        yield (
            f"Only one of {len(bounds)} starts reached the best bound ({bounds[0]:.1f}; the next {bounds[1]:.1f}); "
            "more starts (n_restarts) may find a better fit."
        )


def _about_relevance(found: Relevances, n_conditions: int, kernels: Kernels) -> Iterator[str]:
    for kind, table in (("Input", found.inputs), ("Feature", found.features)):
        for name, relevance in table[table["relevance"] < _IRRELEVANT].itertuples(index=False):
            yield f"{kind} {name!r} hardly matters (relevance {relevance:.3f})."
    unused = found.latents.loc[found.latents["relevance"] < _IRRELEVANT, "dimension"]
    if n_conditions == 1 or len(unused) == 0 or not kernels.of_latents:
        return
    if len(unused) < len(found.latents):
        numbers, n_used = ", ".join(map(str, unused)), len(found.latents) - len(unused)
        yield f"Latent dimension {numbers} is hardly used; n_latent={n_used} would do."
    elif len(found.features):
        yield "The features tell all about the conditions: no latent dimension is used."
    elif kernels.own is not None:
        yield "Conditions differ by their own curves alone: no latent dimension is used."
    else:
        yield "The conditions hardly differ: no latent dimension is used."


def _about_scales(model: LVMOGPRegressor, seen: Observations | None) -> Iterator[str]:
    # Not of what the user has decided on, or has left to the bound.
    if seen is None:
        return
    asked = model.input_transform
    decided = set(map(str, asked)) if isinstance(asked, Mapping) else set[str]()
    columns = zip(seen.column_keys, seen.input_names, seen.inputs.T, strict=True)
    apt = {name: values for key, name, values in columns if not {str(key), name} & {*decided, *seen.date_columns}}
    outputs = seen.outputs if model.output_transform is None else None
    yield from about_magnitudes({} if isinstance(asked, str) else apt, outputs, seen.output_name)


def about_magnitudes(
    inputs: Mapping[str, HostFloat], outputs: HostFloat | None, output_name: str | None
) -> Iterator[str]:
    """Say of inputs and of outputs, before or after a fit to them, that they span orders of magnitude."""
    for name, values in inputs.items():
        if is_spread_over_magnitudes(values):
            yield (
                f"Input {name!r} is positive and spans orders of magnitude ({values.min():.3g} to {values.max():.3g}): "
                f"its logarithm may suit better. Name it in input_transform (--log-input {name}), or let the bound "
                "choose (--input-transform auto)."
            )
    if outputs is not None and is_spread_over_magnitudes(outputs):
        named = "The output" if output_name is None else f"The output {output_name!r}"
        yield (
            f"{named} is positive and spans orders of magnitude ({outputs.min():.3g} to {outputs.max():.3g}): a "
            'transform may suit better. Use output_transform="log", or let the bound choose (--output-transform auto).'
        )


def _about_noise(noises: pd.DataFrame, scale: float) -> Iterator[str]:
    share = float(np.mean(noises["noise_sd"] ** 2)) / scale**2
    quiet = noises.loc[noises["noise_sd"] < _NEARLY_NO_NOISE * scale, "condition"]
    if share > _NEARLY_ALL_NOISE:
        yield (
            f"The noise is {100 * share:.0f} % of the variance of the output: the inputs and conditions explain little."
        )
    elif len(quiet) == len(noises):
        yield "The noise is nearly zero. With exact data that is right; otherwise the model follows the noise."
    elif len(quiet):
        yield f"The noise of {listed(list(quiet))} is nearly zero; the model may follow the noise there."


def _about_observations(left_out: LeaveOut | None, observations: Observations | None) -> Iterator[str]:
    if left_out is not None and left_out.rmse > _NEARLY_ALL_NOISE * left_out.spread:
        yield "Observations left out are predicted no better than by their mean."
    # Three standard errors of a share of this many observations.
    if left_out is not None and left_out.coverage < LEVEL - 3 * np.sqrt(LEVEL * (1 - LEVEL) / left_out.n_observations):
        yield (
            f"95 % intervals hold only {100 * left_out.coverage:.0f} % of the observations left out: they are too "
            "narrow. Try noise='per-condition', another kernel or more inducing points."
        )
    counts = np.ones(0) if observations is None else observations.counts
    if observations is not None and np.any(counts == 0):
        empty = [observations.ids[number] for number in np.flatnonzero(counts == 0)]
        yield f"{listed(empty)} had no observation; only the prior speaks for that."
    if np.any(counts == 1):
        yield f"{np.sum(counts == 1)} of {len(counts)} conditions had a single observation."
