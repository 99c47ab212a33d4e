"""Known errors of measurements against dense Gaussians with a noise of their own for each observation."""

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import references
import scipy.stats
from drawn_models import fitted, forgetting
from small_models import Q_X, DenseProcess, grid_as_long, grid_case, number, rbf, replace, small_model, small_parameters
from test_new_condition import heights

from lvmogp import LVMOGPRegressor
from lvmogp.conditions.evidence import evidence
from lvmogp.conditions.known_latents import known_latents
from lvmogp.conditions.new_condition import noise_prior
from lvmogp.conditions.variational_condition import _bound, _Setting, _Variational
from lvmogp.errors import DataError, LVMOGPWarning, SettingError
from lvmogp.ground.compiling import compiled
from lvmogp.inference.independent import IndependentParameters, independent_bound
from lvmogp.model.bounds import collapsed
from lvmogp.model.layouts import GridData, long_data
from lvmogp.model.parameters import Parameters
from lvmogp.tables.reading import read_errors, read_training
from lvmogp.tables.scaling import scaling_of
from lvmogp.tables.transforms import Logarithm, SquareRoot

compiled_bound, compiled_independent, compiled_variational = (
    compiled(function) for function in (collapsed, independent_bound, _bound)
)


def spread_inputs(n_points: int, seed: int) -> np.ndarray:
    """Points far enough apart that their gram matrix needs no jitter to speak of."""
    rng = np.random.default_rng(seed)
    return np.linspace(-4, 4, n_points)[:, None] + 0.1 * rng.uniform(-1, 1, (n_points, 1))


def exact_log_density(values: np.ndarray, covariance: np.ndarray) -> float:
    return float(scipy.stats.multivariate_normal(np.zeros(len(values)), covariance).logpdf(values))


@pytest.mark.parametrize("noise", [(0.05,), (0.02, 0.05, 0.2)])
def test_the_bound_is_exact_with_enough_inducing_points_and_latents_that_are_known(noise):
    rng = np.random.default_rng(50)
    inputs, latents = spread_inputs(9, 51), np.array([[-1.2], [0.1], [1.3]])
    conditions = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    values, errors = rng.normal(size=9), rng.uniform(0, 0.6, 9) ** 2
    errors[4] = 0.0
    parameters = Parameters(
        input_kernel=rbf([1.1], 1.2),
        latent_kernel=rbf([1.3], 0.9),
        inducing_inputs=jnp.asarray(inputs),
        inducing_latents=jnp.asarray(latents),
        latent_mean=jnp.asarray(latents),
        latent_variance=jnp.full((3, 1), 1e-12, float),
        noise_variance=jnp.asarray(noise),
    )
    data = long_data(inputs, values, conditions, 3, error_variances=errors)
    prior = references.covariance(parameters.input_kernel, inputs, inputs)
    prior *= references.covariance(parameters.latent_kernel, latents, latents)[np.ix_(conditions, conditions)]
    own = np.broadcast_to(noise, 3)[conditions]
    expected = exact_log_density(values, prior + np.diag(own + errors))
    np.testing.assert_allclose(compiled_bound(parameters, data).fit, expected, atol=2e-5)
    shared = IndependentParameters(parameters.input_kernel, parameters.inducing_inputs, number(0.07))
    apart = np.equal.outer(conditions, conditions) * references.covariance(parameters.input_kernel, inputs, inputs)
    expected = exact_log_density(values, apart + np.diag(0.07 + errors))
    np.testing.assert_allclose(compiled_independent(shared, data), expected, atol=2e-5)


