"""Noise that is pooled: what is not known of it, for trained, new and absorbed conditions and in files."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from drawn_models import fitted
from numpy.testing import assert_allclose
from scipy.stats import norm

from lvmogp.conditions.condition import mean_noise
from lvmogp.errors import ConvergenceWarning
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.fitted.model import fitted_model
from lvmogp.model.layouts import standardised
from lvmogp.model.posterior import posterior

X = np.array([[0.2], [0.9], [1.6]])


@pytest.fixture(scope="module")
def model():
    """Latents that are nearly known, so that noise is all there is to average over."""
    model = fitted("long", answers="fit", noise="per-condition", own=True)
    own = model.model_
    parameters = dataclasses.replace(
        own.posterior.parameters,
        latent_variance=jnp.full((5, 1), 1e-8),
        noise_spread=jnp.asarray(0.9),
        own_spread=jnp.asarray(0.4),
    )
    found = posterior(parameters, standardised(own.observations, own.scaling))
    model.model_ = fitted_model(own.schema, own.scaling, own.fit._replace(posterior=found))
    return model


def of_quadrature(model, name, outputs):
    """Density and probability of no larger outputs by Gauss–Hermite over log σ², and the mean of σ²."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(60)
    fit, number = model.model_.posterior, model.conditions_.index(name)
    logs = np.log(float(fit.parameters.noise_variance[number])) + float(fit.pooled.of_noise[number]) * nodes
    noise, weights = np.exp(logs) * model.model_.scaling.output_scale**2, masses / masses.sum()
    mean, sd = model.predict(X, name, return_std=True, include_noise=False)
    total = np.sqrt(sd[:, None] ** 2 + noise)
    values = outputs[:, None] - mean[:, None]
    return norm.pdf(values, scale=total) @ weights, norm.cdf(values, scale=total) @ weights, noise @ weights


@pytest.mark.parametrize("name", ["a", "c"])
def test_trained_conditions_average_over_their_noise(model, name):
    mean, sd = model.predict(X, name, return_std=True)
    _, function = model.predict(X, name, return_std=True, include_noise=False)
    for distance in (0.5, 2.0):
        outputs = mean + distance * sd
        density, below, noise = of_quadrature(model, name, outputs)
        assert_allclose(np.exp(model.log_predictive_density(X, outputs, name)), density, rtol=0.05)
        assert_allclose(1 - model.predictive_cdf(X, outputs, name), 1 - below, rtol=0.05)
        assert_allclose(sd**2, function**2 + noise, rtol=1e-9)
    far = mean + 5 * sd  # where tails are heavier than those of the normal distribution of the same moments
    gains = model.log_predictive_density(X, far, name) - norm.logpdf(far, mean, sd)
    assert np.all(gains > 0)
    assert np.max(gains) > 0.5
    cov = model.predict(X, name, return_cov=True)[1]
    assert_allclose(np.diag(cov), sd**2, rtol=1e-6)


def test_samples_have_the_noise_that_predictions_have(model):
    drawn = model.sample(X, "a", 4000, include_noise=True, random_state=0)
    sd = model.predict(X, "a", return_std=True)[1]
    drawn = drawn if drawn.shape[0] == len(X) else drawn.T
    assert_allclose(drawn.std(axis=1), sd, rtol=0.05)


def test_a_new_condition_has_the_spread_that_was_learnt_and_does_not_know_the_medians(model):
    prior, pooled = model.model_.ensemble.noise_prior, model.model_.posterior.pooled
    assert_allclose(prior.deviation[0] ** 2, 0.9**2 + pooled.of_median**2, rtol=1e-12)
    assert_allclose(prior.own_deviation[0] ** 2, 0.4**2 + pooled.of_own_median**2, rtol=1e-12)
    assert 0.1 < pooled.of_median < 1.5
    assert 0.1 < pooled.of_own_median < 1.5


def test_what_is_known_of_noise_stays_with_its_condition():
    """A condition of few observations knows least of its noise, wherever its name stands."""
    rng = np.random.default_rng(3)
    counts = [20, 3, 12, 16, 8]
    ids = np.repeat(np.arange(5), counts)
    x = rng.uniform(0, 1, (len(ids), 1))
    y = np.sin(4 * x[:, 0]) + 0.3 * ids * x[:, 0] + 0.1 * rng.standard_normal(len(ids))
    settings = {"n_latent": 1, "n_restarts": 1, "max_iter": 15, "input_kernel": "rbf", "latent_kernel": "linear"}
    with pytest.warns(ConvergenceWarning):
        model = LVMOGPRegressor(**settings).fit(x, y, conditions=ids)
    known = posterior(model.model_.posterior.parameters, standardised(model.model_.observations, model.model_.scaling))
    assert_allclose(model.model_.posterior.pooled.of_noise, known.pooled.of_noise, rtol=1e-9)
    assert np.argmax(known.pooled.of_noise) == 1


def test_absorbed_conditions_know_as_much_of_their_noise_as_before(model):
    x = np.linspace(0.1, 1.9, 12)[:, None]
    added = LVMOGPRegressor(**model.get_params(deep=False))
    added.model_, added.n_features_in_ = model.model_, 1
    added.add_condition("new", x, np.sin(2 * x[:, 0]))
    before = added.predict(X, "new")
    expected = mean_noise(added.model_.ensemble, added.model_.added["new"].condition)
    added.absorb()
    deviations = added.model_.posterior.pooled.of_noise
    assert deviations.shape == (6,)
    assert 0.1 < deviations[5] < model.model_.ensemble.noise_prior.deviation[0]
    assert_allclose(deviations[:5], model.model_.posterior.pooled.of_noise, rtol=1e-12)
    assert_allclose(added.predict(X, "new"), before, atol=0.1)
    assert_allclose(added.model_.ensemble.noise[0, 5], expected, rtol=1e-6)


def test_files_keep_what_is_not_known_of_noise(model, tmp_path):
    model.save(tmp_path / "model.lvmogp")
    loaded = LVMOGPRegressor.load(tmp_path / "model.lvmogp")
    assert_allclose(loaded.predict_interval(X, "a"), model.predict_interval(X, "a"), rtol=1e-9)
