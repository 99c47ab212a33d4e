"""The variational posterior, and the curves of conditions whose latents are Gaussian under it.

For any distribution over the latents of a condition, the curve f(·, h) has mean aᵀw and covariance
ψ k_X(x, x') + aᵀΓa', with a = L_X⁻¹k_u(x) and (docs/mathematics.md, equations 15 to 17)

- w = M⟨c⟩,
- Γ = M(T − ⟨c⟩⟨c⟩ᵀ)Mᵀ + Σ_jk T_jk S_jk − tr(T) I.

The first term of Γ carries the uncertainty of the latents, the second that of the inducing variables, whose covariance
S has the M_X × M_X blocks S_jk. Of several terms all of this is by blocks, and the features of a condition's own curve
follow those of the terms (equations 56 and 60).
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from lvmogp.algebra.evidence import kronecker_shrinkage
from lvmogp.algebra.linalg import packed_counts, vec
from lvmogp.ground.precision import in_precision
from lvmogp.ground.rules import Along
from lvmogp.kernels.covariances import stacked_diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.expected_likelihood import GridQuadratic, OwnCurves, Quadratic, quadratic
from lvmogp.model.features import Basis, bases, latent_moments, parts_of, stacked
from lvmogp.model.layouts import Data
from lvmogp.model.parameters import (
    KroneckerInducing,
    Parameters,
    PooledDeviations,
    of_conditions,
    pooled_deviations,
)
from lvmogp.typing import Array, Float, HostInt, Int

_BLOCKS_AT_ONCE = 32
# Pairs of features of some inputs: a megabyte of them in double precision.
_PAIRS_AT_ONCE = 2**17


def by_pairs(of_pair: Callable[[slice, slice], Array], sizes: tuple[int, ...]) -> Float[Array, "*D M_F M_F"]:
    """Put matrices together from what belongs to each pair of terms, whose latent features are in two slices."""
    own = parts_of(sizes)
    rows = [[of_pair(first, other) for other in own] for first in own]
    return rows[0][0] if len(own) == 1 else jnp.block(rows)


class KroneckerCovariance(eqx.Module):
    """S = (U_H ⊗ U_X) diag(vec W) (U_H ⊗ U_X)ᵀ with orthogonal U_X and U_H; its M_X × M_X blocks are S_jk."""

    input_basis: Float[Array, "M_X M_X"]
    latent_basis: Float[Array, "M_C M_C"]
    variances: Float[Array, "M_X M_C"]

    @property
    def blocks(self) -> Float[Array, "M_C M_C M_X M_X"]:
        """Return the blocks S_jk = U_X diag(Σ_l W_l U_jl U_kl) U_Xᵀ."""
        diagonals = jnp.einsum("jl,kl,il->jki", self.latent_basis, self.latent_basis, self.variances)
        return jnp.einsum("xi,jki,yi->jkxy", self.input_basis, diagonals, self.input_basis)

    def contract(self, second: Float[Array, "D M_C M_C"], sizes: tuple[int, ...]) -> Float[Array, "D M_F M_F"]:
        """Return Σ_jk T_jk S_jk = U_X diag(W diag(U_Hᵀ T U_H)) U_Xᵀ for a stack of T, between each pair of terms."""

        def of_pair(first: slice, other: slice) -> Float[Array, "D M_X M_X"]:
            left, right = self.latent_basis[first], self.latent_basis[other]
            rotated = jnp.einsum("hj,dhk,kj->dj", left, second[:, first, other], right)
            return ((rotated @ self.variances.T)[:, None, :] * self.input_basis) @ self.input_basis.T

        return by_pairs(of_pair, sizes)

    def block_traces(self) -> Float[Array, "M_C M_C"]:
        """Return tr S_jk for all j, k: U_H diag(Σ_i W_il) U_Hᵀ."""
        return (self.latent_basis * jnp.sum(self.variances, axis=0)) @ self.latent_basis.T

    def apply(self, matrix: Float[Array, "M_X M_C"]) -> Float[Array, "M_X M_C"]:
        """Return S vec(B) as a matrix: U_X (W ∘ U_Xᵀ B U_H) U_Hᵀ."""
        rotated = self.input_basis.T @ matrix @ self.latent_basis
        return self.input_basis @ (rotated * self.variances) @ self.latent_basis.T

    def precision(self) -> Float[Array, "MM MM"]:
        """Return S⁻¹ = (U_H ⊗ U_X) diag(1/vec W) (U_H ⊗ U_X)ᵀ as one matrix."""
        rotation = jnp.kron(self.latent_basis, self.input_basis)
        return (rotation / vec(self.variances)) @ rotation.T


class DenseCovariance(eqx.Module):
    """S as one matrix."""

    matrix: Float[Array, "MM MM"]
    n_inputs: Annotated[int, Along("M_X")] = eqx.field(static=True)

    @property
    def blocks(self) -> Float[Array, "M_C M_C M_X M_X"]:
        """Return the blocks S_jk."""
        n_latents = self.matrix.shape[0] // self.n_inputs
        return self.matrix.reshape(n_latents, self.n_inputs, n_latents, self.n_inputs).transpose(0, 2, 1, 3)

    def contract(self, second: Float[Array, "D M_C M_C"], sizes: tuple[int, ...]) -> Float[Array, "D M_F M_F"]:
        """Return Σ_jk T_jk S_jk between each pair of terms."""
        blocks = self.blocks
        return by_pairs(
            lambda first, other: jnp.einsum("djk,jkxy->dxy", second[:, first, other], blocks[first, other]), sizes
        )

    def block_traces(self) -> Float[Array, "M_C M_C"]:
        """Return tr S_jk."""
        return jnp.trace(self.blocks, axis1=2, axis2=3)

    def precision(self) -> Float[Array, "MM MM"]:
        """Return S⁻¹ by a Cholesky factor."""
        factor = jnp.linalg.cholesky(self.matrix), True
        return cho_solve(factor, jnp.eye(len(self.matrix), dtype=self.matrix.dtype))


Covariance = KroneckerCovariance | DenseCovariance


class Posterior(eqx.Module):
    """Kernels and inducing points with their factors, q(H), noise, and q(v) = N(vec M, S).

    The columns of M belong to the latent features of all terms, one after the other; so do the blocks of S.
    ``pooled`` are what the data leave open of the noise, where it is pooled.
    """

    parameters: Parameters
    input_factors: Float[Array, "kernels M_X M_X"]
    latent_factors: Float[Array, "latent_kernels M_H M_H"]
    mean: Float[Array, "M_X M_C"]
    covariance: Covariance
    pooled: PooledDeviations | None = None

    @property
    def input_basis(self) -> Basis:
        """Return the inducing inputs with their factors."""
        return Basis(self.parameters.kernels.of_inputs, self.parameters.inducing_inputs, self.input_factors)

    @property
    def latent_basis(self) -> Basis:
        """Return the inducing latents with their factors."""
        kernels = self.parameters.kernels
        return Basis(kernels.of_latents, self.parameters.inducing_latents, self.latent_factors, kernels.has_shared)


def reordered(model: Posterior, numbers: HostInt) -> Posterior:
    """Return the model with its conditions in another order: the first is the one that was ``numbers[0]``."""
    deviations = model.pooled
    if deviations is not None:
        placed = jnp.asarray(np.asarray(deviations.of_noise)[numbers])
        deviations = dataclasses.replace(deviations, of_noise=placed)
    return dataclasses.replace(model, parameters=of_conditions(model.parameters, numbers), pooled=deviations)


def posterior(parameters: Parameters, data: Data) -> Posterior:
    """Factorise the model: the optimal q(v), or the one stored in the parameters."""
    inducing, expected = parameters.inducing, quadratic(parameters, data, careful=True)
    if inducing is None:
        mean, covariance = optimal_inducing(expected)
    elif isinstance(inducing, KroneckerInducing):
        input_values, input_basis = jnp.linalg.eigh(inducing.input_factor @ inducing.input_factor.T)
        latent_values, latent_basis = jnp.linalg.eigh(inducing.latent_factor @ inducing.latent_factor.T)
        variances = jnp.outer(input_values, latent_values)
        mean, covariance = inducing.mean, KroneckerCovariance(input_basis, latent_basis, variances)
    else:
        mean = inducing.mean
        covariance = DenseCovariance(inducing.factor @ inducing.factor.T, mean.shape[0])
    inputs, latents = bases(parameters)
    deviations = pooled_deviations(parameters, expected.information)
    return Posterior(parameters, inputs.factors, latents.factors, mean, covariance, deviations)


def optimal_inducing(expected: Quadratic) -> tuple[Float[Array, "M_X M_C"], Covariance]:
    """Return mean (I + G)⁻¹b and covariance (I + G)⁻¹ of the optimal q(v)."""
    if isinstance(expected, GridQuadratic) and len(expected.sizes) == 1:
        input_values, input_basis = jnp.linalg.eigh(expected.input_gram)
        latent_values, latent_basis = jnp.linalg.eigh(expected.latent_gram)
        variances = kronecker_shrinkage(input_values, latent_values)
        covariance = KroneckerCovariance(input_basis, latent_basis, variances)
        return covariance.apply(expected.linear), covariance
    gram = expected.dense_gram()
    return _from_precision(gram + jnp.eye(len(gram), dtype=gram.dtype), expected.linear)


def _from_precision(
    precision: Float[Array, "MM MM"], linear: Float[Array, "M_X M_C"]
) -> tuple[Float[Array, "M_X M_C"], DenseCovariance]:
    factor = jnp.linalg.cholesky(precision), True
    mean = cho_solve(factor, vec(linear)).reshape(linear.T.shape).T
    return mean, DenseCovariance(cho_solve(factor, jnp.eye(len(precision), dtype=precision.dtype)), linear.shape[0])


def updated(model: Posterior, new: Quadratic) -> Posterior:
    """Return q(v) after the expected log-likelihood of new data: precisions and linear terms add (equation 23)."""
    precision = model.covariance.precision()
    linear = (precision @ vec(model.mean)).reshape(model.mean.T.shape).T + new.linear
    mean, covariance = _from_precision(precision + new.dense_gram(), linear)
    factors = model.input_factors, model.latent_factors
    return Posterior(model.parameters, *factors, mean, covariance, model.pooled)


def positive_part(variance: Float[Array, "*shape"], prior: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Keep variances above the rounding error of the prior variance they are differences from."""
    return jnp.maximum(variance, 10 * jnp.finfo(variance.dtype).eps * prior)


