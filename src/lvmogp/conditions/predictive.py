"""Predictive distributions of rows: the Gaussians of all particles that speak for a condition, and what follows.

Curves stay on the device, where statistics of them are computed: moments, quantiles, densities. Rows are padded to few
numbers; what is asked of them is returned for the rows themselves, in the user's units where it says so.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.gaussians import mixture_quantile, mixture_scores
from lvmogp.conditions.condition import Condition, gaussian_nodes, noise_nodes, particles_in_chunks
from lvmogp.conditions.curves import Blocks, Members, Particles, block_moments, moments, with_slopes
from lvmogp.conditions.ensemble import Ensemble, chunks, of_processes
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, repeated, with_last_repeated
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.process import Process
from lvmogp.tables.scaling import Scaling, Transform
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int

# Rows whose curves are held at a time.
_ROWS_AT_ONCE = 4_096
# What a block of rows costs beside its rows, where each has many particles.
_COST_OF_PARTICLES = 32


class Mixture(eqx.Module):
    """Predictive mixtures Σ_p w_p N(mean_p, variance_p) of n rows, in standardised units."""

    weights: Float[Array, " P"]
    means: Float[Array, "P n"]
    variances: Float[Array, "P n"]


class Curves(eqx.Module):
    """Gaussians of f at rows under P weighted particles, with the noise variances of each.

    Along the leading axis come the values and, on request, their derivatives in each input column.
    """

    weights: Float[Array, " P"]
    means: Float[Array, "k P n"]
    variances: Float[Array, "k P n"]
    noise: Float[Array, "*P n"]

    def outputs(self, *, include_noise: bool) -> Mixture:
        """Return the mixtures of the outputs, or of the function behind them."""
        noise = self.noise if include_noise else jnp.zeros_like(self.noise)
        return Mixture(self.weights, self.means[0], self.variances[0] + noise)


# What is asked of the mixtures of rows: a function of them and of k given values a row, with m results a row. Values
# are in double precision whatever that of the mixtures, since they may be a location and a scale in the user's units.
Statistic = Callable[[Mixture, Float[Array, "n k"]], Float[Array, "n m"]]
# A statistic of the mixtures of all rows that someone knows of, from values for each row.
Ask = Callable[[HostFloat, Statistic], HostFloat]


class OutputMoments(eqx.Module):
    """The statistic that is mean and variance of the output, given its location and scale for each row.

    These are arrays, so that one program serves models of all scales.
    """

    transform: Transform | None

    def __call__(self, rows: Mixture, factors: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
        """Return both in the user's units."""
        location, scale = factors.T
        # The variance as that within components and that between them, ⟨var_p y + (⟨y⟩_p − ⟨y⟩)²⟩, both positive:
        # ⟨y²⟩ − ⟨y⟩² would lose all digits of a small one.
        if self.transform is None:  # before the location is added, which may be large
            mean = rows.weights @ rows.means
            variance = rows.weights @ (rows.variances + (rows.means - mean) ** 2)
            return jnp.stack([mean * scale + location, variance * scale**2], axis=1)
        means, variances = rows.means * scale + location, rows.variances * scale**2
        centres = self.transform.mean(means, variances)
        mean = rows.weights @ centres
        variance = rows.weights @ (self.transform.variance(means, variances) + (centres - mean) ** 2)
        return jnp.stack([mean, variance], axis=1)


