"""Measurements to make next, against integration over their outcomes and the posteriors that would follow."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
from small_models import (
    PER_CONDITION,
    Q_X,
    DenseProcess,
    Observed,
    build,
    full_inducing,
    grid_case,
    replace,
    small_model,
    small_parameters,
)

from lvmogp import DataError, LVMOGPRegressor, SettingError
from lvmogp.algebra.gaussians import mixture_quantile
from lvmogp.conditions.evidence import evidence
from lvmogp.conditions.expected_variance import Outlook, nothing_decided, outlook, with_measurement
from lvmogp.conditions.new_condition import condition_on, infer, unit_nodes
from lvmogp.conditions.particle_curves import ConditionCurves
from lvmogp.conditions.predictions import mixture
from lvmogp.fitted.suggestions import N_OUTCOMES, _chosen
from lvmogp.model.posterior import Posterior
from lvmogp.tables.transforms import Logarithm

CANDIDATES = np.random.default_rng(31).uniform(-2, 2, (5, Q_X))
CANDIDATES[4] = CANDIDATES[3] + 0.1  # next to the best one, and useless after it
REGION = np.random.default_rng(32).uniform(-2, 2, (3, Q_X))
SEEN = Observed(np.array([[0.3, -0.4], [1.0, 0.8]]), np.array([0.6, -0.2]))
LATENTS = np.array([[-1.3], [-0.5], [0.1], [0.6], [1.5]])
NOISE = np.array([0.03, 0.05, 0.04, 0.08, 0.05])
WEIGHTS = np.array([0.1, 0.3, 0.25, 0.15, 0.2])


@functools.cache
def loose_model() -> Posterior:
    """A model that knows little of its inducing variables, so that curves are uncertain under each particle too."""
    return build(replace(small_parameters(), inducing=full_inducing(1.2)), grid_case().data)


@functools.cache
def curves() -> ConditionCurves:
    """Five particles, conditioned on two observations."""
    model = loose_model()
    particles = condition_on(
        model, evidence(model, *SEEN), jnp.asarray(LATENTS), jnp.asarray(NOISE), jnp.asarray(np.log(WEIGHTS))
    )
    return ConditionCurves(model.input_basis, particles, particles.latents.shape[1])


class Joint(NamedTuple):
    """Mean and covariance of the candidates' observations, then the targets, under one particle."""

    mean: np.ndarray
    covariance: np.ndarray


@functools.cache
def dense(goal: str) -> list[Joint]:
    """The same by dense matrices; latents are constants under a particle."""
    process = DenseProcess(loose_model().parameters)
    found = []
    for latent, noise in zip(LATENTS, NOISE, strict=True):
        points = np.vstack([CANDIDATES, REGION])
        given = process.given(SEEN, noise, points, latent)
        mean, covariance = given.mean, given.covariance.copy()
        if goal == "latents":
            n = len(CANDIDATES)
            mean = np.concatenate([mean[:n], latent])
            covariance = np.pad(covariance[:n, :n], (0, 1))
        covariance[range(len(CANDIDATES)), range(len(CANDIDATES))] += noise
        found.append(Joint(mean, covariance))
    return found


def integrated(goal: str, measured: list[int], n_nodes: int) -> float:
    """Expected variance of the targets after measuring, by the trapezoidal rule over all outcomes."""
    n, axes = len(CANDIDATES), []
    for place in measured:
        means = np.array([joint.mean[place] for joint in dense(goal)])
        deviations = np.sqrt([joint.covariance[place, place] for joint in dense(goal)])
        axes.append(np.linspace((means - 6 * deviations).min(), (means + 6 * deviations).max(), n_nodes))
    outcomes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(measured))
    densities, means, variances = [], [], []
    for weight, (mean, covariance) in zip(WEIGHTS, dense(goal), strict=True):
        within = covariance[np.ix_(measured, measured)]
        gain = np.linalg.solve(within, covariance[measured, n:])
        densities.append(weight * scipy.stats.multivariate_normal(mean[measured], within).pdf(outcomes))
        means.append(mean[n:] + (outcomes - mean[measured]) @ gain)
        variances.append(np.diag(covariance[n:, n:] - gain.T @ covariance[measured, n:]))
    likely = np.sum(densities, axis=0) > 1e-12
    total = 0.0
    for density, at in zip(np.transpose(densities)[likely], np.moveaxis(means, 0, 1)[likely], strict=True):
        weights = density / density.sum()
        total += density.sum() * mixture_variance(weights, at, np.array(variances))
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.sum(densities) * cell == pytest.approx(1, abs=1e-6)
    return float(total * cell)


