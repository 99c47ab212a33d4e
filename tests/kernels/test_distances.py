"""Weighted squared distances against loops, and their hand-made tangents against those of plain differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from lvmogp.kernels.distances import gaussian_sums, weighted_distances


def plain(first, precision, second):
    return jnp.sum(precision[:, None] * (first[:, None] - second[None]) ** 2, axis=-1)


@pytest.fixture
def points(rng):
    return tuple(map(jnp.asarray, (rng.normal(size=(4, 2)), rng.uniform(0.5, 2.0, (4, 2)), rng.normal(size=(6, 2)))))


def test_distances_and_sums_of_gaussians_are_those_of_loops(rng, points):
    first, precision, second = map(np.asarray, points)
    expected = np.array([[sum(precision[i] * (first[i] - second[j]) ** 2) for j in range(6)] for i in range(4)])
    assert_allclose(weighted_distances(*points), expected, rtol=1e-14)
    weights = rng.normal(size=4)
    assert_allclose(gaussian_sums(jnp.asarray(weights), *points), weights @ np.exp(-expected), rtol=1e-13)


def assert_same_derivatives(derivatives, found, expected, values):
    one, other = (jax.jit(lambda *values, way=way: derivatives(way, *values))(*values) for way in (found, expected))
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-10, atol=1e-12), one, other)


def test_derivatives_are_those_of_plain_differences(rng, points):
    weights = jnp.asarray(rng.normal(size=(4, 6)))

    def derivatives(distances, *points):
        def loss(*points):
            return jnp.sum(weights * jnp.exp(-distances(*points)))

        # A tangent is left out where its argument is held fixed.
        alone = [jax.grad(loss, place)(*points) for place in range(3)]
        return alone, jax.grad(loss, (0, 1, 2))(*points), jax.hessian(loss, (0, 1, 2))(*points)

    assert_same_derivatives(derivatives, weighted_distances, plain, points)


def test_derivatives_of_sums_of_gaussians_are_those_of_plain_differences(rng, points):
    weights, directions = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=6))

    def derivatives(sums, *values):
        gradient = jax.grad(lambda *values: jnp.sum(jnp.sin(directions * sums(*values))), (0, 1, 2, 3))
        return gradient(*values), jax.jacrev(gradient, (0, 1, 2, 3))(*values)

    def plain_sums(weights, *points):
        return weights @ jnp.exp(-plain(*points))

    assert_same_derivatives(derivatives, gaussian_sums, plain_sums, (weights, *points))
