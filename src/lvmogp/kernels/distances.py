"""Weighted squared distances between two sets of points, the inside of every smooth kernel.

Their values are taken from differences, which keeps them exact. Their tangents are linear in few features of the
points, so that derivatives of a function of n × m distances are a few thin matrix products, forwards and backwards.
Those of a sum of Gaussians over one set of points are such products of the Gaussians themselves, and nothing else.
"""

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from lvmogp.typing import Array, Float


@jax.custom_jvp
def weighted_distances(
    first: Float[Array, "n Q"], precision: Float[Array, "n Q"], second: Float[Array, "m Q"]
) -> Float[Array, "n m"]:
    """r²_ij = Σ_q p_iq (a_iq − b_jq)²."""
    total = jnp.zeros((first.shape[0], second.shape[0]), first.dtype)
    # One column after the other: a sum over a short axis is not vectorised.
    for column in range(first.shape[1]):
        difference = first[:, column, None] - second[None, :, column]
        total = total + precision[:, column, None] * difference**2
    return total


def _tangent(primals: tuple[Array, ...], tangents: tuple) -> tuple[Array, Array]:
    (first, precision, second), (d_first, d_precision, d_second) = primals, tangents
    d_total = jnp.zeros((first.shape[0], second.shape[0]), first.dtype)
    if not (isinstance(d_first, SymbolicZero) and isinstance(d_precision, SymbolicZero)):
        # dp (a − b)² + 2p(a − b)·da = [Σ_q (a² dp + 2pa da), −2(a dp + p da), dp]·[1, b, b²], as one product
        by_first, by_precision = (
            jnp.zeros_like(first) if isinstance(own, SymbolicZero) else own for own in (d_first, d_precision)
        )
        own = jnp.sum(first * (first * by_precision + 2 * precision * by_first), axis=1, keepdims=True)
        inner = -2 * (first * by_precision + precision * by_first)
        powers = jnp.concatenate([jnp.ones_like(second[:, :1]), second, second**2], axis=1)
        d_total += jnp.concatenate([own, inner, by_precision], axis=1) @ powers.T
    if not isinstance(d_second, SymbolicZero):
        # −2p(a − b)·db = [−2pa, 2p]·[db, b db]
        weights = jnp.concatenate([-2 * precision * first, 2 * precision], axis=1)
        d_total += weights @ jnp.concatenate([d_second, second * d_second], axis=1).T
    return weighted_distances(first, precision, second), d_total


weighted_distances.defjvp(_tangent, symbolic_zeros=True)


@jax.custom_vjp
def gaussian_sums(
    weights: Float[Array, " n"], first: Float[Array, "n Q"], precision: Float[Array, "n Q"], second: Float[Array, "m Q"]
) -> Float[Array, " m"]:
    """s_j = Σ_i w_i exp(−r²_ij)."""
    return _sums_forward(weights, first, precision, second)[0]


def _sums_forward(weights: Array, first: Array, precision: Array, second: Array) -> tuple[Array, tuple[Array, ...]]:
    gaussians = jnp.exp(-weighted_distances(first, precision, second))
    return weights @ gaussians, (gaussians, weights, first, precision, second)


def _sums_backward(kept: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array, Array]:
    gaussians, weights, first, precision, second = kept
    n_columns = first.shape[1]
    # Σ_j ds_j e_ij [1, b_j, b_j²], from which Σ_j ds_j e_ij (a_i − b_j) and its square follow
    powers = jnp.concatenate([jnp.ones_like(second[:, :1]), second, second**2], axis=1)
    sums = gaussians @ (cotangent[:, None] * powers)
    total, linear, squares = sums[:, :1], sums[:, 1 : 1 + n_columns], sums[:, 1 + n_columns :]
    weight = weights[:, None]
    d_first = -2 * weight * precision * (first * total - linear)
    d_precision = -weight * (first**2 * total - 2 * first * linear + squares)
    # 2 ds_j Σ_i w_i e_ij p_i (a_i − b_j)
    pulls = gaussians.T @ (weight * jnp.concatenate([precision * first, precision], axis=1))
    d_second = 2 * cotangent[:, None] * (pulls[:, :n_columns] - second * pulls[:, n_columns:])
    return total[:, 0], d_first, d_precision, d_second


gaussian_sums.defvjp(_sums_forward, _sums_backward)
