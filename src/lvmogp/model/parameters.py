"""The one container of everything that is learnt."""

import dataclasses
from typing import Annotated, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import LOWER_TRIANGULAR, POINTS, positive
from lvmogp.algebra.gaussians import kl_to_standard_normal
from lvmogp.ground.rules import Below
from lvmogp.kernels.covariances import Kernel, Stationary, leaves
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

# What is known beforehand of lengthscales over one input, and of their spread: median and spread of a log-normal
# distribution, in standardised units. It keeps them from running away where observations are few.
LENGTHSCALE_PRIOR = (1.0, 1.0)
# What is known beforehand of the standard deviations τ, among conditions, of the logarithms of their noise and of the
# variance of their own curves: median and spread of a log-normal distribution.
SPREAD_PRIOR = (0.5, 0.5)
# What is known beforehand of the logarithm of their median, a standard deviation: enough to bound what data leave open.
_MEDIAN_SPREAD = 1.5


class KroneckerInducing(eqx.Module):
    """Explicit q(v) = N(vec M, Σ_H ⊗ Σ_X) over the whitened inducing variables, Σ = L Lᵀ (the paper's choice)."""

    mean: Float[Array, "M_X M_C"]
    input_factor: Float[Array, "M_X M_X"] = eqx.field(metadata=LOWER_TRIANGULAR)
    latent_factor: Float[Array, "M_C M_C"] = eqx.field(metadata=LOWER_TRIANGULAR)


class FullInducing(eqx.Module):
    """Explicit q(v) = N(vec M, L Lᵀ) over the whitened inducing variables, without any structure."""

    mean: Float[Array, "M_X M_C"]
    factor: Float[Array, "MM MM"] = eqx.field(metadata=LOWER_TRIANGULAR)


Inducing = KroneckerInducing | FullInducing


class KnownCoordinates(eqx.Module):
    """Coordinates of the conditions that come from their features, with a q of those that are missing (equation 41).

    ``values`` has zeros in the places of missing ones, of which ``missing_condition`` and ``missing_coordinate`` tell
    where they belong. A missing coordinate is inferred like a latent, with the same prior.
    """

    values: Float[Array, "D Q_F"]
    missing_condition: Annotated[Int[Array, " missing"], Below("D")]
    missing_coordinate: Annotated[Int[Array, " missing"], Below("Q_F")]
    missing_mean: Float[Array, " missing"]
    missing_variance: Float[Array, " missing"] = positive()
    fixed: tuple[str, ...] = eqx.field(
        static=True, default=("values", "missing_condition", "missing_coordinate"), kw_only=True
    )

    @property
    def gaussians(self) -> LatentGaussians:
        """The coordinates as Gaussians, of variance zero where they are known."""
        places = (self.missing_condition, self.missing_coordinate)
        return LatentGaussians(
            self.values.at[places].set(self.missing_mean),
            jnp.zeros_like(self.values).at[places].set(self.missing_variance),
        )


def known_coordinates(
    values: HostFloat, mean: Float[Array, "D Q_F"], variance: Float[Array, "D Q_F"]
) -> KnownCoordinates:
    """Return coordinates of conditions, with mean and variance of those that are missing, NaN among the values."""
    condition, coordinate = np.nonzero(np.isnan(values))
    return KnownCoordinates(
        values=jnp.asarray(np.nan_to_num(values), mean.dtype),
        missing_condition=jnp.asarray(condition, jnp.int32),
        missing_coordinate=jnp.asarray(coordinate, jnp.int32),
        missing_mean=mean[condition, coordinate],
        missing_variance=variance[condition, coordinate],
    )


class Term(eqx.Module):
    """A part of the function of input and latents, of covariance k_H(h, h') k_X(x, x').

    Without a latent kernel it is a curve that all conditions share, of covariance k_X(x, x').
    """

    input_kernel: Kernel
    latent_kernel: Kernel | None = None


class Kernels(eqx.Module):
    """The covariance of the model (equation 55): terms with latent kernels, then the curve that all conditions share.

    ``own`` is the kernel of the curves that are each condition's own, where there are any.
    """

    terms: tuple[Term, ...]
    own: Kernel | None = None

    @property
    def of_inputs(self) -> tuple[Kernel, ...]:
        """k_X of each term, then that of the conditions' own curves."""
        return (*(term.input_kernel for term in self.terms), *(() if self.own is None else (self.own,)))

    @property
    def of_latents(self) -> tuple[Kernel, ...]:
        """k_H of each term that has one."""
        return tuple(term.latent_kernel for term in self.terms if term.latent_kernel is not None)

    @property
    def has_shared(self) -> bool:
        """Whether there is a curve that all conditions share."""
        return len(self.of_latents) < len(self.terms)

    @property
    def is_plain(self) -> bool:
        """Whether this is the paper's model: one term, whose latents tell conditions apart, and nothing else."""
        return len(self.terms) == len(self.of_latents) == 1 and self.own is None


