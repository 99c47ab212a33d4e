"""Predictions of all kinds of ensembles against loops over dense processes, draws and points of latents."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import references
from drawn_models import (
    IDS,
    KINDS,
    DenseCondition,
    Mixed,
    dense_ensemble,
    fitted,
    forgetting,
    hermite,
    library_points,
    made_draws,
    mixed,
    nothing_seen,
    of_kind,
    trained_points,
    with_draws,
    with_made,
)
from papers_model import PapersModel
from references import Seen
from scipy.optimize import brentq
from scipy.stats import norm, ortho_group

import lvmogp.conditions.closed_form as closed_form
import lvmogp.conditions.ensemble as ensemble_module
import lvmogp.conditions.predictive as predictive
from lvmogp import LVMOGPRegressor
from lvmogp.conditions.ensemble import answering, chunks, ensemble_of_fit
from lvmogp.conditions.search import normal_nodes
from lvmogp.errors import DataError, LVMOGPWarning, SettingError
from lvmogp.model.layouts import standardised

NUMBERS = np.array([3, 0, 0, 4, 1, 2, 3])
X_NEW = np.array([[0.3, 0.2], [1.1, 2.1], [1.15, 2.5], [0.0, 3.0], [1.9, -3.0], [2.4, 2.6], [0.7, -2.8]])
NAMES = np.asarray(IDS)[NUMBERS]
X_FEW, Y_FEW = np.array([[0.2, 1.6], [0.9, -0.6]]), np.array([0.1, 0.9])


def rows_of(model: LVMOGPRegressor, X: np.ndarray, numbers: np.ndarray, *, closed: bool) -> Mixed:
    """The mixture of rows of trained conditions; of a fit by quadrature, or by the points that stand for q(h)."""
    dense, x = dense_ensemble(model.model_), model.model_.scaling.inputs(X)
    n_latent = dense.latents.shape[2]
    nodes, masses = hermite(30, n_latent) if closed else (normal_nodes(128, n_latent), np.full(128, 1 / 128))
    nothing = nothing_seen(X.shape[1])
    parts = [
        mixed(dense, DenseCondition(trained_points(dense, number, nodes, masses), nothing), row[None])
        for row, number in zip(x, numbers, strict=True)
    ]
    return Mixed(
        parts[0].weights,
        np.concatenate([part.means for part in parts], axis=1),
        np.stack([np.diag(own) for own in np.stack([part.covariances[:, 0, 0] for part in parts], axis=1)]),
        np.stack([part.noise[:, 0] for part in parts], axis=1),
    )


@functools.cache
def trained_rows(kind: str, closed: bool, transform: str | None = None) -> Mixed:
    return rows_of(of_kind(kind, noise=NOISES[kind], transform=transform), X_NEW, NUMBERS, closed=closed)


# Kinds of ensembles with the noise that each has here.
NOISES = dict(zip(KINDS, ["per-condition", "shared", "per-condition", "shared", "per-condition"], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_dense_processes(kind):
    model = of_kind(kind, noise=NOISES[kind])
    scaling = model.model_.scaling
    for include_noise in (True, False):
        mean, std = model.predict(X_NEW, NAMES, return_std=True, include_noise=include_noise)
        expected = trained_rows(kind, True).moments(include_noise=include_noise)
        np.testing.assert_allclose(mean, scaling.location(expected[0]), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(std**2, scaling.variance(expected[1]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["fit on a grid", "draws on a grid"])
def test_a_grid_is_predicted_as_its_rows_are(kind):
    model = of_kind(kind, noise="per-condition")
    for include_noise in (True, False):
        mean, std = model.predict(X_NEW, return_std=True, include_noise=include_noise)
        for place, name in enumerate(IDS):
            one_mean, one_std = model.predict(X_NEW, name, return_std=True, include_noise=include_noise)
            np.testing.assert_allclose(mean[:, place], one_mean, rtol=1e-9)
            np.testing.assert_allclose(std[:, place], one_std, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X_NEW), mean, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "transform"),
    [("fit on long data", None), ("fit on a grid", "log"), ("draws on a grid", "sqrt")],
)
def test_quantiles_densities_and_probabilities_are_those_of_the_mixture(kind, transform):
    model = of_kind(kind, noise=NOISES[kind], transform=transform)
    scaling, rows = model.model_.scaling, trained_rows(kind, False, transform)
    deviations = np.sqrt(rows.variances(include_noise=True))

    def below(value: float, row: int) -> float:
        return rows.weights @ norm.cdf(value, rows.means[:, row], deviations[:, row])

    lower, upper = model.predict_interval(X_NEW, NAMES, level=0.9)
    for ends, level in ((lower, 0.05), (upper, 0.95)):
        roots = [
            brentq(lambda value, row=row, level=level: below(value, row) - level, -20, 20, xtol=1e-12)
            for row in range(len(X_NEW))
        ]
        np.testing.assert_allclose(ends, scaling.quantity(np.asarray(roots)), rtol=1e-6, atol=1e-8)
    y = scaling.quantity(np.linspace(-1.0 if transform == "sqrt" else -1.5, 1.5, len(X_NEW)))
    z = scaling.outputs(y)
    found = model.predictive_cdf(X_NEW, y, NAMES)
    np.testing.assert_allclose(found, [below(z[row], row) for row in range(len(z))], rtol=1e-6)
    slope = {None: 1.0, "log": 1 / y, "sqrt": 0.5 / np.sqrt(np.abs(y))}[transform]
    density = rows.weights @ norm.pdf(z, rows.means, deviations) * slope / scaling.output_scale
    found = model.log_predictive_density(X_NEW, y, NAMES)
    np.testing.assert_allclose(found, np.log(density), rtol=1e-6, atol=1e-8)
    if transform is None:
        silent = (
            rows.weights @ norm.pdf(z, rows.means, np.sqrt(rows.variances(include_noise=False))) / scaling.output_scale
        )
        found = model.log_predictive_density(X_NEW, y, NAMES, include_noise=False)
        np.testing.assert_allclose(found, np.log(silent), rtol=1e-5, atol=1e-7)
    if transform == "log":  # the moments of each component are known
        centres = np.exp(scaling.location(rows.means) + scaling.variance(deviations**2) / 2)
        squares = centres**2 * np.exp(scaling.variance(deviations**2))
        mean, std = model.predict(X_NEW, NAMES, return_std=True)
        np.testing.assert_allclose(mean, rows.weights @ centres, rtol=1e-6)
        np.testing.assert_allclose(std**2, rows.weights @ squares - mean**2, rtol=1e-5)
        by_grid = model.predict(X_NEW, return_std=True)
        np.testing.assert_allclose(by_grid[1][range(len(X_NEW)), NUMBERS], std, rtol=1e-9)
    assert np.isnan(model.log_predictive_density(X_NEW[:1], [np.nan], NAMES[:1])).all()
    assert np.isnan(model.predictive_cdf(X_NEW[:1], [np.nan], NAMES[:1])).all()


# New conditions, as sums over their particles


def with_new(kind: str, transform: str | None = None) -> LVMOGPRegressor:
    y = np.exp(Y_FEW) if transform == "log" else Y_FEW
    return with_made(of_kind(kind, noise=NOISES[kind], transform=transform), "f", X_FEW, y, np.array([0.0, 0.1]))


def new_rows(model: LVMOGPRegressor, X: np.ndarray) -> Mixed:
    entry, scaling = model.model_.added["f"], model.model_.scaling
    variances = scaling.error_variances(entry.errors, entry.outputs)
    seen = Seen(scaling.inputs(entry.inputs), scaling.outputs(entry.outputs), variances)
    condition = DenseCondition(library_points(entry.condition), seen)
    return mixed(dense_ensemble(model.model_), condition, scaling.inputs(X))


@pytest.mark.parametrize("kind", ["fit on long data", "draws on a grid"])
def test_predictions_of_a_new_condition_are_sums_over_its_particles(kind):
    model = with_new(kind)
    rows, scaling = new_rows(model, X_NEW), model.model_.scaling
    for include_noise in (True, False):
        mean, variance = rows.moments(include_noise=include_noise)
        found = model.predict(X_NEW, "f", return_std=True, include_noise=include_noise)
        deviation = np.sqrt(scaling.variance(variance))
        np.testing.assert_allclose(found[0], scaling.location(mean), atol=1e-4 * deviation.max())
        np.testing.assert_allclose(found[1], deviation, rtol=1e-4)
    z = np.linspace(-1.5, 1.5, len(X_NEW))
    density = rows.weights @ norm.pdf(z, rows.means, np.sqrt(rows.variances(include_noise=True)))
    found = model.log_predictive_density(X_NEW, scaling.quantity(z), "f")
    np.testing.assert_allclose(found, np.log(density / scaling.output_scale), atol=1e-3)


@pytest.mark.parametrize(("kind", "transform"), [("fit on long data", None), ("draws on a grid", "log")])
def test_gradients_are_finite_differences(kind, transform):
    model = with_new(kind, transform)
    names, step = [*NAMES[:-2], "f", "f"], 1e-5
    by_mean, by_variance = model.predict_gradient(X_NEW, names)
    for column in range(2):
        move = step * np.eye(2)[column]
        ends = [model.predict(X_NEW + sign * move, names, return_std=True) for sign in (-1, 1)]
        np.testing.assert_allclose(by_mean[:, column], (ends[1][0] - ends[0][0]) / (2 * step), rtol=1e-4, atol=1e-5)
        slopes = (ends[1][1] ** 2 - ends[0][1] ** 2) / (2 * step)
        np.testing.assert_allclose(by_variance[:, column], slopes, rtol=1e-4, atol=1e-5)


# Given latents


def test_latents_are_aligned_before_they_are_averaged():
    model = of_kind("draws on a grid", n_latent=2)
    reference, aligned = np.asarray(model.model_.posterior.parameters.latent_mean), []
    for latents in np.asarray(model.model_.draws.latents):
        candidates = ortho_group.rvs(2, 4_000, random_state=1)
        losses = np.sum((latents @ candidates - reference) ** 2, axis=(1, 2))
        aligned.append(latents @ candidates[np.argmin(losses)])
    weights, table = np.exp(np.asarray(model.model_.draws.log_weight)), model.latents_
    mean = np.tensordot(weights, aligned, axes=1)
    np.testing.assert_allclose(table[["mean_1", "mean_2"]], mean, atol=5e-3)
    deviation = np.sqrt(np.tensordot(weights, (np.asarray(aligned) - mean) ** 2, axes=1))
    np.testing.assert_allclose(table[["sd_1", "sd_2"]], deviation, atol=5e-3)


def test_predictions_at_latents_turn_them_back_for_each_draw():
    model = of_kind("draws on a grid", n_latent=2, noise="per-condition")
    dense, turns, scaling = dense_ensemble(model.model_), model.model_.ensemble.rotations, model.model_.scaling
    H = np.random.default_rng(0).normal(size=(len(X_NEW), 2))
    H[3] = H[0]
    x = scaling.inputs(X_NEW)
    for latents in (H, H[:1]):
        own = np.broadcast_to(latents, H.shape)
        turned = [own @ np.asarray(turn).T for turn in turns]
        means = np.stack([process.mean(x, h) for process, h in zip(dense.processes, turned, strict=True)])
        noise = np.exp(np.mean(np.log(dense.noise), axis=1))
        spread = [np.diag(process.covariance(x, h, x, h)) for process, h in zip(dense.processes, turned, strict=True)]
        for include_noise in (True, False):
            mean, std = model.predict_at_latent(X_NEW, latents, return_std=True, include_noise=include_noise)
            expected = dense.weights @ means
            variance = np.stack(spread) + noise[:, None] * include_noise
            np.testing.assert_allclose(mean, scaling.location(expected), rtol=1e-7, atol=1e-7)
            total = dense.weights @ (variance + (means - expected) ** 2)
            np.testing.assert_allclose(std**2, scaling.variance(total), rtol=1e-6, atol=1e-8)


# Limits change what is computed at a time, and no answer


def all_answers(model: LVMOGPRegressor) -> list[np.ndarray]:
    names = ["a", "f", "f", "c", "e", "a", "f"]
    return [
        *model.predict(X_NEW, names, return_std=True),
        model.predict(X_NEW, names, return_cov=True)[1],
        *model.predict_gradient(X_NEW, names),
        *model.predict_at_latent(X_NEW, np.linspace(-1, 1, len(names))[:, None], return_std=True),
    ]


@pytest.mark.parametrize("kind", ["fit on a grid", "draws on a grid"])
def test_answers_do_not_depend_on_how_much_is_computed_at_a_time(kind, monkeypatch):
    whole = with_new(kind)
    expected, is_fit = all_answers(whole), kind == "fit on a grid"
    on_grid = whole.predict(X_NEW, return_std=True) if is_fit else ()
    monkeypatch.setattr(predictive, "_ROWS_AT_ONCE", 3)
    monkeypatch.setattr("lvmogp.conditions.curves._ROWS_OF_PARTICLES", 2)
    monkeypatch.setattr(closed_form, "_POINTS_AT_ONCE", 3)
    monkeypatch.setattr(closed_form, "_CONDITIONS_AT_ONCE", 2)
    size = 5 * 4**2 if is_fit else 2 * 12**2  # all curves; two draws of 7 + 5 inputs and conditions
    monkeypatch.setattr(ensemble_module, "_MOST_KEPT_ELEMENTS", size - is_fit)
    # The ensemble anew, which so keeps little.
    model = forgetting(whole)
    model.model_ = with_draws(whole.model_, whole.model_.draws)._replace(added=whole.model_.added)
    ensemble = model.model_.ensemble
    if is_fit:
        assert ensemble.fit.curves is None
        for found, values in zip(model.predict(X_NEW, return_std=True), on_grid, strict=True):
            np.testing.assert_allclose(found, values, rtol=1e-9)
        np.testing.assert_allclose(model.predict(X_NEW), on_grid[0], rtol=1e-9)
        monkeypatch.setattr(ensemble_module, "_MOST_KEPT_ELEMENTS", size)
        assert ensemble_of_fit(model.model_.posterior).fit.curves is not None
    else:
        assert ensemble.processes is None
        assert [len(some) for some, _ in chunks(ensemble)] == [2, 2, 2]
        for size, kept in ((6 * 12**2, True), (6 * 12**2 - 1, False)):
            monkeypatch.setattr(ensemble_module, "_MOST_KEPT_ELEMENTS", size)
            assert (with_draws(whole.model_, whole.model_.draws).ensemble.processes is not None) == kept
        monkeypatch.setattr(ensemble_module, "_MOST_KEPT_ELEMENTS", 2 * 12**2)
    for found, values in zip(all_answers(model), expected, strict=True):
        np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-8)


def test_rows_asked_many_times_over_are_the_same_rows():
    """Conditions at few different inputs, whose features are computed once."""
    model = of_kind("draws on a grid", noise="per-condition")
    rows, names = np.tile(X_NEW[:2], (40, 1)), np.asarray(IDS)[np.arange(80) % 5]
    mean, some = model.predict(rows, names), [3, 40, 79]
    np.testing.assert_allclose(mean[some], model.predict(rows[some], names[some]), rtol=1e-9)


@pytest.mark.parametrize(("form", "size"), [("grid", (7 + 5) ** 2), ("long", 24**2), ("sparse", (4 * 3) ** 2)])
def test_as_many_draws_answer_as_the_data_allow(form, size, monkeypatch):
    trained = fitted(form, answers="fit").model_
    draws, parameters = made_draws(trained, n_draws=600), trained.posterior.parameters
    if form == "sparse":
        monkeypatch.setattr("lvmogp.model.layouts._MOST_SCATTERED", 10)
    data = standardised(trained.observations, trained.scaling)
    assert answering(draws, data, parameters).n_draws == 512
    for elements, expected in ((size * 400, 400), (1, 256)):
        monkeypatch.setattr(ensemble_module, "_ELEMENTS_ANSWERING", elements)
        assert answering(draws, data, parameters).n_draws == expected
    if form == "grid":
        assert with_draws(trained, draws).ensemble.n_processes == 256


# What ensembles are made of


def test_draws_in_single_precision_are_answered_in_double():
    model = of_kind("draws on a grid", noise="per-condition")
    draws = jax.tree.map(lambda leaf: leaf.astype("float32") if leaf.dtype == jnp.float64 else leaf, model.model_.draws)
    narrow = forgetting(model)
    narrow.model_ = with_draws(model.model_, draws)
    assert narrow.model_.ensemble.dtype == "float64"
    found = narrow.predict(X_NEW, NAMES, return_std=True)
    np.testing.assert_allclose(found, model.predict(X_NEW, NAMES, return_std=True), rtol=1e-4, atol=1e-4)


def test_one_draw_without_weight_does_not_matter():
    """Whatever it says, here nothing or what the next draw does with a part of its weight."""
    model, found = of_kind("draws on a grid", noise="per-condition"), []
    draws, shares = model.model_.draws, np.exp(np.array(model.model_.draws.log_weight))
    copied = jax.tree.map(lambda leaf: leaf.at[0].set(leaf[1]), draws)
    for some, share in ((draws, 0.0), (copied, 0.4)):
        weights = np.array([share * shares[1], (1 - share) * shares[1], *shares[2:]]) / shares[1:].sum()
        with np.errstate(divide="ignore"):
            weighted = dataclasses.replace(some, log_weight=jnp.log(jnp.asarray(weights)))
        estimator = forgetting(model)
        estimator.model_ = with_draws(model.model_, weighted)
        found.append([*estimator.predict_interval(X_NEW, NAMES), *estimator.predict(X_NEW, NAMES, return_std=True)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8)


def test_a_condition_never_seen_is_the_prior():
    model = forgetting(of_kind("fit on a grid", noise="per-condition"))
    model.unseen = "prior"
    unseen = model.predict(X_NEW, "nobody", return_std=True)
    model.add_condition("nobody", [], [])
    np.testing.assert_allclose(unseen, model.predict(X_NEW, "nobody", return_std=True), rtol=1e-12)


def test_a_model_with_draws_says_what_it_cannot_do():
    model = with_new("draws on a grid")
    with pytest.raises(SettingError, match=r"method=.gaussian. is an answer of the variational fit"):
        model.add_condition("g", X_FEW, Y_FEW, method="gaussian")
    with pytest.raises(DataError, match="absorb"):
        model.absorb()
    model.remove_condition("f")
    assert model.conditions_ == IDS
    with pytest.raises(DataError, match="has not kept"):
        with_draws(model.model_._replace(schema=model.model_.schema.without_rows()), model.model_.draws)


# Known errors of measurements


@pytest.mark.parametrize("answers", ["fit", pytest.param("draws", marks=pytest.mark.long)])
def test_a_measurement_that_says_nothing_changes_nothing(answers):
    """However large its error; the precise one beside it counts as before."""
    model = forgetting(fitted("long", answers=answers))
    asked = [[0.4], [1.6]]
    model.add_condition("alone", [[0.4]], [0.9], y_std=1e-3)
    expected = model.predict(asked, "alone", return_std=True, include_noise=False)
    for error in (1e3, 1e9):
        model.add_condition("new", [[0.4], [0.5]], [0.9, -30.0], y_std=[1e-3, error])
        found = model.predict(asked, "new", return_std=True, include_noise=False)
        joint = model.predict(asked, ["new", "new"], return_cov=True, include_noise=False)[1]
        np.testing.assert_allclose(found, expected, rtol=1e-3)
        np.testing.assert_allclose(np.sqrt(np.diag(joint)), expected[1], rtol=1e-3)
        model.remove_condition("new")


def test_predictions_are_those_of_the_dense_gp_with_unequal_noise():
    """One curve, half of whose measurements are worth little."""
    rng = np.random.default_rng(54)
    x = np.sort(rng.uniform(-2, 2, 24))
    error = np.where(np.arange(24) % 2, 0.02, 0.8)
    y = np.sin(2 * x) + 0.05 * rng.standard_normal(24) + error * rng.standard_normal(24)
    model = PapersModel(n_latent=0, n_inducing_inputs=24)
    with pytest.warns(LVMOGPWarning, match="one condition only"):
        model.fit(x[:, None], y, condition_features=[[1.0]], y_std=error)
    parameters, scaling = model.model_.posterior.parameters, model.model_.scaling
    points = scaling.inputs(x[:, None])
    prior = float(parameters.kernels.of_latents[0].variance) * references.covariance(
        parameters.kernels.of_inputs[0], points, points
    )
    noise = float(parameters.noise_variance[0])
    covariance = prior + np.diag(noise + (error / scaling.output_scale) ** 2)
    gain = np.linalg.solve(covariance, prior).T
    mean, std = model.predict(x[:, None], return_std=True)
    np.testing.assert_allclose(mean, scaling.location(gain @ scaling.outputs(y)), atol=1e-4)
    variance = np.diag(prior - gain @ prior) + noise  # the noise σ² only: errors of measurements to come are not known
    np.testing.assert_allclose(std, np.sqrt(scaling.variance(variance)), rtol=1e-4)
    # Measurements that are worth little hardly pull.
    assert np.sqrt(np.mean((mean - np.sin(2 * x)) ** 2)) < 0.15
    assert np.sqrt(noise) * scaling.output_scale < 0.2


@pytest.mark.filterwarnings("ignore:predictions are not calibrated")
def test_held_out_measurements_are_judged_with_their_errors():
    model = with_made(of_kind("draws on a grid", noise="per-condition"), "f", X_FEW, Y_FEW)
    given = X_NEW, np.linspace(-1, 1, len(X_NEW)), [*NAMES[:-2], "f", "f"]
    errors = np.array([0.5, 0.0, 0.1, 0.9, 0.2, 0.7, 0.3])
    density, below = (ask(*given, y_std=errors) for ask in (model.log_predictive_density, model.predictive_cdf))
    changed = np.abs(density - model.log_predictive_density(*given)) > 1e-3
    np.testing.assert_array_equal(changed, errors > 0)
    found = model.calibration(*given, y_std=errors, levels=[0.5])
    assert found.log_density == pytest.approx(np.mean(density), rel=1e-9)
    assert found.coverage["coverage"][0] == np.mean(np.abs(2 * below - 1) <= 0.5)


def test_errors_of_a_grid_belong_to_its_columns():
    model = fitted("grid")
    inputs, rng = np.array([[0.3], [1.2]]), np.random.default_rng(5)
    y = pd.DataFrame(rng.normal(size=(2, 5)), columns=list("abcde"))
    errors = pd.DataFrame(rng.uniform(0, 1, (2, 5)), columns=list("abcde"))
    expected = [model.predictive_cdf(inputs, y[name], name, y_std=errors[name].to_numpy()) for name in errors.columns]
    for given in (errors, errors[list("edcba")], errors.to_numpy()):
        np.testing.assert_allclose(model.predictive_cdf(inputs, y, y_std=given), np.transpose(expected), rtol=1e-9)
