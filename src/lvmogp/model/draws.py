"""Draws of everything unknown given the data."""

from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.rules import LOG_WEIGHTS, NOT_NEGATIVE, POSITIVE
from lvmogp.model.parameters import Kernels, in_proportion
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int


class NoiseSpread(eqx.Module):
    """How noise varies among conditions under each draw: log σ_d² ~ N(log median, deviation²)."""

    median: Annotated[Float[Array, " draws"], POSITIVE]
    deviation: Annotated[Float[Array, " draws"], NOT_NEGATIVE]


class Draws(eqx.Module):
    """Draws of everything unknown given the data, in standardised units; every leaf has a leading axis of S draws.

    Where conditions have features, their coordinates follow the latents of each. ``chain`` says which chain each draw
    comes from, and ``log_weight`` how much it counts: the logarithms of numbers that add up to one, all equal for plain
    Markov chains. ``noise_spread`` and ``own_spread`` are there where each condition has a noise, and a variance
    ``own_scale`` of its own curve, of its own.
    """

    kernels: Kernels
    latents: Float[Array, "draws D Q_H"]
    noise_variance: Annotated[Float[Array, "draws noise"], POSITIVE]
    chain: Int[Array, " draws"]
    log_weight: Annotated[Float[Array, " draws"], LOG_WEIGHTS]
    noise_spread: NoiseSpread | None = None
    own_scale: Annotated[Float[Array, "draws D"], POSITIVE] | None = None
    own_spread: Annotated[Float[Array, " draws"], NOT_NEGATIVE] | None = None

    @property
    def n_draws(self) -> int:
        """S."""
        return self.latents.shape[0]

    @property
    def noise_per_condition(self) -> Float[Array, "*draws D"]:
        """σ_d² of every condition."""
        return jnp.broadcast_to(self.noise_variance, self.latents.shape[:-1])

    @property
    def own_per_condition(self) -> Float[Array, "*draws D"]:
        """ρ_d² of every condition, by which own curves differ; one where all have the same noise."""
        return in_proportion(self.noise_per_condition) if self.own_scale is None else self.own_scale


def covering_subset(latents: HostFloat, n_wanted: int) -> HostInt:
    """Numbers of conditions whose latents cover those of all: each next one is farthest from those chosen before.

    Their own latents serve as inducing latents, which so move along with the draws.
    """
    nearest = np.full(len(latents), np.inf)  # distance to those chosen; of these themselves below all others
    latest = int(np.argmin(np.linalg.norm(latents - latents.mean(axis=0), axis=1)))
    chosen: list[int] = []
    while len(chosen) < min(n_wanted, len(latents)):
        chosen.append(latest)
        nearest = np.minimum(nearest, np.linalg.norm(latents - latents[latest], axis=1))
        nearest[latest] = -1.0
        latest = int(np.argmax(nearest))
    return np.sort(np.asarray(chosen))
