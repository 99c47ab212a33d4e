"""A fitted model together with the conditions added to it afterwards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import lvmogp.predictions as predictions
from lvmogp.compiling import compiled
from lvmogp.data import rounded_up
from lvmogp.errors import DataError, NumericalError
from lvmogp.evidence import evidence
from lvmogp.fit import Outcome
from lvmogp.ids import Id, RowIds, unknown_condition
from lvmogp.intake import Observations
from lvmogp.new_condition import infer
from lvmogp.posterior import Curves, Posterior, curves_at, trained_curves
from lvmogp.posterior import curves as curves_of_moments
from lvmogp.predictions import (
    Condition,
    Mixture,
    Moments,
    Statistic,
    as_particles,
    draw_curves,
    gaussian_moments,
    gaussian_rows,
    gradients,
    in_units,
    joint_covariance,
    log_density_in_units,
    mixture,
    moments_in_units,
    output_factors,
    probability_below_in_units,
    statistic_of,
    trained_condition,
    trained_statistic,
)
from lvmogp.predictions import grid_moments as gaussian_grid_moments
from lvmogp.psi_statistics import LatentGaussians, expected_cross, psi0
from lvmogp.scaling import Scaling
from lvmogp.typing import HostFloat, HostInt
from lvmogp.variational_condition import GaussianCondition, infer_gaussian
from lvmogp.whitening import latent_moments

_trained_curves, _curves_at, _expected_cross = compiled(trained_curves), compiled(curves_at), compiled(expected_cross)
METHODS = ("exact", "gaussian")
# Half a gigabyte of them in double precision.
_MOST_CURVE_ELEMENTS = 2**26
_CONDITIONS_AT_ONCE = 1_024
_Tree = TypeVar("_Tree")


class AddedCondition(NamedTuple):
    """A condition added after the fit: its observations in the user's units, and what they say of it."""

    inputs: HostFloat
    outputs: HostFloat
    method: str
    posterior: Condition


class TrainedModel(NamedTuple):
    """Everything needed to predict: the posterior, the units, the conditions."""

    ids: tuple[Id, ...]
    columns: tuple[str, ...] | None
    n_columns: int
    is_grid: bool
    scaling: Scaling
    posterior: Posterior
    curves: Curves | None
    outcome: Outcome
    observations: Observations | None
    added: Mapping[Id, AddedCondition]
    bounds_by_n_latent: Mapping[int, float] = MappingProxyType({})
    date_columns: tuple[str, ...] = ()
    output_name: str | None = None

    @property
    def all_ids(self) -> tuple[Id, ...]:
        """Trained conditions, then added ones."""
        return (*self.ids, *self.added)


def trained_model(
    model: Posterior, outcome: Outcome, *, ids: tuple[Id, ...], scaling: Scaling, observations: Observations
) -> TrainedModel:
    """Put a fitted posterior and its account together."""
    curves = kept_curves(model)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(curves or model.mean)):
        raise NumericalError(
            "the posterior of the fitted model is not finite; the inducing points lie too close together or the noise "
            'is vanishing: use fewer inducing points, or dtype="float64"'
        )
    return TrainedModel(
        ids=ids,
        columns=observations.columns,
        n_columns=observations.inputs.shape[1],
        is_grid=observations.is_grid,
        scaling=scaling,
        posterior=model,
        curves=curves,
        outcome=outcome,
        observations=observations,
        added={},
        date_columns=observations.date_columns,
        output_name=observations.output_name,
    )


def mapped_arrays(model: TrainedModel, function: Callable[[Any], Any]) -> TrainedModel:
    """The model with a function applied to each of its device arrays."""

    def mapped(tree: _Tree) -> _Tree:
        return jax.tree.map(function, tree)

    return model._replace(
        posterior=mapped(model.posterior),
        curves=mapped(model.curves),
        outcome=model.outcome._replace(parameters=mapped(model.outcome.parameters)),
        added={name: entry._replace(posterior=mapped(entry.posterior)) for name, entry in model.added.items()},
        bounds_by_n_latent=dict(model.bounds_by_n_latent),
    )


def kept_curves(model: Posterior) -> Curves | None:
    """Curves of all trained conditions, to be kept if they are not too many; else they are computed when asked for."""
    n_conditions, n_inputs = len(model.parameters.latent_mean), len(model.mean)
    return _trained_curves(model) if n_conditions * n_inputs**2 <= _MOST_CURVE_ELEMENTS else None


