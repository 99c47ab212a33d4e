"""Covariance of outputs whose logarithm is modelled, over scenarios given each of which that is Gaussian."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.stacking import stacked_rows
from lvmogp.typing import Array, Float, HostFloat, Scalar


class GivenScenario(NamedTuple):
    """Mean and covariance of f at the rows of C conditions, and their noise variances, in standardised units."""

    mean: Float[Array, " rows"]
    covariance: Float[Array, "rows rows"]
    noise: Float[Array, " C"]


class LogOutput(eqx.Module):
    """How outputs at the rows of C conditions follow from standardised logarithms, y = exp(location + scale · f).

    ``log_means`` are log ⟨y⟩, by which everything is divided. ``with_noise`` is one if outputs are observations, zero
    without their noise.
    """

    location: Scalar
    scale: Scalar
    log_means: Float[Array, "C n"]
    with_noise: Scalar

    def sums(
        self, given: Callable[[Any], GivenScenario], scenarios: Any, weights: Float[Array, " L"]
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
        """⟨r − 1⟩ and ⟨r r' (exp cov(log y, log y') − 1) + (r − 1)(r' − 1)⟩ with r = ⟨y | scenario⟩/⟨y⟩.

        These sums over scenarios are those of :func:`relative_covariance` (equation 52).
        """
        log_means = self.log_means.reshape(-1)

        def add(sums: tuple[Array, Array], scenario: tuple[Any, Array]) -> tuple[tuple[Array, Array], None]:
            told, weight = given(scenario[0]), scenario[1]
            noise = jnp.repeat(told.noise * self.with_noise, self.log_means.shape[1])
            covariance = self.scale**2 * (told.covariance + jnp.diag(noise))  # of log y
            apart = jnp.expm1(self.location + self.scale * told.mean + jnp.diag(covariance) / 2 - log_means)
            products = jnp.outer(1 + apart, 1 + apart) * jnp.expm1(covariance) + jnp.outer(apart, apart)
            return (sums[0] + weight * apart, sums[1] + weight * products), None

        nothing = (jnp.zeros_like(log_means), jnp.zeros((log_means.size, log_means.size), log_means.dtype))
        return jax.lax.scan(add, nothing, (scenarios, weights))[0]


def log_output(location: float, scale: float, log_means: Sequence[HostFloat], *, include_noise: bool) -> LogOutput:
    """Outputs at the rows of several conditions, from log ⟨y⟩ of each."""
    stacked = stacked_rows([of_rows[:, None] for of_rows in log_means])[..., 0]
    return LogOutput(
        *(jnp.asarray(np.asarray(part, dtype=float)) for part in (location, scale, stacked, include_noise))
    )


def relative_covariance(apart: HostFloat, products: HostFloat) -> HostFloat:
    """Cov(y, y')/⟨y⟩⟨y'⟩ from the sums over all scenarios (equation 52)."""
    return products - np.outer(apart, apart)
