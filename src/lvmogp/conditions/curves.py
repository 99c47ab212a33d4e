"""Observations that are a condition's own, and its curves given them.

f(·, h) is Gaussian for each particle, and every answer is a view of these Gaussians.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from lvmogp.algebra.linalg import factor_beside_errors, whiten
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up, with_zeros
from lvmogp.model.posterior import positive_part
from lvmogp.model.process import AtLatent, Number, Process
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
    express. ``excess_count``, ``excess_squares`` and ``residual``, of each kernel, complete the likelihood as in a
    sparse GP's bound.
    ``is_used`` is false for a condition whose observations stand for themselves beside others that are compressed.
    """

    features: Float[Array, "*C m R"]
    excess_count: Float[Array, "*C"]
    excess_squares: Float[Array, "*C"]
    residual: Float[Array, "*C kernels"]
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

    def gram_with(self, process: Process, other: "FewObservations") -> Float[Array, "kernels m k"]:
        """Return the prior covariances of each input kernel between two sets of inputs, zero in empty places."""
        plain = process.inputs.prior(self.inputs, other.inputs) * self.present[:, None] * other.present
        summaries = [each.compressed.is_used for each in (self, other) if each.compressed is not None]
        if not summaries:
            return plain
        left, right = (each.features(process).reshape(each.values.shape[0], len(plain), -1) for each in (self, other))
        return jnp.where(jnp.any(jnp.stack(summaries)), jnp.einsum("mkr,nkr->kmn", left, right), plain)


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
    prior = process.inputs.variances(seen.inputs)
    by_kernel = features.reshape(len(values), len(prior), -1)
    return FewObservations(
        inputs=jnp.zeros((size, seen.inputs.shape[1]), values.dtype),
        values=rotated,
        present=jnp.ones(size, values.dtype),
        error_variances=jnp.zeros(size, values.dtype),
        compressed=Compressed(
            features=triangular,
            excess_count=jnp.sum(weights > 0).astype(values.dtype) - size,
            excess_squares=values @ values - rotated @ rotated,
            residual=prior @ weights**2 - jnp.sum(by_kernel**2, axis=(0, 2)),  # tr(K − AAᵀ)
            is_used=jnp.asarray(True),
        ),
    )


def stacked(seen: list[FewObservations]) -> FewObservations | None:
    """Stack the observations of several conditions, in as many places as the most of them need; ``None`` of none."""
    if not any(each.n_present for each in seen):
        return None
    size = max(each.values.shape[0] for each in seen)
    summaries = [each.compressed for each in seen if each.compressed is not None]

    def placed(leaf: Array, n_places: int) -> Array:
        of_places = leaf.ndim and len(leaf) == n_places
        return jnp.pad(leaf, ((0, size - len(leaf)), *[(0, 0)] * (leaf.ndim - 1))) if of_places else leaf

    def alike(each: FewObservations) -> FewObservations:
        n_places, compressed = each.values.shape[0], each.compressed
        if summaries and compressed is None:  # beside others that are compressed, it stands for itself
            nothing = jax.tree.map(jnp.zeros_like, summaries[0])
            features = jnp.zeros((n_places, nothing.features.shape[1]), each.values.dtype)
            compressed = dataclasses.replace(nothing, features=features)
        if compressed is not None:
            features = placed(compressed.features, n_places)
            compressed = dataclasses.replace(compressed, features=features)
        plain = jax.tree.map(partial(placed, n_places=n_places), dataclasses.replace(each, compressed=None))
        return dataclasses.replace(plain, compressed=compressed)

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[alike(each) for each in seen])


# Curves of particles


class ParticleCurves(eqx.Module):
    """Curves of particles, each conditioned on the observations of its condition; stacked along a leading axis.

    What the data explain of f(·, h), what multiplies each input kernel in its prior covariance, the factor of
    κ(X, X) + σ²I and the solution (κ(X, X) + σ²I)⁻¹(y − m).
    """

    explained: AtLatent
    scale: Float[Array, "*P kernels"]
    factor: Float[Array, "*P m m"]
    solution: Float[Array, "*P m"]


class Particles(eqx.Module):
    """Weighted particles of one condition with their processes: all that is needed to answer for it.

    ``process`` says under which of the processes each particle is, and ``aligned`` are its latents as they compare
    between processes. ``own`` is ρ², ``number`` that of a trained condition. ``prepared`` are the curves, where one
    process serves all.
    """

    processes: Process
    process: Int[Array, " P"]
    latents: Float[Array, "P Q_H"]
    aligned: Float[Array, "P L"]
    noise: Float[Array, " P"]
    own: Float[Array, " P"]
    log_weights: Float[Array, " P"]
    seen: FewObservations
    number: Number
    prepared: ParticleCurves | None


def curve_given(
    process: Process, seen: FewObservations, number: Number, latent: Float[Array, " Q_H"], noise: Scalar, own: Scalar
) -> ParticleCurves:
    """Condition the curve f(·, h) of one process on the observations of its condition (equations 18 and 39)."""
    explained = process.explained.at_latent(process.latents(latent[None])[0], number)
    scale, inputs = process.scales(latent, own), seen.features(process)
    prior = jnp.tensordot(scale, seen.gram_with(process, seen), axes=1)
    factor = seen.factor(prior - explained.covariance(inputs, inputs), noise)  # of κ_h(X, X) + σ²I
    residual = seen.values - explained.mean(inputs)
    return ParticleCurves(explained, scale, factor, cho_solve((factor, True), residual))


