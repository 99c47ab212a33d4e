"""Models to which conditions were added: how alike these are, and what is folded into the trained model for good."""

import dataclasses
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from drawn_models import (
    IDS,
    correlation,
    dense_ensemble,
    flat,
    forgetting,
    hermite,
    of_kind,
    trained_points,
    with_draws,
    with_made,
)

from lvmogp import LVMOGPRegressor
from lvmogp.conditions.condition import mean_noise
from lvmogp.conditions.joint import draw_curves
from lvmogp.errors import DataError
from lvmogp.model.layouts import long_data
from lvmogp.model.posterior import posterior

X_FEW = np.array([[0.2, 1.6], [0.9, -0.6], [1.6, -0.4]])
Y_FEW = np.array([0.1, 0.9, -0.4])
X_NEW = np.array([[0.3, 0.2], [1.1, 2.1], [1.9, -3.0]])


def extended(model: LVMOGPRegressor) -> LVMOGPRegressor:
    return with_made(with_made(model, "f", X_FEW, Y_FEW), "g", X_FEW[:1], Y_FEW[:1], seed=5)


# Similarities


def test_similarities_of_draws_are_averages_over_draws_and_particles():
    """A draw that hardly counts hardly shows."""
    for log_weight in (None, -300.0):
        model = forgetting(of_kind("draws on a grid"))
        if log_weight is not None:
            draws = model.model_.draws
            weighted = draws.log_weight.at[0].set(log_weight)
            model.model_ = with_draws(model.model_, dataclasses.replace(draws, log_weight=weighted))
        model = extended(model)
        found, dense = model.similarities(), dense_ensemble(model.model_)
        first, second = (model.model_.added[name].condition for name in "fg")
        among, to_trained, between, total = np.zeros((5, 5)), np.zeros(5), 0.0, 0.0
        for s, process in enumerate(dense.processes):
            kernel, trained = process.latent_kernel, dense.latents[s]
            h, other = np.asarray(first.latents)[s], np.asarray(second.latents)[s]
            among += dense.weights[s] * correlation(kernel, trained, trained)
            to_trained += first.weights[s] @ correlation(kernel, h, trained)
            if dense.weights[s] > 1e-100:
                pairs = correlation(kernel, h, other)
                between += first.weights[s] @ pairs @ second.weights[s] / dense.weights[s]
                total += first.weights[s].sum() * second.weights[s].sum() / dense.weights[s]
        np.testing.assert_allclose(found.to_numpy()[:5, :5] * (1 - np.eye(5)), among * (1 - np.eye(5)), rtol=1e-9)
        np.testing.assert_allclose(found.loc["f", list(IDS)].to_numpy(dtype=float), to_trained, rtol=1e-9)
        np.testing.assert_allclose([found.loc["g", "f"], found.loc["f", "g"]], between / total, rtol=1e-6)
        np.testing.assert_array_equal(np.diag(found), 1.0)


def test_similarities_of_a_fit_are_expected_correlations():
    model = forgetting(of_kind("fit on a grid", n_latent=2)).add_condition("f", X_FEW, Y_FEW, method="gaussian")
    found, dense = model.similarities(), dense_ensemble(model.model_)
    kernel, gaussian = dense.processes[0].latent_kernel, model.model_.added["f"].condition.gaussian
    nodes, masses = hermite(20, 2)
    points = [np.array([point.latent for point in trained_points(dense, d, nodes, masses)]) for d in range(5)]
    points.append(np.asarray(gaussian.mean[0]) + np.sqrt(gaussian.variance[0]) * nodes)
    for i, j in ((0, 3), (4, 1), (5, 2)):
        expected = masses @ correlation(kernel, points[i], points[j]) @ masses
        assert found.iloc[i, j] == pytest.approx(expected, rel=1e-9)
        assert found.iloc[j, i] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_array_equal(np.diag(found), 1.0)


# Absorbing


