"""The likelihood of data once latents and hyperparameters are given, with the function behind them integrated out.

From that of one condition given all others come Gibbs steps: latents of single conditions drawn anew, so that chains
find other places that explain the data.
"""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.evidence import dense_evidence, kronecker_evidence, kronecker_shrinkage
from lvmogp.algebra.gaussians import LOG_2PI, log_density
from lvmogp.algebra.linalg import whiten
from lvmogp.inference.nuts.parameters import ChainParameters
from lvmogp.kernels.covariances import cross, diagonal, gram
from lvmogp.model.bounds import collapsed
from lvmogp.model.layouts import GridData, LikelihoodData, ScatteredData, SparseData
from lvmogp.typing import Array, Float, Int, Scalar

# Places that a condition is offered at once.
_N_CANDIDATES = 64


def log_likelihood(point: ChainParameters, data: LikelihoodData) -> Scalar:
    """Return log p(Y | H, η) (equations 30 and 31), of sparse data its bound (10) for latents that are known."""
    if isinstance(data, SparseData):
        given = (point.kernels, point.coordinates, point.noise.variance, point.own_per_condition)
        return collapsed(data.parameters(*given), data.observed).fit
    noise = data.noise(point.noise_per_condition)
    if isinstance(data, ScatteredData):
        precision = data.present / jnp.sqrt(noise)
        covariance = data.gram(point.kernels, point.coordinates, point.own_per_condition, precision)
        log_det, misfit = dense_evidence(covariance, data.outputs * precision)
        return -(data.present @ (LOG_2PI + jnp.log(noise)) + log_det + misfit) / 2
    # Divided by the noise of their condition, outputs have the covariance I + K_H/(σσᵀ) ⊗ K_X.
    deviation, kernels = jnp.sqrt(noise), point.kernels
    latent_gram = gram(kernels.of_latents[0], point.coordinates) / (deviation[:, None] * deviation)
    input_gram = gram(kernels.of_inputs[0], data.inputs)
    log_det, misfit = kronecker_evidence(input_gram, latent_gram, data.outputs / deviation)
    # −½ [N Σ_d log 2πσ_d² + log|I + K_H/(σσᵀ) ⊗ K_X| + misfit]
    return -(data.inputs.shape[0] * jnp.sum(LOG_2PI + jnp.log(noise)) + log_det + misfit) / 2


def fitted_values(point: ChainParameters, data: LikelihoodData) -> Float[Array, "*shape"]:
    """Return the posterior mean of the function at each observation, in the layout of the outputs (equation 32)."""
    layout = data.observed if isinstance(data, SparseData) else data

    def log_density(outputs: Array) -> Scalar:
        if isinstance(layout, GridData):
            moved = GridData(layout.inputs, outputs, layout.error_variance)  # which knows the squares of its outputs
        else:
            moved = dataclasses.replace(layout, outputs=outputs)
        whole: Any = dataclasses.replace(data, observed=moved) if isinstance(data, SparseData) else moved
        return log_likelihood(point, whole)

    # ⟨f⟩ = y + σ² ∂log p(y)/∂y, since the slope is −(K + Σ)⁻¹y
    return layout.outputs + layout.noise(point.noise_per_condition) * jax.grad(log_density)(layout.outputs)


def log_likelihoods_on_grid(
    point: ChainParameters,
    condition: Int[Array, ""],
    candidates: Float[Array, "P Q_H"],
    *,
    noise: Float[Array, " D"],
    input_values: Float[Array, " N"],
    rotated: Float[Array, "N D"],
) -> Float[Array, " P"]:
    """Return log p(y_d | Y of the others, h_d) at each candidate h_d, up to a constant (equation 33).

    ``noise`` σ_d² is that of an observation of each condition; ``input_values`` λ_i and ``rotated`` outputs Z = UᵀY
    come from the eigenvectors of K_X = U diag(λ) Uᵀ.
    """
    deviation, latent_kernel = jnp.sqrt(noise), point.kernels.of_latents[0]
    others = 1 - jax.nn.one_hot(condition, len(deviation), dtype=deviation.dtype)
    scale = others / deviation
    # K_H/(σσᵀ) of the others; the condition itself is a row of zeros, which says nothing.
    among = gram(latent_kernel, point.coordinates) * scale[:, None] * scale
    latent_values, latent_basis = jnp.linalg.eigh(among)  # μ_j and V
    shrinkage = kronecker_shrinkage(input_values, latent_values)  # 1/(1 + λ_i μ_j)
    known = shrinkage * ((rotated * scale) @ latent_basis)
    between = cross(latent_kernel, candidates, point.coordinates) * scale / deviation[condition]
    features = between @ latent_basis  # c = Vᵀ k_H(h, H)/(σ_d σ), a row for each candidate
    # mean_i = λ_i Σ_j c_j known_ij and variance_i = 1 + λ_i k_H(h, h)/σ_d² − λ_i² Σ_j c_j²/(1 + λ_i μ_j)
    mean = input_values * (features @ known.T)
    own = diagonal(latent_kernel, candidates) / noise[condition]
    variance = 1 + input_values * own[:, None] - input_values**2 * (features**2 @ shrinkage.T)
    residual = rotated[:, condition] / deviation[condition] - mean
    return -jnp.sum(residual**2 / variance + jnp.log(variance), axis=1) / 2