@compiled
def prepared_curves(
    processes: Process,
    seen: FewObservations,
    number: Number,
    latents: Float[Array, "P Q_H"],
    noise: Float[Array, " P"],
    own: Float[Array, " P"],
) -> ParticleCurves:
    """Return the curves of particles that one process serves."""
    return jax.vmap(partial(curve_given, picked(processes, 0), seen, number))(latents, noise, own)


def covariance_with_seen(
    process: Process, curve: ParticleCurves, seen: FewObservations, points: Float[Array, "n Q_X"]
) -> Float[Array, "n m"]:
    """Return κ_h(x, X) between points and the observations."""
    prior = jnp.tensordot(curve.scale, at_points(points).gram_with(process, seen), axes=1)
    return prior - curve.explained.covariance(process.inputs(points), seen.features(process))


def over_particles(
    function: Callable[[Process, ParticleCurves], _Result], particles: Particles, n_rows: int
) -> _Result:
    """Apply a function to each particle: many of one process at a time, of many processes one after the other."""
    processes, seen = particles.processes, particles.seen
    if particles.prepared is not None:
        process = picked(processes, 0)
        at_once = min(max(_ROWS_OF_PARTICLES // n_rows, 1), _PARTICLES_AT_ONCE)
        return jax.lax.map(lambda curve: function(process, curve), particles.prepared, batch_size=at_once)

    def one(particle: tuple[Array, Array, Array, Array]) -> _Result:
        process = picked(processes, particle[0])
        return function(process, curve_given(process, seen, particles.number, *particle[1:]))

    return jax.lax.map(one, (particles.process, particles.latents, particles.noise, particles.own))


def moments(particles: Particles, points: Float[Array, "n Q_X"]) -> Gaussians:
    """Return mean and variance of f at points under each particle, (P, n), given the observations (equation 22)."""

    def of_particle(process: Process, curve: ParticleCurves) -> Gaussians:
        features = process.inputs(points)
        to_seen = covariance_with_seen(process, curve, particles.seen, points)
        prior = curve.scale @ process.inputs.variances(points)
        explained = curve.explained.variance(features) + jnp.sum(whiten(curve.factor, to_seen.T) ** 2, axis=0)
        mean = curve.explained.mean(features) + to_seen @ curve.solution
        return mean, positive_part(prior - explained, prior)

    return over_particles(of_particle, particles, len(points))


def covariances(
    particles: Particles, first: Float[Array, "n Q_X"], second: Float[Array, "k Q_X"]
) -> Float[Array, "P n k"]:
    """Return κ_h(x, x') − κ_h(x, X)(κ_h(X, X) + σ²I)⁻¹κ_h(X, x') under each particle (equations 22 and 39)."""

    def of_particle(process: Process, curve: ParticleCurves) -> Float[Array, "n k"]:
        left, right = process.inputs(first), process.inputs(second)
        prior = jnp.tensordot(curve.scale, process.inputs.prior(first, second), axes=1)
        to_seen = (covariance_with_seen(process, curve, particles.seen, points) for points in (first, second))
        whitened, other_whitened = (whiten(curve.factor, each.T) for each in to_seen)
        return prior - curve.explained.covariance(left, right) - whitened.T @ other_whitened

    return over_particles(of_particle, particles, len(first))


class Members(eqx.Module):
    """C conditions without observations beside those of the processes: K equal particles under each, σ² and ρ²."""

    latents: Float[Array, "S C K Q_H"]
    noise: Float[Array, "S C K"]
    own: Float[Array, "S C"]


class Blocks(eqx.Module):
    """Rows in blocks of one condition each: which point stands where, and the position of each row among them.

    ``condition`` is the place of a block's condition among those asked about, ``number`` that of a trained one or −1.
    """

    points: Float[Array, "m Q_X"]
    place: Int[Array, "B b"]
    condition: Int[Array, " B"]
    number: Int[Array, " B"]
    position: Int[Array, " n"]


def block_moments(processes: Process, members: Members, blocks: Blocks, points: Float[Array, "m Q_X"]) -> Gaussians:
    """Return mean and variance of f at blocks of points, each of one of C conditions (equation 35): (S, K, B · b)."""
    n_particles = members.latents.shape[2]

    def one_process(given: tuple[Process, Array, Array]) -> Gaussians:
        process, latents, own = given
        features, variances = process.inputs(points), process.inputs.variances(points)

        def one_block(block: tuple[Array, Array, Array]) -> Gaussians:
            where, condition, number = block
            inputs = features[where]

            def one_particle(latent: Float[Array, " Q_H"]) -> Gaussians:
                prior = process.scales(latent, own[condition]) @ variances[:, where]
                explained = process.explained.at_latent(process.latents(latent[None])[0], number)
                return explained.mean(inputs), positive_part(prior - explained.variance(inputs), prior)

            return jax.vmap(one_particle)(latents[condition])

        rows = (blocks.place, blocks.condition, blocks.number)
        found = jax.lax.map(one_block, rows, batch_size=max(_PAIRS_AT_ONCE // n_particles, 1))
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(n_particles, -1), found)

    return jax.lax.map(one_process, (processes, members.latents, members.own))


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
