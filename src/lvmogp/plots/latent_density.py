"""The exact posterior density of an added condition's latents, on given points."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from lvmogp.conditions.condition import KnownLatents
from lvmogp.conditions.curves import picked
from lvmogp.conditions.ensemble import Ensemble, NoisePrior
from lvmogp.conditions.few_observations import FewObservations
from lvmogp.conditions.infer import log_posterior
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_double_precision
from lvmogp.model.process import Process
from lvmogp.typing import Array, Float, HostFloat, Scalar

_N_NOISE_NODES = 31
_POINTS_AT_ONCE = 512


@in_double_precision
def log_latent_density(ensemble: Ensemble, seen: FewObservations, latents: HostFloat, known: KnownLatents) -> HostFloat:
    """Return log p(h | y) up to a constant (equation 19); a noise of its own is integrated out by Gauss–Hermite.

    ``latents`` are all the coordinates that are not ``known``, and the ensemble is of one process.
    """
    assert ensemble.processes is not None  # a single one is kept
    nodes, weights = (np.zeros((1, 0)), np.ones(1)) if ensemble.noise_prior.shared else _noise_nodes()
    arrays = (jnp.asarray(array, ensemble.dtype) for array in (latents, nodes, np.log(weights)))
    return np.asarray(_on_points(ensemble.processes, seen, ensemble.noise_prior, known, *arrays))


def _noise_nodes() -> tuple[HostFloat, HostFloat]:
    # ∫ g(z) dz = Σ wᵢ exp(zᵢ²/2) g(zᵢ): the log posterior holds the density of z already.
    nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NOISE_NODES)
    return nodes[:, None], weights * np.exp(nodes**2 / 2)


@compiled
def _on_points(
    processes: Process,
    seen: FewObservations,
    priors: NoisePrior,
    known: KnownLatents,
    latents: Float[Array, "G U"],
    nodes: Float[Array, "K z"],
    log_weights: Float[Array, " K"],
) -> Float[Array, " G"]:
    prior = jax.tree.map(lambda leaf: leaf[0], priors)
    target = log_posterior(picked(processes, 0), seen, known, prior)

    def at(latent: Float[Array, " U"]) -> Scalar:
        return logsumexp(jax.vmap(lambda node: target(jnp.concatenate([latent, node])))(nodes) + log_weights)

    return jax.lax.map(at, latents, batch_size=_POINTS_AT_ONCE)
