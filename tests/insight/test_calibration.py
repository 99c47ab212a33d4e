"""Calibration: coverage against a loop, tests that keep their promises on simulated forecasts, a model's answers."""

import numpy as np
import pytest
import scipy.stats
from drawn_models import IDS, curve, fitted

from lvmogp import DataError, LVMOGPWarning
from lvmogp.fitted.calibration import LEVELS, Forecasts, calibration

LEVEL_ARRAY = np.asarray(LEVELS)


def forecasts(seed, *, n_conditions=12, n_points=10, claimed=1.0, shared=0.0, shift=0.0):
    """Gaussian forecasts with a claimed sd of errors whose sd is one; conditions share a part of their errors."""
    rng = np.random.default_rng(seed)
    conditions = np.repeat(np.arange(n_conditions), n_points)
    own = rng.standard_normal(n_conditions * n_points)
    errors = np.sqrt(shared) * rng.standard_normal(n_conditions)[conditions] + np.sqrt(1 - shared) * own + shift
    distribution = scipy.stats.norm(0, claimed)
    names = [f"tyre-{number}" for number in range(n_conditions)]
    return Forecasts(distribution.cdf(errors), distribution.logpdf(errors), -errors, conditions, names), errors


def test_shares_and_standard_errors_are_those_of_loops():
    given, errors = forecasts(1, n_conditions=7, claimed=0.7, shared=0.4)
    found = calibration(given, LEVEL_ARRAY)
    n = len(errors)
    for level, row in zip(LEVELS, found.coverage.to_dict("records"), strict=True):
        half = 0.7 * scipy.stats.norm.ppf((1 + level) / 2)
        inside = [abs(error) <= half for error in errors]
        share = sum(inside) / n
        assert row["coverage"] == pytest.approx(share, abs=1e-12)
        sums = [sum(inside[i] - share for i in range(n) if given.conditions[i] == d) for d in range(7)]
        clustered = np.sqrt(7 / 6 * sum(value**2 for value in sums)) / n
        assert row["standard_error"] == pytest.approx(max(clustered, np.sqrt(level * (1 - level) / n)), rel=1e-12)
    assert found.rmse == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found.log_density == pytest.approx(np.mean(scipy.stats.norm(0, 0.7).logpdf(errors)))
    second = found.by_condition.iloc[1]
    own = errors[10:20]
    assert (second["condition"], second["n"]) == ("tyre-1", 10)
    assert second["rmse"] == pytest.approx(np.sqrt(np.mean(own**2)))
    assert second["coverage"] == np.mean(np.abs(own) <= 0.7 * scipy.stats.norm.ppf(0.975))
    assert second["mean_probability_below"] == pytest.approx(np.mean(given.probability_below[10:20]))


@pytest.mark.parametrize(("n_conditions", "shared"), [(12, 0.0), (12, 0.5), (1, 0.0), (60, 0.8)])
def test_right_intervals_are_seldom_called_wrong(n_conditions, shared):
    n_points = 120 // n_conditions
    found = [
        calibration(forecasts(seed, n_conditions=n_conditions, n_points=n_points, shared=shared)[0], LEVEL_ARRAY)
        for seed in range(120)
    ]
    assert np.mean([each.intervals_are_off for each in found]) <= 0.08
    assert np.mean([len(each.remarks) > 0 for each in found]) <= 0.16
    # Sums over few conditions that share errors are skewed, which Hotelling's test is not made for.
    assert np.mean([each.uniformity < 0.05 for each in found]) <= 0.15


@pytest.mark.parametrize(
    ("wrong", "verdict", "words"),
    [
        ({"claimed": 0.5, "shared": 0.2}, "too narrow", "are too narrow. Try noise='per-condition', more inducing"),
        ({"claimed": 2.0, "shared": 0.2}, "too wide", "they are too wide. Try noise='per-condition', or log outputs"),
        ({"shift": 0.8}, "too narrow", "lie above their predictions more often than not: predictions are too low."),
    ],
)
def test_wrong_predictions_are_called_so(wrong, verdict, words):
    for seed in range(30):
        found = calibration(forecasts(seed, **wrong)[0], LEVEL_ARRAY)
        assert set(found.coverage["verdict"]) <= {"", verdict}
        assert found.intervals_are_off == (found.coverage["verdict"] != "").any()
        assert words in " ".join(found.remarks)
        assert found.uniformity < 0.01


def test_a_condition_whose_intervals_are_too_narrow_is_named():
    given, errors = forecasts(3, n_conditions=20)
    errors[40:50] *= 8
    found = calibration(given._replace(probability_below=scipy.stats.norm.cdf(errors)), LEVEL_ARRAY)
    named = "Intervals are too narrow for condition 'tyre-4': look at the data there, or try noise='per-condition'."
    assert found.remarks[-1] == named


# A model's own


def held_out(noise=0.2):
    rng = np.random.default_rng(1)
    inputs, conditions = rng.uniform(0, 2, (60, 1)), np.repeat(np.arange(5), 12)
    outputs = curve(inputs[:, 0], np.linspace(-1, 1, 5)[conditions]) + noise * rng.standard_normal(60)
    return inputs, outputs, np.array(IDS)[conditions]


@pytest.fixture(scope="module")
def model():
    return fitted("long", answers="fit")


def test_a_model_is_checked_by_its_own_intervals(model):
    inputs, outputs, conditions = held_out()
    outputs[5] = np.nan
    known = np.isfinite(outputs)
    found = model.calibration(inputs, outputs, conditions, levels=[0.6, 0.9])
    for level, share in zip([0.6, 0.9], found.coverage["coverage"], strict=True):
        lower, upper = model.predict_interval(inputs, conditions, level=level)
        assert share == np.mean(((lower <= outputs) & (outputs <= upper))[known])
    assert found.rmse == pytest.approx(np.sqrt(np.mean((model.predict(inputs, conditions) - outputs)[known] ** 2)))
    density = model.log_predictive_density(inputs, outputs, conditions)
    assert found.log_density == pytest.approx(np.mean(density[known]))
    assert found.n_observations == 59
    assert list(found.by_condition["n"]) == [11, 12, 12, 12, 12]
    assert found.as_dict()["coverage"][1]["coverage"] == found.coverage["coverage"][1]


def test_noisier_observations_than_promised_are_a_warning(model):
    with pytest.warns(LVMOGPWarning, match="predictions are not calibrated: .* intervals hold only .* too narrow"):
        model.calibration(*held_out(noise=0.6))


def test_what_cannot_be_checked(model):
    inputs, outputs, conditions = held_out()
    with pytest.raises(DataError, match="no held-out observations"):
        model.calibration(inputs, np.full(len(outputs), np.nan), conditions)
    with pytest.raises(DataError, match="X has 60 rows but y has 59"):
        model.calibration(inputs, outputs[1:], conditions)
