"""Bad input gets a clear error before any work starts, odd input works with a word of warning, nothing is lost."""

import copy
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from test_estimator import NAMES, SPREAD, X_NEW, D, N, X, Y, few_points, grid_model, regressor

from lvmogp import RBF, ObservationStore, Priors
from lvmogp.errors import DataError, LVMOGPError, LVMOGPWarning, NumericalError, SettingError, UnknownConditionError

nan, inf = np.nan, np.inf
Y1 = Y[:, 0]
IDS = NAMES * 2  # one per row of X
STORE = ObservationStore(X, Y1, np.arange(N) % D)


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


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


# What is wrong with data is told in tests/tables; here, that it is looked at before any work.

COUNTS = {
    "n_latent": [-1, 1.5, "two", True, None],
    "n_inducing_inputs": [0, 2.5, "many"],
    "n_inducing_latents": [0, "few"],
    "n_restarts": [0, "none"],
    "max_iter": [0, -5, 1e3],
    "n_chains": [0],
}
CHOICES = {
    "noise": r"noise must be one of \['shared', 'per-condition'\], got 'no such'",
    "inference": r"inference must be one of \['auto', 'collapsed', .*, 'stochastic', 'nuts'\], got 'no such'",
    "output_transform": r"output_transform must be one of \[None, 'log', 'sqrt', 'auto'\], got 'no such'",
    "input_transform": 'input_transform must be None, "auto" or say which columns .*, got .no such.',
    "unseen": r"unseen must be one of \['error', 'prior'\], got 'no such'",
    "dtype": r"dtype must be one of \['float64', 'float32'\], got 'no such'",
    "input_kernel": r"kernel.*'rbf'.*, got 'no such'",
    "latent_kernel": r"kernel.*'rbf'.*, got 'no such'",
    "random_state": "seed|random_state|cannot be used to seed",
}
PRIORS = [
    ({"noise_variance": 1.0}, r"priors must be None or Priors\(\.\.\.\), got \{'noise_variance': 1\.0\}"),
    (Priors(variance=2.0), r"variance of priors must be a pair \(median, spread\) of positive numbers, got 2\.0"),
    (Priors(other=(1.0, 0.0)), r"other of priors must be a pair .*, got \(1\.0, 0\.0\)"),
    (Priors(noise_spread=(1.0, "wide")), r"noise_spread of priors must be a pair .*, got \(1\.0, 'wide'\)"),
]
WHOLE = '{} must be a whole number of at least 1 or "auto", got {!r}'
MANY = np.random.default_rng(0).normal(size=(200, 1)), np.random.default_rng(1).normal(size=(200, 20))
FULL = 'inference="full" keeps a covariance over all pairs of inducing points, here 3000; it is limited to 1000'
BEFORE_ANY_WORK = [
    ({}, (X[:, 0], Y1, IDS), "X must be two-dimensional .* got shape .12,"),
    ({}, (X, with_value(Y1, 3, inf), IDS), "y is infinite in row 3; outputs must be finite, or NaN"),
    ({}, (X, Y1, [None, *IDS[1:]]), "a condition id is missing .None or NaN.; drop those rows or give"),
    *(({name: value}, (X, Y), WHOLE.format(name, value)) for name, values in COUNTS.items() for value in values),
    *(({name: "no such"}, (X, Y), text) for name, text in CHOICES.items()),
    ({}, (STORE, Y1), "an ObservationStore holds the outputs and conditions itself; pass nothing beside it"),
    ({"inference": "collapsed"}, (STORE,), 'an ObservationStore is fitted by minibatches; use inference="stochastic"'),
    ({"random_state": -1}, (X, Y), "random_state must not be negative, got -1"),
    *(({"inference": "nuts", "priors": priors}, (X, Y), text) for priors, text in PRIORS),
    ({"inference": "full", "n_inducing_inputs": 150, "n_inducing_latents": 20}, MANY, FULL),
    ({"inference": "nuts"}, MANY, "looks at all observations in every step, here 4,000; it is limited to 3,999: use"),
    ({"input_transform": {0: "sqrt"}}, (X, Y), "input_transform must be None, .* got {0: 'sqrt'}"),
    ({"input_transform": {"speed": "log"}}, (X, Y), r"names a column 'speed', which is none .* some of \[0\]"),
    ({"input_transform": {1: None}}, (X, Y), r"names a column 1, which is none of the inputs; name some of \[0\]"),
    ({"input_transform": "auto"}, (STORE,), 'input_transform="auto" compares fits to all observations'),
    ({"input_transform": "auto", "inference": "stochastic"}, (X, Y), 'input_transform="auto" compares fits to all'),
    ({"output_transform": "auto"}, (STORE,), 'output_transform="auto" compares fits to all observations'),
    ({"output_transform": "auto", "inference": "stochastic"}, (X, Y), 'output_transform="auto" compares fits to all'),
]


