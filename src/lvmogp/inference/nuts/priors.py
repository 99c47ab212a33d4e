"""Prior distributions of everything unknown, in standardised units."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax.numpy as jnp

from lvmogp.errors import SettingError
from lvmogp.inference.nuts.parameters import ChainParameters, SharedNoise
from lvmogp.kernels.covariances import Kernel, Periodic, leaves
from lvmogp.typing import Array, Float, Scalar


class LogNormal(NamedTuple):
    """A positive number whose logarithm is Gaussian: its median, and the standard deviation of the logarithm."""

    median: float
    spread: float


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
        Variances of the terms of the kernels.
    other : (median, spread)
        Periods that are not held fixed, lengthscales of periodic terms (pure numbers), shapes.
    noise_variance : (median, spread)
        Noise variance; with noise per condition, the median of all conditions'.
    noise_spread : (median, spread)
        With noise per condition, the standard deviation of log σ² among conditions.
    """

    input_lengthscale: tuple[float, float] = LogNormal(1.0, 1.0)
    latent_lengthscale: tuple[float, float] = LogNormal(1.5, 1.0)
    variance: tuple[float, float] = LogNormal(1.0, 1.0)
    other: tuple[float, float] = LogNormal(1.0, 1.0)
    noise_variance: tuple[float, float] = LogNormal(0.05, 1.5)
    noise_spread: tuple[float, float] = LogNormal(0.5, 0.5)

    def checked(self) -> "Priors":
        """Return the priors once each is known to be a pair of positive numbers."""
        for name, given in self._asdict().items():
            if not _is_pair(given):
                raise SettingError(
                    f"{name} of priors must be a pair (median, spread) of positive numbers, got {given!r}"
                )
        return Priors(*(LogNormal(float(median), float(spread)) for median, spread in self))


def _is_pair(given: Any) -> bool:
    if not isinstance(given, tuple | list):
        return False
    pair = cast(Sequence[object], given)
    return len(pair) == 2 and all(isinstance(each, numbers.Real) and 0 < float(each) < math.inf for each in pair)


def log_prior(point: ChainParameters, priors: Priors) -> Scalar:
    """Log density of a point (equation 29), of positive numbers as that of their logarithms, up to a constant."""
    total = (
        _log_prior_of_kernel(point.input_kernel, priors, priors.input_lengthscale)
        + _log_prior_of_kernel(point.latent_kernel, priors, priors.latent_lengthscale)
        - jnp.sum(point.latents**2) / 2  # h_d ~ N(0, I)
    )
    if point.described is not None:
        total = total - jnp.sum(point.described.missing**2) / 2  # what is missing, like a latent
    noise = point.noise
    if isinstance(noise, SharedNoise):
        return total + _log_density(noise.variance, *priors.noise_variance)
    return (
        total
        - jnp.sum(noise.deviations**2) / 2  # ε_d ~ N(0, 1)
        + _log_density(noise.median, *priors.noise_variance)
        + _log_density(noise.spread, *priors.noise_spread)
    )


def _log_prior_of_kernel(kernel: Kernel, priors: Priors, lengthscale: tuple[float, float]) -> Scalar:
    total = jnp.zeros(())
    for leaf in leaves(kernel):
        known = {"variance": priors.variance, "period": priors.other, "shape": priors.other}
        own = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
        if "lengthscale" in own:
            known["lengthscale"] = priors.other if isinstance(leaf, Periodic) else _for_columns(lengthscale, own)
        for name, (median, spread) in known.items():
            if name in own and name not in own["fixed"]:
                total = total + _log_density(own[name], median, spread)
    return total


def _for_columns(lengthscale: tuple[float, float], own: dict[str, Any]) -> tuple[float, float]:
    median, spread = lengthscale
    return median * math.sqrt(own["lengthscale"].size), spread


def _log_density(values: Float[Array, "*shape"], median: float, spread: float) -> Scalar:
    # Σ log N(log v; log median, spread²) without its constant −½ log 2π.
    return jnp.sum(-(((jnp.log(values) - jnp.log(median)) / spread) ** 2) / 2 - jnp.log(spread))
