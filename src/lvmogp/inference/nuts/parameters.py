"""The parameters of Markov chains: everything unknown as one point, which is what a sampler moves."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.constraints import positive
from lvmogp.kernels.covariances import Kernel, Periodic, Product, Stationary, Sum
from lvmogp.model.draws import Draws, NoiseSpread
from lvmogp.model.parameters import Parameters
from lvmogp.typing import Array, Float, Int, Scalar


class SharedNoise(eqx.Module):
    """One noise variance for all conditions."""

    variance: Float[Array, "*shape 1"] = positive()


class OwnNoise(eqx.Module):
    """A noise variance for each condition, log σ_d² = log median + spread ε_d with ε_d ~ N(0, 1).

    Few observations of a condition say little of its σ_d², which then follows the median and the spread wherever these
    go. In ε_d, which does not, chains have no funnel to go down.
    """

    deviations: Float[Array, "*shape D"]
    median: Float[Array, "*shape"] = positive()
    spread: Float[Array, "*shape"] = positive()

    @property
    def variance(self) -> Float[Array, "*shape D"]:
        """σ_d² of every condition."""
        return self.median[..., None] * jnp.exp(self.spread[..., None] * self.deviations)


class Described(eqx.Module):
    """Coordinates of the conditions that come from their features; ``missing`` are those that nobody knows."""

    values: Float[Array, "D Q_F"]
    missing_condition: Int[Array, " missing"]
    missing_coordinate: Int[Array, " missing"]
    missing: Float[Array, " missing"]
    fixed: tuple[str, ...] = eqx.field(
        static=True, default=("values", "missing_condition", "missing_coordinate"), kw_only=True
    )

    @property
    def coordinates(self) -> Float[Array, "D Q_F"]:
        """All of them, the missing ones in their places."""
        return self.values.at[self.missing_condition, self.missing_coordinate].set(self.missing)


class ChainParameters(eqx.Module):
    """Kernels, latents and noise; where conditions have features, their coordinates, which follow the latents."""

    input_kernel: Kernel
    latent_kernel: Kernel
    latents: Float[Array, "D Q_L"]
    noise: SharedNoise | OwnNoise
    described: Described | None = None

    @property
    def coordinates(self) -> Float[Array, "D Q_H"]:
        """The latents, then the coordinates of features: what the latent kernel looks at."""
        if self.described is None:
            return self.latents
        return jnp.concatenate([self.latents, self.described.coordinates], axis=1)

    @property
    def noise_per_condition(self) -> Float[Array, " D"]:
        """σ_d² of every condition."""
        return jnp.broadcast_to(self.noise.variance, (self.latents.shape[0],))


def chain_parameters(
    parameters: Parameters, latents: Float[Array, "D Q_L"], missing: Float[Array, " missing"] | None = None
) -> ChainParameters:
    """The point of the hyperparameters of a variational fit and these latents.

    ``missing`` are coordinates of features that nobody knows; left out, they are where the fit expects them.
    """
    input_kernel, latent_kernel = _without_redundancy(parameters.input_kernel, parameters.latent_kernel)
    described, known = None, parameters.known
    if known is not None:
        found = known.missing_mean if missing is None else missing
        described = Described(known.values, known.missing_condition, known.missing_coordinate, found)
    return ChainParameters(input_kernel, latent_kernel, latents, _noise_at(parameters.noise_variance), described)


def _noise_at(variance: Float[Array, " noise"]) -> SharedNoise | OwnNoise:
    if variance.shape[0] == 1:
        return SharedNoise(variance)
    logs = jnp.log(variance)
    mean, spread = jnp.mean(logs), jnp.clip(jnp.std(logs), 0.1, 2.0)
    return OwnNoise((logs - mean) / spread, jnp.exp(mean), spread)


def _without_redundancy(input_kernel: Kernel, latent_kernel: Kernel) -> tuple[Kernel, Kernel]:
    # k_H k_X stays the same when one is doubled and the other halved. The data know nothing of the difference, so
    # where the latent kernel is a correlation times a variance, that variance is one.
    if not isinstance(latent_kernel, Stationary | Periodic) or "variance" in latent_kernel.fixed:
        return input_kernel, latent_kernel
    scaled = _scaled(input_kernel, latent_kernel.variance)
    if scaled is None:
        return input_kernel, latent_kernel
    fixed = (*latent_kernel.fixed, "variance")
    return scaled, dataclasses.replace(latent_kernel, variance=jnp.ones_like(latent_kernel.variance), fixed=fixed)


def _scaled(kernel: Any, factor: Scalar) -> Kernel | None:
    # The kernel times a factor, or None where the user holds its variance fixed.
    if isinstance(kernel, Sum):
        terms = [_scaled(term, factor) for term in kernel.terms]
        return None if any(term is None for term in terms) else Sum(tuple(term for term in terms if term is not None))
    if isinstance(kernel, Product):
        for place, term in enumerate(kernel.terms):
            scaled = _scaled(term, factor)
            if scaled is not None:
                return Product((*kernel.terms[:place], scaled, *kernel.terms[place + 1 :]))
        return None
    if "variance" in kernel.fixed:
        return None
    return eqx.tree_at(lambda leaf: leaf.variance, kernel, kernel.variance * factor)


def as_draws(
    points: ChainParameters, like: Parameters, *, chain: Int[Array, " draws"], log_weight: Float[Array, " draws"]
) -> Draws:
    """Points with a leading axis of S draws as draws, whose kernels hold fixed what the user holds fixed."""

    def as_described(kernel: Kernel, described: Kernel) -> Kernel:
        return jax.tree.unflatten(jax.tree.structure(described), jax.tree.leaves(kernel))

    noise = points.noise
    return Draws(
        input_kernel=as_described(points.input_kernel, like.input_kernel),
        latent_kernel=as_described(points.latent_kernel, like.latent_kernel),
        latents=jax.vmap(lambda point: point.coordinates)(points),
        noise_variance=noise.variance,
        chain=chain,
        log_weight=log_weight,
        noise_spread=NoiseSpread(noise.median, noise.spread) if isinstance(noise, OwnNoise) else None,
    )