class CurveMoments(eqx.Module):
    """First two moments of the curves of D conditions: w, Γ and the prior variance of each kernel.

    The features are those of the terms and, where conditions have curves of their own, of these.
    """

    weights: Float[Array, "D M_A"]
    spread: Float[Array, "D M_A M_A"]
    prior_variance: Float[Array, "D kernels"]


def curve_moments(model: Posterior, latents: LatentGaussians, own: OwnCurves | None = None) -> CurveMoments:
    """Return the moments of the curves of conditions whose latents are Gaussian, with curves of their own if given."""
    latent_basis, kernels = model.latent_basis, model.parameters.kernels
    moments, sizes = latent_moments(latent_basis, latents), latent_basis.sizes
    parts = parts_of(sizes)
    weights = stacked([moments.mean[:, part] @ model.mean[:, part].T for part in parts])  # w_d = M⟨c_d⟩
    latent_spread = moments.second - moments.mean[:, :, None] * moments.mean[:, None, :]
    covariance = by_pairs(
        lambda first, other: jnp.einsum(
            "xh,dhk,yk->dxy", model.mean[:, first], latent_spread[:, first, other], model.mean[:, other]
        ),
        sizes,
    ) + model.covariance.contract(moments.second, sizes)  # M(T − ⟨c⟩⟨c⟩ᵀ)Mᵀ + Σ_jk T_jk S_jk
    # What the features of each term explain of the prior variance, tr(T) I.
    traces = [jnp.trace(moments.second[:, part, part], axis1=1, axis2=2) for part in parts]
    explained = jnp.repeat(jnp.stack(traces, axis=1), model.mean.shape[0], axis=1)
    prior, spread = moments.prior_variance, covariance - _diagonal(explained)
    if kernels.own is not None:
        scale = jnp.ones(len(prior), prior.dtype) if own is None else own.scale
        prior = jnp.concatenate([prior, scale[:, None]], axis=1)
        weights, spread = _with_own(weights, covariance, spread, own, model.mean.shape[0])
    return in_precision(CurveMoments(weights, spread, prior), model.mean.dtype)


