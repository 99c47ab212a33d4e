"""Known features of conditions: coordinates of variance zero, special cases, missing values, new conditions."""

import copy
import json
import pickle
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from command_line import failed, succeeded
from drawn_models import with_draws

from lvmogp import LVMOGPRegressor
from lvmogp.cli.files.roles import read_features
from lvmogp.errors import DataError, LVMOGPWarning, SettingError, UnknownConditionError
from lvmogp.fitted.model import added_latents
from lvmogp.ground.compiling import compiled
from lvmogp.insight.relevance import feature_relevance, latent_relevance
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
    levels = np.hstack(
        [
            np.equal.outer(table["motor"].to_numpy(), list("ABC")),
            np.equal.outer(table["screw"].to_numpy(), [False, True]),
        ]
    )
    lengthscales = np.asarray(parameters.latent_kernel.lengthscale) * fitted.descriptions.scale  # in units of 0 and 1
    steps = (levels[:, None].astype(float) - levels[None]) / lengthscales
    correlation = np.exp(-np.sum(steps**2, axis=2) / 2)
    between = correlation * float(parameters.latent_kernel.variance)

    def prior(first, second):
        (x, rows), (other, columns) = first, second
        apart = (x[:, None] - other[None]) / float(parameters.input_kernel.lengthscale[0])
        own = float(parameters.input_kernel.variance) * np.exp(-(apart**2) / 2)
        return own * between[np.ix_(rows, columns)]

    def points(x, conditions):
        return scaling.inputs(np.asarray(x)[:, None])[:, 0], table.index.get_indexer(conditions)

    seen = points(frame["x"], frame["linkage"])
    covariance = prior(seen, seen) + float(parameters.noise_variance[0]) * np.eye(len(y))
    values = scaling.outputs(y)
    evidence = -values @ np.linalg.solve(covariance, values) / 2 - np.linalg.slogdet(2 * np.pi * covariance)[1] / 2

    def predict(x, conditions):
        new = points(x, conditions)
        gain = np.linalg.solve(covariance, prior(seen, new)).T
        variance = np.diag(prior(new, new) - gain @ prior(seen, new)) + float(parameters.noise_variance[0])
        return scaling.location(gain @ values), np.sqrt(scaling.variance(variance))

    return evidence, predict


@pytest.fixture(scope="module")
def factors():
    """A model without latents, with as many inducing points as there are inputs and conditions."""
    frame, y, table = factor_data()
    model = LVMOGPRegressor(n_latent=0, condition="linkage", n_inducing_inputs=30)
    return model.fit(frame, y, condition_features=table), frame, y, table


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
    model = LVMOGPRegressor("auto", condition="linkage", n_inducing_inputs=8, n_restarts=1, max_iter=60)
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
    model = LVMOGPRegressor(n_latent=1, n_restarts=2, n_inducing_inputs=6, n_inducing_latents=10)
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
    known = model.model_.posterior.parameters.known
    found = model.model_.descriptions.mean[0] + model.model_.descriptions.scale[0] * float(known.missing_mean[0])
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


@pytest.mark.long
def test_all_known_and_no_latents_needs_no_particles():
    frame, y, table = factor_data()
    left_out = (frame["linkage"] == "z").to_numpy()
    model = LVMOGPRegressor(n_latent=0, condition="linkage", n_inducing_inputs=25)
    model.fit(frame[~left_out], y[~left_out], condition_features=table)
    # Described by the table of the fit, though never observed.
    model.unseen = "prior"
    mean, std = model.predict(frame[left_out], return_std=True)
    _, predict = exact_gp(model, frame[~left_out], y[~left_out], table)
    expected_mean, expected_std = predict(frame["x"][left_out], frame["linkage"][left_out])
    np.testing.assert_allclose(mean, expected_mean, atol=2e-4)
    np.testing.assert_allclose(std, expected_std, rtol=2e-3)
    few = np.flatnonzero(left_out)[:2]
    X, added = frame.drop(columns="linkage").iloc[few], copy.copy(model)
    for method in ("exact", "gaussian"):
        added.add_condition(method, X, y[few], features=table.loc["z"], method=method)
    assert added.model_.added["exact"].condition.weights.shape == (1, 1)
    # The dense GP with those two observations as well.
    rows = [*np.flatnonzero(~left_out), *few]
    _, predict = exact_gp(model, frame.iloc[rows], y[rows], table)
    mean, std = added.predict(frame.drop(columns="linkage")[left_out], "exact", return_std=True)
    expected_mean, expected_std = predict(frame["x"][left_out], frame["linkage"][left_out])
    np.testing.assert_allclose(mean, expected_mean, atol=1e-3)
    np.testing.assert_allclose(std, expected_std, rtol=1e-2)


