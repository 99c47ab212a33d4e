"""The process f given data and hyperparameters, for latents that are given.

Whatever the data and the inference, what the data say of f is a sum of products of features a(x) of an input and c(h)
of latents (docs/mathematics.md, equations 35 to 38): the mean of f(x, h), and the part of its prior covariance
k_H(h, h') k_X(x, x') that the data explain. A variational fit is one such process, a posterior draw another. Features
of several terms are stacked. Those of trained conditions' own curves come last among the features of inputs; what the
data say of them depends on which condition it is, by its number, −1 standing for a condition that was never trained.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.evidence import kronecker_shrinkage
from lvmogp.algebra.linalg import triangular_inverse
from lvmogp.kernels.covariances import Kernel, cross, gram, stacked_diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians, psi1
from lvmogp.model.draws import Draws
from lvmogp.model.expected_likelihood import OwnCurves, own_curves
from lvmogp.model.features import parts_of, stacked
from lvmogp.model.layouts import Data, GridData, LikelihoodData, ScatteredData, SparseData
from lvmogp.model.posterior import KroneckerCovariance, Posterior, by_pairs, posterior
from lvmogp.typing import Array, Float, Int

# Features of inputs and of other inputs, one row per point, and of one latent.
Rows = Float[Array, "n R"]
OtherRows = Float[Array, "m R"]
Row = Float[Array, " C"]
Covariances = Float[Array, "n m"]
# The number of a trained condition, −1 of one that was never trained.
Number = Int[Array, ""] | int


class Features(eqx.Module):
    """What inputs, or latents, are to the process: a row k(x, X)C for each, from covariances with known points X.

    C whitens the features, turns them into a basis of eigenvectors, or both; without it they are the covariances. Those
    of several kernels are side by side, followed by ``n_constant`` ones for a curve that all conditions share.
    """

    kernels: tuple[Kernel, ...]
    points: Float[Array, "N Q"]
    mixing: Float[Array, "kernels N R"] | None = None
    n_constant: int = eqx.field(static=True, default=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many features each kernel has, and the constant."""
        each = self.points.shape[-2] if self.mixing is None else self.mixing.shape[-1]
        return (each,) * len(self.kernels) + ((self.n_constant,) if self.n_constant else ())

    def __call__(self, points: Float[Array, "n Q"]) -> Float[Array, "n R"]:
        """Return k(x, X)C."""
        return self._mixed([cross(kernel, points, self.points) for kernel in self.kernels], len(points))

    def expected(self, latents: LatentGaussians) -> Float[Array, "D R"]:
        """Return the mean features of uncertain latents, ⟨k(h_d, Z)⟩C."""
        return self._mixed([psi1(kernel, self.points, latents) for kernel in self.kernels], len(latents.mean))

    def _mixed(self, covariances: list[Float[Array, "n N"]], n_points: int) -> Float[Array, "n R"]:
        if self.mixing is not None:
            pairs = zip(covariances, self.mixing, strict=True)
            covariances = [covariance @ mixing for covariance, mixing in pairs]
        ones = [jnp.ones((n_points, self.n_constant), self.points.dtype)] if self.n_constant else []
        return stacked([*covariances, *ones])

    def prior(self, points: Float[Array, "n Q"], others: Float[Array, "m Q"]) -> Float[Array, "terms n m"]:
        """Return the prior covariances of each kernel, one for the constant."""
        ones = [jnp.ones((len(points), len(others)), points.dtype)] if self.n_constant else []
        return jnp.stack([*(cross(kernel, points, others) for kernel in self.kernels), *ones])

    def variances(self, points: Float[Array, "n Q"]) -> Float[Array, "terms n"]:
        """Return the prior variances of each kernel, one for the constant."""
        if not self.n_constant:
            return stacked_diagonal(self.kernels, points)
        ones = jnp.ones((1, len(points)), points.dtype)
        return jnp.concatenate([stacked_diagonal(self.kernels, points), ones]) if self.kernels else ones


