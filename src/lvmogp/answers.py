"""What a trained model answers for rows of conditions, in the user's units."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

import lvmogp.mixtures as mixtures
from lvmogp.compiling import compiled
from lvmogp.ids import RowIds
from lvmogp.mixtures import (
    Mixture,
    Statistic,
    gaussian_rows,
    in_units,
    log_density_in_units,
    log_normal_covariance,
    moments_in_units,
    output_factors,
    probability_below_in_units,
    statistic_of,
)
from lvmogp.posterior import curves_at
from lvmogp.predictions import (
    Condition,
    Moments,
    as_particles,
    draw_curves,
    gaussian_moments,
    gradients,
    joint_covariance,
    mixture,
    trained_statistic,
)
from lvmogp.predictions import grid_moments as gaussian_grid_moments
from lvmogp.trained import TrainedModel, curves_of, find_condition
from lvmogp.typing import HostFloat, HostInt
from lvmogp.variational_condition import GaussianCondition

_curves_at = compiled(curves_at)
_CONDITIONS_AT_ONCE = 1_024


def _trained_moments(model: TrainedModel, points: HostFloat, numbers: HostInt) -> Moments:
    noise = model.posterior.parameters.host_noise
    if model.curves is not None:
        return gaussian_moments(model.posterior, model.curves, noise, points, numbers)
    found = Moments(*np.empty((3, len(points))))
    order = np.argsort(numbers, kind="stable")
    group = np.cumsum(np.r_[False, np.diff(numbers[order]) > 0]) // _CONDITIONS_AT_ONCE
    for rows in np.split(order, np.flatnonzero(np.diff(group)) + 1):
        shapes, places = curves_of(model, numbers[rows])
        some = np.resize(noise[np.unique(numbers[rows])], len(shapes.weights))
        for whole, part in zip(
            found, gaussian_moments(model.posterior, shapes, some, points[rows], places), strict=True
        ):
            whole[rows] = part
    return found


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
        shapes, places = curves_of(model, numbers)
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
    found = _statistic(model, inputs, rows, given, mixtures.quantiles, unseen=unseen, include_noise=include_noise)
    return model.scaling.quantity(found)


def log_densities(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, outputs: HostFloat, *, unseen: str
) -> HostFloat:
    """Log predictive density of the output of each row, per unit of the output."""

    def standardised(values: HostFloat) -> HostFloat:
        return _statistic(model, inputs, rows, values, mixtures.log_densities, unseen=unseen, include_noise=True)

    return log_density_in_units(model.scaling, outputs, standardised)


def probabilities_below(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, outputs: HostFloat, *, unseen: str
) -> HostFloat:
    """Probability of an output no larger than that of each row."""

    def standardised(values: HostFloat) -> HostFloat:
        return _statistic(model, inputs, rows, values, mixtures.distributions, unseen=unseen, include_noise=True)

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
        rows_of_condition = _mixture(model, condition, points[places], include_noise)
        found[places] = statistic_of(rows_of_condition, values[places], statistic)
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
        return log_normal_covariance(joint, variance)
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
