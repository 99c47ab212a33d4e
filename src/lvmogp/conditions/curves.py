"""Curves of conditions: f(·, h) is Gaussian for each particle, and every answer is a view of these Gaussians."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from lvmogp.algebra.linalg import whiten
from lvmogp.conditions.few_observations import FewObservations, at_points
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import cross, diagonal
from lvmogp.model.posterior import positive_part
from lvmogp.model.process import Explained, Process
from lvmogp.typing import Array, Float, Int, Scalar

# Particles of one process whose curves are computed together, the fewer the more rows there are.
_PARTICLES_AT_ONCE, _ROWS_OF_PARTICLES = 64, 2**15
# Pairs of a block of rows and a particle that are computed together.
_PAIRS_AT_ONCE = 128
_Result = TypeVar("_Result")


class Gaussians(eqx.Module):
    """Means and variances of f at n rows, under each of P particles."""

    means: Float[Array, "*S n"]
    variances: Float[Array, "*S n"]


class ParticleCurves(eqx.Module):
    """Curves of particles, each conditioned on the observations of its condition; stacked along a leading axis.

    What the data explain of f(·, h), its prior variance k_H(h, h), the factor of κ(X, X) + σ²I and the solution
    (κ(X, X) + σ²I)⁻¹(y − m).
    """

    explained: Explained
    scale: Float[Array, "*P"]
    factor: Float[Array, "*P m m"]
    solution: Float[Array, "*P m"]


class Particles(eqx.Module):
    """Weighted particles of one condition with their processes: all that is needed to answer for it.

    ``process`` says under which of the processes each particle is, and ``aligned`` are its latents as they compare
    between processes. ``prepared`` are the curves, where one process serves all.
    """

    processes: Process
    process: Int[Array, " P"]
    latents: Float[Array, "P Q_H"]
    aligned: Float[Array, "P L"]
    noise: Float[Array, " P"]
    log_weights: Float[Array, " P"]
    seen: FewObservations
    prepared: ParticleCurves | None


def picked(processes: Process, number: Int[Array, ""] | int) -> Process:
    """Return one of several processes."""
    return jax.tree.map(lambda leaf: leaf[number], processes)


def curve_given(process: Process, seen: FewObservations, latent: Float[Array, " Q_H"], noise: Scalar) -> ParticleCurves:
    """Condition the curve f(·, h) of one process on the observations of its condition (equations 18 and 39)."""
    explained = process.explained.at_latent(process.latents(latent[None])[0])
    scale = process.latents.kernel.evaluate(latent, latent)
    inputs, one = seen.features(process), jnp.ones(1, latent.dtype)
    covariance = scale * seen.gram(process) - explained.covariance(inputs, one, inputs, one)  # κ_h(X, X)
    factor = seen.factor(covariance, noise)
    residual = seen.values - explained.mean(inputs, one)
    return ParticleCurves(explained, scale, factor, cho_solve((factor, True), residual))


@compiled
def prepared_curves(
    processes: Process, latents: Float[Array, "P Q_H"], noise: Float[Array, " P"], seen: FewObservations
) -> ParticleCurves:
    """Return the curves of particles that one process serves."""
    process = picked(processes, 0)
    return jax.vmap(lambda latent, own: curve_given(process, seen, latent, own))(latents, noise)


def covariance_with_seen(
    process: Process, curve: ParticleCurves, seen: FewObservations, points: Float[Array, "n Q_X"]
) -> Float[Array, "n m"]:
    """Return κ_h(x, X) between points and the observations."""
    one = jnp.ones(1, points.dtype)
    prior = curve.scale * at_points(points).gram_with(process, seen)
    return prior - curve.explained.covariance(process.inputs(points), one, seen.features(process), one)


def _moments_of(
    process: Process, curve: ParticleCurves, seen: FewObservations, points: Float[Array, "n Q_X"]
) -> Gaussians:
    """Return mean and variance of f at points given the observations (equations 22 and 39)."""
    features, one = process.inputs(points), jnp.ones(1, points.dtype)
    to_seen = covariance_with_seen(process, curve, seen, points)
    prior = curve.scale * diagonal(process.inputs.kernel, points)
    explained = curve.explained.variance(features, one) + jnp.sum(whiten(curve.factor, to_seen.T) ** 2, axis=0)
    mean = curve.explained.mean(features, one) + to_seen @ curve.solution
    return Gaussians(mean, positive_part(prior - explained, prior))


def _covariance_of(
    process: Process,
    curve: ParticleCurves,
    seen: FewObservations,
    first: Float[Array, "n Q_X"],
    second: Float[Array, "k Q_X"],
) -> Float[Array, "n k"]:
    """Return κ_h(x, x') − κ_h(x, X)(κ_h(X, X) + σ²I)⁻¹κ_h(X, x') (equations 22 and 39)."""
    one = jnp.ones(1, first.dtype)
    left, right = process.inputs(first), process.inputs(second)
    own = curve.scale * cross(process.inputs.kernel, first, second) - curve.explained.covariance(left, one, right, one)
    left_to_seen = covariance_with_seen(process, curve, seen, first)
    right_to_seen = covariance_with_seen(process, curve, seen, second)
    return own - whiten(curve.factor, left_to_seen.T).T @ whiten(curve.factor, right_to_seen.T)


def _over_particles(
    function: Callable[[Process, ParticleCurves], _Result], particles: Particles, n_rows: int
) -> _Result:
    # Many particles of one process at a time; of many processes one after the other, each being large.
    processes, seen = particles.processes, particles.seen
    if particles.prepared is not None:
        process = picked(processes, 0)
        at_once = min(max(_ROWS_OF_PARTICLES // n_rows, 1), _PARTICLES_AT_ONCE)
        return jax.lax.map(lambda curve: function(process, curve), particles.prepared, batch_size=at_once)

    def one(particle: tuple[Array, Array, Array]) -> _Result:
        number, latent, noise = particle
        process = picked(processes, number)
        return function(process, curve_given(process, seen, latent, noise))

    return jax.lax.map(one, (particles.process, particles.latents, particles.noise))


def moments(particles: Particles, points: Float[Array, "n Q_X"]) -> Gaussians:
    """Return mean and variance of f at points under each particle, (P, n)."""
    return _over_particles(
        lambda process, curve: _moments_of(process, curve, particles.seen, points), particles, len(points)
    )


def covariances(
    particles: Particles, first: Float[Array, "n Q_X"], second: Float[Array, "k Q_X"]
) -> Float[Array, "P n k"]:
    """Return the covariance of f between two sets of points under each particle."""
    return _over_particles(
        lambda process, curve: _covariance_of(process, curve, particles.seen, first, second), particles, len(first)
    )


def block_moments(
    processes: Process,
    latents: Float[Array, "S C K Q_H"],
    points: Float[Array, "m Q_X"],
    place: Int[Array, "B b"],
    block_condition: Int[Array, " B"],
) -> Gaussians:
    """Return mean and variance of f at blocks of points, each of one of C conditions (equation 35): (S, K, B · b).

    The conditions have no observations of their own: those are in the processes. ``place`` says which of the points
    stands where in the blocks.
    """
    n_particles = latents.shape[2]

    def one_process(given: tuple[Process, Array]) -> Gaussians:
        process, own = given
        flat = own.reshape(-1, own.shape[-1])
        features = process.latents(flat).reshape(*own.shape[:2], -1)
        scales = diagonal(process.latents.kernel, flat).reshape(own.shape[:2])

        def one_block(block: tuple[Array, Array, Array]) -> Gaussians:
            inputs, prior, condition = block

            def one_particle(latent: Float[Array, " C"], scale: Scalar) -> Gaussians:
                left = scale * prior - process.explained.variance(inputs, latent)
                return Gaussians(process.explained.mean(inputs, latent), positive_part(left, scale * prior))

            return jax.vmap(one_particle)(features[condition], scales[condition])

        blocks = (process.inputs(points)[place], diagonal(process.inputs.kernel, points)[place], block_condition)
        found = jax.lax.map(one_block, blocks, batch_size=max(_PAIRS_AT_ONCE // n_particles, 1))
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(n_particles, -1), found)

    return jax.lax.map(one_process, (processes, latents))


def with_slopes(curves: Callable[[Array], Gaussians], points: Float[Array, "m Q_X"], *, slopes: bool) -> Gaussians:
    """Return curves at points, first along a new axis, and on request their derivatives in each input column after."""

    def along(direction: Float[Array, " Q_X"]) -> Gaussians:
        # Each row depends on its own point alone, so one direction serves all rows at once.
        return jax.jvp(curves, (points,), (jnp.broadcast_to(direction, points.shape),))[1]

    values = jax.tree.map(lambda leaf: leaf[None], curves(points))
    if not slopes:
        return values
    derivatives = jax.vmap(along)(jnp.eye(points.shape[-1], dtype=points.dtype))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), values, derivatives)
