"""The process f given data and hyperparameters, for latents that are given.

Whatever the data and the inference, what the data say of f is a sum of products of features a(x) of an input and c(h)
of latents (docs/mathematics.md, equations 35 to 38): the mean of f(x, h), and the part of its prior covariance
k_H(h, h') k_X(x, x') that the data explain. A variational fit is one such process, a posterior draw another.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.evidence import kronecker_shrinkage
from lvmogp.algebra.linalg import triangular_inverse
from lvmogp.kernels.covariances import Kernel, cross, gram
from lvmogp.kernels.psi_statistics import LatentGaussians, psi1
from lvmogp.model.draws import Draws
from lvmogp.model.layouts import GridData, LikelihoodData, ScatteredData, SparseData
from lvmogp.model.posterior import KroneckerCovariance, Posterior, posterior
from lvmogp.typing import Array, Float

# Features of inputs and of other inputs, one row per point, and of one latent.
Rows = Float[Array, "n R"]
OtherRows = Float[Array, "m R"]
Row = Float[Array, " C"]
Covariances = Float[Array, "n m"]


class Features(eqx.Module):
    """What inputs, or latents, are to the process: a row k(x, X)C for each, from covariances with known points X.

    C whitens the features, turns them into a basis of eigenvectors, or both; without it they are the covariances.
    """

    kernel: Kernel
    points: Float[Array, "N Q"]
    mixing: Float[Array, "N R"] | None = None

    def __call__(self, points: Float[Array, "n Q"]) -> Float[Array, "n R"]:
        """Return k(x, X)C."""
        return self._mixed(cross(self.kernel, points, self.points))

    def expected(self, latents: LatentGaussians) -> Float[Array, "D R"]:
        """Return the mean features of uncertain latents, ⟨k(h_d, Z)⟩C."""
        return self._mixed(psi1(self.kernel, self.points, latents))

    def _mixed(self, covariances: Float[Array, "n N"]) -> Float[Array, "n R"]:
        return covariances if self.mixing is None else covariances @ self.mixing


# What the data say comes in three forms that answer the same questions, in terms of the features of inputs and latents:
# - ``mean`` of f(·, h) at inputs;
# - ``covariance``, ``variance``: what they take from the prior covariance of f(·, h) and f(·, h'), or at each input;
# - ``at_latent``: the same of f(·, h) alone, for which the features of the latent are a single one.


class KroneckerExplained(eqx.Module):
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

    def at_latent(self, latent: Row) -> "KroneckerExplained":
        """Return Bc and Wc² as columns."""
        return KroneckerExplained((self.weights @ latent)[:, None], (self.shrinkage @ latent**2)[:, None])


class InducingExplained(eqx.Module):
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

    def at_latent(self, latent: Row) -> "InducingExplained":
        """Return Mc and Σ_jk c_j c_k (I − S)_jk."""
        return InducingExplained((self.weights @ latent)[:, None], self._contracted(latent, latent)[None, None])


class DenseExplained(eqx.Module):
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

    def at_latent(self, latent: Row) -> "DenseExplained":
        """Return L⁻¹ diag c and c ∘ α."""
        return DenseExplained(self.whitener * latent, self.solution * latent)


Explained = KroneckerExplained | InducingExplained | DenseExplained


def at_inputs(explained: Explained, inputs: Float[Array, "m R"]) -> tuple[Explained, Float[Array, "m _"]]:
    """Return what data say at given inputs, for many latents, with the features that these inputs have there."""
    if not isinstance(explained, InducingExplained):
        return explained, inputs  # nothing else can be summed before the latents are known
    # AM and A(I − S)_jkAᵀ, in which the inputs are unit vectors
    blocks = jnp.einsum("mx,jkxy,ny->jkmn", inputs, explained.missing, inputs)
    return InducingExplained(inputs @ explained.weights, blocks), jnp.eye(inputs.shape[0], dtype=inputs.dtype)


class Process(eqx.Module):
    """f given data and hyperparameters; several processes are stacked along a leading axis."""

    inputs: Features
    latents: Features
    explained: Explained


def process_of_fit(model: Posterior) -> Process:
    """Return the process of a variational fit, q(v) being that of its inducing variables."""
    bases, covariance = (model.input_basis, model.latent_basis), model.covariance
    whiteners = [triangular_inverse(own.factor).T for own in bases]  # L⁻ᵀ
    if isinstance(covariance, KroneckerCovariance):
        # S = (U_H ⊗ U_X) diag(vec W) (U_H ⊗ U_X)ᵀ: in turned features I − S is diagonal.
        turns = covariance.input_basis, covariance.latent_basis
        whiteners = [whitener @ turn for whitener, turn in zip(whiteners, turns, strict=True)]
        explained = KroneckerExplained(turns[0].T @ model.mean @ turns[1], 1 - covariance.variances)
    else:
        identity, other = (jnp.eye(size, dtype=model.mean.dtype) for size in model.mean.shape)
        missing = other[:, :, None, None] * identity - covariance.blocks  # δ_jk I − S_jk
        explained = InducingExplained(model.mean, missing)
    inputs, latents = (Features(own.kernel, own.points, mixing) for own, mixing in zip(bases, whiteners, strict=True))
    return Process(inputs, latents, explained)


def explained_of_sums(process: Process, left: Float[Array, "n R C"], right: Float[Array, "m R C"]) -> Covariances:
    """Return the explained covariance of sums over latents of a fit, B = Σ a cᵀ being given for each row."""
    explained = process.explained
    if isinstance(explained, KroneckerExplained):  # Σ_ij W_ij B_ij B'_ij
        return (left * explained.shrinkage).reshape(left.shape[0], -1) @ right.reshape(right.shape[0], -1).T
    assert isinstance(explained, InducingExplained)  # the latents of a draw are known
    return jnp.einsum("nxj,jkxy,myk->nm", left, explained.missing, right)  # vec(B)ᵀ (I − S) vec(B')


def processes_of_draws(draws: Draws, data: LikelihoodData) -> Process:
    """Return the processes given each of several draws, made one after the other."""

    def of_draw(draw: Draws) -> Process:
        if isinstance(data, SparseData):
            known = data.parameters(draw.input_kernel, draw.latent_kernel, draw.latents, draw.noise_variance)
            return process_of_fit(posterior(known, data.observed))
        deviation = jnp.sqrt(data.noise(jnp.broadcast_to(draw.noise_variance, draw.latents.shape[:1])))
        return _on_grid(draw, data, deviation) if isinstance(data, GridData) else _on_scattered(draw, data, deviation)

    return jax.lax.map(of_draw, draws)


def _on_grid(draw: Draws, data: GridData, deviation: Float[Array, " D"]) -> Process:
    # a(x) = U_Xᵀk_X(X, x), c(h) = U_Hᵀ diag(1/σ_d) k_H(H, h), W_ij = 1/(1 + λ^X_i λ^H_j) (equation 36)
    scaled = gram(draw.latent_kernel, draw.latents) / jnp.outer(deviation, deviation)
    input_values, input_basis = jnp.linalg.eigh(gram(draw.input_kernel, data.inputs))
    latent_values, latent_basis = jnp.linalg.eigh(scaled)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ (data.outputs / deviation) @ latent_basis  # U_Xᵀ Y diag(1/σ_d) U_H
    return Process(
        Features(draw.input_kernel, data.inputs, input_basis),
        Features(draw.latent_kernel, draw.latents, latent_basis / deviation[:, None]),
        KroneckerExplained(shrinkage * rotated, shrinkage),
    )


def _on_scattered(draw: Draws, data: ScatteredData, deviation: Float[Array, " n"]) -> Process:
    # a(x) = k_X(X, x) and c(h) = k_H(h_d, h) of the condition of each observation (equation 37)
    scale = data.present / deviation  # zero in empty rows, which so say nothing
    scaled = data.gram(draw.input_kernel, draw.latent_kernel, draw.latents, scale)
    factor = jnp.linalg.cholesky(jnp.eye(len(scale)) + scaled)  # of I + K/(σσᵀ): no eigenvalue is below one
    whitener = triangular_inverse(factor) * scale  # L⁻¹ of K + diag σ²
    return Process(
        Features(draw.input_kernel, data.inputs),
        Features(draw.latent_kernel, draw.latents[data.conditions]),
        DenseExplained(whitener, (whitener @ data.outputs) @ whitener),  # α = L⁻ᵀL⁻¹y
    )
