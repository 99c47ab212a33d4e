"""A condition, trained or new: weighted latents under each process, with noise and observations of its own."""

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from lvmogp.conditions.curves import FewObservations, ParticleCurves, Particles, no_observations, prepared_curves
from lvmogp.conditions.ensemble import Ensemble, chunks, made, most_at_once
from lvmogp.conditions.search import normal_nodes
from lvmogp.ground.padding import repeated, rounded_up
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.process import Process
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int

# Points that stand for a Gaussian over latents.
N_NODES = 128
MOST_PARTICLES = 512
# Particles of conditions with many observations: each costs their cube.
_FEWEST_PARTICLES, _MANY_OBSERVATIONS = 64, 64


class KnownLatents(eqx.Module):
    """The coordinates of one condition: ``values`` where they are known, places in ``unknown`` to be filled.

    The first ``n_latent`` are latents, which nobody knows; the others come from features.
    """

    values: Float[Array, " Q_H"]
    unknown: Int[Array, " U"]
    n_latent: int = eqx.field(static=True)

    @property
    def n_uncertain(self) -> int | None:
        """Return the number of latents where they alone are unknown, else ``None``; as in ``LatentGaussians``."""
        return self.n_latent if self.unknown.shape[0] == self.n_latent < self.values.shape[0] else None

    def filled(self, found: Float[Array, " U"], fill: float | None = None) -> Float[Array, " Q_H"]:
        """Return all coordinates: those found in the unknown places, the known ones (or ``fill``) in the others."""
        known = self.values if fill is None else jnp.full_like(self.values, fill)
        return known.at[self.unknown].set(found)


def known_latents(ensemble: Ensemble, n_latent: int, coordinates: HostFloat | None = None) -> KnownLatents:
    """Return what the coordinates of a condition's features say, NaN where missing; without any, nothing is known."""
    values = np.full(ensemble.latents.shape[2], np.nan)
    if coordinates is not None:
        values[n_latent:] = coordinates
    return KnownLatents(
        jnp.asarray(np.nan_to_num(values), ensemble.dtype),
        jnp.asarray(np.flatnonzero(np.isnan(values)), jnp.int32),
        n_latent,
    )


class Condition(eqx.Module):
    """Weighted particles, K under each of S processes, in the coordinates of the process.

    ``noise`` is σ² and ``own`` is ρ², by which the variance of its own curve differs. ``log_weights`` are those of
    process and particle together: the weights add up to one over both. ``number`` is that of a trained condition, −1 of
    others. Where the latents are Gaussian under one process, ``gaussian`` is their distribution, for which the
    particles stand. ``prepared`` are the curves of the particles, where one process serves all.
    """

    latents: Float[Array, "S K Q_H"]
    noise: Float[Array, "S K"]
    own: Float[Array, "S K"]
    log_weights: Float[Array, "S K"]
    seen: FewObservations
    number: Int[Array, ""]
    gaussian: LatentGaussians | None = None
    prepared: ParticleCurves | None = None

    @property
    def weights(self) -> HostFloat:
        """Return the weight of each particle under each process."""
        return np.exp(np.asarray(self.log_weights, dtype=float))


def condition_of_particles(
    ensemble: Ensemble,
    latents: Float[Array, "S K Q_H"],
    noise: Float[Array, "S K"],
    own: Float[Array, "S K"],
    log_weights: Float[Array, "S K"],
    seen: FewObservations,
) -> Condition:
    """Put a new condition together; where one process serves all particles, their curves are worked out once."""
    prepared, number = None, jnp.asarray(-1)
    if ensemble.fit is not None and ensemble.processes is not None:
        prepared = prepared_curves(ensemble.processes, seen, number, latents[0], noise[0], own[0])
    return Condition(latents, noise, own, log_weights, seen, number, prepared=prepared)


def condition_of_gaussian(
    ensemble: Ensemble,
    latents: LatentGaussians,
    noise: Float[Array, ""],
    own: Float[Array, ""],
    *,
    noise_deviation: Float[Array, ""] | float = 0.0,
    number: int = -1,
) -> Condition:
    """Return a condition whose latents are Gaussian under the one process, with quasi-random points for them.

    So is the logarithm of its noise, whose mean is ``noise``.
    """
    noise, deviation = (jnp.asarray(each, ensemble.dtype)[None] for each in (noise, noise_deviation))
    noises = noise_nodes(noise, deviation, latents.mean.shape[1])
    owns = jnp.full((1, N_NODES), own, ensemble.dtype)
    uniform = jnp.full((1, N_NODES), -np.log(N_NODES), ensemble.dtype)
    nothing = no_observations(ensemble.n_columns, ensemble.dtype)
    return Condition(gaussian_nodes(latents), noises, owns, uniform, nothing, jnp.asarray(number), gaussian=latents)


