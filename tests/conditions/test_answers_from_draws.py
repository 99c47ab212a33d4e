"""Answers from posterior draws against dense matrices, a loop over draws and brute quadrature over latents."""

import json
import pickle

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_models import N_DRAWS, DenseDraw, correlation, dense_draws, fitted, forgetting, made_draws, mixed
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm, ortho_group
from typer.testing import CliRunner

import lvmogp.conditions.drawn_model
import lvmogp.insight.summary as diagnostics
from lvmogp import LVMOGPRegressor
from lvmogp.cli.app import app
from lvmogp.conditions.drawn_joint import _picked, _scenarios
from lvmogp.conditions.drawn_model import chunks, drawn_model
from lvmogp.conditions.mixtures import moments_in_units
from lvmogp.errors import DataError, SettingError
from lvmogp.fitted.model import with_draws
from lvmogp.ground.compiling import compiled
from lvmogp.insight.leave_out import _left_out
from lvmogp.insight.summary import input_relevance, latent_relevance, leave_out
from lvmogp.model.draws import chosen_places, thinned
from lvmogp.model.layouts import long_data
from lvmogp.model.process import SparseData, conditional
from lvmogp.plots import plot_new_condition
from lvmogp.plots.latent_space import main_dimensions
from lvmogp.storage.tensor_file import read, write
from lvmogp.tables.transforms import SquareRoot

FORMS = [("grid", "shared"), ("grid", "per-condition"), ("long", "shared"), ("long", "per-condition")]
NUMBERS = np.array([3, 0, 0, 4, 1, 2, 3])
X_NEW = np.array([[0.3], [1.1], [1.15], [0.0], [1.9], [2.4], [0.7]])
NAMES = np.asarray(list("abcde"))[NUMBERS]
CLOSE = {"rtol": 1e-8, "atol": 1e-8}


@pytest.mark.parametrize(
    ("form", "noise", "error"), [*((*form, None) for form in FORMS), ("grid", "per-condition", 0.3)]
)
def test_moments_are_those_of_dense_conditionals(form, noise, error):
    model = fitted(form, noise=noise, error=error)
    scaling = model.model_.scaling
    for include_noise in (True, False):
        mean, std = model.predict(X_NEW, NAMES, return_std=True, include_noise=include_noise)
        expected_mean, expected_variance = mixed(model, X_NEW, NUMBERS, include_noise=include_noise).moments
        np.testing.assert_allclose(mean, scaling.location(expected_mean), **CLOSE)
        np.testing.assert_allclose(std**2, scaling.variance(expected_variance), **CLOSE)


def test_a_grid_is_predicted_as_its_rows_are():
    model = fitted("grid")
    mean, std = model.predict(X_NEW, return_std=True)
    for place, name in enumerate("abcde"):
        one_mean, one_std = model.predict(X_NEW, name, return_std=True)
        np.testing.assert_allclose(mean[:, place], one_mean, rtol=1e-10)
        np.testing.assert_allclose(std[:, place], one_std, rtol=1e-10)
    np.testing.assert_allclose(model.predict(X_NEW), mean, rtol=1e-12)


@pytest.mark.parametrize("transform", [None, "log", "sqrt"])
def test_quantiles_densities_and_probabilities_are_those_of_the_mixture(transform):
    model = fitted("grid", transform=transform)
    scaling = model.model_.scaling
    found = mixed(model, X_NEW, NUMBERS, include_noise=True)
    deviations = np.sqrt(found.variances)

    def below(value, row):
        return found.weights @ norm.cdf(value, found.means[:, row], deviations[:, row])

    lower, upper = model.predict_interval(X_NEW, NAMES, level=0.9)
    for ends, level in ((lower, 0.05), (upper, 0.95)):
        roots = [
            brentq(lambda value, row=row, level=level: below(value, row) - level, -20, 20) for row in range(len(X_NEW))
        ]
        np.testing.assert_allclose(ends, scaling.quantity(np.asarray(roots)), rtol=1e-7)
    y = scaling.quantity(np.linspace(-1.0 if transform == "sqrt" else -1.5, 1.5, len(X_NEW)))
    z = scaling.outputs(y)
    np.testing.assert_allclose(
        model.predictive_cdf(X_NEW, y, NAMES), [below(z[row], row) for row in range(len(z))], rtol=1e-7
    )
    density = found.weights @ norm.pdf(z, found.means, deviations)
    slope = {None: 1.0, "log": 1 / y, "sqrt": 0.5 / np.sqrt(np.abs(y))}[transform]
    np.testing.assert_allclose(
        model.log_predictive_density(X_NEW, y, NAMES),
        np.log(density * slope / scaling.output_scale),
        rtol=1e-7,
        atol=1e-9,
    )
    assert np.isnan(model.log_predictive_density(X_NEW[:1], [np.nan], NAMES[:1])).all()
    assert np.isnan(model.predictive_cdf(X_NEW[:1], [np.nan], NAMES[:1])).all()


