"""Linear algebra against NumPy on the matrices it avoids forming, and gradients against differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose

from lvmogp.algebra.kronecker import kronecker_evidence, kronecker_shrinkage
from lvmogp.algebra.linalg import (
    cholesky,
    dense_evidence,
    factor_beside_errors,
    inverse_with_quick_derivative,
    jitter_needed,
    smallest_jitter,
    symmetric_pairs,
    unpack_symmetric,
    unvec,
    vec,
    whiten,
    whiten_both_sides,
)

BY_DIFFERENCES = {"order": 1, "modes": ("fwd", "rev"), "eps": 1e-5, "atol": 1e-7, "rtol": 1e-7}


def random_covariance(rng, size):
    root = rng.normal(size=(size, size + 2))
    return root @ root.T / size + 0.1 * np.eye(size)


def random_factor(rng, size):
    return np.linalg.cholesky(random_covariance(rng, size))


def rbf_gram(points):
    return np.exp(-((points[:, None] - points[None, :]) ** 2) / 2)


def with_jitter(matrix, jitter):
    return matrix + jitter * np.mean(np.diagonal(matrix)) * np.eye(len(matrix))


# Cholesky factors

LEAST = {dtype: smallest_jitter(jnp.dtype(dtype)) for dtype in ("float64", "float32")}


@jax.jit
def factor_and_jitter(matrix):
    return cholesky(matrix), jitter_needed(matrix)


def matrix_with_eigenvalue(rng, smallest):
    """A 4 × 4 matrix with a mean of one on the diagonal and a given smallest eigenvalue."""
    basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    return basis * np.array([1.5, 1.5, 1 - smallest, smallest]) @ basis.T


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_a_good_matrix_gets_only_the_smallest_jitter(rng, dtype, tolerance):
    matrix = 5 * random_covariance(rng, 4)
    lower, jitter = factor_and_jitter(jnp.asarray(matrix, dtype))
    assert lower.dtype == dtype
    assert_allclose(jitter, LEAST[dtype], rtol=1e-6)
    expected = np.linalg.cholesky(with_jitter(matrix, LEAST[dtype]))
    assert_allclose(lower, expected, rtol=tolerance, atol=tolerance)


def test_the_smallest_jitter_is_small_but_above_rounding():
    for dtype, least in LEAST.items():
        assert 10 * np.finfo(dtype).eps < least <= 1e-5


def test_duplicated_points_are_factorised_with_the_smallest_jitter():
    gram = rbf_gram(np.array([0.0, 1.0, 1.0, 1.0]))
    assert np.linalg.matrix_rank(gram) == 2
    lower, jitter = factor_and_jitter(jnp.asarray(gram))
    assert_allclose(jitter, LEAST["float64"])
    assert_allclose(lower @ lower.T, with_jitter(gram, LEAST["float64"]), atol=1e-15)


@pytest.mark.parametrize(
    ("smallest", "expected"), [(-5e-7, 1e-6), (-5e-6, 1e-5), (-5e-5, 1e-4), (-5e-4, 1e-3), (-5e-3, 1e-2)]
)
def test_the_jitter_grows_by_tens_until_the_matrix_is_positive(rng, smallest, expected):
    matrix = matrix_with_eigenvalue(rng, smallest)
    lower, jitter = factor_and_jitter(jnp.asarray(matrix))
    assert_allclose(jitter, expected, rtol=1e-12)
    assert_allclose(lower @ lower.T, with_jitter(matrix, expected), atol=1e-14)


def test_a_hopeless_matrix_gives_nan_after_one_per_cent_of_jitter(rng):
    lower, jitter = factor_and_jitter(jnp.asarray(matrix_with_eigenvalue(rng, -0.02)))
    assert_allclose(jitter, 1e-2)
    assert np.all(np.isnan(np.diagonal(lower)))


def test_cholesky_of_a_stack_gives_each_matrix_its_own_jitter(rng):
    good, indefinite = random_covariance(rng, 4), matrix_with_eigenvalue(rng, -5e-5)
    lower, jitter = jax.vmap(factor_and_jitter)(jnp.asarray(np.stack([good, indefinite])))
    assert_allclose(jitter, [LEAST["float64"], 1e-4], rtol=1e-12)
    assert_allclose(lower[0], np.linalg.cholesky(with_jitter(good, LEAST["float64"])), rtol=1e-12, atol=1e-13)
    assert_allclose(lower[1], np.linalg.cholesky(with_jitter(indefinite, 1e-4)), rtol=1e-9, atol=1e-10)


def test_cholesky_derivatives_equal_those_of_the_plain_factorisation(rng):
    matrix, direction = jnp.asarray(random_covariance(rng, 4)), jnp.asarray(random_covariance(rng, 4))
    weights = jnp.asarray(rng.normal(size=(4, 4)))

    def plain(matrix):
        return jnp.linalg.cholesky(matrix + LEAST["float64"] * jnp.mean(jnp.diagonal(matrix)) * jnp.eye(4))

    @partial(jax.jit, static_argnums=0)
    def derivatives(factorise):
        _, tangent = jax.jvp(factorise, (matrix,), (direction,))
        return tangent, jax.grad(lambda matrix: jnp.sum(weights * factorise(matrix)))(matrix)

    assert_allclose(derivatives(cholesky), derivatives(plain), rtol=1e-11, atol=1e-12)


def test_cholesky_derivatives_equal_finite_differences(rng):
    check_grads(jax.jit(cholesky), (jnp.asarray(random_covariance(rng, 4)),), **BY_DIFFERENCES)


def test_cholesky_derivatives_hold_when_the_jitter_has_grown(rng):
    matrix = jnp.asarray(matrix_with_eigenvalue(rng, -5e-3))
    check_grads(jax.jit(cholesky), (matrix,), **(BY_DIFFERENCES | {"eps": 1e-6, "rtol": 1e-6}))


def test_the_jitter_itself_is_constant(rng):
    matrix = jnp.asarray(random_covariance(rng, 4))
    _, tangent = jax.jit(lambda matrix: jax.jvp(jitter_needed, (matrix,), (matrix,)))(matrix)
    assert tangent == 0


# Solves


@pytest.mark.parametrize("trailing", [(), (5,), (2, 5)])
def test_whiten_solves_for_any_trailing_axes(rng, trailing):
    lower, columns = random_factor(rng, 3), rng.normal(size=(3, *trailing))
    expected = np.einsum("ij,j...->i...", np.linalg.inv(lower), columns)
    assert_allclose(whiten(jnp.asarray(lower), jnp.asarray(columns)), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("stack", [(), (4,), (2, 4)])
def test_whiten_both_sides_equals_a_loop(rng, stack):
    lower = random_factor(rng, 3)
    inverse = np.linalg.inv(lower)
    matrices = rng.normal(size=(*stack, 3, 3))
    matrices = matrices + np.swapaxes(matrices, -1, -2)
    result = jax.jit(whiten_both_sides)(jnp.asarray(lower), jnp.asarray(matrices))
    for index in np.ndindex(stack):
        assert_allclose(result[index], inverse @ matrices[index] @ inverse.T, rtol=1e-12, atol=1e-12)


# Kronecker pairs and packed matrices


def test_vec_stacks_columns_and_unvec_undoes_it():
    matrix = jnp.arange(6.0).reshape(2, 3)
    assert_allclose(vec(matrix), [0, 3, 1, 4, 2, 5])
    assert_allclose(unvec(vec(matrix), 2), matrix)


def test_a_kronecker_product_acts_on_both_sides_of_a_matrix(rng):
    input_factor, latent_factor = random_factor(rng, 2), random_factor(rng, 3)
    matrix = rng.normal(size=(2, 3))
    expected = np.kron(latent_factor, input_factor) @ vec(jnp.asarray(matrix))
    assert_allclose(vec(jnp.asarray(input_factor @ matrix @ latent_factor.T)), expected, rtol=1e-13)


@pytest.mark.parametrize("size", [1, 4])
def test_packing_the_upper_triangle_and_unpacking_it_is_the_identity(rng, size):
    matrices = rng.normal(size=(3, size, size))
    matrices = matrices + np.swapaxes(matrices, -1, -2)
    rows, columns = symmetric_pairs(size)
    pairs = [(row, column) for row in range(size) for column in range(row, size)]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == pairs
    packed = jnp.asarray([[matrix[pair] for pair in pairs] for matrix in matrices])
    assert_allclose(unpack_symmetric(packed, size), matrices)
    assert_allclose(unpack_symmetric(packed[0], size), matrices[0])


def test_derivatives_of_unpacking_are_those_of_a_loop(rng):
    packed, directions = jnp.asarray(rng.normal(size=(2, 6))), jnp.asarray(rng.normal(size=(2, 3, 3)))
    pairs = list(zip(*symmetric_pairs(3), strict=True))

    def loop(packed):
        return sum(
            directions[:, row, column] * packed[:, pairs.index((min(row, column), max(row, column)))]
            for row in range(3)
            for column in range(3)
        )

    found = jax.grad(lambda packed: jnp.sum(directions * unpack_symmetric(packed, 3)))(packed)
    assert_allclose(found, jax.grad(lambda packed: jnp.sum(loop(packed)))(packed), rtol=1e-13)


def test_derivatives_of_a_quick_inverse_are_those_of_a_solve(rng):
    lower, directions = jnp.asarray(random_factor(rng, 4)), jnp.asarray(rng.normal(size=(4, 4)))

    def loss(inverse):
        return lambda lower: jnp.sum(jnp.sin(directions * inverse(lower)))

    def solved(lower):
        return jax.scipy.linalg.solve_triangular(lower, jnp.eye(4), lower=True)

    for differentiate in (jax.grad, jax.jacfwd, jax.hessian):
        found, expected = (differentiate(loss(inverse))(lower) for inverse in (inverse_with_quick_derivative, solved))
        assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


# The evidence terms


def evidence_of_formed_matrix(gram, linear):
    precision = np.eye(len(gram)) + gram
    sign, log_det = np.linalg.slogdet(precision)
    assert sign == 1
    return log_det, linear @ np.linalg.solve(precision, linear)


def differentiable_evidence(gram, linear):
    precision = jnp.eye(len(gram)) + gram
    return jnp.linalg.slogdet(precision)[1], linear @ jnp.linalg.solve(precision, linear)


def evidence_of_formed_product(input_gram, latent_gram, linear):
    return differentiable_evidence(jnp.kron(latent_gram, input_gram), linear.T.ravel())


@partial(jax.jit, static_argnums=0)
def gradients(evidence, *arguments):
    """Gradients of the two evidence terms with respect to every argument."""
    return jax.jacrev(evidence, tuple(range(len(arguments))))(*arguments)


def semidefinite(rng, size, rank):
    root = rng.normal(size=(size, rank))
    return root @ root.T


def test_dense_evidence_equals_slogdet_and_solve(rng):
    gram, linear = semidefinite(rng, 5, 3), rng.normal(size=5)
    result = jax.jit(dense_evidence)(jnp.asarray(gram), jnp.asarray(linear))
    assert_allclose(result, evidence_of_formed_matrix(gram, linear), rtol=1e-13)


def test_dense_evidence_gradients_equal_autodiff_and_finite_differences(rng):
    arguments = jnp.asarray(semidefinite(rng, 5, 3)), jnp.asarray(rng.normal(size=5))
    found = gradients(dense_evidence, *arguments)
    expected = gradients(differentiable_evidence, *arguments)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-11, atol=1e-12), found, expected)
    check_grads(jax.jit(dense_evidence), arguments, **BY_DIFFERENCES)


def kronecker_cases(rng):
    linear = rng.normal(size=(4, 3))
    generic = semidefinite(rng, 4, 4), semidefinite(rng, 3, 3), linear
    return {
        "generic": generic,
        "semidefinite": (semidefinite(rng, 4, 2), semidefinite(rng, 3, 1), linear),
        "repeated input eigenvalues": (2.0 * np.eye(4), generic[1], linear),
        "repeated latent eigenvalues": (generic[0], 0.5 * np.eye(3), linear),
        "all eigenvalues repeated": (2.0 * np.eye(4), 0.5 * np.eye(3), linear),
    }


CASES = list(kronecker_cases(np.random.default_rng(0)))


@pytest.mark.parametrize("case", CASES)
def test_kronecker_evidence_equals_that_of_the_formed_product(rng, case):
    input_gram, latent_gram, linear = kronecker_cases(rng)[case]
    result = jax.jit(kronecker_evidence)(*map(jnp.asarray, (input_gram, latent_gram, linear)))
    expected = evidence_of_formed_matrix(np.kron(latent_gram, input_gram), linear.T.ravel())
    assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_kronecker_gradients_equal_autodiff_of_the_formed_product(rng, case):
    arguments = tuple(map(jnp.asarray, kronecker_cases(rng)[case]))
    found, expected = (
        gradients(kronecker_evidence, *arguments),
        gradients(evidence_of_formed_product, *arguments),
    )
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-10, atol=1e-11), found, expected)


@pytest.mark.parametrize("case", CASES)
def test_kronecker_gradients_equal_finite_differences(rng, case):
    arguments = tuple(map(jnp.asarray, kronecker_cases(rng)[case]))
    if case == "semidefinite":  # differences must not step over the edge where eigenvalues are clipped
        arguments = (arguments[0] + 1e-3 * jnp.eye(4), arguments[1] + 1e-3 * jnp.eye(3), arguments[2])
    check_grads(jax.jit(kronecker_evidence), arguments, **BY_DIFFERENCES)


def test_differentiating_through_eigh_would_give_nan_for_repeated_eigenvalues(rng):
    input_gram, _, linear = map(jnp.asarray, kronecker_cases(rng)["all eigenvalues repeated"])

    @jax.jit
    @jax.value_and_grad
    def quadratic_by_eigh(input_gram):
        values, basis = jnp.linalg.eigh(input_gram)
        return jnp.sum((basis.T @ linear) ** 2 / (1 + 0.5 * values)[:, None])

    value, gradient = quadratic_by_eigh(input_gram)
    assert_allclose(value, kronecker_evidence(input_gram, 0.5 * jnp.eye(3), linear)[1], rtol=1e-13)
    assert np.all(np.isnan(gradient))  # so the finite gradients above are the closed form's doing


def test_shrinkage_holds_the_eigenvalues_of_the_inverse_precision(rng):
    input_gram, latent_gram = semidefinite(rng, 4, 4), semidefinite(rng, 3, 3)
    values, basis = np.linalg.eigh(input_gram)
    latent_values, latent_basis = np.linalg.eigh(latent_gram)
    shrinkage = kronecker_shrinkage(jnp.asarray(values), jnp.asarray(latent_values))
    full_basis = np.kron(latent_basis, basis)
    inverse = full_basis * np.asarray(vec(shrinkage)) @ full_basis.T
    assert_allclose(inverse, np.linalg.inv(np.eye(12) + np.kron(latent_gram, input_gram)), atol=1e-12)


def test_shrinkage_takes_eigenvalues_rounded_below_zero_as_zero():
    assert_allclose(kronecker_shrinkage(jnp.array([-1e-3, 2.0]), jnp.array([3.0, -1e-3])), [[1, 1], [1 / 7, 1]])


def test_errors_have_no_part_in_the_jitter_of_others():
    covariance = random_covariance(np.random.default_rng(3), 4)
    errors = np.array([0.0, 1e12, 0.3, 0.0])
    factor = np.asarray(factor_beside_errors(jnp.asarray(covariance), jnp.asarray(errors)))
    assert_allclose(factor, np.tril(factor))
    # Inverses, in which a large error leaves the others as they are.
    assert_allclose(
        np.linalg.inv(factor @ factor.T), np.linalg.inv(covariance + np.diag(errors)), rtol=1e-5, atol=1e-10
    )
    assert_allclose(
        factor_beside_errors(jnp.asarray(covariance), jnp.zeros(4)), cholesky(jnp.asarray(covariance)), rtol=1e-14
    )