def log_likelihoods_of_scattered(
    point: ChainParameters, condition: Int[Array, ""], candidates: Float[Array, "P Q_H"], *, data: ScatteredData
) -> Float[Array, " P"]:
    """Return log p(y_d | y of the others, h_d) at each candidate h_d for the observations at the condition's places.

    By a Cholesky factor over the observations of the others (equation 33). A condition with too many observations to
    have places stays at the first candidate.
    """
    kernels, all_noise, own_scale = point.kernels, data.noise(point.noise_per_condition), point.own_per_condition
    is_own = data.conditions == condition
    scale = jnp.where(is_own, 0.0, data.present) / jnp.sqrt(all_noise)
    # P = I + K/(σσᵀ) of the others; rows of the condition itself say nothing, and no eigenvalue is below one.
    among = data.gram(kernels, point.coordinates, own_scale, scale)
    factor = jnp.linalg.cholesky(jnp.eye(len(scale)) + among)
    known = whiten(factor, data.outputs * scale)
    own = data.places[condition]
    taken = (own < len(scale)).astype(scale.dtype)
    points = jnp.take(data.inputs, own, axis=0, mode="clip")
    values = jnp.take(data.outputs, own, mode="clip") * taken
    to_others = [cross(term.input_kernel, points, data.inputs) * taken[:, None] * scale for term in kernels.terms]
    within = [gram(term.input_kernel, points) * taken[:, None] * taken for term in kernels.terms]
    noise = jnp.diag(jnp.where(taken > 0, jnp.take(all_noise, own, mode="clip"), 1.0))
    if kernels.own is not None:  # which no other condition knows anything of
        noise = noise + own_scale[condition] * gram(kernels.own, points) * taken[:, None] * taken

    def at(candidate: Float[Array, " Q_H"]) -> Array:
        between, prior = jnp.zeros_like(to_others[0]), noise
        for term, covariance, own_covariance in zip(kernels.terms, to_others, within, strict=True):
            if term.latent_kernel is None:
                between, prior = between + covariance, prior + own_covariance
            else:
                to_latents = cross(term.latent_kernel, candidate[None], point.coordinates)[0][data.conditions]
                between = between + covariance * to_latents
                prior = prior + term.latent_kernel.evaluate(candidate, candidate) * own_covariance
        whitened = whiten(factor, between.T)  # L⁻¹Cᵀ
        # y_d | h ~ N(C P⁻¹ y, k_H(h, h) K_X + R_d − C P⁻¹ Cᵀ)
        return log_density(values - known @ whitened, jnp.linalg.cholesky(prior - whitened.T @ whitened))

    has_places = jnp.sum(taken) == jnp.sum(jnp.where(is_own, data.present, 0.0))
    only_first = jnp.full(len(candidates), -jnp.inf).at[0].set(0.0)
    return jax.lax.select(has_places, jax.lax.map(at, candidates), only_first)


def redrawn_latents(
    point: ChainParameters, data: GridData | ScatteredData, conditions: Int[Array, " few"], key: Array, beta: Scalar
) -> Float[Array, "D Q_L"]:
    """Return latents with those of some conditions, one after the other, drawn anew given all others.

    Beside where it is, a condition is offered places drawn from the prior, and takes one in proportion to how well it
    explains its outputs there: a step that leaves the posterior as it is (iterated sampling importance resampling).
    In a tempered chain the likelihood has the power ``beta`` (equation 53).
    """
    if isinstance(data, ScatteredData):
        explained = partial(log_likelihoods_of_scattered, data=data)
    else:
        values, basis = jnp.linalg.eigh(gram(point.kernels.terms[0].input_kernel, data.inputs))
        explained = partial(
            log_likelihoods_on_grid,
            noise=data.noise(point.noise_per_condition),
            input_values=jnp.maximum(values, 0),  # rounding can push the smallest below zero
            rotated=basis.T @ data.outputs,
        )
    known = point.coordinates[:, point.latents.shape[1] :]  # of features, which stay as they are

    def redraw(latents: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        condition, key = given
        key_of_places, key_of_choice = jax.random.split(key)
        elsewhere = jax.random.normal(key_of_places, (_N_CANDIDATES, latents.shape[1]), latents.dtype)
        candidates = jnp.concatenate([latents[condition][None], elsewhere])
        features = jnp.broadcast_to(known[condition], (len(candidates), known.shape[1]))
        here = eqx.tree_at(lambda tree: tree.latents, point, latents)
        log_weights = beta * explained(here, condition, jnp.concatenate([candidates, features], axis=1))
        log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf).at[0].set(log_weights[0])
        chosen = jax.random.categorical(key_of_choice, log_weights)
        return latents.at[condition].set(candidates[chosen]), None

    keys = jax.random.split(key, len(conditions))
    return jax.lax.scan(redraw, point.latents, (conditions, keys))[0]
