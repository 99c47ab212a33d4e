"""Measurements to make next, against integration over their outcomes and the posteriors that would follow."""

import dataclasses
import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
from drawn_models import (
    DenseCondition,
    dense_ensemble,
    fitted,
    forgetting,
    hermite,
    library_points,
    made_condition,
    mixed,
    nothing_seen,
    of_kind,
    trained_points,
    with_made,
)
from references import Seen

import lvmogp.fitted.suggestions as suggestions
from lvmogp import DataError, LVMOGPRegressor, SettingError
from lvmogp.conditions.condition import Condition, all_particles
from lvmogp.conditions.curves import Particles, few_observations
from lvmogp.conditions.expected_variance import ExpectedVariance, empty_plan, expected_variance, with_measurement
from lvmogp.conditions.search import unit_nodes
from lvmogp.fitted.suggestions import N_OUTCOMES, _chosen, _thinned
from lvmogp.tables.scaling import Logarithm

CANDIDATES = np.random.default_rng(31).uniform(-1.5, 1.5, (5, 2))
CANDIDATES[4] = CANDIDATES[3] + 0.1  # next to another
REGION = np.random.default_rng(32).uniform(-1.5, 1.5, (3, 2))
SEEN = Seen(np.array([[0.3, -0.4], [1.0, 0.8]]), np.array([0.6, -0.2]), np.array([0.05, 0.0]))
FIT, DRAWS = "fit on a grid", "draws on a grid"


N = len(CANDIDATES)


@functools.cache
def made(kind: str) -> Condition:
    """Some particles, conditioned on two observations."""
    return made_condition(of_kind(kind).model_.ensemble, few_observations(*SEEN), n_each=5 if kind == FIT else 3)


@functools.cache
def particles_of(kind: str) -> Particles:
    return all_particles(of_kind(kind).model_.ensemble, made(kind))


class Joint(NamedTuple):
    """Weight of a particle; mean and covariance of the candidates' observations, then of the targets, under it."""

    weight: float
    mean: np.ndarray
    covariance: np.ndarray


def joints_of(kind: str, condition: DenseCondition) -> list[Joint]:
    rows = mixed(dense_ensemble(of_kind(kind).model_), condition, np.vstack([CANDIDATES, REGION]))
    measured = np.diag(np.arange(rows.means.shape[1]) < N)
    parts = zip(rows.weights, rows.means, rows.covariances, rows.noise[:, 0], strict=True)
    return [Joint(weight, mean, covariance + noise * measured) for weight, mean, covariance, noise in parts]


@functools.cache
def dense(kind: str, goal: str) -> list[Joint]:
    """By dense matrices; latents are constants under a particle."""
    points, turns = library_points(made(kind)), np.asarray(of_kind(kind).model_.ensemble.rotations)
    found = joints_of(kind, DenseCondition(points, SEEN))
    if goal == "predictions":
        return found
    return [
        Joint(weight, np.append(mean[:N], latent @ turns[process]), np.pad(covariance[:N, :N], (0, 1)))
        for (weight, mean, covariance), (_, process, latent, _) in zip(found, points, strict=True)
    ]


def integrated(joints: list[Joint], measured: list[int], n_nodes: int = 300) -> float:
    """Expected variance of the targets after measuring, by the trapezoidal rule over all outcomes."""
    axes = []
    for place in measured:
        means = np.array([joint.mean[place] for joint in joints])
        deviations = np.sqrt([joint.covariance[place, place] for joint in joints])
        axes.append(np.linspace((means - 6 * deviations).min(), (means + 6 * deviations).max(), n_nodes))
    outcomes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(measured))
    densities, means, variances = [], [], []
    for weight, mean, covariance in joints:
        within = covariance[np.ix_(measured, measured)]
        gain = np.linalg.solve(within, covariance[measured, N:])
        densities.append(weight * scipy.stats.multivariate_normal(mean[measured], within).pdf(outcomes))
        means.append(mean[N:] + (outcomes - mean[measured]) @ gain)
        variances.append(np.diag(covariance[N:, N:] - gain.T @ covariance[measured, N:]))
    total = np.sum(densities, axis=0)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.sum(total) * cell == pytest.approx(1, abs=1e-6)
    likely = total > 1e-12
    weights = np.transpose(densities)[likely] / total[likely, None]
    at, own = np.moveaxis(means, 0, 1)[likely], np.array(variances)
    centres = np.einsum("op,opt->ot", weights, at)
    left = np.einsum("op,opt->ot", weights, own + (at - centres[:, None]) ** 2).mean(axis=1)
    return float(total[likely] @ left * cell)


