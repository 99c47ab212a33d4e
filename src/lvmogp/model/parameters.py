"""The one container of everything that is learnt."""

import dataclasses
from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import LOWER_TRIANGULAR, POINTS, positive
from lvmogp.algebra.gaussians import kl_to_standard_normal
from lvmogp.ground.rules import Below
from lvmogp.kernels.covariances import Kernel
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar


class KroneckerInducing(eqx.Module):
    """Explicit q(v) = N(vec M, Σ_H ⊗ Σ_X) over the whitened inducing variables, Σ = L Lᵀ (the paper's choice)."""

    mean: Float[Array, "M_X M_H"]
    input_factor: Float[Array, "M_X M_X"] = eqx.field(metadata=LOWER_TRIANGULAR)
    latent_factor: Float[Array, "M_H M_H"] = eqx.field(metadata=LOWER_TRIANGULAR)


class FullInducing(eqx.Module):
    """Explicit q(v) = N(vec M, L Lᵀ) over the whitened inducing variables, without any structure."""

    mean: Float[Array, "M_X M_H"]
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


class Parameters(eqx.Module):
    """Kernels, inducing points, q(H), noise and, for the explicit bounds, q(v).

    ``latent_mean`` and ``latent_variance`` are those of the latents. Where conditions have known features, their
    coordinates follow the latents: ``latents`` is the one place where both are put together.
    ``noise_variance`` has one entry for noise shared by all conditions, D entries for noise per condition.
    ``inducing`` is ``None`` for the collapsed bound, whose q(v) is optimal and never stored.
    """

    input_kernel: Kernel
    latent_kernel: Kernel
    inducing_inputs: Float[Array, "M_X Q_X"] = eqx.field(metadata=POINTS)
    inducing_latents: Float[Array, "M_H Q_H"]
    latent_mean: Float[Array, "D Q_L"]
    latent_variance: Float[Array, "D Q_L"] = positive()
    noise_variance: Float[Array, " noise"] = positive()
    inducing: Inducing | None = None
    known: KnownCoordinates | None = None

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
        known=known,
    )
