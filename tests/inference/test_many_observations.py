"""What changes with very many observations: some find where to start, fewer starts, gains measured by the point."""

import jax
import numpy as np
import pytest

from lvmogp.inference.options import Options, fit_settings
from lvmogp.inference.starts import independent_start
from lvmogp.kernels.covariances import RBF
from lvmogp.model.layouts import GridData, long_data, some_blocks

OPTIONS = Options(
    n_latent=2,
    input_kernel="rbf",
    latent_kernel="rbf",
    n_inducing_inputs="auto",
    n_inducing_latents="auto",
    noise="shared",
    inference="auto",
    n_restarts="auto",
    max_iter="auto",
    output_transform=None,
    unseen="error",
    dtype="float64",
    random_state=0,
)


def scattered(n_observations, n_conditions=50):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (n_observations, 1))
    conditions = np.arange(n_observations) % n_conditions
    outputs = np.sin(3 * inputs[:, 0] + conditions / n_conditions) + 0.1 * rng.standard_normal(n_observations)
    return inputs, long_data(inputs, outputs, conditions, n_conditions)


def settings_for(data, inputs, **changes):
    return fit_settings(OPTIONS._replace(**changes), data, inputs, n_latent=2, latent_kernel=RBF())


@pytest.mark.parametrize(("n", "n_restarts", "tolerance"), [(5_000, 6, 0.02), (50_000, 6, 1.5), (60_000, 1, 2.0)])
def test_one_start_and_gains_by_the_point(n, n_restarts, tolerance):
    inputs, data = scattered(n)
    settings = settings_for(data, inputs)
    assert settings.n_restarts == n_restarts
    assert settings.tolerance == pytest.approx(tolerance)
    assert settings_for(data, inputs, n_restarts=4).n_restarts == 4


def test_a_grid_is_cheap_however_many_observations_it_holds():
    inputs = np.linspace(-1, 1, 1000)[:, None]
    data = GridData(jax.numpy.asarray(inputs), jax.numpy.zeros((1000, 100)))
    assert settings_for(data, inputs).n_restarts == 6
    assert settings_for(data, inputs).tolerance == 0.02


def test_some_observations_find_the_hyperparameters_and_all_the_curves(monkeypatch):
    inputs, data = scattered(400, n_conditions=8)
    monkeypatch.setattr("lvmogp.inference.starts._MOST_FOR_HYPERPARAMETERS", 100)
    sizes = {"input_scale": np.ones(1), "n_inducing": 6, "most_inducing": 6, "seed": 0}
    found = independent_start(RBF(), data, inputs, **sizes)
    few = some_blocks(data, 100, seed=0)
    assert few.n_observations < 200
    alone = independent_start(RBF(), few, inputs, **sizes)
    for leaf, expected in zip(jax.tree.leaves(found.parameters), jax.tree.leaves(alone.parameters), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-6)
    assert found.values.shape[0] == 8
    assert np.unique(found.values.round(6), axis=0).shape[0] == 8
