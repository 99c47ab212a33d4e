"""What follows from predictive mixtures of Gaussians: moments, quantiles, densities, covariances of outputs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.gaussians import mixture_distribution, mixture_log_density, mixture_quantile
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up, stacked_rows, with_last_repeated
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float, HostFloat, Scalar


class Mixture(eqx.Module):
    """Predictive mixtures Σ_p w_p N(mean_p, variance_p) of n rows, in standardised units."""

    weights: Float[Array, " P"]
    means: Float[Array, "P n"]
    variances: Float[Array, "P n"]

    @property
    def moments(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of each row's mixture."""
        mean = self.weights @ self.means
        return mean, self.weights @ (self.variances + (self.means - mean) ** 2)


def output_moments(rows: Mixture, scaling: Scaling) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Mean and variance of the output in the user's units."""
    transform = scaling.transform
    if transform is None:
        mean, variance = rows.moments  # before the location is added, which may be large
        return scaling.location(mean), scaling.variance(variance)
    means, variances = scaling.location(rows.means), scaling.variance(rows.variances)
    # The variance as that within components and that between them, ⟨var_p y + (⟨y⟩_p − ⟨y⟩)²⟩, both positive:
    # ⟨y²⟩ − ⟨y⟩² would lose all digits of a small one.
    centres = transform.mean(means, variances)
    first = rows.weights @ centres
    return first, rows.weights @ (transform.variance(means, variances) + (centres - first) ** 2)


def with_variances(covariance: HostFloat, variance: HostFloat) -> HostFloat:
    """The covariance with the same correlations and these variances; where nothing varies there are no correlations."""
    own = np.diag(covariance)
    scale = np.sqrt(np.divide(variance, own, out=np.zeros_like(variance), where=own > 0))
    scaled = covariance * np.outer(scale, scale)
    np.fill_diagonal(scaled, variance)
    return scaled


def moments_in_units(rows: Mixture, scaling: Scaling) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output in the user's units, outside of compiled programs."""
    factors = output_factors(scaling, rows.means.shape[1])
    mean, variance = statistic_of(rows, factors, OutputMoments(scaling.transform)).T
    return mean, variance


# What is asked of the mixtures of rows: a function of them and of k given values a row, with m results a row. Values
# are in double precision whatever that of the mixtures, since they may be a location and a scale in the user's units.
Statistic = Callable[[Mixture, Float[Array, "n k"]], Float[Array, "n m"]]