def _curves_of(model: TrainedModel, numbers: HostInt) -> tuple[Curves, HostInt]:
    # Curves that hold the conditions of these numbers, and their places among them.
    if model.curves is not None:
        return model.curves, numbers
    distinct, places = np.unique(numbers, return_inverse=True)
    padded = np.resize(distinct, rounded_up(len(distinct)))
    latents = jax.tree.map(lambda leaf: leaf[padded], model.posterior.parameters.latents)
    return _curves_under(model.posterior, latents), places.reshape(-1)


@compiled
def _curves_under(model: Posterior, latents: LatentGaussians) -> Curves:
    return curves_of_moments(model, latent_moments(model.latent_basis, latents))


def _trained_moments(model: TrainedModel, points: HostFloat, numbers: HostInt) -> Moments:
    noise = model.posterior.parameters.host_noise
    if model.curves is not None:
        return gaussian_moments(model.posterior, model.curves, noise, points, numbers)
    found = Moments(*np.empty((3, len(points))))
    order = np.argsort(numbers, kind="stable")
    group = np.cumsum(np.r_[False, np.diff(numbers[order]) > 0]) // _CONDITIONS_AT_ONCE
    for rows in np.split(order, np.flatnonzero(np.diff(group)) + 1):
        shapes, places = _curves_of(model, numbers[rows])
        some = np.resize(noise[np.unique(numbers[rows])], len(shapes.weights))
        for whole, part in zip(
            found, gaussian_moments(model.posterior, shapes, some, points[rows], places), strict=True
        ):
            whole[rows] = part
    return found


def find_condition(model: TrainedModel, name: Id, *, unseen: str) -> Condition:
    """A condition by its id; one never seen is an error, or with ``unseen="prior"`` the prior over latents."""
    if name in model.added:
        return model.added[name].posterior
    if name in model.ids:
        number = model.ids.index(name)
        shapes, (place,) = _curves_of(model, np.asarray([number]))
        return trained_condition(model.posterior, shapes, number, int(place))
    if unseen == "prior":
        nothing = evidence(model.posterior, np.empty((0, model.n_columns)), np.empty(0))
        return infer(model.posterior, nothing)
    raise unknown_condition(name, model.all_ids)


