"""Expectations of kernels when a point is uncertain, h ~ N(μ, diag s).

For each condition d: ψ_d = ⟨k(h_d, h_d)⟩, Ψ_dm = ⟨k(h_d, z_m)⟩ and Φ_dmm' = ⟨k(h_d, z_m) k(h_d, z_m')⟩. RBF,
linear and constant kernels and their sums have closed forms; any other kernel is integrated by
Gauss-Hermite quadrature, whose cost grows as (nodes per dimension)^(uncertain coordinates).
"""

from collections.abc import Callable, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import symmetric_pairs, unpack_symmetric
from lvmogp.errors import SettingError
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, Sum, cross, diagonal, select
from lvmogp.kernels.distances import gaussian_sums, weighted_distances
from lvmogp.typing import Array, Float

_CLOSED_FORM = (RBF, Linear, Constant)
_NODES_PER_DIMENSION = {1: 40, 2: 16, 3: 10}
# Entries of Φ_d that are held at a time: where they are more, computing them twice is quicker than keeping them.
_ELEMENTS_ON_CPU, _ELEMENTS_ON_ACCELERATOR = 2**22, 2**24


class LatentGaussians(eqx.Module):
    """Independent Gaussians over the latents of D conditions, q(h_d) = N(μ_d, diag s_d).

    Where only the first ``n_uncertain`` coordinates have a variance, nothing needs to be integrated over the others;
    ``None`` stands for all.
    """

    mean: Float[Array, "D Q_H"]
    variance: Float[Array, "D Q_H"]
    n_uncertain: int | None = eqx.field(static=True, default=None)


def of_all_conditions(parts: Sequence[LatentGaussians]) -> LatentGaussians:
    """The Gaussians of several sets of conditions as one set."""
    counts = [part.n_uncertain for part in parts]
    return LatentGaussians(
        jnp.concatenate([part.mean for part in parts]),
        jnp.concatenate([part.variance for part in parts]),
        n_uncertain=None if None in counts else max(count for count in counts if count is not None),
    )


def terms_with_closed_form(kernel: Kernel) -> tuple[Kernel, ...] | None:
    """The kernels whose sum this one is, if each has a closed form; else ``None``."""
    terms = kernel.terms if isinstance(kernel, Sum) else (kernel,)
    return terms if all(isinstance(term, _CLOSED_FORM) for term in terms) else None


def psi0(kernel: Kernel, latents: LatentGaussians) -> Float[Array, " D"]:
    """ψ_d = ⟨k(h_d, h_d)⟩."""
    terms = terms_with_closed_form(kernel)
    if terms is None:
        points, weights = quadrature(latents)
        return jax.vmap(lambda nodes: weights @ diagonal(kernel, nodes))(points)
    return _added([_PSI0[type(term)](term, latents) for term in terms])


