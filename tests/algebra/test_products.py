"""Sums of products against loops, and their reverse rules against autodiff of the plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from numpy.testing import assert_allclose

from lvmogp.algebra.linalg import symmetric_pairs
from lvmogp.algebra.products import block_products, in_slices, quadratic_forms, whitened_products
from lvmogp.kernels.covariances import RBF
from lvmogp.model import expected_likelihood as quadratics
from lvmogp.model.bounds import collapsed
from lvmogp.model.layouts import long_data
from lvmogp.model.parameters import Parameters


def random_factor(rng, size):
    root = rng.normal(size=(size, 2 * size + 1))
    return jnp.linalg.cholesky(jnp.asarray(root @ root.T) + jnp.eye(size))


def assert_same(found, expected, rtol=1e-11):
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=rtol, atol=1e-12), found, expected)


def test_whitened_products_and_their_derivatives_are_those_of_a_solve(rng):
    lower = random_factor(rng, 4)
    columns, weights = jnp.asarray(rng.normal(size=(4, 7))), jnp.asarray(rng.normal(size=(7, 3)))
    by_gram, by_linear = jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=(4, 3)))

    def plain(lower, columns, weights):
        features = jax.scipy.linalg.solve_triangular(lower, columns, lower=True)
        return features @ features.T, features @ weights

    def loss(way):
        def weighted(*arguments):
            gram, linear = way(*arguments)
            return jnp.sum(by_gram * gram) + jnp.sum(jnp.sin(by_linear * linear))

        return jax.value_and_grad(weighted, argnums=(0, 1, 2))

    found, expected = (loss(way)(lower, columns, weights) for way in (whitened_products, plain))
    assert_same(found, expected)


@pytest.mark.parametrize("n_rows", [3, 9], ids=["fewer rows than columns", "more rows than columns"])
def test_block_products_and_their_derivatives_are_those_of_a_loop(rng, n_rows):
    lower = random_factor(rng, 4)
    rows, weights = jnp.asarray(rng.normal(size=(5, n_rows, 4))), jnp.asarray(rng.normal(size=(5, n_rows)))
    by_gram, by_linear = jnp.asarray(rng.normal(size=(5, 4, 4))), jnp.asarray(rng.normal(size=(5, 4)))

    def loop(lower, rows, weights):
        grams, linear = [], []
        for block, of_block in zip(rows, weights, strict=True):
            whitened = [jax.scipy.linalg.solve_triangular(lower, row, lower=True) for row in block]
            grams.append(sum(jnp.outer(row, row) for row in whitened))
            linear.append(sum(weight * row for weight, row in zip(of_block, whitened, strict=True)))
        return jnp.stack(grams), jnp.stack(linear)

    def loss(way):
        def weighted(*arguments):
            grams, linear = way(*arguments)
            return jnp.sum(by_gram * grams) + jnp.sum(jnp.sin(by_linear * linear))

        return jax.value_and_grad(weighted, argnums=(0, 1, 2))

    assert_same(loss(block_products)(lower, rows, weights), loss(loop)(lower, rows, weights))


def test_quadratic_forms_and_their_derivatives_are_those_of_a_loop(rng):
    packed, points = jnp.asarray(rng.normal(size=(4, 6))), jnp.asarray(rng.normal(size=(4, 5, 3)))
    weights, directions = jnp.asarray(rng.normal(size=(4, 5))), jnp.asarray(rng.normal(size=4))

    def loop(packed, points, weights):
        totals = []
        for entries, block, of_block in zip(packed, points, weights, strict=True):
            upper = jnp.zeros((3, 3)).at[symmetric_pairs(3)].set(entries)
            matrix = upper + upper.T - jnp.diag(jnp.diagonal(upper))
            totals.append(sum(weight * row @ matrix @ row for weight, row in zip(of_block, block, strict=True)))
        return jnp.stack(totals)

    def loss(way):
        return jax.value_and_grad(lambda *arguments: jnp.sum(directions * way(*arguments) ** 2), argnums=(0, 1, 2))

    assert_same(loss(quadratic_forms)(packed, points, weights), loss(loop)(packed, points, weights))


@pytest.mark.parametrize("n_at_once", [1, 2, 6])
def test_slices_give_what_all_rows_give_at_once(rng, n_at_once):
    first, second = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.normal(size=6))

    def function(rows, numbers):
        return jnp.cumsum(rows, axis=1) ** 2, jnp.sin(numbers)

    def loss(n_at_once):
        def total(*arrays):
            squares, sines = in_slices(function, n_at_once, *arrays)
            return jnp.sum(squares * jnp.arange(3.0)) + jnp.sum(sines * jnp.arange(6.0))

        return jax.value_and_grad(total, argnums=(0, 1))(first, second)

    assert_same(loss(n_at_once), loss(6))


@pytest.mark.parametrize("with_errors", [False, True], ids=["no errors known", "errors known"])
def test_a_bound_of_long_data_in_slices_is_the_reference_with_the_same_gradient(rng, monkeypatch, with_errors):
    counts = (40, 2, 24, 100)
    inputs, outputs = rng.uniform(-2, 2, (sum(counts), 2)), rng.normal(size=sum(counts))
    conditions = np.repeat(np.arange(4), counts)
    errors = rng.uniform(0.1, 0.5, sum(counts)) if with_errors else None
    data = long_data(inputs, outputs, conditions, 4, error_variances=errors)
    parameters = Parameters(
        input_kernel=RBF(jnp.array([0.9, 1.4]), jnp.array(1.3)),
        latent_kernel=RBF(jnp.array([1.1]), jnp.array(0.8)),
        inducing_inputs=jnp.asarray(rng.normal(size=(3, 2))),
        inducing_latents=jnp.asarray(rng.normal(size=(2, 1))),
        latent_mean=jnp.asarray(rng.normal(size=(4, 1))),
        latent_variance=jnp.full((4, 1), 0.2),
        noise_variance=jnp.asarray([0.3]),
    )

    def bound():
        return jax.jit(jax.value_and_grad(lambda parameters: collapsed(parameters, data).total))(parameters)

    def program():
        return str(jax.make_jaxpr(lambda parameters: collapsed(parameters, data).total)(parameters))

    at_once = bound()
    assert "scan[" not in program()
    monkeypatch.setattr(quadratics, "_ELEMENTS_ON_CPU", 1)
    assert "scan[" in program()
    assert_same(bound(), at_once, rtol=1e-10)
    if errors is None:
        observations = [(inputs[conditions == d], outputs[conditions == d]) for d in range(4)]
        assert_allclose(at_once[0], references.dense_collapsed(parameters, observations), rtol=1e-9)