def gaussian_nodes(latents: LatentGaussians) -> Float[Array, "D K Q_H"]:
    """Return quasi-random points of Gaussians over latents."""
    nodes = jnp.asarray(normal_nodes(N_NODES, latents.mean.shape[1]), latents.mean.dtype)
    return latents.mean[:, None] + jnp.sqrt(latents.variance)[:, None] * nodes


def noise_nodes(mean: Float[Array, "*C"], deviation: Float[Array, "*C"], n_coordinates: int) -> Float[Array, "*C K"]:
    """Return points of log-normal noise variances of these means, to go with points of so many coordinates."""
    factors = jnp.exp(deviation[..., None] * jnp.asarray(standard_noise_nodes(n_coordinates), mean.dtype))
    return mean[..., None] * factors / jnp.mean(factors, axis=-1, keepdims=True)


def standard_noise_nodes(n_coordinates: int) -> HostFloat:
    """Return the standard normal points that belong to noise, beside those of so many coordinates."""
    return normal_nodes(N_NODES, n_coordinates + 1)[:, -1]


def log_noise_deviation(ensemble: Ensemble, condition: Condition) -> float:
    """Return the posterior standard deviation of the logarithm of a condition's noise variance."""
    process, place, weights = chosen_particles(ensemble, condition)
    logs = np.log(np.asarray(condition.noise, dtype=float)[process, place])
    return float(np.sqrt(weights @ (logs - weights @ logs) ** 2))


def trained_condition(ensemble: Ensemble, number: int) -> Condition:
    """Return a trained condition: q(h) itself in a fit, in each draw its latents; all know its observations already."""
    if ensemble.fit is not None:
        own = ensemble.fit.posterior.parameters.latents
        one = LatentGaussians(own.mean[number][None], own.variance[number][None], own.n_uncertain)
        noise, deviation, scale = (each[0, number] for each in (ensemble.noise, ensemble.noise_deviation, ensemble.own))
        return condition_of_gaussian(ensemble, one, noise, scale, noise_deviation=deviation, number=number)
    nothing = no_observations(ensemble.n_columns, ensemble.dtype)
    latents, noise, own = (each[:, number, None] for each in (ensemble.latents, ensemble.noise, ensemble.own))
    return Condition(latents, noise, own, ensemble.log_weights[:, None], nothing, jnp.asarray(number))


def aligned_latents(ensemble: Ensemble, condition: Condition) -> Float[Array, "S K Q_H"]:
    """Return the latents of all particles as they compare between processes."""
    return condition.latents @ ensemble.rotations


def latent_gaussian(ensemble: Ensemble, condition: Condition) -> LatentGaussians:
    """Return mean and variance of the aligned latents."""
    if condition.gaussian is not None:
        return condition.gaussian
    aligned, weights = aligned_latents(ensemble, condition), jnp.exp(condition.log_weights)
    mean = jnp.einsum("sk,skq->q", weights, aligned)
    return LatentGaussians(mean[None], jnp.einsum("sk,skq->q", weights, (aligned - mean) ** 2)[None])


class Chosen(NamedTuple):
    """Particles that stand for all of a condition: process and place of each, with weights that add up to one."""

    process: HostInt
    place: HostInt
    weights: HostFloat


