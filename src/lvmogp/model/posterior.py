"""The trained model, factorised once; predictions for given conditions are views of it.

For any distribution over the latents of a condition, the curve f(·, h) has mean aᵀw and covariance
ψ k_X(x, x') + aᵀGa', with a = L_X⁻¹k_u(x) and (docs/mathematics.md, equations 15 to 17)

- w = M⟨c⟩,
- G = M(T − ⟨c⟩⟨c⟩ᵀ)Mᵀ + Σ_jk T_jk S_jk − tr(T) I.

The first term of G carries the uncertainty of the latents, the second that of the inducing variables,
whose covariance S has the M_X × M_X blocks S_jk.
"""

from abc import abstractmethod
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.kronecker import kronecker_shrinkage
from lvmogp.algebra.linalg import unvec, vec
from lvmogp.ground.precision import in_precision
from lvmogp.ground.rules import Along
from lvmogp.kernels.covariances import diagonal
from lvmogp.model.expected_likelihood import GridQuadratic, Quadratic, quadratic
from lvmogp.model.inducing_features import Basis, LatentMoments, basis, latent_moments
from lvmogp.model.layouts import Data
from lvmogp.model.parameters import KroneckerInducing, Parameters
from lvmogp.typing import Array, Float, Int

_BLOCKS_AT_ONCE = 32
# Pairs of features of some inputs: a megabyte of them in double precision.
_PAIRS_AT_ONCE = 2**17


class Projection(eqx.Module):
    """What S says about given inputs, prepared for many latents."""

    @abstractmethod
    def at(self, features: Float[Array, " M_H"]) -> Float[Array, "m m"]:
        """Σ_jk c_j c_k A S_jk Aᵀ for the features c of a latent."""


class Covariance(eqx.Module):
    """Covariance S of the whitened inducing variables."""

    @abstractmethod
    def contract(self, second: Float[Array, "D M_H M_H"]) -> Float[Array, "D M_X M_X"]:
        """Σ_jk T_jk S_jk for a stack of T."""

    @abstractmethod
    def project(self, features: Float[Array, "m M_X"]) -> Float[Array, "M_H M_H m m"]:
        """A S_jk Aᵀ for all j, k."""

    @abstractmethod
    def projection(self, features: Float[Array, "m M_X"]) -> Projection:
        """The same, in whatever form is quickest to contract with latents."""

    @abstractmethod
    def marginal_variances(
        self, latents: Float[Array, "P M_H"], features: Float[Array, "n M_X"]
    ) -> Float[Array, "P n"]:
        """(c ⊗ a)ᵀ S (c ⊗ a) for all pairs of latent features c and input features a."""

    @abstractmethod
    def bilinear(self, left: Float[Array, "n M_X M_H"], right: Float[Array, "m M_X M_H"]) -> Float[Array, "n m"]:
        """vec(B)ᵀ S vec(B') for all pairs of rows."""

    @abstractmethod
    def precision(self) -> Float[Array, "M M"]:
        """S⁻¹ as one matrix."""


class KroneckerProjection(Projection):
    """A U_X, W and U_H: contracting costs m² M_X."""

    rotated: Float[Array, "m M_X"]
    variances: Float[Array, "M_X M_H"]
    latent_basis: Float[Array, "M_H M_H"]

    def at(self, features: Float[Array, " M_H"]) -> Float[Array, "m m"]:
        """(A U_X) diag(W (U_Hᵀc)²) (A U_X)ᵀ."""
        return (self.rotated * (self.variances @ (features @ self.latent_basis) ** 2)) @ self.rotated.T


class DenseProjection(Projection):
    """All A S_jk Aᵀ: contracting costs m² M_H²."""

    blocks: Float[Array, "M_H M_H m m"]

    def at(self, features: Float[Array, " M_H"]) -> Float[Array, "m m"]:
        """Σ_jk c_j c_k A S_jk Aᵀ."""
        return jnp.einsum("j,jkmn,k->mn", features, self.blocks, features)