def psi1(kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D M_H"]:
    """Ψ_dm = ⟨k(h_d, z_m)⟩."""
    terms = terms_with_closed_form(kernel)
    if terms is None:
        points, weights = quadrature(latents)
        return jax.vmap(lambda nodes: weights @ cross(kernel, nodes, inducing))(points)
    return _added([_PSI1[type(term)](term, inducing, latents) for term in terms])


def psi2(kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D M_H M_H"]:
    """Φ_dmm' = ⟨k(h_d, z_m) k(h_d, z_m')⟩."""
    return unpack_symmetric(packed_psi2(kernel, inducing, latents), inducing.shape[0])


def weighted_psi2(
    kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians, weights: Float[Array, " D"]
) -> Float[Array, "M_H M_H"]:
    """Σ_d w_d Φ_d."""
    if isinstance(kernel, RBF):
        return weighted_sum(partial(_rbf_psi2_sum, kernel, inducing), latents, weights, inducing.shape[0])
    return weighted_sum(row_sums(partial(packed_psi2, kernel, inducing)), latents, weights, inducing.shape[0])


def row_sums(packed: Callable[[LatentGaussians], Float[Array, "_ pairs"]]) -> Callable[..., Float[Array, " pairs"]]:
    """The function of latents and weights that adds up weighted rows."""
    return lambda latents, weights: weights @ packed(latents)


def weighted_sum(
    summed: Callable[[LatentGaussians, Float[Array, " _"]], Float[Array, " pairs"]],
    latents: LatentGaussians,
    weights: Float[Array, " D"],
    size: int,
) -> Float[Array, "M_H M_H"]:
    """Σ_d w_d S_d of packed symmetric matrices S_d, in slices of conditions: memory does not grow with D · M_H².

    ``summed`` gives the sum over some conditions from their latents and weights.
    """
    n_conditions = weights.shape[0]
    elements = _ELEMENTS_ON_CPU if jax.default_backend() == "cpu" else _ELEMENTS_ON_ACCELERATOR
    slice_size = max(1, elements // (size * size))
    if n_conditions <= slice_size:
        return unpack_symmetric(summed(latents, weights), size)

    n_slices = -(-n_conditions // slice_size)
    padding = n_slices * slice_size - n_conditions

    def sliced(values: Array, fill: float) -> Array:
        widths = [(0, padding)] + [(0, 0)] * (values.ndim - 1)
        padded = jnp.pad(values, widths, constant_values=fill)
        return padded.reshape(n_slices, slice_size, *values.shape[1:])

    @jax.checkpoint
    def add_slice(total: Array, piece: tuple[Array, Array, Array]) -> tuple[Array, None]:
        mean, variance, weight = piece
        return total + summed(LatentGaussians(mean, variance, latents.n_uncertain), weight), None

    pieces = (sliced(latents.mean, 0), sliced(latents.variance, 1), sliced(weights, 0))
    total, _ = jax.lax.scan(add_slice, jnp.zeros(size * (size + 1) // 2, weights.dtype), pieces)
    return unpack_symmetric(total, size)


def expected_cross(kernel: Kernel, first: LatentGaussians, second: LatentGaussians) -> Float[Array, "D E"]:
    """⟨k(h_d, h_e)⟩ for independent h_d of the first and h_e of the second set."""
    terms = terms_with_closed_form(kernel)
    if terms is None:
        points, weights = quadrature(second)
        means = jax.vmap(lambda nodes: psi1(kernel, nodes, first) @ weights)(points)
        return means.T
    return _added([_CROSS[type(term)](term, first, second) for term in terms])


def _added(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def packed_psi2(kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D pairs"]:
    """Φ_d as packed upper triangles."""
    rows, columns = symmetric_pairs(inducing.shape[0])
    terms = terms_with_closed_form(kernel)
    if terms is None:
        points, weights = quadrature(latents)

        def one_condition(nodes: Float[Array, "K Q_H"]) -> Float[Array, " pairs"]:
            covariance = cross(kernel, nodes, inducing)
            return ((covariance.T * weights) @ covariance)[rows, columns]

        return jax.vmap(one_condition)(points)
    parts = [_PSI2[type(term)](term, inducing, latents) for term in terms]
    for position, first in enumerate(terms):
        for second in terms[position + 1 :]:
            product = _product_expectation(first, second, inducing, latents)
            parts.append((product + jnp.swapaxes(product, -1, -2))[..., rows, columns])
    return _added(parts)


def quadrature(latents: LatentGaussians) -> tuple[Float[Array, "D K Q_H"], Float[Array, " K"]]:
    """Nodes at which to ask for a function of each h_d, and their weights (Gauss-Hermite)."""
    n_dimensions = latents.mean.shape[-1] if latents.n_uncertain is None else latents.n_uncertain
    if n_dimensions > max(_NODES_PER_DIMENSION):
        raise SettingError(
            f"this latent kernel has no closed-form expectations, and quadrature in {n_dimensions} latent "
            f"dimensions costs too much; use at most {max(_NODES_PER_DIMENSION)} dimensions, or a sum of RBF, "
            "linear and constant kernels; features that are known of every condition do not count"
        )
    if n_dimensions == 0:
        return latents.mean[:, None, :], jnp.ones(1, latents.mean.dtype)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES_PER_DIMENSION[n_dimensions])
    grids = np.meshgrid(*[nodes] * n_dimensions, indexing="ij")
    unit_nodes = jnp.asarray(np.stack([axis.ravel() for axis in grids], axis=-1), latents.mean.dtype)
    products = np.prod(np.meshgrid(*[weights / weights.sum()] * n_dimensions, indexing="ij"), axis=0)
    steps = jnp.sqrt(latents.variance[:, None, :n_dimensions]) * unit_nodes
    known = jnp.zeros((*steps.shape[:2], latents.mean.shape[-1] - n_dimensions), steps.dtype)
    points = latents.mean[:, None, :] + jnp.concatenate([steps, known], axis=-1)
    return points, jnp.asarray(products.ravel(), latents.mean.dtype)


# One function per kernel. a_q = ℓ_q² throughout.


def _restricted(kernel: RBF | Linear, latents: LatentGaussians) -> tuple[Array, Array]:
    return select(latents.mean, kernel.columns), select(latents.variance, kernel.columns)


def of_columns(
    kernel: RBF | Linear, values: Float[Array, " columns"], inducing: Float[Array, "M_H Q_H"]
) -> Float[Array, " Q_H"]:
    """Values of the columns that a kernel looks at, zero for all others."""
    columns = np.arange(inducing.shape[1]) if kernel.columns is None else np.asarray(kernel.columns)
    return jnp.zeros(inducing.shape[1], inducing.dtype).at[columns].set(values)


def _constant_psi0(kernel: Constant, latents: LatentGaussians) -> Float[Array, " D"]:
    return jnp.full(latents.mean.shape[0], kernel.variance)


def _constant_psi1(kernel: Constant, inducing: Array, latents: LatentGaussians) -> Float[Array, "D M_H"]:
    return jnp.full((latents.mean.shape[0], inducing.shape[0]), kernel.variance)


def _constant_psi2(kernel: Constant, inducing: Array, latents: LatentGaussians) -> Float[Array, "D pairs"]:
    size = inducing.shape[0]
    return jnp.full((latents.mean.shape[0], size * (size + 1) // 2), kernel.variance**2)


def _constant_cross(kernel: Constant, first: LatentGaussians, second: LatentGaussians) -> Float[Array, "D E"]:
    return jnp.full((first.mean.shape[0], second.mean.shape[0]), kernel.variance)


def _linear_psi0(kernel: Linear, latents: LatentGaussians) -> Float[Array, " D"]:
    mean, variance = _restricted(kernel, latents)
    return (mean**2 + variance) @ kernel.variance  # Σ_q σ_q² (μ_q² + s_q)


def _linear_psi1(kernel: Linear, inducing: Array, latents: LatentGaussians) -> Float[Array, "D M_H"]:
    mean, _ = _restricted(kernel, latents)
    return (mean * kernel.variance) @ select(inducing, kernel.columns).T  # Σ_q σ_q² μ_q z_q


def _linear_psi2(kernel: Linear, inducing: Array, latents: LatentGaussians) -> Float[Array, "D pairs"]:
    rows, columns = symmetric_pairs(inducing.shape[0])
    return _linear_linear(kernel, kernel, inducing, latents)[:, rows, columns]


def _linear_cross(kernel: Linear, first: LatentGaussians, second: LatentGaussians) -> Float[Array, "D E"]:
    return (_restricted(kernel, first)[0] * kernel.variance) @ _restricted(kernel, second)[0].T


def _rbf_psi0(kernel: RBF, latents: LatentGaussians) -> Float[Array, " D"]:
    return jnp.full(latents.mean.shape[0], kernel.variance)


def _rbf_psi1(kernel: RBF, inducing: Array, latents: LatentGaussians) -> Float[Array, "D M_H"]:
    # σ² Π_q (1 + s_q/a_q)^−½ exp(−½ (μ_q − z_q)²/(a_q + s_q))
    mean, variance = _restricted(kernel, latents)
    squared_scale = jnp.square(kernel.lengthscale)
    distance = weighted_distances(mean, 1 / (squared_scale + variance), select(inducing, kernel.columns))
    log_shrink = -jnp.sum(jnp.log1p(variance / squared_scale), axis=-1) / 2
    return kernel.variance * jnp.exp(log_shrink[:, None] - distance / 2)


def _rbf_cross(kernel: RBF, first: LatentGaussians, second: LatentGaussians) -> Float[Array, "D E"]:
    # h_d − h_e ~ N(μ_d − μ_e, s_d + s_e)
    (mean, variance), (other_mean, other_variance) = _restricted(kernel, first), _restricted(kernel, second)
    squared_scale = jnp.square(kernel.lengthscale)
    widened = squared_scale + variance[:, None] + other_variance[None]
    exponent = -jnp.sum((mean[:, None] - other_mean[None]) ** 2 / widened, axis=-1) / 2
    log_shrink = -jnp.sum(jnp.log(widened / squared_scale), axis=-1) / 2
    return kernel.variance * jnp.exp(exponent + log_shrink)


class _RBFPairs(eqx.Module):
    # The parts of Φ_d: σ⁴ Π_q (1 + 2s_q/a_q)^−½ exp(−(z_q − z'_q)²/4a_q − (μ_q − z̄_q)²/(a_q + 2s_q)), z̄ = (z + z')/2.
    mean: Float[Array, "D q"]
    precision: Float[Array, "D q"]
    middle: Float[Array, "pairs q"]
    log_shrink: Float[Array, " D"]
    apart: Float[Array, " pairs"]

    @classmethod
    def of(cls, kernel: RBF, inducing: Array, latents: LatentGaussians) -> "_RBFPairs":
        mean, variance = _restricted(kernel, latents)
        points = select(inducing, kernel.columns)
        rows, columns = symmetric_pairs(points.shape[0])
        squared_scale = jnp.square(kernel.lengthscale)
        return cls(
            mean=mean,
            precision=1 / (squared_scale + 2 * variance),
            middle=(points[rows] + points[columns]) / 2,
            log_shrink=-jnp.sum(jnp.log1p(2 * variance / squared_scale), axis=-1) / 2,
            apart=jnp.sum((points[rows] - points[columns]) ** 2 / squared_scale, axis=-1) / 4,
        )


def _rbf_psi2(kernel: RBF, inducing: Array, latents: LatentGaussians) -> Float[Array, "D pairs"]:
    pairs = _RBFPairs.of(kernel, inducing, latents)
    distance = weighted_distances(pairs.mean, pairs.precision, pairs.middle)
    return jnp.square(kernel.variance) * jnp.exp(pairs.log_shrink[:, None] - pairs.apart - distance)


def _rbf_psi2_sum(
    kernel: RBF, inducing: Array, latents: LatentGaussians, weights: Float[Array, " D"]
) -> Float[Array, " pairs"]:
    pairs = _RBFPairs.of(kernel, inducing, latents)
    sums = gaussian_sums(weights * jnp.exp(pairs.log_shrink), pairs.mean, pairs.precision, pairs.middle)
    return jnp.square(kernel.variance) * jnp.exp(-pairs.apart) * sums


# Products of two different kernels in a sum, ⟨k₁(h_d, z_m) k₂(h_d, z_m')⟩.


def _product_expectation(
    first: Kernel, second: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians
) -> Float[Array, "D M_H M_H"]:
    if (type(first), type(second)) in _PRODUCTS:
        return _PRODUCTS[type(first), type(second)](first, second, inducing, latents)
    return jnp.swapaxes(_PRODUCTS[type(second), type(first)](second, first, inducing, latents), -1, -2)


def _constant_with_any(first: Constant, second: Kernel, inducing: Array, latents: LatentGaussians) -> Array:
    expectation = first.variance * psi1(second, inducing, latents)[:, None, :]
    return jnp.broadcast_to(expectation, (expectation.shape[0], inducing.shape[0], inducing.shape[0]))


def _linear_linear(first: Linear, second: Linear, inducing: Array, latents: LatentGaussians) -> Array:
    # (A z)ᵀ (μμᵀ + diag s) (B z') with A, B the diagonal matrices of variances, zero outside the columns.
    left, right = (inducing * of_columns(kernel, jnp.asarray(kernel.variance), inducing) for kernel in (first, second))
    means = (latents.mean @ left.T)[:, :, None] * (latents.mean @ right.T)[:, None, :]
    return means + jnp.einsum("mq,dq,nq->dmn", left, latents.variance, right)


def _rbf_linear(first: RBF, second: Linear, inducing: Array, latents: LatentGaussians) -> Array:
    # Ψ_dm ⟨h⟩ᵀ B z' under the Gaussian tilted by the RBF: ⟨h_q⟩ = (a_q μ_q + s_q z_q)/(a_q + s_q) in its columns.
    expectation = _rbf_psi1(first, inducing, latents)
    columns = np.arange(inducing.shape[1]) if first.columns is None else np.asarray(first.columns)
    mean, variance = _restricted(first, latents)
    squared_scale = jnp.square(first.lengthscale)
    pulled = squared_scale * mean[:, None] + variance[:, None] * inducing[None, :, columns]
    tilted = jnp.broadcast_to(latents.mean[:, None], (mean.shape[0], *inducing.shape))
    tilted = tilted.at[:, :, columns].set(pulled / (squared_scale + variance[:, None]))
    weighted = select(inducing, second.columns) * second.variance
    return expectation[:, :, None] * jnp.einsum("dmq,nq->dmn", select(tilted, second.columns), weighted)


def _rbf_rbf(first: RBF, second: RBF, inducing: Array, latents: LatentGaussians) -> Array:
    # Per dimension, with precisions p = 1/a, r = 1/b (zero outside a kernel's columns) and g = p + r:
    # p(h − z)² + r(h − z')² = g(h − c)² + (pr/g)(z − z')², c = (p z + r z')/g, and
    # ⟨exp(−½ g (h − c)²)⟩ = (1 + g s)^−½ exp(−½ g (μ − c)²/(1 + g s)).
    left, right = (of_columns(kernel, 1 / jnp.square(kernel.lengthscale), inducing) for kernel in (first, second))
    total = left + right
    safe_total = jnp.where(total > 0, total, 1.0)
    centre = (left * inducing[:, None] + right * inducing[None, :]) / safe_total
    apart = jnp.sum(left * right / safe_total * (inducing[:, None] - inducing[None, :]) ** 2, axis=-1)
    widened = 1 + total * latents.variance[:, None, None]
    distance = jnp.sum(total * (latents.mean[:, None, None] - centre) ** 2 / widened, axis=-1)
    log_shrink = -jnp.sum(jnp.log(widened), axis=-1) / 2
    return first.variance * second.variance * jnp.exp(log_shrink - (apart + distance) / 2)


_PSI0: dict[type[Kernel], Callable[..., Array]] = {
    RBF: _rbf_psi0,
    Linear: _linear_psi0,
    Constant: _constant_psi0,
}
_PSI1: dict[type[Kernel], Callable[..., Array]] = {
    RBF: _rbf_psi1,
    Linear: _linear_psi1,
    Constant: _constant_psi1,
}
_PSI2: dict[type[Kernel], Callable[..., Array]] = {
    RBF: _rbf_psi2,
    Linear: _linear_psi2,
    Constant: _constant_psi2,
}
_CROSS: dict[type[Kernel], Callable[..., Array]] = {
    RBF: _rbf_cross,
    Linear: _linear_cross,
    Constant: _constant_cross,
}
_PRODUCTS: dict[tuple[type[Kernel], type[Kernel]], Callable[..., Array]] = {
    (Constant, Constant): _constant_with_any,
    (Constant, Linear): _constant_with_any,
    (Constant, RBF): _constant_with_any,
    (Linear, Linear): _linear_linear,
    (RBF, Linear): _rbf_linear,
    (RBF, RBF): _rbf_rbf,
}
