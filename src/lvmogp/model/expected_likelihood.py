"""The expected log-likelihood as a quadratic in the whitened inducing variables.

⟨log p(Y|F)⟩ under p(F|v, H) q(H) is  constant + bᵀv − ½ vᵀGv  with b = vec(B). Every bound and every
posterior is one use of it (docs/mathematics.md, equations 5 to 9):

- G = A_H ⊗ A_X on a grid, A_X = Σ_n a_n a_nᵀ, A_H = Σ_d T_d/σ_d²;
- G = Σ_d T_d ⊗ A_d/σ_d² on long data, A_d = Σ_{n in d} a_n a_nᵀ;
- B = Σ_d (Σ_{n in d} y_n a_n/σ_d²) ⟨c(h_d)⟩ᵀ;
- constant = −½ Σ_d [N_d log 2πσ_d² + ‖y_d‖²/σ_d² + (ψ_d tr K_d − tr T_d tr A_d)/σ_d²].

Where measurements have known variances s_n², σ_d² + s_n² takes the place of σ_d² in every sum (equation 45).
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra import linalg
from lvmogp.algebra.evidence import dense_evidence, kronecker_evidence
from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.ground.precision import in_precision
from lvmogp.kernels import psi_statistics
from lvmogp.kernels.covariances import Kernel, cross, diagonal, gram
from lvmogp.kernels.psi_statistics import LatentGaussians, psi0, psi1, psi2, weighted_covariance, weighted_psi2
from lvmogp.model.layouts import Data, GridData, LongData
from lvmogp.model.parameters import KroneckerInducing, Parameters
from lvmogp.typing import Array, Float, Scalar

# Covariances of observations with inducing inputs that long data are computed from at a time: as many as a cache holds.
_ELEMENTS_ON_CPU, _ELEMENTS_ON_ACCELERATOR = 2**18, 2**24
# An error of a bound, for each observation, that cannot lead a search astray.
_HARMLESS_ERROR = 0.01


class Basis(eqx.Module):
    """Inducing points of one kernel with the Cholesky factor of their gram matrix, K = L Lᵀ."""

    kernel: Kernel
    points: Float[Array, "m Q"]
    factor: Float[Array, "m m"]

    def features(self, points: Float[Array, "n Q"]) -> Float[Array, "n m"]:
        """Rows (L⁻¹ k_u(x))ᵀ: a(x) of inputs, c(h) of given latents."""
        return linalg.whiten(self.factor, cross(self.kernel, self.points, points)).T


class LatentMoments(eqx.Module):
    """What a distribution over the latents of each condition means for the model.

    ``prior_variance`` ψ_d = ⟨k_H(h_d, h_d)⟩, ``mean`` ⟨c(h_d)⟩ = L_H⁻¹ Ψ_dᵀ and
    ``second`` T_d = ⟨c(h_d) c(h_d)ᵀ⟩ = L_H⁻¹ Φ_d L_H⁻ᵀ, with c(h) = L_H⁻¹ k_u(h).
    """

    prior_variance: Float[Array, " D"]
    mean: Float[Array, "D M_H"]
    second: Float[Array, "D M_H M_H"]


def basis(kernel: Kernel, points: Float[Array, "m Q"]) -> Basis:
    """Factorise the gram matrix of the inducing points."""
    return Basis(kernel, points, linalg.cholesky(gram(kernel, points)))


def bases(parameters: Parameters) -> tuple[Basis, Basis]:
    """Factorise the gram matrices of the inducing inputs and of the inducing latents."""
    inputs = basis(parameters.input_kernel, parameters.inducing_inputs)
    return inputs, basis(parameters.latent_kernel, parameters.inducing_latents)


def whitened_mean(latent_basis: Basis, latents: LatentGaussians) -> Float[Array, "D M_H"]:
    """Rows ⟨c(h_d)⟩ᵀ = Ψ_d L_H⁻ᵀ."""
    return linalg.whiten(latent_basis.factor, psi1(latent_basis.kernel, latent_basis.points, latents).T).T


def latent_moments(latent_basis: Basis, latents: LatentGaussians) -> LatentMoments:
    """Moments of the whitened latent features under independent Gaussians, in double precision.

    Whitening can cost seven digits where inducing latents crowd, which is all that single precision has, so that only
    the covariance is whitened on both sides: T_d = ⟨c⟩⟨c⟩ᵀ + L_H⁻¹ Cov_d L_H⁻ᵀ (equation 50).
    """
    latent_basis, latents = in_precision((latent_basis, latents), "float64")
    mean = whitened_mean(latent_basis, latents)
    covariance = psi_statistics.feature_covariance(latent_basis.kernel, latent_basis.points, latents)
    return LatentMoments(
        prior_variance=psi0(latent_basis.kernel, latents),
        mean=mean,
        second=mean[:, :, None] * mean[:, None, :] + linalg.whiten_both_sides(latent_basis.factor, covariance),
    )


class ConstantTerm(eqx.Module):
    """What does not depend on v, in parts: −½ [Σ_n log 2π/p_n + Σ_n p_n y_n² + residual] with the precisions p_n.

    ``count`` is the number of observations, ``signal`` the prior variance of the function Σ_d ψ_d tr K_d, and
    ``residual`` what inducing points leave of it, Σ_d (ψ_d tr K_d − tr T_d tr A_d), both times the precisions.
    """

    count: Scalar
    log_precision: Scalar
    squares: Scalar
    signal: Scalar
    residual: Scalar

    def log_likelihood(self, explained: Scalar) -> Scalar:
        """Add ½⟨2bᵀv − vᵀGv⟩, what v explains, to the constant; NaN where rounding errors made it up."""
        total = -(self.count * LOG_2PI - self.log_precision + self.squares + self.residual) / 2
        # Neither is ever negative. A large prior variance, or hardly any noise, multiplies rounding errors until they
        # look like a gain that any search would take.
        least = jnp.minimum(self.squares - explained, self.residual)
        return jnp.where(least < -_HARMLESS_ERROR * self.count, jnp.nan, total + explained / 2)


class GridQuadratic(eqx.Module):
    """constant + vec(B)ᵀv − ½ vᵀGv with G = A_H ⊗ A_X: two small matrices."""

    constant: ConstantTerm
    linear: Float[Array, "M_X M_H"]
    input_gram: Float[Array, "M_X M_X"]
    latent_gram: Float[Array, "M_H M_H"]

    def evidence(self) -> tuple[Scalar, Scalar]:
        """Return log|I + G| and bᵀ(I + G)⁻¹b without forming G."""
        return kronecker_evidence(self.input_gram, self.latent_gram, self.linear)

    def dense_gram(self) -> Float[Array, "MM MM"]:
        """Return G = A_H ⊗ A_X."""
        return jnp.kron(self.latent_gram, self.input_gram)

    def kronecker_second_moment(self, inducing: KroneckerInducing) -> Scalar:
        """Return ⟨vᵀGv⟩ = tr(Mᵀ A_X M A_H) + tr(A_X Σ_X) tr(A_H Σ_H)."""
        mean_part = jnp.sum((self.input_gram @ inducing.mean) * (inducing.mean @ self.latent_gram))
        inputs = jnp.sum((self.input_gram @ inducing.input_factor) * inducing.input_factor)
        latents = jnp.sum((self.latent_gram @ inducing.latent_factor) * inducing.latent_factor)
        return mean_part + inputs * latents


class LongQuadratic(eqx.Module):
    """constant + vec(B)ᵀv − ½ vᵀGv with G = Σ_d T_d ⊗ A_d: two small matrices a condition.

    ``latent_seconds`` are Φ_d, not yet whitened, and ``whitener`` is L_H⁻¹: T_d = L_H⁻¹ Φ_d L_H⁻ᵀ. Or they are T_d, and
    ``whitener`` changes nothing.
    """

    constant: ConstantTerm
    linear: Float[Array, "M_X M_H"]
    input_grams: Float[Array, "D M_X M_X"]
    latent_seconds: Float[Array, "D M_H M_H"]
    whitener: Float[Array, "M_H M_H"]

    def evidence(self) -> tuple[Scalar, Scalar]:
        """Return log|I + G| and bᵀ(I + G)⁻¹b by a Cholesky factor of size M_X · M_H."""
        return dense_evidence(self.dense_gram(), linalg.vec(self.linear))

    def dense_gram(self) -> Float[Array, "MM MM"]:
        """Return G = Σ_d T_d ⊗ A_d, as one matrix product over conditions."""
        n_conditions, n_inputs, _ = self.input_grams.shape
        n_latents = self.whitener.shape[0]
        latents = (self.whitener @ self.latent_seconds @ self.whitener.T).reshape(n_conditions, n_latents**2)
        inputs = self.input_grams.reshape(n_conditions, n_inputs**2)
        blocks = (latents.T @ inputs).reshape(n_latents, n_latents, n_inputs, n_inputs)
        return blocks.transpose(0, 2, 1, 3).reshape(n_latents * n_inputs, n_latents * n_inputs)

    def kronecker_second_moment(self, inducing: KroneckerInducing) -> Scalar:
        """Return ⟨vᵀGv⟩ = Σ_d [tr(Mᵀ A_d M T_d) + tr(A_d Σ_X) tr(T_d Σ_H)]."""
        # tr(T_d R) = tr(Φ_d L_H⁻ᵀRL_H⁻¹): whitening R spares whitening a matrix for each condition.
        mapped = inducing.mean @ self.whitener  # M L_H⁻¹
        projected = jnp.einsum("xh,dxy,yk->dhk", mapped, self.input_grams, mapped)
        mean_part = jnp.sum(projected * self.latent_seconds)
        input_factor, latent_factor = inducing.input_factor, self.whitener.T @ inducing.latent_factor  # L_H⁻ᵀ chol Σ_H
        inputs = jnp.tensordot(self.input_grams, input_factor @ input_factor.T)  # tr(A_d Σ_X)
        latents = jnp.tensordot(self.latent_seconds, latent_factor @ latent_factor.T)
        return mean_part + inputs @ latents


Quadratic = GridQuadratic | LongQuadratic


def quadratic(parameters: Parameters, data: Data, *, careful: bool = False) -> Quadratic:
    """Expected log-likelihood of either form of data.

    Whitening a gram matrix costs as many digits as the gram matrix of the inducing points has condition, and small
    noise multiplies what is lost. Where ``careful``, features are whitened before they are squared and only the
    covariance of uncertain ones afterwards (equation 50), which loses hardly any digits and takes longer.
    """
    if isinstance(data, GridData):
        return _grid_quadratic(parameters, data, careful=careful)
    return _long_quadratic(parameters, data, careful=careful)


def _grid_quadratic(parameters: Parameters, data: GridData, *, careful: bool) -> GridQuadratic:
    input_basis, latent_basis = bases(parameters)
    latents, factor = parameters.latents, latent_basis.factor
    kernel, points = latent_basis.kernel, latent_basis.points
    precision = 1 / data.noise(parameters.noise_per_condition)
    covariance = cross(input_basis.kernel, input_basis.points, data.inputs)  # K_uf
    latent_features = whitened_mean(latent_basis, latents)  # rows ⟨c(h_d)⟩ᵀ
    weighted = precision[:, None] * latent_features
    # A_X = AᵀA and B = AᵀY diag(1/σ_d²) ⟨c⟩, beginning with the thinner product with Y.
    if len(points) <= len(input_basis.points):
        input_gram, linear = linalg.whitened_products(input_basis.factor, covariance, data.outputs @ weighted)
    else:
        input_gram, projections = linalg.whitened_products(input_basis.factor, covariance, data.outputs)
        linear = projections @ weighted
    # A_H = L_H⁻¹ (Σ_d Φ_d/σ_d²) L_H⁻ᵀ, with care Σ_d ⟨c⟩⟨c⟩ᵀ/σ_d² + L_H⁻¹ (Σ_d Cov_d/σ_d²) L_H⁻ᵀ (equation 50)
    if careful:
        spread = linalg.whiten_both_sides(factor, weighted_covariance(kernel, points, latents, precision))
        latent_gram = latent_features.T @ weighted + spread
    else:
        latent_gram = linalg.whiten_both_sides(factor, weighted_psi2(kernel, points, latents, precision))
    # tr(K_ff^X) Σ_d ψ_d/σ_d² − tr A_X tr A_H
    signal = jnp.sum(diagonal(input_basis.kernel, data.inputs)) * (psi0(kernel, latents) @ precision)
    residual = signal - jnp.trace(input_gram) * jnp.trace(latent_gram)
    log_precision, squares = jnp.sum(jnp.log(precision) * data.counts), data.squares @ precision
    constant = ConstantTerm(jnp.sum(data.counts), log_precision, squares, signal, residual)
    return GridQuadratic(constant, linear, input_gram, latent_gram)


def _long_quadratic(parameters: Parameters, data: LongData, *, careful: bool) -> LongQuadratic:
    input_basis, latent_basis = bases(parameters)
    kernel, points, latents = latent_basis.kernel, latent_basis.points, parameters.latents
    sums = condition_sums(input_basis, data, parameters.noise_per_condition)
    if careful:
        seconds, whitener = latent_moments(latent_basis, latents).second, jnp.eye(len(points))  # T_d, I
    else:
        seconds, whitener = psi2(kernel, points, latents), linalg.triangular_inverse(latent_basis.factor)  # Φ_d, L_H⁻¹
    linear = sums.projections.T @ whitened_mean(latent_basis, latents)  # B
    # Σ_d (ψ_d tr K_d − tr T_d tr A_d), tr T_d = tr(Φ_d K_H⁻¹)
    traces = jnp.tensordot(seconds, whitener.T @ whitener) @ jnp.trace(sums.grams, axis1=1, axis2=2)
    signal = psi0(kernel, latents) @ sums.prior_variances
    log_precision, squares = jnp.sum(sums.log_precisions), jnp.sum(sums.squares)
    constant = ConstantTerm(jnp.sum(data.counts), log_precision, squares, signal, signal - traces)
    return LongQuadratic(constant, linear, sums.grams, seconds, whitener)


class ConditionSums(eqx.Module):
    """Sums over the observations of each condition, each weighted by its precision p = 1/(σ_d² + s²).

    A_d = Σ p a aᵀ, Σ p y a, Σ p y², Σ p k(x, x) and Σ log p.
    """

    grams: Float[Array, "D M_X M_X"]
    projections: Float[Array, "D M_X"]
    squares: Float[Array, " D"]
    prior_variances: Float[Array, " D"]
    log_precisions: Float[Array, " D"]


def condition_sums(input_basis: Basis, data: LongData, noise: Float[Array, " D"]) -> ConditionSums:
    """Accumulate long data by condition, as batched matrix products of its blocks (equation 45)."""
    # Without errors of the measurements all observations of a condition weigh the same, which is taken out of the sums.
    places, common, logs = data.present, 1 / noise, -data.counts * jnp.log(noise)
    if data.error_variances is not None:
        variances = data.noise(noise)
        places, common = data.present / jnp.sqrt(variances), jnp.ones_like(noise)
        logs = data.sum_by_condition(jnp.sum(-jnp.log(variances) * data.present, axis=1))
    outputs = data.outputs * places

    def sums_of_blocks(inputs: Array, places: Array, outputs: Array) -> tuple[Array, Array, Array]:
        points = inputs.reshape(-1, inputs.shape[-1])
        covariances = cross(input_basis.kernel, points, input_basis.points).reshape(*places.shape, -1)
        grams, projections = linalg.block_products(input_basis.factor, covariances * places[..., None], outputs)
        prior = diagonal(input_basis.kernel, points).reshape(places.shape) * places**2
        return grams, projections, jnp.sum(prior, axis=1)

    # Blocks are a small number times a power of two (padding.rounded_up), so that halves are whole.
    elements = _ELEMENTS_ON_CPU if jax.default_backend() == "cpu" else _ELEMENTS_ON_ACCELERATOR
    most = elements // (data.inputs.shape[1] * len(input_basis.points))
    grams, projections, priors = linalg.in_slices(sums_of_blocks, most, data.inputs, places, outputs)
    return ConditionSums(
        grams=data.sum_by_condition(grams) * common[:, None, None],
        projections=data.sum_by_condition(projections) * common[:, None],
        squares=data.sum_by_condition(jnp.sum(outputs**2, axis=1)) * common,
        prior_variances=data.sum_by_condition(priors) * common,
        log_precisions=logs,
    )
