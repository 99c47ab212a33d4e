"""What a model says about itself agrees with loops over its predictions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from lvmogp.conditions.predictions import gaussian_moments
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError

from lvmogp import LVMOGPRegressor
from lvmogp.errors import SettingError
from lvmogp.insight.leave_out import _folds, _without_inducing, leave_out_calibration
from lvmogp.insight.summary import (
    _about_the_fit,
    input_relevance,
    latent_relevance,
    leave_out,
    noise,
    remarks,
    summary,
)
from lvmogp.model.layouts import GridData, long_data
from lvmogp.model.posterior import posterior, trained_curves

# Lines need few inducing inputs; more lie so close in what they say that answers are known to fewer digits.
QUICK = {"n_restarts": 1, "max_iter": 400, "n_inducing_inputs": 3, "n_inducing_latents": 3}


def curves(seed=0, n_each=8, slopes=(1.0, 2.0, 3.0, 4.0)):
    """Lines whose slope is the condition's; the second input does nothing."""
    rng = np.random.default_rng(seed)
    n = n_each * len(slopes)
    inputs = pd.DataFrame({"x": rng.uniform(0, 1, n), "idle": rng.uniform(0, 1, n)})
    inputs["line"] = np.repeat([f"line {number}" for number in range(len(slopes))], n_each)
    outputs = np.repeat(slopes, n_each) * (inputs["x"] + 0.5) + 0.05 * rng.standard_normal(n)
    return inputs, outputs.rename("height")


@pytest.fixture(scope="module")
def fitted():
    return LVMOGPRegressor(n_latent=1, condition="line", **QUICK).fit(*curves())


@pytest.fixture(scope="module")
def fitted_grid():
    rng = np.random.default_rng(3)
    X = np.linspace(0, 1, 11)[:, None]
    Y = np.exp(X * np.array([0.5, 1.0, 1.5]) + 0.02 * rng.standard_normal((11, 3)))
    return LVMOGPRegressor(n_latent=1, output_transform="log", **(QUICK | {"n_inducing_latents": 3})).fit(X, Y)


@pytest.mark.parametrize("question", [summary, remarks, noise, leave_out, input_relevance, latent_relevance])
def test_a_model_that_is_not_fitted_says_so(question):
    with pytest.raises(NotFittedError, match="this LVMOGPRegressor is not fitted yet; call fit"):
        question(LVMOGPRegressor())


# Relevance


def test_relevance_is_the_total_effect_of_each_coordinate(fitted):
    model = fitted.model_
    inputs, latents = model.observations.inputs, np.asarray(model.posterior.parameters.latent_mean)
    points = np.hstack([inputs, latents[model.observations.conditions]])

    def predicted(rows):
        return fitted.predict_at_latent(rows[:, :2], rows[:, 2:])

    # All pairs of observations, where the library draws some.
    here, other = np.repeat(points, len(points), axis=0), np.tile(points, (len(points), 1))
    values, expected = predicted(here), []
    for q in range(3):
        moved = here.copy()
        moved[:, q] = other[:, q]
        expected.append(np.mean((predicted(moved) - values) ** 2) / (2 * np.var(values)))
    found = [*input_relevance(fitted)["relevance"], *latent_relevance(fitted)["relevance"]]
    assert_allclose(found, expected, rtol=0.08, atol=1e-4)  # four standard errors of 4096 pairs
    assert found[0] > 0.2
    assert found[1] < 0.01
    assert found[2] > 0.4


def test_relevance_needs_no_data(fitted, tmp_path):
    fitted.save(tmp_path / "m", include_data=False)
    found = input_relevance(LVMOGPRegressor.load(tmp_path / "m"))
    assert list(found["input"]) == ["x", "idle"]
    assert found["relevance"][0] > 0.2
    assert found["relevance"][1] < 0.01


# Noise


def test_noise_is_what_separates_an_observation_from_the_function(fitted):
    table = noise(fitted)
    X, _ = curves()
    _, of_observation = fitted.predict(X, return_std=True)
    _, of_function = fitted.predict(X, return_std=True, include_noise=False)
    by_row = table.set_index("condition")["noise_sd"].loc[X["line"]].to_numpy()
    assert_allclose(by_row, np.sqrt(of_observation**2 - of_function**2), rtol=1e-6)


# Observations left out


def left_out_by_hand(model, data_of):
    """The mean and variance of each observation given the other folds, from data made anew for each fold."""
    seen = model.model_.observations
    scaling = model.model_.scaling
    whole = data_of is grid_of
    folds = _folds(seen, n_folds=5, whole_inputs=whole)
    parameters = _without_inducing(model.model_.posterior.parameters)
    mean, variance = np.empty(len(folds)), np.empty(len(folds))
    for fold in range(5):
        rest, out = folds != fold, folds == fold
        data = data_of(scaling.inputs(seen.inputs[rest]), scaling.outputs(seen.outputs[rest]), seen.conditions[rest])
        anew = posterior(parameters, data)
        noises = np.asarray(parameters.noise_per_condition)
        found = gaussian_moments(
            anew, trained_curves(anew), noises, scaling.inputs(seen.inputs[out]), seen.conditions[out]
        )
        mean[out], variance[out] = found.mean, found.variance + found.noise
    return scaling.location(mean), scaling.variance(variance), seen.outputs


