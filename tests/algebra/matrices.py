"""Random matrices, and the same function by two ways with its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose


def semidefinite(rng, size, rank):
    root = rng.normal(size=(size, rank))
    return jnp.asarray(root @ root.T)


def random_covariance(rng, size):
    return np.asarray(semidefinite(rng, size, size + 2)) / size + 0.1 * np.eye(size)


def random_factor(rng, size):
    return np.linalg.cholesky(random_covariance(rng, size))


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape))


def assert_same(found, expected, rtol=1e-11, atol=1e-12):
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=rtol, atol=atol), found, expected)


def assert_same_with_gradients(rng, way, other, *arguments, rtol=1e-11):
    """Compare the values of two functions and the gradients of a random function of all their results."""
    directions = [normal(rng, *result.shape) for result in jax.tree.leaves(jax.eval_shape(other, *arguments))]

    def gradients(way):
        def total(*arguments):
            results = jax.tree.leaves(way(*arguments))
            return sum(jnp.sum(jnp.sin(one * two)) for one, two in zip(directions, results, strict=True))

        places = tuple(range(len(arguments)))
        return jax.jit(lambda *arguments: (way(*arguments), jax.grad(total, places)(*arguments)))(*arguments)

    assert_same(gradients(way), gradients(other), rtol)
