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
    made_condition,
    nothing_seen,
    of_kind,
    trained_points,
    with_made,
)
from drawn_models import mixed as mixed_curves
from references import Seen

import lvmogp.fitted.suggestions as suggestions
from lvmogp import DataError, LVMOGPRegressor, SettingError
from lvmogp.conditions.condition import all_particles
from lvmogp.conditions.curves import Particles, few_observations
from lvmogp.conditions.expected_variance import ExpectedVariance, empty_plan, expected_variance, with_measurement
from lvmogp.conditions.search import unit_nodes
from lvmogp.fitted.suggestions import N_OUTCOMES, _chosen, _thinned
from lvmogp.tables.transforms import Logarithm

CANDIDATES = np.random.default_rng(31).uniform(-1.5, 1.5, (5, 2))
CANDIDATES[4] = CANDIDATES[3] + 0.1  # next to another
REGION = np.random.default_rng(32).uniform(-1.5, 1.5, (3, 2))
SEEN = Seen(np.array([[0.3, -0.4], [1.0, 0.8]]), np.array([0.6, -0.2]), np.array([0.05, 0.0]))
FIT, DRAWS = "fit on a grid", "draws on scattered data"


@functools.cache
def particles_of(kind: str) -> Particles:
    """Some particles, conditioned on two observations."""
    ensemble = of_kind(kind).model_.ensemble
    return all_particles(ensemble, made_condition(ensemble, few_observations(*SEEN), n_each=5 if kind == FIT else 3))


def weights_of(kind: str) -> np.ndarray:
    return np.exp(np.asarray(particles_of(kind).log_weights))


class Joint(NamedTuple):
    """Mean and covariance of the candidates' observations, then the targets, under one particle."""

    mean: np.ndarray
    covariance: np.ndarray


@functools.cache
def dense(kind: str, goal: str) -> list[Joint]:
    """By dense matrices; latents are constants under a particle."""
    processes, found, n = dense_ensemble(of_kind(kind).model_).processes, [], len(CANDIDATES)
    particles = particles_of(kind)
    for place, number in enumerate(np.asarray(particles.process)):
        latent, noise = np.asarray(particles.latents[place]), float(particles.noise[place])
        given = processes[number].given(np.vstack([CANDIDATES, REGION]), latent, SEEN, noise)
        mean, covariance = given.mean, given.covariance.copy()
        if goal == "latents":
            mean = np.concatenate([mean[:n], np.asarray(particles.aligned[place])])
            covariance = np.pad(covariance[:n, :n], (0, 1))
        covariance[range(n), range(n)] += noise
        found.append(Joint(mean, covariance))
    return found


def integrated(kind: str, goal: str, measured: list[int], n_nodes: int) -> float:
    """Expected variance of the targets after measuring, by the trapezoidal rule over all outcomes."""
    n, axes, joints = len(CANDIDATES), [], dense(kind, goal)
    for place in measured:
        means = np.array([joint.mean[place] for joint in joints])
        deviations = np.sqrt([joint.covariance[place, place] for joint in joints])
        axes.append(np.linspace((means - 6 * deviations).min(), (means + 6 * deviations).max(), n_nodes))
    outcomes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(measured))
    densities, means, variances = [], [], []
    for weight, (mean, covariance) in zip(weights_of(kind), joints, strict=True):
        within = covariance[np.ix_(measured, measured)]
        gain = np.linalg.solve(within, covariance[measured, n:])
        densities.append(weight * scipy.stats.multivariate_normal(mean[measured], within).pdf(outcomes))
        means.append(mean[n:] + (outcomes - mean[measured]) @ gain)
        variances.append(np.diag(covariance[n:, n:] - gain.T @ covariance[measured, n:]))
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
    n, fine, weights = len(CANDIDATES), expected(kind, goal, 2**13), weights_of(kind)
    means, variances = (
        np.array(part) for part in zip(*[(m[n:], np.diag(c)[n:]) for m, c in dense(kind, goal)], strict=True)
    )
    now = np.mean(weights @ (variances + (means - weights @ means) ** 2))
    assert float(fine.now) == pytest.approx(now, rel=1e-4)
    truth = np.array([[integrated(kind, goal, [place], 300) for place in range(n)]])
    np.testing.assert_allclose(fine.after, truth, rtol=1e-3)
    np.testing.assert_allclose(expected(kind, goal, N_OUTCOMES).after, truth, rtol=0.05)


