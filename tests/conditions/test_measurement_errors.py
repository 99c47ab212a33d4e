"""Known errors of measurements against dense Gaussians with a noise of their own for each observation."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import references
import scipy.stats
from drawn_models import fitted, forgetting, with_made

from lvmogp import LVMOGPRegressor
from lvmogp.errors import LVMOGPWarning

# A new condition


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


# From the door


@pytest.fixture(scope="module")
def measured() -> tuple[LVMOGPRegressor, pd.DataFrame]:
    """One curve, half of whose measurements are worth little."""
    rng = np.random.default_rng(54)
    x = np.sort(rng.uniform(-2, 2, 24))
    error = np.where(np.arange(24) % 2, 0.02, 0.8)
    y = np.sin(2 * x) + 0.05 * rng.standard_normal(24) + error * rng.standard_normal(24)
    frame = pd.DataFrame({"x": x, "y": y, "error": error})
    model = LVMOGPRegressor(n_latent=0, n_inducing_inputs=24)
    with pytest.warns(LVMOGPWarning, match="one condition only"):
        model.fit(frame[["x"]], y, condition_features=[[1.0]], y_std=error)
    return model, frame


def test_predictions_are_those_of_the_dense_gp_with_unequal_noise(measured):
    model, frame = measured
    parameters, scaling = model.model_.posterior.parameters, model.model_.scaling
    points = scaling.inputs(frame[["x"]].to_numpy())
    prior = float(parameters.latent_kernel.variance) * references.covariance(parameters.input_kernel, points, points)
    noise = float(parameters.noise_variance[0])
    covariance = prior + np.diag(noise + (frame["error"].to_numpy() / scaling.output_scale) ** 2)
    gain = np.linalg.solve(covariance, prior).T
    mean, std = model.predict(frame[["x"]], return_std=True)
    np.testing.assert_allclose(mean, scaling.location(gain @ scaling.outputs(frame["y"].to_numpy())), atol=1e-4)
    variance = np.diag(prior - gain @ prior) + noise  # the noise σ² only: errors of measurements to come are not known
    np.testing.assert_allclose(std, np.sqrt(scaling.variance(variance)), rtol=1e-4)
    # Measurements that are worth little hardly pull.
    assert np.sqrt(np.mean((mean - np.sin(2 * frame["x"])) ** 2)) < 0.15
    assert np.sqrt(noise) * scaling.output_scale < 0.2


def test_errors_are_kept_with_the_model_and_its_added_conditions(measured):
    model, frame = measured
    sure, unsure = copy.copy(model), copy.copy(model)
    sure.add_condition("new", [[0.5]], [3.0], y_std=0.01)
    unsure.add_condition("new", [[0.5]], [3.0], y_std=[5.0])
    at = pd.DataFrame({"x": [0.5]})
    assert unsure.predict(at, "new") < sure.predict(at, "new") - 0.3
    sure.add_condition("new", [[0.6]], [2.0], y_std=5.0)
    np.testing.assert_array_equal(sure.model_.added["new"].errors, [0.01, 5.0])
    other = pickle.loads(pickle.dumps(sure))
    np.testing.assert_allclose(other.predict(at, "new"), sure.predict(at, "new"), rtol=1e-12)
    np.testing.assert_array_equal(other.model_.observations.errors, frame["error"])
    absorbed = sure.absorb()
    np.testing.assert_array_equal(absorbed.model_.observations.errors, [*frame["error"], 0.01, 5.0])


@pytest.mark.filterwarnings("ignore:predictions are not calibrated")
@pytest.mark.parametrize(("answers", "transform"), [("draws", None), ("fit", "log"), ("draws", "sqrt")])
def test_held_out_measurements_are_judged_with_their_errors(answers, transform):
    """Against the density and the probability without an error, averaged over what the error may have been."""
    plain = fitted("long", answers=answers, transform=transform)
    model = with_made(plain, "new", np.array([[0.4]]), np.array([1.2]))
    inputs, conditions = np.array([[0.3], [0.9], [1.4], [1.9]]), ["a", "d", "new", "new"]
    outputs, errors = np.array([0.8, 1.5, 0.4, 1.1]), np.array([0.5, 0.0, 0.1, 0.9])
    if transform == "sqrt":
        outputs, errors = 4 + outputs, errors / 2  # roots far from zero
    steps = np.linspace(-8, 8, 1601)
    density, below = [], []
    for point, name, output, error in zip(inputs, conditions, outputs, errors, strict=True):
        weights = scipy.stats.norm.pdf(steps) * (steps[1] - steps[0])
        if transform == "log":
            possible = output * np.exp(-error / output * steps)
            jacobian = possible / output
        elif transform == "sqrt":
            own = (np.sqrt(output + error) - np.sqrt(max(output - error, 0))) / 2
            # The distribution goes on below a root of zero, where no output has it.
            roots = np.sqrt(output) - own * steps
            possible, jacobian = roots**2, roots / np.sqrt(output)
            assert np.all(weights[roots <= 0] < 1e-7)
            weights = weights * (roots > 0)
        else:
            possible, jacobian = output - error * steps, 1.0
        asked = np.broadcast_to(point, (len(steps), 1)), possible, name
        density.append(np.log(weights @ (np.exp(model.log_predictive_density(*asked)) * jacobian)))
        below.append(weights @ model.predictive_cdf(*asked))
    given = inputs, outputs, conditions
    np.testing.assert_allclose(model.log_predictive_density(*given, y_std=errors), density, rtol=1e-6)
    np.testing.assert_allclose(model.predictive_cdf(*given, y_std=errors), below, rtol=1e-6)
    found = model.calibration(*given, y_std=errors, levels=[0.5])
    assert found.log_density == pytest.approx(np.mean(density), rel=1e-6)
    assert found.coverage["coverage"][0] == np.mean(np.abs(2 * np.array(below) - 1) <= 0.5)


def test_errors_of_a_grid_belong_to_its_columns():
    model = fitted("grid")
    inputs, rng = np.array([[0.3], [1.2]]), np.random.default_rng(5)
    y = pd.DataFrame(rng.normal(size=(2, 5)), columns=list("abcde"))
    errors = pd.DataFrame(rng.uniform(0, 1, (2, 5)), columns=list("abcde"))
    expected = [model.predictive_cdf(inputs, y[name], name, y_std=errors[name].to_numpy()) for name in errors.columns]
    for given in (errors, errors[list("edcba")], errors.to_numpy()):
        np.testing.assert_allclose(model.predictive_cdf(inputs, y, y_std=given), np.transpose(expected), rtol=1e-9)
