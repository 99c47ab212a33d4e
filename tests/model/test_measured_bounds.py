"""Bounds with known errors of measurements against dense Gaussians with a noise of their own for each observation."""

import jax.numpy as jnp
import numpy as np
import pytest
import references
from small_models import grid_as_long, grid_case, number, rbf, replace, small_parameters

from lvmogp.ground.compiling import compiled
from lvmogp.inference.starts import IndependentParameters, independent_bound
from lvmogp.model.bounds import collapsed
from lvmogp.model.layouts import GridData, long_data
from lvmogp.model.parameters import Parameters

compiled_bound, compiled_independent = (compiled(function) for function in (collapsed, independent_bound))


def spread_inputs(n_points: int, seed: int) -> np.ndarray:
    """Points far enough apart that their gram matrix needs no jitter to speak of."""
    rng = np.random.default_rng(seed)
    return np.linspace(-4, 4, n_points)[:, None] + 0.1 * rng.uniform(-1, 1, (n_points, 1))


@pytest.mark.parametrize("noise", [(0.05,), (0.02, 0.05, 0.2)])
def test_the_bound_is_exact_with_enough_inducing_points_and_latents_that_are_known(noise):
    rng = np.random.default_rng(50)
    inputs, latents = spread_inputs(9, 51), np.array([[-1.2], [0.1], [1.3]])
    conditions = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    values, errors = rng.normal(size=9), rng.uniform(0, 0.6, 9) ** 2
    errors[4] = 0.0
    parameters = Parameters(
        input_kernel=rbf([1.1], 1.2),
        latent_kernel=rbf([1.3], 0.9),
        inducing_inputs=jnp.asarray(inputs),
        inducing_latents=jnp.asarray(latents),
        latent_mean=jnp.asarray(latents),
        latent_variance=jnp.full((3, 1), 1e-12, float),
        noise_variance=jnp.asarray(noise),
    )
    data = long_data(inputs, values, conditions, 3, error_variances=errors)
    prior = references.covariance(parameters.input_kernel, inputs, inputs)
    prior *= references.covariance(parameters.latent_kernel, latents, latents)[np.ix_(conditions, conditions)]
    own = np.broadcast_to(noise, 3)[conditions]
    expected = references.log_normal(values, prior + np.diag(own + errors))
    np.testing.assert_allclose(compiled_bound(parameters, data).fit, expected, atol=2e-5)
    shared = IndependentParameters(parameters.input_kernel, parameters.inducing_inputs, number(0.07))
    apart = np.equal.outer(conditions, conditions) * references.covariance(parameters.input_kernel, inputs, inputs)
    expected = references.log_normal(values, apart + np.diag(0.07 + errors))
    np.testing.assert_allclose(compiled_independent(shared, data), expected, atol=2e-5)


def test_equal_errors_keep_a_grid_and_add_to_its_noise():
    parameters, grid = small_parameters(), grid_case().data
    uncertain = GridData(grid.inputs, grid.outputs, number(0.3))
    noisier = replace(parameters, noise_variance=parameters.noise_variance + 0.3)
    expected = compiled_bound(noisier, grid).total
    np.testing.assert_allclose(compiled_bound(parameters, uncertain).total, expected, rtol=1e-12)
    np.testing.assert_allclose(compiled_bound(parameters, grid_as_long(uncertain)).total, expected, rtol=1e-10)
    own = IndependentParameters(parameters.input_kernel, parameters.inducing_inputs, number(0.1))
    own_noisier = IndependentParameters(parameters.input_kernel, parameters.inducing_inputs, number(0.4))
    found = [compiled_independent(own, data) for data in (uncertain, grid_as_long(uncertain))]
    np.testing.assert_allclose(found, compiled_independent(own_noisier, grid), rtol=1e-10)
