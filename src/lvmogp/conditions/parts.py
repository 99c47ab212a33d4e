"""The parts of which curves are sums: what all conditions share, what latents tell, what is a condition's own.

A part is some of the input kernels, and its curve is that of the features of these alone. All parts of all conditions
are drawn together, since what one of them takes another leaves.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import whiten
from lvmogp.conditions.curves import Gaussians, ParticleCurves, Particles, at_points, over_particles, picked
from lvmogp.conditions.ensemble import Ensemble, chunks
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.features import parts_of
from lvmogp.model.layouts import GridData, ScatteredData
from lvmogp.model.parameters import Kernels
from lvmogp.model.posterior import CurveMoments, positive_part
from lvmogp.model.process import DenseExplained, InducingExplained, KroneckerExplained, Process
from lvmogp.typing import Array, Float, HostFloat, Int

PARTS = ("shared", "latent", "own")
# Draws under the one process of a fit; of posterior draws, at least so many of all together.
_N_DRAWS = 256
# A share of the prior variance that is added to what is factorised, in each precision.
_JITTER = {"float64": 1e-10, "float32": 1e-5}
# Curves of each kernel at rows, and the variances of what these leave out.
_Curves = tuple[Float[Array, "kernels n"], Float[Array, "kernels n"]]


def parts_in(kernels: Kernels) -> dict[str, HostFloat]:
    """Return the parts that curves have: one for each input kernel that belongs to a part, zero for the others."""
    kinds = ["latent"] * len(kernels.of_latents) + ["shared"] * kernels.has_shared
    kinds += ["own"] * (kernels.own is not None)
    return {part: np.array([float(kind == part) for kind in kinds]) for part in PARTS if part in kinds}


# Moments of the curve of one part


def of_part(curves: CurveMoments, chosen: HostFloat) -> CurveMoments:
    """Return the moments of one part of curves: those of its features alone."""
    n_each = curves.weights.shape[1] // len(chosen)
    kernels = jnp.asarray(chosen, curves.weights.dtype)
    features = jnp.repeat(kernels, n_each)
    return CurveMoments(
        curves.weights * features,
        curves.spread * features[:, None] * features,
        curves.prior_variance * kernels,
    )


@compiled
def part_moments(particles: Particles, points: Float[Array, "n Q_X"], chosen: Float[Array, " kernels"]) -> Gaussians:
    """Return mean and variance of one part of a condition's curve at points under each particle, (P, n).

    With a restricted to the features of the part: κ(x, X) = scale k(x, X) − aᵀΩA, of the kernels of the part.
    """

    def of_particle(process: Process, curve: ParticleCurves) -> Gaussians:
        seen, scale = particles.seen, curve.scale * chosen
        features = process.inputs(points)
        features = features * jnp.repeat(chosen, features.shape[1] // len(chosen))
        to_seen = jnp.tensordot(scale, at_points(points).gram_with(process, seen), axes=1)
        to_seen = to_seen - curve.explained.covariance(features, seen.features(process))
        prior = scale @ process.inputs.variances(points)
        explained = curve.explained.variance(features) + jnp.sum(whiten(curve.factor, to_seen.T) ** 2, axis=0)
        return curve.explained.mean(features) + to_seen @ curve.solution, positive_part(prior - explained, prior)

    return over_particles(of_particle, particles, len(points))


# All parts of all trained conditions, drawn together


class Rows(NamedTuple):
    """Inputs of trained conditions, by numbers, and how many observations each stands for."""

    inputs: Float[Array, "n Q_X"]
    numbers: Int[Array, " n"]
    counts: Float[Array, " n"]


class DrawnSquares(NamedTuple):
    """Mean squares of each part, then of the noise, over the rows of each condition, in weighted draws.

    A part is taken around its mean over all rows. ``counts`` are the observations of each condition.
    """

    weights: HostFloat
    squares: Float[np.ndarray, "draws parts D"]
    counts: HostFloat


def drawn_squares(ensemble: Ensemble, kernels: Kernels, rows: Rows) -> DrawnSquares:
    """Draw the mean squares of all parts at the rows of trained conditions; of posterior draws, at their own rows."""
    n_processes, data = ensemble.n_processes, None if ensemble.source is None else ensemble.source.data
    n_each, chosen = -(-_N_DRAWS // n_processes), jnp.asarray(np.stack(list(parts_in(kernels).values())))
    exact = data if isinstance(data, GridData | ScatteredData) else None
    rows = rows if exact is None else _observed(exact)
    keys = jax.random.split(jax.random.key(0), n_processes)
    found: list[HostFloat] = []
    for some, processes in chunks(ensemble):
        for place, number in enumerate(some):
            latents, noise, own = (each[number] for each in (ensemble.latents, ensemble.noise, ensemble.own))
            gaussians = LatentGaussians(latents, jnp.zeros_like(latents))
            if ensemble.fit is not None:
                gaussians = ensemble.fit.posterior.parameters.latents
            given = (jax.random.split(keys[number], n_each), chosen, rows, gaussians, noise, own)
            squares = np.asarray(_squares(processes, jnp.asarray(place), exact, *given), dtype=float)
            of_noise = np.broadcast_to(np.asarray(noise, dtype=float), (n_each, 1, len(noise)))
            found.append(np.concatenate([squares, of_noise], axis=1))
    counts = np.bincount(np.asarray(rows.numbers), np.asarray(rows.counts, dtype=float), minlength=found[0].shape[2])
    return DrawnSquares(np.repeat(ensemble.weights / n_each, n_each), np.concatenate(found), counts)


def _observed(data: GridData | ScatteredData) -> Rows:
    # Those that posterior draws are conditioned on.
    if isinstance(data, ScatteredData):
        return Rows(data.inputs, data.conditions, data.present)
    n_inputs, n_conditions = data.outputs.shape
    numbers = jnp.tile(jnp.arange(n_conditions), n_inputs)
    return Rows(jnp.repeat(data.inputs, n_conditions, axis=0), numbers, jnp.ones(len(numbers)))


@compiled
def _squares(
    processes: Process,
    place: Int[Array, ""],
    data: GridData | ScatteredData | None,
    keys: Array,
    chosen: Float[Array, "parts kernels"],
    rows: Rows,
    latents: LatentGaussians,
    noise: Float[Array, " D"],
    own: Float[Array, " D"],
) -> Float[Array, "draws parts D"]:
    process = picked(processes, place)
    explained = process.explained
    if isinstance(data, GridData):
        assert isinstance(explained, KroneckerExplained)
        draw = partial(_on_grid, process, explained, data.noise(noise))
    elif isinstance(explained, DenseExplained):
        assert isinstance(data, ScatteredData)
        draw = _on_scattered(process, explained, data, latents.mean, noise, own)
    else:
        draw = _by_weights(process, explained, rows, latents)
    total, of_condition = jnp.sum(rows.counts), jnp.zeros((len(noise), len(chosen)))
    n_observed = jnp.maximum(of_condition[:, 0].at[rows.numbers].add(rows.counts), 1)

    def one(key: Array) -> Float[Array, "parts D"]:
        values, left = draw(key)
        values = chosen @ values
        centred = values - (values @ rows.counts / total)[:, None]
        squares = (centred**2 + chosen @ left) * rows.counts
        return of_condition.at[rows.numbers].add(squares.T).T / n_observed

    return jax.lax.map(one, keys)


# Each draws the curves of every kernel at the rows, and says how much variance a draw leaves out there.


def _on_grid(process: Process, explained: KroneckerExplained, noise: Float[Array, " D"], key: Array) -> _Curves:
    # F = U_X E U_Hᵀ diag σ_d with E_ij ~ N((1 − W_ij) R_ij, 1 − W_ij), R = U_Xᵀ Y diag(1/σ_d) U_H (equation 36)
    assert process.inputs.mixing is not None
    assert process.latents.mixing is not None
    spread = 1 - explained.shrinkage
    rotated = explained.weights / explained.shrinkage
    drawn = spread * rotated + jnp.sqrt(spread) * jax.random.normal(key, spread.shape)
    values = process.inputs.mixing[0] @ drawn @ process.latents.mixing[0].T * noise
    return values.reshape(1, -1), jnp.zeros((1, values.size))


def _on_scattered(
    process: Process,
    explained: DenseExplained,
    data: ScatteredData,
    latents: Float[Array, "D Q_H"],
    noise: Float[Array, " D"],
    own: Float[Array, " D"],
) -> Callable[[Array], _Curves]:
    # A draw from the prior, corrected by what it lacks of the data: z + K(ΣK + diag σ²)⁻¹(y − Σz − ε)
    inputs, numbers = process.inputs.prior(data.inputs, data.inputs), data.conditions
    scales = process.latents.prior(latents, latents)[:, numbers][:, :, numbers]
    if process.has_own:
        same = (numbers[:, None] == numbers) * own[numbers]
        scales = jnp.concatenate([scales, same[None]])
    covariances = inputs * scales
    sizes = jnp.mean(jnp.diagonal(covariances, axis1=1, axis2=2), axis=1)
    jitter = _JITTER["float64"] * sizes[:, None, None] * jnp.eye(len(numbers))
    roots, deviation = jnp.linalg.cholesky(covariances + jitter), jnp.sqrt(data.noise(noise))

    def draw(key: Array) -> _Curves:
        of_curves, of_noise = jax.random.split(key)
        before = jnp.einsum("knm,km->kn", roots, jax.random.normal(of_curves, roots.shape[:2]))
        lacking = data.outputs - jnp.sum(before, axis=0) - deviation * jax.random.normal(of_noise, deviation.shape)
        values = before + covariances @ (explained.whitener.T @ (explained.whitener @ lacking))
        return values, jnp.zeros_like(values)

    return draw


def _by_weights(
    process: Process,
    explained: KroneckerExplained | InducingExplained,
    rows: Rows,
    latents: LatentGaussians,
) -> Callable[[Array], _Curves]:
    # v from q(v), the latents from q(h_d), then the own curves given both
    (n_inputs, n_latents), dtype = explained.weights.shape, explained.weights.dtype
    inputs, numbers = rows.inputs.astype(dtype), rows.numbers
    features = process.inputs(inputs).reshape(len(inputs), len(process.inputs.kernels), -1)
    priors, of_features = process.inputs.variances(inputs), jnp.sum(features**2, axis=2).T
    parts, curves, own_root = [slice(0, n_latents)], None, jnp.zeros(0)
    if isinstance(explained, KroneckerExplained):
        root = jnp.sqrt(1 - explained.shrinkage)
    else:
        parts, curves = parts_of(explained.sizes), explained.own
        missing = explained.missing.transpose(0, 2, 1, 3).reshape(n_inputs * n_latents, -1)
        root = _root(jnp.ones(1, dtype), (missing + missing.T)[None] / 2)[0]
    if curves is not None:
        own_root = _root(curves.scale, curves.reduction)

    def normal(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape, dtype)

    def draw(key: Array) -> _Curves:
        of_inducing, of_latents, of_own = jax.random.split(key, 3)
        if isinstance(explained, KroneckerExplained):
            change = root * normal(of_inducing, root.shape)
        else:
            change = (root @ normal(of_inducing, root.shape[:1])).reshape(n_latents, n_inputs).T
        inducing = explained.weights + change
        points = latents.mean + jnp.sqrt(latents.variance) * normal(of_latents, latents.mean.shape)
        c = process.latents(points)
        weights = jnp.stack([c[:, part] @ inducing[:, part].T for part in parts], axis=1)  # Vc of each term
        scales = process.latents.variances(points)
        of_latent_features = jnp.stack([jnp.sum(c[:, part] ** 2, axis=1) for part in parts])
        if curves is not None:  # w_d ~ N(offset − gain w_f, ρ_d²I − reduction)
            around = jnp.einsum("dij,dj->di", own_root, normal(of_own, curves.offset.shape))
            given = curves.offset - jnp.einsum("dif,df->di", curves.gain, weights.reshape(len(weights), -1))
            weights = jnp.concatenate([weights, (given + around)[:, None]], axis=1)
            scales, of_latent_features = (
                jnp.concatenate([each, curves.scale[None]]) for each in (scales, of_latent_features)
            )
        # k_H k_X − |c|²|a|² is what the inducing variables leave open
        left = priors * scales[:, numbers] - of_features * of_latent_features[:, numbers]
        return jnp.einsum("nkx,nkx->kn", features, weights[numbers]), jnp.maximum(left, 0.0)

    return draw


def _root(scale: Float[Array, " D"], reduction: Float[Array, "D m m"]) -> Float[Array, "D m m"]:
    # A factor of scale I − reduction, which rounding may leave without one.
    identity = jnp.eye(reduction.shape[1], dtype=reduction.dtype)
    return jnp.linalg.cholesky((1 + _JITTER[reduction.dtype.name]) * scale[:, None, None] * identity - reduction)