def plain_kernels(input_kernel: Kernel, latent_kernel: Kernel) -> Kernels:
    """Return the paper's model, k_H k_X."""
    return Kernels((Term(input_kernel, latent_kernel),))


class Parameters(eqx.Module):
    """Kernels, inducing points, q(H), noise and, for the explicit bounds, q(v).

    All terms have the same inducing inputs and inducing latents. ``own_scale`` is ρ_d², by which the conditions' own
    curves differ in variance, or ``None`` where they differ as the noise does. ``noise_spread`` and ``own_spread`` are
    the standard deviations τ of log σ_d² and log ρ_d² among conditions, where these are pooled. ``fixed`` names what a
    search leaves as it is: inducing inputs that are all the inputs there are cannot be better anywhere else.
    ``latent_mean`` and ``latent_variance`` are those of the latents. Where conditions have known features, their
    coordinates follow the latents: ``latents`` is the one place where both are put together.
    ``noise_variance`` has one entry for noise shared by all conditions, D entries for noise per condition.
    ``inducing`` is ``None`` for the collapsed bound, whose q(v) is optimal and never stored.
    """

    kernels: Kernels
    inducing_inputs: Float[Array, "M_X Q_X"] = eqx.field(metadata=POINTS)
    inducing_latents: Float[Array, "M_H Q_H"]
    latent_mean: Float[Array, "D Q_L"]
    latent_variance: Float[Array, "D Q_L"] = positive()
    noise_variance: Float[Array, " noise"] = positive()
    own_scale: Float[Array, " D"] | None = positive(default=None)
    noise_spread: Scalar | None = positive(default=None)
    own_spread: Scalar | None = positive(default=None)
    inducing: Inducing | None = None
    known: KnownCoordinates | None = None
    fixed: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def latents(self) -> LatentGaussians:
        """q(H): the latents, then the coordinates of known features."""
        if self.known is None:
            return LatentGaussians(self.latent_mean, self.latent_variance)
        described = self.known.gaussians
        return LatentGaussians(
            jnp.concatenate([self.latent_mean, described.mean], axis=1),
            jnp.concatenate([self.latent_variance, described.variance], axis=1),
            # Which coordinates are missing is no part of a program; that none is, is.
            n_uncertain=None if self.known.missing_mean.size else self.latent_mean.shape[1],
        )

    @property
    def kl_latents(self) -> Scalar:
        """KL(q(H) ‖ p(H)) over all that is not known (equation 42)."""
        divergence = kl_to_standard_normal(self.latent_mean, self.latent_variance)
        if self.known is None:
            return divergence
        return divergence + kl_to_standard_normal(self.known.missing_mean, self.known.missing_variance)

    @property
    def noise_per_condition(self) -> Float[Array, " D"]:
        """σ_d² of every condition."""
        return jnp.broadcast_to(self.noise_variance, (self.latent_mean.shape[0],))

    @property
    def own_per_condition(self) -> Float[Array, " D"]:
        """ρ_d² of every condition: its own, or in proportion to its noise; one where all have the same noise."""
        if self.own_scale is not None:
            return self.own_scale
        return in_proportion(self.noise_per_condition)


class Information(NamedTuple):
    """Fisher information of log σ_d² and log ρ_d² in the observations of each condition, given all else.

    With the covariance R_d = σ_d² I + ρ_d² K_o of noise and own curve, E = σ_d² R_d⁻¹ is the share of the noise:
    ½ tr E², ½ tr E(I − E) and ½ tr (I − E)².
    """

    noise: Float[Array, " D"]
    both: Float[Array, " D"]
    own: Float[Array, " D"]


