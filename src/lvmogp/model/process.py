"""The process given one draw of latents and hyperparameters, conditioned on the training data.

Given a draw, f is a GP over pairs (x, h), and the data explain a part of its prior covariance (docs/mathematics.md,
equations 35 to 38). With features a(x) of an input and c(h) of latents, which each kind of data defines in its own way,
mean and explained covariance are sums of products of a and c.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.kronecker import kronecker_shrinkage
from lvmogp.algebra.linalg import triangular_inverse
from lvmogp.kernels.covariances import Kernel, cross, gram
from lvmogp.model.draws import Draws
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.inducing_features import Basis, basis
from lvmogp.model.layouts import GridData, LikelihoodData, ScatteredData, SparseData
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import optimal_inducing
from lvmogp.typing import Array, Float, Int


class Conditional(eqx.Module):
    """F given one draw and the data; conditionals of several draws are stacked along a leading axis."""

    input_kernel: Kernel
    latent_kernel: Kernel

    @abstractmethod
    def input_features(self, points: Float[Array, "n Q_X"]) -> Float[Array, "n R"]:
        """Rows a(x)."""

    @abstractmethod
    def latent_features(self, latents: Float[Array, "k Q_H"]) -> Float[Array, "k C"]:
        """Rows c(h)."""

    @abstractmethod
    def mean(self, inputs: Float[Array, "n R"], latent: Float[Array, " C"]) -> Float[Array, " n"]:
        """Mean of f(·, h) at inputs given by their features."""

    @abstractmethod
    def explained(
        self,
        inputs: Float[Array, "n R"],
        latent: Float[Array, " C"],
        other_inputs: Float[Array, "m R"],
        other_latent: Float[Array, " C"],
    ) -> Float[Array, "n m"]:
        """What the data take from the prior covariance of f(·, h) and f(·, h')."""

    @abstractmethod
    def explained_variance(self, inputs: Float[Array, "n R"], latent: Float[Array, " C"]) -> Float[Array, " n"]:
        """The same for each input with itself."""


class GridConditional(Conditional):
    """Exact, by the eigenvectors of K_X and of K_H scaled by the noise (equation 36).

    A(x) = U_Xᵀk_X(X, x), c(h) = U_Hᵀ diag(1/σ_d) k_H(H, h), W_ij = 1/(1 + λ^X_i λ^H_j): mean aᵀBc with
    B = W ∘ (U_Xᵀ Y diag(1/σ_d) U_H), explained Σ_ij W_ij a_i a'_i c_j c'_j.
    """

    inputs: Float[Array, "N Q_X"]
    latents: Float[Array, "D Q_H"]
    noise_deviation: Float[Array, " D"]
    input_basis: Float[Array, "N N"]
    latent_basis: Float[Array, "D D"]
    shrinkage: Float[Array, "N D"]
    weights: Float[Array, "N D"]

    def input_features(self, points: Float[Array, "n Q_X"]) -> Float[Array, "n N"]:
        """k_X(x, X) U_X."""
        return cross(self.input_kernel, points, self.inputs) @ self.input_basis

    def latent_features(self, latents: Float[Array, "k Q_H"]) -> Float[Array, "k D"]:
        """k_H(h, H) diag(1/σ_d) U_H."""
        return (cross(self.latent_kernel, latents, self.latents) / self.noise_deviation) @ self.latent_basis

    def mean(self, inputs: Float[Array, "n N"], latent: Float[Array, " D"]) -> Float[Array, " n"]:
        """aᵀBc."""
        return inputs @ (self.weights @ latent)

    def explained(
        self,
        inputs: Float[Array, "n N"],
        latent: Float[Array, " D"],
        other_inputs: Float[Array, "m N"],
        other_latent: Float[Array, " D"],
    ) -> Float[Array, "n m"]:
        """Σ_i a_i a'_i (W (c ∘ c'))_i."""
        return (inputs * (self.shrinkage @ (latent * other_latent))) @ other_inputs.T

    def explained_variance(self, inputs: Float[Array, "n N"], latent: Float[Array, " D"]) -> Float[Array, " n"]:
        """Σ_i a_i² (W c²)_i."""
        return inputs**2 @ (self.shrinkage @ latent**2)


class DenseConditional(Conditional):
    """Exact, by the Cholesky factor of the covariance of all observations, K + diag σ² = LLᵀ (equation 37).

    A(x) = k_X(X, x) and c(h) = (k_H(h_d(n), h))_n, so that a ∘ c are the covariances of f(x, h) with the observations.
    """

    inputs: Float[Array, "n Q_X"]
    latents: Float[Array, "D Q_H"]
    conditions: Int[Array, " n"]
    whitener: Float[Array, "n n"]
    solution: Float[Array, " n"]

    def input_features(self, points: Float[Array, "k Q_X"]) -> Float[Array, "k n"]:
        """k_X(x, X)."""
        return cross(self.input_kernel, points, self.inputs)

    def latent_features(self, latents: Float[Array, "k Q_H"]) -> Float[Array, "k n"]:
        """k_H(h, h_d(n)) for each observation."""
        return cross(self.latent_kernel, latents, self.latents)[:, self.conditions]

    def mean(self, inputs: Float[Array, "k n"], latent: Float[Array, " n"]) -> Float[Array, " k"]:
        """(a ∘ c)ᵀ (K + diag σ²)⁻¹ y."""
        return inputs @ (latent * self.solution)

    def _whitened(self, inputs: Float[Array, "k n"], latent: Float[Array, " n"]) -> Float[Array, "k n"]:
        # Rows L⁻¹(a ∘ c), which as a product is several times faster than a solve.
        return (inputs * latent) @ self.whitener.T

    def explained(
        self,
        inputs: Float[Array, "k n"],
        latent: Float[Array, " n"],
        other_inputs: Float[Array, "m n"],
        other_latent: Float[Array, " n"],
    ) -> Float[Array, "k m"]:
        """(a ∘ c)ᵀ (K + diag σ²)⁻¹ (a' ∘ c')."""
        return self._whitened(inputs, latent) @ self._whitened(other_inputs, other_latent).T

    def explained_variance(self, inputs: Float[Array, "k n"], latent: Float[Array, " n"]) -> Float[Array, " k"]:
        """|L⁻¹(a ∘ c)|²."""
        return jnp.sum(self._whitened(inputs, latent) ** 2, axis=1)


class SparseConditional(Conditional):
    """By the optimal q(v) given the latents of the draw, a and c being whitened features (equation 38).

    ``missing`` is I − S in its M_X × M_X blocks: mean aᵀMc, explained (c ⊗ a)ᵀ(I − S)(c' ⊗ a').
    """

    input_basis: Basis
    latent_basis: Basis
    weights: Float[Array, "M_X M_H"]
    missing: Float[Array, "M_H M_H M_X M_X"]

    def input_features(self, points: Float[Array, "n Q_X"]) -> Float[Array, "n M_X"]:
        """(L_X⁻¹ k_u(x))ᵀ."""
        return self.input_basis.features(points)

    def latent_features(self, latents: Float[Array, "k Q_H"]) -> Float[Array, "k M_H"]:
        """(L_H⁻¹ k_u(h))ᵀ."""
        return self.latent_basis.features(latents)

    def mean(self, inputs: Float[Array, "n M_X"], latent: Float[Array, " M_H"]) -> Float[Array, " n"]:
        """aᵀMc."""
        return inputs @ (self.weights @ latent)

    def _contracted(self, latent: Float[Array, " M_H"], other: Float[Array, " M_H"]) -> Float[Array, "M_X M_X"]:
        # Σ_jk c_j c'_k (I − S)_jk
        return jnp.einsum("j,jkxy,k->xy", latent, self.missing, other)

    def explained(
        self,
        inputs: Float[Array, "n M_X"],
        latent: Float[Array, " M_H"],
        other_inputs: Float[Array, "m M_X"],
        other_latent: Float[Array, " M_H"],
    ) -> Float[Array, "n m"]:
        """Σ_jk c_j c'_k aᵀ(I − S)_jk a'."""
        return inputs @ self._contracted(latent, other_latent) @ other_inputs.T

    def explained_variance(self, inputs: Float[Array, "n M_X"], latent: Float[Array, " M_H"]) -> Float[Array, " n"]:
        """Σ_jk c_j c_k aᵀ(I − S)_jk a."""
        return jnp.sum((inputs @ self._contracted(latent, latent)) * inputs, axis=1)


def conditional(draw: Draws, data: LikelihoodData) -> Conditional:
    """The process given one draw, ``draw`` being one entry along the leading axis of all."""
    if isinstance(data, GridData):
        return _on_grid(draw, data)
    if isinstance(data, ScatteredData):
        return _on_scattered(draw, data)
    return _on_sparse(draw, data)


def _on_grid(draw: Draws, data: GridData) -> GridConditional:
    deviation = jnp.sqrt(data.noise(jnp.broadcast_to(draw.noise_variance, (data.n_conditions,))))
    scaled = gram(draw.latent_kernel, draw.latents) / jnp.outer(deviation, deviation)
    input_values, input_basis = jnp.linalg.eigh(gram(draw.input_kernel, data.inputs))
    latent_values, latent_basis = jnp.linalg.eigh(scaled)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ (data.outputs / deviation) @ latent_basis  # U_Xᵀ Y diag(1/σ_d) U_H
    return GridConditional(
        input_kernel=draw.input_kernel,
        latent_kernel=draw.latent_kernel,
        inputs=data.inputs,
        latents=draw.latents,
        noise_deviation=deviation,
        input_basis=input_basis,
        latent_basis=latent_basis,
        shrinkage=shrinkage,
        weights=shrinkage * rotated,
    )


def _on_scattered(draw: Draws, data: ScatteredData) -> DenseConditional:
    noise = data.noise(jnp.broadcast_to(draw.noise_variance, (draw.latents.shape[0],)))
    scale = data.present / jnp.sqrt(noise)  # zero in empty rows, which so say nothing
    between = gram(draw.latent_kernel, draw.latents)[data.conditions].T[data.conditions]
    scaled = gram(draw.input_kernel, data.inputs) * between * scale[:, None] * scale
    factor = jnp.linalg.cholesky(jnp.eye(len(scale)) + scaled)  # of I + K/(σσᵀ): no eigenvalue is below one
    whitener = triangular_inverse(factor) * scale  # L⁻¹ of K + diag σ²
    return DenseConditional(
        input_kernel=draw.input_kernel,
        latent_kernel=draw.latent_kernel,
        inputs=data.inputs,
        latents=draw.latents,
        conditions=data.conditions,
        whitener=whitener,
        solution=(whitener @ data.outputs) @ whitener,  # L⁻ᵀL⁻¹y
    )


def _on_sparse(draw: Draws, data: SparseData) -> SparseConditional:
    inducing_latents = draw.latents[data.inducing_conditions]
    parameters = Parameters(
        input_kernel=draw.input_kernel,
        latent_kernel=draw.latent_kernel,
        inducing_inputs=data.inducing_inputs,
        inducing_latents=inducing_latents,
        latent_mean=draw.latents,
        latent_variance=jnp.zeros_like(draw.latents),
        noise_variance=draw.noise_variance,
    )
    mean, covariance = optimal_inducing(quadratic(parameters, data.observed, careful=True))
    inputs, latents = (jnp.eye(size, dtype=mean.dtype) for size in mean.shape)
    missing = latents[:, :, None, None] * inputs - covariance.project(inputs)  # δ_jk I − S_jk
    return SparseConditional(
        input_kernel=draw.input_kernel,
        latent_kernel=draw.latent_kernel,
        input_basis=basis(draw.input_kernel, data.inducing_inputs),
        latent_basis=basis(draw.latent_kernel, inducing_latents),
        weights=mean,
        missing=missing,
    )


def stacked_conditionals(draws: Draws, data: LikelihoodData) -> Conditional:
    """The conditionals of several draws, one after the other."""
    return jax.lax.map(lambda draw: conditional(draw, data), draws)
