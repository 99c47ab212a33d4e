"""Closed forms about Gaussians: divergences, expected log-likelihoods, mixtures in one dimension."""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from lvmogp.linalg import whiten
from lvmogp.typing import Array, Float, Scalar

LOG_2PI = 1.8378770664093453
_QUANTILE_STEPS = 60


def kl_to_standard_normal(mean: Float[Array, "*S"], variance: Float[Array, "*S"]) -> Scalar:
    """KL(N(μ, diag s) ‖ N(0, I)) = ½ Σ (μ² + s − log s − 1)."""
    return jnp.sum(mean**2 + variance - jnp.log(variance) - 1) / 2


def kl_factored_to_standard_normal(mean: Float[Array, " M"], factor: Float[Array, "M M"]) -> Scalar:
    """KL(N(m, LLᵀ) ‖ N(0, I)) = ½ (mᵀm + ‖L‖² − 2 Σ log L_ii − M)."""
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    return (mean @ mean + jnp.sum(factor**2) - log_det - mean.shape[0]) / 2


def kl_kronecker_to_standard_normal(
    mean: Float[Array, "M_X M_H"],
    input_factor: Float[Array, "M_X M_X"],
    latent_factor: Float[Array, "M_H M_H"],
) -> Scalar:
    """KL(N(vec M, Σ_H ⊗ Σ_X) ‖ N(0, I)) with Σ_X = L_X L_Xᵀ, Σ_H = L_H L_Hᵀ.

    ½ (‖M‖² + tr Σ_H tr Σ_X − M_X log|Σ_H| − M_H log|Σ_X| − M_X M_H), the paper's KL in whitened coordinates.
    """
    n_inputs, n_latents = mean.shape
    trace = jnp.sum(input_factor**2) * jnp.sum(latent_factor**2)
    log_det_inputs = 2 * jnp.sum(jnp.log(jnp.diagonal(input_factor)))
    log_det_latents = 2 * jnp.sum(jnp.log(jnp.diagonal(latent_factor)))
    log_det = n_inputs * log_det_latents + n_latents * log_det_inputs
    return (jnp.sum(mean**2) + trace - log_det - n_inputs * n_latents) / 2


def log_density(residual: Float[Array, " n"], factor: Float[Array, "n n"]) -> Scalar:
    """Log N(r; 0, LLᵀ)."""
    whitened = whiten(factor, residual)
    return -whitened @ whitened / 2 - jnp.sum(jnp.log(jnp.diagonal(factor))) - residual.shape[0] * LOG_2PI / 2


def mixture_log_density(
    value: Float[Array, " n"],
    means: Float[Array, "P n"],
    variances: Float[Array, "P n"],
    log_weights: Float[Array, "P n"],
) -> Float[Array, " n"]:
    """Log Σ_p w_p N(y; m_p, s_p), one mixture an entry."""
    log_terms = -((value - means) ** 2) / variances / 2 - jnp.log(variances) / 2 - LOG_2PI / 2
    return jax.scipy.special.logsumexp(log_weights + log_terms, axis=0)


def mixture_quantile(
    probability: Float[Array, ""],
    means: Float[Array, "P n"],
    variances: Float[Array, "P n"],
    weights: Float[Array, "P n"],
) -> Float[Array, " n"]:
    """Quantile of Σ_p w_p N(m_p, s_p) by bisection between the smallest and largest component quantile."""
    deviations = jnp.sqrt(variances)
    component_quantiles = means + deviations * ndtri(probability)
    # Components of zero weight (padding) must not widen the bracket.
    lower = jnp.min(jnp.where(weights > 0, component_quantiles, jnp.inf), axis=0)
    upper = jnp.max(jnp.where(weights > 0, component_quantiles, -jnp.inf), axis=0)

    def halve(_, bracket):
        lower, upper = bracket
        middle = (lower + upper) / 2
        below = jnp.sum(weights * ndtr((middle - means) / deviations), axis=0) < probability
        return jnp.where(below, middle, lower), jnp.where(below, upper, middle)

    lower, upper = jax.lax.fori_loop(0, _QUANTILE_STEPS, halve, (lower, upper))
    return (lower + upper) / 2
