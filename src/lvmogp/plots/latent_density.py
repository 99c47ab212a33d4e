"""The exact posterior density of an added condition's latents, on given points."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from lvmogp.conditions.evidence import Evidence
from lvmogp.conditions.known_latents import KnownLatents
from lvmogp.conditions.new_condition import NoisePrior, log_posterior, noise_prior
from lvmogp.ground.compiling import compiled
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, Float, HostFloat, Scalar

_N_NOISE_NODES = 31
_POINTS_AT_ONCE = 512


def log_latent_density(
    model: Posterior, seen: Evidence, latents: HostFloat, known: KnownLatents | None = None
) -> HostFloat:
    """Log p(h | y) up to a constant (equation 19); a noise of its own is integrated out by Gauss–Hermite.

    ``latents`` are all the coordinates that are not ``known``.
    """
    with jax.enable_x64(True):
        prior = noise_prior(model)
        nodes, weights = (np.zeros((1, 0)), np.ones(1)) if prior.shared else _noise_nodes()
        dtype = model.mean.dtype
        values = _on_grid(
            model,
            seen,
            prior,
            known,
            jnp.asarray(latents, dtype),
            jnp.asarray(nodes, dtype),
            jnp.asarray(np.log(weights), dtype),
        )
        return np.asarray(values)


def _noise_nodes() -> tuple[HostFloat, HostFloat]:
    # ∫ g(z) dz = Σ wᵢ exp(zᵢ²/2) g(zᵢ): the log posterior holds the density of z already.
    nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NOISE_NODES)
    return nodes[:, None], weights * np.exp(nodes**2 / 2)


@compiled
def _on_grid(
    model: Posterior,
    seen: Evidence,
    prior: NoisePrior,
    known: KnownLatents | None,
    latents: Float[Array, "G U"],
    nodes: Float[Array, "K z"],
    log_weights: Float[Array, " K"],
) -> Float[Array, " G"]:
    projection = model.covariance.projection(seen.features)

    def at(latent: Float[Array, " U"]) -> Scalar:
        def given(node: Float[Array, " z"]) -> Scalar:
            return log_posterior(jnp.concatenate([latent, node]), model, seen, projection, prior, known)

        return logsumexp(jax.vmap(given)(nodes) + log_weights)

    return jax.lax.map(at, latents, batch_size=_POINTS_AT_ONCE)
