"""The parameters of Markov chains, everything unknown as one point, with prior distributions in standardised units."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax.numpy as jnp

from lvmogp.algebra.constraints import positive
from lvmogp.errors import SettingError
from lvmogp.kernels.covariances import Kernel, Linear, Periodic, Stationary, leaves, scaled_kernel
from lvmogp.model.parameters import Kernels, KnownCoordinates, Parameters, Term, in_proportion
from lvmogp.typing import Array, Float, Scalar

# Where spreads of noise and of own variances start within.
_FIRST_SPREADS = (0.1, 2.0)


class SharedNoise(eqx.Module):
    """One noise variance for all conditions."""

    variance: Float[Array, "*shape 1"] = positive()


class OwnNoise(eqx.Module):
    """A noise variance for each condition, log σ_d² = log median + spread ε_d with ε_d ~ N(0, 1).

    Few observations say little of σ_d², which then follows the median and the spread wherever these go. In ε_d, which
    does not, chains have no funnel to go down.
    """

    deviations: Float[Array, "*shape D"]
    median: Float[Array, "*shape"] = positive()
    spread: Float[Array, "*shape"] = positive()

    @property
    def variance(self) -> Float[Array, "*shape D"]:
        """σ_d² of every condition."""
        return self.median[..., None] * jnp.exp(self.spread[..., None] * self.deviations)


class OwnScale(eqx.Module):
    """The variance of each own curve, relative to their median: log ρ_d² = spread ε_d with ε_d ~ N(0, 1)."""

    deviations: Float[Array, "*shape D"]
    spread: Float[Array, "*shape"] = positive()

    @property
    def scale(self) -> Float[Array, "*shape D"]:
        """ρ_d² of every condition."""
        return jnp.exp(self.spread[..., None] * self.deviations)


class ChainParameters(eqx.Module):
    """Kernels, latents and noise; where conditions have features, their coordinates, of which some may be missing.

    ``own`` is there where the variances of own curves are each condition's, and do not follow the noise.
    """

    kernels: Kernels
    latents: Float[Array, "D Q_L"]
    noise: SharedNoise | OwnNoise
    known: KnownCoordinates | None = None
    own: OwnScale | None = None

    @property
    def coordinates(self) -> Float[Array, "D Q_H"]:
        """The latents, then the coordinates of features: what the latent kernel looks at."""
        if self.known is None:
            return self.latents
        return jnp.concatenate([self.latents, self.known.gaussians.mean], axis=1)

    @property
    def noise_per_condition(self) -> Float[Array, " D"]:
        """σ_d² of every condition."""
        return jnp.broadcast_to(self.noise.variance, (self.latents.shape[0],))

    @property
    def own_per_condition(self) -> Float[Array, " D"]:
        """ρ_d² of every condition."""
        return in_proportion(self.noise_per_condition) if self.own is None else self.own.scale


def chain_parameters(parameters: Parameters, latents: Float[Array, "D Q_L"]) -> ChainParameters:
    """Return the point of the hyperparameters of a variational fit and these latents.

    Coordinates of features that nobody knows are where the fit expects them.
    """
    kernels = dataclasses.replace(parameters.kernels, terms=tuple(map(_identified, parameters.kernels.terms)))
    known = parameters.known
    if known is not None:
        known = dataclasses.replace(known, fixed=(*known.fixed, "missing_variance"))
    own = None
    if parameters.own_scale is not None:
        logs = jnp.log(parameters.own_scale)
        spread = jnp.std(logs) if parameters.own_spread is None else parameters.own_spread
        spread = jnp.clip(spread, *_FIRST_SPREADS)
        own = OwnScale(logs / spread, spread)
    if len(parameters.noise_variance) == 1:
        return ChainParameters(kernels, latents, SharedNoise(parameters.noise_variance), known, own)
    logs = jnp.log(parameters.noise_variance)
    spread = jnp.std(logs) if parameters.noise_spread is None else parameters.noise_spread
    mean, spread = jnp.mean(logs), jnp.clip(spread, *_FIRST_SPREADS)
    noise = OwnNoise((logs - mean) / spread, jnp.exp(mean), spread)
    return ChainParameters(kernels, latents, noise, known, own)


def _identified(term: Term) -> Term:
    # k_H k_X stays the same when one is doubled and the other halved: where the latent kernel is a correlation times a
    # variance, that variance is one.
    of_inputs, of_latents = term.input_kernel, term.latent_kernel
    if isinstance(of_latents, Stationary | Periodic) and "variance" not in of_latents.fixed:
        scaled = scaled_kernel(of_inputs, of_latents.variance)
        return term if scaled is None else Term(scaled, _of_unit_variance(of_latents))
    if isinstance(of_latents, Linear) and isinstance(of_inputs, Stationary | Periodic):
        scaled = None if "variance" in of_inputs.fixed else scaled_kernel(of_latents, of_inputs.variance)
        return term if scaled is None else Term(_of_unit_variance(of_inputs), scaled)
    return term


def _of_unit_variance(kernel: Stationary | Periodic) -> Kernel:
    return dataclasses.replace(kernel, variance=jnp.ones_like(kernel.variance), fixed=(*kernel.fixed, "variance"))


class Priors(NamedTuple):
    """What is known of the hyperparameters before any data, for ``inference="nuts"``.

    Each is a pair (median, spread) of a log-normal distribution: with a spread of one, two numbers out of three lie
    within a factor e of the median. All are in standardised units: inputs and outputs with a standard deviation of one,
    latents h ~ N(0, I). The defaults are wide; they keep chains away from what no data could support.

    Attributes
    ----------
    input_lengthscale : (median, spread)
        Lengthscales of the input kernel, for one column. Distances grow with the root of the number of columns that a
        kernel looks at, and so does the median.
    latent_lengthscale : (median, spread)
        Lengthscales of the latent kernel, for one dimension; the median grows likewise.
    variance : (median, spread)
        Variances of the paper's model: those of the terms of its kernels.
    part_variance : (median, spread)
        Variances of any other model, which is a sum of parts: shared, latent and own curves. So wide that a part that
        the data do not call for can all but vanish.
    other : (median, spread)
        Periods that are not held fixed, lengthscales of periodic terms (pure numbers), shapes.
    noise_variance : (median, spread)
        Noise variance; with noise per condition, the median of all conditions'.
    noise_spread : (median, spread)
        With noise per condition, the standard deviation of log σ² among conditions, and that of log ρ², the variance of
        their own curves.
    """

    input_lengthscale: tuple[float, float] = (1.0, 1.0)
    latent_lengthscale: tuple[float, float] = (1.5, 1.0)
    variance: tuple[float, float] = (1.0, 1.0)
    part_variance: tuple[float, float] = (0.1, 2.5)
    other: tuple[float, float] = (1.0, 1.0)
    noise_variance: tuple[float, float] = (0.05, 1.5)
    noise_spread: tuple[float, float] = (0.5, 0.5)

    def checked(self) -> "Priors":
        """Return the priors once each is known to be a pair of positive numbers."""
        for name, given in self._asdict().items():
            pair = cast(Sequence[Any], given) if isinstance(given, tuple | list) else ()
            if [isinstance(each, numbers.Real) and 0 < float(each) < math.inf for each in pair] != [True, True]:
                raise SettingError(
                    f"{name} of priors must be a pair (median, spread) of positive numbers, got {given!r}"
                )
        return Priors(*((float(median), float(spread)) for median, spread in self))


def log_prior(point: ChainParameters, priors: Priors) -> Scalar:
    """Return the log density of a point (equation 29), of positive numbers as that of their logarithms."""
    total = -jnp.sum(point.latents**2) / 2  # h_d ~ N(0, I)
    if not point.kernels.is_plain:
        priors = priors._replace(variance=priors.part_variance)
    for kernel in point.kernels.of_inputs:
        total = total + _log_prior_of_kernel(kernel, priors, priors.input_lengthscale)
    for kernel in point.kernels.of_latents:
        total = total + _log_prior_of_kernel(kernel, priors, priors.latent_lengthscale)
    if point.known is not None:
        total = total - jnp.sum(point.known.missing_mean**2) / 2  # what is missing, like a latent
    if point.own is not None:
        total = total - jnp.sum(point.own.deviations**2) / 2 + _log_density(point.own.spread, *priors.noise_spread)
    noise = point.noise
    if isinstance(noise, SharedNoise):
        return total + _log_density(noise.variance, *priors.noise_variance)
    total = total - jnp.sum(noise.deviations**2) / 2  # ε_d ~ N(0, 1)
    return total + _log_density(noise.median, *priors.noise_variance) + _log_density(noise.spread, *priors.noise_spread)


def _log_prior_of_kernel(kernel: Kernel, priors: Priors, lengthscale: tuple[float, float]) -> Scalar:
    total = jnp.zeros(())
    for leaf in leaves(kernel):
        own = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
        known = {"variance": priors.variance, "period": priors.other, "shape": priors.other}
        if "lengthscale" in own:
            median, spread = lengthscale
            for_columns = (median * math.sqrt(own["lengthscale"].size), spread)
            known["lengthscale"] = priors.other if isinstance(leaf, Periodic) else for_columns
        for name, density in known.items():
            if name in own and name not in own["fixed"]:
                total = total + _log_density(own[name], *density)
    return total


def _log_density(values: Float[Array, "*shape"], median: float, spread: float) -> Scalar:
    # Σ log N(log v; log median, spread²) without its constant −½ log 2π.
    return jnp.sum(-(((jnp.log(values) - jnp.log(median)) / spread) ** 2) / 2 - jnp.log(spread))