# What the data say comes in three forms that answer the same questions, in terms of the features of inputs and latents:
# - ``mean`` of f(·, h) at inputs, and ``covariance`` between two: what they take from the prior covariance of f(·, h)
#   and f(·, h'), for conditions of given numbers;
# - ``at_latent``: the same of the curve of one condition at one latent, in terms of the features of inputs alone.


class MatrixAtLatent(eqx.Module):
    """What the data say of the curve of one condition: mean aᵀw, explained aᵀΩa', Ω being a matrix or a diagonal."""

    weights: Float[Array, "*P R"]
    matrix: Float[Array, "*P_R_R"]
    is_diagonal: bool = eqx.field(static=True, default=False)

    def mean(self, inputs: Rows) -> Float[Array, " n"]:
        """Return aᵀw."""
        return inputs @ self.weights

    def covariance(self, inputs: Rows, others: OtherRows) -> Covariances:
        """Return aᵀΩa'."""
        return (inputs * self.matrix if self.is_diagonal else inputs @ self.matrix) @ others.T

    def variance(self, inputs: Rows) -> Float[Array, " n"]:
        """Return aᵀΩa."""
        return inputs**2 @ self.matrix if self.is_diagonal else jnp.sum((inputs @ self.matrix) * inputs, axis=1)


class DenseAtLatent(eqx.Module):
    """What the data say of the curve of one condition by the factor over all observations: features c of each kernel.

    With a ∘ c summed over kernels: mean (a ∘ c)ᵀα, explained |L⁻¹(a ∘ c)|².
    """

    whitener: Float[Array, "n n"]
    solution: Float[Array, " n"]
    features: Float[Array, "kernels n"]

    def _combined(self, inputs: Rows) -> Float[Array, "n observed"]:
        # Σ a ∘ c: the covariances with the observations
        return jnp.einsum("nkm,km->nm", inputs.reshape(len(inputs), *self.features.shape), self.features)

    def whitened(self, inputs: Rows) -> Float[Array, "n observed"]:
        """Return rows L⁻¹(a ∘ c), which as a product is several times faster than a solve."""
        return self._combined(inputs) @ self.whitener.T

    def mean(self, inputs: Rows) -> Float[Array, " n"]:
        """Return (a ∘ c)ᵀα."""
        return self._combined(inputs) @ self.solution

    def covariance(self, inputs: Rows, others: OtherRows) -> Covariances:
        """Return (L⁻¹(a ∘ c))ᵀ L⁻¹(a' ∘ c)."""
        return self.whitened(inputs) @ self.whitened(others).T

    def variance(self, inputs: Rows) -> Float[Array, " n"]:
        """Return |L⁻¹(a ∘ c)|²."""
        return jnp.sum(self.whitened(inputs) ** 2, axis=1)


AtLatent = MatrixAtLatent | DenseAtLatent


