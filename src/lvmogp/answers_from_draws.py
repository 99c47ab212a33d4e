"""What a trained model with posterior draws answers for rows of conditions, in the user's units.

The functions are those of :mod:`lvmogp.answers`, with mixtures over draws in place of the variational posterior.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import lvmogp.mixtures as mixtures
from lvmogp.compiling import compiled
from lvmogp.data import rounded_up
from lvmogp.drawn_condition import DrawnCondition, members_of
from lvmogp.drawn_curves import Gaussians, curves_of_members, curves_of_rows
from lvmogp.drawn_joint import draw_curves, joint_covariance
from lvmogp.drawn_model import DrawnModel
from lvmogp.ids import RowIds
from lvmogp.mixtures import (
    Mixture,
    Statistic,
    in_units,
    log_density_in_units,
    log_normal_covariance,
    output_factors,
    probability_below_in_units,
    statistic_of,
)
from lvmogp.trained import TrainedModel, find_under_draws
from lvmogp.typing import Array, Float, HostFloat, HostInt

_ROWS_AT_ONCE = 4_096


def moments(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Mean and variance of the output at each row, in the user's units."""
    factors, statistic = output_factors(model.scaling, len(inputs)), in_units(model.scaling)
    both = _statistic(model, inputs, rows, factors, statistic, unseen=unseen, include_noise=include_noise)
    return both[:, 0], both[:, 1]


def grid_moments(
    model: TrainedModel, inputs: HostFloat, *, include_noise: bool, with_variance: bool
) -> tuple[HostFloat, HostFloat | None]:
    """Mean and, on request, variance of the outputs of all trained conditions at all rows, (rows, conditions)."""
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


def _drawn(model: TrainedModel) -> DrawnModel:
    assert model.drawn is not None  # who asks here has looked
    return model.drawn


# The predictive mixture of some rows, all of trained conditions or all of one new condition, with derivatives in the
# inputs if asked for: the places of the rows, weights of the components, curves and noise of each.
_Part = tuple[HostInt, HostFloat, Gaussians, HostFloat]


def _parts(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, slopes: bool = False
) -> Iterator[_Part]:
    drawn, points = _drawn(model), model.scaling.inputs(inputs)
    numbers = rows.numbers_in(model.ids)
    order = np.argsort(numbers, kind="stable")
    trained = order[numbers[order] >= 0]
    noise = np.asarray(drawn.noise)
    for some in _pieces(trained):
        curves = curves_of_rows(drawn, drawn.draws.latents, points[some], numbers[some], slopes=slopes)
        yield some, drawn.weights, curves, noise[:, numbers[some]]
    if len(trained) == len(order):
        return
    for name, places in rows.rows().items():
        condition = find_under_draws(model, drawn, name, unseen=unseen)
        if isinstance(condition, DrawnCondition):
            members, weights = members_of(condition)
            for some in _pieces(places):
                curves = curves_of_members(drawn, members, condition.seen, points[some], slopes=slopes)
                yield some, weights, curves, np.asarray(members.noise)[:, None]


def _pieces(places: HostInt) -> Iterator[HostInt]:
    for start in range(0, len(places), _ROWS_AT_ONCE):
        yield places[start : start + _ROWS_AT_ONCE]


def _mixture(weights: HostFloat, curves: Gaussians, noise: HostFloat, *, include_noise: bool) -> Mixture:
    variances = curves.variances[0] + noise * include_noise
    return Mixture(jnp.asarray(weights), curves.means[0], variances)


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
    found = np.empty(values.shape)
    for some, weights, curves, noise in _parts(model, inputs, rows, unseen=unseen):
        mixture = _mixture(weights, curves, noise, include_noise=include_noise)
        found[some] = _of_padded_rows(mixture, values[some], statistic)
    return found


def _of_padded_rows(mixture: Mixture, values: HostFloat, statistic: Statistic) -> HostFloat:
    # Few different numbers of rows share few compiled programs.
    more = rounded_up(len(values)) - len(values)
    wide = [jnp.pad(part, ((0, 0), (0, more)), mode="edge") for part in (mixture.means, mixture.variances)]
    padded = np.pad(values, ((0, more), (0, 0)), mode="edge")
    return statistic_of(Mixture(mixture.weights, *wide), padded, statistic)[: len(values)]


