"""Conditions of models with a shared curve and own curves, against dense Gaussians, quadrature and differences."""

import dataclasses
from functools import cache
from typing import NamedTuple

import dense_terms
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_terms import Dense, Exact, exact, given_seen, mixture_moments, optimal, rows
from drawn_models import IDS, KINDS, forgetting, made_condition, of_kind, with_made
from numpy.testing import assert_allclose
from references import hermite, kernel_values, log_normal

from lvmogp.conditions.condition import known_latents, mean_noises, trained_condition
from lvmogp.conditions.curves import few_observations
from lvmogp.conditions.infer import infer, log_posterior, summarised
from lvmogp.conditions.joint import Asked, Scenarios, draw_curves, given_scenario, joint_covariance
from lvmogp.conditions.predictive import condition_curves, trained_curves
from lvmogp.insight.summary import leave_out
from lvmogp.model.layouts import SparseData, standardised
from lvmogp.model.posterior import posterior
from lvmogp.model.process import own_of_fit

X_FEW, Y_FEW = np.array([[-0.9], [0.4]]), np.array([0.8, -0.5])
X_NEW = np.array([[-1.3], [-0.2], [0.5], [1.6]])
EVERY = {
    "fit on a grid": ("fit on a grid", "shared"),
    "fit on a grid, many noises": ("fit on a grid", "per-condition"),
    "fit on long data, many noises": ("fit on long data", "per-condition"),
    "draws on a grid": ("draws on a grid", "shared"),
    "draws on scattered data, many noises": ("draws on scattered data", "per-condition"),
    "sparse draws, many noises": ("sparse draws", "per-condition"),
}
FITS = [name for name in EVERY if name.startswith("fit")]
DRAWS = [name for name in EVERY if name not in FITS]


def model_of(name):
    kind, noise = EVERY[name]
    assert kind in KINDS
    return of_kind(kind, noise=noise, own=True, n_columns=1)


class Known(NamedTuple):
    """One process: what it is, and the latents, own variances and noise of the trained conditions in it."""

    process: Dense | Exact
    latents: np.ndarray
    own: np.ndarray
    noise: np.ndarray

    def trained(self, x, number, latent=None):
        return rows(x, self.latents[number] if latent is None else latent, number, self.own[number])


@cache
def dense_processes(name) -> list[Known]:
    model = model_of(name).model_
    x, y = model.scaling.inputs(model.observations.inputs), model.scaling.outputs(model.observations.outputs)
    numbers, parameters = model.observations.conditions, model.posterior.parameters
    observations = [(x[numbers == d], y[numbers == d]) for d in range(5)]
    if model.draws is None:
        own, noise = np.asarray(parameters.own_per_condition), np.asarray(parameters.noise_per_condition)
        return [Known(optimal(parameters, observations), np.asarray(parameters.latent_mean), own, noise)]
    found = []
    for s in range(model.draws.n_draws):
        draw = jax.tree.map(lambda leaf, s=s: leaf[s], model.draws)
        given = np.asarray(draw.latents), np.asarray(draw.own_per_condition), np.asarray(draw.noise_per_condition)
        data = model.ensemble.source.data
        if isinstance(data, SparseData):
            known = data.parameters(draw.kernels, draw.latents, draw.noise_variance, draw.own_per_condition)
            found.append(Known(optimal(known, observations), *given))
        else:
            found.append(Known(exact(draw.kernels, *given, observations), *given))
    return found