class KroneckerExplained(eqx.Module):
    """Sums of products, by eigenvectors (equation 36): mean aᵀBc, explained Σ_ij W_ij a_i a'_i c_j c'_j."""

    weights: Float[Array, "R C"]
    shrinkage: Float[Array, "R C"]

    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return aᵀBc."""
        return inputs @ (self.weights @ latent)

    def covariance(
        self, inputs: Rows, latent: Row, others: OtherRows, other_latent: Row, numbers: tuple[Number, Number]
    ) -> Covariances:
        """Return Σ_i a_i a'_i (W (c ∘ c'))_i."""
        return (inputs * (self.shrinkage @ (latent * other_latent))) @ others.T

    def at_latent(self, latent: Row, number: Number) -> AtLatent:
        """Return Bc and the diagonal Wc²."""
        return MatrixAtLatent(self.weights @ latent, self.shrinkage @ latent**2, is_diagonal=True)


class InducingExplained(eqx.Module):
    """By q(v) = N(vec M, S) (equation 38): mean aᵀMc, explained (c ⊗ a)ᵀ(I − S)(c' ⊗ a').

    ``missing`` is I − S in its M_X × M_X blocks, ``sizes`` the numbers of latent features of the terms.
    """

    weights: Float[Array, "M_X M_C"]
    missing: Float[Array, "M_C M_C M_X M_X"]
    own: OwnCurves | None
    sizes: tuple[int, ...] = eqx.field(static=True)

    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return aᵀMc of a condition that was never trained, of whose own curve nothing is known."""
        found = self._weights(latent)
        return inputs[:, : len(found)] @ found

    def _weights(self, latent: Row) -> Float[Array, " M_F"]:
        return stacked([self.weights[:, part] @ latent[part] for part in parts_of(self.sizes)])

    def _contracted(self, latent: Row, other: Row) -> Float[Array, "M_F M_F"]:
        # Σ_jk c_j c'_k (I − S)_jk between each pair of terms; the products of features first, so that many latents are
        # one matrix product
        products = latent[:, None] * other
        return by_pairs(
            lambda one, two: jnp.einsum("jk,jkxy->xy", products[one, two], self.missing[one, two]), self.sizes
        )

    def _own(self, number: Number) -> OwnCurves:
        # Of the condition of this number; zeros for one that was never trained.
        assert self.own is not None
        return jax.tree.map(lambda leaf: jnp.where(number >= 0, leaf[jnp.maximum(number, 0)], 0.0), self.own)

    def _matrix(self, latent: Row, other: Row, numbers: tuple[Number, Number]) -> Float[Array, "M_A M_A"]:
        explained = self._contracted(latent, other)
        if self.own is None:
            return explained
        # With C = Cov(w_f, w_f') and the gains J of the own curves on w_f: explained of (w_f, w_d) is
        # [[Ω, CJ'ᵀ], [JC, −JCJ'ᵀ]] (equation 60).
        products = latent * other
        shared = [jnp.sum(products[part]) for part in parts_of(self.sizes)]
        identity = jnp.eye(len(self.weights), dtype=explained.dtype)
        covariance = jax.scipy.linalg.block_diag(*(each * identity for each in shared)) - explained
        gain, other_gain = (self._own(number).gain for number in numbers)
        left, right = gain @ covariance, covariance @ other_gain.T
        return jnp.block([[explained, right], [left, -left @ other_gain.T]])

    def covariance(
        self, inputs: Rows, latent: Row, others: OtherRows, other_latent: Row, numbers: tuple[Number, Number]
    ) -> Covariances:
        """Return Σ_jk c_j c'_k aᵀ(I − S)_jk a' of two conditions; of one alone ``at_latent`` knows more."""
        return inputs @ self._matrix(latent, other_latent, numbers) @ others.T

    def at_latent(self, latent: Row, number: Number) -> AtLatent:
        """Return Mc and Σ_jk c_j c_k (I − S)_jk, with what is known of the condition's own curve."""
        weights, matrix = self._weights(latent), self._matrix(latent, latent, (number, number))
        if self.own is None:
            return MatrixAtLatent(weights, matrix)
        own, n_terms = self._own(number), len(weights)
        return MatrixAtLatent(
            jnp.concatenate([weights, own.offset - own.gain @ weights]),
            matrix.at[n_terms:, n_terms:].add(own.reduction),
        )


