"""Parts of curves, and their shares of the variance, agree with dense algebra over all observations."""

import warnings
from unittest import mock

import drawn_models as drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_models import fitted, made_draws, with_draws
from numpy.testing import assert_allclose
from papers_model import PapersModel
from references import kernel_values
from small_models import build, rbf, replace

from lvmogp.conditions import parts as of_parts
from lvmogp.fitted.model import fitted_model
from lvmogp.fitted.parts import variances_of_parts
from lvmogp.insight.variance import in_words, variance_shares
from lvmogp.model.layouts import standardised
from lvmogp.model.parameters import Kernels, Term

NEW = np.array([[0.3], [1.1], [1.9]])
PARTS = {"all": ("shared", "latent", "own"), "paper": ("latent",), "no latents": ("shared", "own")}


def kernels_of(kind):
    latent = (Term(rbf([0.6], 1.1), rbf([1.4], 0.9)), Term(rbf([0.4], 0.3), rbf([0.8], 0.5)))
    shared, own = (Term(rbf([0.9], 0.7)),), rbf([0.5], 0.2)
    return {
        "all": Kernels((*latent, *shared), own),
        "paper": Kernels(latent[:1]),
        "no latents": Kernels(shared, own),
    }[kind]


def model_of(form, answers, kind="all", noise="per-condition"):
    """A model of some kind whose latents are nearly known; inducing points are all there are, so that it is exact."""
    model = drawn.forgetting(fitted(form, answers="fit", noise=noise))
    inner = model.model_
    data, parameters = standardised(inner.observations, inner.scaling), inner.posterior.parameters
    parameters = replace(
        parameters,
        kernels=kernels_of(kind),
        inducing_inputs=jnp.asarray(np.unique(inner.scaling.inputs(inner.observations.inputs), axis=0)),
        inducing_latents=parameters.latent_mean,
        latent_variance=jnp.full((5, 1), 1e-10),
        own_scale=jnp.asarray([0.5, 1.0, 2.0, 1.5, 0.8]) if form != "grid" and kind != "paper" else None,
    )
    trained = fitted_model(inner.schema, inner.scaling, inner.fit._replace(posterior=build(parameters, data)))
    with mock.patch("lvmogp.model.layouts._MOST_SCATTERED", 10 if form == "sparse" else 1_000):
        model.model_ = trained if answers == "fit" else with_draws(trained, made_draws(trained))
    return model


def processes(model):
    """Weight, kernels, latents, noise and ρ² of each process."""
    trained = model.model_
    if trained.draws is None:
        own = trained.posterior.parameters
        return [(1.0, own.kernels, own.latent_mean, own.noise_per_condition, own.own_per_condition)]
    draws = trained.draws
    return [
        (
            np.exp(float(draws.log_weight[s])),
            *(jax.tree.map(lambda leaf, s=s: leaf[s], draws.kernels), draws.latents[s]),
            *(draws.noise_per_condition[s], draws.own_per_condition[s]),
        )
        for s in range(draws.n_draws)
    ]


def covariances(process, points, numbers):
    """The prior covariance of each part between all rows."""
    _, kernels, latents, _, own = process
    found = {}
    for term in kernels.terms:
        among = kernel_values(term.input_kernel, points[:, None], points)
        if term.latent_kernel is None:
            found["shared"] = among
        else:
            h = np.asarray(latents)[numbers]
            found["latent"] = found.get("latent", 0.0) + among * kernel_values(term.latent_kernel, h[:, None], h)
    if kernels.own is not None:
        same = (numbers[:, None] == numbers) * np.asarray(own)[numbers]
        found["own"] = same * kernel_values(kernels.own, points[:, None], points)
    return found


def dense_parts(model, process, points, numbers):
    """Mean and covariance of each part at rows given all observations, by the matrix over all of these."""
    trained = model.model_
    seen = trained.observations
    whole = np.vstack([trained.scaling.inputs(seen.inputs), points]), np.concatenate([seen.conditions, numbers])
    priors, n_seen = covariances(process, *whole), len(seen.outputs)
    total = sum(priors.values())[:n_seen, :n_seen] + np.diag(np.asarray(process[3])[seen.conditions])
    outputs, found = trained.scaling.outputs(seen.outputs), {}
    for part, prior in priors.items():
        gain = np.linalg.solve(total, prior[:n_seen, n_seen:]).T
        found[part] = gain @ outputs, prior[n_seen:, n_seen:] - gain @ prior[:n_seen, n_seen:]
    return found


