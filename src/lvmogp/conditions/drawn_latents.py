"""Where conditions lie and how alike they are, averaged over posterior draws."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.drawn_condition import DrawnCondition
from lvmogp.conditions.drawn_model import DrawnModel
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import Kernel, cross, diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.typing import Array, Float, HostFloat


def aligned_latents(model: DrawnModel) -> LatentGaussians:
    """Mean and variance of the trained conditions' latents, the draws turned and mirrored onto the variational ones."""
    weights, aligned = jnp.asarray(model.weights), model.aligned
    mean = jnp.einsum("s,sdq->dq", weights, aligned)
    return LatentGaussians(mean, jnp.einsum("s,sdq->dq", weights, (aligned - mean) ** 2))


def similarities_under_draws(model: DrawnModel, added: Sequence[DrawnCondition]) -> HostFloat:
    """Prior correlation of the curves of each pair of conditions, averaged over draws and over the latents in each.

    A pair's draws count as much as what its added conditions have seen says: p(draw) Π p(y_new | draw).
    """
    kernel, latents = model.draws.latent_kernel, model.draws.latents
    n_trained = latents.shape[1]
    base = model.weights
    between = np.eye(n_trained + len(added))
    trained = np.asarray(_correlations(kernel, latents, latents))
    between[:n_trained, :n_trained] = np.tensordot(base, trained, axes=1)
    for i, first in enumerate(added):
        place = n_trained + i
        own = first.weights
        # Σ_k w_sk k(h_k, h_d)/√… is a sum over draws and particles at once.
        to_trained = np.asarray(_correlations(kernel, first.latents, latents))
        between[place, :n_trained] = between[:n_trained, place] = np.einsum("sk,skd->d", own, to_trained)
        for j, second in enumerate(added[:i]):
            pairs = np.asarray(
                _averaged(kernel, first.latents, jnp.asarray(own), second.latents, jnp.asarray(second.weights))
            )
            shared = own.sum(axis=1) * second.weights.sum(axis=1) / base
            value = np.sum(pairs / base) / np.sum(shared)
            between[place, n_trained + j] = between[n_trained + j, place] = value
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
def _averaged(
    kernel: Kernel,
    first: Float[Array, "S K Q_H"],
    first_weights: Float[Array, "S K"],
    second: Float[Array, "S L Q_H"],
    second_weights: Float[Array, "S L"],
) -> Float[Array, " S"]:
    """Σ_kl w_k w_l ρ(h_k, h_l) in each draw."""

    def one(draw: tuple[Kernel, Array, Array, Array, Array]) -> Array:
        own_kernel, here, own, there, other = draw
        return own @ _correlation(own_kernel, here, there) @ other

    return jax.lax.map(one, (kernel, first, first_weights, second, second_weights))