# Keeping a model


@pytest.mark.long
def test_a_model_with_features_survives_saving_pickling_and_absorbing(slopes, tmp_path):
    model, _, _ = slopes
    full = copy.copy(model)
    full.add_condition("known", [[0.1], [0.5]], [0.3, 0.6], features=[0.4])
    full.add_condition("unknown", [[-0.9], [0.1], [0.9]], [-0.7, 0.0, 0.8])
    full.save(tmp_path / "model.lvmogp")
    X = np.linspace(-1, 1, 4)[:, None]
    asked = [*("known", "unknown"), 3, 0]
    for other in (LVMOGPRegressor.load(tmp_path / "model.lvmogp"), pickle.loads(pickle.dumps(full))):
        for name in asked:
            np.testing.assert_allclose(other.predict(X, name), full.predict(X, name), rtol=1e-12)
        pd.testing.assert_frame_equal(other.condition_features_, full.condition_features_)
        later = {"never": {"slope": None}}
        np.testing.assert_allclose(
            other.predict(X, "never", condition_features=later),
            full.predict(X, "never", condition_features=later),
            rtol=1e-12,
        )
    before = full.latents_
    absorbed = copy.copy(full).absorb()
    np.testing.assert_allclose(absorbed.latents_["mean_1"], before["mean_1"], rtol=1e-12)
    latents = absorbed.model_.posterior.parameters.latents
    added = [added_latents(full.model_, full.model_.added[name]) for name in ("known", "unknown")]
    np.testing.assert_allclose(latents.mean[-2:], np.vstack([each.mean for each in added]), rtol=1e-12)
    np.testing.assert_allclose(latents.variance[-2:], np.vstack([each.variance for each in added]), atol=1e-20)
    assert absorbed.condition_features_["slope"].tolist()[-2:] == [0.4, pytest.approx(np.nan, nan_ok=True)]
    assert not absorbed.condition_features_["added"].any()


