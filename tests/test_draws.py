"""Draws: alignment by turning each draw as near as possible to a reference, thinning, a subset that covers all."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from lvmogp.draws import Draws, aligned, covering_subset, rotations, thinned
from lvmogp.kernels import RBF


def some_draws(rng, n_draws=6, n_conditions=5, n_latent=2):
    def positive(*shape):
        return jnp.asarray(rng.uniform(0.5, 2, shape))

    log_weight = np.log(rng.dirichlet(np.ones(n_draws)))
    return Draws(
        input_kernel=RBF(positive(n_draws, 3), positive(n_draws)),
        latent_kernel=RBF(positive(n_draws, n_latent), positive(n_draws)),
        latents=jnp.asarray(rng.normal(size=(n_draws, n_conditions, n_latent))),
        noise_variance=jnp.asarray(rng.uniform(0.1, 1, (n_draws, 1))),
        chain=jnp.asarray(np.arange(n_draws) % 2),
        log_weight=jnp.asarray(log_weight),
    )


@pytest.mark.parametrize("n_latent", [1, 2, 3])
def test_alignment_is_that_of_scipy(rng, n_latent):
    draws = some_draws(rng, n_latent=n_latent)
    reference = rng.normal(size=(5, n_latent))
    found = rotations(draws, jnp.asarray(reference))
    for number, latents in enumerate(np.asarray(draws.latents)):
        expected, _ = orthogonal_procrustes(latents, reference)
        np.testing.assert_allclose(found[number], expected, atol=1e-12)
        np.testing.assert_allclose(aligned(draws, jnp.asarray(reference))[number], latents @ expected, atol=1e-12)


def test_thinned_draws_are_evenly_spaced_and_weigh_one(rng):
    draws = some_draws(rng, n_draws=9)
    few = thinned(draws, 3)
    np.testing.assert_array_equal(few.latents, draws.latents[np.array([0, 4, 8])])
    np.testing.assert_array_equal(few.latent_kernel.lengthscale, draws.latent_kernel.lengthscale[np.array([0, 4, 8])])
    np.testing.assert_allclose(np.exp(few.log_weight).sum(), 1)
    np.testing.assert_allclose(np.diff(few.log_weight), np.diff(draws.log_weight[np.array([0, 4, 8])]))
    assert thinned(draws, 9) is draws


def test_a_subset_covers_all_conditions(rng):
    corners = np.array([[-3.0, -3.0], [-3.0, 3.0], [3.0, -3.0], [3.0, 3.0]])
    latents = np.concatenate([corners, 0.1 * rng.normal(size=(20, 2))])
    chosen = covering_subset(latents, 5)
    assert set(chosen.tolist()) > {0, 1, 2, 3}
    np.testing.assert_array_equal(covering_subset(latents, 100), np.arange(24))
    np.testing.assert_array_equal(covering_subset(np.zeros((3, 2)), 3), np.arange(3))
