"""What follows from predictive mixtures of Gaussians, in the user's units: moments, quantiles, densities."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.gaussians import mixture_quantile, mixture_scores
from lvmogp.ground.compiling import compiled
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float, HostFloat


class Mixture(eqx.Module):
    """Predictive mixtures Σ_p w_p N(mean_p, variance_p) of n rows, in standardised units."""

    weights: Float[Array, " P"]
    means: Float[Array, "P n"]
    variances: Float[Array, "P n"]


# What is asked of the mixtures of rows: a function of them and of k given values a row, with m results a row. Values
# are in double precision whatever that of the mixtures, since they may be a location and a scale in the user's units.
Statistic = Callable[[Mixture, Float[Array, "n k"]], Float[Array, "n m"]]
# A statistic of the mixtures of all rows that someone knows of, from values for each row.
Ask = Callable[[HostFloat, Statistic], HostFloat]


class OutputMoments(eqx.Module):
    """The statistic that is mean and variance of the output, given its location and scale for each row.

    These are arrays, so that one program serves models of all scales.
    """

    transform: Transform | None

    def __call__(self, rows: Mixture, factors: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
        """Return both in the user's units."""
        location, scale = factors.T
        # The variance as that within components and that between them, ⟨var_p y + (⟨y⟩_p − ⟨y⟩)²⟩, both positive:
        # ⟨y²⟩ − ⟨y⟩² would lose all digits of a small one.
        if self.transform is None:  # before the location is added, which may be large
            mean = rows.weights @ rows.means
            variance = rows.weights @ (rows.variances + (rows.means - mean) ** 2)
            return jnp.stack([mean * scale + location, variance * scale**2], axis=1)
        means, variances = rows.means * scale + location, rows.variances * scale**2
        centres = self.transform.mean(means, variances)
        mean = rows.weights @ centres
        variance = rows.weights @ (self.transform.variance(means, variances) + (centres - mean) ** 2)
        return jnp.stack([mean, variance], axis=1)


def quantiles(rows: Mixture, levels: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Return quantiles at given levels."""

    def at(level: Float[Array, " n"]) -> Float[Array, " n"]:
        return mixture_quantile(level, rows.means, rows.variances, rows.weights[:, None])

    return jax.vmap(at, in_axes=1, out_axes=1)(levels.astype(rows.means.dtype))


def scores(rows: Mixture, measured: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
    """Return log density, and probability of no larger ones, of values y whose own errors have variances e.

    log Σ_p w_p N(y | m_p, v_p + e) and Σ_p w_p Φ((y − m_p)/√(v_p + e))
    """
    values, variances = measured[:, 0], rows.variances + measured[:, 1]
    return jnp.stack(mixture_scores(values, rows.means, variances, rows.weights[:, None]), axis=1)


def asked_of(rows: Mixture) -> Ask:
    """Return a way to ask mixtures that are at hand."""
    return lambda values, statistic: np.asarray(_statistic_of(rows, jnp.asarray(values), statistic))


@compiled
def _statistic_of(rows: Mixture, values: Float[Array, "n k"], statistic: Statistic) -> Float[Array, "n m"]:
    return statistic(rows, values)


def output_factors(scaling: Scaling, n_rows: int) -> HostFloat:
    """Return location and scale of the output for each row, as :class:`OutputMoments` takes them."""
    return np.broadcast_to([scaling.output_mean, scaling.output_scale], (n_rows, 2))


def moments_in_units(ask: Ask, scaling: Scaling, n_rows: int) -> tuple[HostFloat, HostFloat]:
    """Return mean and variance of the output at each row in the user's units."""
    mean, variance = ask(output_factors(scaling, n_rows), OutputMoments(scaling.transform)).T
    return mean, variance


def quantiles_in_units(ask: Ask, scaling: Scaling, levels: HostFloat) -> HostFloat:
    """Return quantiles of the output in the user's units, at some levels for each row."""
    return scaling.quantity(ask(levels, quantiles))


class Scores(NamedTuple):
    """Outputs under their predictive distributions: log density per unit, and the probability of no larger ones."""

    log_density: HostFloat
    probability_below: HostFloat


def scores_in_units(ask: Ask, scaling: Scaling, outputs: HostFloat, errors: HostFloat) -> Scores:
    """Judge outputs in the user's units; what the transform cannot take is too small to happen.

    ``errors`` are standard deviations of each output beyond what the mixtures know of. The lowest output that a
    transform can have may be that of many values, and then has a probability in place of a density.
    """
    possible = scaling.takes(outputs)
    outputs = np.where(possible, outputs, 1.0)
    measured = np.stack([scaling.outputs(outputs), scaling.error_variances(errors, outputs)], axis=1)
    density, below = ask(measured, scores).T
    is_lowest = scaling.are_lowest(outputs)
    density = density + np.where(is_lowest, 0.0, scaling.log_slopes(outputs))  # p(y) = p(z) dz/dy
    with np.errstate(divide="ignore"):  # of what cannot happen
        density = np.where(is_lowest, np.log(below), density)
    return Scores(np.where(possible, density, -np.inf), np.where(possible, below, 0.0))


def with_variances(covariance: HostFloat, variance: HostFloat) -> HostFloat:
    """Return the covariance with the same correlations and these variances; what does not vary has no correlations."""
    own = np.diag(covariance)
    scale = np.sqrt(np.divide(variance, own, out=np.zeros_like(variance), where=own > 0))
    scaled = covariance * np.outer(scale, scale)
    np.fill_diagonal(scaled, variance)
    return scaled
