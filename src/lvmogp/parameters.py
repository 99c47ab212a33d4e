"""The one container of everything that is learnt."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.constraints import POINTS, lower_triangular, positive
from lvmogp.kernels import Kernel
from lvmogp.psi_statistics import LatentGaussians
from lvmogp.typing import Array, Float, HostFloat


class KroneckerInducing(eqx.Module):
    """Explicit q(v) = N(vec M, Σ_H ⊗ Σ_X) over the whitened inducing variables, Σ = L Lᵀ (the paper's choice)."""

    mean: Float[Array, "M_X M_H"]
    input_factor: Float[Array, "M_X M_X"] = lower_triangular()
    latent_factor: Float[Array, "M_H M_H"] = lower_triangular()


class FullInducing(eqx.Module):
    """Explicit q(v) = N(vec M, L Lᵀ) over the whitened inducing variables, without any structure."""

    mean: Float[Array, "M_X M_H"]
    factor: Float[Array, "M M"] = lower_triangular()


Inducing = KroneckerInducing | FullInducing


class Parameters(eqx.Module):
    """Kernels, inducing points, q(H), noise and, for the explicit bounds, q(v).

    ``noise_variance`` has one entry for noise shared by all conditions, D entries for noise per condition.
    ``inducing`` is ``None`` for the collapsed bound, whose q(v) is optimal and never stored.
    """

    input_kernel: Kernel
    latent_kernel: Kernel
    inducing_inputs: Float[Array, "M_X Q_X"] = eqx.field(metadata=POINTS)
    inducing_latents: Float[Array, "M_H Q_H"]
    latent_mean: Float[Array, "D Q_H"]
    latent_variance: Float[Array, "D Q_H"] = positive()
    noise_variance: Float[Array, " noise"] = positive()
    inducing: Inducing | None = None

    @property
    def latents(self) -> LatentGaussians:
        """q(H)."""
        return LatentGaussians(self.latent_mean, self.latent_variance)

    @property
    def noise_per_condition(self) -> Float[Array, " D"]:
        """σ_d² of every condition."""
        return jnp.broadcast_to(self.noise_variance, (self.latent_mean.shape[0],))

    @property
    def host_noise(self) -> HostFloat:
        """σ_d² of every condition, for what is computed outside of compiled programs."""
        return np.broadcast_to(np.asarray(self.noise_variance, dtype=float), (self.latent_mean.shape[0],))

    @property
    def has_shared_noise(self) -> bool:
        """Whether one noise variance serves all conditions."""
        return self.noise_variance.shape[0] == 1 and self.latent_mean.shape[0] != 1
