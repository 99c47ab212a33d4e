"""What a fitted model answers for rows of conditions, in the user's units."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

import lvmogp.conditions.closed_form as closed_form
import lvmogp.conditions.joint as joint
from lvmogp.conditions.condition import Condition, mean_noise
from lvmogp.conditions.ensemble import ClosedForm
from lvmogp.conditions.mixtures import (
    Ask,
    Judged,
    OutputMoments,
    Statistic,
    judged_in_units,
    moments_in_units,
    output_factors,
    quantiles_in_units,
    with_variances,
)
from lvmogp.conditions.predictive import (
    Curves,
    condition_curves,
    curves_at_latents,
    pieces,
    statistic_of,
    statistic_slopes,
    trained_curves,
)
from lvmogp.fitted.model import FittedModel, find_condition
from lvmogp.tables.ids import RowIds
from lvmogp.typing import HostFloat, HostInt


def _closed_form(model: FittedModel) -> ClosedForm | None:
    # Latents that are Gaussian have closed-form moments, where the output itself is modelled.
    return model.ensemble.fit if model.scaling.transform is None else None


def _others(model: FittedModel, rows: RowIds, *, unseen: str) -> Iterator[tuple[HostInt, Condition]]:
    # Rows of each condition that was not part of the training, with that condition.
    trained = set(model.ids)
    if trained.issuperset(rows.distinct):
        return
    for name, places in rows.rows().items():
        if name not in trained:
            yield places, find_condition(model, name, unseen=unseen)


def _parts(
    model: FittedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, slopes: bool = False
) -> Iterator[tuple[HostInt, Curves]]:
    # Predictive curves of some rows at a time, all of trained conditions or all of one other condition.
    ensemble, points = model.ensemble, model.scaling.inputs(inputs)
    numbers = rows.numbers_in(model.ids)
    order = np.argsort(numbers, kind="stable")
    for some in pieces(order[numbers[order] >= 0]):
        yield some, trained_curves(ensemble, points[some], numbers[some], slopes=slopes)
    for places, condition in _others(model, rows, unseen=unseen):
        for some in pieces(places):
            yield some, condition_curves(ensemble, condition, points[some], slopes=slopes)


def _ask(model: FittedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool) -> Ask:
    # Statistics of the predictive mixtures of rows, of which each is asked at once.
    def ask(values: HostFloat, statistic: Statistic) -> HostFloat:
        found = np.empty(values.shape)
        for some, curves in _parts(model, inputs, rows, unseen=unseen):
            found[some] = statistic_of(curves, values[some], statistic, include_noise=include_noise)
        return found

    return ask


def moments(
    model: FittedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output at each row, in the user's units."""
    fit, scaling = _closed_form(model), model.scaling
    if fit is None:
        ask = _ask(model, inputs, rows, unseen=unseen, include_noise=include_noise)
        return moments_in_units(ask, scaling, len(inputs))
    points, found = scaling.inputs(inputs), np.empty((2, len(inputs)))
    numbers, noise = rows.numbers_in(model.ids), np.asarray(model.ensemble.noise[0], dtype=float)
    known = slice(None) if np.all(numbers >= 0) else numbers >= 0
    if len(numbers[known]):
        found[:, known] = closed_form.trained_row_moments(fit, points[known], numbers[known])
        found[1, known] += noise[numbers[known]] * include_noise
    for places, condition in _others(model, rows, unseen=unseen):
        if condition.gaussian is not None:
            found[:, places] = closed_form.gaussian_row_moments(fit, condition.gaussian, points[places])
            found[1, places] += mean_noise(model.ensemble, condition) * include_noise
        else:
            standard = np.broadcast_to([0.0, 1.0], (len(places), 2))  # in standardised units, as the others
            for some in pieces(np.arange(len(places))):
                curves = condition_curves(model.ensemble, condition, points[places[some]])
                both = statistic_of(curves, standard[some], OutputMoments(None), include_noise=include_noise)
                found[:, places[some]] = both.T
    return scaling.location(found[0]), scaling.variance(found[1])


def grid_moments(
    model: FittedModel, inputs: HostFloat, *, include_noise: bool, with_variance: bool
) -> tuple[HostFloat, HostFloat | None]:
    """Return mean and, on request, variance of the outputs of all trained conditions: (rows, conditions)."""
    fit, scaling, n_conditions = _closed_form(model), model.scaling, len(model.ids)
    if fit is None:
        rows = RowIds(model.ids, np.repeat(np.arange(n_conditions), len(inputs)))
        repeated = np.tile(inputs, (n_conditions, 1))
        mean, variance = moments(model, repeated, rows, unseen="error", include_noise=include_noise)
        return mean.reshape(n_conditions, -1).T, variance.reshape(n_conditions, -1).T if with_variance else None
    points = scaling.inputs(inputs)
    mean, variance = closed_form.trained_grid_moments(fit, points, with_variance=with_variance)
    if variance is None:
        return scaling.location(mean), None
    noise = np.asarray(model.ensemble.noise[0], dtype=float)
    return scaling.location(mean), scaling.variance(variance + noise * include_noise)