def covariance(model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool) -> HostFloat:
    """Joint covariance of the outputs of all rows, across conditions too, in the user's units.

    New conditions among the rows give weight to draws, and in a joint answer to the same draws for all rows; variances
    are kept as they are for each condition alone.
    """
    if len(inputs) == 0:
        return np.empty((0, 0))
    groups = rows.rows()
    drawn, points = _drawn(model), model.scaling.inputs(inputs)
    conditions = [find_under_draws(model, drawn, name, unseen=unseen) for name in groups]
    blocks = joint_covariance(drawn, conditions, [points[places] for places in groups.values()])
    joint = np.empty((len(points), len(points)))
    for first, row in zip(groups.values(), blocks, strict=True):
        for second, block in zip(groups.values(), row, strict=True):
            joint[np.ix_(first, second)] = block
    joint = model.scaling.variance(joint)
    _, variance = moments(model, inputs, rows, unseen=unseen, include_noise=include_noise)
    if model.scaling.log_output:
        return log_normal_covariance(joint, variance)
    _, of_function = moments(model, inputs, rows, unseen=unseen, include_noise=False)
    scale = np.sqrt(of_function / np.diag(joint))
    joint = joint * np.outer(scale, scale)
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
    drawn, points = _drawn(model), model.scaling.inputs(inputs)
    conditions = [find_under_draws(model, drawn, name, unseen=unseen) for name in groups]
    curves, noises = draw_curves(
        drawn, conditions, [points[places] for places in groups.values()], n_draws=n_draws, rng=rng
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
    scaling = model.scaling
    found = np.empty((2, *inputs.shape))
    for some, weights, curves, noise in _parts(model, inputs, rows, unseen=unseen, slopes=True):
        mixture = _mixture(weights, curves, noise, include_noise=include_noise)
        factors = jnp.asarray(output_factors(scaling, len(some)))
        slopes = np.asarray(_statistic_slopes(mixture, curves, factors, in_units(scaling)))
        found[:, some] = np.moveaxis(slopes, -1, 0)
    return found[0] / scaling.input_scale, found[1] / scaling.input_scale


@compiled
def _statistic_slopes(
    mixture: Mixture, curves: Gaussians, values: Float[Array, "n k"], statistic: Callable[[Mixture, Array], Array]
) -> Float[Array, "n Q_X m"]:
    """Derivatives of a statistic in each input column, by the chain rule through means and variances."""

    def at(means: Float[Array, "P n"], variances: Float[Array, "P n"]) -> Float[Array, "n m"]:
        return statistic(Mixture(mixture.weights, means, variances), values)

    def along(d_means: Float[Array, "P n"], d_variances: Float[Array, "P n"]) -> Float[Array, "n m"]:
        return jax.jvp(at, (mixture.means, mixture.variances), (d_means, d_variances))[1]

    return jax.vmap(along, out_axes=1)(curves.means[1:], curves.variances[1:])


def moments_at_latents(
    model: TrainedModel, inputs: HostFloat, latents: HostFloat, *, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Mean and variance of the output at given aligned latents, one for all rows or one a row."""
    drawn, scaling = _drawn(model), model.scaling
    distinct, numbers = np.unique(latents, axis=0, return_inverse=True)
    # A point g in aligned coordinates is gRᵀ in those of a draw.
    of_draws = jnp.einsum("kq,spq->skp", jnp.asarray(distinct), drawn.rotations)
    noise = np.exp(np.mean(np.log(np.asarray(drawn.draws.noise_variance)), axis=1))
    points, rows = scaling.inputs(inputs), np.broadcast_to(numbers.reshape(-1), len(inputs))
    found = np.empty((len(inputs), 2))
    for some in _pieces(np.arange(len(inputs))):
        curves = curves_of_rows(drawn, of_draws, points[some], rows[some])
        mixture = _mixture(drawn.weights, curves, noise[:, None], include_noise=include_noise)
        found[some] = _of_padded_rows(mixture, output_factors(scaling, len(some)), in_units(scaling))
    return found[:, 0], found[:, 1]
