"""Draws of a model whose conditions have features and whose measurements have known errors."""

import jax
import numpy as np
import pandas as pd
import pytest
from drawn_models import with_draws

from lvmogp import LVMOGPRegressor
from lvmogp.inference.nuts.chains import SamplerSettings
from lvmogp.inference.nuts.parameters import Priors
from lvmogp.inference.nuts.sampling import sample_posterior
from lvmogp.model.layouts import standardised


def lines(n_conditions=6, n_each=5):
    """Lines whose slope is a feature, missing once, and whose offset is latent; measured with errors that are known."""
    rng = np.random.default_rng(42)
    slope, offset = np.linspace(-1, 1, n_conditions), rng.normal(size=n_conditions)
    numbers = np.repeat(np.arange(n_conditions), n_each)
    x = rng.uniform(-1, 1, len(numbers))
    errors = rng.uniform(0.02, 0.3, len(numbers))
    y = slope[numbers] * x + offset[numbers] + errors * rng.standard_normal(len(numbers))
    table = pd.DataFrame({"slope": np.where(np.arange(n_conditions) == 3, np.nan, slope)}, index=range(n_conditions))
    return x[:, None], y, numbers, table, errors


@pytest.fixture(scope="module")
def drawn():
    """A model with few draws of a short chain: what they are matters little, what is made of them does."""
    X, y, numbers, table, errors = lines()
    model = LVMOGPRegressor(
        1, inference="nuts", n_chains=2, n_warmup=30, n_draws=4, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=6
    )
    return model.fit(X, y, conditions=numbers, condition_features=table, y_std=errors)


def test_features_are_not_turned_when_draws_are_aligned(drawn):
    draws, known = drawn.model_.draws, drawn.model_.posterior.parameters.known
    aligned = np.asarray(drawn.model_.ensemble.latents @ drawn.model_.ensemble.rotations)
    np.testing.assert_array_equal(aligned[:, :, 1], np.asarray(draws.latents)[:, :, 1])
    others = np.arange(6) != 3
    np.testing.assert_array_equal(aligned[:, others, 1], np.tile(np.asarray(known.values)[others, 0], (8, 1)))
    assert np.ptp(aligned[:, 3, 1]) > 0.01  # the missing one was drawn
    np.testing.assert_array_equal(np.abs(aligned[:, :, 0]), np.abs(np.asarray(draws.latents)[:, :, 0]))


@pytest.mark.long
def test_without_latents_only_hyperparameters_are_drawn():
    X, y, numbers, table, errors = lines()
    model = LVMOGPRegressor(0, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=6)
    model.fit(X, y, conditions=numbers, condition_features=table.fillna(0.2), y_std=errors)
    trained = model.model_
    data = standardised(trained.observations, trained.scaling)
    settings = SamplerSettings(2, 30, 5, 0)
    with jax.enable_x64(True):
        draws, account = sample_posterior([trained.fit.outcome.parameters], data, Priors().checked(), settings)
    assert account.completed
    assert np.ptp(np.asarray(draws.latents), axis=0).max() == 0.0
    assert np.ptp(np.asarray(draws.noise_variance)) > 0
    model.model_ = with_draws(trained, draws)
    mean = model.predict(X, "new", condition_features={"new": {"slope": 0.4}})
    assert np.all(np.isfinite(mean))
    at = model.predict(X, 2)
    np.testing.assert_allclose(at, model.predict(X, "like 2", condition_features={"like 2": table.loc[2]}), rtol=1e-9)