@pytest.mark.parametrize(("settings", "data", "text"), BEFORE_ANY_WORK, ids=lambda value: str(value)[:50])
def test_what_is_wrong_fails_in_words_before_any_work(monkeypatch, settings, data, text):
    monkeypatch.setattr("lvmogp.inference.restarts.fit", failing(AssertionError("fitting started")))
    monkeypatch.setattr("lvmogp.inference.minibatch.settings._MOST_ON_A_GRID", 3999)
    with pytest.raises(ValueError, match=text) as caught:
        regressor(**settings).fit(*data)
    if "random_state" not in settings:
        assert caught.type is (SettingError if settings else DataError)


def test_a_kernel_that_does_not_fit_the_inputs_fails_in_words():
    with pytest.raises(SettingError, match=r"columns \(3,\) of a kernel lie outside the 1 columns of the input"):
        regressor(input_kernel=RBF(columns=3)).fit(X, Y)


# Calls

BAD_ROWS = [
    ((X_NEW[:, 0], "a"), "X must be two-dimensional .* a single column with X.reshape"),
    ((np.zeros((4, 2)), "a"), "X has 2 features, but LVMOGPRegressor is expecting 1 features"),
    ((with_value(X_NEW, 2, nan), "a"), "X holds 1 NaN or infinite values, the first in row 2, column 0"),
    (([["wet"]] * 4, "a"), "X must hold real numbers in a rectangular array"),
    ((X_NEW, ["a", "b"]), "conditions has 2 entries for 4 rows of X; give one id, or one per row"),
    ((X_NEW, ["a", "b", None, "c"]), "a condition id is missing"),
    ((X_NEW, ["a", "b", 17, "c"]), "condition 17 is not known to the model; add it"),
    ((X_NEW, "tyre-k"), r"condition 'tyre-k' is not known to the model \(did you mean 'tyre-K'\?\); add it"),
]


@pytest.mark.parametrize("name", ["predict", "predict_interval", "predict_gradient", "sample"])
def test_rows_that_cannot_be_predicted_fail_in_words_and_no_rows_are_fine(name, model):
    model.add_condition("tyre-K", [[1.0]], [0.5])
    ask = getattr(model, name)
    for rows, text in BAD_ROWS:
        with pytest.raises(UnknownConditionError if "not known" in text else DataError, match=text):
            ask(*rows)
    assert np.size(ask(np.empty((0, 1)), "a")) == 0


