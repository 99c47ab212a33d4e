"""What a fitted model answers for rows of conditions, in the user's units."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

import lvmogp.conditions.closed_form as closed_form
import lvmogp.conditions.joint as joint
from lvmogp.conditions.condition import Condition, mean_noise
from lvmogp.conditions.ensemble import ClosedForm
from lvmogp.conditions.predictive import (
    Ask,
    Curves,
    OutputMoments,
    Scores,
    Statistic,
    condition_curves,
    curves_at_latents,
    moments_in_units,
    output_factors,
    pieces,
    quantiles_in_units,
    scores_in_units,
    statistic_of,
    trained_curves,
    with_variances,
)
from lvmogp.fitted.model import FittedModel, find_condition
from lvmogp.fitted.queries import Query
from lvmogp.typing import HostFloat, HostInt


def _closed_form(model: FittedModel) -> ClosedForm | None:
    # Latents that are Gaussian have closed-form moments, where the output itself is modelled.
    return model.ensemble.fit if model.scaling.transform is None else None


def _others(model: FittedModel, rows: Query) -> Iterator[tuple[HostInt, Condition]]:
    # Rows of each condition that was not part of the training, with that condition.
    trained = set(model.ids)
    if trained.issuperset(rows.ids.distinct):
        return
    for name, places in rows.ids.rows().items():
        if name not in trained:
            yield places, find_condition(model, name, unseen=rows.unseen)


def _parts(model: FittedModel, rows: Query, *, slopes: bool = False) -> Iterator[tuple[HostInt, Curves]]:
    # Predictive curves of some rows at a time, all of trained conditions or all of one other condition.
    ensemble, points = model.ensemble, model.scaling.inputs(rows.inputs)
    numbers = rows.ids.numbers_in(model.ids)
    order = np.argsort(numbers, kind="stable")
    for some in pieces(order[numbers[order] >= 0]):
        yield some, trained_curves(ensemble, points[some], numbers[some], slopes=slopes)
    for places, condition in _others(model, rows):
        for some in pieces(places):
            yield some, condition_curves(ensemble, condition, points[some], slopes=slopes)


def _ask(model: FittedModel, rows: Query, *, include_noise: bool) -> Ask:
    # Statistics of the predictive mixtures of rows.
    def ask(values: HostFloat, statistic: Statistic) -> HostFloat:
        found = np.empty(values.shape)
        for some, curves in _parts(model, rows):
            found[some] = statistic_of(curves, values[some], statistic, include_noise=include_noise)
        return found

    return ask


def moments(
    model: FittedModel, rows: Query, *, include_noise: bool, with_variance: bool = True
) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output; without variances, where that is quicker, these are zero.

    Where all conditions are asked about, both are of shape (points, conditions).
    """
    fit, scaling = _closed_form(model), model.scaling
    if fit is None or rows.n_columns is None:
        mean, variance = _row_moments(model, rows, include_noise=include_noise)
        return rows.as_columns(mean), rows.as_columns(variance)
    mean, variance = closed_form.trained_grid_moments(fit, scaling.inputs(rows.points), with_variance=with_variance)
    if with_variance:
        noise = np.asarray(model.ensemble.noise[0], dtype=float)
        variance = scaling.variance(variance + noise * include_noise)
    return scaling.location(mean), variance


def _row_moments(model: FittedModel, rows: Query, *, include_noise: bool) -> tuple[HostFloat, HostFloat]:
    fit, scaling = _closed_form(model), model.scaling
    if fit is None:
        return moments_in_units(_ask(model, rows, include_noise=include_noise), scaling, len(rows.ids))
    points, found = scaling.inputs(rows.inputs), np.empty((2, len(rows.ids)))
    numbers, noise = rows.ids.numbers_in(model.ids), np.asarray(model.ensemble.noise[0], dtype=float)
    known = slice(None) if np.all(numbers >= 0) else numbers >= 0
    if len(numbers[known]):
        found[:, known] = closed_form.trained_row_moments(fit, points[known], numbers[known])
        found[1, known] += noise[numbers[known]] * include_noise
    for places, condition in _others(model, rows):
        if condition.gaussian is not None:
            found[:, places] = closed_form.gaussian_row_moments(fit, condition.gaussian, points[places])
            found[1, places] += mean_noise(model.ensemble, condition) * include_noise
            continue
        for some in pieces(places):
            curves = condition_curves(model.ensemble, condition, points[some])
            standard = np.broadcast_to([0.0, 1.0], (len(some), 2))  # in standardised units, as the others
            found[:, some] = statistic_of(curves, standard, OutputMoments(None), include_noise=include_noise).T
    return scaling.location(found[0]), scaling.variance(found[1])


def quantiles(model: FittedModel, rows: Query, levels: Sequence[float], *, include_noise: bool) -> HostFloat:
    """Return quantiles of the output at each row, one column per level."""
    ask = _ask(model, rows, include_noise=include_noise)
    return quantiles_in_units(ask, model.scaling, np.broadcast_to(levels, (len(rows.ids), len(levels))))


def scores(model: FittedModel, rows: Query, outputs: HostFloat, errors: HostFloat, *, include_noise: bool) -> Scores:
    """Judge the output of each row, its own error in measuring (a standard deviation) beside the noise."""
    return scores_in_units(_ask(model, rows, include_noise=include_noise), model.scaling, outputs, errors)


