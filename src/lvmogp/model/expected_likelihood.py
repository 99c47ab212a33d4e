"""The expected log-likelihood as a quadratic in the whitened inducing variables.

⟨log p(Y|F)⟩ under p(F|v, H) q(H) is  constant + bᵀv − ½ vᵀGv  with b = vec(B). Every bound and every
posterior is one use of it (docs/mathematics.md, equations 5 to 9):

- G = A_H ⊗ A_X on a grid, A_X = Σ_n a_n a_nᵀ, A_H = Σ_d T_d/σ_d²;
- G = Σ_d T_d ⊗ A_d/σ_d² on long data, A_d = Σ_{n in d} a_n a_nᵀ;
- B = Σ_d (Σ_{n in d} y_n a_n/σ_d²) ⟨c(h_d)⟩ᵀ;
- constant = −½ Σ_d [N_d log 2πσ_d² + ‖y_d‖²/σ_d² + (ψ_d tr K_d − tr T_d tr A_d)/σ_d²].

Where measurements have known variances s_n², σ_d² + s_n² takes the place of σ_d² in every sum (equation 45). Features
of several terms are stacked, and curves that are conditions' own are integrated out of the sums of each condition
(equations 56 to 58).
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra import linalg
from lvmogp.algebra.evidence import (
    bordered_evidence,
    dense_evidence,
    explained_squares,
    integrated_out,
    kronecker_evidence,
)
from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.kernels.covariances import cross, stacked_diagonal
from lvmogp.kernels.psi_statistics import weighted_psi2
from lvmogp.model.features import (
    Basis,
    bases,
    latent_moments,
    parts_of,
    prior_variances,
    second_moments,
    stacked,
    whitened_covariance,
    whitened_mean,
)
from lvmogp.model.layouts import Data, GridData, LongData
from lvmogp.model.parameters import Information, KroneckerInducing, Parameters
from lvmogp.typing import Array, Float, Scalar

# Covariances of observations with inducing inputs that long data are computed from at a time: as many as a cache holds.
_ELEMENTS_ON_CPU, _ELEMENTS_ON_ACCELERATOR = 2**18, 2**24
# An error of a bound, for each observation, that cannot lead a search astray.
_HARMLESS_ERROR = 0.01


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
    """constant + vec(B)ᵀv − ½ vᵀGv, the blocks of G between two terms being A_H ⊗ A_X of their features.

    ``sizes`` are the numbers of latent features of the terms. Of a single term G is A_H ⊗ A_X: two small matrices.
    """

    constant: ConstantTerm
    linear: Float[Array, "M_X M_C"]
    input_gram: Float[Array, "M_A M_A"]
    latent_gram: Float[Array, "M_C M_C"]
    information: Information
    sizes: tuple[int, ...] = eqx.field(static=True)

    def evidence(self) -> tuple[Scalar, Scalar]:
        """Return log|I + G| and bᵀ(I + G)⁻¹b, of one term, also beside a shared curve, without forming G."""
        if len(self.sizes) == 1:
            return kronecker_evidence(self.input_gram, self.latent_gram, self.linear)
        if self.sizes[1:] == (1,):  # a shared curve is a border
            return bordered_evidence(self.input_gram, self.latent_gram, self.linear)
        return dense_evidence(self.dense_gram(), linalg.vec(self.linear))

    def dense_gram(self) -> Float[Array, "MM MM"]:
        """Return G."""
        return _by_terms(self.sizes, self.input_gram[None], self.latent_gram[None])

    def kronecker_second_moment(self, inducing: KroneckerInducing) -> Scalar:
        """Return ⟨vᵀGv⟩ = tr(Mᵀ A_X M A_H) + tr(A_X Σ_X) tr(A_H Σ_H), summed over pairs of terms."""
        return _kronecker_second_moment(self.sizes, self.input_gram[None], self.latent_gram[None], inducing)


class LongQuadratic(eqx.Module):
    """constant + vec(B)ᵀv − ½ vᵀGv, the blocks of G between two terms being Σ_d T_d ⊗ A_d of their features.

    ``latent_seconds`` are Φ_d, not yet whitened, and ``whitener`` is L_H⁻¹: T_d = L_H⁻¹ Φ_d L_H⁻ᵀ. Or they are T_d, and
    ``whitener`` changes nothing. ``sizes`` are the numbers of latent features of the terms.
    """

    constant: ConstantTerm
    linear: Float[Array, "M_X M_C"]
    input_grams: Float[Array, "D M_A M_A"]
    latent_seconds: Float[Array, "D M_C M_C"]
    whitener: Float[Array, "M_C M_C"]
    information: Information
    sizes: tuple[int, ...] = eqx.field(static=True)

    def evidence(self) -> tuple[Scalar, Scalar]:
        """Return log|I + G| and bᵀ(I + G)⁻¹b by a Cholesky factor of size M_X · M_C."""
        return dense_evidence(self.dense_gram(), linalg.vec(self.linear))

    def dense_gram(self) -> Float[Array, "MM MM"]:
        """Return G = Σ_d T_d ⊗ A_d, as one matrix product over conditions for each pair of terms."""
        return _by_terms(self.sizes, self.input_grams, self.whitener @ self.latent_seconds @ self.whitener.T)

    def kronecker_second_moment(self, inducing: KroneckerInducing) -> Scalar:
        """Return ⟨vᵀGv⟩ = Σ_d [tr(Mᵀ A_d M T_d) + tr(A_d Σ_X) tr(T_d Σ_H)], summed over pairs of terms."""
        # tr(T_d R) = tr(Φ_d L_H⁻ᵀRL_H⁻¹): whitening M and Σ_H spares whitening a matrix for each condition.
        mean, latent_factor = inducing.mean @ self.whitener, self.whitener.T @ inducing.latent_factor
        mapped = KroneckerInducing(mean, inducing.input_factor, latent_factor)
        return _kronecker_second_moment(self.sizes, self.input_grams, self.latent_seconds, mapped)


def _by_terms(sizes: tuple[int, ...], inputs: Float[Array, "D M_A M_A"], latents: Float[Array, "D M_C M_C"]) -> Array:
    # Blocks Σ_d T_d ⊗ A_d between the terms, those below the diagonal being transposes of those above.
    n_conditions, n_inputs, own = len(inputs), inputs.shape[1] // len(sizes), parts_of(sizes)
    blocks: list[list[Array]] = [[] for _ in sizes]
    for i, j in itertools.product(range(len(sizes)), repeat=2):
        if j < i:
            blocks[i].append(blocks[j][i].T)
            continue
        rows, columns = (slice(each * n_inputs, (each + 1) * n_inputs) for each in (i, j))
        of_latents = latents[:, own[i], own[j]].reshape(n_conditions, -1)
        of_inputs = inputs[:, rows, columns].reshape(n_conditions, -1)
        block = (of_latents.T @ of_inputs).reshape(sizes[i], sizes[j], n_inputs, n_inputs)
        blocks[i].append(block.transpose(0, 2, 1, 3).reshape(sizes[i] * n_inputs, sizes[j] * n_inputs))
    return jnp.block(blocks) if len(sizes) > 1 else blocks[0][0]


def _kronecker_second_moment(
    sizes: tuple[int, ...], inputs: Array, latents: Array, inducing: KroneckerInducing
) -> Scalar:
    # Σ_d over pairs (i, j) of terms: tr(A_ij Σ_X) tr(T_ij Σ_H) + tr(M_iᵀ A_ij M_j T_ji)
    n_inputs, own = inputs.shape[1] // len(sizes), parts_of(sizes)
    of_inputs, of_latents = (each @ each.T for each in (inducing.input_factor, inducing.latent_factor))
    total = jnp.zeros((), inputs.dtype)
    for i, j in itertools.product(range(len(sizes)), repeat=2):
        rows, columns = (slice(each * n_inputs, (each + 1) * n_inputs) for each in (i, j))
        gram_ij, second = inputs[:, rows, columns], latents[:, own[i], own[j]]
        projected = jnp.einsum("xh,dxy,yk->dhk", inducing.mean[:, own[i]], gram_ij, inducing.mean[:, own[j]])
        total += jnp.sum(projected * second)
        total += jnp.tensordot(gram_ij, of_inputs) @ jnp.tensordot(second, of_latents[own[i], own[j]])
    return total


Quadratic = GridQuadratic | LongQuadratic


def quadratic(parameters: Parameters, data: Data, *, careful: bool = False) -> Quadratic:
    """Expected log-likelihood of either form of data.

    Whitening a gram matrix costs as many digits as the gram matrix of the inducing points has condition, and small
    noise multiplies what is lost. Where ``careful``, features are whitened before they are squared and only the
    covariance of uncertain ones afterwards (equation 50), which loses hardly any digits and takes longer.
    """
    if isinstance(data, LongData):
        return _long_quadratic(parameters, data, careful=careful)
    # One covariance R of noise and own curve serves all conditions of a grid, but for its size, if the two vary in
    # proportion.
    own_errors = data.error_variance is not None and parameters.noise_variance.shape[0] > 1
    if parameters.kernels.own is not None and (parameters.own_scale is not None or own_errors):
        return _long_quadratic(parameters, data.as_long(), careful=careful)
    return _grid_quadratic(parameters, data, careful=careful)


def _traces(matrices: Float[Array, "D F F"], sizes: tuple[int, ...]) -> Float[Array, "D parts"]:
    # Traces of the blocks on the diagonal, as a product: backwards, places of a diagonal would be filled one by one.
    whole = jnp.eye(sum(sizes), dtype=matrices.dtype)
    masks = jnp.asarray(np.repeat(np.eye(len(sizes)), sizes, axis=0).T, matrices.dtype)[:, :, None] * whole
    return jnp.tensordot(matrices, masks, axes=((1, 2), (1, 2)))


def _of_terms(linear: Float[Array, "M_A M_C"], sizes: tuple[int, ...]) -> Float[Array, "M_X M_C"]:
    # Of products of all input features with all latent features, those within the same term.
    n_inputs = linear.shape[0] // len(sizes)
    return stacked([linear[i * n_inputs : (i + 1) * n_inputs, own] for i, own in enumerate(parts_of(sizes))])


def _grid_quadratic(parameters: Parameters, data: GridData, *, careful: bool) -> GridQuadratic:
    input_basis, latent_basis = bases(parameters)
    latents, sizes, n_terms = parameters.latents, latent_basis.sizes, len(parameters.kernels.terms)
    noise = data.noise(parameters.noise_per_condition)
    precision = 1 / noise
    covariances = jnp.stack([cross(kernel, input_basis.points, data.inputs) for kernel in input_basis.kernels])  # K_uf
    latent_features = whitened_mean(latent_basis, latents)  # rows ⟨c(h_d)⟩ᵀ
    weighted = precision[:, None] * latent_features
    # A_X = AᵀA and B = AᵀY diag(1/σ_d²) ⟨c⟩, beginning with the thinner product with Y.
    if latent_features.shape[1] <= sum(input_basis.sizes):
        input_gram, linear = linalg.whitened_products(input_basis.factors, covariances, data.outputs @ weighted)
    else:
        input_gram, projections = linalg.whitened_products(input_basis.factors, covariances, data.outputs)
        linear = projections @ weighted
    # A_H = L_H⁻¹ (Σ_d Φ_d/σ_d²) L_H⁻ᵀ, with care Σ_d ⟨c⟩⟨c⟩ᵀ/σ_d² + L_H⁻¹ (Σ_d Cov_d/σ_d²) L_H⁻ᵀ (equation 50)
    if careful or len(latent_basis.kernels) != 1:
        latent_gram = latent_features.T @ weighted + whitened_covariance(latent_basis, latents, precision)
    else:
        second = weighted_psi2(latent_basis.kernels[0], latent_basis.points, latents, precision)
        latent_gram = linalg.whiten_both_sides(latent_basis.factors[0], second)
        if latent_basis.constant:  # Σ_d ⟨c⟩/σ_d² and Σ_d 1/σ_d²
            constants = jnp.sum(weighted, axis=0)
            latent_gram = jnp.pad(latent_gram, ((0, 1), (0, 1))).at[-1].set(constants).at[:, -1].set(constants)
    # tr(K_ff^X) Σ_d ψ_d/σ_d² − tr A_X tr A_H, summed over terms
    priors = jnp.sum(stacked_diagonal(input_basis.kernels, data.inputs), axis=1)
    traces = _traces(input_gram[None], input_basis.sizes)[0]
    signal = priors[:n_terms] @ (precision @ prior_variances(latent_basis, latents))
    residual = signal - traces[:n_terms] @ _traces(latent_gram[None], sizes)[0]
    logs, squares = jnp.sum(jnp.log(precision) * data.counts), data.squares @ precision
    if parameters.kernels.own is not None:
        # R_d = σ_d²(I + r A_oA_oᵀ) with r = ρ_d²/σ_d², the same for all conditions; P = I + r A_oᵀA_o (equation 58).
        ratio, n_kept = parameters.own_per_condition[0] * precision[0], n_terms * len(input_basis.points)
        identity = jnp.eye(len(input_basis.points), dtype=input_gram.dtype)
        of_own = identity + ratio * input_gram[n_kept:, n_kept:]  # P
        both = jnp.concatenate([input_gram[n_kept:, :n_kept], linear[n_kept:]], axis=1)
        taken, log_det = integrated_out(of_own, jnp.sqrt(ratio) * both)
        shared_noise = parameters.noise_variance.shape[0] == 1 and data.outer is not None
        explained = explained_squares(  # Σ_d p_d y_dᵀA_oP⁻¹A_oᵀy_d
            of_own,
            input_basis.factors[-1],
            covariances[-1],
            precision[:1] if shared_noise else precision,
            data.outputs,
            data.outer if shared_noise else None,
        )
        own_signal = data.n_conditions * ratio * priors[-1]
        signal, residual = signal + own_signal, residual + own_signal - data.n_conditions * ratio * traces[-1]
        logs, squares = logs - data.n_conditions * log_det, squares - ratio * explained
        linear = linear[:n_kept] - taken[:n_kept, n_kept:]
        input_gram = input_gram[:n_kept, :n_kept] - taken[:n_kept, :n_kept]
    constant = ConstantTerm(jnp.sum(data.counts), logs, squares, signal, residual)
    information = _information_of_noise(data.counts, (parameters.noise_per_condition * precision) ** 2)
    return GridQuadratic(constant, _of_terms(linear, sizes), input_gram, latent_gram, information, sizes)


def _long_quadratic(parameters: Parameters, data: LongData, *, careful: bool) -> LongQuadratic:
    input_basis, latent_basis = bases(parameters)
    latents, sizes, n_terms = parameters.latents, latent_basis.sizes, len(parameters.kernels.terms)
    sums = condition_sums(input_basis, data, parameters.noise_per_condition)
    information = _information_of_noise(data.counts, _noise_shares(data, parameters.noise_per_condition))
    if careful:
        seconds, whitener = latent_moments(latent_basis, latents).second, jnp.eye(sum(sizes))  # T_d, I
    else:
        seconds, whitener = second_moments(latent_basis, latents), latent_basis.whitener()  # Φ_d, L_H⁻¹
    # Σ_d (ψ_d tr K_d − tr T_d tr A_d) over the terms, tr T_d = tr(Φ_d K_H⁻¹)
    precision = whitener.T @ whitener
    of_latents = jnp.stack(
        [jnp.tensordot(seconds[:, own, own], precision[own, own]) for own in parts_of(sizes)], axis=1
    )
    traces = _traces(sums.grams, input_basis.sizes)
    signal = jnp.sum(prior_variances(latent_basis, latents) * sums.prior_variances[:, :n_terms])
    residual = signal - jnp.sum(of_latents * traces[:, :n_terms])
    if parameters.kernels.own is not None:
        scale = parameters.own_per_condition
        own_signal = scale @ sums.prior_variances[:, -1]
        signal, residual = signal + own_signal, residual + own_signal - scale @ traces[:, -1]
        n_own = len(input_basis.points)
        if parameters.own_scale is not None:
            information = _information(information, data.counts, _own_parts(sums, scale, n_own)[0])
        sums = without_own(sums, scale, n_own)
    linear = _of_terms(sums.projections.T @ whitened_mean(latent_basis, latents), sizes)  # B
    log_precision, squares = jnp.sum(sums.log_precisions), jnp.sum(sums.squares)
    constant = ConstantTerm(jnp.sum(data.counts), log_precision, squares, signal, residual)
    return LongQuadratic(constant, linear, sums.grams, seconds, whitener, information, sizes)


class ConditionSums(eqx.Module):
    """Sums over the observations of each condition, each weighted by its precision p = 1/(σ_d² + s²).

    A_d = Σ p a aᵀ, Σ p y a, Σ p y², Σ p k(x, x) of each kernel and Σ log p.
    """

    grams: Float[Array, "D M_A M_A"]
    projections: Float[Array, "D M_A"]
    squares: Float[Array, " D"]
    prior_variances: Float[Array, "D kernels"]
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
        covariances = stacked([cross(kernel, points, input_basis.points) for kernel in input_basis.kernels])
        rows = covariances.reshape(*places.shape, -1) * places[..., None]
        grams, projections = linalg.block_products(input_basis.factors, rows, outputs)
        prior = stacked_diagonal(input_basis.kernels, points).reshape(-1, *places.shape) * places**2
        return grams, projections, jnp.sum(prior, axis=2).T

    # Blocks are a small number times a power of two (padding.rounded_up), so that halves are whole.
    elements = _ELEMENTS_ON_CPU if jax.default_backend() == "cpu" else _ELEMENTS_ON_ACCELERATOR
    most = elements // (data.inputs.shape[1] * sum(input_basis.sizes))
    grams, projections, priors = linalg.in_slices(sums_of_blocks, most, data.inputs, places, outputs)
    return ConditionSums(
        grams=data.sum_by_condition(grams) * common[:, None, None],
        projections=data.sum_by_condition(projections) * common[:, None],
        squares=data.sum_by_condition(jnp.sum(outputs**2, axis=1)) * common,
        prior_variances=data.sum_by_condition(priors) * common[:, None],
        log_precisions=logs,
    )


def _noise_shares(data: LongData, noise: Float[Array, " D"]) -> Float[Array, " D"]:
    # Means over the observations of each condition of (σ_d² p_n)²: one where nothing but noise makes them err.
    if data.error_variances is None:
        return jnp.ones_like(noise)
    shares = (noise[data.block_condition][:, None] / data.noise(noise)) ** 2 * data.present
    return data.sum_by_condition(jnp.sum(shares, axis=1)) / data.counts


def _information_of_noise(counts: Float[Array, " D"], shares: Float[Array, " D"]) -> Information:
    # ½ tr E² with E = diag(σ_d² p_n), where conditions have no curves of their own or these follow the noise
    nothing = jnp.zeros_like(counts)
    return Information(shares * counts / 2, nothing, nothing)


def _information(of_noise: Information, counts: Float[Array, " D"], precision: Float[Array, "D m m"]) -> Information:
    # The eigenvalues of I − E are those of I − P⁻¹, and zeros: tr (I − P⁻¹) and tr (I − P⁻¹)² are all it takes.
    inverse = jnp.linalg.inv(precision)  # whose derivative is a product, that of a factor is not; P ≥ I
    left, n_own = jnp.trace(inverse, axis1=1, axis2=2), precision.shape[1]
    first, second = n_own - left, n_own - 2 * left + jnp.sum(inverse**2, axis=(1, 2))
    share = jnp.sqrt(2 * of_noise.noise / counts)
    return Information(share**2 * (counts - 2 * first + second) / 2, share * (first - second) / 2, second / 2)


def _own_parts(
    sums: ConditionSums, scale: Float[Array, " D"], n_own: int
) -> tuple[Float[Array, "D m m"], Float[Array, "D m F"]]:
    # P = I + ρ²A_oo, and ρ times A_of beside Σ p y a_o.
    n_kept, root = sums.grams.shape[1] - n_own, jnp.sqrt(scale)[:, None, None]
    precision = jnp.eye(n_own, dtype=root.dtype) + root**2 * sums.grams[:, n_kept:, n_kept:]
    parts = [sums.grams[:, n_kept:, :n_kept], sums.projections[:, n_kept:, None]]
    return precision, root * jnp.concatenate(parts, axis=2)


def without_own(sums: ConditionSums, scale: Float[Array, " D"], n_own: int) -> ConditionSums:
    """Integrate the conditions' own curves out, whose features are the last (equation 57).

    With P = I + ρ²A_oo: A_ff − ρ²A_foP⁻¹A_of in place of A_ff, and likewise for the other sums.
    """
    n_kept = sums.grams.shape[1] - n_own
    taken, log_det = integrated_out(*_own_parts(sums, scale, n_own))
    return ConditionSums(
        grams=sums.grams[:, :n_kept, :n_kept] - taken[:, :-1, :-1],
        projections=sums.projections[:, :n_kept] - taken[:, :-1, -1],
        squares=sums.squares - taken[:, -1, -1],
        prior_variances=sums.prior_variances[:, :-1],
        log_precisions=sums.log_precisions - log_det,
    )


class OwnCurves(eqx.Module):
    """What the observations of trained conditions say of the curves that are their own, g_d(x) = a_o(x)ᵀw_d.

    Given the weights w_f of all other features, w_d ~ N(offset − gain w_f, ρ_d²I − reduction) (equation 59). ``scale``
    is ρ_d².
    """

    gain: Float[Array, "D M_X M_F"]
    offset: Float[Array, "D M_X"]
    reduction: Float[Array, "D M_X M_X"]
    scale: Float[Array, " D"]


def own_curves(parameters: Parameters, data: Data) -> OwnCurves:
    """Return what the data say of each condition's own curve, given all else."""
    data = data if isinstance(data, LongData) else data.as_long()
    input_basis, scale = bases(parameters)[0], parameters.own_per_condition
    sums = condition_sums(input_basis, data, parameters.noise_per_condition)
    precision, columns = _own_parts(sums, scale, len(input_basis.points))
    root, identity = jnp.sqrt(scale)[:, None, None], jnp.eye(precision.shape[1], dtype=precision.dtype)
    inverse = linalg.triangular_inverses(jnp.linalg.cholesky(precision))  # L⁻¹ with P = LLᵀ
    solved = root * inverse.mT @ (inverse @ columns)
    return OwnCurves(
        gain=solved[:, :, :-1],  # ρ²P⁻¹A_of
        offset=solved[:, :, -1],  # ρ²P⁻¹ Σ p y a_o
        reduction=root**2 * (identity - inverse.mT @ inverse),  # ρ²(I − P⁻¹)
        scale=scale,
    )
