"""Linear algebra on which everything rests: Cholesky factors that hold, triangular solves, Kronecker pairs.

Vectors over pairs of inducing points are written as matrices V of shape (M_X, M_H), and vec(V) stacks the
columns of V, so that (L_H ⊗ L_X) vec(V) = vec(L_X V L_Hᵀ).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from lvmogp.typing import Array, Bool, Float, Scalar

_JITTER_STEP = 10.0
_JITTER_LIMIT = 1e-2
# Triangular matrices of up to this size are inverted by one solve.
_SOLVED_AT_ONCE = 64


def smallest_jitter(dtype: jnp.dtype) -> float:
    """Jitter that is always added, relative to the mean of the diagonal."""
    return 1e-7 if dtype == jnp.float64 else 1e-5


@jax.custom_jvp
def _jittered_factor(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    # chol(A + ε·mean(diag A)·I) for the smallest ε of a ladder that succeeds.
    return jax.lax.platform_dependent(matrix, cpu=jittered_in_turn, default=jittered_at_once)


def _attempt(matrix: Float[Array, "M M"], jitter: Scalar) -> tuple[Float[Array, "M M"], Bool[Array, ""]]:
    # The factor, and whether there is one.
    scale = jnp.mean(jnp.diagonal(matrix))
    lower = jnp.linalg.cholesky(matrix + jitter * scale * jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return lower, jnp.all(jnp.isfinite(jnp.diagonal(lower)))


def jittered_in_turn(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    """One rung of the ladder after the other until one holds: nearly always the first."""
    rungs = jnp.asarray(_ladder(matrix.dtype))

    def next_attempt(state):
        _, _, rung = state
        return *_attempt(matrix, rungs[rung + 1]), rung + 1

    def failed(state):
        return ~state[1] & (state[2] < len(rungs) - 1)

    lower, _, rung = jax.lax.while_loop(failed, next_attempt, (*_attempt(matrix, rungs[0]), 0))
    return lower, rungs[rung]


def jittered_at_once(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Scalar]:
    """All rungs of the ladder together, for accelerators, which wait for the host before each turn of a loop."""
    rungs = jnp.asarray(_ladder(matrix.dtype))
    factors, hold = jax.vmap(lambda jitter: _attempt(matrix, jitter))(rungs)
    chosen = jnp.where(jnp.any(hold), jnp.argmax(hold), len(rungs) - 1)
    return factors[chosen], rungs[chosen]


def _ladder(dtype: jnp.dtype) -> np.ndarray:
    first = smallest_jitter(dtype)
    n_rungs = round(math.log(_JITTER_LIMIT / first, _JITTER_STEP)) + 1
    return (first * _JITTER_STEP ** np.arange(n_rungs)).astype(dtype)


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


def factor_beside_errors(matrix: Float[Array, "m m"], errors: Float[Array, " m"]) -> Float[Array, "m m"]:
    """Lower factor of the covariance of observations plus known variances of their errors.

    These may be larger than everything else by many orders, and a jitter in proportion to them would drown what other
    observations tell. So rows are scaled to the variances that they have without, and L = S⁻¹ chol(S(A + E)S).
    """
    own = jnp.diagonal(matrix)
    scale = jnp.sqrt(own / (own + errors))
    return cholesky((matrix + jnp.diag(errors)) * jnp.outer(scale, scale)) / scale[:, None]


def triangular_inverse(lower: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹ by halves: of L = [A 0; B C] it is [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹], mostly products of matrices."""
    size = lower.shape[0]
    if size <= _SOLVED_AT_ONCE:
        return solve_triangular(lower, jnp.eye(size, dtype=lower.dtype), lower=True)
    half = size // 2
    first, last = triangular_inverse(lower[:half, :half]), triangular_inverse(lower[half:, half:])
    below = -last @ (lower[half:, :half] @ first)
    return jnp.block([[first, jnp.zeros((half, size - half), lower.dtype)], [below, last]])


