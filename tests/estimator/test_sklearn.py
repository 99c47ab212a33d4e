"""The estimator keeps the conventions of scikit-learn, pandas and polars."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from drawn_models import fitted, forgetting
from numpy.testing import assert_allclose, assert_array_equal
from papers_model import PapersModel
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lvmogp import LVMOGPRegressor
from lvmogp.inference.optimise import Run, Status
from lvmogp.metrics import log_density_score

QUICK = {"n_latent": 1, "n_restarts": 1, "max_iter": 200, "n_inducing_inputs": 5, "n_inducing_latents": 3}
# What the common checks ask for and the model does not allow, each with its reason.
EXCLUDED = {
    "check_dtype_object": "what is wrong with data is a DataError, also an entry that is no number; never a TypeError",
    "check_supervised_y_2d": "a two-dimensional y is a grid of conditions, so a column of one needs no warning",
}


@pytest.fixture
def no_search(monkeypatch):
    """Fits that end where they start: conventions do not depend on it, and every shape of data is compiled for."""

    def unmoved(objective, start, *data, **settings):
        return Run(start, 0.0, Status.CONVERGED, (0.0,), 1, 0.0)

    for module in ("starts", "restarts"):
        monkeypatch.setattr(f"lvmogp.inference.{module}.maximise", unmoved)


@pytest.mark.filterwarnings("ignore::lvmogp.LVMOGPWarning")
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")
@parametrize_with_checks(
    [PapersModel(n_latent=1, n_restarts=1, max_iter=5, n_inducing_inputs=4, n_inducing_latents=1)],
    expected_failed_checks=lambda _: EXCLUDED,
)
def test_the_common_checks_pass(estimator, check, request):
    if check.func.__name__ != "check_regressors_train":  # which asks for a good fit
        request.getfixturevalue("no_search")
    check(estimator)


@pytest.fixture(scope="module")
def lines():
    """Five lines of ten points; the slope belongs to the line."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(0, 10, 50), "line": np.repeat(list("abcde"), 10)})
    y = np.repeat([1.0, 1.5, 2.0, 2.5, 3.0], 10) * table["x"] + 0.1 * rng.standard_normal(50)
    order = rng.permutation(50)
    return table.loc[order].reset_index(drop=True), y.rename("height")[order].reset_index(drop=True)


def regressor(**settings):
    return PapersModel(**{"condition": "line", **QUICK, **settings})


@pytest.fixture
def model(lines, no_search):
    return regressor().fit(*lines)


def test_the_condition_column_travels_through_a_pipeline(lines, model):
    table, y = lines
    scaled = ColumnTransformer([("x", MinMaxScaler(), ["x"])], remainder="passthrough", verbose_feature_names_out=False)
    pipeline = make_pipeline(scaled.set_output(transform="pandas"), regressor()).fit(table, y)
    # Inputs are standardised inside, so scaling them before changes nothing but rounding.
    assert_allclose(pipeline.predict(table), model.predict(table), rtol=0, atol=1e-4 * np.ptp(y))
    assert list(pipeline[-1].feature_names_in_) == ["x", "line"]


@pytest.mark.long
def test_settings_are_searched_over(lines):
    table, y = lines
    kernels, scores = {"input_kernel": ["rbf", "matern52"]}, {"r2": "r2", "density": log_density_score}
    search = GridSearchCV(regressor(), kernels, scoring=scores, refit="density", cv=KFold(2), error_score="raise")
    search.fit(table, y)
    by_hand = []
    for train, test in KFold(2).split(table):
        model = regressor(input_kernel="matern52").fit(table.iloc[train], y.iloc[train])
        by_hand.append(np.mean(model.log_predictive_density(table.iloc[test], y.iloc[test])))
    assert_allclose(search.cv_results_["mean_test_density"][1], np.mean(by_hand), rtol=1e-9)
    assert search.best_index_ == np.argmax(search.cv_results_["mean_test_density"])
    assert search.cv_results_["mean_test_r2"].min() > 0.95


@pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8),
    reason="before 1.8, scikit-learn's cross-validation does not hand what a pipeline's score asks for on to it",
)
def test_conditions_are_routed_beside_the_inputs(lines, no_search):
    table, y = lines
    with config_context(enable_metadata_routing=True):
        model = regressor(condition=None).set_fit_request(conditions=True).set_score_request(conditions=True)
        pipeline, beside = make_pipeline(StandardScaler(), model), {"conditions": table["line"].to_numpy()}
        inputs = table[["x"]].to_numpy()
        routed = cross_val_score(pipeline, inputs, y, params=beside, cv=KFold(2), error_score="raise")
    assert_allclose(routed, cross_val_score(regressor(), table, y, cv=KFold(2)), atol=1e-4)


def test_names_and_numbers_of_columns_are_those_of_the_table(lines, model, tmp_path):
    table, y = lines
    model.save(tmp_path / "m")
    for each in (model, LVMOGPRegressor.load(tmp_path / "m")):
        assert each.n_features_in_ == 2
        assert list(each.feature_names_in_) == ["x", "line"]
    assert not hasattr(clone(model), "n_features_in_")
    plain = regressor(condition=None).fit(table[["x"]].to_numpy(), y, conditions=table["line"])
    assert plain.n_features_in_ == 1
    assert not hasattr(plain, "feature_names_in_")


def test_tables_of_polars_give_the_same_answers(lines, model):
    table, y = lines
    theirs = pl.DataFrame({name: table[name].to_list() for name in table.columns})
    found = regressor().fit(theirs, pl.Series("height", y.to_list()))
    assert_array_equal(found.predict(theirs), model.predict(table))
    assert found.model_.schema.output_name == "height"
    assert_array_equal(found.predict(theirs.select("x"), theirs["line"]), model.predict(table))


def test_copies_are_the_same_and_a_pickle_keeps_its_precision_where_float64_is_off(tmp_path):
    model = forgetting(fitted("grid", answers="fit")).add_condition("new", [[0.4], [1.5]], [0.9, -0.2])
    assert_array_equal(copy.deepcopy(model).predict([[0.1]], "new"), model.predict([[0.1]], "new"))
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    code = (
        "import pickle, sys, pathlib\n"
        "model = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(*(value.hex() for name in ('a', 'new') for value in model.predict([[0.1], [1.7]], name).tolist()))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "model"], check=True, capture_output=True, text=True)
    expected = [*model.predict([[0.1], [1.7]], "a"), *model.predict([[0.1], [1.7]], "new")]
    assert_allclose([float.fromhex(value) for value in run.stdout.split()], expected, rtol=1e-12)
