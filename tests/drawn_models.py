"""Small models put together by hand that answer from a fit or from draws, and the same ensembles as loops see them."""

import dataclasses
import functools
import itertools
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from references import (
    DenseProcess,
    Seen,
    covariance,
    hermite,
    kernel_values,
    process_of_data,
    process_of_fit,
    with_optimal_inducing,
)
from small_models import build, rbf

from lvmogp import PAPERS_MODEL, LVMOGPRegressor
from lvmogp.conditions.condition import Condition, condition_of_particles
from lvmogp.conditions.curves import FewObservations
from lvmogp.conditions.ensemble import Ensemble
from lvmogp.fitted.model import AddedCondition, Chains, Fit, FittedModel, fitted_model, observations_of
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics, Statistics
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.covariances import Kernel
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.layouts import SparseData, standardised
from lvmogp.model.parameters import Kernels, KnownCoordinates, Parameters, Term, plain_kernels
from lvmogp.tables.features import NUMBER, ConditionFeatures, Feature
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import TRANSFORMS, scaling_of

N_DRAWS = 6
IDS = tuple("abcde")
# The kinds of ensembles: form of the data, and what answers.
KINDS = {
    "fit on a grid": ("grid", "fit"),
    "fit on long data": ("long", "fit"),
    "draws on a grid": ("grid", "draws"),
    "draws on scattered data": ("long", "draws"),
    "sparse draws": ("sparse", "draws"),
}


def made_draws(model: FittedModel, *, seed: int = 3, n_draws: int = N_DRAWS) -> Draws:
    """The variational fit, disturbed: other hyperparameters, turned and moved latents, unequal weights."""
    rng = np.random.default_rng(seed)
    parameters = model.posterior.parameters

    def around(leaf: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(leaf) * np.exp(0.2 * rng.standard_normal((n_draws, *leaf.shape))))

    mean = np.asarray(parameters.latent_mean)
    turns = np.linalg.qr(rng.standard_normal((n_draws, mean.shape[1], mean.shape[1])))[0]
    turns[::2, :, :1] *= -1  # some turn, some mirror
    latents = (mean + 0.15 * rng.standard_normal((n_draws, *mean.shape))) @ turns
    if parameters.known is not None:
        known = parameters.known.gaussians
        drawn = np.asarray(known.mean) + np.sqrt(known.variance) * rng.standard_normal((n_draws, *known.mean.shape))
        latents = np.concatenate([latents, drawn], axis=2)
    log_weight, own_noise = 0.5 * rng.standard_normal(n_draws), parameters.noise_variance.shape[0] > 1
    return Draws(
        kernels=jax.tree.map(around, parameters.kernels),
        latents=jnp.asarray(latents),
        noise_variance=around(parameters.noise_variance),
        chain=jnp.asarray(np.arange(n_draws) % 2),
        log_weight=jnp.asarray(log_weight - np.log(np.sum(np.exp(log_weight)))),
        noise_spread=NoiseSpread(*jnp.asarray(rng.uniform(0.3, 0.6, (2, n_draws)))) if own_noise else None,
        own_scale=None if parameters.own_scale is None else around(parameters.own_scale),
        own_spread=None if parameters.own_scale is None else jnp.asarray(rng.uniform(0.3, 0.6, n_draws)),
    )