def quantiles(rows: Mixture, levels: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Return quantiles at given levels."""

    def at(level: Float[Array, " n"]) -> Float[Array, " n"]:
        return mixture_quantile(level, rows.means, rows.variances, rows.weights[:, None])

    return jax.vmap(at, in_axes=1, out_axes=1)(levels.astype(rows.means.dtype))


def scores(rows: Mixture, measured: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
    """Return log density, and probability of no larger ones, of values y whose own errors have variances e.

    log Σ_p w_p N(y | m_p, v_p + e) and Σ_p w_p Φ((y − m_p)/√(v_p + e))
    """
    values, variances = measured[:, 0], rows.variances + measured[:, 1]
    return jnp.stack(mixture_scores(values, rows.means, variances, rows.weights[:, None]), axis=1)


def pieces(places: HostInt) -> Iterator[HostInt]:
    """Yield rows in pieces whose curves can be held."""
    for start in range(0, len(places), _ROWS_AT_ONCE):
        yield places[start : start + _ROWS_AT_ONCE]


def condition_curves(ensemble: Ensemble, condition: Condition, points: HostFloat, *, slopes: bool = False) -> Curves:
    """Return the curves of one condition at standardised points, under all particles that stand for it."""
    padded = jnp.asarray(with_last_repeated(points), ensemble.dtype)
    return _together([_curves_of(some, padded, slopes) for some in particles_in_chunks(ensemble, condition)])


@compiled
def _curves_of(particles: Particles, points: Float[Array, "n Q_X"], slopes: bool) -> Curves:
    means, variances = with_slopes(lambda at: moments(particles, at), points, slopes=slopes)
    noise = jnp.broadcast_to(particles.noise[:, None], (len(particles.noise), len(points)))
    return Curves(jnp.exp(particles.log_weights), means, variances, noise)


def trained_curves(ensemble: Ensemble, points: HostFloat, numbers: HostInt, *, slopes: bool = False) -> Curves:
    """Return the curves of trained conditions at standardised points; ``numbers`` say which each point has."""
    distinct, places = np.unique(numbers, return_inverse=True)
    gaussians = None if ensemble.fit is None else ensemble.fit.posterior.parameters.latents
    trained = (ensemble.latents, ensemble.noise, ensemble.noise_deviation, ensemble.own)
    members = _of_trained(gaussians, trained, jnp.asarray(repeated(distinct)))
    return curves_of_members(ensemble, members, points, places.reshape(-1), numbers=distinct, slopes=slopes)


@compiled
def _of_trained(
    gaussians: LatentGaussians | None,
    trained: tuple[Float[Array, "S D Q_H"], Float[Array, "S D"], Float[Array, "S D"], Float[Array, "S D"]],
    chosen: Int[Array, " C"],
) -> Members:
    """Return trained conditions with their latents, of Gaussians quasi-random points."""
    latents, noise, deviation, own = (each[:, chosen] for each in trained)
    if gaussians is None:
        return Members(latents[:, :, None], noise[..., None], own)
    points = gaussian_nodes(jax.tree.map(lambda leaf: leaf[chosen], gaussians))[None]
    return Members(points, noise_nodes(noise, deviation, points.shape[-1]), own)


def curves_of_members(
    ensemble: Ensemble,
    members: Members,
    points: HostFloat,
    places: HostInt,
    *,
    numbers: HostInt | None = None,
    slopes: bool = False,
) -> Curves:
    """Return the curves of C conditions at points; ``places`` say which of them each point has.

    ``numbers`` are those of trained conditions; without them the conditions were never trained.
    """
    n_conditions, n_each = members.latents.shape[1:3]
    layout = block_layout(places, n_conditions, block_cost=8 if n_each == 1 else _COST_OF_PARTICLES)
    # Conditions are often asked at the same inputs, whose features cost most. Unless many are, points stay as they are:
    # then the shape of the compiled program depends on the blocks alone.
    different, number = np.unique(points, axis=0, return_inverse=True)
    different, place = with_last_repeated(different), number.reshape(-1)[layout.row]
    if len(different) > layout.row.size // 2:
        different, place = points[layout.row.reshape(-1)], np.arange(layout.row.size).reshape(layout.row.shape)
    position = np.empty(len(points), int)  # of each row among the blocks
    position[layout.row[layout.present > 0]] = np.flatnonzero(layout.present)
    trained = np.full(n_conditions, -1) if numbers is None else repeated(numbers)
    whole = (place, layout.block_condition, trained[layout.block_condition], with_last_repeated(position))
    blocks = Blocks(jnp.asarray(different, ensemble.dtype), *map(jnp.asarray, whole))
    return _together(
        [
            _curves_in_blocks(processes, *of_processes((ensemble.log_weights, members), some), blocks, slopes)
            for some, processes in chunks(ensemble)
        ]
    )


@compiled
def _curves_in_blocks(
    processes: Process, log_weights: Float[Array, " S"], members: Members, blocks: Blocks, slopes: bool
) -> Curves:
    position, n_each = blocks.position, members.latents.shape[2]
    found = with_slopes(partial(block_moments, processes, members, blocks), blocks.points, slopes=slopes)
    means, variances = (leaf[..., position].reshape(len(leaf), -1, len(position)) for leaf in found)
    noise = members.noise[:, blocks.condition[position // blocks.place.shape[1]]]  # (S, n, K)
    weights = jnp.repeat(jnp.exp(log_weights) / n_each, n_each)
    return Curves(weights, means, variances, jnp.moveaxis(noise, 2, 1).reshape(-1, len(position)))


def _together(parts: list[Curves]) -> Curves:
    # Curves under the processes of several chunks; particles are along the last axis but one, or the only one.
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=-min(leaves[0].ndim, 2)), *parts)


def statistic_of(
    curves: Curves, values: HostFloat, statistic: Statistic, *, include_noise: bool, slopes: bool = False
) -> HostFloat:
    """Return a statistic of the mixture of each row, given some values for each.

    With ``slopes``, of curves that have them, its derivatives in each input column: (rows, statistics, columns).
    """
    padded = jnp.asarray(with_last_repeated(values, curves.means.shape[-1]))
    return np.asarray(_statistic_of(curves, padded, statistic, include_noise, slopes))[: len(values)]


@compiled
def _statistic_of(
    curves: Curves, values: Float[Array, "n k"], statistic: Statistic, include_noise: bool, slopes: bool
) -> Float[Array, "n m *Q_X"]:
    rows = curves.outputs(include_noise=include_noise)

    def at(means: Float[Array, "P n"], variances: Float[Array, "P n"]) -> Float[Array, "n m"]:
        return statistic(Mixture(rows.weights, means, variances), values)

    def along(d_means: Float[Array, "P n"], d_variances: Float[Array, "P n"]) -> Float[Array, "n m"]:
        return cast(Array, jax.jvp(at, (rows.means, rows.variances), (d_means, d_variances))[1])

    if not slopes:
        return at(rows.means, rows.variances)
    return jax.vmap(along, out_axes=2)(curves.means[1:], curves.variances[1:])


# In the user's units


def output_factors(scaling: Scaling, n_rows: int) -> HostFloat:
    """Return location and scale of the output for each row, as :class:`OutputMoments` takes them."""
    return np.broadcast_to([scaling.output_mean, scaling.output_scale], (n_rows, 2))


def moments_in_units(ask: Ask, scaling: Scaling, n_rows: int) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output at each row in the user's units."""
    mean, variance = ask(output_factors(scaling, n_rows), OutputMoments(scaling.transform)).T
    return mean, variance


def quantiles_in_units(ask: Ask, scaling: Scaling, levels: HostFloat) -> HostFloat:
    """Return quantiles of the output in the user's units, at some levels for each row."""
    return scaling.quantity(ask(levels, quantiles))


class Scores(NamedTuple):
    """Outputs under their predictive distributions: log density per unit, and the probability of no larger ones."""

    log_density: HostFloat
    probability_below: HostFloat


def scores_in_units(ask: Ask, scaling: Scaling, outputs: HostFloat, errors: HostFloat) -> Scores:
    """Judge outputs in the user's units; what the transform cannot take is too small to happen.

    ``errors`` are standard deviations of each output beyond what the mixtures know of. The lowest output that a
    transform can have may be that of many values, and then has a probability in place of a density.
    """
    possible = scaling.takes(outputs)
    outputs = np.where(possible, outputs, 1.0)
    measured = np.stack([scaling.outputs(outputs), scaling.error_variances(errors, outputs)], axis=1)
    density, below = ask(measured, scores).T
    is_lowest = scaling.are_lowest(outputs)
    density = density + np.where(is_lowest, 0.0, scaling.log_slopes(outputs))  # p(y) = p(z) dz/dy
    with np.errstate(divide="ignore"):  # of what cannot happen
        density = np.where(is_lowest, np.log(below), density)
    return Scores(np.where(possible, density, -np.inf), np.where(possible, below, 0.0))


def with_variances(covariance: HostFloat, variance: HostFloat) -> HostFloat:
    """Return the covariance with the same correlations and these variances; what does not vary has no correlations."""
    own = np.diag(covariance)
    scale = np.sqrt(np.divide(variance, own, out=np.zeros_like(variance), where=own > 0))
    scaled = covariance * np.outer(scale, scale)
    np.fill_diagonal(scaled, variance)
    return scaled
