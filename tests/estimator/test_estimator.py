"""The estimator as users meet it: forms of data, predictions in their units, new conditions, files."""

import copy
import functools

import equinox as eqx
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from papers_model import PapersModel
from sklearn.metrics import r2_score

from lvmogp import RBF, ConvergenceWarning, DataError, LVMOGPRegressor, LVMOGPWarning, Periodic, UnknownConditionError

# One family of curves that all tests share, and with it the compiled programs: one latent says all.
D, N = 6, 12
NAMES = ["a", "b", "c", "d", "e", "f"]
FACTORS = np.linspace(-1.5, 1.5, D)
X = np.linspace(0.0, 10.0, N)[:, None]
X_NEW = np.array([[0.4], [2.7], [6.1], [9.3]])


def curve(x, factor):
    return np.sin(x + 0.5 * factor) * (1 + 0.3 * factor)


def grid(noise=0.05, seed=0):
    return curve(X, FACTORS) + noise * np.random.default_rng(seed).normal(size=(N, D))


Y = grid()
SPREAD = np.ptp(Y)


def long_form(y=Y, names=NAMES, x=X):
    return np.tile(x, (len(names), 1)), y.T.ravel(), [name for name in names for _ in range(len(x))]


def regressor(**settings):
    return PapersModel(**({"n_latent": 1, "n_restarts": 1, "random_state": 0} | settings))


def few_points(factor, count, seed=1):
    rng = np.random.default_rng(seed)
    x = np.vstack([[[0.5]], rng.uniform(0, 10, (count - 1, 1))])  # at .5 the curves differ most
    return x, curve(x[:, 0], factor) + 0.05 * rng.normal(size=count)


@functools.cache
def grid_model():
    """The model that is asked most questions; also those of other files."""
    return regressor().fit(X, Y, conditions=NAMES)


@pytest.fixture
def fitted():
    return grid_model()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "brakes.lvmogp"


@pytest.fixture
def model(fitted):
    return copy.copy(fitted)  # what is added to a copy does not reach the others


@pytest.fixture(scope="module")
def with_new():
    """The model with a condition "new" added from two points."""
    return copy.copy(grid_model()).add_condition("new", *few_points(0.9, 2))


# Forms of data


def noise_variance(model, name):
    with_noise = model.predict(X_NEW, name, return_std=True)[1]
    without = model.predict(X_NEW, name, return_std=True, include_noise=False)[1]
    return with_noise**2 - without**2


def test_curves_and_noise_are_found(fitted):
    errors = fitted.predict(X_NEW) - curve(X_NEW, FACTORS)
    assert np.sqrt(np.mean(errors**2)) < 0.05
    assert abs(np.corrcoef(fitted.latents_["mean_1"], FACTORS)[0, 1]) > 0.99
    variances = np.concatenate([noise_variance(fitted, name) for name in NAMES])
    assert_allclose(variances, variances[0], rtol=1e-6)
    assert 0.05 / 1.5 < np.sqrt(variances[0]) < 0.05 * 1.5


def test_the_three_forms_give_the_same_predictions(fitted, rng, path):
    x, y, ids = long_form()
    order = rng.permutation(len(y))
    long = regressor().fit(x[order], y[order], conditions=[ids[row] for row in order])
    table = pd.DataFrame({"x": x[order, 0], "tyre": [ids[row] for row in order]})
    frame = regressor(condition="tyre").fit(table, y[order])
    expected, std = fitted.predict(X_NEW, return_std=True)
    for column, name in enumerate(NAMES):
        rows = pd.DataFrame({"tyre": name, "x": X_NEW[:, 0]})
        for found in (long.predict(X_NEW, name, return_std=True), frame.predict(rows, return_std=True)):
            assert_allclose(found[0], expected[:, column], atol=1e-6 * SPREAD)
            assert_allclose(found[1], std[:, column], atol=1e-6 * SPREAD)
    long.save(path, include_data=False)  # also without data it is known that this was no grid
    for each in (long, LVMOGPRegressor.load(path)):
        with pytest.raises(DataError, match="predict needs to know the condition of each row: pass conditions="):
            each.predict(X_NEW)