LEVEL, LEVELS = "level must lie between 0 and 1, got {!r}", "levels must be numbers between 0 and 1, at least one, got"
LATENTS = "H must hold 1 latent coordinates, once or for each of the 4 rows, got shape"
PART, POINT, POINTS = "condition {!r} was part of the training", ([[1.0]], [1.0]), ([[1.0], [2.0]], [1.0, 0.5])
# Name of the method, its arguments and keywords, and what is said.
CALLS = [
    ("predict", (X_NEW, "a"), {"return_std": True, "return_cov": True}, "return_std and return_cov exclude each other"),
    *(("predict_interval", (X_NEW, "a"), {"level": one}, LEVEL.format(one)) for one in (0, 1, -0.5, 95, nan, "most")),
    *(("predict_quantiles", (X_NEW, "a"), {"levels": some}, LEVELS) for some in ([], [0.5, 1], 50, ["half"], None)),
    *(("sample", (X_NEW, "a", n), {}, f"at least 1, got {n!r}") for n in (0, -1, 2.5, "many")),
    *(("predict_at_latent", (X_NEW, np.zeros(shape)), {}, LATENTS) for shape in (2, (2, 1), (4, 2), (1, 4, 1))),
    ("predict_at_latent", (X_NEW, [nan]), {}, "H holds NaN or infinite values; latents must be finite"),
    ("predict_at_latent", (X_NEW, ["left"]), {}, "H must hold numbers"),
    ("log_predictive_density", (X_NEW, np.zeros(3), "a"), {}, "X has 4 rows but y has 3"),
    *(("log_predictive_density", (X_NEW, y, "a"), {}, "^y ") for y in (np.zeros((4, 2)), ["wet"] * 4, [0, inf, 0, 0])),
    ("add_condition", ("a", *POINT), {}, PART.format("a") + "; its curve is already"),
    ("add_condition", (None, *POINT), {}, "a condition id is missing"),
    ("add_condition", ("new", *POINT), {"method": "vb"}, r"method must be one of \['exact', 'gaussian'\], got 'vb'"),
    ("add_condition", ("new", POINTS[0], np.ones((2, 2))), {}, "'new' needs one output for each of its 2 rows, got 4"),
    ("add_condition", ("new", POINTS[0], [1.0]), {}, "X has 2 rows but y has 1; each row of X needs its output"),
    ("add_condition", ("new", [1.0, 2.0], [1.0, 2.0]), {}, "X must be two-dimensional"),
    ("add_condition", ("new", [[1.0, 2.0]], [1.0]), {}, "X has 2 features, but LVMOGPRegressor is expecting 1"),
    ("add_condition", ("new", [[1.0]], [inf]), {}, "y is infinite in row 0; outputs must be finite, or NaN"),
    ("add_conditions", (*POINTS, ["new", "b"]), {}, PART.format("b")),
    ("add_conditions", (POINTS[0], np.ones((2, 2)), ["new", "b"]), {}, "takes long form: y must have one dimension"),
    ("add_conditions", (*POINTS, ["new"]), {}, "conditions has 1 entries for 2 rows of X"),
    ("add_conditions", POINTS, {}, "condition"),
    ("remove_condition", ("a",), {}, PART.format("a") + " and cannot be removed; refit without"),
    ("remove_condition", ("earliest",), {}, r"'earliest' is not known to the model \(did you mean 'earlier'"),
    ("fit", (X, with_value(Y, (0, 0), inf)), {}, "y is infinite"),
    ("fit", (X[:0], Y1[:0]), {}, "X has no rows"),
    ("fit", (X, Y.T), {}, "rows"),
]


def everything(model):
    return *model.predict(X_NEW, return_std=True), model.conditions_, model.latents_.to_numpy()


def assert_unchanged(model, before):
    for expected, found in zip(before, everything(model), strict=True):
        assert_array_equal(np.asarray(found, dtype=object), np.asarray(expected, dtype=object))


def test_calls_that_make_no_sense_fail_in_words_and_change_nothing(model, monkeypatch):
    model.add_condition("earlier", *few_points(0.4, 2))
    before = everything(model)
    for name, arguments, keywords, text in CALLS:
        with pytest.raises(LVMOGPError, match=text):
            getattr(model, name)(*arguments, **keywords)
    monkeypatch.setattr("lvmogp.fitted.model.infer", failing(NumericalError("as if")))
    with pytest.raises(NumericalError, match="as if"):
        model.add_condition("new", *POINT)
    monkeypatch.undo()
    assert_unchanged(model, before)


