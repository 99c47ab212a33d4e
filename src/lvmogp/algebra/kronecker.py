"""log|I + A_H ⊗ A_X| and quadratic forms in its inverse, without ever forming it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lvmogp.algebra.linalg import triangular_inverse
from lvmogp.typing import Array, Float, Scalar


class _Evidence(NamedTuple):
    # The two numbers with their derivatives in A_X, A_H and B; the log determinant does not depend on B.
    log_det: Scalar
    quadratic: Scalar
    log_det_by_input: Float[Array, "M_X M_X"]
    log_det_by_latent: Float[Array, "M_H M_H"]
    quadratic_by_input: Float[Array, "M_X M_X"]
    quadratic_by_latent: Float[Array, "M_H M_H"]
    quadratic_by_linear: Float[Array, "M_X M_H"]


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
    """log|I + A_H ⊗ A_X| and vec(B)ᵀ(I + A_H ⊗ A_X)⁻¹vec(B).

    Two small eigendecompositions on a CPU. Accelerators are slow at those and quick at many factorisations at once:
    there one, of the smaller matrix, and a Cholesky factor for each of its eigenvalues.
    """
    found = _evidence(input_gram, latent_gram, linear)
    return found.log_det, found.quadratic


@kronecker_evidence.defjvp
def _kronecker_evidence_jvp(primals, tangents):
    d_input, d_latent, d_linear = tangents
    found = _evidence(*primals)
    d_log_det = jnp.sum(found.log_det_by_input * d_input) + jnp.sum(found.log_det_by_latent * d_latent)
    d_quadratic = (
        jnp.sum(found.quadratic_by_input * d_input)
        + jnp.sum(found.quadratic_by_latent * d_latent)
        + jnp.sum(found.quadratic_by_linear * d_linear)
    )
    return (found.log_det, found.quadratic), (d_log_det, d_quadratic)


def _evidence(input_gram: Array, latent_gram: Array, linear: Array) -> _Evidence:
    return jax.lax.platform_dependent(input_gram, latent_gram, linear, cpu=by_two_bases, default=by_factors)


def by_two_bases(
    input_gram: Float[Array, "M_X M_X"], latent_gram: Float[Array, "M_H M_H"], linear: Float[Array, "M_X M_H"]
) -> _Evidence:
    """By the eigenvectors of both matrices.

    The derivatives are closed forms without eigenvalue gaps: with A_X = U_X Λ_X U_Xᵀ, A_H = U_H Λ_H U_Hᵀ,
    C = U_Xᵀ B U_H, W_ij = 1/(1 + λ^X_i λ^H_j) and R = C ∘ W,

    - ∂log|·|/∂A_H = U_H diag_j(Σ_i λ^X_i W_ij) U_Hᵀ and likewise for A_X;
    - ∂quadratic/∂A_H = −U_H Rᵀ Λ_X R U_Hᵀ, ∂quadratic/∂A_X = −U_X R Λ_H Rᵀ U_Xᵀ;
    - ∂quadratic/∂B = 2 U_X R U_Hᵀ.
    """
    input_values, input_basis = jnp.linalg.eigh(input_gram)
    latent_values, latent_basis = jnp.linalg.eigh(latent_gram)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ linear @ latent_basis
    solution = rotated * shrinkage  # R
    # R U_Hᵀ and U_X R carry the solution back to the original coordinates, one side at a time.
    by_latent = solution @ latent_basis.T
    by_input = input_basis @ solution
    return _Evidence(
        log_det=-jnp.sum(jnp.log(shrinkage)),
        quadratic=jnp.sum(rotated * solution),
        # U_X diag(Σ_j λ^H_j W_ij) U_Xᵀ and U_H diag(Σ_i λ^X_i W_ij) U_Hᵀ
        log_det_by_input=(input_basis * (shrinkage @ latent_values)) @ input_basis.T,
        log_det_by_latent=(latent_basis * (input_values @ shrinkage)) @ latent_basis.T,
        quadratic_by_input=-(by_input * latent_values) @ by_input.T,
        quadratic_by_latent=-(by_latent.T * input_values) @ by_latent,
        quadratic_by_linear=2 * input_basis @ by_latent,
    )


def by_factors(
    input_gram: Float[Array, "M_X M_X"], latent_gram: Float[Array, "M_H M_H"], linear: Float[Array, "M_X M_H"]
) -> _Evidence:
    """By the eigenvectors of the smaller matrix and factors of P_j = I + λ_j A for the larger one, A.

    For A = A_X, A_H = U Λ Uᵀ, c_j = B u_j and the solution S = [P_j⁻¹c_j] Uᵀ:

    - log|·| = Σ_j log|P_j|, quadratic = Σ_j c_jᵀP_j⁻¹c_j;
    - ∂log|·|/∂A_X = Σ_j λ_j P_j⁻¹, ∂log|·|/∂A_H = U diag_j(tr A_X P_j⁻¹) Uᵀ;
    - ∂quadratic/∂A_X = −S A_H Sᵀ, ∂quadratic/∂A_H = −Sᵀ A_X S, ∂quadratic/∂B = 2 S.
    """
    if input_gram.shape[0] < latent_gram.shape[0]:
        # |I + A_H ⊗ A_X| = |I + A_X ⊗ A_H|, and B becomes Bᵀ.
        other = by_factors(latent_gram, input_gram, linear.T)
        return _Evidence(
            other.log_det,
            other.quadratic,
            other.log_det_by_latent,
            other.log_det_by_input,
            other.quadratic_by_latent,
            other.quadratic_by_input,
            other.quadratic_by_linear.T,
        )
    values, basis = jnp.linalg.eigh(latent_gram)
    values = jnp.maximum(values, 0)  # rounding can push the smallest below zero
    identity = jnp.eye(input_gram.shape[0], dtype=input_gram.dtype)
    factors = jnp.linalg.cholesky(identity + values[:, None, None] * input_gram)
    whiteners = jax.vmap(triangular_inverse)(factors)
    inverses = jnp.swapaxes(whiteners, 1, 2) @ whiteners  # P_j⁻¹
    rotated = linear @ basis  # c_j as columns
    solved = jnp.einsum("jxy,yj->xj", inverses, rotated)
    solution = solved @ basis.T  # S
    return _Evidence(
        log_det=2 * jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2))),
        quadratic=jnp.sum(rotated * solved),
        log_det_by_input=jnp.tensordot(values, inverses, axes=1),
        log_det_by_latent=(basis * jnp.einsum("xy,jxy->j", input_gram, inverses)) @ basis.T,
        quadratic_by_input=-(solved * values) @ solved.T,
        quadratic_by_latent=-solution.T @ input_gram @ solution,
        quadratic_by_linear=2 * solution,
    )
