"""Linear algebra on which everything rests: Cholesky factors that hold, triangular solves, Kronecker pairs.

Vectors over pairs of inducing points are written as matrices V of shape (M_X, M_H), and vec(V) stacks the
columns of V, so that (L_H ⊗ L_X) vec(V) = vec(L_X V L_Hᵀ).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from lvmogp.typing import Array, Float, Scalar

_JITTER_STEP = 10.0
_JITTER_LIMIT = 1e-2


def smallest_jitter(dtype: jnp.dtype) -> float:
    """Jitter that is always added, relative to the mean of the diagonal."""
    return 1e-7 if dtype == jnp.float64 else 1e-5


@jax.custom_jvp
def _jittered_factor(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    # chol(A + ε·mean(diag A)·I) for the smallest ε of a ladder that succeeds.
    scale = jnp.mean(jnp.diagonal(matrix))
    identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    def attempt(jitter):
        return jnp.linalg.cholesky(matrix + jitter * scale * identity)

    def failed(state):
        lower, jitter = state
        return ~jnp.all(jnp.isfinite(jnp.diagonal(lower))) & (jitter < _JITTER_LIMIT)

    def next_attempt(state):
        jitter = state[1] * _JITTER_STEP
        return attempt(jitter), jitter

    first = jnp.asarray(smallest_jitter(matrix.dtype), dtype=matrix.dtype)
    return jax.lax.while_loop(failed, next_attempt, (attempt(first), first))


@_jittered_factor.defjvp
def _jittered_factor_jvp(primals, tangents):
    (matrix,), (d_matrix,) = primals, tangents
    lower, jitter = _jittered_factor(matrix)
    size = matrix.shape[0]
    d_jittered = d_matrix + jitter * jnp.trace(d_matrix) / size * jnp.eye(size, dtype=matrix.dtype)
    # dL = L Φ(L⁻¹ dA L⁻ᵀ), Φ keeps the lower triangle and halves the diagonal.
    inner = whiten_both_sides(lower, (d_jittered + d_jittered.T) / 2)
    halved = jnp.tril(inner) - jnp.diag(jnp.diagonal(inner)) / 2
    return (lower, jitter), (lower @ halved, jnp.zeros_like(jitter))


def cholesky(matrix: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower factor of a covariance matrix, with the smallest relative jitter that makes it positive.

    The factor is NaN where even a jitter of one per cent of the diagonal does not help.
    """
    return _jittered_factor(matrix)[0]


def jitter_needed(matrix: Float[Array, "M M"]) -> Scalar:
    """Jitter that :func:`cholesky` adds, relative to the mean of the diagonal."""
    return _jittered_factor(matrix)[1]


def whiten(lower: Float[Array, "M M"], columns: Float[Array, "M ..."]) -> Float[Array, "M ..."]:
    """L⁻¹ C, for any number of trailing axes of C."""
    flat = columns.reshape(columns.shape[0], -1)
    return solve_triangular(lower, flat, lower=True).reshape(columns.shape)


def whiten_both_sides(lower: Float[Array, "M M"], matrix: Float[Array, "*D M M"]) -> Float[Array, "*D M M"]:
    """L⁻¹ A L⁻ᵀ for one symmetric A or a stack of them."""
    left = whiten(lower, jnp.moveaxis(matrix, -2, 0))  # L⁻¹ A, axes (M, *D, M)
    right = whiten(lower, jnp.moveaxis(left, -1, 0))  # L⁻¹ (L⁻¹ A)ᵀ, axes (M, M, *D)
    return jnp.moveaxis(right, (0, 1), (-1, -2))


def vec(matrix: Float[Array, "M_X M_H"]) -> Float[Array, " M"]:
    """Stack the columns of a matrix."""
    return matrix.T.reshape(-1)


def unvec(vector: Float[Array, " M"], n_rows: int) -> Float[Array, "M_X M_H"]:
    """Inverse of :func:`vec` for a matrix of ``n_rows`` rows."""
    return vector.reshape(-1, n_rows).T