def test_equal_errors_keep_a_grid_and_add_to_its_noise():
    parameters, grid = small_parameters(), grid_case().data
    uncertain = GridData(grid.inputs, grid.outputs, number(0.3))
    noisier = replace(parameters, noise_variance=parameters.noise_variance + 0.3)
    expected = compiled_bound(noisier, grid).total
    np.testing.assert_allclose(compiled_bound(parameters, uncertain).total, expected, rtol=1e-12)
    np.testing.assert_allclose(compiled_bound(parameters, grid_as_long(uncertain)).total, expected, rtol=1e-10)
    own = IndependentParameters(parameters.input_kernel, parameters.inducing_inputs, number(0.1))
    own_noisier = IndependentParameters(parameters.input_kernel, parameters.inducing_inputs, number(0.4))
    found = [compiled_independent(own, data) for data in (uncertain, grid_as_long(uncertain))]
    np.testing.assert_allclose(found, compiled_independent(own_noisier, grid), rtol=1e-10)


# A new condition


@pytest.mark.parametrize("n_repeats", [1, 9])
def test_a_new_condition_weighs_its_observations_by_their_errors(n_repeats):
    """Up to 32 observations exactly; more are compressed, which at the inducing inputs loses nothing."""
    model = small_model(1)
    rng = np.random.default_rng(52)
    inputs = np.tile(np.asarray(model.input_basis.points), (n_repeats, 1))
    values, errors = rng.normal(size=len(inputs)), rng.uniform(0, 0.9, len(inputs)) ** 2
    thetas = np.array([[-1.4], [-0.2], [0.9]])
    found = heights(model, evidence(model, inputs, values, errors), thetas)
    expected = []
    for theta in thetas:
        mean, covariance = DenseProcess(model.parameters).at(inputs, theta)
        own = covariance + np.diag(float(model.parameters.noise_variance[0]) + errors)
        expected.append(exact_log_density(values - mean, own) - theta @ theta / 2)
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("draws", [False, True])
def test_a_measurement_that_says_nothing_changes_nothing(draws):
    """However large its error; the precise one beside it counts as before."""
    model = forgetting(fitted("long"))
    if not draws:
        model.model_ = model.model_._replace(draws=None, drawn=None)
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


