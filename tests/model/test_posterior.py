"""The factorised model against dense solves, the paper's formulas and Monte Carlo."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
import references
from numpy.testing import assert_allclose, assert_array_equal
from small_models import (
    M_H,
    M_X,
    PER_CONDITION,
    Q_X,
    SHARED,
    Case,
    D,
    as_long,
    full_inducing,
    grid_case,
    kronecker_inducing,
    long_case,
    replace,
    small_parameters,
)

from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.layouts import Data, GridData
from lvmogp.model.parameters import Inducing, Parameters, of_conditions
from lvmogp.model.posterior import (
    Covariance,
    CurveMoments,
    DenseCovariance,
    KroneckerCovariance,
    Posterior,
    curve_moments,
    grid_marginals,
    grid_means,
    marginals,
    positive_part,
    posterior,
    updated,
)

POINTS = np.random.default_rng(8).uniform(-2, 2, (5, Q_X))

compiled_marginals, compiled_grid_marginals, compiled_grid_means = (
    compiled(each) for each in (marginals, grid_marginals, grid_means)
)


@pytest.fixture(params=[(grid_case, SHARED), (long_case, PER_CONDITION)], ids=["grid", "long"])
def trained(request: pytest.FixtureRequest) -> tuple[Case, Parameters]:
    """Observations, and parameters without a q(v)."""
    case, noise = request.param
    return case(), small_parameters(2, noise=noise)


@compiled
def fitted(parameters: Parameters, data: Data) -> tuple[Posterior, CurveMoments]:
    model = posterior(parameters, data)
    return model, curve_moments(model, parameters.latents)


@compiled
def fitted_in_two_steps(first: Parameters, early: Data, second: Parameters, late: Data) -> Posterior:
    return updated(posterior(first, early), quadratic(second, late))


def at_points(model: Posterior, shapes: CurveMoments) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of every curve at the same points, points × curves."""
    n_curves = shapes.weights.shape[0]
    blocks = jnp.asarray(np.tile(POINTS, (n_curves, 1, 1)))
    mean, variance = compiled_marginals(model.input_basis, shapes, blocks, jnp.arange(n_curves))
    return np.asarray(mean).T, np.asarray(variance).T


def as_matrix(covariance: Covariance) -> np.ndarray:
    """S, block by block, from its contractions with matrices that pick one block."""
    blocks = np.asarray(covariance.contract(jnp.eye(M_H**2).reshape(-1, M_H, M_H), (M_H,)))
    return blocks.reshape(M_H, M_H, M_X, M_X).transpose(0, 2, 1, 3).reshape(M_H * M_X, M_H * M_X)


