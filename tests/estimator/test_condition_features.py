"""Known features of conditions: coordinates of variance zero, special cases, missing values, new conditions."""

import copy
import json
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import references
from command_line import failed, succeeded
from drawn_models import with_draws
from papers_model import PapersModel

from lvmogp import LVMOGPRegressor
from lvmogp.cli.files.roles import read_features
from lvmogp.errors import DataError, LVMOGPWarning, SettingError, UnknownConditionError
from lvmogp.ground.compiling import compiled
from lvmogp.insight.summary import feature_relevance, latent_relevance
from lvmogp.model.bounds import collapsed
from lvmogp.model.draws import Draws
from lvmogp.model.layouts import standardised
from lvmogp.plots import plot_latent_space, plot_latents, plot_new_condition, plot_relevance

# The special case without latents: a GP over inputs beside one-hot factors


def factor_data(seed: int = 41) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame]:
    """Six conditions, crossed of three motors and two screws, at uneven inputs."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"motor": list("ABCABC"), "screw": [True, True, True, False, False, False]}, index=list("uvwxyz")
    )
    numbers = np.repeat(np.arange(6), 5)
    x = rng.uniform(0, 1, 30)
    shift = {"A": 0.0, "B": 0.7, "C": 1.5}
    y = np.sin(4 * x + [shift[table["motor"].iloc[n]] for n in numbers]) + 0.5 * table["screw"].to_numpy()[numbers]
    y = y + 0.05 * rng.standard_normal(30)
    return pd.DataFrame({"x": x, "linkage": table.index[numbers]}), y, table


def exact_gp(model: LVMOGPRegressor, frame: pd.DataFrame, y: np.ndarray, table: pd.DataFrame):
    """Log marginal likelihood and predictions of the dense GP on [x, one-hot], from the fitted hyperparameters."""
    fitted = model.model_
    parameters, scaling = fitted.posterior.parameters, fitted.scaling
    columns = (table["motor"].to_numpy(), list("ABC")), (table["screw"].to_numpy(), [False, True])
    levels = np.hstack([np.equal.outer(*column) for column in columns]) / fitted.condition_features.scale

    def rows(x, conditions):
        return scaling.inputs(np.asarray(x)[:, None]), levels[table.index.get_indexer(conditions)]

    seen, values, noise = rows(frame["x"], frame["linkage"]), scaling.outputs(y), float(parameters.noise_variance[0])
    kernels = parameters.kernels.of_inputs[0], parameters.kernels.of_latents[0]
    process = references.process_of_data(*kernels, *seen, values, np.full(len(y), noise))

    def predict(x, conditions):
        new = rows(x, conditions)
        return scaling.location(process.mean(*new)), np.sqrt(scaling.variance(process.variance(*new) + noise))

    return references.log_normal(values, process.prior(*seen, *seen) + noise * np.eye(len(y))), predict


@pytest.fixture(scope="module")
def factors():
    """A model without latents, with as many inducing points as there are inputs and conditions."""
    frame, y, table = factor_data()
    model = PapersModel(n_latent=0, condition="linkage", n_inducing_inputs=30, n_restarts=1)
    return model.fit(frame, y, condition_features=table), frame, y, table


@pytest.mark.long
def test_without_latents_and_with_one_hot_factors_it_is_the_one_hot_gp(factors):
    model, frame, y, table = factors
    evidence, predict = exact_gp(model, frame, y, table)
    data = standardised(model.model_.observations, model.model_.scaling)
    bound = compiled(collapsed)(model.outcome_.parameters, data)
    np.testing.assert_allclose(bound.total, evidence, atol=2e-3)
    np.testing.assert_allclose(bound.penalised, model.outcome_.bound, rtol=1e-9)
    grid = np.linspace(0, 1, 12)
    asked = np.repeat(["u", "z"], 6)
    mean, std = model.predict(pd.DataFrame({"x": grid, "linkage": asked}), return_std=True)
    expected_mean, expected_std = predict(grid, asked)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-4)
    np.testing.assert_allclose(std, expected_std, rtol=1e-3)
    assert model.n_latent_ == 0
    assert list(model.latents_.columns) == ["condition", "added"]


@pytest.mark.long
def test_the_number_of_latents_left_open_may_be_none():
    frame, y, table = factor_data()
    model = PapersModel("auto", condition="linkage", n_inducing_inputs=8, n_restarts=1, max_iter=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame, y, condition_features=table)
    assert list(model.bounds_by_n_latent_)[:2] == [0, 1]
    bounds = model.bounds_by_n_latent_
    assert model.outcome_.bound == bounds[model.n_latent_] > max(bounds.values()) - 1  # a latent must earn its place


# New conditions


@pytest.fixture(scope="module")
def slopes():
    """Lines whose slope is a feature that is known but for an offset, which is latent; the feature misses once."""
    rng = np.random.default_rng(42)
    n_conditions = 10
    slope, offset = rng.uniform(-1, 1, n_conditions), rng.normal(size=n_conditions)
    numbers = np.repeat(np.arange(n_conditions), 8)
    x = rng.uniform(-1, 1, len(numbers))
    y = slope[numbers] * x + 0.5 * offset[numbers] + 0.03 * rng.standard_normal(len(numbers))
    given = slope.copy()
    given[3] = np.nan
    table = pd.DataFrame({"slope": given}, index=range(n_conditions))
    model = PapersModel(n_latent=1, n_restarts=2, n_inducing_inputs=6, n_inducing_latents=10)
    return model.fit(x[:, None], y, conditions=numbers, condition_features=table), slope, offset


def test_features_leave_the_rest_to_the_latents(slopes):
    model, slope, offset = slopes
    # The latent may be any mixture of what is not known with what is: together they tell the offset.
    both = np.column_stack([model.latents_["mean_1"], slope, np.ones(len(slope))])
    left = offset - both @ np.linalg.lstsq(both, offset)[0]
    assert np.var(left) < 0.05 * np.var(offset)  # features alone leave 0.8 of it
    table = model.condition_features_
    assert list(table.columns) == ["condition", "slope", "added"]
    np.testing.assert_array_equal(table["slope"].isna(), np.arange(10) == 3)
    known, features = model.model_.posterior.parameters.known, model.model_.condition_features
    found = features.mean[0] + features.scale[0] * float(known.missing_mean[0])
    assert abs(found - slope[3]) < 0.15  # the missing feature was inferred
    np.testing.assert_array_equal(feature_relevance(model)["feature"], ["slope"])
    assert feature_relevance(model)["relevance"][0] > 0.1
    assert latent_relevance(model)["relevance"][0] > 0.1


def test_a_condition_without_data_is_predicted_from_its_features_and_the_prior_of_its_latents(slopes):
    model, _, _ = slopes
    X = np.linspace(-1, 1, 5)[:, None]
    mean, std = model.predict(X, "never", condition_features={"never": {"slope": 0.7}}, return_std=True)
    # Gauss–Hermite over the latent, the feature held.
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    at = [model.predict_at_latent(X, [node], features=[0.7], return_std=True) for node in nodes]
    weights = weights / weights.sum()
    expected = weights @ np.array([each[0] for each in at])
    second = weights @ np.array([each[1] ** 2 + each[0] ** 2 for each in at])
    np.testing.assert_allclose(mean, expected, atol=2e-3)
    np.testing.assert_allclose(std, np.sqrt(second - expected**2), rtol=5e-3)
    # Everything else that can be asked of a described condition, through the same door.
    asked = {"conditions": "never", "condition_features": {"never": [0.7]}}
    lower, upper = model.predict_interval(X, **asked)
    assert np.all((lower < mean) & (mean < upper))
    assert model.sample(X, n=2, **asked).shape == (2, 5)
    density = model.log_predictive_density(X, mean, **asked)
    assert np.all(np.isfinite(density))
    with pytest.warns(LVMOGPWarning, match="50 % intervals hold 100 %"):
        checked = model.calibration(X, mean, **asked, levels=[0.5])
    assert (checked.rmse, checked.log_density) == (pytest.approx(0, abs=1e-9), pytest.approx(np.mean(density)))
    assert np.all(np.abs(model.predictive_cdf(X, mean, **asked) - 0.5) < 0.2)
    assert np.all(np.isfinite(model.predict_gradient(X, **asked)[0]))
    with pytest.raises(UnknownConditionError):
        model.predict(X, "never")


# Keeping a model


@pytest.mark.long
@pytest.mark.parametrize("method", ["exact", "gaussian"])
def test_latents_beside_many_features_may_have_any_kernel(method, tmp_path):
    """One latent and five coordinates of features under a kernel that only quadrature can integrate."""
    frame, y, table = factor_data()
    model = PapersModel(n_latent=1, condition="linkage", latent_kernel="matern32", n_restarts=1, unseen="prior")
    model.fit(frame, y, condition_features=table)
    measured = np.sin(4 * np.array([0.2, 0.9]) + 0.7)  # as motor B turns without a screw
    model.add_condition("new", [[0.2], [0.9]], measured, features={"motor": "B", "screw": False}, method=method)
    model.save(tmp_path / "model.lvmogp")
    loaded = LVMOGPRegressor.load(tmp_path / "model.lvmogp")
    X = np.linspace(0, 1, 4)[:, None]
    for name in ("new", "u"):
        np.testing.assert_allclose(loaded.predict(X, name), model.predict(X, name), rtol=1e-12)
    pd.testing.assert_frame_equal(loaded.condition_features_, model.condition_features_)
    near = model.similarities().loc["new"]
    pd.testing.assert_series_equal(loaded.similarities().loc["new"], near, rtol=1e-10)
    assert near["y"] == near.drop("new").max()  # the other condition with motor B and no screw
    before = model.predict(X, "new")
    np.testing.assert_allclose(before, np.sin(4 * X[:, 0] + 0.7), atol=0.2)
    absorbed = copy.copy(model).absorb()
    np.testing.assert_allclose(absorbed.predict(X, "new"), before, atol=0.1)
    assert absorbed.condition_features_["motor"].iloc[-1] == "B"
    assert not absorbed.condition_features_["added"].any()


# What people see


def test_pictures_of_a_model_without_latents_say_so(factors):
    model, frame, y, _ = factors
    words = plot_latent_space(model).texts[0].get_text()
    assert words.endswith("motor, screw")
    ticks = [label.get_text() for label in plot_relevance(model).get_yticklabels()]
    assert ticks == ["x", "motor", "screw"]
    with pytest.raises(SettingError, match="dimension must be a number from 1 to 0"):
        plot_latents(model, np.arange(6))
    panels = plot_new_condition(model, frame[["x"]].iloc[:2], y[:2], features={"motor": "A", "screw": True})
    assert panels[0, 0].texts[0].get_text().endswith("motor, screw")
    plt.close("all")


def test_files_of_features_predict_and_add_conditions(factors, tmp_path):
    model = factors[0]
    file, saved = tmp_path / "linkages.csv", tmp_path / "m.lvmogp"
    file.write_text("linkage;screw;motor\nz;False;C\nnew;True;\nother;False;B\n")
    features = read_features(file, condition="linkage", known=model.conditions_)
    assert features.index.tolist() == ["z", "new", "other"]
    assert features["motor"].fillna("missing").tolist() == ["C", "missing", "B"]
    model.save(saved)
    (tmp_path / "seen.csv").write_text("linkage,x,y\nother,0.5,1\nz,0.5,2\n")
    described = ["--condition-features", file, "--json"]

    def told(*arguments):
        return json.loads(succeeded(*arguments, *described).stdout)

    asked = pd.DataFrame({"x": [0.5]})
    expected = model.predict(asked, "other", condition_features={"other": {"motor": "B", "screw": False}})
    means = np.array([expected[0], model.predict(asked, "z")[0]])
    found = told("predict", saved, tmp_path / "seen.csv")["rows"]
    np.testing.assert_allclose([row["mean"] for row in found], means, rtol=1e-12)
    suggested = told("suggest", saved, "--condition", "other", "--grid", "x=-1:1:5")
    best = model.suggest("other", np.linspace(-1, 1, 5)[:, None], condition_features=features)
    assert suggested["measurements"][0]["x"] == best.inputs[0, 0]
    assert suggested["sd_before"] == pytest.approx(best.sd_before, rel=1e-9)
    checked = told("calibration", saved, tmp_path / "seen.csv", "--output", "y")
    assert checked["rmse"] == pytest.approx(np.sqrt(np.mean((means - [1, 2]) ** 2)), rel=1e-9)
    added = told("add-condition", saved)["added"]
    assert [(row["condition"], row["points"]) for row in added] == [("new", 0), ("other", 0)]
    own = LVMOGPRegressor.load(saved)
    np.testing.assert_allclose(own.predict(asked, "other"), expected, rtol=1e-12)
    assert own.condition_features_["motor"].iloc[-2:].fillna("missing").tolist() == ["missing", "B"]
    third = ["--condition", "third", "--point", "x=0.5,y=1", "--output", "y"]
    assert "have no row for condition 'third'" in failed("add-condition", saved, *described, *third)
    words = "describes no condition that is new to the model and called 'z'"
    assert words in failed("add-condition", saved, *described, "--condition", "z")
    file.write_text("linkage;screw\nz;False\n;True\n")
    with pytest.raises(DataError, match="has no id in column 'linkage' in line 3"):
        read_features(file, condition="linkage", known=())


@pytest.mark.filterwarnings("ignore::lvmogp.ConvergenceWarning")
def test_whole_numbers_in_files_are_the_ids_of_the_table_of_features(factors, tmp_path):
    """A condition of which features alone are kept is predicted from these, not from the prior."""
    model, frame, y, table = factors
    numbers = {name: 100 + place for place, name in enumerate(table.index)}
    later = table.iloc[[0]].set_axis([777], axis=0)
    whole = copy.copy(model).set_params(max_iter=3)
    linkages = frame.assign(linkage=frame["linkage"].map(numbers))
    whole.fit(linkages, y, condition_features=pd.concat([table.rename(index=numbers), later]))
    whole.save(tmp_path / "m.lvmogp")
    (tmp_path / "asked.csv").write_text("linkage,x\n777,0.5\n")
    expected = whole.predict(pd.DataFrame({"x": [0.5]}), 777, condition_features=later)
    for more in ([], ["--condition", "777"]):
        asked = ["predict", tmp_path / "m.lvmogp", tmp_path / "asked.csv", "--unseen", "prior", "--json", *more]
        (row,) = json.loads(succeeded(*asked).stdout)["rows"]
        np.testing.assert_allclose(row["mean"], expected[0], rtol=1e-9)


def test_relevance_under_draws_moves_the_coordinates_of_a_category_together(factors):
    """Draws that all are the fit itself have the relevances of the fit."""
    model, parameters = factors[0], factors[0].model_.posterior.parameters
    parts = parameters.kernels, parameters.latents.mean, parameters.noise_variance
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), parts)
    drawn = copy.copy(model)
    drawn.model_ = with_draws(model.model_, Draws(*twice, jnp.zeros(2, int), jnp.full(2, np.log(0.5))))
    found, expected = feature_relevance(drawn), feature_relevance(model)
    assert found["feature"].tolist() == expected["feature"].tolist()
    np.testing.assert_allclose(found["relevance"], expected["relevance"], atol=0.02)


def test_features_are_refused_where_they_cannot_be_used(slopes):
    X, y, ids = np.zeros((4, 1)), np.arange(4.0), list("aabb")
    with pytest.raises(SettingError, match="n_latent=0 leaves nothing to tell conditions apart"):
        PapersModel(n_latent=0).fit(X, y, ids)
    with pytest.raises(SettingError, match="cannot take condition_features"):
        PapersModel(inference="stochastic").fit(X, y, ids, condition_features=[[1], [2]])
    model, _, _ = slopes
    with pytest.raises(DataError, match="need all features"):
        model.predict_at_latent([[0.0]], [0.0])
    model = copy.copy(model)
    model.model_ = model.model_._replace(condition_features=None)
    assert model.condition_features_ is None
    with pytest.raises(DataError, match="fitted without features"):
        model.add_condition("e", [], [], features=[1.0])
