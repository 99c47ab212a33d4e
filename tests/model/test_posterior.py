"""The factorised model against dense solves, the paper's formulas and Monte Carlo."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import references
from small_models import (
    M_H,
    M_X,
    PER_CONDITION,
    Q_X,
    SHARED,
    Case,
    D,
    DenseProcess,
    as_long,
    full_inducing,
    grid_case,
    kronecker_inducing,
    long_case,
    replace,
    small_parameters,
)

from lvmogp.ground.compiling import compiled
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import Data, GridData
from lvmogp.model.parameters import FullInducing, Inducing, Parameters
from lvmogp.model.posterior import (
    Covariance,
    Curves,
    DenseCovariance,
    KroneckerCovariance,
    Posterior,
    curves_at,
    marginals,
    positive_part,
    posterior,
    trained_curves,
    updated,
)

POINTS = np.random.default_rng(8).uniform(-2, 2, (5, Q_X))

compiled_curves_at = compiled(curves_at)
compiled_marginals = compiled(marginals)


class Trained(NamedTuple):
    """Observations, and parameters without a q(v)."""

    case: Case
    parameters: Parameters


CASES = {
    "grid, shared noise": lambda: Trained(grid_case(), small_parameters(2, noise=SHARED)),
    "long, noise per condition": lambda: Trained(long_case(), small_parameters(2, noise=PER_CONDITION)),
}


@pytest.fixture(params=CASES)
def trained(request: pytest.FixtureRequest) -> Trained:
    return CASES[request.param]()


@compiled
def fitted(parameters: Parameters, data: Data) -> tuple[Posterior, Curves]:
    model = posterior(parameters, data)
    return model, trained_curves(model)


@compiled
def fitted_in_two_steps(first: Parameters, early: Data, second: Parameters, late: Data) -> Posterior:
    return updated(posterior(first, early), quadratic(second, late))


def at_points(model: Posterior, shapes: Curves) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of every curve at the same points, points × curves."""
    n_curves = shapes.weights.shape[0]
    blocks = jnp.asarray(np.tile(POINTS, (n_curves, 1, 1)))
    mean, variance = compiled_marginals(model.input_basis, shapes, blocks, jnp.arange(n_curves))
    return np.asarray(mean).T, np.asarray(variance).T


def as_matrix(covariance: Covariance) -> np.ndarray:
    """S, entry by entry, from its bilinear form with unit matrices."""
    units = [np.eye(M_X * M_H)[i].reshape(M_X, M_H, order="F") for i in range(M_X * M_H)]
    return np.asarray(covariance.bilinear(jnp.asarray(units), jnp.asarray(units)))


def with_optimal_inducing(parameters: Parameters, case: Case) -> Parameters:
    mean, variance = references.optimal_inducing(parameters, case.observations)
    return replace(parameters, inducing=FullInducing(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(variance))))


# The optimal q(v), and predictions of the trained conditions with it.


