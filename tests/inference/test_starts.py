"""Where fits start: independent GPs, recipes for latents, inducing points; what changes with many observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from scipy.spatial.distance import pdist
from small_models import INDUCING_INPUTS, Case, grid_case, long_case, number, rbf

from lvmogp.ground.compiling import compiled
from lvmogp.inference import starts
from lvmogp.inference.options import Options, checked, described_kernels, fit_settings
from lvmogp.kernels.covariances import RBF
from lvmogp.model.layouts import GridData, long_data, some_blocks
from lvmogp.tables.features import FeatureCoordinates


def independent_parameters(inducing: np.ndarray = INDUCING_INPUTS) -> starts.IndependentParameters:
    return starts.IndependentParameters(rbf([1.6, 1.3], 1.2), jnp.asarray(inducing), number(0.15))


def dense_titsias(parameters: starts.IndependentParameters, inputs: np.ndarray, outputs: np.ndarray) -> float:
    """log N(y; 0, Q + σ²I) − tr(K − Q)/2σ² with Q = K_fu K_uu⁻¹ K_uf."""
    inducing, noise = np.asarray(parameters.inducing_inputs), float(parameters.noise_variance)
    cross = references.covariance(parameters.kernel, inputs, inducing)
    explained = cross @ np.linalg.inv(references.jittered_gram(parameters.kernel, inducing)) @ cross.T
    left = np.trace(references.covariance(parameters.kernel, inputs, inputs) - explained)
    return references.log_normal(outputs, explained + noise * np.eye(len(inputs))) - left / (2 * noise)


@pytest.mark.parametrize("case", [grid_case(), long_case()], ids=["grid", "long"])
def test_independent_bound_and_curves_are_those_of_dense_sparse_gps(case: Case):
    parameters = independent_parameters()
    expected = sum(dense_titsias(parameters, inputs, outputs) for inputs, outputs in case.observations)
    assert float(compiled(starts.independent_bound)(parameters, case.data)) == pytest.approx(expected, rel=1e-10)
    points = np.random.default_rng(51).uniform(-2, 2, (6, 2))
    found = starts.independent_curves(parameters, case.data, jnp.asarray(points))
    gram = references.jittered_gram(parameters.kernel, INDUCING_INPUTS)
    at_points = references.covariance(parameters.kernel, points, INDUCING_INPUTS)
    for curve, (inputs, outputs) in zip(found, case.observations, strict=True):
        cross = references.covariance(parameters.kernel, inputs, INDUCING_INPUTS)
        # K_*u (K_uu + K_uf K_fu/σ²)⁻¹ K_uf y/σ²
        noise = float(parameters.noise_variance)
        expected = at_points @ np.linalg.solve(gram + cross.T @ cross / noise, cross.T @ outputs / noise)
        np.testing.assert_allclose(curve, expected, rtol=1e-8, atol=1e-10)


def curves_of(latents: np.ndarray, lengthscale: float, n_points: int = 4_000) -> np.ndarray:
    """Values of curves at so many far-apart points that their correlations are those of the latent kernel."""
    latent_gram = references.covariance(RBF(lengthscale, 1.0), latents, latents)
    values, vectors = np.linalg.eigh(latent_gram)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return root @ np.random.default_rng(52).normal(size=(len(latents), n_points))


def configuration(n_dimensions: int, n_conditions: int = 30) -> np.ndarray:
    """Latents with unit covariance."""
    latents = np.random.default_rng(53).uniform(-1, 1, (n_conditions, n_dimensions))
    latents -= latents.mean(axis=0)
    return latents @ np.linalg.inv(np.linalg.cholesky(np.cov(latents.T, ddof=0).reshape(n_dimensions, -1))).T


RNG = np.random.default_rng


@pytest.mark.parametrize("n_dimensions", [1, 2])
def test_principal_components_recover_where_conditions_lie(n_dimensions: int):
    latents = configuration(n_dimensions)
    values = curves_of(latents, 4.0)
    means, lengthscales = starts.principal_components(values - values.mean(axis=0), n_dimensions, RNG(54))
    assert np.corrcoef(pdist(means / lengthscales), pdist(latents))[0, 1] > 0.95
    np.testing.assert_allclose(np.mean(means**2, axis=0), 1, rtol=1e-9)


@pytest.mark.parametrize("n_dimensions", [1, 2])
@pytest.mark.parametrize("n_neighbours", [8, 12])
def test_isomap_recovers_where_conditions_lie_and_their_distances(n_dimensions: int, n_neighbours: int):
    latents = configuration(n_dimensions, 80)
    values = curves_of(latents, 0.7)
    means, lengthscales = starts.isomap(values, n_dimensions, RNG(54), n_neighbours=n_neighbours)
    found = pdist(means / lengthscales)
    assert np.corrcoef(found, pdist(latents))[0, 1] > 0.95
    assert np.median(found / (pdist(latents) / 0.7)) == pytest.approx(1, abs=0.15)


CURVES = {
    "one condition": RNG(55).normal(size=(1, 20)),
    "two conditions": RNG(56).normal(size=(2, 20)),
    "three conditions": RNG(57).normal(size=(3, 20)),
    "equal curves": np.tile(np.sin(np.arange(20)), (6, 1)),
    "curves of zeros": np.zeros((6, 20)),
    "curves with opposite signs": np.outer([1, -1, 1, -1, 1, -1], np.sin(np.arange(20))),
}


@pytest.mark.parametrize("curves", CURVES)
@pytest.mark.parametrize("recipe", starts.RECIPES)
def test_recipes_hold_for_few_and_for_equal_curves(recipe: str, curves: str):
    for n_latent in (1, 2, 3):
        means, lengthscales = starts.RECIPES[recipe](CURVES[curves], n_latent, RNG(58))
        assert means.shape == (len(CURVES[curves]), n_latent)
        assert lengthscales.shape == (n_latent,)
        assert np.all(np.abs(means) < 10)
        assert np.all((lengthscales > 0.01) & (lengthscales < 100))


@pytest.mark.parametrize("recipe", starts.RECIPES)
@pytest.mark.parametrize("with_features", [False, True])
def test_where_conditions_start_does_not_depend_on_their_order(recipe: str, with_features: bool):
    values, order = RNG(60).normal(size=(7, 9)), RNG(61).permutation(7)
    known = FeatureCoordinates(RNG(62).normal(size=(7, 1)), np.ones(1), np.ones(1))
    settings = settings_for(GridData(jnp.zeros((9, 2)), jnp.zeros((9, 7))), np.eye(9), n_inducing_latents=3)

    def begin(rows: np.ndarray):
        coordinates = known._replace(values=known.values[rows]) if with_features else None
        return starts.start(recipe, independent_parameters(), values[rows], settings, RNG(63), coordinates)

    plain, moved = begin(np.arange(7)), begin(order)
    np.testing.assert_allclose(moved.latent_mean, plain.latent_mean[order], atol=1e-12)
    np.testing.assert_allclose(moved.inducing_latents, plain.inducing_latents, atol=1e-12)


def test_representatives_are_the_points_or_centres_of_clusters():
    points = np.array([[0.0], [0.1], [5.0], [5.1], [0.0]])
    np.testing.assert_array_equal(starts.representatives(points, 4, 0), [[0.0], [0.1], [5.0], [5.1]])
    np.testing.assert_allclose(np.sort(starts.representatives(points, 2, 0), axis=0), [[0.05], [5.05]])
    # Those that differ by rounding are clustered without a warning; at zero they are different.
    points = np.repeat([[0.0], [1.0], [2.0]], 4, axis=0) + 1e-17 * np.arange(12.0)[:, None]
    assert len(np.unique(points)) == 6
    centres = starts.representatives(points, 5, 0)
    assert len(centres) == 5
    np.testing.assert_allclose(np.unique(np.round(centres, 9)), [0, 1, 2], atol=1e-9)


def scattered_waves(n_observations, n_conditions=50):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (n_observations, 1))
    conditions = np.arange(n_observations) % n_conditions
    outputs = np.sin(3 * inputs[:, 0] + conditions / n_conditions) + 0.1 * rng.standard_normal(n_observations)
    return inputs, long_data(inputs, outputs, conditions, n_conditions)


def settings_for(data, inputs, n_latent=2, **changes):
    options = checked(Options(**changes))
    kernels = described_kernels(options, RBF(), RBF(), np.ones(1))
    return fit_settings(options, data, inputs, n_latent=n_latent, kernels=kernels)


@pytest.mark.parametrize(("n", "n_restarts", "tolerance"), [(5_000, 6, 0.02), (50_000, 3, 1.5), (60_000, 1, 2.0)])
def test_one_start_and_gains_by_the_point(n, n_restarts, tolerance):
    inputs, data = scattered_waves(n)
    settings = settings_for(data, inputs)
    assert settings.n_restarts == n_restarts
    assert settings.tolerance == pytest.approx(tolerance)
    assert settings_for(data, inputs, n_restarts=4).n_restarts == 4
    # A grid is cheap however many observations it holds.
    grid = settings_for(GridData(jnp.asarray(inputs[:1000]), jnp.zeros((1000, 100))), inputs[:1000])
    assert (grid.n_restarts, grid.tolerance) == (6, 0.02)


def test_some_observations_find_the_hyperparameters_and_all_the_curves(monkeypatch):
    inputs, data = scattered_waves(400, n_conditions=8)
    monkeypatch.setattr("lvmogp.inference.starts._MOST_FOR_HYPERPARAMETERS", 100)
    settings = settings_for(data, inputs, n_inducing_inputs=6)
    parameters, curves = starts.independent_start(data, inputs, np.ones(1), settings)
    few = some_blocks(data, 100, seed=0)
    assert few.n_observations < 200
    alone, _ = starts.independent_start(few, inputs, np.ones(1), settings)
    for leaf, expected in zip(jax.tree.leaves(parameters), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-6)
    assert np.unique(curves.round(6), axis=0).shape[0] == 8