def mixture_variance(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> float:
    """Variance of a mixture, averaged over targets; means and variances are (particles, targets)."""
    return float(np.mean(weights @ (variances + (means - weights @ means) ** 2)))


def targets(goal: str):
    return jnp.asarray(REGION) if goal == "predictions" else None


def expected(goal: str, n_outcomes: int) -> Outlook:
    nothing = nothing_decided(curves(), n_columns=Q_X, n_places=1, n_scenarios=1)
    nodes = jnp.asarray(unit_nodes(n_outcomes, 2)[None])
    return outlook(curves(), nothing, targets(goal), jnp.asarray(CANDIDATES)[None], nodes)


@pytest.mark.parametrize("goal", ["predictions", "latents"])
def test_expected_variance_is_that_integrated_over_outcomes(goal):
    n, fine = len(CANDIDATES), expected(goal, 2**14)
    means, variances = (np.array(part) for part in zip(*[(m[n:], np.diag(c)[n:]) for m, c in dense(goal)], strict=True))
    assert float(fine.now) == pytest.approx(mixture_variance(WEIGHTS, means, variances), rel=1e-5)
    truth = np.array([[integrated(goal, [place], 400) for place in range(n)]])
    np.testing.assert_allclose(fine.after, truth, rtol=2e-4)
    np.testing.assert_allclose(expected(goal, N_OUTCOMES).after, truth, rtol=0.04)


@pytest.mark.parametrize("goal", ["predictions", "latents"])
def test_later_choices_count_on_the_earlier_ones(goal):
    singles = [integrated(goal, [place], 400) for place in range(len(CANDIDATES))]
    found = _chosen(curves(), CANDIDATES, targets(goal), 3)
    first, second, third = found.places
    assert first == np.argmin(singles)
    pairs = {place: integrated(goal, [first, place], 120) for place in range(len(CANDIDATES)) if place != first}
    assert pairs[second] <= 1.02 * min(pairs.values())
    np.testing.assert_allclose(found.after_each, singles, rtol=0.04)
    np.testing.assert_allclose(found.after[:2], [singles[first], pairs[second]], rtol=0.06)
    assert found.before > found.after[0] > found.after[1] > found.after[2] > 0
    assert third not in (first, second)


def test_scenarios_are_draws_of_the_outcomes():
    """Outcomes of two measurements have the moments of the mixture, and weights are those given the outcomes."""
    n_scenarios, chosen = 512, [1, 3]
    nodes = unit_nodes(n_scenarios, 4).reshape(n_scenarios, 2, 2)
    decided = nothing_decided(curves(), n_columns=Q_X, n_places=4, n_scenarios=n_scenarios)
    for number, place in enumerate(chosen):
        decided = with_measurement(
            curves(), decided, jnp.asarray(number), jnp.asarray(CANDIDATES[place]), jnp.asarray(nodes[:, number])
        )
    outcomes = np.asarray(decided.outcomes)[:, :2]
    joints = [(mean[chosen], covariance[np.ix_(chosen, chosen)]) for mean, covariance in dense("predictions")]
    mean = sum(weight * mean for weight, (mean, _) in zip(WEIGHTS, joints, strict=True))
    second = sum(
        weight * (cov + np.outer(m - mean, m - mean)) for weight, (m, cov) in zip(WEIGHTS, joints, strict=True)
    )
    np.testing.assert_allclose(outcomes.mean(axis=0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(outcomes.T), second, rtol=0.05, atol=0.01)
    heights = np.array(
        [scipy.stats.multivariate_normal(mean, covariance).logpdf(outcomes) for mean, covariance in joints]
    )
    expected = scipy.special.log_softmax(np.log(WEIGHTS)[:, None] + heights, axis=0).T
    np.testing.assert_allclose(decided.log_weights, expected, atol=1e-4)


def test_expected_variance_is_that_of_inference_with_the_outcomes():
    """For outcomes spread as predicted, the condition is inferred anew and its variance averaged."""
    model = small_model(1, noise=PER_CONDITION)
    seen = Observed(SEEN.inputs[:1], SEEN.values[:1])
    particles = infer(model, evidence(model, *seen))
    found = _chosen(
        ConditionCurves(model.input_basis, particles, particles.latents.shape[1]), CANDIDATES, jnp.asarray(REGION), 1
    )
    nodes, weights = np.polynomial.legendre.leggauss(6)
    levels = jnp.asarray((1 + nodes) / 2)[:, None]
    averages = []
    for point in CANDIDATES[:2]:
        rows = mixture(model, particles, point[None], include_noise=True)
        outcomes = [mixture_quantile(level, rows.means, rows.variances, rows.weights[:, None]) for level in levels]
        variances = []
        for outcome in np.asarray(outcomes)[:, 0]:
            more = evidence(model, np.vstack([seen.inputs, point]), np.append(seen.values, outcome))
            _, variance = mixture(model, infer(model, more), REGION, include_noise=False).moments
            variances.append(np.mean(variance))
        averages.append(weights / 2 @ variances)
    np.testing.assert_allclose(found.after_each[:2], averages, rtol=0.05)
    np.testing.assert_array_equal(np.argsort(found.after_each[:2]), np.argsort(averages))


# The estimator's face


def braking_rows(n_conditions: int = 6, seed: int = 3):
    rng = np.random.default_rng(seed)
    conditions = np.repeat([f"tyre-{number}" for number in range(n_conditions)], 6)
    speed = rng.uniform(3, 30, len(conditions))
    slipperiness = np.repeat(np.linspace(0.05, 0.2, n_conditions), 6)
    return pd.DataFrame({"speed": speed}), slipperiness * speed**2 + 0.3 * rng.standard_normal(len(speed)), conditions


@pytest.fixture(scope="module")
def model() -> LVMOGPRegressor:
    return LVMOGPRegressor(1, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=5).fit(*braking_rows())


SPEEDS = pd.DataFrame({"speed": np.linspace(3, 30, 10)})


@pytest.mark.parametrize("name", ["new", "added", "tyre-2"])
@pytest.mark.long
def test_sd_before_is_that_of_the_predictions(model: LVMOGPRegressor, name: str):
    model.add_condition("added", [[10.0]], [9.0])
    found = model.suggest(name, SPEEDS, n=2 if name == "added" else 1)
    model.unseen = "prior"
    _, std = model.predict(SPEEDS, name, return_std=True, include_noise=False)
    model.unseen = "error"
    model.remove_condition("added")
    assert found.sd_before == pytest.approx(np.sqrt(np.mean(std**2)), rel=0.03 if name == "tyre-2" else 1e-6)
    assert found.n_measured == {"new": 0, "added": 1, "tyre-2": 6}[name]
    assert np.all(np.diff([found.sd_before, *found.sd_after]) < 0)
    assert found.candidate_sd.min() == pytest.approx(found.sd_after[0])
    np.testing.assert_array_equal(found.inputs[0], found.candidates[np.argmin(found.candidate_sd)])
    assert list(found.table.columns) == ["speed", "sd_after"]
    np.testing.assert_array_equal(found.table["speed"], found.inputs[:, 0])


def test_measuring_as_suggested_brings_what_was_expected(model: LVMOGPRegressor):
    """Noise is small and the curves differ by a factor: one measurement tells nearly all, and how little it leaves."""
    found = model.suggest("new", SPEEDS)
    model.unseen = "prior"
    outcomes = [
        end for eighths in (1, 3, 5, 7) for end in model.predict_interval(found.inputs, "new", level=eighths / 8)
    ]
    model.unseen = "error"
    variances = []
    for outcome in outcomes:
        model.add_condition("new", found.inputs, outcome)
        _, std = model.predict(SPEEDS, "new", return_std=True, include_noise=False)
        model.remove_condition("new")
        variances.append(np.mean(std**2))
    # Eight outcomes leave out the rarest, after which most is left to know.
    assert found.sd_after[0] == pytest.approx(np.sqrt(np.mean(variances)), rel=0.25)
    assert found.sd_after[0] < found.sd_before / 20


def test_a_region_elsewhere_moves_the_choice(model: LVMOGPRegressor):
    model.add_condition("added", [[29.0]], [80.0])
    near, far = (model.suggest("added", SPEEDS, region=[[place]] * 2).inputs[0, 0] for place in (4.0, 29.0))
    model.remove_condition("added")
    assert near < far


def test_candidates_cover_the_training_inputs_by_default(model: LVMOGPRegressor):
    inputs = braking_rows()[0]["speed"]
    found = model.suggest("new")
    assert found.candidates.min() == inputs.min()
    assert found.candidates.max() == inputs.max()
    assert len(found.candidates) == 64


def test_logs_are_suggested_on_their_scale(model: LVMOGPRegressor):
    """Where the output is a logarithm, the sd is that of the logarithm."""
    plain = model.suggest("new", SPEEDS)
    kept = model.model_
    model.model_ = kept._replace(scaling=kept.scaling._replace(transform=Logarithm()))
    logarithmic = model.suggest("new", SPEEDS)
    model.model_ = kept
    assert logarithmic.sd_before == plain.sd_before
    np.testing.assert_array_equal(logarithmic.candidate_sd, plain.candidate_sd)


def test_dates_stay_dates(model: LVMOGPRegressor):
    days = np.array([[20089.0], [20094.5]])
    found = model.suggest("new", SPEEDS)._replace(inputs=days, sd_after=np.ones(2), date_columns=("speed",))
    assert found.table["speed"].tolist() == [pd.Timestamp("2025-01-01"), pd.Timestamp("2025-01-06 12:00")]


@pytest.mark.parametrize("n_latent", [1, 0])
def test_latents_are_learnt_about_without_what_is_known(n_latent):
    X, y, conditions = braking_rows()
    features = pd.DataFrame({"load": np.arange(6.0) ** 2, "width": np.arange(6.0) % 2}, index=np.unique(conditions))
    described = LVMOGPRegressor(n_latent, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=5)
    described.fit(X, y, conditions, condition_features=features)
    asked = {"n": 2, "condition_features": {"new": {"load": 3.0, "width": 1.0}}}
    before = described.suggest("new", SPEEDS, **asked)
    described.add_condition("new", [], [], features={"load": 3.0, "width": 1.0})
    after, unlike = described.suggest("new", SPEEDS, n=2), described.suggest("unlike", SPEEDS, n=2)
    np.testing.assert_array_equal(before.inputs, after.inputs)
    np.testing.assert_allclose(before.sd_after, after.sd_after, rtol=1e-9)
    assert before.sd_before < 0.9 * unlike.sd_before
    if n_latent == 0:
        with pytest.raises(SettingError, match="has no latents"):
            described.suggest("new", SPEEDS, goal="latents")
        return
    # Nothing was measured, so that the latent has its prior, and the features have no part in the average.
    assert described.suggest("new", SPEEDS, goal="latents").sd_before == pytest.approx(1.0, rel=0.02)


def test_what_cannot_be_suggested(model: LVMOGPRegressor):
    with pytest.raises(SettingError, match="goal must be one of .* got 'latent'"):
        model.suggest("new", SPEEDS, goal="latent")
    with pytest.raises(SettingError, match="n must be a whole number from 1 to the 10 candidates, got 11"):
        model.suggest("new", SPEEDS, n=11)
    with pytest.raises(DataError, match="there are no candidates to choose from"):
        model.suggest("new", SPEEDS[:0])
    with pytest.raises(SettingError, match="region says where predictions matter"):
        model.suggest("new", SPEEDS, goal="latents", region=SPEEDS)
    with pytest.raises(DataError, match="region has no rows"):
        model.suggest("new", SPEEDS, region=np.empty((0, 1)))
    with pytest.raises(DataError, match="X must have the columns"):
        model.suggest("new", pd.DataFrame({"load": [1.0]}))
    kept, model.model_ = model.model_, model.model_._replace(observations=None)
    with pytest.raises(DataError, match="so candidates must be given"):
        model.suggest("new")
    model.model_ = kept
