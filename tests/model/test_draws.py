"""Draws: alignment by turning each draw as near as possible to a reference, thinning, a subset that covers all."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from lvmogp.kernels.covariances import RBF
from lvmogp.model.draws import Draws, aligned, covering_subset, rotations, thinned


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


@pytest.mark.parametrize("n_latent", [0, 1, 2, 3])
def test_alignment_is_that_of_scipy_and_leaves_features_as_they_are(rng, n_latent):
    draws, reference = some_draws(rng, n_latent=3), rng.normal(size=(5, n_latent))
    found = rotations(draws, jnp.asarray(reference))
    for number, latents in enumerate(np.asarray(draws.latents)):
        expected = np.eye(3)
        if n_latent:
            expected[:n_latent, :n_latent], _ = orthogonal_procrustes(latents[:, :n_latent], reference)
        np.testing.assert_allclose(found[number], expected, atol=1e-12)
        np.testing.assert_allclose(aligned(draws, jnp.asarray(reference))[number], latents @ expected, atol=1e-12)


def test_thinned_draws_of_equal_weight_are_evenly_spaced(rng):
    draws = some_draws(rng, n_draws=9)
    draws = eqx.tree_at(lambda tree: tree.log_weight, draws, jnp.full(9, -np.log(9)))
    few = thinned(draws, 3)
    np.testing.assert_array_equal(few.latents, draws.latents[np.array([1, 4, 7])])
    np.testing.assert_array_equal(few.latent_kernel.lengthscale, draws.latent_kernel.lengthscale[np.array([1, 4, 7])])
    np.testing.assert_allclose(np.exp(few.log_weight), 1 / 3)
    assert thinned(draws, 9) is draws


def test_thinned_draws_are_as_many_of_each_chain_as_it_counts(rng):
    draws = some_draws(rng, n_draws=100)
    chain = np.repeat([0, 1, 2], [40, 30, 30])
    weight = np.array([1.0, 0.5, 1e-9])[chain]
    draws = eqx.tree_at(
        lambda tree: (tree.chain, tree.log_weight),
        draws,
        (jnp.asarray(chain), jnp.asarray(np.log(weight / weight.sum()))),
    )
    few = thinned(draws, 22)
    np.testing.assert_array_equal(np.bincount(few.chain), [16, 6])  # 40 · 1 to 30 · ½
    np.testing.assert_allclose(np.exp(few.log_weight), 1 / 22)
    # One that is nearly all stands for itself several times.
    heavy = eqx.tree_at(lambda tree: tree.log_weight, draws, jnp.log(jnp.full(100, 1e-6).at[70].set(1 - 99e-6)))
    np.testing.assert_array_equal(thinned(heavy, 5).latents, jnp.repeat(draws.latents[70:71], 5, axis=0))


def test_a_subset_covers_all_conditions(rng):
    corners = np.array([[-3.0, -3.0], [-3.0, 3.0], [3.0, -3.0], [3.0, 3.0]])
    latents = np.concatenate([corners, 0.1 * rng.normal(size=(20, 2))])
    chosen = covering_subset(latents, 5)
    assert set(chosen.tolist()) > {0, 1, 2, 3}
    np.testing.assert_array_equal(covering_subset(latents, 100), np.arange(24))
    np.testing.assert_array_equal(covering_subset(np.zeros((3, 2)), 3), np.arange(3))