KINDS = [
    ("long", "fit", "all"),
    ("long", "fit", "no latents"),
    ("grid", "fit", "paper"),
    ("grid", "fit", "all"),
    ("long", "draws", "all"),
    ("long", "draws", "paper"),
    ("sparse", "draws", "all"),
    ("grid", "draws", "paper"),
]


@pytest.mark.parametrize(("form", "answers", "kind"), KINDS)
def test_sizes_of_parts_are_those_of_dense_gaussians(form, answers, kind):
    """Of a Gaussian z ~ N(m, C): ⟨zᵀBz⟩ = mᵀBm + tr BC, with variance 2 tr BCBC + 4 mᵀBCBm."""
    model = model_of(form, answers, kind)
    with mock.patch.object(of_parts, "_N_DRAWS", 6_000):
        found = variances_of_parts(model.model_)
    seen, given = model.model_.observations, processes(model)
    points, n_rows = model.model_.scaling.inputs(seen.inputs), len(seen.outputs)
    of_each = found.squares.reshape(len(given), -1, *found.squares.shape[1:])
    overall = of_each @ seen.counts / n_rows
    centring = np.eye(n_rows) - 1 / n_rows
    for s, process in enumerate(given):
        dense = dense_parts(model, process, points, seen.conditions)
        assert set(dense) == set(PARTS[kind])
        for place, part in enumerate(PARTS[kind]):
            mean, covariance = dense[part]
            mean, covariance = centring @ mean, centring @ covariance @ centring
            rows = mean**2 + np.diag(covariance)
            expected = np.bincount(seen.conditions, rows) / seen.counts
            variance = 2 * np.sum(covariance**2) + 4 * mean @ covariance @ mean
            n_each = of_each.shape[1]
            assert_allclose(np.mean(of_each[s, :, place], axis=0), expected, rtol=6 * np.sqrt(3 / n_each), atol=1e-4)
            assert_allclose(np.mean(overall[s, :, place]), rows.mean(), rtol=0.01 + 6 / np.sqrt(n_each), atol=1e-5)
            assert_allclose(np.std(overall[s, :, place]), np.sqrt(variance) / n_rows, rtol=0.15, atol=1e-5)
        assert_allclose(of_each[s, :, -1], np.broadcast_to(process[3], of_each[s, :, -1].shape))
    assert_allclose(found.counts, seen.counts)
    assert_allclose(found.weights.sum(), 1.0)


def test_shares_are_means_and_quantiles_of_drawn_sizes():
    model = model_of("long", "draws")
    found, drawn_sizes = variance_shares(model), variances_of_parts(model.model_)
    weights, sizes, counts = drawn_sizes
    assert list(found["part"]) == ["shared", "latent", "own", "noise"] * 6
    assert list(found["condition"][::4]) == [None, *"abcde"]
    for place in range(6):
        own = sizes @ counts / counts.sum() if place == 0 else sizes[:, :, place - 1]
        shares = own / own.sum(axis=1, keepdims=True)
        rows = found[4 * place : 4 * place + 4]
        assert_allclose(rows["share"], weights @ shares)
        assert rows["share"].sum() == pytest.approx(1.0)
        for part in range(4):
            lower, upper = rows["lower"].iloc[part], rows["upper"].iloc[part]
            assert weights[shares[:, part] < lower].sum() < 0.025 <= weights[shares[:, part] <= lower].sum() + 1e-12
            assert weights[shares[:, part] < upper].sum() < 0.975 <= weights[shares[:, part] <= upper].sum() + 1e-12
    assert found.equals(variance_shares(model))
    percent = [f"{100 * share:.0f} % {part}" for part, share in zip(found["part"][:4], found["share"][:4], strict=True)]
    assert in_words(found) == ", ".join(percent)