def quantiles(
    model: FittedModel, inputs: HostFloat, rows: RowIds, levels: Sequence[float], *, unseen: str, include_noise: bool
) -> HostFloat:
    """Return quantiles of the output at each row, one column per level, in the user's units."""
    ask = _ask(model, inputs, rows, unseen=unseen, include_noise=include_noise)
    return quantiles_in_units(ask, model.scaling, np.broadcast_to(levels, (len(inputs), len(levels))))


def judged(
    model: FittedModel,
    inputs: HostFloat,
    rows: RowIds,
    outputs: HostFloat,
    errors: HostFloat,
    *,
    unseen: str,
    include_noise: bool,
) -> Judged:
    """Judge the output of each row, its own error in measuring (a standard deviation) beside the noise."""
    ask = _ask(model, inputs, rows, unseen=unseen, include_noise=include_noise)
    return judged_in_units(ask, model.scaling, outputs, errors)


def moments_and_covariance(
    model: FittedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Return the mean and the joint covariance of the outputs of all rows, across conditions too, in the user's units.

    The variances are those of each condition alone, also where new conditions change the weights of the processes that
    all rows of a joint answer share.
    """
    scaling, fit, transform = model.scaling, _closed_form(model), model.scaling.transform
    # Of an output that is modelled as it is, the noise is added at the end.
    with_noise = include_noise and transform is not None
    mean, variance = moments(model, inputs, rows, unseen=unseen, include_noise=with_noise)
    if len(inputs) == 0:
        return mean, np.empty((0, 0))
    groups = rows.rows()
    points = [scaling.inputs(inputs[places]) for places in groups.values()]
    conditions = [find_condition(model, name, unseen=unseen) for name in groups]
    if fit is not None:
        blocks = closed_form.joint_covariance(model.ensemble, fit, conditions, points)
    else:
        means = [mean[places] for places in groups.values()]
        output = None if transform is None else joint.relative_output(scaling, means, include_noise=include_noise)
        blocks = joint.joint_covariance(model.ensemble, conditions, points, output)
    covariance = np.empty((len(inputs), len(inputs)))
    for first, row in zip(groups.values(), blocks, strict=True):
        for second, block in zip(groups.values(), row, strict=True):
            covariance[np.ix_(first, second)] = block
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
    model: FittedModel,
    inputs: HostFloat,
    rows: RowIds,
    *,
    n_draws: int,
    unseen: str,
    include_noise: bool,
    rng: np.random.Generator,
) -> HostFloat:
    """Draw the output jointly at all rows, of shape (n_draws, rows), in the user's units."""
    if len(inputs) == 0:
        return np.empty((n_draws, 0))
    groups, points = rows.rows(), model.scaling.inputs(inputs)
    conditions = [find_condition(model, name, unseen=unseen) for name in groups]
    curves, noises = joint.draw_curves(
        model.ensemble, conditions, [points[places] for places in groups.values()], n_draws=n_draws, rng=rng
    )
    draws = np.empty((n_draws, len(points)))
    for places, values, noise in zip(groups.values(), curves, noises, strict=True):
        extra = np.sqrt(noise)[:, None] * rng.standard_normal(values.shape) if include_noise else 0.0
        draws[:, places] = values + extra
    return model.scaling.quantity(draws)


def moment_gradients(
    model: FittedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Return derivatives of the mean and the variance of the output in each input column, in the user's units."""
    fit, scaling = _closed_form(model), model.scaling
    found, left = np.empty((2, *inputs.shape)), np.ones(len(inputs), dtype=bool)
    for name, places in rows.rows().items() if fit is not None else ():
        condition = find_condition(model, name, unseen=unseen)
        if fit is not None and condition.gaussian is not None:
            slopes = closed_form.gaussian_slopes(fit, condition.gaussian, scaling.inputs(inputs[places]))
            found[:, places] = scaling.output_scale * slopes[0], scaling.variance(slopes[1])
            left[places] = False
    others, statistic = np.flatnonzero(left), OutputMoments(scaling.transform)
    chosen = RowIds(rows.distinct, rows.numbers[others])
    for some, curves in _parts(model, inputs[others], chosen, unseen=unseen, slopes=True):
        factors = output_factors(scaling, len(some))
        slopes = statistic_slopes(curves, factors, statistic, include_noise=include_noise)
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