@pytest.mark.long
@pytest.mark.parametrize("method", ["exact", "gaussian"])
def test_latents_beside_many_features_may_have_any_kernel(method, tmp_path):
    """One latent and five coordinates of features under a kernel that only quadrature can integrate."""
    frame, y, table = factor_data()
    model = LVMOGPRegressor(n_latent=1, condition="linkage", latent_kernel="matern32", n_restarts=1, unseen="prior")
    model.fit(frame, y, condition_features=table)
    measured = np.sin(4 * np.array([0.2, 0.9]) + 0.7)  # as motor B turns without a screw
    model.add_condition("new", [[0.2], [0.9]], measured, features={"motor": "B", "screw": False}, method=method)
    model.save(tmp_path / "model.lvmogp")
    loaded = LVMOGPRegressor.load(tmp_path / "model.lvmogp")
    X = np.linspace(0, 1, 4)[:, None]
    for name in ("new", "u"):
        np.testing.assert_allclose(loaded.predict(X, name), model.predict(X, name), rtol=1e-12)
    near = model.similarities().loc["new"]
    pd.testing.assert_series_equal(loaded.similarities().loc["new"], near, rtol=1e-10)
    assert near["y"] == near.drop("new").max()  # the other condition with motor B and no screw
    before = model.predict(X, "new")
    np.testing.assert_allclose(before, np.sin(4 * X[:, 0] + 0.7), atol=0.2)
    np.testing.assert_allclose(copy.copy(model).absorb().predict(X, "new"), before, atol=0.1)


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
    model, _, _, _ = factors
    file, saved = tmp_path / "linkages.csv", tmp_path / "m.lvmogp"
    file.write_text("linkage;screw;motor\nz;False;C\nnew;True;\nother;False;B\n")
    features = read_features(file, condition="linkage", known=model.conditions_)
    assert features.index.tolist() == ["z", "new", "other"]
    assert features["motor"].isna().tolist() == [False, True, False]
    assert features["motor"].dropna().tolist() == ["C", "B"]
    (tmp_path / "asked.csv").write_text("linkage,x\nother,0.5\nz,0.5\n")
    model.save(saved)
    described = ["--condition-features", file, "--json"]
    rows = json.loads(succeeded("predict", saved, tmp_path / "asked.csv", *described).stdout)["rows"]
    asked = pd.DataFrame({"x": [0.5]})
    expected = model.predict(asked, "other", condition_features={"other": {"motor": "B", "screw": False}})
    np.testing.assert_allclose([row["mean"] for row in rows], [expected[0], model.predict(asked, "z")[0]], rtol=1e-12)
    suggested = succeeded("suggest", saved, "--condition", "other", "--grid", "x=-1:1:5", *described)
    best = model.suggest("other", np.linspace(-1, 1, 5)[:, None], condition_features=features)
    assert json.loads(suggested.stdout)["measurements"][0]["x"] == best.inputs[0, 0]
    assert json.loads(suggested.stdout)["sd_before"] == pytest.approx(best.sd_before, rel=1e-9)
    (tmp_path / "seen.csv").write_text("linkage,x,y\nother,0.5,1\nz,0.5,2\n")
    checked = succeeded("calibration", saved, tmp_path / "seen.csv", "--output", "y", *described)
    errors = np.array([expected[0] - 1, model.predict(asked, "z")[0] - 2])
    assert json.loads(checked.stdout)["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)
    added = json.loads(succeeded("add-condition", saved, *described).stdout)["added"]
    assert [(row["condition"], row["points"]) for row in added] == [("new", 0), ("other", 0)]
    own = LVMOGPRegressor.load(saved)
    np.testing.assert_allclose(own.predict(asked, "other"), expected, rtol=1e-12)
    assert own.condition_features_["motor"].iloc[-2:].fillna("missing").tolist() == ["missing", "B"]
    third = ["--condition", "third", "--point", "x=0.5,y=1", "--output", "y"]
    for more, words in (
        (third, "have no row for condition 'third'"),
        (["--condition", "z"], "describes no condition that is new to the model and called 'z'"),
    ):
        assert words in failed("add-condition", saved, *described, *more)
    file.write_text("linkage;screw\nz;False\n;True\n")
    with pytest.raises(DataError, match="has no id in column 'linkage' in line 3"):
        read_features(file, condition="linkage", known=())


def test_whole_numbers_in_files_are_the_ids_of_the_table_of_features(factors, tmp_path):
    """A condition of which features alone are kept is predicted from these, not from the prior."""
    model, frame, y, table = factors
    numbers = {name: 100 + place for place, name in enumerate(table.index)}
    later = table.iloc[[0]].set_axis([777], axis=0)
    whole = copy.copy(model)
    whole.fit(
        frame.assign(linkage=frame["linkage"].map(numbers)),
        y,
        condition_features=pd.concat([table.rename(index=numbers), later]),
    )
    whole.save(tmp_path / "m.lvmogp")
    (tmp_path / "asked.csv").write_text("linkage,x\n777,0.5\n")
    expected = whole.predict(pd.DataFrame({"x": [0.5]}), 777, condition_features=later)
    for more in ([], ["--condition", "777"]):
        asked = ["predict", tmp_path / "m.lvmogp", tmp_path / "asked.csv", "--unseen", "prior", "--json", *more]
        (row,) = json.loads(succeeded(*asked).stdout)["rows"]
        np.testing.assert_allclose(row["mean"], expected[0], rtol=1e-9)


def test_relevance_under_draws_moves_the_coordinates_of_a_category_together(factors):
    """Draws that all are the fit itself have the relevances of the fit."""
    model, _, _, _ = factors
    drawn, parameters = copy.copy(model), model.model_.posterior.parameters
    coordinates = np.asarray(parameters.latents.mean)

    def repeated(leaf):
        return jnp.asarray(np.stack([np.asarray(leaf)] * 2))

    draws = Draws(
        input_kernel=jax.tree.map(repeated, parameters.input_kernel),
        latent_kernel=jax.tree.map(repeated, parameters.latent_kernel),
        latents=repeated(coordinates),
        noise_variance=repeated(parameters.noise_variance),
        chain=jnp.zeros(2, int),
        log_weight=jnp.full(2, np.log(0.5)),
    )
    drawn.model_ = with_draws(model.model_, draws)
    found, expected = feature_relevance(drawn), feature_relevance(model)
    assert found["feature"].tolist() == expected["feature"].tolist()
    np.testing.assert_allclose(found["relevance"], expected["relevance"], atol=0.02)


def test_features_are_refused_where_they_cannot_be_used(slopes):
    X, y, ids = np.zeros((4, 1)), np.arange(4.0), list("aabb")
    with pytest.raises(SettingError, match="n_latent=0 leaves nothing to tell conditions apart"):
        LVMOGPRegressor(n_latent=0).fit(X, y, ids)
    with pytest.raises(SettingError, match="cannot take condition_features"):
        LVMOGPRegressor(inference="stochastic").fit(X, y, ids, condition_features=[[1], [2]])
    model, _, _ = slopes
    with pytest.raises(DataError, match="need all features"):
        model.predict_at_latent([[0.0]], [0.0])
    model = copy.copy(model)
    model.model_ = model.model_._replace(descriptions=None)
    assert model.condition_features_ is None
    with pytest.raises(DataError, match="fitted without features"):
        model.add_condition("e", [], [], features=[1.0])
