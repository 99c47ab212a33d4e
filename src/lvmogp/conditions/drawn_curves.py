"""Curves of conditions under posterior draws: a Gaussian for each draw, or for each pair of a draw and latents."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import factor_beside_errors, whiten
from lvmogp.conditions.drawn_model import DrawnModel, chunks
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, rounded_up
from lvmogp.kernels.covariances import cross, diagonal, gram
from lvmogp.model.posterior import positive_part
from lvmogp.model.process import Conditional
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

_LEAST_PLACES, _MOST_DOUBLED_PLACES = 4, 32


class Few(eqx.Module):
    """Observations of a new condition in standardised units; ``present`` is 0 where padded.

    ``error_variances`` of the measurements add to their noise; they are zero where none are known.
    """

    inputs: Float[Array, "m Q_X"]
    values: Float[Array, " m"]
    present: Float[Array, " m"]
    error_variances: Float[Array, " m"]

    def noise(self, of_condition: Scalar) -> Float[Array, " m"]:
        """Noise variance of each observation; a padded place is an observation of nothing with unit noise."""
        return jnp.where(self.present > 0, of_condition + self.error_variances, 1.0)

    def factor(self, covariance: Float[Array, "m m"], of_condition: Scalar) -> Float[Array, "m m"]:
        """Lower factor of the covariance of the observations, given that of the curve."""
        own = jnp.where(self.present > 0, of_condition, 1.0)
        return factor_beside_errors(covariance + jnp.diag(own), self.error_variances)


class Members(eqx.Module):
    """Components of a condition's distribution: the number of a draw, latents in its coordinates, and noise."""

    draw: Int[Array, " P"]
    latents: Float[Array, "P Q_H"]
    noise: Float[Array, " P"]


class Gaussians(eqx.Module):
    """Means and variances of f at rows, stacked over components where there are several."""

    means: Float[Array, "*S n"]
    variances: Float[Array, "*S n"]


def few(inputs: HostFloat, values: HostFloat, error_variances: HostFloat | None = None) -> Few:
    """Observations padded to one of few sizes, so that similar calls share one compiled program."""
    doubled = max(1 << max(len(values) - 1, 0).bit_length(), _LEAST_PLACES)
    more = (doubled if doubled <= _MOST_DOUBLED_PLACES else rounded_up(len(values))) - len(values)
    present = np.r_[np.ones(len(values)), np.zeros(more)]
    errors = np.zeros(len(values)) if error_variances is None else error_variances
    padded = (np.pad(inputs, ((0, more), (0, 0))), np.pad(values, (0, more)), present, np.pad(errors, (0, more)))
    return Few(*(jnp.asarray(part) for part in padded))


class Given(eqx.Module):
    """What the observations of a condition say given a draw and its latents.

    The factor of κ(X, X) + σ²I, the gain-ready residual (κ(X, X) + σ²I)⁻¹(y − m), the features a of the observations
    and c of the latents.
    """

    factor: Float[Array, "m m"]
    solution: Float[Array, " m"]
    inputs: Float[Array, "m R"]
    latent: Float[Array, " C"]
    scale: Scalar


def given(process: Conditional, seen: Few, latent: Float[Array, " Q_H"], noise: Scalar) -> Given:
    """Condition the curve f(·, h) of one draw on a few observations of its own (equation 39)."""
    features = process.latent_features(latent[None])[0]
    inputs = process.input_features(seen.inputs) * seen.present[:, None]  # of padded places zero
    scale = process.latent_kernel.evaluate(latent, latent)
    prior = scale * gram(process.input_kernel, seen.inputs) * jnp.outer(seen.present, seen.present)
    covariance = prior - process.explained(inputs, features, inputs, features)
    factor = seen.factor(covariance, noise)
    residual = seen.values - process.mean(inputs, features)
    return Given(factor, jax.scipy.linalg.cho_solve((factor, True), residual), inputs, features, scale)