def test_optimal_inducing_variables_are_the_dense_solve(trained: Trained):
    model, _ = fitted(trained.parameters, trained.case.data)
    mean, variance = references.optimal_inducing(trained.parameters, trained.case.observations)
    np.testing.assert_allclose(model.mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(as_matrix(model.covariance), variance, rtol=1e-9, atol=1e-11)


def test_covariance_on_a_grid_keeps_its_kronecker_form(trained: Trained):
    model, _ = fitted(trained.parameters, trained.case.data)
    on_grid = isinstance(trained.case.data, GridData)
    assert isinstance(model.covariance, KroneckerCovariance if on_grid else DenseCovariance)


def test_trained_predictions_are_the_papers_with_the_optimal_inducing_variables(trained: Trained):
    parameters, case = trained.parameters, trained.case
    found = at_points(*fitted(parameters, case.data))
    expected = references.reference_prediction(with_optimal_inducing(parameters, case), POINTS)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("inducing", [full_inducing, kronecker_inducing])
def test_trained_predictions_are_the_papers_with_explicit_inducing_variables(inducing: Callable[[], Inducing]):
    parameters = replace(small_parameters(2), inducing=inducing())
    found = at_points(*fitted(parameters, grid_case().data))
    np.testing.assert_allclose(found, references.reference_prediction(parameters, POINTS), rtol=1e-8, atol=1e-10)


def moments_by_monte_carlo(parameters: Parameters, condition: int, x: np.ndarray, n_draws: int = 20_000):
    """Draws of h ~ q(h_d), and the mean and the variance of f(x, h) given each."""
    rng = np.random.default_rng(9)
    mean, variance = (np.asarray(part[condition]) for part in (parameters.latent_mean, parameters.latent_variance))
    latents = mean + np.sqrt(variance) * rng.normal(size=(n_draws, len(mean)))
    process, points = DenseProcess(parameters), np.tile(x, (n_draws, 1))
    cross = process.cross(points, latents)
    prior = references.kernel_values(parameters.latent_kernel, latents, latents) * references.kernel_values(
        parameters.input_kernel, points, points
    )
    return cross @ process.weights, prior + np.sum((cross @ process.core) * cross, axis=1)


@pytest.mark.parametrize("condition", range(D))
def test_trained_predictions_are_the_conditional_averaged_over_the_latents(condition: int):
    parameters = replace(small_parameters(2), inducing=full_inducing())
    mean, variance = at_points(*fitted(parameters, grid_case().data))
    means, variances = moments_by_monte_carlo(parameters, condition, POINTS[0])
    n_draws = len(means)
    assert abs(means.mean() - mean[0, condition]) < 4 * means.std() / np.sqrt(n_draws)
    # ⟨v(h)⟩ + var m(h), each draw a term of the sum
    terms = variances + (means - means.mean()) ** 2
    error = terms.std() / np.sqrt(n_draws)
    assert abs(terms.mean() - variance[0, condition]) < 4 * error
    # without the uncertainty of the latents, ⟨v(h)⟩ alone
    assert variance[0, condition] - variances.mean() > 10 * error


# Curves at given latents.


@pytest.mark.parametrize("inducing", [full_inducing, kronecker_inducing])
def test_curves_at_latents_are_the_papers_conditional(inducing: Callable[[], Inducing]):
    parameters = replace(small_parameters(2), inducing=inducing())
    (model, _), process = fitted(parameters, grid_case().data), DenseProcess(parameters)
    latents = np.random.default_rng(10).normal(size=(D, 2)) * 2
    mean, variance = at_points(model, compiled_curves_at(model, jnp.asarray(latents)))
    for place, latent in enumerate(latents):
        expected_mean, expected_covariance = process.at(POINTS, latent)
        np.testing.assert_allclose(mean[:, place], expected_mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(variance[:, place], np.diag(expected_covariance), rtol=1e-8)


def test_spread_gives_the_covariance_along_a_curve():
    parameters = replace(small_parameters(2), inducing=full_inducing())
    model, _ = fitted(parameters, grid_case().data)
    latent = np.array([0.4, -1.3])
    shape = compiled_curves_at(model, jnp.asarray(latent[None]))
    features = np.asarray(model.input_basis.features(jnp.asarray(POINTS)))
    prior = float(shape.prior_variance[0]) * references.covariance(parameters.input_kernel, POINTS, POINTS)
    found = prior + features @ np.asarray(shape.spread[0]) @ features.T
    np.testing.assert_allclose(found, DenseProcess(parameters).at(POINTS, latent)[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("inducing", [full_inducing, kronecker_inducing])
def test_trained_curves_with_known_latents_are_the_curves_at_them(inducing: Callable[[], Inducing]):
    parameters = pinned(replace(small_parameters(2), inducing=inducing()))
    model, shapes = fitted(parameters, grid_case().data)
    expected = at_points(model, compiled_curves_at(model, parameters.latent_mean))
    np.testing.assert_allclose(at_points(model, shapes), expected, rtol=1e-8, atol=1e-10)


def pinned(parameters: Parameters) -> Parameters:
    """The latents known to be at their means."""
    return replace(parameters, latent_variance=jnp.full((D, 2), 1e-14, float))


# The two forms of S.


def both_forms() -> tuple[KroneckerCovariance, DenseCovariance, np.ndarray]:
    rng = np.random.default_rng(11)
    input_part, latent_part = (root @ root.T for root in (rng.normal(size=(M_X, M_X)), rng.normal(size=(M_H, M_H))))
    (input_values, input_basis), (latent_values, latent_basis) = map(np.linalg.eigh, (input_part, latent_part))
    variances = np.outer(input_values, latent_values)
    structured = KroneckerCovariance(*map(jnp.asarray, (input_basis, latent_basis, variances)))
    matrix = np.kron(latent_part, input_part)
    return structured, DenseCovariance(jnp.asarray(matrix), M_X), matrix


@pytest.fixture(params=["kronecker", "dense"])
def form(request: pytest.FixtureRequest) -> tuple[Covariance, np.ndarray]:
    structured, dense, matrix = both_forms()
    return (structured if request.param == "kronecker" else dense), matrix


def block(matrix: np.ndarray, j: int, k: int) -> np.ndarray:
    """S_jk."""
    return matrix[j * M_X : (j + 1) * M_X, k * M_X : (k + 1) * M_X]


def test_contraction_is_the_sum_over_blocks(form: tuple[Covariance, np.ndarray]):
    covariance, matrix = form
    seconds = np.random.default_rng(12).normal(size=(2, M_H, M_H))
    seconds = seconds + seconds.transpose(0, 2, 1)
    for second, found in zip(seconds, covariance.contract(jnp.asarray(seconds)), strict=True):
        expected = sum(second[j, k] * block(matrix, j, k) for j in range(M_H) for k in range(M_H))
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_projection_is_that_of_each_block(form: tuple[Covariance, np.ndarray]):
    covariance, matrix = form
    features = np.random.default_rng(13).normal(size=(3, M_X))
    found = np.asarray(covariance.project(jnp.asarray(features)))
    for j in range(M_H):
        for k in range(M_H):
            expected = features @ block(matrix, j, k) @ features.T
            np.testing.assert_allclose(found[j, k], expected, rtol=1e-11, atol=1e-11)


def test_projection_at_a_latent_is_the_sum_over_blocks(form: tuple[Covariance, np.ndarray]):
    covariance, matrix = form
    rng = np.random.default_rng(13)
    features, latent = rng.normal(size=(3, M_X)), rng.normal(size=M_H)
    found = covariance.projection(jnp.asarray(features)).at(jnp.asarray(latent))
    weighted = np.kron(latent[:, None], features.T)  # columns c ⊗ a
    np.testing.assert_allclose(found, weighted.T @ matrix @ weighted, rtol=1e-11, atol=1e-11)


def test_bilinear_form_is_that_of_the_stacked_columns(form: tuple[Covariance, np.ndarray]):
    covariance, matrix = form
    rng = np.random.default_rng(14)
    left, right = rng.normal(size=(2, M_X, M_H)), rng.normal(size=(3, M_X, M_H))
    found = np.asarray(covariance.bilinear(jnp.asarray(left), jnp.asarray(right)))
    for i, first in enumerate(left):
        for j, second in enumerate(right):
            expected = references.stacked(first) @ matrix @ references.stacked(second)
            assert found[i, j] == pytest.approx(expected, rel=1e-11)


def test_precision_is_the_inverse(form: tuple[Covariance, np.ndarray]):
    covariance, matrix = form
    np.testing.assert_allclose(covariance.precision() @ matrix, np.eye(M_X * M_H), atol=1e-7)


def test_explicit_kronecker_covariance_is_the_product_of_its_parts():
    inducing = kronecker_inducing()
    model, _ = fitted(replace(small_parameters(2), inducing=inducing), grid_case().data)
    root = np.kron(np.asarray(inducing.latent_factor), np.asarray(inducing.input_factor))
    np.testing.assert_allclose(as_matrix(model.covariance), root @ root.T, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(model.mean, inducing.mean)


def test_explicit_full_covariance_is_the_square_of_its_factor():
    inducing = full_inducing()
    model, _ = fitted(replace(small_parameters(2), inducing=inducing), grid_case().data)
    factor = np.asarray(inducing.factor)
    np.testing.assert_allclose(as_matrix(model.covariance), factor @ factor.T, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(model.mean, inducing.mean)


# Absorbing new data.


def take_conditions(parameters: Parameters, order: slice) -> Parameters:
    noise = parameters.noise_variance
    return replace(
        parameters,
        latent_mean=parameters.latent_mean[order],
        latent_variance=parameters.latent_variance[order],
        noise_variance=noise if len(noise) == 1 else noise[order],
    )


def split_in_two(case: Case) -> tuple[Data, Data]:
    """The first two conditions, and the last two."""
    if not isinstance(case.data, GridData):
        return as_long(case.observations[:2]), as_long(case.observations[2:])
    inputs, outputs = case.data.inputs, case.data.outputs
    return GridData(inputs, outputs[:, :2]), GridData(inputs, outputs[:, 2:])


def test_posterior_updated_with_new_conditions_is_that_of_all_data(trained: Trained):
    early, late = split_in_two(trained.case)
    first, second = (take_conditions(trained.parameters, part) for part in (slice(0, 2), slice(2, 4)))
    found = fitted_in_two_steps(first, early, second, late)
    mean, variance = references.optimal_inducing(trained.parameters, trained.case.observations)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(as_matrix(found.covariance), variance, rtol=1e-8, atol=1e-10)


# The limit of the exact model.


def exact_regression(parameters: Parameters, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """GP regression with covariance k_H · k_X at known latents, points × conditions."""
    latents = np.asarray(parameters.latent_mean)
    inputs = np.concatenate([inputs for inputs, _ in case.observations])
    outputs = np.concatenate([outputs for _, outputs in case.observations])
    own = np.repeat(np.arange(D), [len(values) for _, values in case.observations])

    def signal(first: np.ndarray, h: np.ndarray, second: np.ndarray, k: np.ndarray) -> np.ndarray:
        return references.covariance(parameters.input_kernel, first, second) * references.covariance(
            parameters.latent_kernel, h, k
        )

    noise = np.diag([references.noise_of(parameters, d) for d in own])
    inverse = np.linalg.inv(signal(inputs, latents[own], inputs, latents[own]) + noise)
    mean, variance = np.empty((len(POINTS), D)), np.empty((len(POINTS), D))
    for d in range(D):
        same = np.tile(latents[d], (len(POINTS), 1))
        cross = signal(POINTS, same, inputs, latents[own])
        mean[:, d] = cross @ inverse @ outputs
        variance[:, d] = np.diag(signal(POINTS, same, POINTS, same) - cross @ inverse @ cross.T)
    return mean, variance


def test_predictions_with_inducing_points_at_the_data_are_exact_regression(trained: Trained):
    inputs = np.unique(np.concatenate([inputs for inputs, _ in trained.case.observations]), axis=0)
    parameters = pinned(trained.parameters)
    parameters = replace(parameters, inducing_inputs=jnp.asarray(inputs), inducing_latents=parameters.latent_mean)
    found = at_points(*fitted(parameters, trained.case.data))
    # what the jitter on the two gram matrices leaves
    np.testing.assert_allclose(found, exact_regression(parameters, trained.case), rtol=0, atol=1e-4)


def test_variances_stay_above_their_rounding_error():
    prior = jnp.array([2.0, 2.0, 2.0])
    kept = np.asarray(positive_part(jnp.array([-1e-17, 0.0, 0.3]), prior))
    np.testing.assert_allclose(kept, [20 * np.finfo(float).eps, 20 * np.finfo(float).eps, 0.3], rtol=1e-12)
    assert positive_part(jnp.zeros(1, jnp.float32), jnp.ones(1, jnp.float32)).dtype == jnp.float32