# First and second moments of y = t⁻¹(g), of Gaussian g and of jointly Gaussian pairs. Those of a square that ends at
# zero have tests of their own, against integrals.
MOMENTS = {
    "log": (
        lambda m, v: np.exp(m + v / 2),
        lambda m, v, c: np.exp(np.add.outer(m + v / 2, m + v / 2) + c),
    ),
    "sqrt": (
        lambda m, v: np.asarray(SquareRoot().mean(jnp.asarray(m), jnp.asarray(v))),
        lambda m, v, c: (
            np.outer(*2 * [SquareRoot().mean(jnp.asarray(m), jnp.asarray(v))])
            + SquareRoot().covariance(jnp.asarray(m), jnp.asarray(c))
        ),
    ),
}


@pytest.mark.parametrize("transform", MOMENTS)
def test_moments_of_a_transform_are_those_of_its_mixture(transform):
    model = fitted("grid", transform=transform)
    scaling, (first_of, second_of) = model.model_.scaling, MOMENTS[transform]
    found = mixed(model, X_NEW, NUMBERS, include_noise=True)
    means, variances = scaling.location(found.means), scaling.variance(found.variances)
    first = found.weights @ first_of(means, variances)
    squares = [np.diag(second_of(m, v, np.diag(v))) for m, v in zip(means, variances, strict=True)]
    second = found.weights @ np.asarray(squares)
    mean, std = model.predict(X_NEW, NAMES, return_std=True)
    np.testing.assert_allclose(mean, first, rtol=1e-8)
    np.testing.assert_allclose(std**2, second - first**2, rtol=1e-7)


