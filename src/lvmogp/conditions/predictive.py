"""Predictive mixtures of rows: the Gaussians of all particles that speak for a condition, with their weights."""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.condition import Condition, gaussian_nodes, particles_in_chunks
from lvmogp.conditions.curves import Gaussians, Particles, block_moments, moments, with_slopes
from lvmogp.conditions.ensemble import Ensemble, chunks
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, rounded_up, with_last_repeated
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.process import Process
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int

# Rows whose mixtures are held at a time; of one process all particles are computed together.
_ROWS_AT_ONCE, _ROWS_OF_ONE_PROCESS = 4_096, 512
# What a block of rows costs beside its rows, where each has many particles.
_COST_OF_PARTICLES = 32


class Curves(NamedTuple):
    """Gaussians of f at n rows under P weighted particles, with the noise variances of each.

    Along the leading axis come the values and, on request, their derivatives in each input column.
    """

    weights: HostFloat
    means: Float[Array, "k P n"]
    variances: Float[Array, "k P n"]
    noise: Float[Array, "P *n"]


def pieces(places: HostInt) -> Iterator[HostInt]:
    """Yield rows in pieces whose mixtures can be held."""
    for start in range(0, len(places), _ROWS_AT_ONCE):
        yield places[start : start + _ROWS_AT_ONCE]


def condition_curves(ensemble: Ensemble, condition: Condition, points: HostFloat, *, slopes: bool = False) -> Curves:
    """Return the curves of one condition at standardised points, under all particles that stand for it."""
    chosen, in_chunks = particles_in_chunks(ensemble, condition)
    at_once = _ROWS_AT_ONCE if condition.prepared is None else _ROWS_OF_ONE_PROCESS
    found = np.empty((2, 1 + slopes * points.shape[1], len(chosen.weights), len(points)))
    for own, particles in in_chunks:
        for start in range(0, len(points), at_once):
            some = slice(start, min(start + at_once, len(points)))
            padded = jnp.asarray(with_last_repeated(points[some]), ensemble.dtype)
            curves = _moments(particles, padded, slopes)
            both = np.asarray([curves.means, curves.variances])
            found[:, :, own, some] = both[:, :, : len(own), : some.stop - start]
    noise = np.asarray(condition.noise, dtype=float)[chosen.process, chosen.place]
    return Curves(chosen.weights, jnp.asarray(found[0]), jnp.asarray(found[1]), jnp.asarray(noise[:, None]))


@compiled
def _moments(particles: Particles, points: Float[Array, "n Q_X"], slopes: bool) -> Gaussians:
    return with_slopes(lambda at: moments(particles, at), points, slopes=slopes)


def trained_curves(ensemble: Ensemble, points: HostFloat, numbers: HostInt, *, slopes: bool = False) -> Curves:
    """Return the curves of trained conditions at standardised points; ``numbers`` say which each point has."""
    distinct, places = np.unique(numbers, return_inverse=True)
    if ensemble.fit is not None:
        own = ensemble.fit.posterior.parameters.latents
        latents = gaussian_nodes(LatentGaussians(own.mean[distinct], own.variance[distinct]))[None]
    else:
        latents = ensemble.latents[:, distinct, None]
    found = curves_at_latents(ensemble, latents, points, places.reshape(-1), slopes=slopes)
    noise = np.repeat(np.asarray(ensemble.noise, dtype=float)[:, numbers], latents.shape[2], axis=0)
    return found._replace(noise=jnp.asarray(noise))


def curves_at_latents(
    ensemble: Ensemble,
    latents: Float[Array, "S C K Q_H"],
    points: HostFloat,
    numbers: HostInt,
    *,
    slopes: bool = False,
) -> Curves:
    """Return the curves at points that have one of C sets of K latents under each process; ``numbers`` say which.

    The noise is the geometric mean of that of the trained conditions.
    """
    n_processes, n_sets, n_each, _ = latents.shape
    layout = block_layout(numbers, n_sets, block_cost=8 if n_each == 1 else _COST_OF_PARTICLES)
    blocks = (*_distinct(points, layout.row, ensemble.dtype), jnp.asarray(layout.block_condition))
    present = (layout.present > 0).reshape(-1)
    rows = layout.row.reshape(-1)[present]
    found = np.empty((2, 1 + slopes * points.shape[1], n_processes, n_each, len(points)))
    for some, processes in chunks(ensemble):
        curves = _block_moments(processes, latents[some], *blocks, slopes)
        for whole, part in zip(found, (curves.means, curves.variances), strict=True):
            ordered = np.empty((*whole.shape[:1], len(some), n_each, len(points)))
            ordered[..., rows] = np.asarray(part)[..., present]
            whole[:, some] = ordered
    flat = found.reshape(*found.shape[:2], n_processes * n_each, len(points))
    weights = np.repeat(ensemble.weights / n_each, n_each)
    noise = np.exp(np.mean(np.log(np.asarray(ensemble.noise, dtype=float)), axis=1))
    return Curves(weights, jnp.asarray(flat[0]), jnp.asarray(flat[1]), jnp.asarray(np.repeat(noise, n_each)[:, None]))


@compiled
def _block_moments(
    processes: Process,
    latents: Float[Array, "S C K Q_H"],
    points: Float[Array, "m Q_X"],
    place: Int[Array, "B b"],
    block_condition: Int[Array, " B"],
    slopes: bool,
) -> Gaussians:
    return with_slopes(lambda at: block_moments(processes, latents, at, place, block_condition), points, slopes=slopes)


def _distinct(points: HostFloat, row: HostInt, dtype: str) -> tuple[Float[Array, "m Q_X"], Int[Array, "B b"]]:
    # The points of blocks without repetition, and where each of them stands: conditions are often asked at the same
    # inputs, whose features cost most. Unless there are many repetitions, all points as they stand, so that the shape
    # of the compiled program depends on the blocks alone.
    different, number = np.unique(points, axis=0, return_inverse=True)
    if rounded_up(len(different)) > row.size // 2:
        return jnp.asarray(points[row.reshape(-1)], dtype), jnp.arange(row.size).reshape(row.shape)
    return jnp.asarray(with_last_repeated(different), dtype), jnp.asarray(number.reshape(-1)[row])
