"""Expectations of kernels when a point is uncertain, h ~ N(μ, diag s).

For each condition d: ψ_d = ⟨k(h_d, h_d)⟩, Ψ_dm = ⟨k(h_d, z_m)⟩, Φ_dmm' = ⟨k(h_d, z_m) k(h_d, z_m')⟩ and the covariance
Cov_d = Φ_d − Ψ_d Ψ_dᵀ. RBF, linear and constant kernels and their sums have closed forms; any other kernel is
integrated by Gauss-Hermite quadrature, whose cost grows as (nodes per dimension)^(uncertain coordinates).

Where a latent is nearly known Φ_d is large and Cov_d small: whitening, which can cost as many digits as a gram matrix
has condition, would leave nothing of their difference. So each formula of Cov_d is the difference itself (equation 50).
"""

import itertools
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.linalg import unpack_symmetric
from lvmogp.errors import SettingError
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, Sum, Values, cross, diagonal, select
from lvmogp.kernels.distances import gaussian_sums, weighted_distances
from lvmogp.typing import Array, Float

ClosedForm = RBF | Linear | Constant
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


def closed_form_terms(kernel: Kernel) -> tuple[ClosedForm, ...] | None:
    """The kernels whose sum this one is, if each has a closed form; else ``None``."""
    terms = kernel.terms if isinstance(kernel, Sum) else (kernel,)
    found = tuple(term for term in terms if isinstance(term, ClosedForm))
    return found if len(found) == len(terms) else None


def psi0(kernel: Kernel, latents: LatentGaussians) -> Float[Array, " D"]:
    """ψ_d = ⟨k(h_d, h_d)⟩."""
    terms = closed_form_terms(kernel)
    if terms is None:
        points, weights = quadrature(latents)
        return jax.vmap(lambda nodes: weights @ diagonal(kernel, nodes))(points)
    total = jnp.zeros(latents.mean.shape[0], latents.mean.dtype)
    for term in terms:
        if isinstance(term, Linear):
            mean, variance = _of_columns(term, latents)
            total += (mean**2 + variance) @ term.variance  # Σ_q σ_q² (μ_q² + s_q)
        else:
            total += term.variance
    return total