def test_a_grid_with_gaps_equals_its_observed_cells_in_long_form():
    y = Y.copy()
    y[[0, 3, 3, 11], [1, 0, 5, 2]] = np.nan
    x, values, ids = long_form(y)
    with pytest.warns(LVMOGPWarning, match="4 of 72 rows have no output"):
        long = regressor().fit(x, values, conditions=ids)
    gappy = regressor().fit(X, y, conditions=NAMES)
    for column, name in enumerate(NAMES):
        assert_allclose(gappy.predict(X_NEW)[:, column], long.predict(X_NEW, name), atol=1e-6 * SPREAD)
    hidden = gappy.predict(X[[0, 3, 3, 11]], ["b", "a", "f", "c"])
    assert_allclose(hidden, curve(X[[0, 3, 3, 11], 0], FACTORS[[1, 0, 5, 2]]), atol=0.15)


@pytest.mark.parametrize(("of_x", "of_y"), [((1e6, 1e9), (-1e-5, -4.0)), ((1e-5, -4.0), (1e6, 1e9))])
def test_answers_are_in_the_units_of_the_user_and_do_not_depend_on_them(fitted, of_x, of_y):
    (x_scale, x_shift), (scale, shift) = of_x, of_y
    model = regressor().fit(X * x_scale + x_shift, Y * scale + shift, conditions=NAMES)
    x = X_NEW * x_scale + x_shift
    mean, std = model.predict(x, return_std=True)
    expected_mean, expected_std = fitted.predict(X_NEW, return_std=True)
    assert_allclose((mean - shift) / scale, expected_mean, atol=1e-5 * SPREAD)
    assert_allclose(std / abs(scale), expected_std, rtol=1e-4)
    by_mean, by_variance = model.predict_gradient(x, "b")
    expected = fitted.predict_gradient(X_NEW, "b")
    assert_allclose(by_mean * x_scale / scale, expected[0], atol=1e-5 * SPREAD)
    assert_allclose(by_variance * x_scale / scale**2, expected[1], atol=1e-5 * np.abs(expected[1]).max() + 1e-8)
    _, cov = model.predict(x, "b", return_cov=True)
    _, expected_cov = fitted.predict(X_NEW, "b", return_cov=True)
    assert_allclose(cov / scale**2, expected_cov, atol=1e-4 * expected_cov.max())
    ends = (np.array(model.predict_interval(x, "b")) - shift) / scale
    assert_allclose(np.sort(ends, axis=0), fitted.predict_interval(X_NEW, "b"), atol=1e-4 * SPREAD)
    density = model.log_predictive_density(x, np.full(4, 0.3) * scale + shift, "b")
    expected_density = fitted.log_predictive_density(X_NEW, np.full(4, 0.3), "b")
    assert_allclose(density + np.log(abs(scale)), expected_density, rtol=1e-3)


# Answers


def test_score_is_the_coefficient_of_determination(fitted, rng):
    y = Y + 0.3 * rng.normal(size=Y.shape)
    assert fitted.score(X, y) == pytest.approx(r2_score(y.ravel(), fitted.predict(X).ravel()), rel=1e-12)
    assert fitted.score(X, y[:, 1], conditions="b") == pytest.approx(r2_score(y[:, 1], fitted.predict(X, "b")))
    weights = rng.random(N)
    weighted = r2_score(y[:, 1], fitted.predict(X, "b"), sample_weight=weights)
    assert fitted.score(X, y[:, 1], weights, conditions="b") == pytest.approx(weighted)
    y[3:7, 2] = np.nan  # what is missing does not count
    known = np.isfinite(y)
    assert fitted.score(X, y) == pytest.approx(r2_score(y[known], fitted.predict(X)[known]))


def test_moments_of_many_conditions_are_made_when_they_are_asked_for(model):
    """Where there are very many, none are kept."""
    questions = [{}, {"conditions": ["b", "a", "f", "b"]}]
    expected = [model.predict(X_NEW, **asked, return_std=True) for asked in questions]
    ensemble = eqx.tree_at(lambda tree: tree.fit.curves, model.model_.ensemble, None)
    model.model_ = model.model_._replace(ensemble=ensemble)
    for asked, before in zip(questions, expected, strict=True):
        assert_allclose(model.predict(X_NEW, **asked, return_std=True), before, rtol=1e-10)


