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


def test_distances_and_sums_of_gaussians_are_those_of_loops(rng, points):
    first, precision, second = map(np.asarray, points)
    expected = np.array([[sum(precision[i] * (first[i] - second[j]) ** 2) for j in range(6)] for i in range(4)])
    assert_allclose(weighted_distances(*points), expected, rtol=1e-14)
    weights = rng.normal(size=4)
    assert_allclose(gaussian_sums(jnp.asarray(weights), *points), weights @ np.exp(-expected), rtol=1e-13)


def assert_same_derivatives(found, expected, arguments, values, *, forwards):
    """Compare gradients, and second derivatives both ways or backwards twice, of two functions."""
    second = (
        jax.hessian if forwards else lambda function, arguments: jax.jacrev(jax.grad(function, arguments), arguments)
    )
    for differentiate in (jax.grad, second):
        one, other = (jax.jit(differentiate(function, arguments))(*values) for function in (found, expected))
        jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-10, atol=1e-12), one, other)


# A tangent is left out where its argument is held fixed.
@pytest.mark.parametrize("arguments", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_derivatives_are_those_of_plain_differences(rng, points, arguments):
    weights = jnp.asarray(rng.normal(size=(4, 6)))

    def loss(distances):
        return lambda *values: jnp.sum(weights * jnp.exp(-distances(*values)))

    assert_same_derivatives(loss(weighted_distances), loss(plain), arguments, points, forwards=True)


def test_derivatives_of_sums_of_gaussians_are_those_of_plain_differences(rng, points):
    weights, directions = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=6))

    def plain_sums(weights, *points):
        return weights @ jnp.exp(-plain(*points))

    def loss(sums):
        return lambda *arguments: jnp.sum(jnp.sin(directions * sums(*arguments)))

    values = (weights, *points)
    assert_same_derivatives(loss(gaussian_sums), loss(plain_sums), (0, 1, 2, 3), values, forwards=False)
