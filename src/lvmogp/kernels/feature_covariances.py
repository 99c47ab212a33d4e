"""Covariances of kernels between an uncertain point and the inducing points, Cov_d = Φ_d − Ψ_d Ψ_dᵀ.

Both moments are large where a latent is nearly known and their difference is small: whitening, which can cost as many
digits as a gram matrix has condition, would leave nothing of it. Each formula here is the difference itself
(equation 50). A sum of kernels has the covariances of all pairs of its terms.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lvmogp.algebra.linalg import symmetric_pairs
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, cross
from lvmogp.kernels.psi_statistics import LatentGaussians, of_columns, psi1, quadrature, terms_with_closed_form
from lvmogp.typing import Array, Float


def packed_covariance(
    kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians
) -> Float[Array, "D pairs"]:
    """Cov_d as packed upper triangles."""
    rows, columns = symmetric_pairs(inducing.shape[0])
    return feature_covariance(kernel, inducing, latents)[:, rows, columns]


def feature_covariance(
    kernel: Kernel, inducing: Float[Array, "M_H Q_H"], latents: LatentGaussians
) -> Float[Array, "D M_H M_H"]:
    """Cov_dmm' = ⟨k(h_d, z_m) k(h_d, z_m')⟩ − ⟨k(h_d, z_m)⟩⟨k(h_d, z_m')⟩."""
    terms = terms_with_closed_form(kernel)
    if terms is None:
        points, weights = quadrature(latents)

        def one_condition(nodes: Float[Array, "K Q_H"]) -> Float[Array, "M_H M_H"]:
            values = cross(kernel, nodes, inducing)
            centred = values - weights @ values
            return (centred.T * weights) @ centred

        return jax.vmap(one_condition)(points)
    total = jnp.zeros((latents.mean.shape[0], inducing.shape[0], inducing.shape[0]), inducing.dtype)
    for first in terms:
        for second in terms:
            if not isinstance(first, Constant) and not isinstance(second, Constant):
                total = total + _of_pair(first, second, inducing, latents)
    return total


def _of_pair(first: Kernel, second: Kernel, inducing: Array, latents: LatentGaussians) -> Float[Array, "D M_H M_H"]:
    # Cov(k₁(h_d, z_m), k₂(h_d, z_m'))
    if (type(first), type(second)) in _PAIRS:
        return _PAIRS[type(first), type(second)](first, second, inducing, latents)
    return jnp.swapaxes(_PAIRS[type(second), type(first)](second, first, inducing, latents), -1, -2)


def _linear_linear(first: Linear, second: Linear, inducing: Array, latents: LatentGaussians) -> Array:
    # (A z)ᵀ diag(s) (B z') with A, B the diagonal matrices of variances, zero outside the columns
    left, right = inducing * _spread(first, inducing), inducing * _spread(second, inducing)
    return jnp.einsum("mq,dq,nq->dmn", left, latents.variance, right)


def _rbf_linear(first: RBF, second: Linear, inducing: Array, latents: LatentGaussians) -> Array:
    # Ψ_dm (⟨h⟩ − μ)ᵀ B z' under the Gaussian tilted by the RBF: ⟨h_q⟩ − μ_q = p_q s_q (z_q − μ_q)/(1 + p_q s_q)
    pull = _precisions(first, inducing) * latents.variance
    pull = pull / (1 + pull)
    weighted = inducing * _spread(second, inducing)
    towards = jnp.einsum("dq,mq,nq->dmn", pull, inducing, weighted)
    away = (pull * latents.mean) @ weighted.T
    return psi1(first, inducing, latents)[:, :, None] * (towards - away[:, None])


def _rbf_rbf(first: RBF, second: RBF, inducing: Array, latents: LatentGaussians) -> Array:
    # Ψ_dm Ψ'_dm' (e^E − 1) with, summed over dimensions, u = μ − z, v = μ − z' and precisions p, r,
    # 2E = log(1 + p r s²/(1 + (p + r)s)) + s [(p u + r v)²/(1 + (p + r)s) − p²u²/(1 + p s) − r²v²/(1 + r s)]
    left, right = _precisions(first, inducing), _precisions(second, inducing)
    exponent = jnp.zeros((latents.mean.shape[0], inducing.shape[0], inducing.shape[0]), inducing.dtype)
    for q in range(inducing.shape[1]):
        p, r, s = left[q], right[q], latents.variance[:, q, None, None]
        away = latents.mean[:, q, None] - inducing[None, :, q]
        u, v = p * away[:, :, None], r * away[:, None, :]
        widened = 1 + (p + r) * s
        exponent += jnp.log1p(p * r * s**2 / widened) / 2
        exponent += s * ((u + v) ** 2 / widened - u**2 / (1 + p * s) - v**2 / (1 + r * s)) / 2
    means = psi1(first, inducing, latents)[:, :, None] * psi1(second, inducing, latents)[:, None, :]
    return means * jnp.expm1(exponent)


def _precisions(kernel: RBF, inducing: Float[Array, "M_H Q_H"]) -> Float[Array, " Q_H"]:
    return of_columns(kernel, 1 / jnp.square(kernel.lengthscale), inducing)


def _spread(kernel: Linear, inducing: Float[Array, "M_H Q_H"]) -> Float[Array, " Q_H"]:
    return of_columns(kernel, jnp.asarray(kernel.variance), inducing)


_PAIRS: dict[tuple[type[Kernel], type[Kernel]], Callable[..., Array]] = {
    (Linear, Linear): _linear_linear,
    (RBF, Linear): _rbf_linear,
    (RBF, RBF): _rbf_rbf,
}