def long_of(inputs, outputs, conditions):
    return long_data(inputs, outputs, conditions, 4)


def grid_of(inputs, outputs, conditions):
    order = np.lexsort((conditions, inputs[:, 0]))
    return GridData(jnp.asarray(inputs[order][::3]), jnp.asarray(outputs[order].reshape(-1, 3)))


def test_long_data_left_out_are_predicted_from_the_rest(fitted):
    with jax.enable_x64(True):
        mean, variance, actual = left_out_by_hand(fitted, long_of)
    found = leave_out(fitted)
    error = actual - mean
    assert_allclose(found.rmse, np.sqrt(np.mean(error**2)), rtol=1e-9)
    assert_allclose(found.coverage, np.mean(np.abs(error) < 1.959964 * np.sqrt(variance)), rtol=1e-12)
    density = -0.5 * np.mean(np.log(2 * np.pi * variance) + error**2 / variance)
    assert_allclose(found.log_density, density, rtol=1e-9)
    assert_allclose(found.spread, np.std(actual), rtol=1e-12)
    assert found.n_observations == 32


@pytest.mark.long
def test_inputs_of_a_grid_left_out_are_predicted_from_the_rest(fitted_grid):
    with jax.enable_x64(True):
        mean, variance, actual = left_out_by_hand(fitted_grid, grid_of)
    found = leave_out(fitted_grid)
    assert_allclose(found.rmse, np.sqrt(np.mean((np.exp(mean + variance / 2) - actual) ** 2)), rtol=1e-9)
    error = np.log(actual) - mean
    density = np.mean(-0.5 * (np.log(2 * np.pi * variance) + error**2 / variance) - np.log(actual))
    assert_allclose(found.log_density, density, rtol=1e-9)


def test_without_its_data_a_model_cannot_be_checked(fitted, tmp_path):
    fitted.save(tmp_path / "m", include_data=False)
    assert leave_out(LVMOGPRegressor.load(tmp_path / "m")) is None


@pytest.mark.parametrize("y_std", [None, 0.1])
def test_an_only_input_cannot_be_left_out(y_std):
    model = LVMOGPRegressor(1, **QUICK | {"n_inducing_inputs": 1}).fit([[0.5]], [[1.0, 2.0, 4.0]], y_std=y_std)
    assert leave_out(model) is None


def test_what_is_left_out_is_predicted_from_something(fitted):
    for check in (leave_out, leave_out_calibration):
        with pytest.raises(SettingError, match="n_folds must be a whole number from 2 on, got 1"):
            check(fitted, n_folds=1)


# Remarks and summary


def remarked(X, y, **settings):
    return " ".join(remarks(LVMOGPRegressor(condition="line", **(QUICK | settings)).fit(X, y)))


def test_a_jitter_worth_knowing_of_is_remarked(fitted):
    jittered = fitted.outcome_._replace(jitter_latents=2e-4)
    found = _about_the_fit(fitted.model_._replace(outcome=jittered))
    assert found[0].startswith("A jitter of 2e-04 of the variance was needed to keep the algebra stable; use fewer")
    assert not any("jitter" in remark for remark in _about_the_fit(fitted.model_))


@pytest.mark.filterwarnings("ignore::lvmogp.ConvergenceWarning")
def test_remarks_say_what_a_careful_reader_would_ask():
    X, y = curves()
    assert "The fit did not converge (" in remarked(X, y, max_iter=2)

    X, _ = curves(n_each=40)
    nothing = remarked(X, pd.Series(np.random.default_rng(0).standard_normal(len(X))))
    assert "the inputs and conditions explain little" in nothing
    assert "no latent dimension is used" in nothing


def test_remarks_name_what_is_not_used(fitted):
    text = " ".join(remarks(fitted))
    assert "Input 'idle' hardly matters" in text
    assert "Input 'x'" not in text


@pytest.mark.long
def test_remarks_count_conditions_with_one_observation():
    X, y = curves()
    lonely = pd.concat([X, pd.DataFrame({"x": [0.5], "idle": [0.5], "line": ["lonely"]})], ignore_index=True)
    assert "1 of 5 conditions had a single observation." in remarked(lonely, pd.Series([*y, 2.0]))


@pytest.mark.filterwarnings("ignore::lvmogp.LVMOGPWarning")
def test_remarks_name_conditions_without_observations():
    X, y = curves()
    y[X["line"] == "line 2"] = np.nan
    assert "condition 'line 2' had no observation" in remarked(X, y)


def test_the_summary_holds_what_json_can_hold(fitted):
    found = summary(fitted)
    assert (found.n_observations, found.n_conditions, found.output) == (32, 4, "height")
    assert found.inputs == ["x", "idle"]
    assert found.bound == fitted.outcome_.bound
    document = json.loads(json.dumps(found.as_dict()))
    assert document["leave_out"]["rmse"] == found.leave_out.rmse
    assert document["noise"][1] == {"condition": "line 1", "noise_sd": found.noise["noise_sd"][1]}
    assert document["input_relevance"][0]["input"] == "x"
