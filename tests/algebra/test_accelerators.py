"""What accelerators compute in another way than a CPU, against the CPU's way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from lvmogp.algebra.kronecker import by_factors, by_two_bases
from lvmogp.algebra.linalg import jittered_at_once, jittered_in_turn, triangular_inverse


def semidefinite(rng, size, rank):
    root = rng.normal(size=(size, rank))
    return jnp.asarray(root @ root.T)


@pytest.mark.parametrize(("n_inputs", "n_latents"), [(7, 4), (4, 7), (5, 5), (90, 3)])
@pytest.mark.parametrize("share_of_rank", [1.0, 0.5])
def test_evidence_by_factors_is_that_by_two_bases(rng, n_inputs, n_latents, share_of_rank):
    input_gram = semidefinite(rng, n_inputs, max(round(share_of_rank * n_inputs), 1))
    latent_gram = semidefinite(rng, n_latents, max(round(share_of_rank * n_latents), 1))
    linear = jnp.asarray(rng.normal(size=(n_inputs, n_latents)))
    found, expected = (jax.jit(way)(input_gram, latent_gram, linear) for way in (by_factors, by_two_bases))
    for name in found._fields:
        one, other = getattr(found, name), getattr(expected, name)
        assert_allclose(one, other, rtol=1e-9, atol=1e-11 * float(jnp.max(jnp.abs(other))), err_msg=name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("smallest", [0.5, -3e-5, -3e-4, -3e-3, -1.0])
def test_all_rungs_at_once_give_the_factor_of_the_first_that_holds(rng, smallest, dtype):
    basis = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    matrix = jnp.asarray(basis * np.array([smallest, 0.5, 1.0, 1.5, 2.0]) @ basis.T, dtype)
    (found, jitter), (expected, same) = (jax.jit(way)(matrix) for way in (jittered_at_once, jittered_in_turn))
    assert jitter == same
    assert_allclose(found, expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("size", [1, 5, 64, 65, 150])
def test_a_triangular_matrix_is_inverted_by_halves(rng, size):
    lower = np.linalg.cholesky(np.cov(rng.normal(size=(size, 3 * size + 2))).reshape(size, size) + 0.1 * np.eye(size))
    assert_allclose(triangular_inverse(jnp.asarray(lower)) @ lower, np.eye(size), atol=1e-12)
