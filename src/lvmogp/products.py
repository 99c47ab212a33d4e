"""Sums of products of whitened features over the inputs of a grid, with a reverse rule that is made by hand."""

import jax
import jax.numpy as jnp

from lvmogp.linalg import triangular_inverse
from lvmogp.typing import Array, Float


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