class OutputMoments(eqx.Module):
    """The statistic that is mean and variance of the output, from the location and scale of ``output_factors``."""

    transform: Transform | None

    def __call__(self, rows: Mixture, factors: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
        """Both, in the user's units."""
        scaling = output_scaling((factors[:, 0], factors[:, 1]), self.transform)
        return jnp.stack(output_moments(rows, scaling), axis=1)


def output_factors(scaling: Scaling, n_rows: int) -> HostFloat:
    """Location and scale of the output for each row; as arrays, so that one program serves models of all scales."""
    return np.broadcast_to([scaling.output_mean, scaling.output_scale], (n_rows, 2))


def quantiles(rows: Mixture, levels: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Quantiles at given levels."""

    def at(level: Float[Array, " n"]) -> Float[Array, " n"]:
        return mixture_quantile(level, rows.means, rows.variances, rows.weights[:, None])

    return jax.vmap(at, in_axes=1, out_axes=1)(levels.astype(rows.means.dtype))


def judgements(rows: Mixture, measured: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
    """Log density, and probability of no larger ones, of values y whose own errors have variances e.

    log Σ_p w_p N(y | m_p, v_p + e) and Σ_p w_p Φ((y − m_p)/√(v_p + e))
    """
    values, variances = measured[:, 0], rows.variances + measured[:, 1]
    density = mixture_log_density(values, rows.means, variances, jnp.log(rows.weights)[:, None])
    return jnp.stack([density, mixture_distribution(values, rows.means, variances, rows.weights[:, None])], axis=1)


def statistic_of(rows: Mixture, values: HostFloat, statistic: Statistic) -> HostFloat:
    """Return a statistic of mixtures, computed for one of few numbers of rows."""
    n_rows = len(values)
    more = rounded_up(n_rows) - n_rows
    wide = [jnp.pad(part, ((0, 0), (0, more)), mode="edge") for part in (rows.means, rows.variances)]
    padded = Mixture(rows.weights, *wide) if more else rows
    return np.asarray(_statistic_of(padded, jnp.asarray(with_last_repeated(values)), statistic))[:n_rows]


@compiled
def _statistic_of(rows: Mixture, values: Float[Array, "n k"], statistic: Statistic) -> Float[Array, "n m"]:
    return statistic(rows, values)


def output_scaling(factors: tuple[Any, Any], transform: Transform | None) -> Scaling:
    """A scaling of outputs alone, whose location and scale may be traced."""
    location, scale = factors
    return Scaling(np.empty(0), np.empty(0), location, scale, transform)


def quantile(rows: Mixture, scaling: Scaling, probability: float) -> HostFloat:
    """Quantile of the output in the user's units."""
    levels = np.full((rows.means.shape[1], 1), probability)
    return scaling.quantity(statistic_of(rows, levels, quantiles)[:, 0])


class Judged(NamedTuple):
    """Outputs under their predictive distributions: log density per unit, and the probability of no larger ones."""

    log_density: HostFloat
    probability_below: HostFloat


def judged(rows: Mixture, scaling: Scaling, outputs: HostFloat) -> Judged:
    """Outputs under mixtures that know of their errors."""
    errors = np.zeros_like(outputs)
    return judged_in_units(scaling, outputs, errors, lambda measured: statistic_of(rows, measured, judgements))


def judged_in_units(
    scaling: Scaling, outputs: HostFloat, errors: HostFloat, standardised: Callable[[HostFloat], HostFloat]
) -> Judged:
    """Judge outputs by ``judgements`` of standardised ones; what the transform cannot take is too small to happen.

    ``errors`` are standard deviations of each output beyond what the mixtures know of. The lowest output that a
    transform can have may be that of many values, and then has a probability in place of a density.
    """
    possible = scaling.takes(outputs)
    outputs = np.where(possible, outputs, 1.0)
    measured = np.stack([scaling.outputs(outputs), scaling.error_variances(errors, outputs)], axis=1)
    density, below = standardised(measured).T
    is_lowest = scaling.are_lowest(outputs)
    density = density + np.where(is_lowest, 0.0, scaling.log_slopes(outputs))  # p(y) = p(z) dz/dy
    with np.errstate(divide="ignore"):  # of what cannot happen
        density = np.where(is_lowest, np.log(below), density)
    return Judged(np.where(possible, density, -np.inf), np.where(possible, below, 0.0))


class GivenScenario(NamedTuple):
    """Mean and covariance of f at the rows of C conditions, and their noise variances, in standardised units."""

    mean: Float[Array, " rows"]
    covariance: Float[Array, "rows rows"]
    noise: Float[Array, " C"]


class RelativeOutput(eqx.Module):
    """How outputs at the rows of C conditions, divided by their means, follow from f: r = t⁻¹(location + scale · f).

    ``with_noise`` is one if outputs are observations, zero without their noise.
    """

    transform: Transform
    location: Float[Array, "C n"]
    scale: Float[Array, "C n"]
    with_noise: Scalar

    def sums(
        self, given: Callable[[Any], GivenScenario], scenarios: Any, weights: Float[Array, " L"]
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
        """⟨r_s − 1⟩ and ⟨cov_s(r, r') + (r_s − 1)(r'_s − 1)⟩ with r_s = ⟨r | scenario⟩.

        These sums over scenarios are those of :func:`relative_covariance` (equation 52).
        """
        location, scale = self.location.reshape(-1), self.scale.reshape(-1)

        def add(sums: tuple[Array, Array], scenario: tuple[Any, Array]) -> tuple[tuple[Array, Array], None]:
            told, weight = given(scenario[0]), scenario[1]
            noise = jnp.repeat(told.noise * self.with_noise, self.location.shape[1])
            mean = location + scale * told.mean
            covariance = jnp.outer(scale, scale) * (told.covariance + jnp.diag(noise))
            apart = self.transform.excess(mean, jnp.diag(covariance))
            products = self.transform.covariance(mean, covariance) + jnp.outer(apart, apart)
            return (sums[0] + weight * apart, sums[1] + weight * products), None

        nothing = (jnp.zeros_like(location), jnp.zeros((location.size, location.size), location.dtype))
        return jax.lax.scan(add, nothing, (scenarios, weights))[0]


def relative_output(
    transform: Transform, location: float, scale: float, means: Sequence[HostFloat], *, include_noise: bool
) -> RelativeOutput:
    """Outputs t⁻¹(location + scale · f) at the rows of several conditions, divided by ``means`` of each."""
    stacked = stacked_rows([of_rows[:, None] for of_rows in means])[..., 0]
    of_rows = transform.divided(location, scale, stacked)
    return RelativeOutput(transform, *(jnp.asarray(part) for part in (*of_rows, np.asarray(include_noise, float))))


def relative_covariance(apart: HostFloat, products: HostFloat) -> HostFloat:
    """Cov(y, y')/⟨y⟩⟨y'⟩ from the sums over all scenarios (equation 52)."""
    return products - np.outer(apart, apart)