def covariance_with_few(
    process: Conditional, seen: Few, known: Given, points: Float[Array, "n Q_X"], inputs: Float[Array, "n R"]
) -> Float[Array, "n m"]:
    """κ_h(x, X) between points, with their features, and the observations."""
    prior = known.scale * cross(process.input_kernel, points, seen.inputs) * seen.present
    return prior - process.explained(inputs, known.latent, known.inputs, known.latent)


def member_curves(conditionals: Conditional, members: Members, seen: Few, points: Float[Array, "n Q_X"]) -> Gaussians:
    """F at points under each component, conditioned on the observations of its condition (equation 39)."""

    def one(member: tuple[Array, Array, Array]) -> Gaussians:
        draw, latent, noise = member
        process = jax.tree.map(lambda leaf: leaf[draw], conditionals)
        known = given(process, seen, latent, noise)
        inputs = process.input_features(points)
        to_seen = covariance_with_few(process, seen, known, points, inputs)
        prior = known.scale * diagonal(process.input_kernel, points)
        explained = process.explained_variance(inputs, known.latent) + jnp.sum(
            whiten(known.factor, to_seen.T) ** 2, axis=0
        )
        mean = process.mean(inputs, known.latent) + to_seen @ known.solution
        return Gaussians(mean, positive_part(prior - explained, prior))

    return jax.lax.map(one, (members.draw, members.latents, members.noise))


def member_covariances(
    conditionals: Conditional,
    members: Members,
    seen: Few,
    first: Float[Array, "n Q_X"],
    second: Float[Array, "k Q_X"],
) -> Float[Array, "P n k"]:
    """Covariance of f between two sets of points under each component (equation 39)."""

    def one(member: tuple[Array, Array, Array]) -> Array:
        draw, latent, noise = member
        process = jax.tree.map(lambda leaf: leaf[draw], conditionals)
        known = given(process, seen, latent, noise)
        left, right = process.input_features(first), process.input_features(second)
        left_to_seen = covariance_with_few(process, seen, known, first, left)
        right_to_seen = covariance_with_few(process, seen, known, second, right)
        prior = known.scale * cross(process.input_kernel, first, second)
        explained = process.explained(left, known.latent, right, known.latent)
        return prior - explained - whiten(known.factor, left_to_seen.T).T @ whiten(known.factor, right_to_seen.T)

    return jax.lax.map(one, (members.draw, members.latents, members.noise))


def block_curves(
    conditionals: Conditional,
    latents: Float[Array, "S K Q_H"],
    points: Float[Array, "m Q_X"],
    place: Int[Array, "B b"],
    block_condition: Int[Array, " B"],
) -> Gaussians:
    """F at blocks of points under each draw, each block of one of K conditions; rows are B · b (equation 35).

    ``place`` says which of the points stands where in the blocks.
    """

    def one_draw(draw: tuple[Conditional, Array]) -> Gaussians:
        process, own_latents = draw
        inputs = process.input_features(points)[place]
        features = process.latent_features(own_latents)[block_condition]
        scale = diagonal(process.latent_kernel, own_latents)[block_condition]
        mean = jax.vmap(process.mean)(inputs, features)
        explained = jax.vmap(process.explained_variance)(inputs, features)
        prior = scale[:, None] * diagonal(process.input_kernel, points)[place]
        return Gaussians(mean.reshape(-1), positive_part(prior - explained, prior).reshape(-1))

    return jax.lax.map(one_draw, (conditionals, latents))


def _with_slopes(curves: Callable[[Array], Gaussians], points: Float[Array, "m Q_X"], slopes: bool) -> Gaussians:
    """Curves at points, first along a new axis, and on request their derivatives in each input column after them."""

    def along(direction: Float[Array, " Q_X"]) -> Gaussians:
        # Each row depends on its own point alone, so one direction serves all rows at once.
        return jax.jvp(curves, (points,), (jnp.broadcast_to(direction, points.shape),))[1]

    values = jax.tree.map(lambda leaf: leaf[None], curves(points))
    if not slopes:
        return values
    derivatives = jax.vmap(along)(jnp.eye(points.shape[-1], dtype=points.dtype))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), values, derivatives)