class DenseExplained(eqx.Module):
    """By the factor LLᵀ of the covariance K + diag σ² of all observations (equation 37).

    a ∘ c, summed over terms, are the covariances of f(x, h) with the observations: mean (a ∘ c)ᵀα, explained
    |L⁻¹(a ∘ c)|². That of a condition's own curve with the observations of the condition is ρ_d² k_o; ``conditions``
    are those of the observations, and ``own`` is ρ_d², where conditions have such curves.
    """

    whitener: Float[Array, "n n"]
    solution: Float[Array, " n"]
    conditions: Int[Array, " n"]
    own: Float[Array, " D"] | None

    def mean(self, inputs: Rows, latent: Row) -> Float[Array, " n"]:
        """Return (a ∘ c)ᵀ (K + diag σ²)⁻¹ y of a condition that was never trained."""
        return self.at_latent(latent, jnp.asarray(-1)).mean(inputs)

    def covariance(
        self, inputs: Rows, latent: Row, others: OtherRows, other_latent: Row, numbers: tuple[Number, Number]
    ) -> Covariances:
        """Return (a ∘ c)ᵀ (K + diag σ²)⁻¹ (a' ∘ c')."""
        one, other = (self.at_latent(*each) for each in zip((latent, other_latent), numbers, strict=True))
        return one.whitened(inputs) @ other.whitened(others).T

    def at_latent(self, latent: Row, number: Number) -> DenseAtLatent:
        """Return c of each kernel; that of the own curve is ρ_d² at the observations of the condition."""
        features = latent.reshape(-1, len(self.solution))
        if self.own is not None:
            same = (self.conditions == number) * self.own[jnp.maximum(number, 0)]
            features = jnp.concatenate([features, same[None]])
        return DenseAtLatent(self.whitener, self.solution, features)


Explained = KroneckerExplained | InducingExplained | DenseExplained


def at_inputs(explained: Explained, inputs: Float[Array, "m R"]) -> tuple[Explained, Float[Array, "m _"]]:
    """Return what data say at given inputs, for many latents, with the features that these inputs have there.

    Own curves are left out: the conditions asked about were never trained.
    """
    if not isinstance(explained, InducingExplained):
        return explained, inputs  # nothing else can be summed before the latents are known
    # AM and A(I − S)_jkAᵀ, in which the inputs are unit vectors; A is that of the term of each latent feature
    n_inputs, parts = len(explained.weights), parts_of(explained.sizes)
    own = [inputs[:, i * n_inputs : (i + 1) * n_inputs] for i in range(len(parts))]
    weights = stacked([rows @ explained.weights[:, part] for rows, part in zip(own, parts, strict=True)])
    halves = [jnp.einsum("mx,jkxy->jkmy", rows, explained.missing[part]) for rows, part in zip(own, parts, strict=True)]
    left = jnp.concatenate(halves) if len(halves) > 1 else halves[0]
    blocks = [jnp.einsum("jkmy,ny->jkmn", left[:, part], rows) for rows, part in zip(own, parts, strict=True)]
    missing = jnp.concatenate(blocks, axis=1) if len(blocks) > 1 else blocks[0]
    restricted = InducingExplained(weights, missing, None, (sum(explained.sizes),))
    return restricted, jnp.eye(inputs.shape[0], dtype=inputs.dtype)


class Process(eqx.Module):
    """f given data and hyperparameters; several processes are stacked along a leading axis.

    ``inputs`` are the features of the terms and, if ``has_own``, of the conditions' own curves.
    """

    inputs: Features
    latents: Features
    explained: Explained
    has_own: bool = eqx.field(static=True, default=False)

    def scales(self, latent: Float[Array, " Q_H"], own: Float[Array, ""]) -> Float[Array, " kernels"]:
        """Return what multiplies each input kernel in the prior covariance of one condition: k_H(h, h), and ρ²."""
        of_terms = self.latents.variances(latent[None])[:, 0]
        return jnp.append(of_terms, own) if self.has_own else of_terms


