"""Bad input gets a clear error before any work starts, odd input works with a word of warning, nothing is lost."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from test_estimator import FACTORS, NAMES, SPREAD, X_NEW, D, N, X, Y, curve, few_points, grid_model, regressor

from lvmogp import (
    RBF,
    DataError,
    LVMOGPError,
    LVMOGPRegressor,
    LVMOGPWarning,
    NumericalError,
    Priors,
    SettingError,
    UnknownConditionError,
)

nan, inf = np.nan, np.inf
Y1 = Y[:, 0]
IDS = NAMES * 2  # one a row of X


@pytest.fixture
def no_fitting(monkeypatch):
    """Makes the test fail where any fitting starts."""

    def fail(*args, **kwargs):
        raise AssertionError("fitting started")

    monkeypatch.setattr("lvmogp.inference.restarts.fit", fail)


@pytest.fixture
def fitted():
    return grid_model()


@pytest.fixture
def model(fitted):
    return copy.copy(fitted)


def with_value(values, place, value):
    changed = values.copy()
    changed[place] = value
    return changed


# Training data

BAD_DATA = {
    "inputs of one dimension": ((X[:, 0], Y1, IDS), "X must be two-dimensional .* got shape .12,"),
    "inputs without columns": ((np.empty((N, 0)), Y1, IDS), "X has 0 feature.s. .shape=.12, 0.. while a minimum of 1"),
    "outputs too few": ((X, Y1[:-1], IDS), "X has 12 rows but y has 11; each row of X needs its output"),
    "no rows": ((X[:0], Y1[:0], []), "X has no rows; at least one observation is needed"),
    "no outputs": ((X, None), "fit.X, y, conditions=…. requires y to be passed, but the target y is None"),
    "an infinite output": ((X, with_value(Y1, 3, inf), IDS), "y is infinite in row 3; outputs must be finite, or NaN"),
    "an infinite input": ((with_value(X, 4, inf), Y1, IDS), "X holds 1 NaN or infinite values, the first in row 4"),
    "an input missing": ((with_value(X, 4, nan), Y1, IDS), "X holds 1 NaN .* inputs must be finite .only outputs may"),
    "an id missing": ((X, Y1, [None, *IDS[1:]]), "a condition id is missing .None or NaN.; drop those rows or give"),
}


@pytest.mark.usefixtures("no_fitting")
@pytest.mark.parametrize(("data", "text"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_data_fail_in_words_before_any_work(data, text):
    with pytest.raises(DataError, match=text):
        regressor().fit(*data)


def test_errors_are_value_errors_of_the_library():
    for kind in (DataError, SettingError, UnknownConditionError, NumericalError):
        assert issubclass(kind, LVMOGPError)
        assert issubclass(kind, ValueError)


# Settings

BAD_SETTINGS = {
    "n_latent": [-1, 1.5, "two", True, None],
    "n_inducing_inputs": [0, 2.5, "many"],
    "n_inducing_latents": [0, "few"],
    "n_restarts": [0, "none"],
    "max_iter": [0, -5, 1e3],
    "n_chains": [0],
}


@pytest.mark.usefixtures("no_fitting")
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_SETTINGS.items() for value in values]
)
def test_a_count_that_is_none_fails_in_words_before_any_work(name, value):
    text = f'{name} must be a whole number of at least 1 or "auto", got {value!r}'
    with pytest.raises(SettingError, match=text):
        regressor(**{name: value}).fit(X, Y)


CHOICES = {
    "noise": r"noise must be one of \['shared', 'per-condition'\], got 'no such'",
    "inference": r"inference must be one of \['auto', 'collapsed', .*, 'stochastic', 'nuts'\], got 'no such'",
    "output_transform": r"output_transform must be one of \[None, 'log', 'sqrt', 'auto'\], got 'no such'",
    "unseen": r"unseen must be one of \['error', 'prior'\], got 'no such'",
    "dtype": r"dtype must be one of \['float64', 'float32'\], got 'no such'",
    "input_kernel": r"kernel.*'rbf'.*, got 'no such'",
    "latent_kernel": r"kernel.*'rbf'.*, got 'no such'",
}


@pytest.mark.usefixtures("no_fitting")
@pytest.mark.parametrize(("name", "text"), CHOICES.items(), ids=CHOICES.keys())
def test_an_unknown_choice_fails_in_words_before_any_work(name, text):
    with pytest.raises(SettingError, match=text):
        regressor(**{name: "no such"}).fit(X, Y)


@pytest.mark.usefixtures("no_fitting")
@pytest.mark.parametrize(
    ("priors", "text"),
    [
        ({"noise_variance": 1.0}, r"priors must be None or Priors\(\.\.\.\), got \{'noise_variance': 1\.0\}"),
        (Priors(variance=2.0), r"variance of priors must be a pair \(median, spread\) of positive numbers, got 2\.0"),
        (Priors(other=(1.0, 0.0)), r"other of priors must be a pair .*, got \(1\.0, 0\.0\)"),
        (Priors(noise_spread=(1.0, "wide")), r"noise_spread of priors must be a pair .*, got \(1\.0, 'wide'\)"),
    ],
)
def test_priors_that_are_none_fail_in_words_before_any_work(priors, text):
    with pytest.raises(SettingError, match=text):
        regressor(inference="nuts", priors=priors).fit(X, Y)


@pytest.mark.usefixtures("no_fitting")
def test_chains_on_very_many_observations_fail_in_words_before_any_work(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.options._MOST_ON_A_GRID", 5)
    text = (
        r'inference="nuts" looks at all observations in every step, here \d+; it is limited to 5: use inference="auto"'
    )
    with pytest.raises(SettingError, match=text):
        regressor(inference="nuts").fit(X, Y)


@pytest.mark.usefixtures("no_fitting")
def test_a_full_covariance_over_too_many_inducing_points_fails_in_words_before_any_work(rng):
    x, y = rng.normal(size=(200, 1)), rng.normal(size=(200, 20))
    text = 'inference="full" keeps a covariance over all pairs of inducing points, here 3000; it is limited to 1000'
    with pytest.raises(SettingError, match=text):
        regressor(inference="full", n_inducing_inputs=150, n_inducing_latents=20).fit(x, y)


@pytest.mark.parametrize("seed", ["seven", -1])
@pytest.mark.usefixtures("no_fitting")
def test_a_seed_that_is_none_fails_before_any_work(seed):
    with pytest.raises(ValueError, match="seed|random_state"):
        regressor(random_state=seed).fit(X, Y)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (RBF([1.0, 2.0]), "lengthscale of RBF has 2 values for 1 columns; give one number, or one a column"),
        (RBF(columns=3), r"columns \(3,\) of a kernel lie outside the 1 columns of the input"),
    ],
)
def test_a_kernel_that_does_not_fit_the_inputs_fails_in_words(kernel, text):
    with pytest.raises(SettingError, match=text):
        regressor(input_kernel=kernel).fit(X, Y)


def test_an_unknown_keyword_fails():
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_latents'"):
        LVMOGPRegressor(n_latents=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'condition'"):
        regressor().fit(X, Y, condition="tyre")
    with pytest.raises(TypeError, match="positional argument"):
        LVMOGPRegressor(2, "tyre")
    with pytest.raises(ValueError, match="Invalid parameter 'n_latents'"):
        regressor().set_params(n_latents=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'return_var'"):
        grid_model().predict(X_NEW, "a", return_var=True)


# Before the fit

BEFORE = {
    "predict": (X_NEW, "a"),
    "predict_interval": (X_NEW, "a"),
    "predict_gradient": (X_NEW, "a"),
    "predict_at_latent": (X_NEW, [0.0]),
    "log_predictive_density": (X_NEW, np.zeros(4), "a"),
    "score": (X_NEW, np.zeros(4)),
    "sample": (X_NEW, "a"),
    "add_condition": ("new", [[1.0]], [1.0]),
    "add_conditions": ([[1.0]], [1.0], ["new"]),
    "remove_condition": ("new",),
    "absorb": (),
    "similarities": (),
    "save": ("never-written.lvmogp",),
}


def test_use_before_the_fit_fails_in_words():
    text = r"this LVMOGPRegressor is not fitted yet; call fit\(X, y, conditions=…\) first"
    for name, arguments in BEFORE.items():
        with pytest.raises(NotFittedError, match=text):
            getattr(regressor(), name)(*arguments)
    for name in ("latents_", "conditions_", "outcome_", "n_latent_"):
        with pytest.raises(NotFittedError, match=text):
            getattr(regressor(), name)


# Predictions

USES = {
    "predict": lambda model, *rows: model.predict(*rows),
    "return_cov": lambda model, *rows: model.predict(*rows, return_cov=True),
    "predict_interval": lambda model, *rows: model.predict_interval(*rows),
    "predict_gradient": lambda model, *rows: model.predict_gradient(*rows),
    "sample": lambda model, *rows: model.sample(*rows),
    "log_predictive_density": lambda model, x, *rows: model.log_predictive_density(x, np.zeros(len(x)), *rows),
    "score": lambda model, x, ids: model.score(x, np.zeros(len(x)), conditions=ids),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_an_unknown_condition_fails_in_words_and_names_the_closest(use, model):
    model.add_condition("tyre-K", [[1.0]], [0.5])
    text = (
        r"condition 'tyre-k' is not known to the model \(did you mean 'tyre-K'\?\); add it with add_condition"
        r'\(name, X, y\), or create the estimator with unseen="prior" to predict it from the prior'
    )
    with pytest.raises(UnknownConditionError, match=text):
        use(model, X_NEW, "tyre-k")
    with pytest.raises(UnknownConditionError, match="condition 17 is not known to the model; add it"):
        use(model, X_NEW, ["a", "b", 17, "c"])


BAD_ROWS = {
    "one dimension": (
        (X_NEW[:, 0], "a"),
        "X must be two-dimensional .* Reshape your data: a single column with X.reshape",
    ),
    "columns too many": ((np.zeros((4, 2)), "a"), "X has 2 features, but LVMOGPRegressor is expecting 1 features"),
    "not finite": ((with_value(X_NEW, 2, nan), "a"), "X holds 1 NaN or infinite values, the first in row 2, column 0"),
    "words": (([["wet"]] * 4, "a"), "X must hold real numbers in a rectangular array"),
    "ids too few": ((X_NEW, ["a", "b"]), "conditions has 2 entries for 4 rows of X; give one id, or one a row"),
    "an id missing": ((X_NEW, ["a", "b", None, "c"]), "a condition id is missing"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(("rows", "text"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_cannot_be_predicted_fail_in_words(use, rows, text, fitted):
    with pytest.raises(DataError, match=text):
        use(fitted, *rows)


@pytest.mark.parametrize("use", [USES[name] for name in ("predict", "predict_interval", "predict_gradient")])
def test_no_rows_give_no_predictions(use, fitted):
    assert np.size(use(fitted, np.empty((0, 1)), "a")) == 0


def test_settings_of_predictions_that_make_no_sense_fail_in_words(fitted):
    with pytest.raises(SettingError, match="return_std and return_cov exclude each other; ask for one of them"):
        fitted.predict(X_NEW, "a", return_std=True, return_cov=True)
    for level in (0, 1, -0.5, 95, nan, "most"):
        with pytest.raises(SettingError, match=f"level must lie between 0 and 1, got {level!r}"):
            fitted.predict_interval(X_NEW, "a", level=level)
    for levels in ([], [0.5, 1], 50, ["half"], None):
        with pytest.raises(SettingError, match="levels must be numbers between 0 and 1, at least one, got"):
            fitted.predict_quantiles(X_NEW, "a", levels=levels)
    for n in (0, -1, 2.5, "many"):
        with pytest.raises(SettingError, match=f"n must be a whole number of at least 1, got {n!r}"):
            fitted.sample(X_NEW, "a", n)


def test_latents_that_cannot_be_fail_in_words(fitted):
    for latents in ([0.0, 1.0], [[0.0], [1.0]], np.zeros((4, 2)), np.zeros((1, 4, 1))):
        text = "H must hold 1 latent coordinates, once or for each of the 4 rows, got shape"
        with pytest.raises(DataError, match=text):
            fitted.predict_at_latent(X_NEW, latents)
    with pytest.raises(DataError, match="H holds NaN or infinite values; latents must be finite"):
        fitted.predict_at_latent(X_NEW, [nan])
    with pytest.raises(DataError, match="H must hold numbers"):
        fitted.predict_at_latent(X_NEW, ["left"])


@pytest.mark.parametrize("y", [np.zeros(3), np.zeros((4, 2)), ["wet"] * 4, with_value(np.zeros(4), 1, inf)])
def test_outputs_that_have_no_density_fail_in_words(fitted, y):
    with pytest.raises(DataError, match="^y |rows but y has"):
        fitted.log_predictive_density(X_NEW, y, "a")


# New conditions


def everything(model):
    return *model.predict(X_NEW, return_std=True), model.conditions_, model.latents_.to_numpy()


def assert_unchanged(model, before):
    for expected, found in zip(before, everything(model), strict=True):
        assert_array_equal(np.asarray(found, dtype=object), np.asarray(expected, dtype=object))


BAD_NEW = {
    "part of the training": (("a", [[1.0]], [1.0]), "condition 'a' was part of the training; its curve is already"),
    "no name": ((None, [[1.0]], [1.0]), "a condition id is missing"),
    "two columns of outputs": (
        ("new", [[1.0], [2.0]], [[1.0, 2.0], [3.0, 4.0]]),
        "condition 'new' needs one output for each of its 2 rows, got 4",
    ),
    "lengths that differ": (("new", [[1.0], [2.0]], [1.0]), "X has 2 rows but y has 1; each row of X needs its output"),
    "inputs of one dimension": (("new", [1.0, 2.0], [1.0, 2.0]), "X must be two-dimensional"),
    "columns too many": (("new", [[1.0, 2.0]], [1.0]), "X has 2 features, but LVMOGPRegressor is expecting 1 features"),
    "an infinite output": (("new", [[1.0]], [inf]), "y is infinite in row 0; outputs must be finite, or NaN"),
}


@pytest.mark.parametrize(("condition", "text"), BAD_NEW.values(), ids=BAD_NEW.keys())
def test_a_bad_new_condition_fails_in_words_and_changes_nothing(model, condition, text):
    model.add_condition("earlier", *few_points(0.4, 2))
    before = everything(model)
    with pytest.raises(DataError, match=text):
        model.add_condition(*condition)
    with pytest.raises(SettingError, match=r"method must be one of \['exact', 'gaussian'\], got 'variational'"):
        model.add_condition("new", [[1.0]], [1.0], method="variational")
    assert_unchanged(model, before)


def test_of_several_new_conditions_all_or_none_are_taken_in(model):
    before = everything(model)
    with pytest.raises(DataError, match="condition 'b' was part of the training"):
        model.add_conditions([[1.0], [2.0], [3.0]], [1.0, 0.5, 0.2], ["new", "b", "other"])
    assert_unchanged(model, before)
    with pytest.raises(DataError, match="add_conditions takes long form: y must have one dimension"):
        model.add_conditions([[1.0], [2.0]], [[1.0, 0.5], [1.0, 2.0]], ["new", "other"])
    with pytest.raises(DataError, match="conditions has 1 entries for 2 rows of X"):
        model.add_conditions([[1.0], [2.0]], [1.0, 0.5], ["new"])
    with pytest.raises(DataError, match="condition"):
        model.add_conditions([[1.0], [2.0]], [1.0, 0.5])
    assert_unchanged(model, before)


def test_a_failure_in_the_middle_of_inference_changes_nothing(model, monkeypatch):
    before = everything(model)

    def fail(*args, **kwargs):
        raise NumericalError("as if")

    monkeypatch.setattr("lvmogp.fitted.model.infer", fail)
    with pytest.raises(NumericalError, match="as if"):
        model.add_condition("new", [[1.0]], [1.0])
    monkeypatch.undo()
    assert_unchanged(model, before)


def test_what_cannot_be_removed_fails_in_words(model):
    model.add_condition("new", [[1.0]], [0.5])
    with pytest.raises(DataError, match="condition 'a' was part of the training and cannot be removed; refit without"):
        model.remove_condition("a")
    with pytest.raises(UnknownConditionError, match=r"condition 'mew' is not known to the model \(did you mean 'new'"):
        model.remove_condition("mew")
    assert model.conditions_ == (*NAMES, "new")


# Nothing is lost


def test_an_earlier_fit_survives_bad_data(model):
    before = everything(model)
    for data in ((X, with_value(Y, (0, 0), inf)), (X[:0], Y1[:0]), (X, Y.T)):
        with pytest.raises(DataError):
            model.fit(*data)
    with pytest.raises(SettingError):
        model.set_params(noise="loud").fit(X, Y)
    assert_unchanged(model, before)


@pytest.mark.parametrize("failure", [NumericalError("as if"), KeyboardInterrupt()], ids=["failure", "interrupt"])
def test_an_earlier_fit_survives_a_fit_that_breaks_off(model, monkeypatch, failure):
    before = everything(model)

    def fail(*args, **kwargs):
        raise failure

    monkeypatch.setattr("lvmogp.inference.restarts.fit", fail)
    with pytest.raises(type(failure)):
        model.fit(X, 2 * Y, conditions=NAMES)
    monkeypatch.undo()
    assert_unchanged(model, before)


def test_an_earlier_file_survives_a_crash_while_saving(model, tmp_path, monkeypatch):
    path = tmp_path / "brakes.lvmogp"
    model.save(path)
    earlier = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("lvmogp.storage.tensor_file.os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        model.save(path, include_data=False)
    assert path.read_bytes() == earlier
    assert list(tmp_path.iterdir()) == [path]


# Odd data that work


def test_equal_outputs_work_with_a_warning():
    with pytest.warns(LVMOGPWarning, match="all 72 outputs equal 3.5; there is nothing to learn") as caught:
        model = regressor().fit(X, np.full((N, D), 3.5), conditions=NAMES)
    assert len(caught) == 1
    mean, std = model.predict(X_NEW, return_std=True)
    assert_allclose(mean, 3.5, atol=0.01)
    assert np.all(std < 0.1)
    model.add_condition("new", [[1.0]], [3.5])
    assert_allclose(model.predict(X_NEW, "new"), 3.5, atol=0.05)


@pytest.mark.parametrize("column", ["input", "output"])
def test_what_differs_in_its_last_digits_only_is_told_of(monkeypatch, column):
    def stop(*args):
        raise NumericalError("far enough")

    monkeypatch.setattr("lvmogp.estimator.train", stop)
    hardly = 1e9 + 1e-7 * np.arange(N)
    data = (hardly[:, None], X[:, 0]) if column == "input" else (X, hardly)
    with (
        pytest.warns(LVMOGPWarning, match="an input or the output differs in its last digits only and counts as const"),
        pytest.raises(NumericalError, match="far enough"),
    ):
        regressor().fit(*data, conditions=["a", "b"] * (N // 2))


def test_a_jitter_worth_knowing_of_is_told(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.restarts.jitters", lambda parameters: (1e-3, 1e-7))
    text = "1e-03 of the variance had to be added to a diagonal to keep the algebra stable"
    with pytest.warns(LVMOGPWarning, match=text):
        model = regressor().fit(X, Y, conditions=NAMES)
    assert str(model.outcome_).endswith(", jitter 1e-03")


def test_the_smallest_jitter_is_not_worth_a_word(fitted):
    assert fitted.outcome_.notable_jitter is None
    assert "jitter" not in str(fitted.outcome_)


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_prediction_that_cannot_be_computed_fails_in_words(fitted, monkeypatch, bad):
    moments = (np.zeros(4), np.array([1.0, bad, 1.0, 1.0]))
    monkeypatch.setattr("lvmogp.fitted.answers.moments", lambda *args, **kwargs: moments)
    assert_array_equal(fitted.predict(X_NEW, "a"), np.zeros(4))
    with pytest.raises(NumericalError, match="the standard deviation is too large to be computed for 1 of 4 values"):
        fitted.predict(X_NEW, "a", return_std=True)
    monkeypatch.setattr("lvmogp.fitted.answers.moments", lambda *args, **kwargs: moments[::-1])
    with pytest.raises(NumericalError, match="the mean is too large to be computed for 1 of 4 values; are inputs extr"):
        fitted.predict(X_NEW, "a")


def test_one_condition_is_a_plain_gp_with_a_warning():
    text = "there is one condition only, so nothing can be shared between conditions; this is a plain sparse GP"
    with pytest.warns(LVMOGPWarning, match=text) as caught:
        model = regressor().fit(X, Y1, conditions="only")
    assert len(caught) == 1
    plain = GaussianProcessRegressor(ConstantKernel() * Matern(nu=np.inf) + WhiteKernel(0.01), normalize_y=True)
    plain.fit(X, Y1)
    x = np.linspace(0, 10, 21)[:, None]
    mean, std = model.predict(x, return_std=True)
    expected_mean, expected_std = plain.predict(x, return_std=True)
    assert mean.shape == (21,)
    assert_allclose(mean, expected_mean, atol=0.03 * np.ptp(Y1))
    assert_allclose(std, expected_std, rtol=0.5)
    assert_array_equal(mean, model.predict(x, "only"))


def test_one_observation_works():
    with pytest.warns(LVMOGPWarning, match="there is one condition only"):
        model = regressor().fit([[2.0]], [5.0])
    mean, std = model.predict([[2.0], [3.0]], return_std=True)
    assert_allclose(mean, 5.0, atol=0.5)
    assert np.all(np.isfinite(std))
    assert np.all(std > 0)


def test_one_point_a_condition_works_with_wide_bands():
    x = np.linspace(0, 10, D)[:, None]
    y = curve(x[:, 0], FACTORS)
    model = regressor().fit(x, y, conditions=NAMES)
    for place, name in enumerate(NAMES):
        mean, std = model.predict(x, name, return_std=True)
        assert np.all(np.isfinite(mean))
        away = np.abs(np.arange(D) - place) > 1
        assert std[away].min() > 0.4 * y.std()
        assert np.all(np.abs(curve(x[:, 0], FACTORS[place]) - mean) < 4 * std)


def test_inputs_that_repeat_work():
    x = np.repeat(X[::2], 2, axis=0)
    y = curve(x, FACTORS) + np.tile([[0.1], [-0.1]], (N // 2, 1))
    model = regressor().fit(x, y, conditions=NAMES)
    assert_allclose(model.predict(X[::2]), curve(X[::2], FACTORS), atol=0.1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"n_inducing_inputs": 50},
            "n_inducing_inputs=50 is more than the 12 different inputs in the data; 12 are used",
        ),
        ({"n_inducing_latents": 9}, "n_inducing_latents=9 is more than the 6 conditions in the data; 6 are used"),
    ],
)
def test_more_inducing_points_than_points_are_capped_with_a_warning(fitted, settings, text):
    with pytest.warns(LVMOGPWarning, match=text) as caught:
        model = regressor(**settings).fit(X, Y, conditions=NAMES)
    assert len(caught) == 1
    assert_allclose(model.predict(X_NEW), fitted.predict(X_NEW), atol=1e-6 * SPREAD)
