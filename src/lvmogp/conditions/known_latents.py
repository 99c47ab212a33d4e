"""Which coordinates of one condition are known, and which are to be found."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, Float, HostFloat, Int


class KnownLatents(eqx.Module):
    """The coordinates of one condition: ``values`` where they are known, places in ``unknown`` to be filled.

    The first ``n_latent`` are latents, which nobody knows; the others come from features.
    """

    values: Float[Array, " Q_H"]
    unknown: Int[Array, " U"]
    n_latent: int = eqx.field(static=True)

    @property
    def n_uncertain(self) -> int | None:
        """The number of latents where they alone are unknown, else ``None``; as in ``LatentGaussians``."""
        return self.n_latent if self.unknown.shape[0] == self.n_latent < self.values.shape[0] else None

    def filled(self, found: Float[Array, " U"], fill: float | None = None) -> Float[Array, " Q_H"]:
        """All coordinates: those found in the unknown places, the known ones (or ``fill``) in the others."""
        known = self.values if fill is None else jnp.full_like(self.values, fill)
        return known.at[self.unknown].set(found)


def known_latents(model: Posterior, coordinates: HostFloat | None) -> KnownLatents:
    """What the coordinates of a condition's features say, NaN where missing; without any, nothing is known."""
    dtype = model.mean.dtype
    n_coordinates, n_latent = model.latent_basis.points.shape[1], model.parameters.latent_mean.shape[1]
    values = np.full(n_coordinates, np.nan)
    if coordinates is not None:
        values[n_latent:] = coordinates
    return KnownLatents(
        jnp.asarray(np.nan_to_num(values), dtype),
        jnp.asarray(np.flatnonzero(np.isnan(values)), jnp.int32),
        n_latent,
    )
