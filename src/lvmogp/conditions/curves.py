"""Observations that are a condition's own, and its curves given them.

f(·, h) is Gaussian for each particle, and every answer is a view of these Gaussians.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from lvmogp.algebra.linalg import factor_beside_errors, whiten
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up, with_zeros
from lvmogp.kernels.covariances import cross, diagonal
from lvmogp.model.posterior import positive_part
from lvmogp.model.process import Explained, Process
from lvmogp.typing import Array, Bool, Float, HostFloat, Int, Scalar

# More observations than these are compressed where one process serves all latents.
MOST_EXACT = 32
# Numbers of places up to that.
PLACES = (4, 8, 16, 32)
# Particles of one process whose curves are computed together, the fewer the more rows there are.
_PARTICLES_AT_ONCE, _ROWS_OF_PARTICLES = 64, 2**15
# Pairs of a block of rows and a particle that are computed together.
_PAIRS_AT_ONCE = 128
_Result = TypeVar("_Result")
# Means and variances of f at n rows, under each of some particles.
Gaussians = tuple[Float[Array, "*S n"], Float[Array, "*S n"]]


def picked(processes: Process, number: Int[Array, ""] | int) -> Process:
    """Return one of several processes."""
    return jax.tree.map(lambda leaf: leaf[number], processes)


class Compressed(eqx.Module):
    """Features of the pseudo-observations that stand for many observations.

    With A = QR, y enters through Qᵀy at features R, which is exact for the part of the curve that the features can
    express. ``excess_count``, ``excess_squares`` and ``residual`` complete the likelihood as in a sparse GP's bound.
    ``is_used`` is false for a condition whose observations stand for themselves beside others that are compressed.
    """

    features: Float[Array, "*C m R"]
    excess_count: Float[Array, "*C"]
    excess_squares: Float[Array, "*C"]
    residual: Float[Array, "*C"]
    is_used: Bool[Array, "*C"]


class FewObservations(eqx.Module):
    """Observations of one condition in standardised units, in m places; ``present`` is 0 where nothing was observed.

    Those of several conditions are stacked along leading axes. ``error_variances`` of the measurements add to their
    noise.
    """

    inputs: Float[Array, "*C m Q_X"]
    values: Float[Array, "*C m"]
    present: Float[Array, "*C m"]
    error_variances: Float[Array, "*C m"]
    compressed: Compressed | None = None

    @property
    def n_present(self) -> int:
        """Return the number of observations, or of pseudo-observations that stand for them."""
        return int(np.sum(np.asarray(self.present)))

    def factor(self, covariance: Float[Array, "m m"], of_condition: Scalar) -> Float[Array, "m m"]:
        """Return the lower factor of the covariance of the observations, given that of the curve.

        An empty place is an observation of nothing with unit noise.
        """
        own = jnp.where(self.present > 0, of_condition, 1.0)
        return factor_beside_errors(covariance + jnp.diag(own), self.error_variances)

    def features(self, process: Process) -> Float[Array, "m R"]:
        """Return the features of the observed inputs, zero in empty places."""
        plain = process.inputs(self.inputs) * self.present[:, None]
        return plain if self.compressed is None else jnp.where(self.compressed.is_used, self.compressed.features, plain)

    def gram_with(self, process: Process, other: "FewObservations") -> Float[Array, "m k"]:
        """Return the prior covariances k_X between two sets of observed inputs, zero in empty places."""
        plain = cross(process.inputs.kernel, self.inputs, other.inputs) * self.present[:, None] * other.present
        summaries = [each.compressed.is_used for each in (self, other) if each.compressed is not None]
        if not summaries:
            return plain
        through = self.features(process) @ other.features(process).T
        return jnp.where(jnp.any(jnp.stack(summaries)), through, plain)


def at_points(points: Float[Array, "n Q_X"]) -> FewObservations:
    """Return points as if something had been observed there, for covariances with them."""
    nothing = jnp.zeros(len(points), points.dtype)
    return FewObservations(points, nothing, nothing + 1, nothing)


def few_observations(
    inputs: HostFloat, values: HostFloat, error_variances: HostFloat | None = None, dtype: str = "float64"
) -> FewObservations:
    """Put observations in one of few numbers of places, so that similar calls share one compiled program."""
    n_places = next((size for size in PLACES if size >= len(values)), rounded_up(len(values)))
    errors = np.zeros(len(values)) if error_variances is None else error_variances

    def placed(rows: HostFloat) -> Array:
        return jnp.asarray(with_zeros(rows, n_places), dtype)

    return FewObservations(placed(inputs), placed(values), placed(np.ones(len(values))), placed(errors))


def no_observations(n_columns: int, dtype: str = "float64") -> FewObservations:
    """Return the observations of a condition that has none of its own."""
    return few_observations(np.empty((0, n_columns)), np.empty(0), dtype=dtype)


@compiled
def compressed(processes: Process, seen: FewObservations, typical_noise: Scalar) -> FewObservations:
    """Return pseudo-observations that stand for many observations, of which the one process serves all latents.

    Divided by √(1 + s²/σ²) all observations have the noise σ² again: that of the model where noise is shared, and a
    typical one where it is not.
    """
    process = picked(processes, 0)
    weights = jnp.where(seen.present > 0, 1 / jnp.sqrt(1 + seen.error_variances / typical_noise), 0.0)
    features, values = process.inputs(seen.inputs) * weights[:, None], seen.values * weights
    rotation, triangular = jnp.linalg.qr(features)  # A = QR: y enters through Qᵀy and what is left of ‖y‖²
    rotated = rotation.T @ values
    size = rotated.shape[0]
    prior = diagonal(process.inputs.kernel, seen.inputs)
    return FewObservations(
        inputs=jnp.zeros((size, seen.inputs.shape[1]), values.dtype),
        values=rotated,
        present=jnp.ones(size, values.dtype),
        error_variances=jnp.zeros(size, values.dtype),
        compressed=Compressed(
            features=triangular,
            excess_count=jnp.sum(weights > 0).astype(values.dtype) - size,
            excess_squares=values @ values - rotated @ rotated,
            residual=prior @ weights**2 - jnp.sum(features**2),  # tr(K − AAᵀ)
            is_used=jnp.asarray(True),
        ),
    )


def stacked(seen: list[FewObservations]) -> FewObservations | None:
    """Stack the observations of several conditions, in as many places as the most of them need; ``None`` of none."""
    if not any(each.n_present for each in seen):
        return None
    size = max(each.values.shape[0] for each in seen)
    widths = [each.compressed.features.shape[1] for each in seen if each.compressed is not None]

    def placed(leaf: Array) -> Array:
        return jnp.pad(leaf, ((0, size - len(leaf)), *[(0, 0)] * (leaf.ndim - 1))) if leaf.ndim else leaf

    def alike(each: FewObservations) -> FewObservations:
        if widths and each.compressed is None:  # beside others that are compressed, it stands for itself
            zero = jnp.zeros((), each.values.dtype)
            features = jnp.zeros((each.values.shape[0], widths[0]), each.values.dtype)
            each = dataclasses.replace(each, compressed=Compressed(features, zero, zero, zero, jnp.asarray(False)))
        return jax.tree.map(placed, each)

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[alike(each) for each in seen])


# Curves of particles


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


def curve_given(process: Process, seen: FewObservations, latent: Float[Array, " Q_H"], noise: Scalar) -> ParticleCurves:
    """Condition the curve f(·, h) of one process on the observations of its condition (equations 18 and 39)."""
    explained = process.explained.at_latent(process.latents(latent[None])[0])
    scale = process.latents.kernel.evaluate(latent, latent)
    inputs, one = seen.features(process), jnp.ones(1, latent.dtype)
    covariance = scale * seen.gram_with(process, seen) - explained.covariance(inputs, one, inputs, one)  # κ_h(X, X)
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
    """Return mean and variance of f at points under each particle, (P, n), given the observations (equation 22)."""

    def of_particle(process: Process, curve: ParticleCurves) -> Gaussians:
        features, one = process.inputs(points), jnp.ones(1, points.dtype)
        to_seen = covariance_with_seen(process, curve, particles.seen, points)
        prior = curve.scale * diagonal(process.inputs.kernel, points)
        explained = curve.explained.variance(features, one) + jnp.sum(whiten(curve.factor, to_seen.T) ** 2, axis=0)
        mean = curve.explained.mean(features, one) + to_seen @ curve.solution
        return mean, positive_part(prior - explained, prior)

    return _over_particles(of_particle, particles, len(points))


def covariances(
    particles: Particles, first: Float[Array, "n Q_X"], second: Float[Array, "k Q_X"]
) -> Float[Array, "P n k"]:
    """Return κ_h(x, x') − κ_h(x, X)(κ_h(X, X) + σ²I)⁻¹κ_h(X, x') under each particle (equations 22 and 39)."""

    def of_particle(process: Process, curve: ParticleCurves) -> Float[Array, "n k"]:
        one, left, right = jnp.ones(1, first.dtype), process.inputs(first), process.inputs(second)
        prior = curve.scale * cross(process.inputs.kernel, first, second)
        to_seen = (covariance_with_seen(process, curve, particles.seen, points) for points in (first, second))
        whitened, other_whitened = (whiten(curve.factor, each.T) for each in to_seen)
        return prior - curve.explained.covariance(left, one, right, one) - whitened.T @ other_whitened

    return _over_particles(of_particle, particles, len(first))


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
                return process.explained.mean(inputs, latent), positive_part(left, scale * prior)

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
