"""Latents of single conditions drawn anew, so that chains find other places that explain the data as well."""

import jax
import jax.numpy as jnp

from lvmogp.data import GridData
from lvmogp.kernels import cross, diagonal, gram
from lvmogp.kronecker import kronecker_shrinkage
from lvmogp.typing import Array, Float, Int
from lvmogp.unknowns import Unknowns

_N_CANDIDATES = 64


def condition_log_likelihoods(
    unknowns: Unknowns,
    input_values: Float[Array, " N"],
    rotated: Float[Array, "N D"],
    condition: Int[Array, ""],
    candidates: Float[Array, "P Q_H"],
) -> Float[Array, " P"]:
    """Log p(y_d | Y of the others, h_d) at each candidate h_d, up to a constant (equation 34).

    ``input_values`` λ_i and ``rotated`` outputs Z = UᵀY come from the eigenvectors of K_X = U diag(λ) Uᵀ.
    """
    deviation = jnp.sqrt(unknowns.noise_per_condition)
    others = 1 - jax.nn.one_hot(condition, len(deviation), dtype=deviation.dtype)
    scale = others / deviation
    # K_H/(σσᵀ) of the others; the condition itself is a row of zeros, which says nothing.
    among = gram(unknowns.latent_kernel, unknowns.latents) * scale[:, None] * scale
    latent_values, latent_basis = jnp.linalg.eigh(among)  # μ_j and V
    shrinkage = kronecker_shrinkage(input_values, latent_values)  # 1/(1 + λ_i μ_j)
    known = shrinkage * ((rotated * scale) @ latent_basis)
    between = cross(unknowns.latent_kernel, candidates, unknowns.latents) * scale / deviation[condition]
    features = between @ latent_basis  # c = Vᵀ k_H(h, H)/(σ_d σ), one row a candidate
    # mean_i = λ_i Σ_j c_j known_ij and variance_i = 1 + λ_i k_H(h, h)/σ_d² − λ_i² Σ_j c_j²/(1 + λ_i μ_j)
    mean = input_values * (features @ known.T)
    own = diagonal(unknowns.latent_kernel, candidates) / unknowns.noise_per_condition[condition]
    variance = 1 + input_values * own[:, None] - input_values**2 * (features**2 @ shrinkage.T)
    residual = rotated[:, condition] / deviation[condition] - mean
    return -jnp.sum(residual**2 / variance + jnp.log(variance), axis=1) / 2


def redrawn_latents(
    unknowns: Unknowns, data: GridData, conditions: Int[Array, " few"], key: Array
) -> Float[Array, "D Q_H"]:
    """Latents with those of some conditions, one after the other, drawn anew given all others.

    Beside where it is, a condition is offered places drawn from the prior, and takes one in proportion to how well it
    explains its outputs there: a step that leaves the posterior as it is (iterated sampling importance resampling).
    """
    input_values, input_basis = jnp.linalg.eigh(gram(unknowns.input_kernel, data.inputs))
    input_values = jnp.maximum(input_values, 0)  # rounding can push the smallest below zero
    rotated = input_basis.T @ data.outputs

    def redraw(latents: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        condition, key = given
        key_of_places, key_of_choice = jax.random.split(key)
        elsewhere = jax.random.normal(key_of_places, (_N_CANDIDATES, latents.shape[1]), latents.dtype)
        candidates = jnp.concatenate([latents[condition][None], elsewhere])
        point = Unknowns(unknowns.input_kernel, unknowns.latent_kernel, latents, unknowns.noise_variance)
        log_weights = condition_log_likelihoods(point, input_values, rotated, condition, candidates)
        log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf).at[0].set(log_weights[0])
        chosen = jax.random.categorical(key_of_choice, log_weights)
        return latents.at[condition].set(candidates[chosen]), None

    keys = jax.random.split(key, len(conditions))
    return jax.lax.scan(redraw, unknowns.latents, (conditions, keys))[0]