def targets(goal: str):
    return jnp.asarray(REGION) if goal == "predictions" else None


def expected(kind: str, goal: str, n_outcomes: int) -> ExpectedVariance:
    nothing = empty_plan(particles_of(kind), n_columns=2, n_places=1, n_scenarios=1)
    nodes = jnp.asarray(unit_nodes(n_outcomes, 2)[None])
    return expected_variance(particles_of(kind), nothing, targets(goal), jnp.asarray(CANDIDATES)[None], nodes)


CASES = [(FIT, "predictions"), (DRAWS, "latents")]


@pytest.mark.parametrize(("kind", "goal"), CASES)
def test_expected_variance_is_that_integrated_over_outcomes(kind, goal):
    fine, joints = expected(kind, goal, 2**13), dense(kind, goal)
    weights, means, variances = (
        np.array(part) for part in zip(*[(w, m[N:], np.diag(c)[N:]) for w, m, c in joints], strict=True)
    )
    now = np.mean(weights @ (variances + (means - weights @ means) ** 2))
    assert float(fine.now) == pytest.approx(now, rel=1e-4)
    truth = np.array([[integrated(joints, [place]) for place in range(N)]])
    np.testing.assert_allclose(fine.after, truth, rtol=1e-3)
    np.testing.assert_allclose(expected(kind, goal, N_OUTCOMES).after, truth, rtol=0.05)


@pytest.mark.parametrize(("kind", "goal"), CASES)
def test_later_choices_count_on_the_earlier_ones(kind, goal):
    joints = dense(kind, goal)
    singles = [integrated(joints, [place]) for place in range(N)]
    (first, second, third), before, after, after_each = _chosen(particles_of(kind), CANDIDATES, targets(goal), 3)
    assert singles[first] <= 1.02 * min(singles)
    pairs = {place: integrated(joints, [first, place], 90) for place in range(N) if place != first}
    assert pairs[second] <= 1.03 * min(pairs.values())
    np.testing.assert_allclose(after_each, singles, rtol=0.05)
    np.testing.assert_allclose(after[:2], [singles[first], pairs[second]], rtol=0.08)
    assert before > after[0] > after[1] > after[2] > 0
    assert third not in (first, second)


def test_scenarios_are_draws_of_the_outcomes():
    """Outcomes of two measurements have the moments of the mixture, and weights are those given the outcomes."""
    n_scenarios, chosen, particles = 512, [1, 3], particles_of(FIT)
    nodes = unit_nodes(n_scenarios, 4).reshape(n_scenarios, 2, 2)
    decided = empty_plan(particles, n_columns=2, n_places=4, n_scenarios=n_scenarios)
    for number, place in enumerate(chosen):
        point, node = jnp.asarray(CANDIDATES[place]), jnp.asarray(nodes[:, number])
        decided = with_measurement(particles, decided, jnp.asarray(number), point, node)
    np.testing.assert_array_equal(decided.present, [1, 1, 0, 0])
    np.testing.assert_array_equal(decided.points[:2], CANDIDATES[chosen])
    outcomes = np.asarray(decided.outcomes)[:, :2]
    joints = [(w, mean[chosen], within[np.ix_(chosen, chosen)]) for w, mean, within in dense(FIT, "predictions")]
    mean = sum(weight * own for weight, own, _ in joints)
    second = sum(weight * (within + np.outer(own - mean, own - mean)) for weight, own, within in joints)
    np.testing.assert_allclose(outcomes.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(outcomes.T), second, rtol=0.06, atol=0.015)
    heights = [np.log(w) + scipy.stats.multivariate_normal(*joint).logpdf(outcomes) for w, *joint in joints]
    np.testing.assert_allclose(decided.log_weights, scipy.special.log_softmax(heights, axis=0).T, atol=1e-3)


