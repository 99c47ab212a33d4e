"""What the variational fit of a trained model answers for rows of conditions.

Moments and their gradients are in the user's units, all else is standardised;
:mod:`lvmogp.fitted.answers` is the face of it.
"""

from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np

import lvmogp.conditions.predictions as predictions
from lvmogp.conditions.mixtures import Mixture, Statistic, gaussian_rows, moments_in_units, statistic_of
from lvmogp.conditions.predictions import (
    Condition,
    Moments,
    as_particles,
    gaussian_moments,
    gradients,
    mixture,
    trained_statistic,
)
from lvmogp.conditions.transformed import RelativeOutput
from lvmogp.conditions.variational_condition import GaussianCondition
from lvmogp.fitted.model import TrainedModel, curves_of, find_condition
from lvmogp.ground.compiling import compiled
from lvmogp.model.posterior import curves_at
from lvmogp.tables.ids import Id, RowIds
from lvmogp.typing import HostFloat, HostInt

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
    """Mean and variance of an output that is modelled as it is, at each row, in closed form where there is one."""
    scaling = model.scaling
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
    """The same, the variance on request, for all trained conditions at all rows: (rows, conditions)."""
    scaling, posterior = model.scaling, model.posterior
    n_conditions = len(model.ids)
    points = scaling.inputs(inputs)
    at_once = n_conditions if model.curves is not None else _CONDITIONS_AT_ONCE
    found = []
    for start in range(0, n_conditions, at_once):
        numbers = np.arange(start, min(start + at_once, n_conditions))
        shapes, places = curves_of(model, numbers)
        parts = predictions.grid_moments(posterior, shapes, points, with_variance=with_variance)
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


def statistics(
    model: TrainedModel,
    inputs: HostFloat,
    rows: RowIds,
    values: HostFloat,
    statistic: Statistic,
    *,
    unseen: str,
    include_noise: bool,
) -> HostFloat:
    """A statistic of the predictive mixture of each row, in standardised units; as many columns as values."""
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


def joint_covariance(model: TrainedModel, points: Mapping[Id, HostFloat], *, unseen: str) -> list[list[HostFloat]]:
    """Covariance of f between the standardised points of each pair of conditions, as blocks, in standardised units."""
    conditions = [find_condition(model, name, unseen=unseen) for name in points]
    return predictions.joint_covariance(model.posterior, conditions, list(points.values()))


def output_covariance(
    model: TrainedModel, points: Mapping[Id, HostFloat], output: RelativeOutput, *, unseen: str
) -> list[list[HostFloat]]:
    """The same of outputs of which a transform is modelled, in the user's units, relative to their means."""
    conditions = [find_condition(model, name, unseen=unseen) for name in points]
    return predictions.output_covariance(model.posterior, conditions, list(points.values()), output)


def draw_curves(
    model: TrainedModel, points: Mapping[Id, HostFloat], *, n_draws: int, unseen: str, rng: np.random.Generator
) -> tuple[list[HostFloat], list[HostFloat]]:
    """Joint draws of f at the points of each condition, and the noise variance of each draw, in standardised units."""
    conditions = [find_condition(model, name, unseen=unseen) for name in points]
    return predictions.draw_curves(model.posterior, conditions, list(points.values()), n_draws=n_draws, rng=rng)


def moment_gradients(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Derivatives of the mean and the variance of the output in each input column, in the user's units."""
    points = model.scaling.inputs(inputs)
    by_mean, by_variance = np.empty(points.shape), np.empty(points.shape)
    for name, places in rows.rows().items():
        condition = find_condition(model, name, unseen=unseen)
        if model.scaling.transform is not None:
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