def psi1(kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D M_H"]:
    """Ψ_dm = ⟨k(h_d, z_m)⟩."""
    terms = closed_form_terms(kernel)
    if terms is None:
        points, weights = quadrature(latents)
        return jax.vmap(lambda nodes: weights @ cross(kernel, nodes, inducing))(points)
    return sum((_psi1(term, inducing, latents) for term in terms[1:]), start=_psi1(terms[0], inducing, latents))


def _psi1(kernel: ClosedForm, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D M_H"]:
    if isinstance(kernel, Constant):
        return jnp.full((latents.mean.shape[0], inducing.shape[0]), kernel.variance)
    mean, variance = _of_columns(kernel, latents)
    points = select(inducing, kernel.columns)
    if isinstance(kernel, Linear):
        return (mean * kernel.variance) @ points.T  # Σ_q σ_q² μ_q z_q
    # σ² Π_q (1 + s_q/ℓ_q²)^−½ exp(−½ (μ_q − z_q)²/(ℓ_q² + s_q))
    squared_scale = jnp.square(kernel.lengthscale)
    distance = weighted_distances(mean, 1 / (squared_scale + variance), points)
    log_shrink = -jnp.sum(jnp.log1p(variance / squared_scale), axis=-1) / 2
    return kernel.variance * jnp.exp(log_shrink[:, None] - distance / 2)


def expected_cross(kernel: Kernel, first: LatentGaussians, second: LatentGaussians) -> Float[Array, "D E"]:
    """⟨k(h_d, h_e)⟩ for independent h_d of the first and h_e of the second set."""
    terms = closed_form_terms(kernel)
    if terms is None:
        points, weights = quadrature(second)
        return jax.vmap(lambda nodes: psi1(kernel, nodes, first) @ weights)(points).T
    total = jnp.zeros((first.mean.shape[0], second.mean.shape[0]), first.mean.dtype)
    for term in terms:
        total += _rbf_cross(term, first, second) if isinstance(term, RBF) else _psi1(term, second.mean, first)
    return total


def _rbf_cross(kernel: RBF, first: LatentGaussians, second: LatentGaussians) -> Float[Array, "D E"]:
    # h_d − h_e ~ N(μ_d − μ_e, s_d + s_e)
    (mean, variance), (other_mean, other_variance) = _of_columns(kernel, first), _of_columns(kernel, second)
    squared_scale = jnp.square(kernel.lengthscale)
    widened = squared_scale + variance[:, None] + other_variance[None]
    exponent = -jnp.sum((mean[:, None] - other_mean[None]) ** 2 / widened, axis=-1) / 2
    log_shrink = -jnp.sum(jnp.log(widened / squared_scale), axis=-1) / 2
    return kernel.variance * jnp.exp(exponent + log_shrink)


def psi2(kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D M_H M_H"]:
    """Φ_dmm' = ⟨k(h_d, z_m) k(h_d, z_m')⟩."""
    return unpack_symmetric(packed_psi2(kernel, inducing, latents))


def packed_psi2(kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians) -> Float[Array, "D pairs"]:
    """Φ_d as packed upper triangles."""
    if isinstance(kernel, RBF):
        shrink, apart, points = _rbf_pairs(kernel, inducing, latents)
        return jnp.square(kernel.variance) * jnp.exp(shrink[:, None] - apart - weighted_distances(*points))
    rows, columns = np.triu_indices(inducing.shape[0])
    means = psi1(kernel, inducing, latents)
    covariances = feature_covariance(kernel, inducing, latents)[:, rows, columns]
    return means[:, rows] * means[:, columns] + covariances  # ΨΨᵀ + Cov


def weighted_psi2(
    kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians, weights: Float[Array, " D"]
) -> Float[Array, "M_H M_H"]:
    """Σ_d w_d Φ_d."""

    def summed(some: LatentGaussians, own: Float[Array, " _"]) -> Float[Array, " pairs"]:
        if not isinstance(kernel, RBF):
            return own @ packed_psi2(kernel, inducing, some)
        shrink, apart, points = _rbf_pairs(kernel, inducing, some)
        return jnp.square(kernel.variance) * jnp.exp(-apart) * gaussian_sums(own * jnp.exp(shrink), *points)

    return unpack_symmetric(_weighted_sum(summed, latents, weights, inducing.shape[0]))


def weighted_covariance(
    kernel: Kernel,
    inducing: Float[Array, "M_H Q_H"],
    latents: LatentGaussians,
    weights: Float[Array, " D"],
    other: Kernel | None = None,
) -> Float[Array, "M_H M_H"]:
    """Σ_d w_d Cov_d, between two kernels where there is another."""

    def summed(some: LatentGaussians, own: Float[Array, " _"]) -> Float[Array, "M_H M_H"]:
        return jnp.tensordot(own, feature_covariance(kernel, inducing, some, other), axes=1)

    return _weighted_sum(summed, latents, weights, inducing.shape[0])


def _weighted_sum(summed: Callable[..., Array], latents: LatentGaussians, weights: Array, size: int) -> Array:
    # Slices of conditions, so that memory does not grow with D · M_H²; ``summed`` adds up some conditions, given their
    # latents and weights.
    elements = _ELEMENTS_ON_CPU if jax.default_backend() == "cpu" else _ELEMENTS_ON_ACCELERATOR
    slice_size = max(1, elements // (size * size))
    n_sliced = (weights.shape[0] - 1) // slice_size * slice_size  # the others, at least one, begin the sum
    total = summed(*jax.tree.map(lambda leaf: leaf[n_sliced:], (latents, weights)))
    if n_sliced:
        slices = jax.tree.map(lambda leaf: leaf[:n_sliced].reshape(-1, slice_size, *leaf.shape[1:]), (latents, weights))
        again = jax.checkpoint(summed)  # type: ignore[reportPrivateImportUsage]
        total, _ = jax.lax.scan(lambda total, some: (total + again(*some), None), total, slices)
    return total


def _rbf_pairs(kernel: RBF, inducing: Array, latents: LatentGaussians) -> tuple[Array, Array, tuple[Array, ...]]:
    # Φ_d = σ⁴ exp(shrink_d − apart − r²) by the upper triangle, with z̄ = (z + z')/2:
    # σ⁴ Π_q (1 + 2s_q/ℓ_q²)^−½ exp(−(z_q − z'_q)²/4ℓ_q² − (μ_q − z̄_q)²/(ℓ_q² + 2s_q))
    mean, variance = _of_columns(kernel, latents)
    points, squared_scale = select(inducing, kernel.columns), jnp.square(kernel.lengthscale)
    rows, columns = np.triu_indices(points.shape[0])
    shrink = -jnp.sum(jnp.log1p(2 * variance / squared_scale), axis=-1) / 2
    apart = jnp.sum((points[rows] - points[columns]) ** 2 / squared_scale, axis=-1) / 4
    return shrink, apart, (mean, 1 / (squared_scale + 2 * variance), (points[rows] + points[columns]) / 2)


def feature_covariance(
    kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians, other: Kernel | None = None
) -> Float[Array, "D M_H M_H"]:
    """Cov_dmm' = ⟨k(h_d, z_m) k'(h_d, z_m')⟩ − ⟨k(h_d, z_m)⟩⟨k'(h_d, z_m')⟩, k' being k unless another is given."""
    other = kernel if other is None else other
    terms, other_terms = closed_form_terms(kernel), closed_form_terms(other)
    if terms is None or other_terms is None:
        points, weights = quadrature(latents)

        def one_condition(nodes: Float[Array, "nodes Q_H"]) -> Float[Array, "M_H M_H"]:
            values, other_values = (cross(each, nodes, inducing) for each in (kernel, other))
            centred, other_centred = (each - weights @ each for each in (values, other_values))
            return (centred.T * weights) @ other_centred

        return jax.vmap(one_condition)(points)
    total = jnp.zeros((latents.mean.shape[0], inducing.shape[0], inducing.shape[0]), inducing.dtype)
    uncertain = ([term for term in each if not isinstance(term, Constant)] for each in (terms, other_terms))
    for first, second in itertools.product(*uncertain):
        total += _covariance_of_pair(first, second, inducing, latents)
    return total


def _covariance_of_pair(first: RBF | Linear, second: RBF | Linear, inducing: Array, latents: LatentGaussians) -> Array:
    # Cov(k₁(h_d, z_m), k₂(h_d, z_m'))
    if isinstance(first, RBF):
        if isinstance(second, RBF):
            return _rbf_rbf(first, second, inducing, latents)
        return _rbf_linear(first, second, inducing, latents)
    if isinstance(second, RBF):
        return jnp.swapaxes(_rbf_linear(second, first, inducing, latents), -1, -2)
    # (A z)ᵀ diag(s) (B z') with A, B the diagonal matrices of variances, zero outside the columns
    left, right = (inducing * _at_columns(kernel, kernel.variance, inducing) for kernel in (first, second))
    return jnp.einsum("mq,dq,nq->dmn", left, latents.variance, right)


def _rbf_linear(first: RBF, second: Linear, inducing: Array, latents: LatentGaussians) -> Array:
    # Ψ_dm (⟨h⟩ − μ)ᵀ B z' under the Gaussian tilted by the RBF: ⟨h_q⟩ − μ_q = p_q s_q (z_q − μ_q)/(1 + p_q s_q)
    pull = _at_columns(first, 1 / jnp.square(first.lengthscale), inducing) * latents.variance
    pull = pull / (1 + pull)
    weighted = inducing * _at_columns(second, second.variance, inducing)
    towards = jnp.einsum("dq,mq,nq->dmn", pull, inducing, weighted)
    away = (pull * latents.mean) @ weighted.T
    return _psi1(first, inducing, latents)[:, :, None] * (towards - away[:, None])


def _rbf_rbf(first: RBF, second: RBF, inducing: Array, latents: LatentGaussians) -> Array:
    # Ψ_dm Ψ'_dm' (e^ζ − 1) with, summed over dimensions, u = μ − z, v = μ − z' and precisions p, r,
    # 2ζ = log(1 + p r s²/(1 + (p + r)s)) + s [(p u + r v)²/(1 + (p + r)s) − p²u²/(1 + p s) − r²v²/(1 + r s)]
    left, right = (_at_columns(kernel, 1 / jnp.square(kernel.lengthscale), inducing) for kernel in (first, second))
    exponent = jnp.zeros((latents.mean.shape[0], inducing.shape[0], inducing.shape[0]), inducing.dtype)
    for q in range(inducing.shape[1]):
        p, r, s = left[q], right[q], latents.variance[:, q, None, None]
        away = latents.mean[:, q, None] - inducing[None, :, q]
        u, v = p * away[:, :, None], r * away[:, None, :]
        widened = 1 + (p + r) * s
        exponent += jnp.log1p(p * r * s**2 / widened) / 2
        exponent += s * ((u + v) ** 2 / widened - u**2 / (1 + p * s) - v**2 / (1 + r * s)) / 2
    means = _psi1(first, inducing, latents)[:, :, None] * _psi1(second, inducing, latents)[:, None, :]
    return means * jnp.expm1(exponent)


def quadrature(latents: LatentGaussians) -> tuple[Float[Array, "D nodes Q_H"], Float[Array, " nodes"]]:
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


def _of_columns(kernel: RBF | Linear, latents: LatentGaussians) -> tuple[Array, Array]:
    return select(latents.mean, kernel.columns), select(latents.variance, kernel.columns)


def _at_columns(kernel: RBF | Linear, values: Values, inducing: Float[Array, "M_H Q_H"]) -> Float[Array, " Q_H"]:
    # Values of the columns that a kernel looks at, zero for all others.
    columns = np.arange(inducing.shape[1]) if kernel.columns is None else np.asarray(kernel.columns)
    return jnp.zeros(inducing.shape[1], inducing.dtype).at[columns].set(values)
