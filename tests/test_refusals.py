"""What the estimator refuses before any work, and what it does with a warning; each message by its text."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import lvmogp.estimator
from lvmogp import DataError, LVMOGPRegressor, LVMOGPWarning, Periodic, SettingError, UnknownConditionError

X = np.linspace(0, 1, 6)[:, None]
Y = np.sin(3 * X) * np.array([1.0, 2.0, 3.0])
QUICK = {"n_latent": 1, "n_restarts": 1, "max_iter": 200}


@pytest.fixture
def no_work(monkeypatch):
    """Fail if the fit begins."""

    def fit(*args, **kwargs):
        pytest.fail("work began before the input was checked")

    monkeypatch.setattr(lvmogp.estimator, "fit", fit)


@pytest.fixture(scope="module")
def fitted():
    return LVMOGPRegressor(**QUICK).fit(X, Y, conditions=["wet", "dry", "icy"])


BAD_DATA = {
    "one-dimensional X": ((X[:, 0], Y), r"X must be two-dimensional .* got shape \(6,\); reshape a single column"),
    "lengths": ((X, Y[:5]), "X has 6 rows but y has 5; each row of X needs its output"),
    "conditions": ((X, Y[:, 0], ["a", "b"]), "conditions has 2 entries for 6 rows of X; give one id, or one a row"),
    "empty": ((np.empty((0, 1)), np.empty(0)), "X has no rows; at least one observation is needed"),
    "infinite output": ((X, np.where(Y > 2, np.inf, Y)), "y is infinite in row .*; outputs must be finite, or NaN"),
    "NaN input": ((np.where(X > 0.9, np.nan, X), Y), "X holds 1 NaN or infinite values, the first in row 5, column 0"),
    "text output": ((X, ["a"] * 6), "y must hold numbers, got 'a' in row 0"),
    "no output": ((X, np.full((6, 3), np.nan)), "every output is NaN; at least one observation is needed"),
    "missing y": ((X, None), "y is missing"),
    "text column": ((pd.DataFrame({"x": ["u"] * 6}), Y), "column 'x' of X must hold numbers, got 'u'"),
}


@pytest.mark.parametrize(("arguments", "text"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_are_refused_before_any_work(no_work, arguments, text):
    with pytest.raises(DataError, match=text):
        LVMOGPRegressor().fit(*arguments)


BAD_SETTINGS = {
    "latents": ({"n_latent": 0}, 'n_latent must be a whole number of at least 1 or "auto", got 0'),
    "restarts": ({"n_restarts": 1.5}, 'n_restarts must be a whole number of at least 1 or "auto", got 1.5'),
    "noise": ({"noise": "none"}, r"noise must be one of \['shared', 'per-condition'\], got 'none'"),
    "stochastic": (
        {"inference": "stochastic"},
        r"inference='stochastic' \(minibatches\) is not available in this version",
    ),
    "nuts": ({"inference": "nuts"}, r"inference='nuts' \(fully Bayesian inference\) is not available in this version"),
    "kernel": ({"input_kernel": "cubic"}, "a kernel must be a kernel object or one of .*, got 'cubic'"),
    "dtype": ({"dtype": "float16"}, r"dtype must be one of \['float64', 'float32'\], got 'float16'"),
}


@pytest.mark.parametrize(("settings", "text"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_are_refused_before_any_work(no_work, settings, text):
    with pytest.raises(SettingError, match=text):
        LVMOGPRegressor(**settings).fit(X, Y)


def test_outputs_that_are_not_positive_have_no_logarithm(no_work):
    with pytest.raises(
        DataError, match=r'output_transform="log" needs positive outputs, but 3 of 18 are zero or negative'
    ):
        LVMOGPRegressor(output_transform="log").fit(X, Y)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="n_latents"):
        LVMOGPRegressor(n_latents=3)


@pytest.mark.parametrize(
    "options", [{"variance": [1.0, 2.0]}, {"lengthscale": -1.0}, {"columns": (0, 0)}, {"fixed": "perod"}]
)
def test_kernels_refuse_what_they_cannot_mean(options):
    with pytest.raises(SettingError, match="must be|has no hyperparameter"):
        Periodic(1.0, **options)


@pytest.mark.parametrize("call", ["predict", "predict_interval", "sample", "predict_gradient"])
def test_an_estimator_that_is_not_fitted_says_so(call):
    with pytest.raises(NotFittedError, match="this LVMOGPRegressor is not fitted yet; call fit"):
        getattr(LVMOGPRegressor(), call)(X, "wet")


def test_an_unknown_condition_is_told_of_the_closest_and_of_the_ways_out(fitted):
    text = r"condition 'wett' is not known to the model \(did you mean 'wet'\?\); add it with add_condition"
    with pytest.raises(UnknownConditionError, match=text):
        fitted.predict(X, "wett")


def test_two_kinds_of_uncertainty_at_once_are_refused(fitted):
    with pytest.raises(SettingError, match="return_std and return_cov exclude each other"):
        fitted.predict(X, "wet", return_std=True, return_cov=True)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_that_is_no_probability_is_refused(fitted, level):
    with pytest.raises(SettingError, match="level must lie between 0 and 1"):
        fitted.predict_interval(X, "wet", level=level)


def test_a_trained_condition_cannot_be_added_or_removed(fitted):
    with pytest.raises(DataError, match="condition 'wet' was part of the training; its curve is already learnt"):
        fitted.add_condition("wet", [[0.1]], [0.2])
    with pytest.raises(DataError, match="condition 'wet' was part of the training and cannot be removed"):
        fitted.remove_condition("wet")


def test_nothing_is_lost_when_adding_fails(fitted):
    before = fitted.model_
    with pytest.raises(DataError, match="X has 2 columns, but the model was fitted with 1"):
        fitted.add_condition("new", [[0.1, 0.2]], [0.2])
    with pytest.raises(DataError, match="condition 'wet' was part of the training"):
        fitted.add_conditions([[0.1], [0.2]], [0.2, 0.3], ["new", "wet"])
    assert fitted.model_ is before


def test_an_earlier_fit_survives_a_failed_one():
    model = LVMOGPRegressor(**QUICK).fit(X, Y)
    before = model.predict(X)
    with pytest.raises(DataError, match="every output is NaN"):
        model.fit(X, np.full((6, 3), np.nan))
    np.testing.assert_array_equal(model.predict(X), before)


def test_equal_outputs_work_with_a_warning():
    with pytest.warns(LVMOGPWarning, match="all 18 outputs equal 7; there is nothing to learn"):
        model = LVMOGPRegressor(**QUICK).fit(X, np.full((6, 3), 7.0))
    np.testing.assert_allclose(model.predict(X), 7.0, atol=1e-3)


def test_one_condition_works_with_a_warning():
    with pytest.warns(LVMOGPWarning, match="there is one condition only.*this is a plain sparse GP"):
        model = LVMOGPRegressor(**QUICK).fit(X, Y[:, 0])
    np.testing.assert_allclose(model.predict(X), Y[:, 0], atol=0.05)


def test_more_inducing_points_than_points_are_capped_with_a_warning():
    with pytest.warns(
        LVMOGPWarning, match="n_inducing_inputs=50 is more than the 6 different inputs in the data; 6 are used"
    ):
        model = LVMOGPRegressor(**QUICK, n_inducing_inputs=50).fit(X, Y)
    assert model.model_.posterior.parameters.inducing_inputs.shape == (6, 1)


def test_one_point_a_condition_works_with_wide_bands():
    rng = np.random.default_rng(0)
    inputs, outputs = rng.uniform(0, 1, (5, 1)), rng.normal(size=5)
    model = LVMOGPRegressor(**QUICK).fit(inputs, outputs, conditions=list("abcde"))
    mean, std = model.predict(inputs, list("abcde"), return_std=True)
    assert np.all(np.isfinite(mean))
    assert np.all(std > 0.2 * outputs.std())


def test_duplicate_inputs_work():
    inputs, outputs = np.repeat(X, 2, axis=0), np.repeat(Y[:, 0], 2) + np.tile([0.01, -0.01], 6)
    with pytest.warns(LVMOGPWarning, match="one condition only"):
        model = LVMOGPRegressor(**QUICK).fit(inputs, outputs)
    np.testing.assert_allclose(model.predict(X), Y[:, 0], atol=0.05)