def test_the_tables_of_latents_and_similarities_name_each_condition(with_new, fitted):
    table = with_new.latents_
    assert list(table.columns) == ["condition", "mean_1", "sd_1", "added"]
    assert list(table["condition"]) == [*NAMES, "new"]
    assert list(table["added"]) == [False] * D + [True]
    assert_array_equal(table[["mean_1", "sd_1"]][:D], fitted.latents_[["mean_1", "sd_1"]])
    # The new factor .9 is that of "e": it lies nearest to it.
    distance = np.abs(table["mean_1"] - table["mean_1"][D])[:D]
    assert distance.idxmin() == 4
    assert table["sd_1"][D] > 2 * table["sd_1"][:D].max()
    similarities = with_new.similarities()
    assert list(similarities.index) == list(similarities.columns) == [*NAMES, "new"]
    assert np.all(np.diff(similarities.to_numpy()[0, :D]) < 0)


def test_a_condition_added_from_no_points_is_the_prior(model):
    prior = copy.copy(model).set_params(unseen="prior")
    model.add_condition("empty", np.empty((0, 1)), [])
    model.add_condition("missing", [[1.0]], [np.nan])
    model.add_condition("list", [], [])
    for name in ("empty", "missing", "list"):
        assert_array_equal(
            model.predict(X_NEW, name, return_std=True), prior.predict(X_NEW, "never seen", return_std=True)
        )
    assert abs(model.latents_["mean_1"][D]) < 0.05
    assert model.latents_["sd_1"][D] == pytest.approx(1, abs=0.05)


# New conditions


def test_several_conditions_at_once_are_the_same_as_one_after_the_other(model):
    (x1, y1), (x2, y2) = few_points(0.7, 3), few_points(-0.4, 2)
    in_turn = copy.copy(model).add_condition(1, x1, y1).add_condition(2, x2, y2)
    mixed = np.r_[0, 3, 1, 4, 2]  # rows of both, in turn
    x, y, ids = np.vstack([x1, x2])[mixed], np.r_[y1, y2][mixed], np.array([1, 1, 1, 2, 2])[mixed]
    at_once = copy.copy(model).add_conditions(x, y, ids)
    column = model.set_params(condition="tyre").add_conditions(pd.DataFrame({"x": x[:, 0], "tyre": ids}), y)
    for name in (1, 2):
        expected = in_turn.predict(X_NEW, name, return_std=True)
        assert_array_equal(at_once.predict(X_NEW, name, return_std=True), expected)
        assert_array_equal(column.predict(pd.DataFrame({"x": X_NEW[:, 0], "tyre": name})), expected[0])


def test_a_removed_condition_is_forgotten(model):
    x, y = few_points(0.7, 3)
    before = model.add_condition("new", x, y).predict(X_NEW, "new")
    model.add_condition("other", x, y).remove_condition("new")
    assert model.conditions_ == (*NAMES, "other")
    with pytest.raises(UnknownConditionError, match="condition 'new' is not known"):
        model.predict(X_NEW, "new")
    assert_array_equal(model.add_condition("new", x, y).predict(X_NEW, "new"), before)


# Files


def test_a_loaded_model_is_the_same_bit_by_bit_and_takes_in_new_conditions(with_new, path):
    model = copy.copy(with_new)
    model.save(path)
    loaded = LVMOGPRegressor.load(path)
    x, y = few_points(-0.6, 3)
    for each in (model, loaded):
        each.add_condition("other", x, y).add_condition("new", x[:1], y[:1])
    for name in ("a", "other", "new"):
        assert_array_equal(
            loaded.predict(X_NEW, name, return_cov=True)[1], model.predict(X_NEW, name, return_cov=True)[1]
        )
        assert_array_equal(loaded.predict_interval(X_NEW, name), model.predict_interval(X_NEW, name))
    pd.testing.assert_frame_equal(loaded.latents_, model.latents_)
    assert loaded.outcome_.history == model.outcome_.history
    assert loaded.bounds_by_n_latent_ == model.bounds_by_n_latent_
    assert_array_equal(loaded.absorb().predict(X_NEW), model.absorb().predict(X_NEW))


# Settings


def test_noise_per_condition_is_recovered():
    rng = np.random.default_rng(2)
    x = np.linspace(0, 10, 40)[:, None]
    deviations = np.array([0.03, 0.3, 0.03, 0.3, 0.1, 0.03])
    y = curve(x, FACTORS) + deviations * rng.normal(size=(40, D))
    model = regressor(noise="per-condition", n_inducing_inputs=12).fit(x, y, conditions=NAMES)
    for name, deviation in zip(NAMES, deviations, strict=True):
        assert_allclose(noise_variance(model, name), noise_variance(model, name)[0], rtol=1e-5)
        assert 1 / 3 < noise_variance(model, name)[0] / deviation**2 < 3


