"""The explicit bound of a minibatch: an unbiased estimate of the bound of all observations.

q(v) = N(vec M, (I + A_H ⊗ A_X)⁻¹) has the form that is optimal on a complete grid, whatever the data. With
A_X = U_X Λ_X U_Xᵀ, A_H = U_H Λ_H U_Hᵀ and W_ij = 1/(1 + λ^X_i λ^H_j), an observation y at x of condition d has the
expected log-likelihood (docs/mathematics.md, equation 26)

−½ log 2πσ_d² − ½/σ_d² [y² − 2 y aᵀM⟨c_d⟩ + tr(T_d R) + ψ_d k_X(x, x)],
R = MᵀaaᵀM + U_H diag((U_Xᵀa)²ᵀW) U_Hᵀ − aᵀa I.

Since tr(T_d R) = tr(Φ_d L_H⁻ᵀRL_H⁻¹), only R is whitened, once for each block of observations of one condition.

Minibatches may be in single precision. Then so is what has the size of observations × M_X, where rounding is harmless;
what meets K_H⁻¹, which magnifies it beyond measure, stays in double precision.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.algebra.linalg import inverse_with_quick_derivative, packed_counts, quadratic_forms, unpack_symmetric
from lvmogp.inference.minibatch.minibatches import Minibatch
from lvmogp.kernels.covariances import cross, diagonal
from lvmogp.kernels.psi_statistics import packed_psi2, psi0, psi1
from lvmogp.model.expected_likelihood import basis
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import KroneckerCovariance
from lvmogp.typing import Array, Float, Scalar


class Grams(eqx.Module):
    """Σ tr(T_d) aaᵀ/σ_d² and Σ aᵀa T_d/σ_d², the partial traces of G = Σ T_d ⊗ aaᵀ/σ_d²."""

    inputs: Float[Array, "M_X M_X"]
    latents: Float[Array, "M_H M_H"]


def expected_log_likelihood(
    parameters: Parameters,
    counts: Float[Array, " B"],
    mean: Float[Array, "M_X M_H"],
    covariance: KroneckerCovariance,
    batch: Minibatch,
) -> tuple[Scalar, Grams]:
    """Estimate ⟨log p(Y|F)⟩ − KL(q(H) ‖ p(H)) with q(v) = N(vec M, S), and the grams that S follows.

    The conditions of the parameters are those of the blocks, which have N_d observations in all (``counts``).
    """
    kernel, points, latents = parameters.latent_kernel, parameters.inducing_latents, parameters.latents
    n_latents = points.shape[0]
    inverse_latents = inverse_with_quick_derivative(basis(kernel, points).factor)  # L_H⁻¹
    # L_H⁻ᵀ u_j u_jᵀ L_H⁻¹ and K_H⁻¹, packed so that a product with a packed Φ_d is the trace of theirs.
    pair_rows, pair_columns = np.triu_indices(n_latents)
    pair_counts = packed_counts(n_latents).astype(inverse_latents.dtype)
    rotated = inverse_latents.T @ covariance.latent_basis  # L_H⁻ᵀU_H
    basis_pairs = rotated[pair_rows] * rotated[pair_columns] * pair_counts[:, None]
    inverse_gram = jnp.sum(inverse_latents[:, pair_rows] * inverse_latents[:, pair_columns], axis=0) * pair_counts
    features, means, spreads, squares, priors = _at_inputs(parameters, mean, covariance, batch)

    def in_blocks(values: Float[Array, "n ..."]) -> Float[Array, "B b ..."]:
        return jnp.take(values, batch.places, axis=0, mode="fill", fill_value=0)

    precisions = 1 / parameters.noise_per_condition  # 1/σ_d²
    outputs, all_weights = batch.outputs.astype(precisions.dtype), batch.weights.astype(precisions.dtype)
    weights = in_blocks(all_weights)
    stands_for = jnp.sum(weights, axis=1)

    # Sums over the observations of each block, of what R is made of.
    projected = in_blocks(means @ inverse_latents)  # (L_H⁻ᵀMᵀa)ᵀ
    numbers = jnp.concatenate([spreads, jnp.stack([outputs**2, squares, priors], axis=1)], axis=1)
    sums = jnp.sum(in_blocks(numbers) * weights[..., None], axis=1)
    spread, (outputs_squared, features_squared, prior) = sums[:, :n_latents], sums[:, n_latents:].T

    psi_two = packed_psi2(kernel, points, latents)
    traces = psi_two @ inverse_gram  # tr T_d = tr(Φ_d K_H⁻¹)
    # Σ tr(T_d R): of MᵀaaᵀM, of U_H diag((U_Xᵀa)²ᵀW) U_Hᵀ and of aᵀa I
    quadratic = (
        quadratic_forms(psi_two, projected, weights)
        + jnp.sum((psi_two @ basis_pairs) * spread, axis=1)
        - features_squared * traces
    )
    pulled = jnp.sum(projected * (weights * in_blocks(outputs))[..., None], axis=1)
    linear = jnp.sum(pulled * psi1(kernel, points, latents), axis=1)  # Σ y aᵀM⟨c_d⟩, ⟨c_d⟩ = L_H⁻¹Ψ_dᵀ
    misfit = (outputs_squared - 2 * linear + quadratic + psi0(kernel, latents) * prior) @ precisions
    # Each observation carries its share 1/N_d of the divergence of its condition's latents.
    divergence = jnp.sum(latents.mean**2 + latents.variance - jnp.log(latents.variance) - 1, axis=1)
    per_observation = LOG_2PI - jnp.log(precisions) + divergence / counts
    value = -(stands_for @ per_observation + misfit) / 2

    by_place = jnp.zeros_like(all_weights).at[batch.places].set((traces * precisions)[:, None], mode="drop")
    weighted = features * (all_weights * by_place)[:, None].astype(features.dtype)
    input_gram = (weighted.T @ features).astype(precisions.dtype)
    packed = (features_squared * precisions) @ psi_two
    latent_gram = inverse_latents @ unpack_symmetric(packed) @ inverse_latents.T
    return value, Grams(input_gram, latent_gram)


def _at_inputs(
    parameters: Parameters, mean: Array, covariance: KroneckerCovariance, batch: Minibatch
) -> tuple[Array, ...]:
    # What the inputs of the observations come to: aᵀ in the precision of the batch; aᵀM, (U_Xᵀa)²ᵀW, aᵀa and k(x, x).
    kernel, points = parameters.input_kernel, parameters.inducing_inputs
    inverse = inverse_with_quick_derivative(basis(kernel, points).factor)  # L_X⁻¹
    kernel, points, whitening, mean, covariance = jax.tree.map(
        lambda leaf: leaf.astype(batch.outputs.dtype), (kernel, points, inverse, mean, covariance)
    )
    features = cross(kernel, batch.inputs, points) @ whitening.T
    spreads = jnp.square(features @ covariance.input_basis) @ covariance.variances
    found = (features @ mean, spreads, jnp.sum(features**2, axis=1), diagonal(kernel, batch.inputs))
    return features, *(each.astype(inverse.dtype) for each in found)
