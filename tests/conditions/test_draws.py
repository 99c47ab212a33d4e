"""Draws: alignment by turning each draw as near as possible to a reference, thinning, a subset that covers all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from lvmogp.conditions.ensemble import aligned, rotations, thinned
from lvmogp.kernels.covariances import RBF
from lvmogp.model.draws import Draws, covering_subset
from lvmogp.model.parameters import plain_kernels


def some_draws(rng, n_draws=6, n_conditions=5, n_latent=2):
    def positive(*shape):
        return jnp.asarray(rng.uniform(0.5, 2, shape))

    log_weight = np.log(rng.dirichlet(np.ones(n_draws)))
    return Draws(
        kernels=plain_kernels(
            RBF(positive(n_draws, 3), positive(n_draws)), RBF(positive(n_draws, n_latent), positive(n_draws))
        ),
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


@pytest.mark.parametrize(
    ("weight", "most", "places"),
    [
        (np.ones(9), 3, [1, 4, 7]),  # evenly spaced
        (np.repeat([1.0, 0.5, 1e-9], [8, 6, 6]), 5, [1, 3, 5, 7, 11]),  # 8 · 1 to 6 · ½
        (np.full(9, 1e-6) + np.eye(9)[7], 5, [7] * 5),  # one that is nearly all stands for itself several times
    ],
)
def test_thinned_draws_are_as_many_of_each_chain_as_it_counts(rng, weight, most, places):
    draws, log_weight = some_draws(rng, n_draws=len(weight)), jnp.log(weight / np.sum(weight))
    draws = eqx.tree_at(lambda tree: tree.log_weight, draws, log_weight)
    few = thinned(draws, most)
    for found, expected in ((few.latents, draws.latents), (few.kernels.of_latents[0], draws.kernels.of_latents[0])):
        jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other[np.array(places)]), found, expected)
    np.testing.assert_allclose(np.exp(few.log_weight), 1 / most)
    assert thinned(draws, len(weight)) is draws


def test_a_subset_covers_all_conditions(rng):
    corners = np.array([[-3.0, -3.0], [-3.0, 3.0], [3.0, -3.0], [3.0, 3.0]])
    latents = np.concatenate([corners, 0.1 * rng.normal(size=(20, 2))])
    chosen = covering_subset(latents, 5)
    assert set(chosen.tolist()) > {0, 1, 2, 3}
    np.testing.assert_array_equal(covering_subset(latents, 100), np.arange(24))
    np.testing.assert_array_equal(covering_subset(np.zeros((3, 2)), 3), np.arange(3))
