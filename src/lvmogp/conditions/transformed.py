"""Covariance of outputs of which a transform is modelled, over scenarios given each of which that is Gaussian."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.padding import stacked_rows
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float, HostFloat, Scalar


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
