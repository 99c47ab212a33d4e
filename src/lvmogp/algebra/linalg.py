"""Linear algebra on which everything rests: Cholesky factors that hold, triangular solves, products over observations.

Vectors over pairs of inducing points are written as matrices, and vec(·) stacks their columns, so that
(L_H ⊗ L_X) vec(B) = vec(L_X B L_Hᵀ).
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from lvmogp.typing import Array, Bool, Float, Scalar

# Triangular matrices of up to this size are inverted by one solve.
_SOLVED_AT_ONCE = 64
# Jitters that are tried in turn, relative to the mean of the diagonal: at least what rounding needs, at most one per
# cent. Written out: a power of ten that is computed differs in its last digit from one processor to the next.
_JITTERS = {"float64": (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2), "float32": (1e-5, 1e-4, 1e-3, 1e-2)}


def smallest_jitter(dtype: jnp.dtype) -> float:
    """Jitter that is always added, relative to the mean of the diagonal."""
    return _JITTERS[dtype.name][0]


@jax.custom_jvp
def jittered_factor(matrix: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Scalar]:
    """Return chol(A + ε·mean(diag A)·I) and ε, the smallest of a ladder that succeeds.

    The factor is NaN where even a jitter of one per cent of the diagonal does not help.
    """
    return jax.lax.platform_dependent(matrix, cpu=jittered_in_turn, default=jittered_at_once)


def _attempt(matrix: Float[Array, "m m"], jitter: Scalar) -> tuple[Float[Array, "m m"], Bool[Array, ""]]:
    # The factor, and whether there is one.
    scale = jnp.mean(jnp.diagonal(matrix))
    lower = jnp.linalg.cholesky(matrix + jitter * scale * jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return lower, jnp.all(jnp.isfinite(jnp.diagonal(lower)))


def jittered_in_turn(matrix: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Scalar]:
    """One rung of the ladder after the other until one holds: nearly always the first."""
    rungs = jnp.asarray(_JITTERS[matrix.dtype.name], matrix.dtype)
    lower, _, rung = jax.lax.while_loop(
        lambda state: ~state[1] & (state[2] < len(rungs) - 1),
        lambda state: (*_attempt(matrix, rungs[state[2] + 1]), state[2] + 1),
        (*_attempt(matrix, rungs[0]), 0),
    )
    return lower, rungs[rung]


def jittered_at_once(matrix: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Scalar]:
    """All rungs of the ladder together, for accelerators, which wait for the host before each turn of a loop."""
    rungs = jnp.asarray(_JITTERS[matrix.dtype.name], matrix.dtype)
    factors, hold = jax.vmap(lambda jitter: _attempt(matrix, jitter))(rungs)
    chosen = jnp.where(jnp.any(hold), jnp.argmax(hold), len(rungs) - 1)
    return factors[chosen], rungs[chosen]


@jittered_factor.defjvp
def _jittered_factor_jvp(primals, tangents):
    (matrix,), (d_matrix,) = primals, tangents
    lower, jitter = jittered_factor(matrix)
    d_jittered = d_matrix + jitter * jnp.trace(d_matrix) / len(matrix) * jnp.eye(len(matrix), dtype=matrix.dtype)
    # dL = L Φ(L⁻¹ dA L⁻ᵀ), Φ keeps the lower triangle and halves the diagonal.
    inner = whiten_both_sides(lower, (d_jittered + d_jittered.T) / 2)
    halved = jnp.tril(inner) - jnp.diag(jnp.diagonal(inner)) / 2
    return (lower, jitter), (lower @ halved, jnp.zeros_like(jitter))


def cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """Lower factor of a covariance matrix, with the smallest relative jitter that makes it positive."""
    return jittered_factor(matrix)[0]


def factor_beside_errors(matrix: Float[Array, "m m"], errors: Float[Array, " m"]) -> Float[Array, "m m"]:
    """Lower factor of the covariance of observations plus known variances of their errors.

    These may be larger than everything else by many orders, and a jitter in proportion to them would drown what other
    observations tell. So rows are scaled by D to the variances that they have without, and L = D⁻¹ chol(D(A + E)D).
    """
    own = jnp.diagonal(matrix)
    scale = jnp.sqrt(own / (own + errors))
    return cholesky((matrix + jnp.diag(errors)) * jnp.outer(scale, scale)) / scale[:, None]


def triangular_inverse(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """L⁻¹ by halves: of L = [A 0; B C] it is [A⁻¹ 0; −C⁻¹BA⁻¹ C⁻¹], mostly products of matrices."""
    size = lower.shape[0]
    if size <= _SOLVED_AT_ONCE:
        return solve_triangular(lower, jnp.eye(size, dtype=lower.dtype), lower=True)
    half = size // 2
    first, last = triangular_inverse(lower[:half, :half]), triangular_inverse(lower[half:, half:])
    below = -last @ (lower[half:, :half] @ first)
    return jnp.block([[first, jnp.zeros((half, size - half), lower.dtype)], [below, last]])


def triangular_inverses(lower: Float[Array, "*D m m"]) -> Float[Array, "*D m m"]:
    """L⁻¹ of each of a stack of matrices."""
    flat = lower.reshape(-1, *lower.shape[-2:])
    return jax.vmap(triangular_inverse)(flat).reshape(lower.shape)


def whiten(lower: Float[Array, "m m"], columns: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """L⁻¹ C, for any number of trailing axes of C."""
    flat = columns.reshape(columns.shape[0], -1)
    size, n_columns = flat.shape
    if n_columns < 2 * size:
        return solve_triangular(lower, flat, lower=True).reshape(columns.shape)
    # A product with many columns is several times faster than a solve, and the jitter keeps it as exact.
    return (triangular_inverse(lower) @ flat).reshape(columns.shape)


def whiten_both_sides(lower: Float[Array, "m m"], matrix: Float[Array, "*D m m"]) -> Float[Array, "*D m m"]:
    """L⁻¹ A L⁻ᵀ for one symmetric A or a stack of them."""
    inverse = triangular_inverse(lower)
    return inverse @ matrix @ inverse.T


def vec(matrix: Float[Array, "M_X M_H"]) -> Float[Array, " m"]:
    """Stack the columns of a matrix."""
    return matrix.T.reshape(-1)


def packed_counts(size: int) -> np.ndarray:
    """For how many places of a symmetric matrix each entry of its upper triangle stands: two, on the diagonal one."""
    rows, columns = np.triu_indices(size)
    return np.where(rows == columns, 1, 2)


@jax.custom_vjp
def unpack_symmetric(packed: Float[Array, "*D pairs"]) -> Float[Array, "*D m m"]:
    """Symmetric matrices from their upper triangles in the order of ``np.triu_indices``.

    Backwards, a packed entry gathers its two places; left alone, each place would be added to its entry in turn.
    """
    size = math.isqrt(2 * packed.shape[-1])  # of m(m + 1)/2 pairs
    place = np.zeros((size, size), dtype=int)
    place[np.triu_indices(size)] = np.arange(packed.shape[-1])
    return packed[..., np.maximum(place, place.T)]


def _unpack_backward(_: None, cotangent: Array) -> tuple[Array]:
    size = cotangent.shape[-1]
    rows, columns = np.triu_indices(size)
    both = cotangent[..., rows, columns] + cotangent[..., columns, rows]
    return (both * (packed_counts(size) / 2).astype(both.dtype),)  # on the diagonal both are the same place


unpack_symmetric.defvjp(lambda packed: (unpack_symmetric(packed), None), _unpack_backward)


def in_slices(function: Callable[..., tuple[Array, ...]], most: int, *arrays: Array) -> tuple[Array, ...]:
    """A function of the rows of arrays, whose number is halved until it is at most ``most``; backwards computed again.

    So nothing of the size of what is in between is ever held. That is also quicker: memory beyond some 30 MB is taken
    from the system and given back in each call of a program, page by page, which takes longer than computing twice.
    """
    n_rows = n_at_once = arrays[0].shape[0]
    while n_at_once > most and n_at_once % 2 == 0:
        n_at_once //= 2
    if n_at_once == n_rows:
        return function(*arrays)
    again = jax.checkpoint(function)  # type: ignore[reportPrivateImportUsage]
    pieces = tuple(array.reshape(-1, n_at_once, *array.shape[1:]) for array in arrays)
    found = jax.lax.map(lambda piece: again(*piece), pieces)
    return tuple(array.reshape(n_rows, *array.shape[2:]) for array in found)


@jax.custom_vjp
def whitened_products(
    lower: Float[Array, "kernels m m"], columns: Float[Array, "kernels m n"], weights: Float[Array, "n e"]
) -> tuple[Float[Array, "M_A M_A"], Float[Array, "M_A e"]]:
    """A_X = F Fᵀ and B = F E with the features F = L⁻¹C of columns C, those of several kernels stacked, and weights E.

    Backwards, F is multiplied with once: with Δ = dA_X + dA_Xᵀ and L⁻¹ for each kernel,

    - dC = L⁻ᵀ(ΔF + dB Eᵀ) and dE = Fᵀ dB;
    - dL = −tril(L⁻ᵀ(ΔA_X + dB Bᵀ)), from small matrices alone, since dF Fᵀ = ΔA_X + dB Bᵀ.
    """
    return _whitened_forward(lower, columns, weights)[0]


def _whitened_forward(lower: Array, columns: Array, weights: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    inverses = triangular_inverses(lower)
    features = (inverses @ columns).reshape(-1, columns.shape[2])  # F
    gram, linear = features @ features.T, features @ weights
    return (gram, linear), (inverses, features, weights, gram, linear)


def _whitened_backward(kept: tuple[Array, ...], cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    inverses, features, weights, gram, linear = kept
    d_gram, d_linear = cotangents
    n_kernels, size, _ = inverses.shape

    def by_kernel(matrix: Array) -> Array:
        return matrix.reshape(n_kernels, size, -1)

    def mapped(matrix: Array) -> Array:
        return (inverses.mT @ by_kernel(matrix)).reshape(matrix.shape)  # L⁻ᵀ of each kernel

    both = d_gram + d_gram.T  # Δ
    d_columns = mapped(both) @ features + mapped(d_linear) @ weights.T
    within = by_kernel(both) @ by_kernel(gram).mT + by_kernel(d_linear) @ by_kernel(linear).mT
    return -jnp.tril(inverses.mT @ within), by_kernel(d_columns), features.T @ d_linear


whitened_products.defvjp(_whitened_forward, _whitened_backward)


@jax.custom_vjp
def block_products(
    lower: Float[Array, "kernels m m"], rows: Float[Array, "blocks places m_A"], weights: Float[Array, "blocks places"]
) -> tuple[Float[Array, "blocks m_A m_A"], Float[Array, "blocks m_A"]]:
    """A = Σ a aᵀ and b = Σ e a over the rows kᵀ of each block, with a = L⁻¹k, those of several kernels side by side.

    Backwards, with Δ = dA + dAᵀ and L⁻¹ for each kernel,

    - dk = L⁻ᵀΔL⁻¹k + e L⁻ᵀdb and de = kᵀL⁻ᵀdb, so that no a is needed again;
    - dL = −tril((Σ dk kᵀ) L⁻ᵀ).
    """
    return _blocks_forward(lower, rows, weights)[0]


def _mapped_by_kernel(rows: Float[Array, "*n m_A"], matrices: Float[Array, "kernels m m"]) -> Float[Array, "*n m_A"]:
    # Rows times a matrix for each kernel: block by block, since most of their block-diagonal matrix is zeros.
    parts = jnp.split(rows, len(matrices), axis=-1)
    return jnp.concatenate([part @ matrix for part, matrix in zip(parts, matrices, strict=True)], axis=-1)


def _blocks_forward(lower: Array, rows: Array, weights: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    inverses = triangular_inverses(lower)
    whitened = _mapped_by_kernel(rows, inverses.mT)  # aᵀ
    grams = jnp.swapaxes(whitened, 1, 2) @ whitened
    return (grams, jnp.sum(whitened * weights[..., None], axis=1)), (inverses, rows, weights)


def _blocks_backward(kept: tuple[Array, ...], cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    inverses, rows, weights = kept
    d_grams, d_linear = cotangents
    both = d_grams + jnp.swapaxes(d_grams, 1, 2)  # Δ
    n_rows, size = rows.shape[1:]
    # L⁻ᵀΔL⁻¹ costs more than it spares where blocks are small.
    if n_rows > size:
        of_rows = jnp.swapaxes(_mapped_by_kernel(both, inverses), 1, 2)  # L⁻ᵀΔ
        by_grams = rows @ _mapped_by_kernel(of_rows, inverses)
    else:
        by_grams = _mapped_by_kernel(_mapped_by_kernel(rows, inverses.mT) @ both, inverses)
    mapped = _mapped_by_kernel(d_linear, inverses)  # (L⁻ᵀdb)ᵀ
    d_rows = by_grams + weights[:, :, None] * mapped[:, None, :]
    pairs = zip(*(jnp.split(each.reshape(-1, size), len(inverses), axis=1) for each in (d_rows, rows)), strict=True)
    within = jnp.stack([d_part.T @ part for d_part, part in pairs])  # Σ dk kᵀ
    return -jnp.tril(within @ inverses.mT), d_rows, jnp.sum(rows * mapped[:, None, :], axis=2)


block_products.defvjp(_blocks_forward, _blocks_backward)


@jax.custom_vjp
def quadratic_forms(
    packed: Float[Array, "blocks pairs"],
    points: Float[Array, "blocks places m"],
    weights: Float[Array, "blocks places"],
) -> Float[Array, " blocks"]:
    """Σ_i e_i p_iᵀ A p_i over the points of each block, with its own symmetric matrix A as a packed upper triangle.

    Backwards, A p serves again: dp_i = 2 e_i A p_i, dA = Σ_i e_i p_i p_iᵀ.
    """
    return _forms_forward(packed, points, weights)[0]


def _forms_forward(packed: Array, points: Array, weights: Array) -> tuple[Array, tuple[Array, ...]]:
    mapped = points @ unpack_symmetric(packed)  # (A p)ᵀ
    forms = jnp.sum(mapped * points, axis=2)
    return jnp.sum(weights * forms, axis=1), (mapped, forms, points, weights)


def _forms_backward(kept: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array]:
    mapped, forms, points, weights = kept
    by_form = (weights * cotangent[:, None])[..., None]
    rows, columns = np.triu_indices(points.shape[2])
    counts = packed_counts(points.shape[2]).astype(points.dtype)
    outer = jnp.swapaxes(points * by_form, 1, 2) @ points
    return outer[:, rows, columns] * counts, 2 * by_form * mapped, forms * cotangent[:, None]


quadratic_forms.defvjp(_forms_forward, _forms_backward)
