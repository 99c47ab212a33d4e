"""What the posterior draws of a trained model answer for rows of conditions.

The functions are those of :mod:`lvmogp.fitted.answers_from_fit`, with mixtures over draws in place of the variational
posterior.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lvmogp.conditions.drawn_joint as drawn_joint
from lvmogp.conditions.drawn_condition import DrawnCondition, members_of
from lvmogp.conditions.drawn_curves import Gaussians, curves_of_members, curves_of_rows
from lvmogp.conditions.drawn_model import DrawnModel
from lvmogp.conditions.mixtures import Mixture, OutputMoments, Statistic, output_factors, statistic_of
from lvmogp.conditions.transformed import RelativeOutput
from lvmogp.fitted.model import TrainedModel, find_under_draws
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up
from lvmogp.tables.ids import Id, RowIds
from lvmogp.typing import Array, Float, HostFloat, HostInt

_ROWS_AT_ONCE = 4_096


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


def joint_covariance(model: TrainedModel, points: Mapping[Id, HostFloat], *, unseen: str) -> list[list[HostFloat]]:
    """Covariance of f between the standardised points of each pair of conditions, as blocks, in standardised units.

    New conditions among them give weight to draws, and in a joint answer to the same draws for all.
    """
    drawn = _drawn(model)
    conditions = [find_under_draws(model, drawn, name, unseen=unseen) for name in points]
    return drawn_joint.joint_covariance(drawn, conditions, list(points.values()))


def output_covariance(
    model: TrainedModel, points: Mapping[Id, HostFloat], output: RelativeOutput, *, unseen: str
) -> list[list[HostFloat]]:
    """The same of outputs of which a transform is modelled, in the user's units, relative to their means."""
    drawn = _drawn(model)
    conditions = [find_under_draws(model, drawn, name, unseen=unseen) for name in points]
    return drawn_joint.output_covariance(drawn, conditions, list(points.values()), output)


def draw_curves(
    model: TrainedModel, points: Mapping[Id, HostFloat], *, n_draws: int, unseen: str, rng: np.random.Generator
) -> tuple[list[HostFloat], list[HostFloat]]:
    """Joint draws of f at the points of each condition, and the noise variance of each draw, in standardised units."""
    drawn = _drawn(model)
    conditions = [find_under_draws(model, drawn, name, unseen=unseen) for name in points]
    return drawn_joint.draw_curves(drawn, conditions, list(points.values()), n_draws=n_draws, rng=rng)


class Curve(NamedTuple):
    """The curve of one condition in standardised units: mean and covariance at some points, variance of the noise."""

    mean: HostFloat
    covariance: HostFloat
    noise: float


def curve(model: TrainedModel, name: Id, points: HostFloat) -> Curve:
    """The curve of a condition, trained or added, at standardised points."""
    drawn = _drawn(model)
    condition = find_under_draws(model, drawn, name, unseen="error")
    if isinstance(condition, DrawnCondition):
        members, weights = members_of(condition)
        curves, noise = curves_of_members(drawn, members, condition.seen, points), members.noise
    else:
        numbers = np.full(len(points), condition)
        curves, weights = curves_of_rows(drawn, drawn.draws.latents, points, numbers), drawn.weights
        noise = drawn.noise[:, condition]
    (covariance,) = drawn_joint.joint_covariance(drawn, [condition], [points])[0]
    return Curve(weights @ np.asarray(curves.means[0]), covariance, float(weights @ np.asarray(noise)))


def moment_gradients(
    model: TrainedModel, inputs: HostFloat, rows: RowIds, *, unseen: str, include_noise: bool
) -> tuple[HostFloat, HostFloat]:
    """Derivatives of the mean and the variance of the output in each input column, in the user's units."""
    scaling = model.scaling
    found = np.empty((2, *inputs.shape))
    for some, weights, curves, noise in _parts(model, inputs, rows, unseen=unseen, slopes=True):
        mixture = _mixture(weights, curves, noise, include_noise=include_noise)
        factors = jnp.asarray(output_factors(scaling, len(some)))
        slopes = np.asarray(_statistic_slopes(mixture, curves, factors, OutputMoments(scaling.transform)))
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
        found[some] = _of_padded_rows(mixture, output_factors(scaling, len(some)), OutputMoments(scaling.transform))
    return found[:, 0], found[:, 1]