@pytest.mark.parametrize("kind", [FIT, pytest.param(DRAWS, marks=pytest.mark.long)])
def test_a_trained_condition_is_measured_as_dense_processes_say(kind):
    """Its own curve before, and by the trapezoidal rule what a measurement leaves."""
    model, scaling = of_kind(kind), of_kind(kind).model_.scaling
    points = trained_points(dense_ensemble(model.model_), 1, *hermite(20))
    joints = joints_of(kind, DenseCondition(points, nothing_seen(2)))
    wanted = [integrated(joints, [place]) for place in range(N)]
    X, region = (scaling.input_mean + scaling.input_scale * part for part in (CANDIDATES, REGION))
    found = model.suggest("b", X, region=region)
    np.testing.assert_allclose(found.candidate_sd, scaling.output_scale * np.sqrt(wanted), rtol=0.03)
    _, std = model.predict(region, "b", return_std=True, include_noise=False)
    assert found.sd_before == pytest.approx(np.sqrt(np.mean(std**2)), rel=0.03 if kind == FIT else 1e-6)
    assert found.n_measured == int(np.sum(model.model_.observations.conditions == 1))
    assert found.columns == ("input 1", "input 2")
    told = model.latents_.set_index("condition")
    assert model.suggest("b", X, goal="latents").sd_before == pytest.approx(float(told.loc["b", "sd_1"]), rel=0.03)


def test_processes_that_are_too_many_to_keep_are_made_anew(monkeypatch):
    X, y = np.array([[0.4, 1.0], [1.5, -0.5]]), np.array([0.7, -0.5])
    model = with_made(of_kind(DRAWS), "new", X, y, n_each=11)
    scaling, ensemble = model.model_.scaling, model.model_.ensemble
    X = scaling.input_mean + scaling.input_scale * CANDIDATES
    kept = model.suggest("new", X)
    little = forgetting(model)
    little.model_ = model.model_._replace(ensemble=dataclasses.replace(ensemble, processes=None))
    np.testing.assert_allclose(little.suggest("new", X).candidate_sd, kept.candidate_sd, rtol=1e-6)
    monkeypatch.setattr("lvmogp.conditions.ensemble._MOST_KEPT_ELEMENTS", 40 * 12**2)
    fewer = little.suggest("new", X)
    assert fewer.sd_before == pytest.approx(kept.sd_before, rel=0.1)
    assert fewer.sd_before != kept.sd_before


def test_a_region_of_many_points_is_thinned():
    points = np.arange(200.0)[:, None]
    some = _thinned(points)
    assert some.shape == (64, 1)
    assert np.all(np.diff(some[:, 0]) > 0)
    np.testing.assert_array_equal(_thinned(points[:64]), points[:64])
    assert suggestions.MOST_REGION_POINTS == 64


# The estimator's face


@functools.cache
def named(**options) -> LVMOGPRegressor:
    """A fit whose input has a name."""
    model = forgetting(fitted("long", answers="fit", **options))
    model.model_ = model.model_._replace(schema=model.model_.schema._replace(columns=("speed",)))
    model.unseen = "prior"
    return model


SPEEDS = pd.DataFrame({"speed": np.linspace(0, 2, 10)})