def chosen_particles(ensemble: Ensemble, condition: Condition, most: int = MOST_PARTICLES) -> Chosen:
    """Choose a bounded number of particles; all of them where their curves are prepared.

    Where there are more, by systematic resampling: every 1/P of the cumulated weight has its particle, in an order in
    which neighbours have similar latents.
    """
    n_each = condition.noise.shape[1]
    weights = condition.weights.reshape(-1)
    if condition.prepared is not None:
        return Chosen(np.zeros(n_each, int), np.arange(n_each), weights / weights.sum())
    affordable = MOST_PARTICLES * _MANY_OBSERVATIONS // max(condition.seen.n_present, _MANY_OBSERVATIONS)
    most = min(max(affordable, _FEWEST_PARTICLES), most)
    places = np.flatnonzero(weights > 0)
    if len(places) > most:
        order = _by_neighbourhood(np.asarray(aligned_latents(ensemble, condition)).reshape(len(weights), -1), most)
        ends = np.cumsum(weights[order])
        drawn = np.searchsorted(ends, (np.arange(most) + 0.5) / most * ends[-1])
        places, counts = np.unique(order[drawn], return_counts=True)
        weights = counts / most
    else:
        weights = weights[places] / weights[places].sum()
    # Few different numbers of particles, the last of them without weight, share few compiled programs.
    padded, places = np.pad(weights, (0, rounded_up(len(places)) - len(places))), repeated(places)
    return Chosen(places // n_each, places % n_each, padded)


def mean_noises(ensemble: Ensemble, condition: Condition) -> tuple[float, float]:
    """Return the posterior means of a condition's noise variance σ² and of the scale ρ² of its own curve."""
    process, place, weights = chosen_particles(ensemble, condition)
    found = (weights @ np.asarray(each, dtype=float)[process, place] for each in (condition.noise, condition.own))
    noise, own = map(float, found)
    return noise, own


def mean_noise(ensemble: Ensemble, condition: Condition) -> float:
    """Return the posterior mean of a condition's noise variance."""
    return mean_noises(ensemble, condition)[0]


def _by_neighbourhood(latents: HostFloat, n_wanted: int) -> HostInt:
    """Return an order of points along a curve that fills space (Morton's): bits of each dimension in turn.

    There are about twice as many cells as points are wanted. More would tell points apart by digits that nobody knows.
    """
    latents = latents[:, np.ptp(latents, axis=0) > 0]
    if latents.shape[1] == 0:
        return np.arange(len(latents))
    n_bits = -(-(2 * n_wanted - 1).bit_length() // latents.shape[1])
    cells = (ndtr(latents) * 2**n_bits).astype(np.int64).clip(0, 2**n_bits - 1)
    code = np.zeros(len(latents), dtype=np.int64)
    for bit in reversed(range(n_bits)):
        for dimension in range(latents.shape[1]):
            code = 2 * code + (cells[:, dimension] >> bit & 1)
    return np.argsort(code, kind="stable")


def all_particles(ensemble: Ensemble, condition: Condition) -> Particles:
    """Return particles that stand for all of a condition, with their processes: as many as fit into memory together."""
    if ensemble.processes is not None:
        return next(particles_in_chunks(ensemble, condition))
    chosen = chosen_particles(ensemble, condition, most_at_once(ensemble))
    distinct, places = np.unique(chosen.process, return_inverse=True)
    return _particles(ensemble, condition, chosen, made(ensemble, repeated(distinct)), places)


def particles_in_chunks(ensemble: Ensemble, condition: Condition) -> Iterator[Particles]:
    """Yield particles that stand for all of a condition, those together whose processes fit into memory."""
    chosen = chosen_particles(ensemble, condition)
    for numbers, processes in chunks(ensemble):
        own = np.flatnonzero((chosen.process >= numbers[0]) & (chosen.process <= numbers[-1]))
        if len(own) == 0:
            continue
        some = own if len(own) == len(chosen.process) else repeated(own)
        weights = np.where(np.arange(len(some)) < len(own), chosen.weights[some], 0.0)  # what is padded has none
        part = Chosen(chosen.process[some], chosen.place[some], weights)
        yield _particles(ensemble, condition, part, processes, part.process - numbers[0])


def _particles(
    ensemble: Ensemble, condition: Condition, chosen: Chosen, processes: Process, places: HostInt
) -> Particles:
    # ``places`` are those of the particles' processes among the ones given.
    parts = (condition.latents, condition.noise, condition.own)
    latents, noise, own = (leaf[chosen.process, chosen.place] for leaf in parts)
    prepared = condition.prepared
    if prepared is None and ensemble.fit is not None:  # closed forms do without
        prepared = prepared_curves(processes, condition.seen, condition.number, latents, noise, own)
    with np.errstate(divide="ignore"):  # what is padded has no weight
        log_weights = np.log(chosen.weights)
    return Particles(
        processes=processes,
        process=jnp.asarray(places),
        latents=latents,
        aligned=jnp.einsum("pq,pqr->pr", latents, ensemble.rotations[chosen.process]),
        noise=noise,
        own=own,
        log_weights=jnp.asarray(log_weights, ensemble.dtype),
        seen=condition.seen,
        number=condition.number,
        prepared=prepared,
    )
