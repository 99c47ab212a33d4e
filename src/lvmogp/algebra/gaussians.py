"""Closed forms about Gaussians: divergences, expected log-likelihoods, mixtures in one dimension."""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from lvmogp.algebra.linalg import whiten
from lvmogp.typing import Array, Float, Scalar

LOG_2PI = math.log(2 * math.pi)
_MOST_QUANTILE_STEPS = 100


def kl_to_standard_normal(mean: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> Scalar:
    """KL(N(μ, diag s) ‖ N(0, I)) = ½ Σ (μ² + s − log s − 1)."""
    return jnp.sum(mean**2 + variance - jnp.log(variance) - 1) / 2


def _log_det(factor: Float[Array, "m m"]) -> Scalar:
    return 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))  # log|LLᵀ|


def kl_kronecker_to_standard_normal(
    mean: Float[Array, "M_X M_H"], input_factor: Float[Array, "M_X M_X"], latent_factor: Float[Array, "M_H M_H"]
) -> Scalar:
    """KL(N(vec M, Σ_H ⊗ Σ_X) ‖ N(0, I)) with Σ_X = L_X L_Xᵀ, Σ_H = L_H L_Hᵀ.

    ½ (‖M‖² + tr Σ_H tr Σ_X − M_X log|Σ_H| − M_H log|Σ_X| − M_X M_H), the paper's KL in whitened coordinates.
    """
    n_inputs, n_latents = mean.shape
    trace = jnp.sum(input_factor**2) * jnp.sum(latent_factor**2)
    log_det = n_inputs * _log_det(latent_factor) + n_latents * _log_det(input_factor)
    return (jnp.sum(mean**2) + trace - log_det - n_inputs * n_latents) / 2


def log_density(residual: Float[Array, " n"], factor: Float[Array, "n n"]) -> Scalar:
    """Log N(r; 0, LLᵀ)."""
    whitened = whiten(factor, residual)
    return -(whitened @ whitened + _log_det(factor) + residual.shape[0] * LOG_2PI) / 2


def normal_distribution(score: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Φ(z) = ½ erfc(−z/√2), which holds in both tails and costs a sixth of JAX's own."""
    return jax.lax.erfc(score * -(0.5**0.5)) / 2


def mixture_scores(
    value: Float[Array, " n"], means: Float[Array, "P n"], variances: Float[Array, "P n"], weights: Float[Array, "P #n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Log Σ_p w_p N(y; m_p, s_p) and Σ_p w_p Φ((y − m_p)/√s_p), one mixture an entry."""
    log_terms = -((value - means) ** 2 / variances + jnp.log(variances) + LOG_2PI) / 2
    log_density = jax.scipy.special.logsumexp(jnp.log(weights) + log_terms, axis=0)
    return log_density, jnp.sum(weights * normal_distribution((value - means) / jnp.sqrt(variances)), axis=0)


def mixture_quantile(
    probability: Float[Array, "*n"],
    means: Float[Array, "P n"],
    variances: Float[Array, "P n"],
    weights: Float[Array, "P #n"],
) -> Float[Array, " n"]:
    """Quantile of Σ_p w_p N(m_p, s_p), between the smallest and largest component quantile.

    Newton steps on Φ⁻¹(F(y)) = Φ⁻¹(p), which is linear for one Gaussian and nearly so for most mixtures; a step that
    would leave the bracket halves it.
    """
    # Above the median the reflected mixture is solved, whose probability keeps its digits.
    sign = jnp.where(probability > 0.5, -1.0, 1.0).astype(means.dtype)
    means = sign * means
    below = jnp.where(probability > 0.5, 1 - probability, probability)
    target = ndtri(below)
    deviations = jnp.sqrt(variances)
    scales = 1 / deviations
    heights = weights * scales
    component_quantiles = means + deviations * target
    # Components of zero weight (padding) must not widen the bracket.
    lower = jnp.min(jnp.where(weights > 0, component_quantiles, jnp.inf), axis=0)
    upper = jnp.max(jnp.where(weights > 0, component_quantiles, -jnp.inf), axis=0)
    mean = jnp.sum(weights * means, axis=0)
    deviation = jnp.sqrt(jnp.sum(weights * (variances + (means - mean) ** 2), axis=0))
    # The error after a Newton step is about the square of the step.
    tolerance = jnp.finfo(means.dtype).eps ** 0.625

    def improve(state: tuple[Array, ...]) -> tuple[Array, ...]:
        lower, upper, guess, done, step = state
        scores = (guess - means) * scales
        reached = jnp.sum(weights * normal_distribution(scores), axis=0)
        density = jnp.sum(heights * jnp.exp(-(scores**2) / 2), axis=0)  # √2π f(y)
        lower, upper = jnp.where(reached < below, guess, lower), jnp.where(reached < below, upper, guess)
        score = ndtri(reached)
        local = jnp.exp(-(score**2) / 2) / density  # dy/dΦ⁻¹(F)
        newton = guess + (target - score) * local
        inside = (newton >= lower) & (newton <= upper)
        better = jnp.where(done, guess, jnp.where(inside, newton, (lower + upper) / 2))
        small = jnp.abs(better - guess) <= tolerance * jnp.minimum(local, deviation)
        nothing_between = (better <= lower) | (better >= upper)
        return lower, upper, better, done | (inside & small) | nothing_between, step + 1

    start = jnp.clip(mean + deviation * target, lower, upper)
    begin = lower, upper, start, lower >= upper, jnp.zeros((), int)
    found = jax.lax.while_loop(lambda state: jnp.any(~state[3]) & (state[4] < _MOST_QUANTILE_STEPS), improve, begin)
    return sign * found[2]