def test_optimal_inducing_variables_are_the_dense_solve(trained: tuple[Case, Parameters]):
    case, parameters = trained
    model, shapes = fitted(parameters, case.data)
    mean, variance = references.optimal_inducing(parameters, case.observations)
    assert_allclose(model.mean, mean, rtol=1e-9, atol=1e-11)
    assert_allclose(as_matrix(model.covariance), variance, rtol=1e-9, atol=1e-11)
    assert isinstance(model.covariance, KroneckerCovariance if isinstance(case.data, GridData) else DenseCovariance)
    optimal = references.with_optimal_inducing(parameters, case.observations)
    expected = references.reference_prediction(optimal, POINTS)
    assert_allclose(at_points(model, shapes), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("inducing", [full_inducing, kronecker_inducing])
def test_explicit_inducing_variables_are_those_of_the_parameters(inducing: Callable[[], Inducing]):
    parameters = replace(small_parameters(2), inducing=inducing())
    model, shapes = fitted(parameters, grid_case().data)
    own = parameters.inducing
    root = own.factor if inducing is full_inducing else np.kron(own.latent_factor, own.input_factor)
    assert_allclose(as_matrix(model.covariance), root @ root.T, rtol=1e-11, atol=1e-13)
    assert_array_equal(model.mean, own.mean)
    expected = references.reference_prediction(parameters, POINTS)
    assert_allclose(at_points(model, shapes), expected, rtol=1e-8, atol=1e-10)


def test_curves_of_gaussian_latents_covary_as_all_points_of_their_distribution_say():
    """Equations 15 to 17: ψ k_X + aᵀGa' between all pairs of points, by quadrature over q(h)."""
    parameters = replace(small_parameters(2), inducing=full_inducing())
    model, shapes = fitted(parameters, grid_case().data)
    process = references.process_of_fit(parameters)
    unit, weights = references.hermite(24, 2)
    features = np.asarray(model.input_basis.features(jnp.asarray(POINTS)))
    for d in (0, D - 1):
        latents = np.asarray(parameters.latent_mean[d]) + np.sqrt(parameters.latent_variance[d]) * unit
        curves = [process.curve(POINTS, latent) for latent in latents]
        means = np.array([mean for mean, _ in curves])
        mean = weights @ means
        within = np.tensordot(weights, [covariance for _, covariance in curves], axes=1)
        expected = within + ((means - mean).T * weights) @ (means - mean)
        prior = float(shapes.prior_variance[d, 0]) * references.covariance(
            parameters.kernels.of_inputs[0], POINTS, POINTS
        )
        found = prior + features @ np.asarray(shapes.spread[d]) @ features.T
        assert_allclose(features @ np.asarray(shapes.weights[d]), mean, rtol=1e-8, atol=1e-10)
        assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("pairs_at_once", [2**17, 29])
def test_a_grid_of_points_is_predicted_as_its_rows_are(monkeypatch, pairs_at_once: int):
    """With ten pairs of features, 29 of them are two slices of three points."""
    monkeypatch.setattr("lvmogp.model.posterior._PAIRS_AT_ONCE", pairs_at_once)
    model, shapes = fitted(small_parameters(2), grid_case().data)
    points, (mean, variance) = jnp.asarray(POINTS), at_points(model, shapes)
    found = (compiled_grid_marginals if pairs_at_once > 29 else grid_marginals)(model.input_basis, shapes, points)
    assert_allclose(found[0], mean, rtol=1e-10, atol=1e-12)
    assert_allclose(found[1], variance, rtol=1e-9)
    assert_allclose(compiled_grid_means(model.input_basis, shapes, points), mean, rtol=1e-10, atol=1e-12)


def test_curves_are_in_the_precision_of_the_model():
    model, expected = fitted(small_parameters(2), grid_case().data)
    narrow = in_precision(model, "float32")
    found = compiled(curve_moments)(narrow, narrow.parameters.latents)
    assert found.spread.dtype == jnp.float32
    assert_allclose(found.spread, expected.spread, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["kronecker", "dense"])
def test_covariances_of_both_forms_do_what_their_matrix_does(form: str):
    rng = np.random.default_rng(11)
    parts = [root @ root.T for root in (rng.normal(size=(M_X, M_X)), rng.normal(size=(M_H, M_H)))]
    matrix = np.kron(parts[1], parts[0])
    blocks = matrix.reshape(M_H, M_X, M_H, M_X).transpose(0, 2, 1, 3)
    covariance = DenseCovariance(jnp.asarray(matrix), M_X)
    if form == "kronecker":
        (input_values, input_basis), (latent_values, latent_basis) = map(np.linalg.eigh, parts)
        variances = np.outer(input_values, latent_values)
        covariance = KroneckerCovariance(*map(jnp.asarray, (input_basis, latent_basis, variances)))
        given = rng.normal(size=(M_X, M_H))
        found = references.stacked(np.asarray(covariance.apply(jnp.asarray(given))))
        assert_allclose(found, matrix @ references.stacked(given), rtol=1e-11, atol=1e-11)
    seconds = rng.normal(size=(2, M_H, M_H))
    seconds = seconds + seconds.transpose(0, 2, 1)
    expected = [sum(second[j, k] * blocks[j, k] for j in range(M_H) for k in range(M_H)) for second in seconds]
    assert_allclose(covariance.contract(jnp.asarray(seconds), (M_H,)), expected, rtol=1e-11, atol=1e-11)
    traces = [[np.trace(blocks[j, k]) for k in range(M_H)] for j in range(M_H)]
    assert_allclose(covariance.block_traces(), traces, rtol=1e-11, atol=1e-11)
    assert_allclose(covariance.precision() @ matrix, np.eye(M_X * M_H), atol=1e-7)


def test_posterior_updated_with_new_conditions_is_that_of_all_data(trained: tuple[Case, Parameters]):
    case, parameters = trained
    halves = np.arange(2), np.arange(2, 4)
    early, late = as_long(case.observations[:2]), as_long(case.observations[2:])
    if isinstance(case.data, GridData):
        early, late = (GridData(case.data.inputs, case.data.outputs[:, half]) for half in halves)
    first, second = (of_conditions(parameters, half) for half in halves)
    found = fitted_in_two_steps(first, early, second, late)
    mean, variance = references.optimal_inducing(parameters, case.observations)
    assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-10)
    assert_allclose(as_matrix(found.covariance), variance, rtol=1e-8, atol=1e-10)


def test_variances_stay_above_their_rounding_error():
    prior = jnp.array([2.0, 2.0, 2.0])
    kept = np.asarray(positive_part(jnp.array([-1e-17, 0.0, 0.3]), prior))
    assert_allclose(kept, [20 * np.finfo(float).eps, 20 * np.finfo(float).eps, 0.3], rtol=1e-12)
    assert positive_part(jnp.zeros(1, jnp.float32), jnp.ones(1, jnp.float32)).dtype == jnp.float32