def process_of_fit(model: Posterior, own: OwnCurves | None = None) -> Process:
    """Return the process of a variational fit, q(v) being that of its inducing variables."""
    kernels, covariance = model.parameters.kernels, model.covariance
    input_mixing, latent_mixing = (
        jnp.stack([triangular_inverse(factor).T for factor in factors]) if len(factors) else None  # L⁻ᵀ
        for factors in (model.input_factors, model.latent_factors)
    )
    if isinstance(covariance, KroneckerCovariance) and kernels.is_plain:
        assert input_mixing is not None
        assert latent_mixing is not None
        # S = (U_H ⊗ U_X) diag(vec W) (U_H ⊗ U_X)ᵀ: in turned features I − S is diagonal.
        turns = covariance.input_basis, covariance.latent_basis
        input_mixing, latent_mixing = input_mixing @ turns[0], latent_mixing @ turns[1]
        explained = KroneckerExplained(turns[0].T @ model.mean @ turns[1], 1 - covariance.variances)
    else:
        identity, other = (jnp.eye(size, dtype=model.mean.dtype) for size in model.mean.shape)
        missing = other[:, :, None, None] * identity - covariance.blocks  # δ_jk I − S_jk
        explained = InducingExplained(model.mean, missing, own, model.latent_basis.sizes)
    parameters = model.parameters
    return Process(
        Features(kernels.of_inputs, parameters.inducing_inputs, input_mixing),
        Features(kernels.of_latents, parameters.inducing_latents, latent_mixing, int(kernels.has_shared)),
        explained,
        has_own=kernels.own is not None,
    )


def own_of_fit(model: Posterior, data: Data | None) -> OwnCurves | None:
    """Return what the data say of the curves that are conditions' own, where they have such curves."""
    if model.parameters.kernels.own is None or data is None:
        return None
    return own_curves(model.parameters, data)


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
        own = draw.own_per_condition
        if isinstance(data, SparseData):
            known = data.parameters(draw.kernels, draw.latents, draw.noise_variance, own)
            fitted = posterior(known, data.observed)
            return process_of_fit(fitted, own_of_fit(fitted, data.observed))
        deviation = jnp.sqrt(data.noise(draw.noise_per_condition))
        if isinstance(data, GridData):
            return _on_grid(draw, data, deviation)
        return _on_scattered(draw, data, deviation, own)

    return jax.lax.map(of_draw, draws)


def _on_grid(draw: Draws, data: GridData, deviation: Float[Array, " D"]) -> Process:
    # a(x) = U_Xᵀk_X(X, x), c(h) = U_Hᵀ diag(1/σ_d) k_H(H, h), W_ij = 1/(1 + λ^X_i λ^H_j) (equation 36)
    input_kernels, latent_kernels = draw.kernels.of_inputs, draw.kernels.of_latents
    scaled = gram(latent_kernels[0], draw.latents) / jnp.outer(deviation, deviation)
    input_values, input_basis = jnp.linalg.eigh(gram(input_kernels[0], data.inputs))
    latent_values, latent_basis = jnp.linalg.eigh(scaled)
    shrinkage = kronecker_shrinkage(input_values, latent_values)
    rotated = input_basis.T @ (data.outputs / deviation) @ latent_basis  # U_Xᵀ Y diag(1/σ_d) U_H
    return Process(
        Features(input_kernels, data.inputs, input_basis[None]),
        Features(latent_kernels, draw.latents, (latent_basis / deviation[:, None])[None]),
        KroneckerExplained(shrinkage * rotated, shrinkage),
    )


def _on_scattered(draw: Draws, data: ScatteredData, deviation: Float[Array, " n"], own: Float[Array, " D"]) -> Process:
    # a(x) = k_X(X, x) and c(h) = k_H(h_d, h) of the condition of each observation (equation 37)
    kernels, n_rows = draw.kernels, len(data.outputs)
    scale = data.present / deviation  # zero in empty rows, which so say nothing
    scaled = data.gram(kernels, draw.latents, own, scale)
    factor = jnp.linalg.cholesky(jnp.eye(n_rows) + scaled)  # of I + K/(σσᵀ): no eigenvalue is below one
    whitener = triangular_inverse(factor) * scale  # L⁻¹ of K + diag σ²
    solution = (whitener @ data.outputs) @ whitener  # α = L⁻ᵀL⁻¹y
    has_own = kernels.own is not None
    return Process(
        Features(kernels.of_inputs, data.inputs),
        Features(kernels.of_latents, draw.latents[data.conditions], n_constant=n_rows if kernels.has_shared else 0),
        DenseExplained(whitener, solution, data.conditions, own if has_own else None),
        has_own=has_own,
    )
