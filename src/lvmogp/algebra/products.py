"""Sums of products over observations, slice by slice, with reverse rules that are made by hand."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lvmogp.algebra.linalg import packed_counts, symmetric_pairs, triangular_inverse, unpack_symmetric
from lvmogp.typing import Array, Float


def in_slices(
    function: Callable[..., tuple[Array, ...]], n_at_once: int, *arrays: Float[Array, "n ..."]
) -> tuple[Array, ...]:
    """A function of the rows of arrays, so many at a time, which divide n; backwards it is computed again.

    So nothing of the size of what is in between is ever held. That is also quicker: memory beyond some 30 MB is taken
    from the system and given back in each call of a program, page by page, which takes longer than computing twice.
    """
    n_rows = arrays[0].shape[0]
    if n_at_once >= n_rows:
        return function(*arrays)
    again = jax.checkpoint(function)  # type: ignore[reportPrivateImportUsage]
    pieces = tuple(array.reshape(-1, n_at_once, *array.shape[1:]) for array in arrays)
    found = jax.lax.map(lambda piece: again(*piece), pieces)
    return tuple(array.reshape(n_rows, *array.shape[2:]) for array in found)


@jax.custom_vjp
def whitened_products(
    lower: Float[Array, "M M"], columns: Float[Array, "M N"], weights: Float[Array, "N K"]
) -> tuple[Float[Array, "M M"], Float[Array, "M K"]]:
    """A = V Vᵀ and B = V W with V = L⁻¹C.

    Backwards, V is multiplied with once: with Γ = dA + dAᵀ,

    - dC = L⁻ᵀ(ΓV + dB Wᵀ) and dW = Vᵀ dB;
    - dL = −tril(L⁻ᵀ(ΓA + dB Bᵀ)), from small matrices alone, since dV Vᵀ = ΓA + dB Bᵀ.
    """
    return _forward(lower, columns, weights)[0]


def _forward(lower: Array, columns: Array, weights: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    inverse = triangular_inverse(lower)
    features = inverse @ columns  # V
    gram, linear = features @ features.T, features @ weights
    return (gram, linear), (inverse, features, weights, gram, linear)


def _backward(kept: tuple[Array, ...], cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    inverse, features, weights, gram, linear = kept
    d_gram, d_linear = cotangents
    both = d_gram + d_gram.T  # Γ
    d_columns = (inverse.T @ both) @ features + (inverse.T @ d_linear) @ weights.T
    d_lower = -jnp.tril(inverse.T @ (both @ gram + d_linear @ linear.T))
    return d_lower, d_columns, features.T @ d_linear


whitened_products.defvjp(_forward, _backward)


@jax.custom_vjp
def block_products(
    lower: Float[Array, "M M"], rows: Float[Array, "B b M"], weights: Float[Array, "B b"]
) -> tuple[Float[Array, "B M M"], Float[Array, "B M"]]:
    """Σ v vᵀ and Σ w v over the rows cᵀ of each block, with v = L⁻¹c.

    Backwards, with Γ = dA + dAᵀ for A = Σ v vᵀ and P = L⁻ᵀΓL⁻¹,

    - dc = P c + w L⁻ᵀdB and dw = cᵀL⁻ᵀdB, so that no v is needed again;
    - dL = −tril((Σ dc cᵀ) L⁻ᵀ).
    """
    return _blocks_forward(lower, rows, weights)[0]


def _blocks_forward(lower: Array, rows: Array, weights: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    inverse = triangular_inverse(lower)
    whitened = rows @ inverse.T  # vᵀ
    grams = jnp.swapaxes(whitened, 1, 2) @ whitened
    return (grams, jnp.sum(whitened * weights[..., None], axis=1)), (inverse, rows, weights)


def _blocks_backward(kept: tuple[Array, ...], cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    inverse, rows, weights = kept
    d_grams, d_linear = cotangents
    both = d_grams + jnp.swapaxes(d_grams, 1, 2)  # Γ
    n_rows, size = rows.shape[1:]
    # P costs more than it spares where blocks are small.
    by_grams = rows @ (inverse.T @ both @ inverse) if n_rows > size else rows @ inverse.T @ both @ inverse
    mapped = d_linear @ inverse  # (L⁻ᵀdB)ᵀ
    d_rows = by_grams + weights[:, :, None] * mapped[:, None, :]
    d_lower = -jnp.tril(d_rows.reshape(-1, size).T @ rows.reshape(-1, size) @ inverse.T)
    return d_lower, d_rows, jnp.sum(rows * mapped[:, None, :], axis=2)


block_products.defvjp(_blocks_forward, _blocks_backward)


@jax.custom_vjp
def quadratic_forms(
    packed: Float[Array, "B pairs"], points: Float[Array, "B b M"], weights: Float[Array, "B b"]
) -> Float[Array, " B"]:
    """Σ_i w_i p_iᵀ S p_i over the points of each block, with its own symmetric matrix S as a packed upper triangle.

    Backwards, S p serves again: dp_i = 2 w_i S p_i, dS = Σ_i w_i p_i p_iᵀ.
    """
    return _forms_forward(packed, points, weights)[0]


def _forms_forward(packed: Array, points: Array, weights: Array) -> tuple[Array, tuple[Array, ...]]:
    mapped = points @ unpack_symmetric(packed, points.shape[2])  # (S p)ᵀ
    forms = jnp.sum(mapped * points, axis=2)
    return jnp.sum(weights * forms, axis=1), (mapped, forms, points, weights)


def _forms_backward(kept: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array]:
    mapped, forms, points, weights = kept
    by_form = (weights * cotangent[:, None])[..., None]
    rows, columns = symmetric_pairs(points.shape[2])
    counts = packed_counts(points.shape[2]).astype(points.dtype)
    outer = jnp.swapaxes(points * by_form, 1, 2) @ points
    return outer[:, rows, columns] * counts, 2 * by_form * mapped, forms * cotangent[:, None]


quadratic_forms.defvjp(_forms_forward, _forms_backward)
