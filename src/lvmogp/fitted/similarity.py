"""Where conditions lie and how alike they are: latents and prior correlations, averaged over all processes."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.condition import Condition
from lvmogp.conditions.ensemble import Ensemble
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import Kernel, cross, diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, psi0
from lvmogp.typing import Array, Float, HostFloat

_expected_cross = compiled(expected_cross)


def trained_latents(ensemble: Ensemble) -> LatentGaussians:
    """Return mean and variance of the aligned latents of the trained conditions."""
    if ensemble.fit is not None:
        return ensemble.fit.posterior.parameters.latents
    weights, aligned = jnp.asarray(ensemble.weights), ensemble.latents @ ensemble.rotations
    mean = jnp.einsum("s,sdq->dq", weights, aligned)
    return LatentGaussians(mean, jnp.einsum("s,sdq->dq", weights, (aligned - mean) ** 2))


def similarities(ensemble: Ensemble, latents: LatentGaussians, added: Sequence[Condition]) -> HostFloat:
    """Return the prior correlation of the curves of each pair of conditions, one on the diagonal.

    ``latents`` are those of all conditions, trained and ``added``. In closed form, ⟨k_H(h, h')⟩/√(ψψ'), where latents
    are Gaussian; else averaged over processes and particles.
    """
    if ensemble.fit is None:
        return _averaged_correlations(ensemble, added)
    kernel = ensemble.fit.posterior.parameters.latent_kernel
    scale = np.sqrt(np.asarray(psi0(kernel, latents)))
    between = np.array(_expected_cross(kernel, latents, latents)) / np.outer(scale, scale)
    np.fill_diagonal(between, 1.0)
    return between


def _averaged_correlations(ensemble: Ensemble, added: Sequence[Condition]) -> HostFloat:
    # A pair's processes count as much as what its added conditions have seen says: p(process) Π p(y_new | process).
    assert ensemble.source is not None  # of draws
    kernel, latents = ensemble.source.draws.latent_kernel, ensemble.latents
    n_trained, base = latents.shape[1], ensemble.weights
    between = np.eye(n_trained + len(added))
    between[:n_trained, :n_trained] = np.tensordot(base, np.asarray(_correlations(kernel, latents, latents)), axes=1)
    for place, first in enumerate(added, n_trained):
        # Σ_k w_sk k(h_k, h_d)/√… is a sum over processes and particles at once.
        to_trained = np.asarray(_correlations(kernel, first.latents, latents))
        between[place, :n_trained] = np.einsum("sk,skd->d", first.weights, to_trained)
        for other, second in enumerate(added[: place - n_trained], n_trained):
            own, theirs = first.weights, second.weights
            pairs = _averaged(kernel, first.latents, jnp.asarray(own), second.latents, jnp.asarray(theirs))
            shared = own.sum(axis=1) * theirs.sum(axis=1) / base
            between[place, other] = np.sum(np.asarray(pairs) / base) / np.sum(shared)
        between[:place, place] = between[place, :place]
    np.fill_diagonal(between, 1.0)
    return between


@compiled
def _correlations(
    kernel: Kernel, first: Float[Array, "S n Q_H"], second: Float[Array, "S m Q_H"]
) -> Float[Array, "S n m"]:
    return jax.lax.map(lambda draw: _correlation(*draw), (kernel, first, second))


def _correlation(kernel: Kernel, first: Float[Array, "n Q_H"], second: Float[Array, "m Q_H"]) -> Float[Array, "n m"]:
    # k_H(h, h')/√(k_H(h, h) k_H(h', h'))
    scale = jnp.sqrt(jnp.outer(diagonal(kernel, first), diagonal(kernel, second)))
    return cross(kernel, first, second) / scale


@compiled
def _averaged(kernel: Kernel, *weighted: Float[Array, "S ..."]) -> Float[Array, " S"]:
    """Return Σ_kl w_k w_l ρ(h_k, h_l) under each process, given h_k, w_k, h_l and w_l."""

    def one(draw: tuple[Kernel, Array, Array, Array, Array]) -> Array:
        own_kernel, here, own, there, other = draw
        return own @ _correlation(own_kernel, here, there) @ other

    return jax.lax.map(one, (kernel, *weighted))