def test_the_single_gaussian_takes_errors_into_account():
    model = small_model(1)
    noisier = small_model(1, noise=(0.05 + 0.4,))
    rng = np.random.default_rng(53)
    inputs, values = rng.uniform(-2, 2, (3, Q_X)), rng.normal(size=3)
    candidate = _Variational(mean=jnp.array([0.3]), noise_deviation=number(0.0), variance=jnp.array([0.2]))
    found = [
        compiled_variational(candidate, _Setting(each, seen, noise_prior(each), known_latents(each, None)))
        for each, seen in (
            (model, evidence(model, inputs, values, np.full(3, 0.4))),
            (noisier, evidence(noisier, inputs, values)),
        )
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


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


@pytest.mark.long
def test_errors_are_kept_with_the_model_and_its_added_conditions(measured, tmp_path):
    model, frame = measured
    sure, unsure = copy.copy(model), copy.copy(model)
    sure.add_condition("new", [[0.5]], [3.0], y_std=0.01)
    unsure.add_condition("new", [[0.5]], [3.0], y_std=[5.0])
    at = pd.DataFrame({"x": [0.5]})
    assert unsure.predict(at, "new") < sure.predict(at, "new") - 0.3
    sure.add_condition("new", [[0.6]], [2.0], y_std=5.0)
    np.testing.assert_array_equal(sure.model_.added["new"].errors, [0.01, 5.0])
    sure.save(tmp_path / "model.lvmogp")
    for other in (LVMOGPRegressor.load(tmp_path / "model.lvmogp"), pickle.loads(pickle.dumps(sure))):
        np.testing.assert_allclose(other.predict(at, "new"), sure.predict(at, "new"), rtol=1e-12)
        np.testing.assert_array_equal(other.model_.observations.errors, frame["error"])
    absorbed = sure.absorb()
    np.testing.assert_array_equal(absorbed.model_.observations.errors, [*frame["error"], 0.01, 5.0])


@pytest.mark.filterwarnings("ignore:predictions are not calibrated")
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("transform", [None, "log", "sqrt"])
def test_held_out_measurements_are_judged_with_their_errors(draws, transform):
    """Against the density and the probability without an error, averaged over what the error may have been."""
    model = forgetting(fitted("long", transform=transform))
    if not draws:
        model.model_ = model.model_._replace(draws=None, drawn=None)
    model.add_condition("new", [[0.4]], [1.2])
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


def test_intervals_that_know_of_errors_are_not_called_too_narrow():
    """Held-out measurements by a poorer instrument, whose errors are known."""
    model, rng = fitted("long"), np.random.default_rng(8)
    inputs, conditions = rng.uniform(0, 2, (300, 1)), rng.choice(list("abcde"), 300)
    errors = rng.uniform(0.5, 2.0, 300)
    precise = [model.sample(x[None], name, include_noise=True) for x, name in zip(inputs, conditions, strict=True)]
    outputs = np.ravel(precise) + errors * rng.standard_normal(300)
    with pytest.warns(LVMOGPWarning, match="too narrow"):
        model.calibration(inputs, outputs, conditions)
    assert not model.calibration(inputs, outputs, conditions, y_std=errors).intervals_are_off


def test_a_square_root_carries_errors_over():
    """To first order where they are small; at zero as half of the root of the error."""
    outputs, errors = np.array([1.0, 10.0, 100.0, 0.0, 1.0]), np.array([1e-4, 1e-4, 2e-3, 0.04, 3.0])
    scaling = scaling_of(np.arange(5.0)[:, None], outputs, transform=SquareRoot())
    found = np.sqrt(scaling.error_variances(errors, outputs)) * np.sqrt(outputs).std()
    np.testing.assert_allclose(found[:3], errors[:3] / (2 * np.sqrt(outputs[:3])), rtol=1e-7)
    np.testing.assert_allclose(found[3:], [0.1, 1.0], rtol=1e-12)


def test_a_logarithm_carries_errors_over():
    outputs, errors = np.array([1.0, 10.0, 100.0]), np.array([0.1, 0.1, 20.0])
    scaling = scaling_of(np.arange(3.0)[:, None], outputs, transform=Logarithm())
    expected = (errors / outputs / np.log(outputs).std()) ** 2
    np.testing.assert_allclose(scaling.error_variances(errors, outputs), expected)


def test_tables_of_errors_are_matched_by_the_names_of_their_columns():
    y = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "b"])
    errors = pd.DataFrame([[0.2, 0.1], [0.4, 0.3]], columns=["b", "a"])
    found = read_training([[0.0], [1.0]], y, None, y_std=errors)
    np.testing.assert_array_equal(
        np.asarray(found.errors)[np.lexsort((found.inputs[:, 0], found.conditions))], [0.1, 0.3, 0.2, 0.4]
    )
    with pytest.raises(DataError, match="y_std has a column 'c' that y has not"):
        read_training([[0.0], [1.0]], y, None, y_std=errors.rename(columns={"a": "c"}))


def test_errors_have_the_shape_of_the_outputs():
    outputs = np.array([[1.0, np.nan], [2.0, 3.0]])
    np.testing.assert_array_equal(read_errors(0.5, outputs), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(read_errors([[0.1, np.nan], [0.2, 0.3]], outputs), [[0.1, np.nan], [0.2, 0.3]])
    with pytest.raises(DataError, match=r"have the shape of y, \(2, 2\), got shape \(2,\)"):
        read_errors([0.1, 0.2], outputs)
    for wrong in (-0.1, np.nan, np.inf, 1e200):
        with pytest.raises(DataError, match="finite and not negative"):
            read_errors(wrong, outputs)
    with pytest.raises(SettingError, match="cannot take y_std"):
        LVMOGPRegressor(inference="stochastic").fit([[0.0], [1.0]], [0.0, 1.0], ["a", "b"], y_std=0.1)