def moments(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Mean and variance of the output at each row, in the user's units."""
    scaling = model.scaling
    if scaling.log_output:
        factors = output_factors(scaling, len(inputs))
        both = _statistic(model, inputs, rows, factors, in_units(scaling), unseen=unseen, include_noise=include_noise)
        return both[:, 0], both[:, 1]
    points = scaling.inputs(inputs)
    mean, variance = np.empty(len(points)), np.empty(len(points))
    numbers = rows.numbers_in(model.ids)
    known = slice(None) if np.all(numbers >= 0) else numbers >= 0
    if len(numbers[known]):
        found = _trained_moments(model, points[known], numbers[known])
        mean[known] = scaling.location(found.mean)
        variance[known] = scaling.variance(found.variance + found.noise * include_noise)
    for places, condition in _others(model, rows, unseen=unseen):
        if isinstance(condition, GaussianCondition):
            noise, first = np.asarray(condition.noise)[None], np.zeros(len(places), int)
            found = gaussian_moments(model.posterior, condition.curves, noise, points[places], first)
            mean[places] = scaling.location(found.mean)
            variance[places] = scaling.variance(found.variance + found.noise * include_noise)
        else:
            mean[places], variance[places] = moments_in_units(
                _mixture(model, condition, points[places], include_noise), scaling
            )
    return mean, variance


def grid_moments(
    model: TrainedModel, inputs: HostFloat, *, include_noise: bool, with_variance: bool
) -> tuple[HostFloat, HostFloat | None]:
    """Mean and, on request, variance of the outputs of all trained conditions at all rows, (rows, conditions)."""
    scaling, posterior = model.scaling, model.posterior
    n_conditions = len(model.ids)
    if scaling.log_output:
        rows = RowIds(model.ids, np.repeat(np.arange(n_conditions), len(inputs)))
        repeated = np.tile(inputs, (n_conditions, 1))
        mean, variance = moments(model, repeated, rows, unseen="error", include_noise=include_noise)
        return mean.reshape(n_conditions, -1).T, variance.reshape(n_conditions, -1).T
    points = scaling.inputs(inputs)
    at_once = n_conditions if model.curves is not None else _CONDITIONS_AT_ONCE
    found = []
    for start in range(0, n_conditions, at_once):
        numbers = np.arange(start, min(start + at_once, n_conditions))
        shapes, places = _curves_of(model, numbers)
        parts = gaussian_grid_moments(posterior, shapes, points, with_variance=with_variance)
        found.append([None if part is None else part[:, places] for part in parts])
    means, variances = zip(*found, strict=True)
    mean = scaling.location(np.hstack(means))
    if not with_variance:
        return mean, None
    return mean, scaling.variance(np.hstack(variances) + posterior.parameters.host_noise * include_noise)


def _others(model: TrainedModel, rows: RowIds, *, unseen: str) -> Iterator[tuple[HostInt, Condition]]:
    # Rows of each condition that was not part of the training, with that condition.
    trained = set(model.ids)
    if trained.issuperset(rows.distinct):
        return
    for name, places in rows.rows().items():
        if name not in trained:
            yield places, find_condition(model, name, unseen=unseen)


def quantiles(
    model: TrainedModel,
    inputs: HostFloat,
    rows: RowIds,
    levels: Sequence[float],
    *,
    unseen: str,
    include_noise: bool,
) -> HostFloat:
    """Quantiles of the output at each row, one column a level, in the user's units."""
    given = np.broadcast_to(levels, (len(inputs), len(levels)))
    found = _statistic(model, inputs, rows, given, predictions.quantiles, unseen=unseen, include_noise=include_noise)
    return model.scaling.quantity(found)


def log_densities(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, outputs: HostFloat, *, unseen: str
) -> HostFloat:
    """Log predictive density of the output of each row, per unit of the output."""

    def standardised(values: HostFloat) -> HostFloat:
        return _statistic(model, inputs, rows, values, predictions.log_densities, unseen=unseen, include_noise=True)

    return log_density_in_units(model.scaling, outputs, standardised)


def probabilities_below(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, outputs: HostFloat, *, unseen: str
) -> HostFloat:
    """Probability of an output no larger than that of each row."""

    def standardised(values: HostFloat) -> HostFloat:
        return _statistic(model, inputs, rows, values, predictions.distributions, unseen=unseen, include_noise=True)

    return probability_below_in_units(model.scaling, outputs, standardised)


def _statistic(
    model: TrainedModel,
    inputs: HostFloat,
    rows: RowIds,
    values: HostFloat,
    statistic: Statistic,
    *,
    unseen: str,
    include_noise: bool,
) -> HostFloat:
    # A statistic of the predictive mixture of each row, in standardised units; as many columns as values.
    points = model.scaling.inputs(inputs)
    numbers = rows.numbers_in(model.ids)
    found = np.empty(values.shape)
    known = slice(None) if np.all(numbers >= 0) else numbers >= 0
    found[known] = trained_statistic(
        model.posterior, points[known], numbers[known], values[known], statistic, include_noise=include_noise
    )
    for places, condition in _others(model, rows, unseen=unseen):
        mixtures = _mixture(model, condition, points[places], include_noise)
        found[places] = statistic_of(mixtures, values[places], statistic)
    return found


def _mixture(model: TrainedModel, condition: Condition, points: HostFloat, include_noise: bool) -> Mixture:
    particles = as_particles(model.posterior, condition)
    return mixture(model.posterior, particles, points, include_noise=include_noise)


def covariance(model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool) -> HostFloat:
    """Joint covariance of the outputs of all rows, across conditions too, in the user's units."""
    if len(inputs) == 0:
        return np.empty((0, 0))
    groups = rows.rows()
    points = model.scaling.inputs(inputs)
    conditions = [find_condition(model, name, unseen=unseen) for name in groups]
    blocks = joint_covariance(model.posterior, conditions, [points[places] for places in groups.values()])
    joint = np.empty((len(points), len(points)))
    for first, row in zip(groups.values(), blocks, strict=True):
        for second, block in zip(groups.values(), row, strict=True):
            joint[np.ix_(first, second)] = block
    joint = model.scaling.variance(joint)
    _, variance = moments(model, inputs, rows, unseen=unseen, include_noise=include_noise)
    if model.scaling.log_output:
        # Correlations of log-normals with these moments, cov(e^a, e^b) ∝ exp(cov(a, b)) − 1, scaled to the
        # variances of the mixtures.
        joint = np.expm1(joint)
        deviation = np.sqrt(np.diag(joint))
        joint = joint / np.outer(deviation, deviation) * np.sqrt(np.outer(variance, variance))
    np.fill_diagonal(joint, variance)
    return joint


def sample(
    model: TrainedModel,
    inputs: HostFloat,
    rows: RowIds,
    *,
    n_draws: int,
    unseen: str,
    include_noise: bool,
    rng: np.random.Generator,
) -> HostFloat:
    """Joint draws of the output at all rows, of shape (n_draws, rows), in the user's units."""
    if len(inputs) == 0:
        return np.empty((n_draws, 0))
    groups = rows.rows()
    points = model.scaling.inputs(inputs)
    conditions = [find_condition(model, name, unseen=unseen) for name in groups]
    curves, noises = draw_curves(
        model.posterior, conditions, [points[places] for places in groups.values()], n_draws=n_draws, rng=rng
    )
    draws = np.empty((n_draws, len(points)))
    for places, values, noise in zip(groups.values(), curves, noises, strict=True):
        extra = np.sqrt(noise)[:, None] * rng.standard_normal(values.shape) if include_noise else 0.0
        draws[:, places] = values + extra
    return model.scaling.quantity(draws)


def moment_gradients(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Derivatives of the mean and the variance of the output in each input column, in the user's units."""
    points = model.scaling.inputs(inputs)
    by_mean, by_variance = np.empty(points.shape), np.empty(points.shape)
    for name, places in rows.rows().items():
        condition = find_condition(model, name, unseen=unseen)
        if model.scaling.log_output:
            condition = as_particles(model.posterior, condition)
        by_mean[places], by_variance[places] = gradients(
            model.posterior, condition, model.scaling, points[places], include_noise=include_noise
        )
    return by_mean, by_variance


def moments_at_latents(
    model: TrainedModel, inputs: HostFloat, latents: HostFloat, *, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Mean and variance of the output at given latents, one for all rows or one a row."""
    posterior, scaling = model.posterior, model.scaling
    distinct, numbers = np.unique(latents, axis=0, return_inverse=True)
    shapes = _curves_at(posterior, jnp.asarray(distinct, posterior.mean.dtype))
    noise = np.full(len(distinct), np.exp(np.mean(np.log(posterior.parameters.noise_variance))))
    rows = np.broadcast_to(numbers.reshape(-1), len(inputs))
    found = gaussian_moments(posterior, shapes, noise, scaling.inputs(inputs), rows)
    variance = found.variance + found.noise * include_noise
    return moments_in_units(gaussian_rows(found.mean, variance), scaling)


def latent_gaussian(condition: Condition) -> LatentGaussians:
    """Mean and variance of a condition's latents."""
    if isinstance(condition, GaussianCondition):
        return condition.latents
    return LatentGaussians(condition.latent_mean[None], condition.latent_variance[None])


def all_latents(model: TrainedModel) -> LatentGaussians:
    """Mean and variance of the latents of all conditions, trained and added."""
    parts = [model.posterior.parameters.latents]
    parts += [latent_gaussian(entry.posterior) for entry in model.added.values()]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def similarities(model: TrainedModel) -> HostFloat:
    """Prior correlation of the curves of each pair of conditions, ⟨k_H(h, h')⟩/√(ψψ'), one on the diagonal."""
    latents = all_latents(model)
    kernel = model.posterior.parameters.latent_kernel
    between = np.array(_expected_cross(kernel, latents, latents))
    scale = np.sqrt(np.asarray(psi0(kernel, latents)))
    between = between / np.outer(scale, scale)
    np.fill_diagonal(between, 1.0)
    return between


def with_condition(
    model: TrainedModel, name: Id, inputs: HostFloat, outputs: HostFloat, *, method: str
) -> TrainedModel:
    """The model with a condition added, or with more observations of one added earlier."""
    if name in model.ids:
        raise DataError(
            f"condition {name!r} was part of the training; its curve is already learnt. Use another name, or refit "
            "with the new points"
        )
    if name in model.added:
        earlier = model.added[name]
        inputs = np.vstack([earlier.inputs, inputs])
        outputs = np.concatenate([earlier.outputs, outputs])
    seen = evidence(model.posterior, model.scaling.inputs(inputs), model.scaling.outputs(outputs))
    found = infer(model.posterior, seen) if method == "exact" else infer_gaussian(model.posterior, seen)
    if not np.all(np.isfinite(latent_gaussian(found).mean)):
        raise NumericalError(f"the posterior of condition {name!r} is not finite; are its points of extreme size?")
    return model._replace(added={**model.added, name: AddedCondition(inputs, outputs, method, found)})


def without_condition(model: TrainedModel, name: Id) -> TrainedModel:
    """The model without a condition that was added to it."""
    if name in model.ids:
        raise DataError(f"condition {name!r} was part of the training and cannot be removed; refit without it")
    if name not in model.added:
        raise unknown_condition(name, model.all_ids)
    return model._replace(added={other: entry for other, entry in model.added.items() if other != name})