class KroneckerCovariance(Covariance):
    """S = (U_H ⊗ U_X) diag(vec W) (U_H ⊗ U_X)ᵀ with orthogonal U_X and U_H."""

    input_basis: Float[Array, "M_X M_X"]
    latent_basis: Float[Array, "M_H M_H"]
    variances: Float[Array, "M_X M_H"]

    def contract(self, second: Float[Array, "D M_H M_H"]) -> Float[Array, "D M_X M_X"]:
        """U_X diag(W diag(U_Hᵀ T U_H)) U_Xᵀ."""
        rotated = jnp.einsum("hj,dhk,kj->dj", self.latent_basis, second, self.latent_basis)
        scaled = (rotated @ self.variances.T)[:, None, :] * self.input_basis
        return scaled @ self.input_basis.T

    def project(self, features: Float[Array, "m M_X"]) -> Float[Array, "M_H M_H m m"]:
        """Σ_l U_H[j, l] U_H[k, l] (A U_X) diag(W[:, l]) (A U_X)ᵀ."""
        rotated = features @ self.input_basis
        per_latent = jnp.einsum("mx,xl,nx->lmn", rotated, self.variances, rotated)
        return jnp.einsum("jl,kl,lmn->jkmn", self.latent_basis, self.latent_basis, per_latent)

    def projection(self, features: Float[Array, "m M_X"]) -> Projection:
        """Rotated features."""
        return KroneckerProjection(features @ self.input_basis, self.variances, self.latent_basis)

    def marginal_variances(
        self, latents: Float[Array, "P M_H"], features: Float[Array, "n M_X"]
    ) -> Float[Array, "P n"]:
        """Σ_ij W_ij (U_Xᵀa)_i² (U_Hᵀc)_j²."""
        return (latents @ self.latent_basis) ** 2 @ self.variances.T @ ((features @ self.input_basis) ** 2).T

    def bilinear(self, left: Float[Array, "n M_X M_H"], right: Float[Array, "m M_X M_H"]) -> Float[Array, "n m"]:
        """Σ_ij W_ij (U_Xᵀ B U_H)_ij (U_Xᵀ B' U_H)_ij."""

        def rotate(rows: Float[Array, "n M_X M_H"]) -> Float[Array, "n M"]:
            rotated = jnp.einsum("xi,nxh,hj->nij", self.input_basis, rows, self.latent_basis)
            return rotated.reshape(rows.shape[0], -1)

        return (rotate(left) * self.variances.reshape(-1)) @ rotate(right).T

    def apply(self, matrix: Float[Array, "M_X M_H"]) -> Float[Array, "M_X M_H"]:
        """S vec(B) as a matrix: U_X (W ∘ U_Xᵀ B U_H) U_Hᵀ."""
        rotated = self.input_basis.T @ matrix @ self.latent_basis
        return self.input_basis @ (rotated * self.variances) @ self.latent_basis.T

    def precision(self) -> Float[Array, "M M"]:
        """(U_H ⊗ U_X) diag(1/vec W) (U_H ⊗ U_X)ᵀ."""
        rotation = jnp.kron(self.latent_basis, self.input_basis)
        return (rotation / vec(self.variances)) @ rotation.T


class DenseCovariance(Covariance):
    """S as one matrix, with blocks S_jk of size M_X × M_X."""

    matrix: Float[Array, "M M"]
    n_inputs: Annotated[int, Along("M_X")] = eqx.field(static=True)

    def _blocks(self) -> Float[Array, "M_H M_X M_H M_X"]:
        n_latents = self.matrix.shape[0] // self.n_inputs
        return self.matrix.reshape(n_latents, self.n_inputs, n_latents, self.n_inputs)

    def contract(self, second: Float[Array, "D M_H M_H"]) -> Float[Array, "D M_X M_X"]:
        """Σ_jk T_jk S_jk."""
        return jnp.einsum("djk,jxky->dxy", second, self._blocks())

    def project(self, features: Float[Array, "m M_X"]) -> Float[Array, "M_H M_H m m"]:
        """A S_jk Aᵀ."""
        return jnp.einsum("mx,jxky,ny->jkmn", features, self._blocks(), features)

    def projection(self, features: Float[Array, "m M_X"]) -> Projection:
        """All blocks."""
        return DenseProjection(self.project(features))

    def marginal_variances(
        self, latents: Float[Array, "P M_H"], features: Float[Array, "n M_X"]
    ) -> Float[Array, "P n"]:
        """Σ_jk c_j c_k aᵀS_jk a, the S_jk contracted with the latents first."""
        n_latents, n_inputs = latents.shape[1], self.n_inputs
        blocks = jnp.swapaxes(self._blocks(), 1, 2).reshape(n_latents**2, n_inputs**2)
        latent_pairs = (latents[:, :, None] * latents[:, None, :]).reshape(-1, n_latents**2)
        contracted = (latent_pairs @ blocks).reshape(-1, n_inputs, n_inputs)
        return jnp.sum((features @ contracted) * features, axis=2)

    def bilinear(self, left: Float[Array, "n M_X M_H"], right: Float[Array, "m M_X M_H"]) -> Float[Array, "n m"]:
        """vec(B)ᵀ S vec(B')."""

        def stacked(rows: Float[Array, "n M_X M_H"]) -> Float[Array, "n M"]:
            return jnp.swapaxes(rows, 1, 2).reshape(rows.shape[0], -1)

        return stacked(left) @ self.matrix @ stacked(right).T

    def precision(self) -> Float[Array, "M M"]:
        """S⁻¹ by a Cholesky factor."""
        factor = jnp.linalg.cholesky(self.matrix)
        return jax.scipy.linalg.cho_solve((factor, True), jnp.eye(self.matrix.shape[0], dtype=self.matrix.dtype))


