"""The variational posterior: kernels and inducing points with their factors, and q(v) of the inducing variables."""

from abc import abstractmethod
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.kronecker import kronecker_shrinkage
from lvmogp.algebra.linalg import unvec, vec
from lvmogp.ground.rules import Along
from lvmogp.model.expected_likelihood import GridQuadratic, Quadratic, quadratic
from lvmogp.model.inducing_features import Basis, basis
from lvmogp.model.layouts import Data
from lvmogp.model.parameters import KroneckerInducing, Parameters
from lvmogp.typing import Array, Float


class Covariance(eqx.Module):
    """Covariance S of the whitened inducing variables, with M_X × M_X blocks S_jk."""

    @abstractmethod
    def contract(self, second: Float[Array, "D M_H M_H"]) -> Float[Array, "D M_X M_X"]:
        """Return Σ_jk T_jk S_jk for a stack of T."""

    @abstractmethod
    def block_traces(self) -> Float[Array, "M_H M_H"]:
        """Return tr S_jk for all j, k."""

    @abstractmethod
    def precision(self) -> Float[Array, "M M"]:
        """Return S⁻¹ as one matrix."""


class KroneckerCovariance(Covariance):
    """S = (U_H ⊗ U_X) diag(vec W) (U_H ⊗ U_X)ᵀ with orthogonal U_X and U_H."""

    input_basis: Float[Array, "M_X M_X"]
    latent_basis: Float[Array, "M_H M_H"]
    variances: Float[Array, "M_X M_H"]

    def contract(self, second: Float[Array, "D M_H M_H"]) -> Float[Array, "D M_X M_X"]:
        """Return U_X diag(W diag(U_Hᵀ T U_H)) U_Xᵀ."""
        rotated = jnp.einsum("hj,dhk,kj->dj", self.latent_basis, second, self.latent_basis)
        scaled = (rotated @ self.variances.T)[:, None, :] * self.input_basis
        return scaled @ self.input_basis.T

    def block_traces(self) -> Float[Array, "M_H M_H"]:
        """Return U_H diag(Σ_i W_il) U_Hᵀ."""
        return (self.latent_basis * jnp.sum(self.variances, axis=0)) @ self.latent_basis.T

    def apply(self, matrix: Float[Array, "M_X M_H"]) -> Float[Array, "M_X M_H"]:
        """Return S vec(B) as a matrix: U_X (W ∘ U_Xᵀ B U_H) U_Hᵀ."""
        rotated = self.input_basis.T @ matrix @ self.latent_basis
        return self.input_basis @ (rotated * self.variances) @ self.latent_basis.T

    def precision(self) -> Float[Array, "M M"]:
        """Return (U_H ⊗ U_X) diag(1/vec W) (U_H ⊗ U_X)ᵀ."""
        rotation = jnp.kron(self.latent_basis, self.input_basis)
        return (rotation / vec(self.variances)) @ rotation.T


class DenseCovariance(Covariance):
    """S as one matrix."""

    matrix: Float[Array, "M M"]
    n_inputs: Annotated[int, Along("M_X")] = eqx.field(static=True)

    @property
    def blocks(self) -> Float[Array, "M_H M_H M_X M_X"]:
        """Return the blocks S_jk."""
        n_latents = self.matrix.shape[0] // self.n_inputs
        return self.matrix.reshape(n_latents, self.n_inputs, n_latents, self.n_inputs).transpose(0, 2, 1, 3)

    def contract(self, second: Float[Array, "D M_H M_H"]) -> Float[Array, "D M_X M_X"]:
        """Return Σ_jk T_jk S_jk."""
        return jnp.einsum("djk,jkxy->dxy", second, self.blocks)

    def block_traces(self) -> Float[Array, "M_H M_H"]:
        """Return tr S_jk."""
        return jnp.trace(self.blocks, axis1=2, axis2=3)

    def precision(self) -> Float[Array, "M M"]:
        """Return S⁻¹ by a Cholesky factor."""
        factor = jnp.linalg.cholesky(self.matrix)
        return jax.scipy.linalg.cho_solve((factor, True), jnp.eye(self.matrix.shape[0], dtype=self.matrix.dtype))


class Posterior(eqx.Module):
    """Kernels and inducing points with their factors, q(H), noise, and q(v) = N(vec M, S)."""

    parameters: Parameters
    input_basis: Basis
    latent_basis: Basis
    mean: Float[Array, "M_X M_H"]
    covariance: KroneckerCovariance | DenseCovariance


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


def optimal_inducing(expected: Quadratic) -> tuple[Float[Array, "M_X M_H"], KroneckerCovariance | DenseCovariance]:
    """Return mean (I + G)⁻¹b and covariance (I + G)⁻¹ of the optimal q(v)."""
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
