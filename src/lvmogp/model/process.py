"""The process f given data and hyperparameters, for latents that are given.

Whatever the data and the inference, what the data say of f is a sum of products of features a(x) of an input and c(h)
of latents (docs/mathematics.md, equations 35 to 38): the mean of f(x, h), and the part of its prior covariance
k_H(h, h') k_X(x, x') that the data explain. A variational fit is one such process, a posterior draw another.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.evidence import kronecker_shrinkage
from lvmogp.algebra.linalg import triangular_inverse
from lvmogp.kernels.covariances import Kernel, cross, gram
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.draws import Draws
from lvmogp.model.expected_likelihood import Basis, quadratic, whitened_mean
from lvmogp.model.layouts import GridData, LikelihoodData, ScatteredData, SparseData
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import KroneckerCovariance, Posterior, gram_factors, optimal_inducing
from lvmogp.typing import Array, Float, Int

# Features of inputs and of other inputs, one row per point, and of one latent.
Rows = Float[Array, "n R"]
OtherRows = Float[Array, "m R"]
Row = Float[Array, " C"]
Covariances = Float[Array, "n m"]


class Features(eqx.Module):
    """What inputs, or latents, are to the process: one row of numbers per point, from covariances with known points."""

    kernel: Kernel
    points: Float[Array, "N Q"]

    @abstractmethod
    def __call__(self, points: Float[Array, "n Q"]) -> Float[Array, "n R"]:
        """Return the features of points."""


class WhitenedFeatures(Features):
    """Rows (L⁻¹k_u(x))ᵀ, turned by an orthogonal matrix where there is one."""

    factor: Float[Array, "N N"]
    rotation: Float[Array, "N N"] | None = None

    def __call__(self, points: Float[Array, "n Q"]) -> Float[Array, "n N"]:
        """Return (L⁻¹k_u(x))ᵀU."""
        return self._turned(self._basis.features(points))

    def expected(self, latents: LatentGaussians) -> Float[Array, "D N"]:
        """Return the mean features of uncertain latents, ⟨c(h_d)⟩."""
        return self._turned(whitened_mean(self._basis, latents))

    @property
    def _basis(self) -> Basis:
        return Basis(self.kernel, self.points, self.factor)

    def _turned(self, rows: Float[Array, "n N"]) -> Float[Array, "n N"]:
        return rows if self.rotation is None else rows @ self.rotation


class CovarianceFeatures(Features):
    """Covariances with the observed points, k(x, X), turned by a matrix or repeated for each observation."""

    rotation: Float[Array, "N N"] | None = None
    repeats: Int[Array, " n"] | None = None

    def __call__(self, points: Float[Array, "k Q"]) -> Float[Array, "k R"]:
        """Return k(x, X)U, or k(x, X) at the point of each observation."""
        rows = cross(self.kernel, points, self.points)
        if self.repeats is not None:
            return rows[:, self.repeats]
        return rows if self.rotation is None else rows @ self.rotation


class Explained(eqx.Module):
    """What the data say, in terms of the features of inputs and latents."""

    @abstractmethod
    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return the mean of f(·, h) at inputs."""

    @abstractmethod
    def covariance(self, inputs: Rows, latent: Row, other_inputs: OtherRows, other_latent: Row) -> Covariances:
        """Return what the data take from the prior covariance of f(·, h) and f(·, h')."""

    @abstractmethod
    def variance(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return what the data take from the prior variance of f(·, h) at each input."""

    @abstractmethod
    def bilinear(self, left: Float[Array, "n R C"], right: Float[Array, "m R C"]) -> Covariances:
        """Return the explained covariance of sums of processes, Σ a cᵀ being given for each row."""

    @abstractmethod
    def at_latent(self, latent: Row) -> "Explained":
        """Return what the data say of f(·, h) alone: from then on the features of the latent are a single one."""

    @abstractmethod
    def at_inputs(self, inputs: Float[Array, "m R"]) -> tuple["Explained", Float[Array, "m S"]]:
        """Return what the data say at given inputs, for many latents, with the features of these inputs there."""


class KroneckerExplained(Explained):
    """Sums of products, by eigenvectors (equation 36): mean aᵀBc, explained Σ_ij W_ij a_i a'_i c_j c'_j."""

    weights: Float[Array, "R C"]
    shrinkage: Float[Array, "R C"]

    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return aᵀBc."""
        return inputs @ (self.weights @ latent)

    def covariance(self, inputs: Rows, latent: Row, other_inputs: OtherRows, other_latent: Row) -> Covariances:
        """Return Σ_i a_i a'_i (W (c ∘ c'))_i."""
        return (inputs * (self.shrinkage @ (latent * other_latent))) @ other_inputs.T

    def variance(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return Σ_i a_i² (W c²)_i."""
        return inputs**2 @ (self.shrinkage @ latent**2)

    def bilinear(self, left: Float[Array, "n R C"], right: Float[Array, "m R C"]) -> Covariances:
        """Return Σ_ij W_ij B_ij B'_ij."""
        return (left * self.shrinkage).reshape(left.shape[0], -1) @ right.reshape(right.shape[0], -1).T

    def at_latent(self, latent: Row) -> "KroneckerExplained":
        """Return Bc and Wc² as columns."""
        return KroneckerExplained((self.weights @ latent)[:, None], (self.shrinkage @ latent**2)[:, None])

    def at_inputs(self, inputs: Float[Array, "m R"]) -> tuple["KroneckerExplained", Float[Array, "m R"]]:
        """Return itself: its sums are as short as they can be."""
        return self, inputs


class InducingExplained(Explained):
    """By q(v) = N(vec M, S) (equation 38): mean aᵀMc, explained (c ⊗ a)ᵀ(I − S)(c' ⊗ a').

    ``missing`` is I − S in its M_X × M_X blocks.
    """

    weights: Float[Array, "M_X M_H"]
    missing: Float[Array, "M_H M_H M_X M_X"]

    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return aᵀMc."""
        return inputs @ (self.weights @ latent)

    def _contracted(self, latent: Row, other: Row) -> Float[Array, "M_X M_X"]:
        # Σ_jk c_j c'_k (I − S)_jk; the products of features first, so that many latents are one matrix product
        return jnp.einsum("jk,jkxy->xy", latent[:, None] * other, self.missing)

    def covariance(self, inputs: Rows, latent: Row, other_inputs: OtherRows, other_latent: Row) -> Covariances:
        """Return Σ_jk c_j c'_k aᵀ(I − S)_jk a'."""
        return inputs @ self._contracted(latent, other_latent) @ other_inputs.T

    def variance(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return Σ_jk c_j c_k aᵀ(I − S)_jk a."""
        return jnp.sum((inputs @ self._contracted(latent, latent)) * inputs, axis=1)

    def bilinear(self, left: Float[Array, "n R C"], right: Float[Array, "m R C"]) -> Covariances:
        """Return vec(B)ᵀ (I − S) vec(B')."""
        return jnp.einsum("nxj,jkxy,myk->nm", left, self.missing, right)

    def at_latent(self, latent: Row) -> "InducingExplained":
        """Return Mc and Σ_jk c_j c_k (I − S)_jk."""
        return InducingExplained((self.weights @ latent)[:, None], self._contracted(latent, latent)[None, None])

    def at_inputs(self, inputs: Float[Array, "m M_X"]) -> tuple["InducingExplained", Float[Array, "m m"]]:
        """Return AM and A(I − S)_jkAᵀ, in which the inputs are unit vectors."""
        blocks = jnp.einsum("mx,jkxy,ny->jkmn", inputs, self.missing, inputs)
        return InducingExplained(inputs @ self.weights, blocks), jnp.eye(inputs.shape[0], dtype=inputs.dtype)


class DenseExplained(Explained):
    """By the factor LLᵀ of the covariance K + diag σ² of all observations (equation 37).

    a ∘ c are the covariances of f(x, h) with the observations: mean (a ∘ c)ᵀα, explained |L⁻¹(a ∘ c)|².
    """

    whitener: Float[Array, "n n"]
    solution: Float[Array, " n"]

    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return (a ∘ c)ᵀ (K + diag σ²)⁻¹ y."""
        return inputs @ (latent * self.solution)

    def _whitened(self, inputs: Rows, latent: Row) -> Rows:
        # Rows L⁻¹(a ∘ c), which as a product is several times faster than a solve.
        return (inputs * latent) @ self.whitener.T

    def covariance(self, inputs: Rows, latent: Row, other_inputs: OtherRows, other_latent: Row) -> Covariances:
        """Return (a ∘ c)ᵀ (K + diag σ²)⁻¹ (a' ∘ c')."""
        return self._whitened(inputs, latent) @ self._whitened(other_inputs, other_latent).T

    def variance(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return |L⁻¹(a ∘ c)|²."""
        return jnp.sum(self._whitened(inputs, latent) ** 2, axis=1)

    def bilinear(self, left: Float[Array, "n R C"], right: Float[Array, "m R C"]) -> Covariances:
        """Return (diag B)ᵀ (K + diag σ²)⁻¹ (diag B'): a ∘ c is the diagonal of a cᵀ."""
        first, second = (jnp.diagonal(rows, axis1=1, axis2=2) @ self.whitener.T for rows in (left, right))
        return first @ second.T

    def at_latent(self, latent: Row) -> "DenseExplained":
        """Return L⁻¹ diag c and c ∘ α."""
        return DenseExplained(self.whitener * latent, self.solution * latent)

    def at_inputs(self, inputs: Float[Array, "m n"]) -> tuple["DenseExplained", Float[Array, "m n"]]:
        """Return itself: nothing can be summed before the latents are known."""
        return self, inputs


class Process(eqx.Module):
    """f given data and hyperparameters; several processes are stacked along a leading axis."""

    inputs: Features
    latents: Features
    explained: Explained


def process_of_fit(model: Posterior) -> Process:
    """Return the process of a variational fit, q(v) being that of its inducing variables."""
    covariance = model.covariance
    if isinstance(covariance, KroneckerCovariance):
        # S = (U_H ⊗ U_X) diag(vec W) (U_H ⊗ U_X)ᵀ: in turned features I − S is diagonal.
        weights = covariance.input_basis.T @ model.mean @ covariance.latent_basis
        return Process(
            _whitened_features(model.input_basis, covariance.input_basis),
            _whitened_features(model.latent_basis, covariance.latent_basis),
            KroneckerExplained(weights, 1 - covariance.variances),
        )
    inputs, latents = (jnp.eye(size, dtype=model.mean.dtype) for size in model.mean.shape)
    missing = latents[:, :, None, None] * inputs - covariance.blocks  # δ_jk I − S_jk
    return Process(
        _whitened_features(model.input_basis),
        _whitened_features(model.latent_basis),
        InducingExplained(model.mean, missing),
    )


def _whitened_features(own: Basis, rotation: Float[Array, "N N"] | None = None) -> WhitenedFeatures:
    return WhitenedFeatures(own.kernel, own.points, own.factor, rotation)


def process_of_draw(draw: Draws, data: LikelihoodData) -> Process:
    """Return the process given one draw, ``draw`` being one entry along the leading axis of all."""
    if isinstance(data, GridData):
        return _on_grid(draw, data)
    if isinstance(data, ScatteredData):
        return _on_scattered(draw, data)
    return _on_sparse(draw, data)


def processes_of_draws(draws: Draws, data: LikelihoodData) -> Process:
    """Return the processes of several draws, made one after the other."""
    return jax.lax.map(lambda draw: process_of_draw(draw, data), draws)


def _on_grid(draw: Draws, data: GridData) -> Process:
    # a(x) = U_Xᵀk_X(X, x), c(h) = U_Hᵀ diag(1/σ_d) k_H(H, h), W_ij = 1/(1 + λ^X_i λ^H_j) (equation 36)
    deviation = jnp.sqrt(data.noise(jnp.broadcast_to(draw.noise_variance, (data.n_conditions,))))
    scaled = gram(draw.latent_kernel, draw.latents) / jnp.outer(deviation, deviation)
    input_values, input_basis = jnp.linalg.eigh(gram(draw.input_kernel, data.inputs))
    latent_values, latent_basis = jnp.linalg.eigh(scaled)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ (data.outputs / deviation) @ latent_basis  # U_Xᵀ Y diag(1/σ_d) U_H
    return Process(
        CovarianceFeatures(draw.input_kernel, data.inputs, input_basis),
        CovarianceFeatures(draw.latent_kernel, draw.latents, latent_basis / deviation[:, None]),
        KroneckerExplained(shrinkage * rotated, shrinkage),
    )


def _on_scattered(draw: Draws, data: ScatteredData) -> Process:
    noise = data.noise(jnp.broadcast_to(draw.noise_variance, (draw.latents.shape[0],)))
    scale = data.present / jnp.sqrt(noise)  # zero in empty rows, which so say nothing
    between = gram(draw.latent_kernel, draw.latents)[data.conditions].T[data.conditions]
    scaled = gram(draw.input_kernel, data.inputs) * between * scale[:, None] * scale
    factor = jnp.linalg.cholesky(jnp.eye(len(scale)) + scaled)  # of I + K/(σσᵀ): no eigenvalue is below one
    whitener = triangular_inverse(factor) * scale  # L⁻¹ of K + diag σ²
    return Process(
        CovarianceFeatures(draw.input_kernel, data.inputs),
        CovarianceFeatures(draw.latent_kernel, draw.latents, repeats=data.conditions),
        DenseExplained(whitener, (whitener @ data.outputs) @ whitener),  # α = L⁻ᵀL⁻¹y
    )


def _on_sparse(draw: Draws, data: SparseData) -> Process:
    parameters = Parameters(
        input_kernel=draw.input_kernel,
        latent_kernel=draw.latent_kernel,
        inducing_inputs=data.inducing_inputs,
        inducing_latents=draw.latents[data.inducing_conditions],
        latent_mean=draw.latents,
        latent_variance=jnp.zeros_like(draw.latents),
        noise_variance=draw.noise_variance,
    )
    mean, covariance = optimal_inducing(quadratic(parameters, data.observed, careful=True))
    return process_of_fit(Posterior(parameters, *gram_factors(parameters), mean, covariance))