class Posterior(eqx.Module):
    """Kernels and inducing points with their factors, q(H), noise, and q(v) = N(vec M, S)."""

    parameters: Parameters
    input_basis: Basis
    latent_basis: Basis
    mean: Float[Array, "M_X M_H"]
    covariance: Covariance


class Curves(eqx.Module):
    """First two moments of the curves of D conditions: w, G and ψ of each."""

    weights: Float[Array, "D M_X"]
    spread: Float[Array, "D M_X M_X"]
    prior_variance: Float[Array, " D"]


def posterior(parameters: Parameters, data: Data) -> Posterior:
    """Factorise the model: the optimal q(v), or the one stored in the parameters."""
    inducing = parameters.inducing
    if inducing is None:
        mean, covariance = optimal_inducing(quadratic(parameters, data, careful=True))
    elif isinstance(inducing, KroneckerInducing):
        mean, covariance = inducing.mean, _kronecker_covariance(inducing)
    else:
        mean = inducing.mean
        covariance = DenseCovariance(inducing.factor @ inducing.factor.T, mean.shape[0])
    return Posterior(
        parameters=parameters,
        input_basis=basis(parameters.input_kernel, parameters.inducing_inputs),
        latent_basis=basis(parameters.latent_kernel, parameters.inducing_latents),
        mean=mean,
        covariance=covariance,
    )


def optimal_inducing(expected: Quadratic) -> tuple[Float[Array, "M_X M_H"], Covariance]:
    """Mean (I + G)⁻¹b and covariance (I + G)⁻¹ of the optimal q(v)."""
    if isinstance(expected, GridQuadratic):
        input_values, input_basis = jnp.linalg.eigh(expected.input_gram)
        latent_values, latent_basis = jnp.linalg.eigh(expected.latent_gram)
        variances = kronecker_shrinkage(input_values, latent_values)
        rotated = input_basis.T @ expected.linear @ latent_basis  # C = U_Xᵀ B U_H
        mean = input_basis @ (rotated * variances) @ latent_basis.T
        return mean, KroneckerCovariance(input_basis, latent_basis, variances)
    precision = expected.dense_gram()
    precision = precision + jnp.eye(precision.shape[0], dtype=precision.dtype)
    return _from_precision(precision, expected.linear)


def _from_precision(
    precision: Float[Array, "M M"], linear: Float[Array, "M_X M_H"]
) -> tuple[Float[Array, "M_X M_H"], DenseCovariance]:
    n_inputs = linear.shape[0]
    factor = jnp.linalg.cholesky(precision)
    matrix = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(precision.shape[0], dtype=precision.dtype))
    mean = unvec(jax.scipy.linalg.cho_solve((factor, True), vec(linear)), n_inputs)
    return mean, DenseCovariance(matrix, n_inputs)


def updated(model: Posterior, new: Quadratic) -> Posterior:
    """q(v) after the expected log-likelihood of new data: precisions add, and so do linear terms (equation 23)."""
    precision = model.covariance.precision()
    linear = unvec(precision @ vec(model.mean), model.mean.shape[0]) + new.linear
    mean, covariance = _from_precision(precision + new.dense_gram(), linear)
    return Posterior(model.parameters, model.input_basis, model.latent_basis, mean, covariance)


def _kronecker_covariance(inducing: KroneckerInducing) -> KroneckerCovariance:
    input_values, input_basis = jnp.linalg.eigh(inducing.input_factor @ inducing.input_factor.T)
    latent_values, latent_basis = jnp.linalg.eigh(inducing.latent_factor @ inducing.latent_factor.T)
    return KroneckerCovariance(input_basis, latent_basis, input_values[:, None] * latent_values[None, :])