def symmetric_pairs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry of the upper triangle, diagonal included, row by row."""
    return np.triu_indices(size)


def unpack_symmetric(packed: Float[Array, "*D pairs"], size: int) -> Float[Array, "*D M M"]:
    """Symmetric matrices from their upper triangles in the order of :func:`symmetric_pairs`."""
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    first, last = np.minimum(rows, columns), np.maximum(rows, columns)
    return packed[..., first * size - first * (first - 1) // 2 + last - first]


@jax.custom_jvp
def dense_evidence(gram: Float[Array, "M M"], linear: Float[Array, " M"]) -> tuple[Scalar, Scalar]:
    """log|I + G| and bᵀ(I + G)⁻¹b for a positive semi-definite G.

    The tangents use the closed forms ∂log|P| = P⁻¹ and ∂(bᵀP⁻¹b) = −ααᵀ, α = P⁻¹b, which need one inverse
    and no derivative of the factorisation.
    """
    factor = jnp.linalg.cholesky(gram + jnp.eye(gram.shape[0], dtype=gram.dtype))
    whitened = whiten(factor, linear)
    return 2 * jnp.sum(jnp.log(jnp.diagonal(factor))), whitened @ whitened


@dense_evidence.defjvp
def _dense_evidence_jvp(primals, tangents):
    (gram, linear), (d_gram, d_linear) = primals, tangents
    identity = jnp.eye(gram.shape[0], dtype=gram.dtype)
    factor = jnp.linalg.cholesky(gram + identity)
    whitened = whiten(factor, linear)
    inverse = jax.scipy.linalg.cho_solve((factor, True), identity)
    solution = inverse @ linear  # α = P⁻¹b
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    d_log_det = jnp.sum(inverse * d_gram)
    d_quadratic = 2 * solution @ d_linear - solution @ d_gram @ solution
    return (log_det, whitened @ whitened), (d_log_det, d_quadratic)


def kronecker_shrinkage(
    input_eigenvalues: Float[Array, " M_X"], latent_eigenvalues: Float[Array, " M_H"]
) -> Float[Array, "M_X M_H"]:
    """1/(1 + λ^X_i λ^H_j): the eigenvalues of (I + A_H ⊗ A_X)⁻¹ as a matrix."""
    # Rounding can push the smallest eigenvalues of a semi-definite matrix below zero.
    positive_inputs = jnp.maximum(input_eigenvalues, 0)
    positive_latents = jnp.maximum(latent_eigenvalues, 0)
    return 1 / (1 + positive_inputs[:, None] * positive_latents[None, :])


@jax.custom_jvp
def kronecker_evidence(
    input_gram: Float[Array, "M_X M_X"],
    latent_gram: Float[Array, "M_H M_H"],
    linear: Float[Array, "M_X M_H"],
) -> tuple[Scalar, Scalar]:
    """log|I + A_H ⊗ A_X| and vec(B)ᵀ(I + A_H ⊗ A_X)⁻¹vec(B) by two small eigendecompositions.

    The tangents are closed forms without eigenvalue gaps: with A_X = U_X Λ_X U_Xᵀ, A_H = U_H Λ_H U_Hᵀ,
    C = U_Xᵀ B U_H, W_ij = 1/(1 + λ^X_i λ^H_j) and R = C ∘ W,

    - ∂log|·|/∂A_H = U_H diag_j(Σ_i λ^X_i W_ij) U_Hᵀ and likewise for A_X;
    - ∂quadratic/∂A_H = −U_H Rᵀ Λ_X R U_Hᵀ, ∂quadratic/∂A_X = −U_X R Λ_H Rᵀ U_Xᵀ;
    - ∂quadratic/∂B = 2 U_X R U_Hᵀ.
    """
    input_values, input_basis = jnp.linalg.eigh(input_gram)
    latent_values, latent_basis = jnp.linalg.eigh(latent_gram)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ linear @ latent_basis
    return -jnp.sum(jnp.log(shrinkage)), jnp.sum(rotated**2 * shrinkage)


@kronecker_evidence.defjvp
def _kronecker_evidence_jvp(primals, tangents):
    (input_gram, latent_gram, linear), (d_input, d_latent, d_linear) = primals, tangents
    input_values, input_basis = jnp.linalg.eigh(input_gram)
    latent_values, latent_basis = jnp.linalg.eigh(latent_gram)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ linear @ latent_basis
    solution = rotated * shrinkage  # R
    log_det, quadratic = -jnp.sum(jnp.log(shrinkage)), jnp.sum(rotated * solution)

    # U_X diag(Σ_j λ^H_j W_ij) U_Xᵀ and U_H diag(Σ_i λ^X_i W_ij) U_Hᵀ
    log_det_by_input = (input_basis * (shrinkage @ latent_values)) @ input_basis.T
    log_det_by_latent = (latent_basis * (input_values @ shrinkage)) @ latent_basis.T
    # R U_Hᵀ and U_X R carry the solution back to the original coordinates, one side at a time.
    by_latent = solution @ latent_basis.T
    by_input = input_basis @ solution
    quadratic_by_input = -(by_input * latent_values) @ by_input.T
    quadratic_by_latent = -(by_latent.T * input_values) @ by_latent
    quadratic_by_linear = 2 * input_basis @ by_latent

    d_log_det = jnp.sum(log_det_by_input * d_input) + jnp.sum(log_det_by_latent * d_latent)
    d_quadratic = (
        jnp.sum(quadratic_by_input * d_input)
        + jnp.sum(quadratic_by_latent * d_latent)
        + jnp.sum(quadratic_by_linear * d_linear)
    )
    return (log_det, quadratic), (d_log_det, d_quadratic)
