"""log|I + G| and quadratic forms in its inverse, for a matrix G and for A_H ⊗ A_X without ever forming it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lvmogp.algebra.linalg import triangular_inverse, triangular_inverses, whiten
from lvmogp.typing import Array, Float, Scalar


class _Evidence(NamedTuple):
    # Both numbers, with the derivatives of the log determinant in A_X and A_H and of the quadratic in A_X, A_H and B.
    log_det: Scalar
    quadratic: Scalar
    d_log_det: tuple[Float[Array, "M_X M_X"], Float[Array, "M_H M_H"]]
    d_quadratic: tuple[Float[Array, "M_X M_X"], Float[Array, "M_H M_H"], Float[Array, "M_X M_H"]]


def kronecker_shrinkage(
    input_eigenvalues: Float[Array, " M_X"], latent_eigenvalues: Float[Array, " M_H"]
) -> Float[Array, "M_X M_H"]:
    """W_ij = 1/(1 + λ^X_i λ^H_j): the eigenvalues of (I + A_H ⊗ A_X)⁻¹ as a matrix."""
    # Rounding can push the smallest eigenvalues of a semi-definite matrix below zero.
    return 1 / (1 + jnp.outer(jnp.maximum(input_eigenvalues, 0), jnp.maximum(latent_eigenvalues, 0)))


@jax.custom_jvp
def kronecker_evidence(
    input_gram: Float[Array, "M_X M_X"], latent_gram: Float[Array, "M_H M_H"], linear: Float[Array, "M_X M_H"]
) -> tuple[Scalar, Scalar]:
    """log|I + A_H ⊗ A_X| and vec(B)ᵀ(I + A_H ⊗ A_X)⁻¹vec(B).

    Two small eigendecompositions on a CPU. Accelerators are slow at those and quick at many factorisations at once:
    there one, of the smaller matrix, and a Cholesky factor for each of its eigenvalues.
    """
    return _evidence(input_gram, latent_gram, linear)[:2]


@kronecker_evidence.defjvp
def _kronecker_evidence_jvp(primals, tangents):
    found = _evidence(*primals)
    d_log_det = _inner(found.d_log_det, tangents[:2])
    return found[:2], (d_log_det, _inner(found.d_quadratic, tangents))


def _inner(derivatives: tuple[Array, ...], tangents: tuple[Array, ...]) -> Scalar:
    return jnp.sum(jnp.stack([jnp.sum(one * other) for one, other in zip(derivatives, tangents, strict=True)]))


def _evidence(input_gram: Array, latent_gram: Array, linear: Array) -> _Evidence:
    return jax.lax.platform_dependent(input_gram, latent_gram, linear, cpu=by_two_bases, default=by_factors)


def by_two_bases(
    input_gram: Float[Array, "M_X M_X"], latent_gram: Float[Array, "M_H M_H"], linear: Float[Array, "M_X M_H"]
) -> _Evidence:
    """By the eigenvectors of both matrices.

    The derivatives are closed forms without eigenvalue gaps: with A_X = U_X Λ_X U_Xᵀ, A_H = U_H Λ_H U_Hᵀ,
    W_ij = 1/(1 + λ^X_i λ^H_j) and R = W ∘ U_Xᵀ B U_H,

    - ∂log|·|/∂A_H = U_H diag_j(Σ_i λ^X_i W_ij) U_Hᵀ and likewise for A_X;
    - ∂quadratic/∂A_H = −U_H Rᵀ Λ_X R U_Hᵀ, ∂quadratic/∂A_X = −U_X R Λ_H Rᵀ U_Xᵀ;
    - ∂quadratic/∂B = 2 U_X R U_Hᵀ.
    """
    input_values, input_basis = jnp.linalg.eigh(input_gram)
    latent_values, latent_basis = jnp.linalg.eigh(latent_gram)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ linear @ latent_basis
    solution = rotated * shrinkage  # R
    by_latent, by_input = solution @ latent_basis.T, input_basis @ solution  # R U_Hᵀ, U_X R
    return _Evidence(
        log_det=-jnp.sum(jnp.log(shrinkage)),
        quadratic=jnp.sum(rotated * solution),
        d_log_det=(
            (input_basis * (shrinkage @ latent_values)) @ input_basis.T,
            (latent_basis * (input_values @ shrinkage)) @ latent_basis.T,
        ),
        d_quadratic=(
            -(by_input * latent_values) @ by_input.T,
            -(by_latent.T * input_values) @ by_latent,
            2 * input_basis @ by_latent,
        ),
    )


def by_factors(
    input_gram: Float[Array, "M_X M_X"], latent_gram: Float[Array, "M_H M_H"], linear: Float[Array, "M_X M_H"]
) -> _Evidence:
    """By the eigenvectors of the smaller matrix and factors of P_j = I + λ_j A for the larger one, A.

    For A = A_X, A_H = U_H Λ_H U_Hᵀ, r_j = B u_j and the solution R = [P_j⁻¹r_j] U_Hᵀ:

    - log|·| = Σ_j log|P_j|, quadratic = Σ_j r_jᵀP_j⁻¹r_j;
    - ∂log|·|/∂A_X = Σ_j λ_j P_j⁻¹, ∂log|·|/∂A_H = U_H diag_j(tr A_X P_j⁻¹) U_Hᵀ;
    - ∂quadratic/∂A_X = −R A_H Rᵀ, ∂quadratic/∂A_H = −Rᵀ A_X R, ∂quadratic/∂B = 2 R.
    """
    if input_gram.shape[0] < latent_gram.shape[0]:
        # |I + A_H ⊗ A_X| = |I + A_X ⊗ A_H|, and B becomes Bᵀ.
        other = by_factors(latent_gram, input_gram, linear.T)
        by_latent, by_input, by_linear = other.d_quadratic
        return other._replace(d_log_det=other.d_log_det[::-1], d_quadratic=(by_input, by_latent, by_linear.T))
    values, basis = jnp.linalg.eigh(latent_gram)
    values = jnp.maximum(values, 0)  # rounding can push the smallest below zero
    scaled = values[:, None, None] * input_gram
    factors = jnp.linalg.cholesky(jnp.eye(len(input_gram), dtype=input_gram.dtype) + scaled)
    whiteners = jax.vmap(triangular_inverse)(factors)
    inverses = jnp.swapaxes(whiteners, 1, 2) @ whiteners  # P_j⁻¹
    rotated = linear @ basis  # r_j as columns
    solved = jnp.einsum("jxy,yj->xj", inverses, rotated)
    solution = solved @ basis.T  # R
    traces = jnp.einsum("xy,jxy->j", input_gram, inverses)
    return _Evidence(
        log_det=2 * jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2))),
        quadratic=jnp.sum(rotated * solved),
        d_log_det=(jnp.tensordot(values, inverses, axes=1), (basis * traces) @ basis.T),
        d_quadratic=(-(solved * values) @ solved.T, -solution.T @ input_gram @ solution, 2 * solution),
    )


class _Border(NamedTuple):
    # E = (gᵀ ⊗ I)P⁻¹(g ⊗ I) and z = (gᵀ ⊗ I)P⁻¹vec(B) with P = I + A_H ⊗ A_X.
    matrix: Float[Array, "M_X M_X"]
    vector: Float[Array, " M_X"]


@jax.custom_vjp
def kronecker_border(
    input_gram: Float[Array, "M_X M_X"],
    latent_gram: Float[Array, "M_H M_H"],
    linear: Float[Array, "M_X M_H"],
    border: Float[Array, " M_H"],
) -> _Border:
    """Return E = (gᵀ ⊗ I)P⁻¹(g ⊗ I) and z = (gᵀ ⊗ I)P⁻¹vec(B), P = I + A_H ⊗ A_X and g being the border.

    In the eigenvectors of A_X and A_H, with their eigenvalues λ and μ, W_ij = 1/(1 + λ_i μ_j) and the rotated g, B:
    E = diag_i(Σ_j W_ij g_j²) and z = (W ∘ B)g. Backwards no gaps between eigenvalues are needed: with the cotangents E'
    and z', Q = W ∘ (z' gᵀ) and R = W ∘ B,

    - dA_X = −E' ∘ (W diag(g²μ) Wᵀ) − Q diag(μ) Rᵀ and dA_H = −(gᵀ ⊗ W)ᵀ diag(λ E'_ii)(gᵀ ⊗ W) − Qᵀ diag(λ) R;
    - dB = Q and dg = 2 g ∘ Wᵀdiag(E') + Rᵀz'.
    """
    return _border_forward(input_gram, latent_gram, linear, border)[0]


def _border_forward(
    input_gram: Array, latent_gram: Array, linear: Array, border: Array
) -> tuple[_Border, tuple[Array, ...]]:
    input_values, input_basis = jnp.linalg.eigh(input_gram)
    latent_values, latent_basis = jnp.linalg.eigh(latent_gram)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated, solution = border @ latent_basis, shrinkage * (input_basis.T @ linear @ latent_basis)
    found = _Border(
        (input_basis * (shrinkage @ rotated**2)) @ input_basis.T,
        input_basis @ (solution @ rotated),
    )
    return found, (input_values, input_basis, latent_values, latent_basis, shrinkage, rotated, solution)


def _border_backward(kept: tuple[Array, ...], cotangent: _Border) -> tuple[Array, Array, Array, Array]:
    input_values, input_basis, latent_values, latent_basis, shrinkage, rotated, solution = kept
    of_matrix, of_vector = input_basis.T @ cotangent.matrix @ input_basis, input_basis.T @ cotangent.vector
    mapped = shrinkage * (of_vector[:, None] * rotated)  # Q
    weighted = shrinkage * rotated
    diagonal = jnp.diagonal(of_matrix)
    d_input = -of_matrix * ((weighted * latent_values) @ weighted.T) - (mapped * latent_values) @ solution.T
    d_latent = -(weighted.T * (input_values * diagonal)) @ weighted - (mapped.T * input_values) @ solution
    d_border = 2 * rotated * (diagonal @ shrinkage) + of_vector @ solution
    return (
        input_basis @ d_input @ input_basis.T,
        latent_basis @ d_latent @ latent_basis.T,
        input_basis @ mapped @ latent_basis.T,
        latent_basis @ d_border,
    )


kronecker_border.defvjp(_border_forward, _border_backward)


def bordered_evidence(
    input_gram: Float[Array, "both both"], latent_gram: Float[Array, "M M"], linear: Float[Array, "M_X M"]
) -> tuple[Scalar, Scalar]:
    """log|I + G| and bᵀ(I + G)⁻¹b for a term of Kronecker form beside one whose latents are a constant.

    G = [[A_H ⊗ A_X, g ⊗ A_Xs], [gᵀ ⊗ A_sX, γ A_ss]] has the gram matrices of both in [[A_X, A_Xs], [A_sX, A_ss]] and
    [[A_H, g], [gᵀ, γ]], and the last column of B belongs to the constant. With the Schur complement of the first block,
    Σ = I + γA_ss − A_sX E A_Xs, and what the constant leaves of its part of b (equation 61).
    """
    size = len(linear)
    inputs, across, shared = input_gram[:size, :size], input_gram[:size, size:], input_gram[size:, size:]
    latents, to_constant, constant = latent_gram[:-1, :-1], latent_gram[:-1, -1], latent_gram[-1, -1]
    log_det, quadratic = kronecker_evidence(inputs, latents, linear[:, :-1])
    border = kronecker_border(inputs, latents, linear[:, :-1], to_constant)
    schur = constant * shared - across.T @ border.matrix @ across  # Σ − I
    more = dense_evidence((schur + schur.T) / 2, linear[:, -1] - across.T @ border.vector)
    return log_det + more[0], quadratic + more[1]


def _outer_gram(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    # LᵀL of L = [A 0; B C] by quarters, which leaves out the products with the zeros.
    half = lower.shape[0] // 2
    first, below, last = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    corner = below.T @ last
    return jnp.block([[first.T @ first + below.T @ below, corner], [corner.T, last.T @ last]])


@jax.custom_jvp
def dense_evidence(gram: Float[Array, "m m"], linear: Float[Array, " m"]) -> tuple[Scalar, Scalar]:
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
    factor = jnp.linalg.cholesky(gram + jnp.eye(gram.shape[0], dtype=gram.dtype))
    whitener = triangular_inverse(factor)
    whitened = whitener @ linear
    solution = whitened @ whitener  # α = P⁻¹b
    inverse = _outer_gram(whitener)  # P⁻¹ = L⁻ᵀL⁻¹
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    d_log_det = jnp.sum(inverse * d_gram)
    d_quadratic = 2 * solution @ d_linear - solution @ d_gram @ solution
    return (log_det, whitened @ whitened), (d_log_det, d_quadratic)


@jax.custom_vjp
def integrated_out(
    precision: Float[Array, "*D m m"], columns: Float[Array, "*D m f"]
) -> tuple[Float[Array, "*D f f"], Float[Array, "*D"]]:
    """CᵀP⁻¹C and log|P| of a precision P, or of a stack of them: what integrated weights take along (57).

    Backwards no factorisation is derived: with X = P⁻¹C and the cotangents D' and l',
    dC = X(D' + D'ᵀ) and dP = −X D' Xᵀ + l' P⁻¹.
    """
    return _integrated_forward(precision, columns)[0]


def _integrated_forward(precision: Array, columns: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    factor = jnp.linalg.cholesky(precision)
    inverse = triangular_inverses(factor)
    whitened = inverse @ columns
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    return (whitened.mT @ whitened, log_det), (inverse, whitened)


def _integrated_backward(kept: tuple[Array, Array], cotangents: tuple[Array, Array]) -> tuple[Array, Array]:
    inverse, whitened = kept
    d_product, d_log_det = cotangents
    # Half of dC before it is mapped by L⁻ᵀ, with D' made symmetric
    mapped = whitened @ ((d_product + d_product.mT) / 2)
    inner = d_log_det[..., None, None] * jnp.eye(inverse.shape[-1], dtype=inverse.dtype) - mapped @ whitened.mT
    return inverse.mT @ inner @ inverse, 2 * inverse.mT @ mapped


integrated_out.defvjp(_integrated_forward, _integrated_backward)


@jax.custom_vjp
def explained_squares(
    precision: Float[Array, "m m"],
    lower: Float[Array, "m m"],
    columns: Float[Array, "m n"],
    weights: Float[Array, " weights"],
    outputs: Float[Array, "n D"],
    outer: Float[Array, "n n"] | None,
) -> Scalar:
    """Σ_d w_d y_dᵀFᵀP⁻¹F y_d with the features F = L⁻¹C of columns C and outputs y_d (57).

    One weight of all outputs needs S = Σ_d y_d y_dᵀ alone, if that is given as ``outer``: half as much work. With
    P = LpLpᵀ and V = Lp⁻¹F, which is never large, no digits are lost. Backwards Q = V Σ_d w_d y_d y_dᵀ serves again:
    with the cotangent t', dF = 2t' Lp⁻ᵀQ, dP = −t' Lp⁻ᵀQVᵀLp⁻¹, dw_d = t'|V y_d|², dy_d = 2t' w_d VᵀV y_d or
    dS = t' w VᵀV, and as F = LpV, dC = L⁻ᵀdF, dL = −tril(L⁻ᵀ dF Fᵀ).
    """
    return _squares_forward(precision, lower, columns, weights, outputs, outer)[0]


def _squares_forward(
    precision: Array, lower: Array, columns: Array, weights: Array, outputs: Array, outer: Array | None
) -> tuple[Scalar, tuple[Array | None, ...]]:
    factor = jnp.linalg.cholesky(precision)
    whitener = triangular_inverse(factor)
    both = whitener @ triangular_inverse(lower)  # Lp⁻¹L⁻¹
    whitened = both @ columns  # V
    if outer is None:
        found = whitened @ outputs
        squares, product = jnp.sum(found**2, axis=0), (found * weights) @ outputs.T
    else:
        found = whitened @ outer
        squares, product = jnp.sum(found * whitened)[None], weights * found
    kept = (factor, whitener, both, whitened, squares, product, found, weights, outputs, outer)
    return squares @ weights, kept


def _squares_backward(
    kept: tuple[Any, ...], cotangent: Scalar
) -> tuple[Array, Array, Array, Array, Array, Array | None]:
    factor, whitener, both, whitened, squares, product, found, weights, outputs, outer = kept
    inner = cotangent * (product @ whitened.T)  # t' Q Vᵀ
    d_lower = -2 * jnp.tril(both.T @ (inner @ factor.T))
    d_precision, d_columns = -whitener.T @ inner @ whitener, (2 * cotangent * both.T) @ product
    # The compiler leaves these out where outputs are constants.
    if outer is None:
        d_outputs, d_outer = 2 * cotangent * whitened.T @ (found * weights), None
    else:
        d_outputs, d_outer = jnp.zeros_like(outputs), cotangent * weights * (whitened.T @ whitened)
    return d_precision, d_lower, d_columns, cotangent * squares, d_outputs, d_outer


explained_squares.defvjp(_squares_forward, _squares_backward)