def test_sd_before_is_that_of_the_predictions():
    model = with_made(named(), "added", SPEEDS[:1].to_numpy(), np.array([0.4]))
    found = model.suggest("added", SPEEDS, n=2)
    _, std = model.predict(SPEEDS, "added", return_std=True, include_noise=False)
    assert found.sd_before == pytest.approx(np.sqrt(np.mean(std**2)), rel=1e-6)
    assert found.n_measured == 1
    assert np.all(np.diff([found.sd_before, *found.sd_after]) < 0)
    assert found.candidate_sd.min() == pytest.approx(found.sd_after[0])
    np.testing.assert_array_equal(found.inputs[0], found.candidates[np.argmin(found.candidate_sd)])
    assert list(found.table.columns) == ["speed", "sd_after"]
    np.testing.assert_array_equal(found.table["speed"], found.inputs[:, 0])
    assert list(found.table.index) == [1, 2]
    # Where the output is a logarithm, the sd is that of the logarithm.
    model.model_ = model.model_._replace(scaling=model.model_.scaling._replace(transform=Logarithm()))
    np.testing.assert_array_equal(model.suggest("added", SPEEDS, n=2).candidate_sd, found.candidate_sd)
    days = np.array([[20089.0], [20094.5]])
    table = found._replace(inputs=days, date_columns=("speed",)).table
    assert table["speed"].tolist() == [pd.Timestamp("2025-01-01"), pd.Timestamp("2025-01-06 12:00")]


def test_candidates_cover_the_training_inputs_by_default():
    model = named()
    inputs = model.model_.observations.inputs
    found = model.suggest("new")
    assert found.n_measured == 0
    np.testing.assert_allclose(found.candidates[:, 0], np.linspace(inputs.min(), inputs.max(), 64))
    wide = of_kind(FIT)
    covered = suggestions.default_candidates(wide.model_)
    assert covered.shape == (256, 2)
    low, high = (end(wide.model_.observations.inputs, axis=0) for end in (np.min, np.max))
    np.testing.assert_allclose((covered - low) / (high - low), unit_nodes(256, 2), rtol=1e-9)


def test_latents_are_learnt_about_without_what_is_known():
    model = forgetting(named(features=True))
    model.unseen = "prior"
    before = model.suggest("new", SPEEDS, condition_features={"new": {"load": 0.3}})
    model.add_condition("new", [], [], features={"load": 0.3})
    after = model.suggest("new", SPEEDS)
    np.testing.assert_allclose(before.sd_after, after.sd_after, rtol=1e-9)
    assert before.sd_before < model.suggest("unlike", SPEEDS).sd_before
    # Nothing was measured, so that the latent has its prior, and the features have no part in the average.
    assert model.suggest("new", SPEEDS, goal="latents").sd_before == pytest.approx(1.0, rel=0.02)
    with pytest.raises(SettingError, match="has no latents"):
        named(features=True, n_latent=0).suggest("new", SPEEDS, goal="latents")


def test_what_cannot_be_suggested():
    model = named()
    for words, error, asked in (
        ("goal must be one of .* got 'latent'", SettingError, {"goal": "latent"}),
        ("n must be a whole number from 1 to the 10 candidates, got 11", SettingError, {"n": 11}),
        ("region says where predictions matter", SettingError, {"goal": "latents", "region": SPEEDS}),
        ("region has no rows", DataError, {"region": np.empty((0, 1))}),
    ):
        with pytest.raises(error, match=words):
            model.suggest("new", SPEEDS, **asked)
    with pytest.raises(DataError, match="there are no candidates to choose from"):
        model.suggest("new", SPEEDS[:0])
    with pytest.raises(DataError, match="X must have the columns"):
        model.suggest("new", pd.DataFrame({"load": [1.0]}))
    forgotten = forgetting(model)
    forgotten.model_ = model.model_._replace(schema=model.model_.schema.without_rows())
    with pytest.raises(DataError, match="so candidates must be given"):
        forgotten.suggest("new")