@jax.custom_jvp
def inverse_with_quick_derivative(lower: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹, whose derivatives are products instead of solves.

    For programs that run by themselves: the compiler joins products with others around them, so that two programs
    need not agree to the last bit, as those of a model and of its copy from a file must.
    """
    return triangular_inverse(lower)


@inverse_with_quick_derivative.defjvp
def _inverse_jvp(primals, tangents):
    inverse = inverse_with_quick_derivative(*primals)
    return inverse, -inverse @ jnp.tril(tangents[0]) @ inverse  # dL⁻¹ = −L⁻¹ dL L⁻¹


def whiten(lower: Float[Array, "M M"], columns: Float[Array, "M ..."]) -> Float[Array, "M ..."]:
    """L⁻¹ C, for any number of trailing axes of C."""
    flat = columns.reshape(columns.shape[0], -1)
    size, n_columns = flat.shape
    if n_columns < 2 * size:
        return solve_triangular(lower, flat, lower=True).reshape(columns.shape)
    # A product with many columns is several times faster than a solve, and the jitter keeps it as exact.
    return (triangular_inverse(lower) @ flat).reshape(columns.shape)


def whiten_both_sides(lower: Float[Array, "M M"], matrix: Float[Array, "*D M M"]) -> Float[Array, "*D M M"]:
    """L⁻¹ A L⁻ᵀ for one symmetric A or a stack of them."""
    inverse = triangular_inverse(lower)
    return inverse @ matrix @ inverse.T


def vec(matrix: Float[Array, "M_X M_H"]) -> Float[Array, " M"]:
    """Stack the columns of a matrix."""
    return matrix.T.reshape(-1)


def unvec(vector: Float[Array, " M"], n_rows: int) -> Float[Array, "M_X M_H"]:
    """Inverse of :func:`vec` for a matrix of ``n_rows`` rows."""
    return vector.reshape(-1, n_rows).T


def symmetric_pairs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry of the upper triangle, diagonal included, row by row."""
    return np.triu_indices(size)


def packed_counts(size: int) -> np.ndarray:
    """For how many places of a symmetric matrix each entry of its upper triangle stands: two, on the diagonal one."""
    rows, columns = symmetric_pairs(size)
    return np.where(rows == columns, 1, 2)


def unpack_symmetric(packed: Float[Array, "*D pairs"], size: int) -> Float[Array, "*D M M"]:
    """Symmetric matrices from their upper triangles in the order of :func:`symmetric_pairs`.

    Backwards, a packed entry gathers its two places; left alone, each place would be added to its entry in turn.
    """
    return _unpacked(packed, size)


def _gathered(packed: Array, size: int) -> Array:
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    first, last = np.minimum(rows, columns), np.maximum(rows, columns)
    return packed[..., first * size - first * (first - 1) // 2 + last - first]


def _unpack_forward(packed: Array, size: int) -> tuple[Array, None]:
    return _gathered(packed, size), None


def _unpack_backward(size: int, _: None, cotangent: Array) -> tuple[Array]:
    rows, columns = symmetric_pairs(size)
    both = cotangent[..., rows, columns] + cotangent[..., columns, rows]
    return (both * (packed_counts(size) / 2).astype(both.dtype),)  # on the diagonal both are the same place


_unpacked: Any = jax.custom_vjp(_gathered, nondiff_argnums=(1,))
_unpacked.defvjp(_unpack_forward, _unpack_backward)


def _outer_gram(lower: Float[Array, "M M"]) -> Float[Array, "M M"]:
    # LᵀL of L = [A 0; B C] by quarters, which leaves out the products with the zeros.
    half = lower.shape[0] // 2
    first, below, last = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    corner = below.T @ last
    return jnp.block([[first.T @ first + below.T @ below, corner], [corner.T, last.T @ last]])


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
    whitener = triangular_inverse(factor)
    whitened = whitener @ linear
    solution = whitened @ whitener  # α = P⁻¹b
    inverse = _outer_gram(whitener)  # P⁻¹ = L⁻ᵀL⁻¹
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    d_log_det = jnp.sum(inverse * d_gram)
    d_quadratic = 2 * solution @ d_linear - solution @ d_gram @ solution
    return (log_det, whitened @ whitened), (d_log_det, d_quadratic)