@pytest.mark.parametrize("name", EVERY)
def test_curves_in_one_scenario_are_those_of_the_dense_process(name):
    """Two trained conditions and one that was seen at two points, at latents, noise and scales that are given."""
    ensemble, latents = model_of(name).model_.ensemble, np.array([[0.4], [-0.8], [1.1]])
    for s, known in enumerate(dense_processes(name)[:2]):
        own = np.array([known.own[1], known.own[3], 1.7])
        noise = np.array([known.noise[1], known.noise[3], 0.04])
        seen = few_observations(X_FEW, Y_FEW)
        nothing = jax.tree.map(jnp.zeros_like, seen)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), nothing, nothing, seen)
        asked = Asked(jnp.asarray(np.stack([X_NEW] * 3)), jnp.array([1, 3, -1]), stacked)
        scenario = Scenarios(jnp.asarray(s), *map(jnp.asarray, (latents, noise, own)))
        process = jax.tree.map(lambda leaf, s=s: leaf[s], ensemble.processes)
        mean, covariance = given_scenario(process, scenario, asked)
        conditions = [rows(X_NEW, *each) for each in zip(latents, (1, 3, -1), own, strict=True)]
        if isinstance(known.process, Exact):  # which asks for the latents that belong to the data
            conditions[:2] = [known.trained(X_NEW, 1), known.trained(X_NEW, 3)]
            moved = np.vstack([known.latents[[1, 3]], latents[2:]])
            mean, covariance = given_scenario(process, dataclasses.replace(scenario, latents=jnp.asarray(moved)), asked)
        expected = given_seen(known.process, conditions, rows(X_FEW, latents[2], -1, 1.7), Y_FEW, 0.04)
        assert_allclose(mean, expected[0], rtol=1e-6, atol=1e-8)
        assert_allclose(covariance, expected[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", DRAWS)
def test_answers_of_draws_are_mixtures_over_draws_and_particles(name):
    """Of two trained conditions and a new one, jointly, one by one, and drawn."""
    ensemble, processes = model_of(name).model_.ensemble, dense_processes(name)
    condition = made_condition(ensemble, few_observations(X_FEW, Y_FEW))
    parts, weights = [], []
    for s, k in np.ndindex(*condition.noise.shape):
        known = processes[s]
        latent, noise, own = (np.asarray(each)[s, k] for each in (condition.latents, condition.noise, condition.own))
        asked = [known.trained(X_NEW, 1), known.trained(X_NEW, 3), rows(X_NEW, latent, -1, own)]
        parts.append(given_seen(known.process, asked, rows(X_FEW, latent, -1, own), Y_FEW, noise))
        weights.append(condition.weights[s, k])
    mean, covariance = mixture_moments(np.array(weights), parts)
    conditions = [*(trained_condition(ensemble, number) for number in (1, 3)), condition]
    found = joint_covariance(ensemble, conditions, [X_NEW] * 3)
    assert_allclose(found, covariance, rtol=1e-5, atol=1e-7)
    assert_drawn_from(ensemble, conditions, mean, covariance)
    together = trained_curves(ensemble, np.vstack([X_NEW, X_NEW]), np.repeat([1, 3], 4))
    for place, d in enumerate((1, 3)):
        alone = mixture_moments(ensemble.weights, [each.process.joint([each.trained(X_NEW, d)]) for each in processes])
        assert_moments(together, alone, slice(4 * place, 4 * place + 4), rtol=1e-6)
    assert_moments(condition_curves(ensemble, condition, X_NEW), (mean[8:], covariance[8:, 8:]), slice(4), rtol=1e-5)


def assert_moments(curves, expected, places, **tolerance):
    means, variances = np.asarray(curves.means[0])[:, places], np.asarray(curves.variances[0])[:, places]
    mean = curves.weights @ means
    assert_allclose(mean, expected[0], **tolerance)
    assert_allclose(curves.weights @ (variances + (means - mean) ** 2), np.diag(expected[1]), **tolerance)


def assert_drawn_from(ensemble, conditions, mean, covariance, n_draws=4_000):
    rng = np.random.default_rng(5)
    curves = np.hstack(draw_curves(ensemble, conditions, [X_NEW] * len(conditions), n_draws=n_draws, rng=rng)[0])
    deviations = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(curves.mean(axis=0) - mean) < 5 * deviations / np.sqrt(n_draws))
    assert np.all(np.abs(np.cov(curves.T) - covariance) < 8 * np.outer(deviations, deviations) / np.sqrt(n_draws))


@pytest.mark.parametrize("name", FITS)
def test_joint_answers_of_a_fit_are_averages_over_the_latents(name):
    """Those of trained conditions by quadrature; the library's quasi-random scenarios are close to that."""
    ensemble, (known,) = model_of(name).model_.ensemble, dense_processes(name)
    parameters = known.process.parameters
    (nodes, masses), (others, weights) = (dense_terms.latent_nodes(parameters, d, 6) for d in (1, 3))
    parts = [
        known.process.joint([known.trained(X_NEW, 1, node), known.trained(X_NEW, 3, other)])
        for node in nodes
        for other in others
    ]
    mean, covariance = mixture_moments(np.outer(masses, weights).ravel(), parts)
    conditions = [trained_condition(ensemble, number) for number in (1, 3)]
    assert_allclose(joint_covariance(ensemble, conditions, [X_NEW] * 2), covariance, atol=2e-3)
    assert_drawn_from(ensemble, conditions, mean, covariance)


@pytest.mark.parametrize("name", EVERY)
def test_the_density_of_a_new_condition_is_prior_times_likelihood(name):
    ensemble, seen = model_of(name).model_.ensemble, few_observations(X_FEW, Y_FEW)
    unknown, prior = known_latents(ensemble, 1), ensemble.noise_prior
    n_theta, rng = 1 + prior.n_unknown, np.random.default_rng(9)
    assert n_theta == 1 + {"shared": 0, "per-condition": 1 if "grid" in name else 2}[EVERY[name][1]]
    for s, known in enumerate(dense_processes(name)[:2]):
        process, own_prior = jax.tree.map(lambda leaf, s=s: leaf[s], (ensemble.processes, prior))
        target = jax.jit(log_posterior(process, seen, unknown, own_prior))
        for theta in rng.normal(size=(3, n_theta)):
            latent, noise, own = theta_of(own_prior, theta)
            mean, among = known.process.joint([rows(X_FEW, latent, -1, own)])
            height = log_normal(Y_FEW - mean, among + noise * np.eye(2)) - theta @ theta / 2
            # Two places are empty: observations of nothing with unit noise.
            assert_allclose(target(jnp.asarray(theta)), height - np.log(2 * np.pi), rtol=1e-6)


def test_many_observations_of_a_new_condition_enter_by_the_features_of_all_curves():
    """As in a sparse GP: with ρ²Q_o in place of ρ²K_o, and what is left of all variances as a penalty."""
    name, rng = "fit on long data, many noises", np.random.default_rng(10)
    ensemble, (known,) = model_of(name).model_.ensemble, dense_processes(name)
    x, y, parameters = rng.uniform(-1.5, 1.5, (40, 1)), rng.normal(size=40), known.process.parameters
    seen, own_features = summarised(ensemble, few_observations(x, y)), dense_terms.own_features_of(parameters, x)
    assert seen.compressed is not None
    process, prior = jax.tree.map(lambda leaf: leaf[0], (ensemble.processes, ensemble.noise_prior))
    target = jax.jit(log_posterior(process, seen, known_latents(ensemble, 1), prior))
    for theta in rng.normal(size=(3, 3)):
        latent, noise, own = theta_of(prior, theta)
        features = dense_terms.features_of(parameters, x, np.tile(latent, (40, 1)))
        low_rank, plain = own * own_features @ own_features.T, [rows(x, latent, -1, own)]
        for term in parameters.kernels.terms:
            of_inputs = dense_terms.whitened(term.input_kernel, np.asarray(parameters.inducing_inputs), x)
            scale = 1.0 if term.latent_kernel is None else kernel_values(term.latent_kernel, latent, latent)
            low_rank += scale * of_inputs @ of_inputs.T
        among = low_rank - features @ (np.eye(features.shape[1]) - known.process.variance) @ features.T
        left = np.trace(dense_terms.covariance_of_rows(parameters.kernels, plain, plain) - low_rank)
        height = log_normal(y - features @ known.process.mean, among + noise * np.eye(40)) - left / (2 * noise)
        assert_allclose(target(jnp.asarray(theta)), height - theta @ theta / 2, rtol=1e-6)


def theta_of(prior, theta):
    """Latent, σ² and ρ² at θ = (h, z)."""
    if prior.shared:
        return theta, float(np.exp(prior.mean)), 1.0
    relative = np.exp(float(prior.deviation) * theta[1])
    own = relative if prior.own_deviation is None else np.exp(float(prior.own_deviation) * theta[2])
    return theta[:1], float(np.exp(prior.mean) * relative), float(own)


@pytest.mark.parametrize("name", FITS)
def test_a_new_condition_is_what_a_grid_over_its_unknowns_says(name):
    ensemble, (known,) = model_of(name).model_.ensemble, dense_processes(name)
    prior = jax.tree.map(lambda leaf: leaf[0], ensemble.noise_prior)
    nodes, masses = hermite(5, prior.n_unknown) if prior.n_unknown else (np.empty((1, 0)), np.ones(1))
    found, heights, parts = [], [], []
    for h in np.linspace(-4, 4, 41):
        for node, mass in zip(nodes, masses, strict=True):
            latent, noise, own = theta_of(prior, np.append(h, node))
            seen = rows(X_FEW, latent, -1, own)
            mean, among = known.process.joint([seen])
            heights.append(log_normal(Y_FEW - mean, among + noise * np.eye(2)) - h**2 / 2 + np.log(mass))
            found.append([latent[0], np.log(noise), np.log(own)])
            parts.append(given_seen(known.process, [rows(X_NEW, latent, -1, own)], seen, Y_FEW, noise))
    weights = np.exp(np.array(heights) - np.max(heights))
    weights /= weights.sum()
    condition = infer(ensemble, few_observations(X_FEW, Y_FEW), known_latents(ensemble, 1))
    logs = np.stack([condition.latents[0, :, 0], np.log(condition.noise[0]), np.log(condition.own[0])], axis=1)
    assert_allclose(condition.weights[0] @ logs, weights @ np.array(found), atol=0.03)
    mean, covariance = mixture_moments(weights, parts)
    curves = condition_curves(ensemble, condition, X_NEW)
    assert_moments(curves, (mean, covariance), slice(4), atol=0.01)
    assert_allclose(joint_covariance(ensemble, [condition], [X_NEW]), covariance, atol=0.01)


@pytest.mark.parametrize("name", ["fit on long data, many noises", "draws on a grid", "sparse draws, many noises"])
def test_gradients_of_predictions_are_finite_differences(name):
    model = with_made(model_of(name), "f", np.array([[0.3], [1.2]]), np.array([0.5, -0.2]))
    x, step = np.array([[0.35], [0.9], [1.7]]), 1e-4
    for condition in ("b", "f"):
        gradients = model.predict_gradient(x, condition)
        ends = [model.predict(x + sign * step, condition, return_std=True) for sign in (1, -1)]
        by_mean, by_variance = ((ends[0][i] ** (i + 1) - ends[1][i] ** (i + 1)) / (2 * step) for i in (0, 1))
        assert_allclose(gradients[0][:, 0], by_mean, rtol=1e-5, atol=1e-6)
        assert_allclose(gradients[1][:, 0], by_variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FITS)
def test_an_absorbed_condition_is_as_if_trained(name):
    """q(v) and its own curve are those of all data, with these hyperparameters and latents."""
    model = forgetting(model_of(name)).add_condition("f", np.array([[0.3], [1.2]]), np.array([0.5, -0.2]))
    noise, own = mean_noises(model.model_.ensemble, model.model_.added["f"].condition)
    before = model.predict(np.array([[0.6], [1.9]]), "b", return_std=True)
    absorbed = forgetting(model).absorb().model_
    parameters, data = absorbed.posterior.parameters, standardised(absorbed.observations, absorbed.scaling)
    trained = model.model_.posterior.parameters
    assert_allclose(parameters.own_per_condition, [*trained.own_per_condition, own], rtol=1e-9)
    assert_allclose(parameters.noise_per_condition, [*trained.noise_per_condition, noise], rtol=1e-9)
    whole = posterior(parameters, data)
    assert_allclose(absorbed.posterior.mean, whole.mean, rtol=1e-6, atol=1e-7)
    assert_allclose(absorbed.posterior.covariance.precision(), whole.covariance.precision(), rtol=1e-6, atol=1e-6)
    for one, other in zip(
        jax.tree.leaves(absorbed.ensemble.fit.own), jax.tree.leaves(own_of_fit(whole, data)), strict=True
    ):
        assert_allclose(one, other, rtol=1e-6, atol=1e-8)
    kept = forgetting(model)
    kept.model_ = absorbed
    assert_allclose(kept.predict(np.array([[0.6], [1.9]]), "b", return_std=True), before, atol=0.1)
    assert kept.conditions_ == (*IDS, "f")


def test_a_measurement_that_is_suggested_tells_something():
    model = with_made(model_of("fit on long data, many noises"), "f", np.array([[0.3]]), np.array([0.5]))
    for condition in ("c", "f", "never seen"):
        found = model.suggest(condition, np.linspace(0, 2, 9)[:, None], 2)
        assert 0 < found.sd_after[1] < found.sd_after[0] < found.sd_before


@pytest.mark.parametrize("name", ["fit on long data, many noises", "draws on scattered data, many noises"])
def test_rows_left_out_are_predicted_from_the_others(name):
    """Own curves too know nothing of what is left out."""
    model, scaling = model_of(name), model_of(name).model_.scaling
    x, y = scaling.inputs(model.model_.observations.inputs), scaling.outputs(model.model_.observations.outputs)
    numbers, errors = model.model_.observations.conditions, np.empty(len(y))
    folds = np.random.default_rng(0).permutation(len(y)) % 5
    for place, d in enumerate(numbers):
        kept = folds != folds[place]
        observations = [(x[kept & (numbers == e)], y[kept & (numbers == e)]) for e in range(5)]
        mean = 0.0
        for known, weight in zip(dense_processes(name), model.model_.ensemble.weights, strict=True):
            nodes, masses, process = [known.latents[d]], np.ones(1), known.process
            if isinstance(process, Dense):
                nodes, masses = dense_terms.latent_nodes(process.parameters, d, 6)
                process = optimal(process.parameters, observations, 8)
            else:
                process = exact(process.kernels, known.latents, known.own, known.noise, observations)
            parts = [process.joint([known.trained(x[place][None], d, node)])[0][0] for node in nodes]
            mean += weight * masses @ parts
        errors[place] = mean - y[place]
    rmse = np.sqrt(np.mean(errors**2)) * scaling.output_scale
    assert_allclose(leave_out(model).rmse, rmse, rtol=2e-3 if name in FITS else 1e-7)