def test_a_model_that_absorbs_conditions_is_the_optimal_one_for_all_data():
    """Equation 23: q(v) is that of training on all rows with the same hyperparameters and these q(h)."""
    model = forgetting(of_kind("fit on a grid", noise="per-condition", features=True))
    model.add_condition("f", X_FEW, Y_FEW, y_std=[0.1, 0.0, 0.3], features={"load": 0.4})
    model.add_condition("g", X_FEW[:1], Y_FEW[:1], method="gaussian")
    added, entries, before = model.latents_.set_index("condition"), model.model_.added, model.model_
    absorbed = forgetting(model).absorb()
    assert absorbed.conditions_ == (*IDS, "f", "g")
    assert not absorbed.model_.added
    parameters, observations = absorbed.model_.posterior.parameters, absorbed.model_.observations
    latents = np.column_stack([parameters.latent_mean[5:, 0], np.sqrt(parameters.latent_variance)[5:, 0]])
    np.testing.assert_allclose(latents, added.loc[["f", "g"], ["mean_1", "sd_1"]].to_numpy(dtype=float), rtol=1e-9)
    expected = [mean_noise(before.ensemble, entries[name].condition) for name in "fg"]
    np.testing.assert_allclose(parameters.noise_variance[5:], expected, rtol=1e-9)
    known = float(before.condition_features.standardised(np.array([0.4]))[0])
    missing = float(entries["g"].condition.gaussian.mean[0, 1])
    np.testing.assert_allclose(np.asarray(flat(parameters).latent_mean)[5:, 1], [known, missing], rtol=1e-6)
    assert absorbed.model_.condition_features.ids[:7] == (*IDS, "f", "g")
    np.testing.assert_array_equal(parameters.known.missing_condition, [3, 6])
    np.testing.assert_array_equal(observations.conditions[-4:], [5, 5, 5, 6])
    np.testing.assert_array_equal(observations.errors[-4:], [0.1, 0.0, 0.3, 0.0])
    assert np.all(observations.errors[:-4] == 0)
    scaling = before.scaling
    data = long_data(
        scaling.inputs(observations.inputs),
        scaling.outputs(observations.outputs),
        observations.conditions,
        7,
        error_variances=scaling.error_variances(observations.errors, observations.outputs),
    )
    found, whole = absorbed.model_.posterior, posterior(dataclasses.replace(parameters, inducing=None), data)
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.covariance.precision(), whole.covariance.precision(), rtol=1e-6, atol=1e-6)
    assert np.all(np.isfinite(absorbed.predict(X_NEW, "g", return_std=True)[1]))


def test_what_absorb_leaves_alone(monkeypatch):
    model = of_kind("fit on a grid")
    assert forgetting(model).absorb().model_ is model.model_
    plain = extended(model)
    assert forgetting(plain).absorb().model_.observations.errors is None
    monkeypatch.setattr("lvmogp.fitted.model._MOST_DENSE", 12)
    assert forgetting(plain).absorb().conditions_[-1] == "g"
    monkeypatch.setattr("lvmogp.fitted.model._MOST_DENSE", 11)
    with pytest.raises(DataError, match="all 12 pairs of inducing points"):
        forgetting(plain).absorb()
    forgotten = forgetting(plain)
    forgotten.model_ = plain.model_._replace(schema=plain.model_.schema.without_rows())
    monkeypatch.setattr("lvmogp.fitted.model._MOST_DENSE", 4_000)
    assert forgotten.absorb().model_.observations is None


# Adding


def test_points_of_a_condition_added_earlier_join_the_new_ones():
    plain = of_kind("fit on a grid")
    whole = forgetting(plain).add_condition("f", X_FEW, Y_FEW, y_std=[0.0, 0.2, 0.1])
    parts = forgetting(plain).add_condition("f", X_FEW[:1], Y_FEW[:1])
    parts.add_condition("f", X_FEW[1:], Y_FEW[1:], y_std=[0.2, 0.1])
    np.testing.assert_array_equal(parts.model_.added["f"].errors, [0.0, 0.2, 0.1])
    expected = whole.predict(X_NEW, "f", return_std=True)
    for other in (parts, pickle.loads(pickle.dumps(whole))):
        np.testing.assert_allclose(other.predict(X_NEW, "f", return_std=True), expected, rtol=1e-12)
    backwards = with_made(plain, "f", X_FEW[1:], Y_FEW[1:], np.array([0.2, 0.1]))
    backwards.add_condition("f", X_FEW[:1], Y_FEW[:1])
    np.testing.assert_array_equal(backwards.model_.added["f"].errors, [0.2, 0.1, 0.0])


def test_every_draw_passes_through_a_point_without_noise():
    model = with_made(of_kind("fit on a grid"), "f", X_FEW[:1], Y_FEW[:1]).model_
    condition, scaling = model.added["f"].condition, model.scaling
    exact = dataclasses.replace(condition, noise=jnp.full_like(condition.noise, 1e-9), prepared=None)
    points = scaling.inputs(np.vstack([X_NEW[:2], X_FEW[:1]]))
    (curves,), _ = draw_curves(model.ensemble, [exact], [points], n_draws=30, rng=np.random.default_rng(46))
    # The jitter of two factorisations, 1e-7 of the variances, leaves a deviation of some 1e-3.
    np.testing.assert_allclose(curves[:, 2], scaling.outputs(Y_FEW[:1])[0], atol=3e-3)
    assert np.all(curves[:, :2].std(axis=0) > 0.05)