def curves(model: Posterior, moments: LatentMoments) -> Curves:
    """Curves of conditions whose latents are uncertain, from the moments of their latent features."""
    weights = moments.mean @ model.mean.T  # w_d = M⟨c_d⟩
    latent_spread = moments.second - moments.mean[:, :, None] * moments.mean[:, None, :]
    identity = jnp.eye(model.mean.shape[0], dtype=model.mean.dtype)
    spread = (
        jnp.einsum("xh,dhk,yk->dxy", model.mean, latent_spread, model.mean)
        + model.covariance.contract(moments.second)
        - jnp.trace(moments.second, axis1=1, axis2=2)[:, None, None] * identity
    )
    return in_precision(Curves(weights, spread, moments.prior_variance), model.mean.dtype)


def trained_curves(model: Posterior) -> Curves:
    """Curves of the trained conditions under q(H)."""
    return curves(model, latent_moments(model.latent_basis, model.parameters.latents))


def curves_at(model: Posterior, latents: Float[Array, "P Q_H"]) -> Curves:
    """Curves at given latents: the conditional of the paper, T = c cᵀ."""
    features = model.latent_basis.features(latents)
    second = features[:, :, None] * features[:, None, :]
    return curves(model, LatentMoments(diagonal(model.latent_basis.kernel, latents), features, second))


def marginals(
    input_basis: Basis,
    shapes: Curves,
    inputs: Float[Array, "B b Q_X"],
    block_condition: Int[Array, " B"],
) -> tuple[Float[Array, "B b"], Float[Array, "B b"]]:
    """Mean and variance of f at blocks of inputs, each block belonging to one condition."""

    def one_block(block: tuple[Array, Array]) -> tuple[Array, Array]:
        points, condition = block
        features = input_basis.features(points)
        mean = features @ shapes.weights[condition]
        prior = shapes.prior_variance[condition] * diagonal(input_basis.kernel, points)
        variance = prior + jnp.sum((features @ shapes.spread[condition]) * features, axis=1)
        return mean, positive_part(variance, prior)

    return jax.lax.map(one_block, (inputs, block_condition), batch_size=_BLOCKS_AT_ONCE)


def grid_means(input_basis: Basis, shapes: Curves, inputs: Float[Array, "n Q_X"]) -> Float[Array, "n D"]:
    """Mean of f of all conditions at all inputs."""
    return input_basis.features(inputs) @ shapes.weights.T


def grid_marginals(
    input_basis: Basis, shapes: Curves, inputs: Float[Array, "n Q_X"]
) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
    """Mean and variance of f of all conditions at all inputs, whose features serve all conditions.

    aᵀGa = Σ_{x≤y} (2 − δ_xy) G_xy a_x a_y: one product of all G with the pairs of features, for some inputs at a time.
    """
    n_points, n_inducing = inputs.shape[0], input_basis.points.shape[0]
    first, second = np.triu_indices(n_inducing)
    folded = shapes.spread[:, first, second] * np.where(first == second, 1.0, 2.0).astype(inputs.dtype)
    features = input_basis.features(inputs)
    at_once = min(_PAIRS_AT_ONCE // len(first) + 1, n_points)
    n_slices = -(-n_points // at_once)
    sliced = jnp.pad(features, ((0, n_slices * at_once - n_points), (0, 0))).reshape(n_slices, at_once, n_inducing)

    def spread_at(some: Float[Array, "s M_X"]) -> Float[Array, "D s"]:
        return folded @ (some.T[first] * some.T[second])

    spread = jnp.swapaxes(jax.lax.map(spread_at, sliced), 1, 2).reshape(n_slices * at_once, -1)[:n_points]
    prior = diagonal(input_basis.kernel, inputs)[:, None] * shapes.prior_variance
    return features @ shapes.weights.T, positive_part(prior + spread, prior)


def components_at(
    model: Posterior, latents: Float[Array, "P Q_H"], inputs: Float[Array, "n Q_X"]
) -> tuple[Float[Array, "P n"], Float[Array, "P n"]]:
    """Mean and variance of f at inputs under each of the given latents: the conditional of the paper."""
    latent_features, features = model.latent_basis.features(latents), model.input_basis.features(inputs)
    prior = diagonal(model.latent_basis.kernel, latents)[:, None] * diagonal(model.input_basis.kernel, inputs)
    unexplained = prior - jnp.sum(latent_features**2, axis=1)[:, None] * jnp.sum(features**2, axis=1)
    variance = unexplained + model.covariance.marginal_variances(latent_features, features)
    return latent_features @ model.mean.T @ features.T, positive_part(variance, prior)


def positive_part(variance: Float[Array, "*S"], prior: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Variances kept above the rounding error of the prior variance they are differences from."""
    return jnp.maximum(variance, 10 * jnp.finfo(variance.dtype).eps * prior)
