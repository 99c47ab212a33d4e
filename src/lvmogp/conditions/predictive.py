"""Predictive curves of rows: the Gaussians of all particles that speak for a condition, with their weights.

Curves stay on the device, where statistics of them are computed. Rows are padded to few numbers; what is asked of them
is returned for the rows themselves.
"""

from collections.abc import Iterator
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.condition import Condition, gaussian_nodes, particles_in_chunks
from lvmogp.conditions.curves import Particles, block_moments, moments, with_slopes
from lvmogp.conditions.ensemble import Ensemble, chunks, of_processes
from lvmogp.conditions.mixtures import Mixture, Statistic
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, repeated, rounded_up, with_last_repeated
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.process import Process
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int

# Rows whose curves are held at a time.
_ROWS_AT_ONCE = 4_096
# What a block of rows costs beside its rows, where each has many particles.
_COST_OF_PARTICLES = 32


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


class Blocks(eqx.Module):
    """Rows in blocks of one condition each: which point stands where, and the position of each row among them."""

    points: Float[Array, "m Q_X"]
    place: Int[Array, "B b"]
    condition: Int[Array, " B"]
    position: Int[Array, " n"]


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
    found = with_slopes(lambda at: moments(particles, at), points, slopes=slopes)
    noise = jnp.broadcast_to(particles.noise[:, None], (len(particles.noise), len(points)))
    return Curves(jnp.exp(particles.log_weights), found.means, found.variances, noise)


def trained_curves(ensemble: Ensemble, points: HostFloat, numbers: HostInt, *, slopes: bool = False) -> Curves:
    """Return the curves of trained conditions at standardised points; ``numbers`` say which each point has."""
    distinct, places = np.unique(numbers, return_inverse=True)
    own = None if ensemble.fit is None else ensemble.fit.posterior.parameters.latents
    latents, noise = _of_trained(own, ensemble.latents, ensemble.noise, jnp.asarray(repeated(distinct)))
    return curves_at_latents(ensemble, latents, points, places.reshape(-1), noise=noise, slopes=slopes)


@compiled
def _of_trained(
    gaussians: LatentGaussians | None,
    latents: Float[Array, "S D Q_H"],
    noise: Float[Array, "S D"],
    chosen: Int[Array, " C"],
) -> tuple[Float[Array, "S C K Q_H"], Float[Array, "S C"]]:
    """Return the latents of trained conditions, of Gaussians quasi-random points, and their noise."""
    if gaussians is None:
        return latents[:, chosen, None], noise[:, chosen]
    own = LatentGaussians(gaussians.mean[chosen], gaussians.variance[chosen])
    return gaussian_nodes(own)[None], noise[:, chosen]


def curves_at_latents(
    ensemble: Ensemble,
    latents: Float[Array, "S C K Q_H"],
    points: HostFloat,
    numbers: HostInt,
    *,
    noise: Float[Array, "S C"],
    slopes: bool = False,
) -> Curves:
    """Return the curves at points that have one of C sets of K latents under each process; ``numbers`` say which."""
    n_each = latents.shape[2]
    layout = block_layout(numbers, latents.shape[1], block_cost=8 if n_each == 1 else _COST_OF_PARTICLES)
    different, place = _distinct(points, layout.row, ensemble.dtype)
    position = np.empty(len(points), int)  # of each row among the blocks
    position[layout.row[layout.present > 0]] = np.flatnonzero(layout.present)
    blocks = Blocks(different, *map(jnp.asarray, (place, layout.block_condition, with_last_repeated(position))))
    return _together(
        [
            _curves_in_blocks(processes, *of_processes((ensemble.log_weights, latents, noise), some), blocks, slopes)
            for some, processes in chunks(ensemble)
        ]
    )


@compiled
def _curves_in_blocks(
    processes: Process,
    log_weights: Float[Array, " S"],
    latents: Float[Array, "S C K Q_H"],
    noise: Float[Array, "S C"],
    blocks: Blocks,
    slopes: bool,
) -> Curves:
    place, of_block, position, n_each = blocks.place, blocks.condition, blocks.position, latents.shape[2]
    found = with_slopes(lambda at: block_moments(processes, latents, at, place, of_block), blocks.points, slopes=slopes)
    means, variances = (
        leaf[..., position].reshape(len(leaf), -1, len(position)) for leaf in (found.means, found.variances)
    )
    own = noise[:, of_block[position // place.shape[1]]]
    weights = jnp.exp(log_weights) / n_each
    return Curves(jnp.repeat(weights, n_each), means, variances, jnp.repeat(own, n_each, axis=0))


def _together(parts: list[Curves]) -> Curves:
    # Curves under the processes of several chunks.
    if len(parts) == 1:
        return parts[0]
    weights, noise = (jnp.concatenate([getattr(part, name) for part in parts]) for name in ("weights", "noise"))
    means, variances = (
        jnp.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("means", "variances")
    )
    return Curves(weights, means, variances, noise)


def _distinct(points: HostFloat, row: HostInt, dtype: str) -> tuple[Float[Array, "m Q_X"], HostInt]:
    # The points of blocks without repetition, and where each of them stands: conditions are often asked at the same
    # inputs, whose features cost most. Unless there are many repetitions, all points as they stand, so that the shape
    # of the compiled program depends on the blocks alone.
    different, number = np.unique(points, axis=0, return_inverse=True)
    if rounded_up(len(different)) > row.size // 2:
        return jnp.asarray(points[row.reshape(-1)], dtype), np.arange(row.size).reshape(row.shape)
    return jnp.asarray(with_last_repeated(different), dtype), number.reshape(-1)[row]


def statistic_of(
    curves: Curves, values: HostFloat, statistic: Statistic, *, include_noise: bool, slopes: bool = False
) -> HostFloat:
    """Return a statistic of the mixture of each row, given some values for each.

    With ``slopes``, of curves that have them, its derivatives in each input column: (rows, statistics, columns).
    """
    padded = jnp.asarray(with_last_repeated(values, curves.means.shape[-1]))
    asked = _statistic_slopes if slopes else _statistic_of
    return np.asarray(asked(curves, padded, statistic, include_noise))[: len(values)]


@compiled
def _statistic_of(
    curves: Curves, values: Float[Array, "n k"], statistic: Statistic, include_noise: bool
) -> Float[Array, "n m"]:
    return statistic(curves.outputs(include_noise=include_noise), values)


@compiled
def _statistic_slopes(
    curves: Curves, values: Float[Array, "n k"], statistic: Statistic, include_noise: bool
) -> Float[Array, "n m Q_X"]:
    # By the chain rule through means and variances.
    rows = curves.outputs(include_noise=include_noise)

    def along(d_means: Float[Array, "P n"], d_variances: Float[Array, "P n"]) -> Float[Array, "n m"]:
        def at(means: Float[Array, "P n"], variances: Float[Array, "P n"]) -> Float[Array, "n m"]:
            return statistic(Mixture(rows.weights, means, variances), values)

        return cast(Array, jax.jvp(at, (rows.means, rows.variances), (d_means, d_variances))[1])

    return jax.vmap(along, out_axes=2)(curves.means[1:], curves.variances[1:])