def _diagonal(values: Float[Array, "D F"]) -> Float[Array, "D F F"]:
    return values[:, :, None] * jnp.eye(values.shape[1], dtype=values.dtype)


def _with_own(
    weights: Float[Array, "D M_F"],
    covariance: Float[Array, "D M_F M_F"],
    spread: Float[Array, "D M_F M_F"],
    own: OwnCurves | None,
    n_own: int,
) -> tuple[Float[Array, "D M_A"], Float[Array, "D M_A M_A"]]:
    # With w_d = offset − gain w_f + ε, Cov(ε) = ρ²I − reduction: the joint moments of (w_f, w_d), less the prior ρ²I.
    if own is None:  # nothing was seen of the curve
        return jnp.pad(weights, ((0, 0), (0, n_own))), jnp.pad(spread, ((0, 0), (0, n_own), (0, n_own)))
    mapped = -own.gain @ covariance  # Cov(w_d, w_f)
    own_weights = own.offset - jnp.einsum("dmf,df->dm", own.gain, weights)
    own_spread = -mapped @ own.gain.mT - own.reduction
    rows = [jnp.concatenate([spread, mapped.mT], axis=2), jnp.concatenate([mapped, own_spread], axis=2)]
    return jnp.concatenate([weights, own_weights], axis=1), jnp.concatenate(rows, axis=1)


