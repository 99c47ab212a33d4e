"""Linear algebra against NumPy and loops, and gradients against differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import block_diag, solve_triangular
from matrices import assert_same, assert_same_with_gradients, normal, random_covariance, random_factor
from numpy.testing import assert_allclose

from lvmogp.algebra import linalg
from lvmogp.inference.minibatch.steps import inverse_with_quick_derivative


def with_jitter(matrix, jitter):
    return matrix + jitter * np.mean(np.diagonal(matrix)) * np.eye(len(matrix))


# Cholesky factors

LEAST = {"float64": 1e-7, "float32": 1e-5}


factor_and_jitter = jax.jit(linalg.jittered_factor)


def matrix_with_eigenvalue(rng, smallest):
    """A 4 × 4 matrix with a mean of one on the diagonal and a given smallest eigenvalue."""
    basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    return basis * np.array([1.5, 1.5, 1 - smallest, smallest]) @ basis.T


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_a_good_matrix_gets_only_the_smallest_jitter(rng, dtype, tolerance):
    assert linalg.smallest_jitter(jnp.dtype(dtype)) == LEAST[dtype]
    for matrix in (5 * random_covariance(rng, 4), np.ones((4, 4))):  # the latter of coincident points
        lower, jitter = factor_and_jitter(jnp.asarray(matrix, dtype))
        assert lower.dtype == dtype
        assert_allclose(jitter, LEAST[dtype], rtol=1e-6)
        assert_allclose(lower @ lower.T, with_jitter(matrix, LEAST[dtype]), rtol=tolerance, atol=tolerance)
        assert_allclose(lower, np.tril(lower))


@pytest.mark.parametrize("way", [linalg.jittered_in_turn, linalg.jittered_at_once], ids=["on a CPU", "on accelerators"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_jitter_grows_by_tens_until_the_matrix_is_positive(rng, dtype, way):
    for power in range(-6 if dtype == "float64" else -4, -1):
        matrix = matrix_with_eigenvalue(rng, -5 * 10.0 ** (power - 1))
        lower, jitter = jax.jit(way)(jnp.asarray(matrix, dtype))
        assert_allclose(jitter, 10.0**power, rtol=1e-12 if dtype == "float64" else 1e-6)
        atol = 1e-14 if dtype == "float64" else 1e-5
        assert_allclose(lower @ lower.T, with_jitter(matrix, 10.0**power), atol=atol)
    lower, jitter = jax.jit(way)(jnp.asarray(matrix_with_eigenvalue(rng, -0.02), dtype))
    assert_allclose(jitter, 1e-2, rtol=1e-6)
    assert np.all(np.isnan(np.diagonal(lower)))


@pytest.mark.parametrize(("smallest", "jitter"), [(0.3, 1e-7), (-5e-3, 1e-2)])
def test_cholesky_derivatives_equal_those_of_the_plain_factorisation(rng, smallest, jitter):
    def plain(matrix):
        return jnp.linalg.cholesky(matrix + jitter * jnp.trace(matrix) / 4 * jnp.eye(4))

    matrix, direction = jnp.asarray(matrix_with_eigenvalue(rng, smallest)), normal(rng, 4, 4)
    assert_same_with_gradients(rng, linalg.cholesky, plain, matrix)
    _, tangents = jax.jit(lambda matrix: jax.jvp(linalg.jittered_factor, (matrix,), (direction,)))(matrix)
    assert tangents[1] == 0  # the jitter itself is constant


def test_errors_have_no_part_in_the_jitter_of_others(rng):
    covariance, errors = random_covariance(rng, 4), np.array([0.0, 1e12, 0.3, 0.0])
    factor = np.asarray(linalg.factor_beside_errors(jnp.asarray(covariance), jnp.asarray(errors)))
    assert_allclose(factor, np.tril(factor))
    # Inverses, in which a large error leaves the others as they are.
    expected = np.linalg.inv(covariance + np.diag(errors))
    assert_allclose(np.linalg.inv(factor @ factor.T), expected, rtol=1e-5, atol=1e-10)
    without = linalg.factor_beside_errors(jnp.asarray(covariance), jnp.zeros(4))
    assert_allclose(without, linalg.cholesky(jnp.asarray(covariance)), rtol=1e-14)


# Solves


@pytest.mark.parametrize("size", [1, 150])
def test_a_triangular_matrix_is_inverted_by_halves(rng, size):
    lower = random_factor(rng, size)
    assert_allclose(linalg.triangular_inverse(jnp.asarray(lower)) @ lower, np.eye(size), atol=1e-12)


def test_derivatives_of_a_quick_inverse_are_those_of_a_solve(rng):
    lower, directions = jnp.asarray(random_factor(rng, 4)), normal(rng, 4, 4)

    def hessian(inverse):
        return jax.jit(jax.hessian(lambda lower: jnp.sum(jnp.sin(directions * inverse(lower)))))(lower)

    def solved(lower):
        return solve_triangular(lower, jnp.eye(4), lower=True)

    assert_same_with_gradients(rng, inverse_with_quick_derivative, solved, lower)
    assert_allclose(hessian(inverse_with_quick_derivative), hessian(solved), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("trailing", [(), (5,), (2, 5)])
def test_whitening_is_multiplying_with_the_inverse_for_any_other_axes(rng, trailing):
    lower, columns, matrices = (
        random_factor(rng, 3),
        rng.normal(size=(3, *trailing)),
        rng.normal(size=(*trailing, 3, 3)),
    )
    inverse, matrices = np.linalg.inv(lower), matrices + np.swapaxes(matrices, -1, -2)
    assert_same(linalg.whiten(jnp.asarray(lower), jnp.asarray(columns)), np.einsum("ij,j...->i...", inverse, columns))
    both = linalg.whiten_both_sides(jnp.asarray(lower), jnp.asarray(matrices))
    assert_same(both, np.einsum("ij,...jk,lk->...il", inverse, matrices, inverse))


# Matrices as vectors


def test_vec_stacks_columns(rng):
    matrix = jnp.arange(6.0).reshape(2, 3)
    assert_allclose(linalg.vec(matrix), [0, 3, 1, 4, 2, 5])
    left, right = rng.normal(size=(2, 2)), rng.normal(size=(3, 3))
    assert_allclose(
        linalg.vec(jnp.asarray(left @ matrix @ right.T)), np.kron(right, left) @ linalg.vec(matrix), rtol=1e-13
    )


@pytest.mark.parametrize("size", [1, 4])
def test_unpacking_the_upper_triangle_gives_the_matrix_with_its_derivatives(rng, size):
    pairs = [(row, column) for row in range(size) for column in range(row, size)]
    assert linalg.packed_counts(size).tolist() == [1 if row == column else 2 for row, column in pairs]

    def loop(packed):
        entries = [
            packed[..., pairs.index((min(row, column), max(row, column)))]
            for row in range(size)
            for column in range(size)
        ]
        return jnp.stack(entries, axis=-1).reshape(*packed.shape[:-1], size, size)

    for shape in ((3, len(pairs)), (len(pairs),)):
        assert_same_with_gradients(rng, linalg.unpack_symmetric, loop, normal(rng, *shape))


# Products over observations


@pytest.mark.parametrize("n_kernels", [1, 3])
def test_whitened_products_and_their_derivatives_are_those_of_a_solve(rng, n_kernels):
    def plain(lower, columns, weights):
        pairs = zip(lower, columns, strict=True)
        features = jnp.concatenate([solve_triangular(factor, own, lower=True) for factor, own in pairs])
        return features @ features.T, features @ weights

    lower = jnp.stack([random_factor(rng, 4) for _ in range(n_kernels)])
    assert_same_with_gradients(
        rng, linalg.whitened_products, plain, lower, normal(rng, n_kernels, 4, 7), normal(rng, 7, 3)
    )


@pytest.mark.parametrize("n_kernels", [1, 3])
@pytest.mark.parametrize("n_rows", [3, 14], ids=["fewer rows than columns", "more rows than columns"])
def test_block_products_and_their_derivatives_are_those_of_a_loop(rng, n_rows, n_kernels):
    def loop(lower, rows, weights):
        whole, grams, linear = block_diag(*lower), [], []
        for block, of_block in zip(rows, weights, strict=True):
            whitened = [solve_triangular(whole, row, lower=True) for row in block]
            grams.append(sum(jnp.outer(row, row) for row in whitened))
            linear.append(sum(weight * row for weight, row in zip(of_block, whitened, strict=True)))
        return jnp.stack(grams), jnp.stack(linear)

    lower = jnp.stack([random_factor(rng, 4) for _ in range(n_kernels)])
    arguments = lower, normal(rng, 2, n_rows, 4 * n_kernels), normal(rng, 2, n_rows)
    assert_same_with_gradients(rng, linalg.block_products, loop, *arguments)


def test_quadratic_forms_and_their_derivatives_are_those_of_a_loop(rng):
    def loop(packed, points, weights):
        totals = []
        for entries, block, of_block in zip(packed, points, weights, strict=True):
            upper = jnp.zeros((3, 3)).at[np.triu_indices(3)].set(entries)
            matrix = upper + upper.T - jnp.diag(jnp.diagonal(upper))
            totals.append(sum(weight * row @ matrix @ row for weight, row in zip(of_block, block, strict=True)))
        return jnp.stack(totals)

    assert_same_with_gradients(
        rng, linalg.quadratic_forms, loop, normal(rng, 2, 6), normal(rng, 2, 4, 3), normal(rng, 2, 4)
    )


@pytest.mark.parametrize(("most", "n_slices"), [(3, 4), (2, 4), (12, 1)])
def test_slices_give_what_all_rows_give_at_once(rng, most, n_slices):
    def function(rows, numbers):
        return jnp.cumsum(rows, axis=1) ** 2, jnp.sin(numbers)

    arrays = normal(rng, 12, 3), normal(rng, 12)
    assert_same_with_gradients(rng, partial(linalg.in_slices, function, most), function, *arrays)
    # No array as long as all rows is between what goes in and what comes out, unless all are taken at once.
    program = str(jax.make_jaxpr(partial(linalg.in_slices, function, most))(*arrays))
    assert f"length={n_slices}" in program if n_slices > 1 else "scan[" not in program
