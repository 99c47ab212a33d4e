"""What a trained model answers for rows of conditions, in the user's units.

Here and nowhere above is it decided whether posterior draws answer or the variational fit.
"""

from collections.abc import Sequence

import numpy as np

import lvmogp.conditions.mixtures as mixtures
import lvmogp.fitted.answers_from_draws as answers_from_draws
import lvmogp.fitted.answers_from_fit as answers_from_fit
from lvmogp.conditions.mixtures import (
    Judged,
    OutputMoments,
    judged_in_units,
    judgements,
    output_factors,
    with_variances,
)
from lvmogp.conditions.transformed import relative_output
from lvmogp.fitted.model import TrainedModel
from lvmogp.tables.ids import RowIds
from lvmogp.typing import HostFloat


def _source(model: TrainedModel):
    # Two modules with the same functions; left to inference, the type is that of both.
    return answers_from_fit if model.drawn is None else answers_from_draws


def _has_closed_moments(model: TrainedModel) -> bool:
    return model.drawn is None and model.scaling.transform is None


def moments(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Mean and variance of the output at each row, in the user's units."""
    if _has_closed_moments(model):
        return answers_from_fit.moments(model, inputs, rows, unseen=unseen, include_noise=include_noise)
    factors, statistic = output_factors(model.scaling, len(inputs)), OutputMoments(model.scaling.transform)
    both = _source(model).statistics(
        model, inputs, rows, factors, statistic, unseen=unseen, include_noise=include_noise
    )
    return both[:, 0], both[:, 1]


def grid_moments(
    model: TrainedModel, inputs: HostFloat, *, include_noise: bool, with_variance: bool
) -> tuple[HostFloat, HostFloat | None]:
    """Mean and, on request, variance of the outputs of all trained conditions at all rows, (rows, conditions)."""
    if _has_closed_moments(model):
        return answers_from_fit.grid_moments(model, inputs, include_noise=include_noise, with_variance=with_variance)
    n_conditions = len(model.ids)
    rows = RowIds(model.ids, np.repeat(np.arange(n_conditions), len(inputs)))
    repeated = np.tile(inputs, (n_conditions, 1))
    mean, variance = moments(model, repeated, rows, unseen="error", include_noise=include_noise)
    return mean.reshape(n_conditions, -1).T, variance.reshape(n_conditions, -1).T if with_variance else None


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
    found = _source(model).statistics(
        model, inputs, rows, given, mixtures.quantiles, unseen=unseen, include_noise=include_noise
    )
    return model.scaling.quantity(found)


def judged(
    model: TrainedModel,
    inputs: HostFloat,
    rows: RowIds,
    outputs: HostFloat,
    errors: HostFloat,
    *,
    unseen: str,
    include_noise: bool,
) -> Judged:
    """How likely the output of each row is, its own error in measuring (a standard deviation) beside the noise."""

    def standardised(measured: HostFloat) -> HostFloat:
        return _source(model).statistics(
            model, inputs, rows, measured, judgements, unseen=unseen, include_noise=include_noise
        )

    return judged_in_units(model.scaling, outputs, errors, standardised)


def covariance(model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool) -> HostFloat:
    """Joint covariance of the outputs of all rows, across conditions too, in the user's units.

    The variances are those of each condition alone, also where new conditions change the weights of the draws that
    all rows of a joint answer share.
    """
    if len(inputs) == 0:
        return np.empty((0, 0))
    groups, points, scaling = rows.rows(), model.scaling.inputs(inputs), model.scaling
    transform = scaling.transform
    mean, variance = moments(model, inputs, rows, unseen=unseen, include_noise=include_noise)
    of_groups = {name: points[places] for name, places in groups.items()}
    if transform is None:
        blocks = _source(model).joint_covariance(model, of_groups, unseen=unseen)
    else:
        means, factors = [mean[places] for places in groups.values()], (scaling.output_mean, scaling.output_scale)
        output = relative_output(transform, *factors, means, include_noise=include_noise)
        blocks = _source(model).output_covariance(model, of_groups, output, unseen=unseen)
    joint = np.empty((len(points), len(points)))
    for first, row in zip(groups.values(), blocks, strict=True):
        for second, block in zip(groups.values(), row, strict=True):
            joint[np.ix_(first, second)] = block
    if transform is not None:
        return with_variances(joint * np.outer(mean, mean), variance)
    joint = scaling.variance(joint)
    if model.drawn is not None:
        _, of_function = moments(model, inputs, rows, unseen=unseen, include_noise=False)
        joint = with_variances(joint, of_function)
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
    curves, noises = _source(model).draw_curves(
        model, {name: points[places] for name, places in groups.items()}, n_draws=n_draws, unseen=unseen, rng=rng
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
    return _source(model).moment_gradients(model, inputs, rows, unseen=unseen, include_noise=include_noise)


def moments_at_latents(
    model: TrainedModel, inputs: HostFloat, latents: HostFloat, *, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Mean and variance of the output at given latents, aligned ones of draws, one for all rows or one a row."""
    return _source(model).moments_at_latents(model, inputs, latents, include_noise=include_noise)