def test_use_before_the_fit_fails_in_words():
    text = r"this LVMOGPRegressor is not fitted yet; call fit\(X, y, conditions=…\) first"
    called = {name: arguments for name, arguments, _, _ in reversed(CALLS) if name != "fit"}
    called |= {"absorb": (), "similarities": (), "save": ("never-written.lvmogp",), "score": (X_NEW, np.zeros(4))}
    for name, arguments in (called | dict.fromkeys(("predict_gradient", "sample"), (X_NEW, "a"))).items():
        with pytest.raises(NotFittedError, match=text):
            getattr(regressor(), name)(*arguments)
    for name in ("latents_", "conditions_", "outcome_", "n_latent_"):
        with pytest.raises(NotFittedError, match=text):
            getattr(regressor(), name)


@pytest.mark.parametrize("failure", [NumericalError("as if"), KeyboardInterrupt()], ids=["failure", "interrupt"])
def test_an_earlier_fit_survives_a_fit_that_breaks_off(model, monkeypatch, failure):
    before = everything(model)
    monkeypatch.setattr("lvmogp.inference.restarts.fit", failing(failure))
    with pytest.raises(type(failure)):
        model.fit(X, 2 * Y, conditions=NAMES)
    monkeypatch.undo()
    assert_unchanged(model, before)


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
    monkeypatch.setattr("lvmogp.pipeline._at_once", failing(NumericalError("far enough")))
    hardly = 1e9 + 1e-7 * np.arange(N)
    data = (hardly[:, None], X[:, 0]) if column == "input" else (X, hardly)
    with (
        pytest.warns(LVMOGPWarning, match="an input or the output differs in its last digits only and counts as const"),
        pytest.raises(NumericalError, match="far enough"),
    ):
        regressor().fit(*data, conditions=["a", "b"] * (N // 2))


def test_a_jitter_worth_knowing_of_is_told(fitted, monkeypatch):
    assert fitted.outcome_.notable_jitter is None
    assert "jitter" not in str(fitted.outcome_)
    monkeypatch.setattr("lvmogp.inference.restarts.jitters", lambda parameters: (1e-3, 1e-7))
    text = "1e-03 of the variance had to be added to a diagonal to keep the algebra stable"
    with pytest.warns(LVMOGPWarning, match=text):
        model = regressor().fit(X, Y, conditions=NAMES)
    assert str(model.outcome_).endswith(", jitter 1e-03")


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


def test_warnings_are_where_the_user_called(tmp_path):
    """In a process of its own: where shapes are checked, each call of ours goes through another module."""
    script = tmp_path / "script.py"
    script.write_text(
        "import lvmogp.estimator\n"
        "def leave(*_): raise SystemExit\n"
        "lvmogp.pipeline._at_once = leave\n"
        "lvmogp.estimator.LVMOGPRegressor().fit([[0.0], [1.0]], [0.0, 1.0], conditions=['a', 'a'])\n"
    )
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    assert f"{script}:4: LVMOGPWarning: there is one condition only" in found.stderr


def test_more_inducing_points_than_points_are_capped_with_a_warning(fitted):
    with pytest.warns(LVMOGPWarning) as caught:
        model = regressor(n_inducing_inputs=50, n_inducing_latents=9).fit(X, Y, conditions=NAMES)
    assert sorted(str(warning.message) for warning in caught) == [
        "n_inducing_inputs=50 is more than the 12 different inputs in the data; 12 are used",
        "n_inducing_latents=9 is more than the 6 conditions in the data; 6 are used",
    ]
    assert_allclose(model.predict(X_NEW), fitted.predict(X_NEW), atol=1e-6 * SPREAD)