def marginals(
    input_basis: Basis,
    curves: CurveMoments,
    inputs: Float[Array, "blocks places Q_X"],
    block_condition: Int[Array, " blocks"],
) -> tuple[Float[Array, "blocks places"], Float[Array, "blocks places"]]:
    """Return mean and variance of a curve at blocks of inputs, each block belonging to one condition."""

    def one_block(block: tuple[Array, Array]) -> tuple[Array, Array]:
        points, condition = block
        features = input_basis.features(points)
        mean = features @ curves.weights[condition]
        prior = curves.prior_variance[condition] @ stacked_diagonal(input_basis.kernels, points)
        variance = prior + jnp.sum((features @ curves.spread[condition]) * features, axis=1)
        return mean, positive_part(variance, prior)

    return jax.lax.map(one_block, (inputs, block_condition), batch_size=_BLOCKS_AT_ONCE)


def grid_means(input_basis: Basis, curves: CurveMoments, inputs: Float[Array, "n Q_X"]) -> Float[Array, "n D"]:
    """Return the mean of the curves of all conditions at all inputs."""
    return input_basis.features(inputs) @ curves.weights.T


def grid_marginals(
    input_basis: Basis, curves: CurveMoments, inputs: Float[Array, "n Q_X"]
) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
    """Return mean and variance of the curves of all conditions at all inputs, whose features serve all conditions.

    aᵀΓa = Σ_{x≤y} (2 − δ_xy) Γ_xy a_x a_y: one product of all Γ with the pairs of features, for some inputs at a time.
    """
    n_points, n_features = inputs.shape[0], curves.weights.shape[1]
    first, second = np.triu_indices(n_features)
    folded = curves.spread[:, first, second] * packed_counts(n_features).astype(inputs.dtype)
    features = input_basis.features(inputs)
    at_once = min(_PAIRS_AT_ONCE // len(first) + 1, n_points)
    n_slices = -(-n_points // at_once)
    sliced = jnp.pad(features, ((0, n_slices * at_once - n_points), (0, 0))).reshape(n_slices, at_once, n_features)

    def spread_at(some: Float[Array, "s M_A"]) -> Float[Array, "D s"]:
        return folded @ (some.T[first] * some.T[second])

    spread = jnp.swapaxes(jax.lax.map(spread_at, sliced), 1, 2).reshape(n_slices * at_once, -1)[:n_points]
    prior = stacked_diagonal(input_basis.kernels, inputs).T @ curves.prior_variance.T
    return features @ curves.weights.T, positive_part(prior + spread, prior)