def test_shares_need_no_data_and_few_of_many_rows(monkeypatch):
    model = drawn.forgetting(fitted("long", answers="fit"))
    whole = variance_shares(model)
    assert list(whole["part"][:2]) == ["latent", "noise"]
    monkeypatch.setattr("lvmogp.fitted.parts._MOST_ROWS", 15)
    some = variance_shares(model)
    assert_allclose(some["share"][:2], whole["share"][:2], atol=0.05)
    without = drawn.forgetting(model)
    without.model_ = model.model_._replace(schema=model.model_.schema.without_rows())
    assert_allclose(variance_shares(without)["share"][:2], whole["share"][:2], atol=0.1)


def test_a_condition_without_observations_has_no_shares():
    x = np.linspace(0, 1, 6)
    y = np.column_stack([np.sin(3 * x), np.cos(3 * x), np.full(6, np.nan)])
    model = PapersModel(1, n_restarts=1, max_iter=3)
    with warnings.catch_warnings(action="ignore"):
        model.fit(x[:, None], y, conditions=["a", "b", "c"])
    assert set(variance_shares(model)["condition"]) == {None, "a", "b"}


# Curves of parts


@pytest.mark.parametrize(("form", "answers", "kind"), KINDS)
def test_parts_are_those_of_dense_gaussians(form, answers, kind):
    model = model_of(form, answers, kind)
    scaling = model.model_.scaling
    found = model.predict_parts(NEW, ["b", "b", "d"])
    assert list(found["part"]) == [part for part in PARTS[kind] for _ in range(3)]
    assert list(found["condition"]) == ["b", "b", "d"] * len(PARTS[kind])
    assert list(found["row"]) == [0, 1, 2] * len(PARTS[kind])
    given, numbers = processes(model), np.array([1, 1, 3])
    dense = [dense_parts(model, process, scaling.inputs(NEW), numbers) for process in given]
    weights = np.array([process[0] for process in given])
    for part in PARTS[kind]:
        means = np.array([each[part][0] for each in dense])
        variances = np.array([np.diag(each[part][1]) for each in dense])
        mean = weights @ means
        sd = np.sqrt(weights @ (variances + (means - mean) ** 2)) * scaling.output_scale
        rows = found[found["part"] == part]
        location = scaling.output_mean if part == PARTS[kind][0] else 0.0
        assert_allclose(rows["mean"], location + scaling.output_scale * mean, rtol=1e-3, atol=1e-3)
        assert_allclose(rows["sd"], sd, rtol=1e-2, atol=1e-3)
    assert_allclose(found.groupby("row")["mean"].sum(), model.predict(NEW, ["b", "b", "d"]), atol=1e-8)


@pytest.mark.parametrize(("form", "answers", "kind"), [KINDS[0], KINDS[2], KINDS[4]])
def test_parts_of_added_conditions_add_up(form, answers, kind):
    model = model_of(form, answers, kind).add_condition("new", NEW[:2], [0.4, -0.3])
    found = model.predict_parts(NEW, "new")
    mean, sd = model.predict(NEW, "new", return_std=True, include_noise=False)
    assert_allclose(found.groupby("row")["mean"].sum(), mean, atol=1e-8)
    if kind == "paper":
        assert_allclose(found["sd"], sd, rtol=1e-6)
    else:  # seen at two places, an own curve is known better there than nothing is
        own = found[found["part"] == "own"]["sd"].to_numpy()
        assert np.all(own[:2] < own[2])


def test_parts_of_a_grid_are_of_all_conditions_and_of_a_transform_of_that():
    found = model_of("grid", "fit").predict_parts(NEW)
    assert list(found["condition"][:15]) == [name for name in "abcde" for _ in range(3)]
    assert list(found["row"][:15]) == [0, 1, 2] * 5
    logs = drawn.forgetting(fitted("long", answers="fit", transform="log"))
    assert_allclose(
        logs.predict_parts(NEW, "b")["mean"], np.log(logs.predict_interval(NEW, "b", level=1e-9)[0]), atol=0.05
    )
