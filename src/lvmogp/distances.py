"""Weighted squared distances between two sets of points, the inside of every smooth kernel.

Their values are taken from differences, which keeps them exact. Their tangents are linear in few features of the
points, so that derivatives of a function of n × m distances are a few thin matrix products, forwards and backwards.
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
        by_first, by_precision = _instantiated(d_first, first), _instantiated(d_precision, precision)
        own = jnp.sum(first * (first * by_precision + 2 * precision * by_first), axis=1, keepdims=True)
        inner = -2 * (first * by_precision + precision * by_first)
        powers = jnp.concatenate([jnp.ones_like(second[:, :1]), second, second**2], axis=1)
        d_total += jnp.concatenate([own, inner, by_precision], axis=1) @ powers.T
    if not isinstance(d_second, SymbolicZero):
        # −2p(a − b)·db = [−2pa, 2p]·[db, b db]
        weights = jnp.concatenate([-2 * precision * first, 2 * precision], axis=1)
        d_total += weights @ jnp.concatenate([d_second, second * d_second], axis=1).T
    return weighted_distances(first, precision, second), d_total


def _instantiated(tangent: Array | SymbolicZero, like: Array) -> Array:
    return jnp.zeros_like(like) if isinstance(tangent, SymbolicZero) else tangent


weighted_distances.defjvp(_tangent, symbolic_zeros=True)