@pytest.mark.parametrize(("kind", "goal"), CASES)
def test_later_choices_count_on_the_earlier_ones(kind, goal):
    singles = [integrated(kind, goal, [place], 300) for place in range(len(CANDIDATES))]
    found = _chosen(particles_of(kind), CANDIDATES, targets(goal), 3)
    first, second, third = found.places
    assert singles[first] <= 1.02 * min(singles)
    pairs = {p: integrated(kind, goal, [first, p], 90) for p in range(len(CANDIDATES)) if p != first}
    assert pairs[second] <= 1.03 * min(pairs.values())
    np.testing.assert_allclose(found.after_each, singles, rtol=0.05)
    np.testing.assert_allclose(found.after[:2], [singles[first], pairs[second]], rtol=0.08)
    assert found.before > found.after[0] > found.after[1] > found.after[2] > 0
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
    outcomes, weights = np.asarray(decided.outcomes)[:, :2], weights_of(FIT)
    joints = [(mean[chosen], covariance[np.ix_(chosen, chosen)]) for mean, covariance in dense(FIT, "predictions")]
    mean = sum(weight * mean for weight, (mean, _) in zip(weights, joints, strict=True))
    second = sum(weight * (c + np.outer(m - mean, m - mean)) for weight, (m, c) in zip(weights, joints, strict=True))
    np.testing.assert_allclose(outcomes.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(outcomes.T), second, rtol=0.06, atol=0.015)
    heights = np.array([scipy.stats.multivariate_normal(*joint).logpdf(outcomes) for joint in joints])
    logs = scipy.special.log_softmax(np.log(weights)[:, None] + heights, axis=0).T
    np.testing.assert_allclose(decided.log_weights, logs, atol=1e-3)


@pytest.mark.parametrize("kind", [FIT, pytest.param(DRAWS, marks=pytest.mark.long)])
def test_a_trained_condition_is_measured_as_dense_processes_say(kind):
    """Its own curve before, and by the trapezoidal rule what a measurement leaves."""
    model, number = of_kind(kind), 1
    scaling, ensemble = model.model_.scaling, dense_ensemble(model.model_)
    points = trained_points(ensemble, number, *hermite(20))
    rows = mixed_curves(ensemble, DenseCondition(points, nothing_seen(2)), np.vstack([CANDIDATES, REGION]))
    n, wanted = len(CANDIDATES), []
    for candidate in range(n):
        centre = rows.means[:, candidate]
        deviation = np.sqrt(rows.covariances[:, candidate, candidate] + rows.noise[:, 0])
        outcomes = np.linspace((centre - 7 * deviation).min(), (centre + 7 * deviation).max(), 2_000)
        density = rows.weights * scipy.stats.norm(centre, deviation).pdf(outcomes[:, None])
        total = density.sum(axis=1)
        after = density / np.maximum(total, 1e-300)[:, None]
        gain = rows.covariances[:, candidate, n:] / deviation[:, None] ** 2
        left = np.diagonal(rows.covariances[:, n:, n:], axis1=1, axis2=2) - gain**2 * deviation[:, None] ** 2
        moved = rows.means[:, n:] + gain * (outcomes[:, None, None] - centre[:, None])
        apart = np.einsum("op,opt->ot", after, (moved - np.einsum("op,opt->ot", after, moved)[:, None]) ** 2)
        wanted.append(np.mean(total @ (after @ left + apart)) * (outcomes[1] - outcomes[0]))
    X, region = (scaling.input_mean + scaling.input_scale * part for part in (CANDIDATES, REGION))
    found = model.suggest("b", X, region=region)
    np.testing.assert_allclose(found.candidate_sd, scaling.output_scale * np.sqrt(wanted), rtol=0.03)
    _, std = model.predict(region, "b", return_std=True, include_noise=False)
    assert found.sd_before == pytest.approx(np.sqrt(np.mean(std**2)), rel=0.03 if kind == FIT else 1e-6)
    assert found.n_measured == int(np.sum(model.model_.observations.conditions == 1))
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
    monkeypatch.setattr("lvmogp.conditions.ensemble._MOST_KEPT_ELEMENTS", 40 * 24**2)
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