def moments_and_covariance(model: FittedModel, rows: Query, *, include_noise: bool) -> tuple[HostFloat, HostFloat]:
    """Return the mean and the joint covariance of the outputs of all rows, across conditions too.

    The variances are those of each condition alone, also where new conditions change the weights of the processes that
    all rows of a joint answer share.
    """
    inputs, scaling, fit, transform = rows.inputs, model.scaling, _closed_form(model), model.scaling.transform
    # Of an output that is modelled as it is, the noise is added at the end.
    with_noise = include_noise and transform is not None
    mean, variance = _row_moments(model, rows, include_noise=with_noise)
    if len(inputs) == 0:
        return mean, np.empty((0, 0))
    groups = rows.ids.rows()
    points = [scaling.inputs(inputs[places]) for places in groups.values()]
    conditions = [find_condition(model, name, unseen=rows.unseen) for name in groups]
    output = None
    if transform is not None:
        means = [mean[places] for places in groups.values()]
        output = joint.relative_output(scaling, means, include_noise=include_noise)
    order, covariance = np.concatenate(list(groups.values())), np.empty((len(inputs), len(inputs)))
    covariance[np.ix_(order, order)] = joint.joint_covariance(model.ensemble, conditions, points, output)
    if transform is not None:
        return mean, with_variances(covariance * np.outer(mean, mean), variance)
    covariance = scaling.variance(covariance)
    if fit is None:
        covariance = with_variances(covariance, variance)
    np.fill_diagonal(covariance, variance)
    for places, condition in zip(groups.values(), conditions, strict=True):
        covariance[places, places] += include_noise * scaling.output_scale**2 * mean_noise(model.ensemble, condition)
    return mean, covariance


def sample(
    model: FittedModel, rows: Query, *, n_draws: int, include_noise: bool, rng: np.random.Generator
) -> HostFloat:
    """Draw the output jointly at all rows, of shape (n_draws, rows)."""
    if len(rows.ids) == 0:
        return np.empty((n_draws, 0))
    groups, points = rows.ids.rows(), model.scaling.inputs(rows.inputs)
    conditions = [find_condition(model, name, unseen=rows.unseen) for name in groups]
    curves, noises = joint.draw_curves(
        model.ensemble, conditions, [points[places] for places in groups.values()], n_draws=n_draws, rng=rng
    )
    draws = np.empty((n_draws, len(points)))
    for places, values, noise in zip(groups.values(), curves, noises, strict=True):
        extra = np.sqrt(noise)[:, None] * rng.standard_normal(values.shape) if include_noise else 0.0
        draws[:, places] = values + extra
    return model.scaling.quantity(draws)


def moment_gradients(model: FittedModel, rows: Query, *, include_noise: bool) -> tuple[HostFloat, HostFloat]:
    """Return derivatives of the mean and the variance of the output in each input column."""
    fit, scaling, inputs = _closed_form(model), model.scaling, rows.inputs
    found, left = np.empty((2, *inputs.shape)), np.ones(len(inputs), dtype=bool)
    for name, places in rows.ids.rows().items() if fit is not None else ():
        condition = find_condition(model, name, unseen=rows.unseen)
        if fit is not None and condition.gaussian is not None:
            slopes = closed_form.gaussian_slopes(fit, condition.gaussian, scaling.inputs(inputs[places]))
            found[:, places] = scaling.output_scale * slopes[0], scaling.variance(slopes[1])
            left[places] = False
    others, statistic = np.flatnonzero(left), OutputMoments(scaling.transform)
    for some, curves in _parts(model, rows.some(others), slopes=True):
        factors = output_factors(scaling, len(some))
        slopes = statistic_of(curves, factors, statistic, include_noise=include_noise, slopes=True)
        found[:, others[some]] = np.moveaxis(slopes, 1, 0)
    return found[0] / scaling.input_scale, found[1] / scaling.input_scale


def moments_at_latents(
    model: FittedModel, inputs: HostFloat, latents: HostFloat, *, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output at given aligned latents, one for all rows or one per row."""
    ensemble, scaling = model.ensemble, model.scaling
    distinct, numbers = np.unique(latents, axis=0, return_inverse=True)
    # A point g in aligned coordinates is gRᵀ in those of a process.
    own = jnp.einsum("kq,spq->skp", jnp.asarray(distinct, ensemble.dtype), ensemble.rotations)[:, :, None]
    points, rows = scaling.inputs(inputs), np.broadcast_to(numbers.reshape(-1), len(inputs))
    noise = jnp.exp(jnp.mean(jnp.log(ensemble.noise), axis=1, keepdims=True))  # the geometric mean of all conditions
    noises = jnp.broadcast_to(noise, own.shape[:2])
    found = np.empty((len(inputs), 2))
    for some in pieces(np.arange(len(inputs))):
        curves = curves_at_latents(ensemble, own, points[some], rows[some], noise=noises)
        factors, statistic = output_factors(scaling, len(some)), OutputMoments(scaling.transform)
        found[some] = statistic_of(curves, factors, statistic, include_noise=include_noise)
    return found[:, 0], found[:, 1]
