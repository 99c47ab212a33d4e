"""The bound where features of conditions are known: coordinates of variance zero, which cost nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import MISSING, described_parameters, grid_case, long_case

from lvmogp.algebra.constraints import join, split
from lvmogp.ground.compiling import compiled
from lvmogp.model.bounds import collapsed
from lvmogp.model.parameters import Parameters

compiled_bound = compiled(collapsed)


def all_coordinates(parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all coordinates, put together in a loop."""
    known = parameters.known
    mean = np.hstack([parameters.latent_mean, known.values])
    variance = np.hstack([parameters.latent_variance, np.zeros(known.values.shape)])
    for place, (condition, coordinate) in enumerate(zip(*MISSING, strict=True)):
        mean[condition, 1 + coordinate] = known.missing_mean[place]
        variance[condition, 1 + coordinate] = known.missing_variance[place]
    return mean, variance


@pytest.mark.parametrize("case", [grid_case, long_case])
def test_known_coordinates_are_latents_of_no_variance_and_no_cost(case):
    parameters = described_parameters()
    mean, variance = all_coordinates(parameters)
    plain = Parameters(
        input_kernel=parameters.input_kernel,
        latent_kernel=parameters.latent_kernel,
        inducing_inputs=parameters.inducing_inputs,
        inducing_latents=parameters.inducing_latents,
        latent_mean=jnp.asarray(mean),
        latent_variance=jnp.asarray(np.maximum(variance, 1e-13)),
        noise_variance=parameters.noise_variance,
    )
    found, expected = compiled_bound(parameters, case().data), compiled_bound(plain, case().data)
    np.testing.assert_allclose(found.fit, expected.fit, rtol=1e-10)
    unknown = variance > 0
    divergences = (mean**2 + variance - np.log(np.where(unknown, variance, 1.0)) - 1) / 2
    np.testing.assert_allclose(found.kl_latents, divergences[unknown].sum(), rtol=1e-12)


def test_gradients_are_those_of_finite_differences_and_known_values_are_not_free():
    parameters, data = described_parameters(), long_case().data
    vector, fixed, structure = split(parameters)
    n_known = parameters.known.values.size + 2 * len(MISSING[0])
    n_numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(parameters))
    assert len(vector) == n_numbers - n_known

    def bound(free):
        return collapsed(join(free, fixed, structure), data).total

    gradient = jax.jit(jax.grad(bound))(vector)
    value = jax.jit(bound)
    step = 1e-5
    for place in range(len(vector)):
        nudge = jnp.zeros(len(vector)).at[place].set(step)
        slope = (value(vector + nudge) - value(vector - nudge)) / (2 * step)
        np.testing.assert_allclose(gradient[place], slope, rtol=2e-5, atol=2e-6)
