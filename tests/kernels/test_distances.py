"""Weighted squared distances against loops, and their hand-made tangents against those of plain differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from lvmogp.kernels.distances import gaussian_sums, weighted_distances


def plain(first, precision, second):
    return jnp.sum(precision[:, None] * (first[:, None] - second[None]) ** 2, axis=-1)


@pytest.fixture(params=[1, 3])
def points(request, rng):
    n_columns = request.param
    first, second = rng.normal(size=(4, n_columns)), rng.normal(size=(6, n_columns))
    return tuple(map(jnp.asarray, (first, rng.uniform(0.5, 2.0, (4, n_columns)), second)))


def test_distances_are_those_of_loops(points):
    first, precision, second = map(np.asarray, points)
    expected = [[sum(precision[i] * (first[i] - second[j]) ** 2) for j in range(6)] for i in range(4)]
    assert_allclose(weighted_distances(*points), expected, rtol=1e-14)


@pytest.mark.parametrize("arguments", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_derivatives_are_those_of_plain_differences(rng, points, arguments):
    weights = jnp.asarray(rng.normal(size=(4, 6)))

    def loss(distances):
        return lambda *values: jnp.sum(weights * jnp.exp(-distances(*values)))

    for differentiate in (jax.grad, jax.jacfwd, jax.hessian):
        found = differentiate(loss(weighted_distances), arguments)(*points)
        expected = differentiate(loss(plain), arguments)(*points)
        jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-10, atol=1e-12), found, expected)


def test_sums_of_gaussians_are_those_of_loops(rng, points):
    first, precision, second = map(np.asarray, points)
    weights = rng.normal(size=4)
    expected = [
        sum(weights[i] * np.exp(-sum(precision[i] * (first[i] - second[j]) ** 2)) for i in range(4)) for j in range(6)
    ]
    assert_allclose(gaussian_sums(jnp.asarray(weights), *points), expected, rtol=1e-13)


def test_derivatives_of_sums_of_gaussians_are_those_of_plain_differences(rng, points):
    weights, directions = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=6))

    def plain_sums(weights, *points):
        return weights @ jnp.exp(-plain(*points))

    def loss(sums):
        return lambda *arguments: jnp.sum(jnp.sin(directions * sums(*arguments)))

    def twice(function):
        # Backwards twice, since the reverse rule is made by hand.
        return jax.jacrev(jax.grad(function, (0, 1, 2, 3)), (0, 1, 2, 3))

    for differentiate in (lambda function: jax.grad(function, (0, 1, 2, 3)), twice):
        found, expected = (differentiate(loss(sums))(weights, *points) for sums in (gaussian_sums, plain_sums))
        jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-10, atol=1e-12), found, expected)
