"""The evidence terms against NumPy on the matrices that they avoid forming."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matrices import assert_same, assert_same_with_gradients, normal, random_factor, semidefinite
from numpy.testing import assert_allclose

from lvmogp.algebra.evidence import (
    bordered_evidence,
    by_factors,
    by_two_bases,
    dense_evidence,
    explained_squares,
    integrated_out,
    kronecker_evidence,
    kronecker_shrinkage,
)


def evidence(gram, linear):
    precision = jnp.eye(len(gram)) + gram
    return jnp.linalg.slogdet(precision)[1], linear @ jnp.linalg.solve(precision, linear)


def evidence_of_formed_product(input_gram, latent_gram, linear):
    return evidence(jnp.kron(latent_gram, input_gram), linear.T.ravel())


@pytest.mark.parametrize("size", [5, 6])
def test_dense_evidence_and_its_gradients_are_those_of_determinant_and_solve(rng, size):
    arguments = semidefinite(rng, size, 3), normal(rng, size)
    assert_same_with_gradients(rng, dense_evidence, evidence, *arguments)


@pytest.mark.parametrize("stack", [(), (3,)])
def test_what_integrated_weights_take_along_with_gradients_is_that_of_a_solve(rng, stack):
    def solved(roots, columns):
        precision = jnp.eye(4) + roots @ roots.mT
        return columns.mT @ jnp.linalg.solve(precision, columns), jnp.linalg.slogdet(precision)[1]

    def taken(roots, columns):
        return integrated_out(jnp.eye(4) + roots @ roots.mT, columns)

    assert_same_with_gradients(rng, taken, solved, normal(rng, *stack, 4, 4), normal(rng, *stack, 4, 5))


@pytest.mark.parametrize("n_weights", [1, 6])
def test_explained_squares_and_their_gradients_are_those_of_every_output(rng, n_weights):
    def solved(root, lower, columns, weights, outputs):
        features, precision = jnp.linalg.solve(jnp.tril(lower), columns), jnp.eye(4) + root @ root.T
        of_outputs = [output @ features.T @ jnp.linalg.solve(precision, features @ output) for output in outputs.T]
        return jnp.stack(of_outputs) @ jnp.broadcast_to(weights, 6)

    def explained(root, lower, columns, weights, outputs):
        outer = outputs @ outputs.T if n_weights == 1 else None
        return explained_squares(jnp.eye(4) + root @ root.T, lower, columns, weights, outputs, outer)

    outputs, weights = normal(rng, 7, 6), normal(rng, n_weights) ** 2
    arguments = normal(rng, 4, 4), jnp.asarray(random_factor(rng, 4)), normal(rng, 4, 7), weights, outputs
    assert_same_with_gradients(rng, explained, solved, *arguments)


# Where eigenvalues are repeated, differentiating through their vectors would give NaN.
GRAMS = {
    "generic": lambda rng: (semidefinite(rng, 4, 4), semidefinite(rng, 3, 3)),
    "semidefinite": lambda rng: (semidefinite(rng, 4, 2), semidefinite(rng, 3, 1)),
    "repeated eigenvalues": lambda rng: (2.0 * jnp.eye(4), 0.5 * jnp.eye(3)),
}


@pytest.mark.parametrize("case", GRAMS)
def test_kronecker_evidence_and_its_gradients_are_those_of_the_formed_product(rng, case):
    arguments = *GRAMS[case](rng), normal(rng, 4, 3)
    assert_same_with_gradients(rng, kronecker_evidence, evidence_of_formed_product, *arguments, rtol=1e-10)


def evidence_with_border(input_gram, latent_gram, linear):
    size = len(linear)
    first, last = slice(0, size), slice(size, 2 * size)
    blocks = [
        [
            jnp.kron(latent_gram[rows, columns], input_gram[own, other])
            for columns, other in ((slice(0, -1), first), (slice(-1, None), last))
        ]
        for rows, own in ((slice(0, -1), first), (slice(-1, None), last))
    ]
    return evidence(jnp.block(blocks), linear.T.ravel())


@pytest.mark.parametrize("rank", [8, 3])
def test_bordered_evidence_and_its_gradients_are_those_of_the_formed_blocks(rng, rank):
    def of_symmetric(way):  # what is above the diagonal need not be read below it as well
        return lambda inputs, latents, linear: way((inputs + inputs.T) / 2, (latents + latents.T) / 2, linear)

    arguments = semidefinite(rng, 8, rank), semidefinite(rng, 4, rank), normal(rng, 4, 4)
    ways = of_symmetric(bordered_evidence), of_symmetric(evidence_with_border)
    assert_same_with_gradients(rng, *ways, *arguments, rtol=1e-9)


@pytest.mark.parametrize(("n_inputs", "n_latents", "rank"), [(4, 7, 3), (90, 3, 2)])
def test_accelerators_find_what_a_cpu_finds(rng, n_inputs, n_latents, rank):
    grams = [semidefinite(rng, size, rank) for size in (n_inputs, n_latents)]
    linear = normal(rng, n_inputs, n_latents)
    found, expected = (jax.jit(way)(*grams, linear) for way in (by_factors, by_two_bases))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-11 * float(jnp.max(jnp.abs(other))))


def test_shrinkage_holds_the_eigenvalues_of_the_inverse_precision(rng):
    input_gram, latent_gram = semidefinite(rng, 4, 4), semidefinite(rng, 3, 3)
    (values, basis), (latent_values, latent_basis) = np.linalg.eigh(input_gram), np.linalg.eigh(latent_gram)
    shrinkage = np.asarray(kronecker_shrinkage(jnp.asarray(values), jnp.asarray(latent_values)))
    full_basis = np.kron(latent_basis, basis)
    inverse = full_basis * shrinkage.T.ravel() @ full_basis.T
    assert_allclose(inverse, np.linalg.inv(np.eye(12) + np.kron(latent_gram, input_gram)), atol=1e-12)
    # Eigenvalues that rounding put below zero count as zero.
    below = kronecker_shrinkage(jnp.array([-1e-3, 2.0]), jnp.array([3.0, -1e-3]))
    assert_same(below, np.array([[1, 1], [1 / 7, 1]]))