@compiled
def _member_curves(
    conditionals: Conditional, members: Members, seen: Few, points: Float[Array, "n Q_X"], slopes: bool
) -> Gaussians:
    return _with_slopes(lambda at: member_curves(conditionals, members, seen, at), points, slopes)


@compiled
def _block_curves(
    conditionals: Conditional,
    latents: Float[Array, "S K Q_H"],
    points: Float[Array, "m Q_X"],
    place: Int[Array, "B b"],
    block_condition: Int[Array, " B"],
    slopes: bool,
) -> Gaussians:
    return _with_slopes(lambda at: block_curves(conditionals, latents, at, place, block_condition), points, slopes)


def curves_of_members(
    model: DrawnModel, members: Members, seen: Few, points: HostFloat, *, slopes: bool = False
) -> Gaussians:
    """Curves of one condition at points, under all of its components; leading axis as in :func:`curves_of_rows`."""
    n_members, n_points = len(members.draw), len(points)
    padded = jnp.asarray(np.pad(points, ((0, rounded_up(n_points) - n_points), (0, 0)), mode="edge"))
    found = np.empty((2, 1 + slopes * points.shape[1], n_members, n_points))
    draw = np.asarray(members.draw)
    for numbers, conditionals in chunks(model):
        own = np.flatnonzero((draw >= numbers[0]) & (draw <= numbers[-1]))
        if len(own) == 0:
            continue
        some = np.resize(own, rounded_up(len(own)))
        chosen = Members(members.draw[some] - int(numbers[0]), members.latents[some], members.noise[some])
        curves = _member_curves(conditionals, chosen, seen, padded, slopes)
        found[:, :, own] = np.asarray([curves.means, curves.variances])[:, :, : len(own), :n_points]
    return Gaussians(jnp.asarray(found[0]), jnp.asarray(found[1]))


def curves_of_rows(
    model: DrawnModel,
    latents: Float[Array, "S K Q_H"],
    points: HostFloat,
    numbers: HostInt,
    *,
    slopes: bool = False,
) -> Gaussians:
    """Curves at points of several conditions, one component a draw; ``numbers`` say which of the K each point has.

    Along the leading axis come the values and, on request, their derivatives in each input column.
    """
    layout = block_layout(numbers, latents.shape[1])
    blocks = (*_different(points, layout.row), jnp.asarray(layout.block_condition))
    present = (layout.present > 0).reshape(-1)
    rows = layout.row.reshape(-1)[present]
    found = np.empty((2, 1 + slopes * points.shape[1], model.n_draws, len(points)))
    for some, conditionals in chunks(model):
        curves = _block_curves(conditionals, latents[some], *blocks, slopes)
        ordered = np.empty((*found.shape[:2], len(some), len(points)))
        ordered[..., rows] = np.asarray([curves.means, curves.variances])[..., present]
        found[:, :, some] = ordered
    return Gaussians(jnp.asarray(found[0]), jnp.asarray(found[1]))


def _different(points: HostFloat, row: HostInt) -> tuple[Float[Array, "m Q_X"], Int[Array, "B b"]]:
    # The points of blocks without repetition, and where each of them stands: conditions are often asked at the same
    # inputs, whose features cost most. Unless there are many repetitions, all points as they stand, so that the shape
    # of the compiled program depends on the blocks alone.
    different, number = np.unique(points, axis=0, return_inverse=True)
    n_places = rounded_up(len(different))
    if n_places > row.size // 2:
        return jnp.asarray(points[row.reshape(-1)]), jnp.arange(row.size).reshape(row.shape)
    padded = np.pad(different, ((0, n_places - len(different)), (0, 0)), mode="edge")
    return jnp.asarray(padded), jnp.asarray(number.reshape(-1)[row])