@pytest.mark.parametrize(("name", "n"), [("new", 1), ("added", 2)])
def test_sd_before_is_that_of_the_predictions(name, n):
    model = forgetting(named())
    model.unseen = "prior"
    model.add_condition("added", SPEEDS[:1], [0.4])
    found = model.suggest(name, SPEEDS, n=n)
    _, std = model.predict(SPEEDS, name, return_std=True, include_noise=False)
    assert found.sd_before == pytest.approx(np.sqrt(np.mean(std**2)), rel=1e-6)
    assert found.n_measured == {"new": 0, "added": 1}[name]
    assert np.all(np.diff([found.sd_before, *found.sd_after]) < 0)
    assert found.candidate_sd.min() == pytest.approx(found.sd_after[0])
    np.testing.assert_array_equal(found.inputs[0], found.candidates[np.argmin(found.candidate_sd)])
    assert list(found.table.columns) == ["speed", "sd_after"]
    np.testing.assert_array_equal(found.table["speed"], found.inputs[:, 0])
    assert list(found.table.index) == list(range(1, n + 1))
    # Where the output is a logarithm, the sd is that of the logarithm.
    model.model_ = model.model_._replace(scaling=model.model_.scaling._replace(transform=Logarithm()))
    np.testing.assert_array_equal(model.suggest(name, SPEEDS, n=n).candidate_sd, found.candidate_sd)


def test_candidates_cover_the_training_inputs_by_default():
    model = named()
    inputs = model.model_.observations.inputs
    found = model.suggest("new")
    np.testing.assert_allclose(found.candidates[:, 0], np.linspace(inputs.min(), inputs.max(), 64))
    wide = of_kind(FIT)
    covered = suggestions.default_candidates(wide.model_)
    assert covered.shape == (256, 2)
    low, high = (end(wide.model_.observations.inputs, axis=0) for end in (np.min, np.max))
    np.testing.assert_allclose((covered - low) / (high - low), unit_nodes(256, 2), rtol=1e-9)
    assert wide.suggest("a", covered[:3]).columns == ("input 1", "input 2")


def test_dates_stay_dates():
    days = np.array([[20089.0], [20094.5]])
    found = named().suggest("new", SPEEDS)._replace(inputs=days, sd_after=np.ones(2), date_columns=("speed",))
    assert found.table["speed"].tolist() == [pd.Timestamp("2025-01-01"), pd.Timestamp("2025-01-06 12:00")]


def test_latents_are_learnt_about_without_what_is_known():
    model = forgetting(named(features=True))
    model.unseen = "prior"
    before = model.suggest("new", SPEEDS, n=2, condition_features={"new": {"load": 0.3}})
    model.add_condition("new", [], [], features={"load": 0.3})
    after = model.suggest("new", SPEEDS, n=2)
    np.testing.assert_allclose(before.sd_after, after.sd_after, rtol=1e-9)
    assert before.sd_before < model.suggest("unlike", SPEEDS, n=2).sd_before
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
    forgotten.model_ = model.model_._replace(observations=None)
    with pytest.raises(DataError, match="so candidates must be given"):
        forgotten.suggest("new")
