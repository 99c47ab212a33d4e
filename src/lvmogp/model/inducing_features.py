"""Inputs and conditions as features in the whitened inducing basis, u = (L_H ⊗ L_X) v."""

from functools import partial

import equinox as eqx

from lvmogp.algebra.linalg import cholesky, whiten, whiten_both_sides
from lvmogp.ground.precision import in_precision
from lvmogp.kernels.covariances import Kernel, cross, gram
from lvmogp.kernels.feature_covariances import feature_covariance, packed_covariance
from lvmogp.kernels.psi_statistics import LatentGaussians, psi0, psi1, row_sums, weighted_sum
from lvmogp.typing import Array, Float


class Basis(eqx.Module):
    """Inducing points of one kernel with the Cholesky factor of their gram matrix, K = L Lᵀ."""

    kernel: Kernel
    points: Float[Array, "M Q"]
    factor: Float[Array, "M M"]

    def features(self, points: Float[Array, "n Q"]) -> Float[Array, "n M"]:
        """Rows (L⁻¹ k_u(x))ᵀ: the columns of V_X for inputs, of c(h) for given latents."""
        return whiten(self.factor, cross(self.kernel, self.points, points)).T


class LatentMoments(eqx.Module):
    """What a distribution over the latents of each condition means for the model.

    ``prior_variance`` ψ_d = ⟨k_H(h_d, h_d)⟩, ``mean`` ⟨c(h_d)⟩ = L_H⁻¹ Ψ_dᵀ (the columns of V_H) and
    ``second`` T_d = ⟨c(h_d) c(h_d)ᵀ⟩ = L_H⁻¹ Φ_d L_H⁻ᵀ, with c(h) = L_H⁻¹ k_u(h).
    """

    prior_variance: Float[Array, " D"]
    mean: Float[Array, "D M_H"]
    second: Float[Array, "D M_H M_H"]


def basis(kernel: Kernel, points: Float[Array, "M Q"]) -> Basis:
    """Factorise the gram matrix of the inducing points."""
    return Basis(kernel, points, cholesky(gram(kernel, points)))


def whitened_mean(latent_basis: Basis, latents: LatentGaussians) -> Float[Array, "D M_H"]:
    """Rows of V_Hᵀ: ⟨c(h_d)⟩ = L_H⁻¹ Ψ_dᵀ."""
    return whiten(latent_basis.factor, psi1(latent_basis.kernel, latent_basis.points, latents).T).T


def whitened_covariance_sum(
    latent_basis: Basis, latents: LatentGaussians, weights: Float[Array, " D"]
) -> Float[Array, "M_H M_H"]:
    """Σ_d w_d L_H⁻¹ Cov_d L_H⁻ᵀ, the part of Σ_d w_d T_d that comes from not knowing h_d (equation 50)."""
    summed = row_sums(partial(packed_covariance, latent_basis.kernel, latent_basis.points))
    total = weighted_sum(summed, latents, weights, latent_basis.points.shape[0])
    return whiten_both_sides(latent_basis.factor, total)


def latent_moments(latent_basis: Basis, latents: LatentGaussians) -> LatentMoments:
    """Moments of the whitened latent features under independent Gaussians, in double precision.

    Whitening can cost seven digits where inducing latents crowd, which is all that single precision has, so that only
    the covariance is whitened on both sides: T_d = ⟨c⟩⟨c⟩ᵀ + L_H⁻¹ Cov_d L_H⁻ᵀ (equation 50).
    """
    latent_basis, latents = in_precision((latent_basis, latents), "float64")
    mean = whitened_mean(latent_basis, latents)
    covariance = feature_covariance(latent_basis.kernel, latent_basis.points, latents)
    return LatentMoments(
        prior_variance=psi0(latent_basis.kernel, latents),
        mean=mean,
        second=mean[:, :, None] * mean[:, None, :] + whiten_both_sides(latent_basis.factor, covariance),
    )