def log_pooled(parameters: Parameters, information: Information) -> Scalar:
    """Log evidence of what is pooled, up to a constant: log σ_d² ~ N(log m, τ²) and log ρ_d² ~ N(0, τ'²).

    They are integrated out by Laplace's method (equation 62), with m the geometric mean, so that τ can be maximised:
    −½ Σ_d [z_d²/τ² + u_d²/τ'² + log|I + diag(τ², τ'²) I_d|] with the deviations z and u and the information I_d.
    """
    total = jnp.zeros((), parameters.latent_mean.dtype)
    if parameters.noise_spread is None:
        return total
    logs, spread = jnp.log(parameters.noise_variance), parameters.noise_spread**2
    total += _log_spread(parameters.noise_spread) - jnp.sum((logs - jnp.mean(logs)) ** 2) / (2 * spread)
    if parameters.own_scale is None or parameters.own_spread is None:
        return total - jnp.sum(jnp.log1p(spread * information.noise)) / 2
    own_spread = parameters.own_spread**2
    total += _log_spread(parameters.own_spread) - jnp.sum(jnp.log(parameters.own_scale) ** 2) / (2 * own_spread)
    determinants = (1 + spread * information.noise) * (1 + own_spread * information.own)
    return total - jnp.sum(jnp.log(determinants - spread * own_spread * information.both**2)) / 2


def _log_spread(spread: Scalar) -> Scalar:
    median, deviation = SPREAD_PRIOR
    return -(((jnp.log(spread) - jnp.log(median)) / deviation) ** 2) / 2


def log_lengthscales(parameters: Parameters) -> Scalar:
    """Log density of the lengthscales over inputs, up to a constant (equation 64); the paper's model has none."""
    (median, spread), total = LENGTHSCALE_PRIOR, jnp.zeros((), parameters.latent_mean.dtype)
    for kernel in () if parameters.kernels.is_plain else parameters.kernels.of_inputs:
        for leaf in leaves(kernel):
            if isinstance(leaf, Stationary):
                # −½ Σ_q log²(ℓ_q/(m √Q))/s²: distances grow with the root of the number of columns
                relative = leaf.lengthscale / (median * leaf.lengthscale.size**0.5)
                total -= jnp.sum((jnp.log(relative) / spread) ** 2) / 2
    return total


class PooledDeviations(eqx.Module):
    """Standard deviations given the data of what is pooled: log σ_d², and the medians about which conditions lie.

    ``of_median`` is that of log m, ``of_own_median`` that of the variance of all conditions' own curves, where each has
    one of its own.
    """

    of_noise: Float[Array, " D"] = positive()
    of_median: Scalar = positive()
    of_own_median: Scalar | None = positive(default=None)


def pooled_deviations(parameters: Parameters, information: Information) -> PooledDeviations | None:
    """Return what is not known of pooled variances (equation 63); ``None`` where none are pooled.

    With I_d of log σ_d² alone, that of log m is I_m = 1/s² + Σ_d I_d/(1 + τ² I_d), and the variance of log σ_d² is
    v_d + (v_d/τ²)²/I_m with v_d = 1/(I_d + 1/τ²), what it is given m.
    """
    if parameters.noise_spread is None:
        return None
    spread, of_noise, of_own = parameters.noise_spread**2, information.noise, None
    if parameters.own_scale is not None and parameters.own_spread is not None:
        own_spread = parameters.own_spread**2
        of_noise = information.noise - information.both**2 / (information.own + 1 / own_spread)
        of_own = _of_median(information.own - information.both**2 / (information.noise + 1 / spread), own_spread)
    of_median, given_median = _of_median(of_noise, spread), 1 / (of_noise + 1 / spread)
    return PooledDeviations(jnp.sqrt(given_median + (given_median / spread * of_median) ** 2), of_median, of_own)


def _of_median(information: Float[Array, " D"], spread: Scalar) -> Scalar:
    return 1 / jnp.sqrt(_MEDIAN_SPREAD**-2 + jnp.sum(information / (1 + spread * information)))


def in_proportion(noise: Float[Array, "*S D"]) -> Float[Array, "*S D"]:
    """Return noise variances divided by their geometric mean over conditions."""
    return noise / jnp.exp(jnp.mean(jnp.log(noise), axis=-1, keepdims=True))


def of_conditions(parameters: Parameters, numbers: HostInt) -> Parameters:
    """Return parameters with their conditions in another order: the first is the one that was ``numbers[0]``."""

    def taken(leaf: Array) -> Array:
        return jnp.asarray(np.asarray(leaf)[numbers])  # on the host, where a new shape needs no new program

    known = parameters.known
    if known is not None:
        places = np.argsort(numbers).astype(np.int32)
        known = dataclasses.replace(
            known,
            values=taken(known.values),
            missing_condition=jnp.asarray(places[np.asarray(known.missing_condition)]),
        )
    shared = parameters.noise_variance.shape[0] == 1
    return dataclasses.replace(
        parameters,
        latent_mean=taken(parameters.latent_mean),
        latent_variance=taken(parameters.latent_variance),
        noise_variance=parameters.noise_variance if shared else taken(parameters.noise_variance),
        own_scale=None if parameters.own_scale is None else taken(parameters.own_scale),
        known=known,
    )