def curve(x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.sin(3 * x + slope) * (1 + slope / 3)


@functools.cache
def fitted(
    form: str,
    *,
    answers: str = "draws",
    noise: str = "shared",
    n_latent: int = 1,
    transform: str | None = None,
    error: float | None = None,
    n_columns: int = 1,
    features: bool = False,
    log_columns: tuple[int, ...] = (),
    own: bool = False,
) -> LVMOGPRegressor:
    """A model as a fit would leave it, of a complete grid ("grid") or of uneven conditions ("long", "sparse").

    It ``answers`` from "draws" or from the "fit" alone; the draws of "sparse" data are by inducing points. ``error`` is
    a known standard deviation of all measurements. ``features`` are one number for each condition, missing for the
    fourth if there are latents. Of ``log_columns`` the logarithms are modelled; of these the first can be one. With
    ``own`` there are a shared curve and own curves, whose variances differ where long data have noise per condition.
    """
    rng = np.random.default_rng(7)
    slopes = np.linspace(-1, 1, 5)
    is_grid = form == "grid"
    counts = [7] * 5 if is_grid else [3, 7, 2, 6, 4]
    conditions = np.repeat(np.arange(5), counts)
    inputs = np.tile(rng.uniform(0, 2, 7), 5) if is_grid else rng.uniform(0, 2, len(conditions))
    outputs = curve(inputs, slopes[conditions]) + 0.1 * rng.standard_normal(len(inputs))
    inputs = np.column_stack([inputs, 3 * np.cos(5 * inputs)])[:, :n_columns]
    observations = Observations(
        inputs,
        outputs if transform is None else TRANSFORMS[transform].backward(1.3 + outputs),
        conditions,
        IDS,
        is_grid=is_grid,
        errors=None if error is None else np.full(len(outputs), error),
    )
    units = {"transform": TRANSFORMS[transform], "log_columns": log_columns}
    scaling = scaling_of(observations.inputs, observations.outputs, **units)
    latents = np.column_stack([1.3 * slopes, 0.7 * rng.standard_normal(5)])[:, :n_latent]
    inducing_inputs = np.array([[-1.4, 0.5], [-0.5, -1.2], [0.5, 1.2], [1.4, -0.6]])[:, :n_columns]
    known = condition_features = None
    inducing_latents, lengthscales = latents[::2], [1.4, 2.0][:n_latent]
    if features:
        condition_features = _descriptions(slopes, missing=n_latent > 0)
        known = _known(condition_features)
        inducing_latents = np.column_stack([inducing_latents, [-1.0, 1.1, 0.2]])
        lengthscales = [*lengthscales, 1.7]
    kernels = plain_kernels(rbf([0.6, 1.1][:n_columns], 1.1), rbf(lengthscales, 0.9))
    if own:
        shared, rough = rbf([1.5, 2.0][:n_columns], 0.5), rbf([0.8, 0.9][:n_columns], 0.2)
        kernels = Kernels((*kernels.terms, Term(shared)), rough)
    is_free = own and noise != "shared" and not is_grid
    parameters = Parameters(
        kernels=kernels,
        inducing_inputs=jnp.asarray(inducing_inputs),
        inducing_latents=jnp.asarray(inducing_latents),
        latent_mean=jnp.asarray(latents),
        latent_variance=jnp.full(latents.shape, 0.05),
        noise_variance=jnp.asarray([0.03] if noise == "shared" else [0.01, 0.02, 0.05, 0.03, 0.02]),
        own_scale=jnp.asarray([1.2, 0.6, 0.9, 1.7, 0.8]) if is_free else None,
        known=known,
    )
    restart = Restart("by hand", -12.5, Status.CONVERGED, (-13.0, -12.5), 2, 1.0)
    outcome = Outcome(parameters, -12.5, Status.CONVERGED, (restart,), 1e-7, 1e-7, 1.0)
    bounds = ({key: -12.5} for key in (n_latent, transform, log_columns))
    fit = Fit(build(parameters, standardised(observations, scaling)), outcome, *bounds)
    trained = fitted_model(observations, scaling, fit, condition_features=condition_features)
    logs = dict.fromkeys(log_columns, "log") or None
    settings = {**PAPERS_MODEL, "noise": noise, "output_transform": transform, "input_transform": logs}
    estimator = LVMOGPRegressor(n_latent, **settings)
    estimator.n_features_in_ = n_columns
    # Few observations are enough for the sparse form.
    with mock.patch("lvmogp.model.layouts._MOST_SCATTERED", 10 if form == "sparse" else 1_000):
        estimator.model_ = trained if answers == "fit" else with_draws(trained, made_draws(trained))
    return estimator


def _descriptions(slopes: np.ndarray, *, missing: bool) -> ConditionFeatures:
    values = (slopes**2)[:, None]
    scale, mean = values.std(axis=0), values.mean(axis=0)
    if missing:
        values[3] = np.nan
    return ConditionFeatures((Feature("load", NUMBER),), IDS, values, mean, scale)


def _known(condition_features: ConditionFeatures) -> KnownCoordinates:
    values = condition_features.standardised(condition_features.values)
    places = np.nonzero(np.isnan(values))
    return KnownCoordinates(
        values=jnp.asarray(np.nan_to_num(values)),
        missing_condition=jnp.asarray(places[0], jnp.int32),
        missing_coordinate=jnp.asarray(places[1], jnp.int32),
        missing_mean=jnp.full(len(places[0]), 0.4),
        missing_variance=jnp.full(len(places[0]), 0.3),
    )


def of_kind(kind: str, **options) -> LVMOGPRegressor:
    """A model of one of the kinds, of two input columns unless told otherwise."""
    form, answers = KINDS[kind]
    return fitted(form, answers=answers, **{"n_columns": 2, **options})


def with_draws(model: FittedModel, draws: Draws | None) -> FittedModel:
    """The model as sampling would leave it; without draws it answers from the fit."""
    nothing = Statistics(*(np.empty(0, kind) for kind in (float, float, int, float, bool)))
    diagnostics = SamplingDiagnostics((), {}, (), nothing, n_warmup=0, completed=True, seconds=0.0)
    return fitted_model(
        model.schema,
        model.scaling,
        model.fit,
        chains=None if draws is None else Chains(draws, diagnostics),
        condition_features=model.condition_features,
    )


def forgetting(model: LVMOGPRegressor) -> LVMOGPRegressor:
    """A copy of the estimator, to which conditions can be added; the model inside is the same object."""
    copied = LVMOGPRegressor(**model.get_params(deep=False))
    copied.model_ = model.model_
    copied.n_features_in_ = model.n_features_in_
    return copied


def made_condition(
    ensemble: Ensemble, seen: FewObservations, *, n_each: int = 3, seed: int = 72, noise: tuple = (0.02, 0.2)
) -> Condition:
    """A condition of particles that nobody looked for, with uneven weights and noise of their own."""
    rng = np.random.default_rng(seed)
    shape = (ensemble.n_processes, n_each)
    latents = rng.normal(size=(*shape, ensemble.latents.shape[2]))
    weights = rng.dirichlet(np.full(n_each * shape[0], 0.7)).reshape(shape) * ensemble.weights[:, None]
    noises, own = rng.uniform(*noise, shape), rng.uniform(0.5, 2.0, shape)
    parts = (latents, noises, own, np.log(weights / weights.sum()))
    return condition_of_particles(ensemble, *(jnp.asarray(part) for part in parts), seen)


def with_made(
    model: LVMOGPRegressor, name: str, X: np.ndarray, y: np.ndarray, errors: np.ndarray | None = None, **made
) -> LVMOGPRegressor:
    """The estimator with a condition of observations and made-up particles added, so that nothing is searched for."""
    extended, inner = forgetting(model), model.model_
    condition = made_condition(inner.ensemble, observations_of(inner, X, y, errors), **made)
    entry = AddedCondition(X, y, errors, None, "exact", condition)
    extended.model_ = inner._replace(added={**inner.added, name: entry})
    return extended


# The same ensembles as loops see them, in standardised units.


class DenseEnsemble(NamedTuple):
    """Processes with their weights; means (and variances) of trained latents, noise and log-noise prior of each."""

    processes: list[DenseProcess]
    weights: np.ndarray
    latents: np.ndarray
    latent_variance: np.ndarray | None
    noise: np.ndarray
    log_noise: list[tuple[float, float]]


class Point(NamedTuple):
    """One of the points that stand for a condition."""

    weight: float
    process: int
    latent: np.ndarray
    noise: float


class DenseCondition(NamedTuple):
    """Weighted points of a condition, and what was seen of it."""

    points: list[Point]
    seen: Seen


def nothing_seen(n_columns: int) -> Seen:
    return Seen(np.empty((0, n_columns)), np.empty(0))


def flat(parameters: Parameters) -> Parameters:
    """The same with features as latents, of variance zero where they are known."""
    both = parameters.latents
    return dataclasses.replace(parameters, latent_mean=both.mean, latent_variance=both.variance, known=None)


def dense_ensemble(model: FittedModel) -> DenseEnsemble:
    scaling, observations = model.scaling, model.observations
    x, y = scaling.inputs(observations.inputs), scaling.outputs(observations.outputs)
    conditions = observations.conditions
    by_condition = [(x[conditions == d], y[conditions == d]) for d in range(len(observations.ids))]
    parameters = flat(model.posterior.parameters)
    if model.draws is None:
        noise = np.broadcast_to(parameters.noise_variance, len(by_condition))
        return DenseEnsemble(
            [process_of_fit(with_optimal_inducing(parameters, by_condition))],
            np.ones(1),
            np.asarray(parameters.latent_mean)[None],
            np.asarray(parameters.latent_variance),
            noise[None],
            [(float(np.mean(np.log(noise))), float(np.std(np.log(noise))))],
        )
    draws = model.draws
    errors = 0.0 if observations.errors is None else (observations.errors / scaling.output_scale) ** 2
    processes, noises, log_noise = [], [], []
    for number in range(draws.n_draws):
        draw = jax.tree.map(lambda leaf, number=number: np.asarray(leaf)[number], draws)
        noise = np.broadcast_to(draw.noise_variance, len(by_condition))
        sparse = model.ensemble.source.data
        if isinstance(sparse, SparseData):
            latents = jnp.asarray(draw.latents)
            inducing = (sparse.inducing_inputs, latents[sparse.inducing_conditions])
            variances = jnp.zeros_like(latents), jnp.asarray(draw.noise_variance)
            own = Parameters(draw.kernels, *inducing, latents, *variances)
            processes.append(process_of_fit(with_optimal_inducing(own, by_condition)))
        else:
            kernels = draw.kernels.of_inputs[0], draw.kernels.of_latents[0]
            processes.append(process_of_data(*kernels, x, draw.latents[conditions], y, noise[conditions] + errors))
        spread = draw.noise_spread
        shared = (float(np.log(noise[0])), 0.0)
        log_noise.append(shared if spread is None else (float(np.log(spread.median)), float(spread.deviation)))
        noises.append(noise)
    weights, latents = np.exp(np.asarray(draws.log_weight)), np.asarray(draws.latents)
    return DenseEnsemble(processes, weights, latents, None, np.stack(noises), log_noise)


def trained_points(ensemble: DenseEnsemble, number: int, nodes: np.ndarray, masses: np.ndarray) -> list[Point]:
    """Points of a trained condition: standard normal nodes for q(h) of a fit, in each draw its latents."""
    if ensemble.latent_variance is None:
        return [
            Point(weight, s, ensemble.latents[s, number], ensemble.noise[s, number])
            for s, weight in enumerate(ensemble.weights)
        ]
    mean, deviation = ensemble.latents[0, number], np.sqrt(ensemble.latent_variance[number])
    return [
        Point(mass, 0, mean + deviation * node, ensemble.noise[0, number])
        for node, mass in zip(nodes, masses, strict=True)
    ]


def library_points(condition: Condition) -> list[Point]:
    """The particles that the library found, one after the other, but for those that hardly count."""
    latents, noise, weights = np.asarray(condition.latents), np.asarray(condition.noise), condition.weights
    return [
        Point(weights[s, k], s, latents[s, k], noise[s, k]) for s, k in zip(*np.nonzero(weights > 1e-9), strict=True)
    ]


def grid_points(
    ensemble: DenseEnsemble, seen: Seen, latents: np.ndarray, log_prior: np.ndarray, n_noises: int = 7
) -> list[Point]:
    """The posterior of a new condition on a grid of latents, and of noise if conditions have their own."""
    found, logs = [], []
    for s, (process, (centre, deviation)) in enumerate(zip(ensemble.processes, ensemble.log_noise, strict=True)):
        nodes, masses = hermite(n_noises) if deviation else (np.zeros((1, 1)), np.ones(1))
        for (latent, log_mass), (node, mass) in itertools.product(
            zip(latents, log_prior, strict=True), zip(nodes[:, 0], masses, strict=True)
        ):
            noise = np.exp(centre + deviation * node)
            height = process.log_likelihood(latent, seen, noise) if len(seen.values) else 0.0
            logs.append(np.log(ensemble.weights[s] * mass) + log_mass + height)
            found.append(Point(0.0, s, latent, noise))
    weights = np.exp(np.asarray(logs) - np.max(logs))
    likely = weights > 1e-9
    weights = weights / weights[likely].sum()
    return [found[place]._replace(weight=weights[place]) for place in np.flatnonzero(likely)]


class Mixed(NamedTuple):
    """A mixture in standardised units: weights, means and covariances of f at rows, noise of all rows or of each."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    noise: np.ndarray

    def moments(self, *, include_noise: bool = False) -> tuple[np.ndarray, np.ndarray]:
        mean = self.weights @ self.means
        variances = self.variances(include_noise=include_noise)
        return mean, self.weights @ (variances + (self.means - mean) ** 2)

    def variances(self, *, include_noise: bool) -> np.ndarray:
        return np.diagonal(self.covariances, axis1=1, axis2=2) + self.noise * include_noise


def mixed(ensemble: DenseEnsemble, condition: DenseCondition, x: np.ndarray) -> Mixed:
    """Curves of a condition at inputs, one point after the other."""
    found = [ensemble.processes[s].given(x, latent, condition.seen, noise) for _, s, latent, noise in condition.points]
    weights, noise = (np.array([part[place] for part in condition.points]) for place in (0, 3))
    means, covariances = (np.stack([getattr(each, name) for each in found]) for name in ("mean", "covariance"))
    return Mixed(weights, means, covariances, noise[:, None])


def correlation(kernel: Kernel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    own, other = (np.sqrt(kernel_values(kernel, points, points)) for points in (first, second))
    return covariance(kernel, first, second) / np.outer(own, other)
