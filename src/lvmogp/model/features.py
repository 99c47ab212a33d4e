"""Inducing points with their features, of one or several kernels, and what uncertain latents make of those of latents.

Features of several terms are stacked (docs/mathematics.md, equation 56): a(x) of all input kernels side by side, c(h)
of all latent kernels, followed by a one for the curve that all conditions share.
"""

import itertools

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import block_diag

from lvmogp.algebra import linalg
from lvmogp.ground.precision import in_precision
from lvmogp.kernels import psi_statistics
from lvmogp.kernels.covariances import Kernel, cross, gram
from lvmogp.kernels.psi_statistics import LatentGaussians, psi0, psi1, psi2, weighted_covariance
from lvmogp.model.parameters import Parameters
from lvmogp.typing import Array, Float


class Basis(eqx.Module):
    """Inducing points of some kernels with the Cholesky factor of each gram matrix, K = L Lᵀ; features are stacked.

    With ``constant`` there is one feature more, which is one everywhere: that of a curve which all conditions share.
    """

    kernels: tuple[Kernel, ...]
    points: Float[Array, "m Q"]
    factors: Float[Array, "kernels m m"]
    constant: bool = eqx.field(static=True, default=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many features each kernel has, and the constant."""
        return (self.points.shape[0],) * len(self.kernels) + (1,) * self.constant

    def features(self, points: Float[Array, "n Q"]) -> Float[Array, "n F"]:
        """Rows (L⁻¹ k_u(x))ᵀ: a(x) of inputs, c(h) of given latents."""
        return self.whitened([cross(kernel, self.points, points).T for kernel in self.kernels])

    def whitened(self, covariances: list[Float[Array, "n m"]]) -> Float[Array, "n F"]:
        """Rows (L⁻¹ k)ᵀ of covariances with the inducing points, under each kernel."""
        pairs = zip(self.factors, covariances, strict=True)
        parts = [linalg.whiten(factor, covariance.T).T for factor, covariance in pairs]
        n_points = covariances[0].shape[0]
        return stacked([*parts, *[jnp.ones((n_points, 1), self.points.dtype)] * self.constant])

    def whitener(self) -> Float[Array, "F F"]:
        """L⁻¹ of all features at once."""
        inverses = [linalg.triangular_inverse(factor) for factor in self.factors]
        return block_diag(*inverses, *[jnp.ones((1, 1), self.points.dtype)] * self.constant)


def stacked(parts: list[Float[Array, "*n _"]]) -> Float[Array, "*n F"]:
    """Features of several kernels side by side."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def parts_of(sizes: tuple[int, ...]) -> list[slice]:
    """Where the features of each kernel are among all."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [slice(first, last) for first, last in itertools.pairwise(ends)]


class LatentMoments(eqx.Module):
    """What a distribution over the latents of each condition means for the model.

    ``prior_variance`` ψ_d = ⟨k_H(h_d, h_d)⟩ of each term, ``mean`` ⟨c(h_d)⟩ = L_H⁻¹ Ψ_dᵀ and
    ``second`` T_d = ⟨c(h_d) c(h_d)ᵀ⟩ = L_H⁻¹ Φ_d L_H⁻ᵀ, with c(h) = L_H⁻¹ k_u(h).
    """

    prior_variance: Float[Array, "D terms"]
    mean: Float[Array, "D M_C"]
    second: Float[Array, "D M_C M_C"]


def basis(kernels: tuple[Kernel, ...], points: Float[Array, "m Q"], *, constant: bool = False) -> Basis:
    """Factorise the gram matrices of the inducing points."""
    factors = [linalg.cholesky(gram(kernel, points)) for kernel in kernels]
    shape = (0, points.shape[0], points.shape[0])
    return Basis(kernels, points, jnp.stack(factors) if factors else jnp.zeros(shape, points.dtype), constant)


def bases(parameters: Parameters) -> tuple[Basis, Basis]:
    """Factorise the gram matrices of the inducing inputs and of the inducing latents."""
    inputs = basis(parameters.kernels.of_inputs, parameters.inducing_inputs)
    latents = basis(parameters.kernels.of_latents, parameters.inducing_latents, constant=parameters.kernels.has_shared)
    return inputs, latents


def whitened_mean(latent_basis: Basis, latents: LatentGaussians) -> Float[Array, "D M_C"]:
    """Rows ⟨c(h_d)⟩ᵀ = Ψ_d L_H⁻ᵀ."""
    if not latent_basis.kernels:
        return jnp.ones((latents.mean.shape[0], 1), latents.mean.dtype)
    return latent_basis.whitened([psi1(kernel, latent_basis.points, latents) for kernel in latent_basis.kernels])


def prior_variances(latent_basis: Basis, latents: LatentGaussians) -> Float[Array, "D terms"]:
    """ψ_d of each term; that of the curve which all conditions share is one."""
    parts = [psi0(kernel, latents) for kernel in latent_basis.kernels]
    ones = [jnp.ones(latents.mean.shape[0], latents.mean.dtype)] * latent_basis.constant
    return jnp.stack([*parts, *ones], axis=1)


def _feature_covariances(latent_basis: Basis, latents: LatentGaussians) -> Float[Array, "D M_C M_C"]:
    # Cov_d between the features of all kernels, not yet whitened; the constant has none.
    kernels, points = latent_basis.kernels, latent_basis.points
    blocks = {
        (i, j): psi_statistics.feature_covariance(first, points, latents, None if i == j else second)
        for (i, first), (j, second) in itertools.combinations_with_replacement(enumerate(kernels), 2)
    }
    return _symmetric(blocks, len(kernels), latent_basis.constant, len(latents.mean), points)


def _symmetric(blocks: dict, n_kernels: int, constant: bool, n_conditions: int, like: Array) -> Array:
    # Matrices of all conditions from their upper blocks; the rows and columns of the constant are zero.
    if n_kernels == 0:
        return jnp.zeros((n_conditions, int(constant), int(constant)), like.dtype)
    rows = [
        jnp.concatenate([blocks[i, j] if i <= j else blocks[j, i].mT for j in range(n_kernels)], axis=2)
        for i in range(n_kernels)
    ]
    whole = jnp.concatenate(rows, axis=1) if n_kernels > 1 else rows[0]
    return jnp.pad(whole, ((0, 0), (0, 1), (0, 1))) if constant else whole


def latent_moments(latent_basis: Basis, latents: LatentGaussians) -> LatentMoments:
    """Moments of the whitened latent features under independent Gaussians, in double precision.

    Whitening can cost seven digits where inducing latents crowd, which is all that single precision has, so that only
    the covariance is whitened on both sides: T_d = ⟨c⟩⟨c⟩ᵀ + L_H⁻¹ Cov_d L_H⁻ᵀ (equation 50).
    """
    latent_basis, latents = in_precision((latent_basis, latents), "float64")
    mean, whitener = whitened_mean(latent_basis, latents), latent_basis.whitener()
    spread = whitener @ _feature_covariances(latent_basis, latents) @ whitener.T
    return LatentMoments(
        prior_variance=prior_variances(latent_basis, latents),
        mean=mean,
        second=mean[:, :, None] * mean[:, None, :] + spread,
    )


def whitened_covariance(
    latent_basis: Basis, latents: LatentGaussians, weights: Float[Array, " D"]
) -> Float[Array, "M_C M_C"]:
    """L_H⁻¹ (Σ_d w_d Cov_d) L_H⁻ᵀ; the constant does not vary."""
    if not latent_basis.kernels:
        return jnp.zeros((1, 1), latents.mean.dtype)
    kernels, points = latent_basis.kernels, latent_basis.points
    blocks = {
        (i, j): weighted_covariance(first, points, latents, weights, None if i == j else second)[None]
        for (i, first), (j, second) in itertools.combinations_with_replacement(enumerate(kernels), 2)
    }
    whitener = latent_basis.whitener()
    return whitener @ _symmetric(blocks, len(kernels), latent_basis.constant, 1, points)[0] @ whitener.T


def second_moments(latent_basis: Basis, latents: LatentGaussians) -> Float[Array, "D M_C M_C"]:
    """Φ_d between the features of all kernels; those with the constant are Ψ_d."""
    if latent_basis.sizes == (len(latent_basis.points),) and latent_basis.kernels:
        return psi2(latent_basis.kernels[0], latent_basis.points, latents)
    parts = [psi1(kernel, latent_basis.points, latents) for kernel in latent_basis.kernels]
    means = stacked([*parts, *[jnp.ones((len(latents.mean), 1), latents.mean.dtype)] * latent_basis.constant])
    return means[:, :, None] * means[:, None, :] + _feature_covariances(latent_basis, latents)