def test_the_number_of_latent_dimensions_is_chosen_by_the_bound(fitted):
    model = regressor(n_latent="auto").fit(X, Y, conditions=NAMES)
    assert model.n_latent_ == 1
    assert list(model.bounds_by_n_latent_) == [1, 2]
    assert model.bounds_by_n_latent_[2] < model.bounds_by_n_latent_[1] + 1
    assert model.outcome_.bound == model.bounds_by_n_latent_[1]
    assert_array_equal(model.predict(X_NEW), fitted.predict(X_NEW))


def test_kernels_are_in_the_units_of_the_inputs():
    def at_scale(scale):
        kernel = RBF(2.0 * scale, fixed="lengthscale") + Periodic(2 * np.pi * scale)
        return regressor(input_kernel=kernel).fit(X * scale, Y, conditions=NAMES)

    plain, scaled = at_scale(1.0), at_scale(32.0)  # by which nothing is rounded
    for model, scale in ((plain, 1.0), (scaled, 32.0)):
        smooth, periodic = model.model_.posterior.parameters.kernels.of_inputs[0].terms
        unit = model.model_.scaling.input_scale
        assert_allclose(smooth.lengthscale * unit, 2.0 * scale, rtol=1e-12)
        assert_allclose(periodic.period * unit, 2 * np.pi * scale, rtol=1e-12)
    assert_allclose(scaled.predict(X_NEW * 32), plain.predict(X_NEW), atol=1e-9 * SPREAD)
    # The curves repeat, and the kernel knows when.
    assert_allclose(plain.predict(X_NEW + 2 * np.pi), curve(X_NEW, FACTORS), atol=0.25)


@pytest.mark.parametrize("inference", [pytest.param("full", marks=pytest.mark.long), "kronecker"])
def test_explicit_inference_predicts_like_the_collapsed(fitted, inference):
    model = regressor(inference=inference, n_inducing_inputs=8).fit(X, Y, conditions=NAMES)
    mean, std = model.predict(X_NEW, return_std=True)
    expected_mean, expected_std = fitted.predict(X_NEW, return_std=True)
    assert model.outcome_.bound < fitted.outcome_.bound + 0.1
    assert_allclose(mean, expected_mean, atol=0.1)
    assert_allclose(std, expected_std, rtol=0.3)


def test_a_fit_cut_short_says_so_in_words_and_leaves_everything_else_alone(capfd):
    x, y, ids = X.copy(), Y.copy(), NAMES.copy()
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state others use
    text = r"the fit did not converge: stopped at the iteration limit \(2 iterations in all\). Predictions can be used"
    with pytest.warns(ConvergenceWarning, match=text):
        model = regressor(max_iter=2, random_state=None).fit(x, y, conditions=ids)
    assert not model.outcome_.converged
    assert len(model.outcome_.history) == 2
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert_array_equal(x, X)
    assert_array_equal(y, Y)
    assert ids == NAMES
    assert capfd.readouterr() == ("", "")


def test_the_outcome_accounts_for_the_fit(fitted):
    outcome = regressor(n_restarts=2).fit(X, Y, conditions=NAMES).outcome_
    assert outcome.converged
    assert [restart.recipe for restart in outcome.restarts] == ["isomap of 8 neighbours", "random latents"]
    assert outcome.bound == max(restart.bound for restart in outcome.restarts)
    assert outcome.restarts[0].bound == fitted.outcome_.bound
    assert outcome.n_evaluations >= outcome.n_iterations == sum(len(restart.history) for restart in outcome.restarts)
    assert np.all(np.diff(outcome.history) >= 0)
    assert outcome.history[-1] == pytest.approx(outcome.bound)
    assert f"bound {outcome.bound:.2f}, converged; best of 2 starts" in str(outcome)
    with pytest.warns(ConvergenceWarning):
        other = regressor(random_state=1, max_iter=2).fit(X, Y, conditions=NAMES)
    assert other.outcome_.history[0] != fitted.outcome_.history[0]  # another seed starts elsewhere