@pytest.mark.parametrize(("form", "noise"), [FORMS[1], FORMS[2]])
def test_covariance_is_that_of_the_law_of_total_covariance(form, noise):
    model = fitted(form, noise=noise)
    scaling = model.model_.scaling
    x = scaling.inputs(X_NEW)
    draws = dense_draws(model)
    found = [draw.at(x, draw.latents[NUMBERS]) for draw in draws]
    weights = np.asarray([draw.weight for draw in draws])
    mean = sum(weight * item.mean for weight, item in zip(weights, found, strict=True))
    expected = sum(
        weight * (item.covariance + np.outer(item.mean - mean, item.mean - mean))
        for weight, item in zip(weights, found, strict=True)
    )
    _, joint = model.predict(X_NEW, NAMES, return_cov=True, include_noise=False)
    np.testing.assert_allclose(joint, scaling.variance(expected), **CLOSE)
    _, noisy = model.predict(X_NEW, NAMES, return_cov=True)
    noises = sum(draw.weight * draw.noise[NUMBERS] for draw in draws)
    np.testing.assert_allclose(noisy - joint, scaling.variance(np.diag(noises)), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("include_noise", [True, False])
@pytest.mark.parametrize(("form", "transform"), [("grid", "log"), ("long", "log"), ("grid", "sqrt")])
def test_covariance_of_a_transform_is_that_of_its_mixture(form, transform, include_noise):
    model = fitted(form, transform=transform)
    scaling, draws, (first_of, second_of) = model.model_.scaling, dense_draws(model), MOMENTS[transform]
    x = scaling.inputs(X_NEW)
    mean, second = np.zeros(len(x)), np.zeros((len(x), len(x)))
    for draw in draws:
        found = draw.at(x, draw.latents[NUMBERS])
        covariance = scaling.output_scale**2 * (found.covariance + np.diag(draw.noise[NUMBERS] * include_noise))
        located = scaling.output_mean + scaling.output_scale * found.mean
        mean += draw.weight * first_of(located, np.diag(covariance))
        second += draw.weight * second_of(located, np.diag(covariance), covariance)
    _, joint = model.predict(X_NEW, NAMES, return_cov=True, include_noise=include_noise)
    np.testing.assert_allclose(joint, second - np.outer(mean, mean), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("transform", [None, "sqrt"])
def test_samples_have_the_moments_of_the_predictions(transform):
    model = fitted("grid", noise="per-condition", transform=transform)
    mean, joint = model.predict(X_NEW, NAMES, return_cov=True)
    values = model.sample(X_NEW, NAMES, 4_000, include_noise=True, random_state=5)
    error = np.sqrt(np.diag(joint) / len(values))
    assert np.all(np.abs(values.mean(axis=0) - mean) < 4 * error)
    scale = np.sqrt(np.outer(np.diag(joint), np.diag(joint)))
    np.testing.assert_allclose(np.cov(values.T) / scale, joint / scale, atol=0.08)
    again = model.sample(X_NEW, NAMES, 4_000, include_noise=True, random_state=5)
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize("transform", [None, "log", "sqrt"])
@pytest.mark.long
def test_gradients_are_finite_differences(transform):
    model = forgetting(fitted("grid", transform=transform))
    model.add_condition("f", X_NEW[:2], model.predict(X_NEW[:2], "b"))
    names = [*NAMES[:-1], "f"]
    by_mean, by_variance = model.predict_gradient(X_NEW, names)
    step = 1e-5
    ends = [model.predict(X_NEW + sign * step, names, return_std=True) for sign in (-1, 1)]
    np.testing.assert_allclose(by_mean[:, 0], (ends[1][0] - ends[0][0]) / (2 * step), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        by_variance[:, 0], (ends[1][1] ** 2 - ends[0][1] ** 2) / (2 * step), rtol=1e-4, atol=1e-5
    )


def test_latents_are_aligned_before_they_are_averaged():
    model = fitted("grid", n_latent=2)
    reference = np.asarray(model.model_.posterior.parameters.latent_mean)
    aligned = []
    for draw in dense_draws(model):
        # The best of many turns, each improved by a few more nearby, is no better than the one used.
        candidates = ortho_group.rvs(2, 4_000, random_state=1)
        losses = np.sum((draw.latents @ candidates - reference) ** 2, axis=(1, 2))
        aligned.append(draw.latents @ candidates[np.argmin(losses)])
    weights = np.exp(np.asarray(model.model_.draws.log_weight))
    table = model.latents_
    mean = np.tensordot(weights, aligned, axes=1)
    np.testing.assert_allclose(table[["mean_1", "mean_2"]], mean, atol=5e-3)
    deviation = np.sqrt(np.tensordot(weights, (np.asarray(aligned) - mean) ** 2, axes=1))
    np.testing.assert_allclose(table[["sd_1", "sd_2"]], deviation, atol=5e-3)


def test_predictions_at_latents_turn_them_back_for_each_draw():
    model = fitted("grid", n_latent=2, noise="per-condition")
    turns = np.asarray(model.model_.drawn.rotations)
    H = np.random.default_rng(0).normal(size=(len(X_NEW), 2))
    H[3] = H[0]
    mean, std = model.predict_at_latent(X_NEW, H, return_std=True)
    x = model.model_.scaling.inputs(X_NEW)
    draws = dense_draws(model)
    found = [draw.at(x, H @ turn.T) for draw, turn in zip(draws, turns, strict=True)]
    weights = np.asarray([draw.weight for draw in draws])
    means = np.stack([item.mean for item in found])
    noise = np.asarray([np.exp(np.mean(np.log(draw.noise))) for draw in draws])
    variances = np.stack([np.diag(item.covariance) for item in found]) + noise[:, None]
    expected = weights @ means
    np.testing.assert_allclose(mean, model.model_.scaling.location(expected), rtol=1e-8, atol=1e-8)
    spread = weights @ (variances + means**2) - expected**2
    np.testing.assert_allclose(std**2, model.model_.scaling.variance(spread), rtol=1e-7)


# New conditions

X_FEW = np.array([[0.2], [0.9], [1.6]])
Y_FEW = np.array([0.1, 0.9, -0.4])


def brute_force(model, x_few, y_few, x, *, n_grid=401, noises=None):
    """Weights and curves over a fine grid of latents in every draw: the mixture itself, one latent dimension only."""
    scaling = model.model_.scaling
    x_few, y_few, x = scaling.inputs(x_few), scaling.outputs(y_few), scaling.inputs(x)
    grid = np.linspace(-5, 5, n_grid)[:, None]
    log_weights, found = [], []
    for draw in dense_draws(model):
        for noise, share in noises(draw) if noises else [(draw.noise[0], 1.0)]:
            for h in grid:
                likelihood = draw.log_likelihood(h, x_few, y_few, noise) if len(x_few) else 0.0
                log_weights.append(np.log(draw.weight * share) - h @ h / 2 + likelihood)
                item = draw.given(x, h, x_few, y_few, noise)
                found.append((item.mean, np.diag(item.covariance) + noise))
    weights = np.exp(np.asarray(log_weights) - logsumexp(log_weights))
    means, variances = (np.stack(part) for part in zip(*found, strict=True))
    mean = weights @ means
    variance = weights @ (variances + (means - mean) ** 2)
    return scaling.location(mean), np.sqrt(scaling.variance(variance))


def spread_noise(draw: DenseDraw):
    """log σ² of a new condition as the draw says that those of all are spread, by Gauss–Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    median, deviation = draw.noise_spread
    return list(zip(median * np.exp(deviation * nodes), weights / weights.sum(), strict=True))


@pytest.mark.parametrize(("form", "n_few"), [("grid", 3), ("grid", 1), ("grid", 0), ("long", 3)])
def test_a_new_condition_is_that_of_brute_force(form, n_few):
    model = forgetting(fitted(form)).add_condition("f", X_FEW[:n_few], Y_FEW[:n_few])
    mean, std = model.predict(X_NEW, "f", return_std=True)
    expected_mean, expected_std = brute_force(model, X_FEW[:n_few], Y_FEW[:n_few], X_NEW)
    np.testing.assert_allclose(mean, expected_mean, atol=0.03 * expected_std.max())
    np.testing.assert_allclose(std, expected_std, rtol=0.06)


def test_a_new_condition_with_noise_of_its_own_is_that_of_brute_force():
    model = forgetting(fitted("grid", noise="per-condition")).add_condition("f", X_FEW, Y_FEW)
    mean, std = model.predict(X_NEW, "f", return_std=True)
    expected_mean, expected_std = brute_force(model, X_FEW, Y_FEW, X_NEW, n_grid=101, noises=spread_noise)
    np.testing.assert_allclose(mean, expected_mean, atol=0.03 * expected_std.max())
    np.testing.assert_allclose(std, expected_std, rtol=0.06)


def test_draws_that_expected_the_observations_count_for_more():
    model = forgetting(fitted("grid")).add_condition("f", X_FEW, Y_FEW)
    scaling = model.model_.scaling
    x_few, y_few = scaling.inputs(X_FEW), scaling.outputs(Y_FEW)
    grid = np.linspace(-5, 5, 801)
    evidence = []
    for draw in dense_draws(model):
        logs = [draw.log_likelihood(np.array([h]), x_few, y_few, draw.noise[0]) + norm.logpdf(h) for h in grid]
        evidence.append(np.log(draw.weight) + logsumexp(logs))
    expected = np.exp(evidence - logsumexp(evidence))
    found = model.model_.added["f"].posterior.weights.sum(axis=1)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_a_condition_never_seen_is_the_prior_of_all_draws():
    model = forgetting(fitted("grid"))
    model.unseen = "prior"
    unseen = model.predict(X_NEW, "nobody", return_std=True)
    model.add_condition("nobody", [], [])
    for first, second in zip(unseen, model.predict(X_NEW, "nobody", return_std=True), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-12)
    _, joint = model.predict(X_NEW, ["a"] * 3 + ["nobody"] * 4, return_cov=True)
    assert np.linalg.eigvalsh(joint).min() > 0


@pytest.mark.long
def test_many_points_leave_little_doubt_about_a_condition():
    model = forgetting(fitted("grid"))
    rng = np.random.default_rng(0)
    X = np.linspace(0, 2, 16)[:, None]
    truth = model.predict(X, "d")
    model.add_condition("twin", X, truth + 0.05 * rng.standard_normal(len(X)))
    assert np.sqrt(np.mean((model.predict(X, "twin") - truth) ** 2)) < 0.05
    _, before = model.predict(X_NEW[:3], "d", return_std=True, include_noise=False)
    _, after = model.predict(X_NEW[:3], "twin", return_std=True, include_noise=False)
    assert np.all(after < before)


def test_joint_answers_with_new_conditions_are_those_of_dense_scenarios():
    # One draw and one particle alone, so that the joint distribution is one Gaussian.
    base = forgetting(fitted("grid"))
    draws = jax.tree.map(lambda leaf: leaf[:1], base.model_.draws)
    draws = type(draws)(**{**vars(draws), "log_weight": jnp.zeros(1)})
    base.model_ = with_draws(base.model_, draws)
    base.add_condition("f", X_FEW, Y_FEW)
    entry = base.model_.added["f"]
    found = entry.posterior
    heaviest = int(np.argmax(found.weights[0]))
    alone = jax.tree.map(lambda leaf: leaf[:, heaviest : heaviest + 1], (found.latents, found.aligned, found.noise))
    single = type(found)(*alone, jnp.zeros((1, 1)), found.seen)
    base.model_ = base.model_._replace(added={"f": entry._replace(posterior=single)})
    names = ["a", "f", "f", "c", "f", "a", "c"]
    mean, joint = base.predict(X_NEW, names, return_cov=True, include_noise=False)

    scaling = base.model_.scaling
    x, x_few, y_few = scaling.inputs(X_NEW), scaling.inputs(X_FEW), scaling.outputs(Y_FEW)
    (draw,) = dense_draws(base)
    h_new = np.asarray(single.latents)[0, 0]
    latents = np.stack([h_new if name == "f" else draw.latents["abcde".index(name)] for name in names])
    everything = draw.at(np.vstack([x, x_few]), np.vstack([latents, np.tile(h_new, (3, 1))]))
    # e = f(x, h) − W f(X, h) − Wε with W of rows of the new condition only
    is_new = np.asarray(names) == "f"
    noise = float(single.noise[0, 0])
    within = everything.covariance[7:, 7:] + noise * np.eye(3)
    gain = np.where(is_new[:, None], np.linalg.solve(within, everything.covariance[7:, :7]).T, 0)
    errors = np.hstack([np.eye(7), -gain])
    expected = errors @ everything.covariance @ errors.T + noise * gain @ gain.T
    np.testing.assert_allclose(joint, scaling.variance(expected), rtol=1e-5, atol=1e-7)
    expected_mean = everything.mean[:7] + gain @ (y_few - everything.mean[7:])
    np.testing.assert_allclose(mean, scaling.location(expected_mean), rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_joint_covariances_agree_with_marginal_ones_and_with_samples():
    model = forgetting(fitted("grid")).add_condition("f", X_FEW, Y_FEW).add_condition("g", X_FEW[:1], Y_FEW[:1])
    names = ["a", "f", "g", "c", "f", "a", "g"]
    _, std = model.predict(X_NEW, names, return_std=True)
    mean, joint = model.predict(X_NEW, names, return_cov=True)
    np.testing.assert_allclose(np.diag(joint), std**2, rtol=1e-10)
    values = model.sample(X_NEW, names, 3_000, include_noise=True, random_state=1)
    # Draws of all rows are weighted by what the new conditions say, which moves trained ones a little.
    np.testing.assert_allclose(np.corrcoef(values.T), joint / np.outer(std, std), atol=0.1)
    assert np.all(np.abs(values.mean(axis=0) - mean) < 0.3 * std)


def test_similarities_are_averages_over_draws_and_particles():
    model = forgetting(fitted("grid")).add_condition("f", X_FEW, Y_FEW).add_condition("g", X_FEW[:1], Y_FEW[:1])
    found = model.similarities()
    draws = dense_draws(model)
    expected = sum(draw.weight * correlation(draw.latent_kernel, draw.latents, draw.latents) for draw in draws)
    np.testing.assert_allclose(found.to_numpy()[:5, :5], expected, rtol=1e-10)
    first, second = (model.model_.added[name].posterior for name in "fg")
    to_trained = np.zeros(5)
    between, total = 0.0, 0.0
    for place, draw in enumerate(draws):
        h, other = np.asarray(first.latents)[place], np.asarray(second.latents)[place]
        to_trained += first.weights[place] @ correlation(draw.latent_kernel, h, draw.latents)
        between += (
            first.weights[place] @ correlation(draw.latent_kernel, h, other) @ second.weights[place] / draw.weight
        )
        total += first.weights[place].sum() * second.weights[place].sum() / draw.weight
    np.testing.assert_allclose(found.loc["f", list("abcde")].to_numpy(dtype=float), to_trained, rtol=1e-10)
    np.testing.assert_allclose(found.loc["g", "f"], between / total, rtol=1e-10)
    assert found.loc["f", "f"] == 1


# Forms of data


def test_the_sparse_form_with_all_points_inducing_is_exact(rng):
    model = fitted("long").model_
    inputs, outputs = model.scaling.inputs(model.observations.inputs), model.scaling.outputs(model.observations.outputs)
    data = SparseData(long_data(inputs, outputs, model.observations.conditions, 5), jnp.asarray(inputs), jnp.arange(5))
    x, h, other = rng.uniform(-2, 2, (4, 1)), rng.normal(size=1), rng.normal(size=1)

    @compiled
    def views(draw, points, latents):
        process = conditional(draw, data)
        a, (c, other_c) = process.input_features(points), process.latent_features(latents)
        return process.mean(a, c), process.explained(a, c, a, other_c), process.explained_variance(a, c)

    for number in range(2):
        draw = jax.tree.map(lambda leaf, number=number: leaf[number], model.draws)
        mean, between, own = views(draw, jnp.asarray(x), jnp.asarray([h, other]))
        dense = DenseDraw(model, number)
        latents = np.vstack([np.tile(h, (4, 1)), np.tile(other, (4, 1))])
        expected = dense.at(np.vstack([x, x]), latents)
        prior = dense.prior(np.vstack([x, x]), latents, np.vstack([x, x]), latents)
        explained = prior - expected.covariance
        np.testing.assert_allclose(mean, expected.mean[:4], atol=2e-5)
        np.testing.assert_allclose(between, explained[:4, 4:], atol=2e-5)
        np.testing.assert_allclose(own, np.diag(explained)[:4], atol=2e-5)


def test_many_observations_are_predicted_by_the_sparse_form(monkeypatch):
    exact = fitted("long")
    expected = exact.predict(X_NEW, NAMES, return_std=True)
    monkeypatch.setattr("lvmogp.model.layouts._MOST_SCATTERED", 10)
    sparse = forgetting(exact)
    sparse.model_ = with_draws(exact.model_, exact.model_.draws)
    assert isinstance(sparse.model_.drawn.data, SparseData)
    assert len(sparse.model_.drawn.data.inducing_conditions) == 3
    found = sparse.predict(X_NEW, NAMES, return_std=True)
    np.testing.assert_allclose(found[0], expected[0], atol=0.3)


@pytest.mark.long
def test_draws_too_large_to_keep_are_factorised_in_parts(monkeypatch):
    model = forgetting(fitted("long")).add_condition("f", X_FEW, Y_FEW)
    names = ["a", "f", "f", "c", "f", "a", "c"]
    expected = [*model.predict(X_NEW, names, return_std=True), model.predict(X_NEW, names, return_cov=True)[1]]
    draws = model.model_.draws
    monkeypatch.setattr(lvmogp.conditions.drawn_model, "_MOST_KEPT_ELEMENTS", 1_200)  # two draws of 24 rows
    model.model_ = with_draws(model.model_, draws)
    assert model.model_.drawn.kept is None
    assert [len(some) for some, _ in chunks(model.model_.drawn)] == [2, 2, 2]
    model.remove_condition("f").add_condition("f", X_FEW, Y_FEW)
    found = [*model.predict(X_NEW, names, return_std=True), model.predict(X_NEW, names, return_cov=True)[1]]
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-9)


# Wiring


def test_a_model_with_draws_says_what_it_cannot_do():
    model = forgetting(fitted("grid"))
    with pytest.raises(SettingError, match="method=.gaussian. is an answer of the variational fit"):
        model.add_condition("f", X_FEW, Y_FEW, method="gaussian")
    model.add_condition("f", X_FEW, Y_FEW)
    with pytest.raises(DataError, match="absorb"):
        model.absorb()
    model.remove_condition("f")
    assert model.conditions_ == tuple("abcde")
    with pytest.raises(DataError, match="has not kept"):
        with_draws(model.model_._replace(observations=None), model.model_.draws)


@pytest.mark.parametrize(("form", "noise"), [FORMS[1], FORMS[2]])
def test_a_file_keeps_draws_and_added_conditions(form, noise, tmp_path):
    model = forgetting(fitted(form, noise=noise)).add_condition("f", X_FEW, Y_FEW)
    model.save(tmp_path / "model.lvmogp")
    restored = LVMOGPRegressor.load(tmp_path / "model.lvmogp")
    names = [*NAMES[:-1], "f"]
    for other in (restored, pickle.loads(pickle.dumps(model))):
        for first, second in zip(
            other.predict(X_NEW, names, return_std=True), model.predict(X_NEW, names, return_std=True), strict=True
        ):
            np.testing.assert_allclose(first, second, rtol=1e-12)
    for first, second in zip(jax.tree.leaves(restored.model_.draws), jax.tree.leaves(model.model_.draws), strict=True):
        np.testing.assert_array_equal(first, second)
    with pytest.raises(SettingError, match="include_data"):
        model.save(tmp_path / "other.lvmogp", include_data=False)


def with_many_draws():
    model = forgetting(fitted("grid"))
    model.model_ = with_draws(model.model_, made_draws(model.model_, n_draws=600))
    return model


@pytest.mark.parametrize(("elements", "expected"), [(2**24, 512), (144 * 400, 400), (1, 256)])
def test_as_many_draws_answer_as_the_data_allow(elements, expected, monkeypatch):
    """Factors of one draw on a grid of seven inputs and five conditions are 12 × 12 numbers."""
    monkeypatch.setattr(lvmogp.conditions.drawn_model, "_ELEMENTS_ANSWERING", elements)
    model = with_many_draws()
    chosen = forgetting(fitted("grid"))
    chosen.model_ = with_draws(chosen.model_, thinned(model.model_.draws, expected))
    assert model.model_.drawn.n_draws == expected
    np.testing.assert_allclose(model.predict(X_NEW, NAMES), chosen.predict(X_NEW, NAMES), rtol=1e-12)


@pytest.mark.parametrize("written", ["now", "with other draws"])
def test_particles_of_an_added_condition_belong_to_the_draws_that_answer(written, tmp_path):
    """Where a file holds those of other draws, the condition is inferred anew from its observations."""
    model = with_many_draws().add_condition("f", X_FEW, Y_FEW)
    path = tmp_path / "model.lvmogp"
    model.save(path)
    content = read(path)
    np.testing.assert_array_equal(content.tensors["answering"], chosen_places(model.model_.draws, 512))
    if written == "with other draws":
        content.tensors["answering"] = np.roll(content.tensors["answering"], 1)
        content.tensors["added.0.1.posterior.latents"] += 1.0
        write(path, content)
    restored = LVMOGPRegressor.load(path)
    np.testing.assert_allclose(restored.predict(X_NEW, "f"), model.predict(X_NEW, "f"), rtol=1e-12)


def test_draws_in_single_precision_are_answered_in_double():
    model = fitted("grid")
    draws = jax.tree.map(lambda leaf: leaf.astype("float32") if leaf.dtype == jnp.float64 else leaf, model.model_.draws)
    narrow = forgetting(model)
    narrow.model_ = with_draws(model.model_, draws)
    for first, second in zip(
        narrow.predict(X_NEW, NAMES, return_std=True), model.predict(X_NEW, NAMES, return_std=True), strict=True
    ):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)


def test_one_draw_without_weight_does_not_matter():
    model = fitted("grid").model_
    draws = made_draws(model, seed=11)
    log_weight = np.asarray(draws.log_weight).copy()
    log_weight[0] = -np.inf
    log_weight -= logsumexp(log_weight)
    kept = type(draws)(**{**vars(draws), "log_weight": jnp.asarray(log_weight)})
    fewer = jax.tree.map(lambda leaf: leaf[1:], kept)
    found = []
    for some in (kept, fewer):
        estimator = forgetting(fitted("grid"))
        estimator.model_ = with_draws(model, some)
        found.append(estimator.predict_interval(X_NEW, NAMES))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
    assert len(draws.latents) == N_DRAWS
    assert drawn_model(kept, model.drawn.data, model.posterior.parameters).weights[0] == 0


def test_a_draw_that_hardly_counts_hardly_shows_in_joint_answers():
    """Its weight is the least that a chain can have (equation 34)."""
    model = forgetting(fitted("grid"))
    draws = model.model_.draws
    log_weight = np.asarray(draws.log_weight).copy()
    log_weight[0] = -300.0
    model.model_ = with_draws(model.model_, type(draws)(**{**vars(draws), "log_weight": jnp.asarray(log_weight)}))
    model.add_condition("f", X_FEW, Y_FEW).add_condition("g", X_FEW[:1], Y_FEW[:1])
    added = [model.model_.added[name].posterior for name in "fg"]
    scenarios = _scenarios(model.model_.drawn, added, np.random.default_rng(0).random((200, 3)))
    assert np.all(np.asarray(scenarios.draw) > 0)
    assert len(np.unique(scenarios.draw)) > 1
    first, second = (np.asarray(item.latents) for item in added)
    pairs = np.stack(
        [
            correlation(jax.tree.map(lambda leaf, s=s: leaf[s], draws.latent_kernel), first[s], second[s])
            for s in range(1, N_DRAWS)
        ]
    )
    own, other, base = added[0].weights[1:], added[1].weights[1:], np.exp(log_weight[1:])
    expected = np.einsum("sk,skl,sl,s->", own, pairs, other, 1 / base)
    expected /= np.sum(own.sum(axis=1) * other.sum(axis=1) / base)
    found = model.similarities()
    np.testing.assert_allclose(found.loc["f", "g"], expected, rtol=1e-6)


def test_uniform_numbers_never_pick_what_has_no_weight():
    np.testing.assert_array_equal(_picked(np.array([[0.0, 0.3, 0.7]]), np.array([0.0, 0.2, 0.999])), [1, 1, 2])


def test_the_command_line_works_on_a_file_with_draws(tmp_path):
    model = forgetting(fitted("grid")).set_params(condition="tyre")
    model.model_ = model.model_._replace(columns=("x",), output_name="y")
    path, rows = tmp_path / "model.lvmogp", tmp_path / "rows.csv"
    model.save(path)
    rows.write_text("x\n" + "\n".join(str(value) for value in X_NEW[:, 0]))
    points = [f"--point=x={x},y={y}" for x, y in zip(X_FEW[:, 0], Y_FEW, strict=True)]

    def answer(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    answer("add-condition", path, "--condition", "f", "--json", *points)
    model.add_condition("f", X_FEW, Y_FEW)
    found = pd.DataFrame(answer("predict", path, rows, "--condition", "f", "--json")["rows"])
    mean, std = model.predict(pd.DataFrame({"x": X_NEW[:, 0]}), "f", return_std=True)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(found["sd"], std, rtol=1e-9)
    listed = pd.DataFrame(answer("conditions", path, "--json")["conditions"])
    np.testing.assert_allclose(listed["mean_1"], model.latents_["mean_1"], rtol=1e-9)


# What a model says of itself


def test_points_left_out_are_predicted_by_draws_that_were_not_given_them():
    for form, error in (("grid", None), ("long", 0.3)):
        model = fitted(form, error=error)
        trained, n_folds = model.model_, 5
        observations = trained.observations
        places = np.arange(len(observations.outputs))
        if form == "grid":
            _, inverse = np.unique(observations.inputs, axis=0, return_inverse=True)
            places = inverse.reshape(-1)
        folds = (np.random.default_rng(0).permutation(places.max() + 1) % n_folds)[places]
        expected, variances = np.empty(len(folds)), np.empty(len(folds))
        for fold in range(n_folds):
            left_out = folds == fold
            rest = observations._replace(
                inputs=observations.inputs[~left_out],
                outputs=observations.outputs[~left_out],
                conditions=observations.conditions[~left_out],
                errors=None if error is None else observations.errors[~left_out],
            )
            some = forgetting(model)
            some.model_ = trained._replace(observations=rest)
            found = mixed(some, observations.inputs[left_out], observations.conditions[left_out], include_noise=True)
            mean, variance = found.moments
            expected[left_out], variances[left_out] = trained.scaling.location(mean), trained.scaling.variance(variance)
        rmse = np.sqrt(np.mean((expected - observations.outputs) ** 2))
        np.testing.assert_allclose(leave_out(model).rmse, rmse, rtol=1e-6)
        rows = _left_out(trained, n_folds).rows
        _, in_units = moments_in_units(rows, trained.scaling)
        np.testing.assert_allclose(in_units, variances + (error or 0.0) ** 2, rtol=1e-6)


def test_relevance_is_averaged_over_draws():
    model = fitted("grid", n_latent=2)
    trained, turns = model.model_, np.asarray(model.model_.drawn.rotations)
    rng = np.random.default_rng(0)
    n_rows = len(trained.observations.outputs)
    here, other = (rng.integers(n_rows, size=4_096) for _ in range(2))
    expected = np.zeros(3)
    for draw, turn in zip(dense_draws(model), turns, strict=True):
        points = np.hstack([draw.inputs, (draw.latents @ turn)[draw.conditions]])

        def mean(rows, draw=draw, turn=turn):
            to_data = draw.prior(rows[:, :1], rows[:, 1:] @ turn.T, draw.inputs, draw.latents[draw.conditions])
            return to_data @ draw.inverse @ draw.outputs

        values = mean(points[here])
        for q in range(3):
            moved = points[here].copy()
            moved[:, q] = points[other, q]
            expected[q] += draw.weight * np.mean((mean(moved) - values) ** 2) / (2 * np.var(values))
    found = [*input_relevance(model)["relevance"], *latent_relevance(model)["relevance"]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_noise_is_the_mean_over_draws():
    model = fitted("grid", noise="per-condition")
    variance = sum(draw.weight * draw.noise for draw in dense_draws(model))
    np.testing.assert_allclose(
        diagnostics.noise(model)["noise_sd"], np.sqrt(variance) * model.model_.scaling.output_scale
    )


@pytest.mark.parametrize("n_latent", [1, 2])
@pytest.mark.long
def test_plots_show_a_new_condition_under_draws(n_latent):
    model = fitted("grid", n_latent=n_latent)
    panels = plot_new_condition(model, X_FEW[:1], Y_FEW[:1], steps=[1])
    extended = forgetting(model).add_condition("f", X_FEW[:1], Y_FEW[:1])
    found = extended.model_.added["f"].posterior
    if n_latent == 1:
        line = panels[0, 0].lines[0]
        centre = np.average(line.get_xdata(), weights=line.get_ydata())
        np.testing.assert_allclose(centre, found.latent_mean[0], atol=0.05)
    else:
        shown = panels[0, 0].collections[0].get_offsets()
        first, second = (dimension - 1 for dimension in main_dimensions(extended))
        aligned = np.asarray(found.aligned).reshape(-1, 2)
        np.testing.assert_allclose(shown, aligned[:, [first, second]])
    plt.close("all")
