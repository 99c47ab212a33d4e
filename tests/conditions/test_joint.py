"""Joint covariances and samples of several conditions against sums over all pairs of dense points."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from drawn_models import (
    DenseCondition,
    DenseEnsemble,
    Point,
    dense_ensemble,
    hermite,
    library_points,
    made_condition,
    nothing_seen,
    of_kind,
    trained_points,
    with_made,
)
from references import Seen
from test_few_observations import compressed_of, many

import lvmogp.conditions.joint as joint
from lvmogp.conditions.condition import Condition, trained_condition
from lvmogp.conditions.curves import few_observations
from lvmogp.conditions.joint import RelativeOutput, draw_curves, joint_covariance, relative_output
from lvmogp.fitted.model import FittedModel
from lvmogp.tables.scaling import TRANSFORMS, Scaling

FIT, DRAWS = "fit on a grid", "draws on a grid"
X_FEW = np.array([[0.2, 1.6], [0.9, -0.6]])


class Member(NamedTuple):
    """One condition for the library and for loops, with the rows asked of it."""

    condition: Condition
    dense: DenseCondition
    rows: np.ndarray


def some_rows(n_rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.5, 1.5, (n_rows, 2))


def trained_member(model: FittedModel, number: int, rows: np.ndarray) -> Member:
    points = trained_points(dense_ensemble(model), number, *hermite(10))
    return Member(trained_condition(model.ensemble, number), DenseCondition(points, nothing_seen(2)), rows)


def new_member(model: FittedModel, seen: Seen, rows: np.ndarray, *, n_each: int, seed: int, pack=None) -> Member:
    """A new condition of few particles."""
    errors = np.broadcast_to(seen.errors, len(seen.values))
    given = few_observations(seen.inputs, seen.values, errors) if pack is None else pack
    condition = made_condition(model.ensemble, given, n_each=n_each, seed=seed)
    return Member(condition, DenseCondition(library_points(condition), seen), rows)


def few(n_seen: int, seed: int, *, errors: bool = False) -> Seen:
    rng = np.random.default_rng(seed)
    own = rng.uniform(0, 0.4, n_seen) if errors else 0.0
    return Seen(rng.uniform(-1.5, 1.5, (n_seen, 2)), rng.normal(size=n_seen) / 2, own)


# Prediction errors e = f(x, h) − J f(X, h) − Jε of two conditions with given points, under one process.


class Error(NamedTuple):
    """Mean of f at the rows, and [I, −J] over rows and observations with their latents and noise."""

    mean: np.ndarray
    functional: np.ndarray
    x: np.ndarray
    h: np.ndarray
    own_noise: np.ndarray


def error_of(dense: DenseEnsemble, member: Member, point: Point) -> Error:
    seen = member.dense.seen
    given = dense.processes[point.process].given(member.rows, point.latent, seen, point.noise)
    noise = np.broadcast_to(point.noise + seen.errors, len(seen.values))
    x = np.vstack([member.rows, seen.inputs])
    functional = np.hstack([np.eye(len(member.rows)), -given.gain])
    return Error(given.mean, functional, x, np.tile(point.latent, (len(x), 1)), given.gain * noise @ given.gain.T)


def between(dense: DenseEnsemble, process: int, first: Error, second: Error) -> np.ndarray:
    covariance = dense.processes[process].covariance(first.x, first.h, second.x, second.h)
    found = first.functional @ covariance @ second.functional.T
    return found + first.own_noise if first is second else found


def scenarios(dense: DenseEnsemble, members: list[Member]):
    """All combinations of points under each process: weight, process and the error of each condition."""
    found = []
    for process, base in enumerate(dense.weights):
        choices = [
            [(point, error_of(dense, member, point)) for point in member.dense.points if point.process == process]
            for member in members
        ]
        for combination in itertools.product(*choices):
            weight = base * np.prod([point.weight / base for point, _ in combination])
            found.append((weight, process, [error for _, error in combination], [p.noise for p, _ in combination]))
    total = sum(weight for weight, *_ in found)
    return [(weight / total, *rest) for weight, *rest in found]


def brute_joint(dense: DenseEnsemble, members: list[Member]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the mixture over all scenarios."""
    size = sum(len(member.rows) for member in members)
    mean, second = np.zeros(size), np.zeros((size, size))
    for weight, process, errors, _ in scenarios(dense, members):
        own = np.concatenate([error.mean for error in errors])
        within = np.block([[between(dense, process, one, other) for other in errors] for one in errors])
        mean += weight * own
        second += weight * (within + np.outer(own, own))
    return mean, second - np.outer(mean, mean)


# A fit, in closed form


@functools.cache
def fit_members() -> list[Member]:
    """Two trained conditions, then new ones with one, three (and errors), no and many points."""
    model = of_kind(FIT).model_
    lots = many(FIT, everywhere=False)  # where compression is exact
    return [
        trained_member(model, 0, some_rows(4, 32)),
        trained_member(model, 2, some_rows(2, 33)),
        new_member(model, few(1, 34), some_rows(3, 35), n_each=4, seed=36),
        new_member(model, few(3, 37, errors=True), some_rows(4, 38), n_each=4, seed=39),
        new_member(model, nothing_seen(2), some_rows(2, 40), n_each=4, seed=41),
        new_member(model, lots, some_rows(2, 42), n_each=4, seed=43, pack=compressed_of(model.ensemble, lots, 0.02)),
    ]


def joint_of(model: FittedModel, members: list[Member], output: RelativeOutput | None = None) -> np.ndarray:
    conditions, rows = [member.condition for member in members], [member.rows for member in members]
    return joint_covariance(model.ensemble, conditions, rows, output)


def test_covariances_of_a_fit_are_those_of_all_pairs_of_points():
    """Whatever the order of conditions; latents are independent, so that means of one say nothing of another."""
    model, members = of_kind(FIT).model_, fit_members()
    dense = dense_ensemble(model)
    errors = [[(point.weight, error_of(dense, member, point)) for point in member.dense.points] for member in members]

    def block(i: int, j: int) -> np.ndarray:
        if i == j:
            return brute_joint(dense, [members[i]])[1]
        pairs = itertools.product(errors[i], errors[j])
        return sum(weight * other * between(dense, 0, one, another) for (weight, one), (other, another) in pairs)

    lower = [[block(i, j) for j in range(i + 1)] for i in range(6)]
    assert all(np.max(np.abs(each)) > 1e-3 for row in lower for each in row)
    expected = np.block([[lower[i][j] if j <= i else lower[j][i].T for j in range(6)] for i in range(6)])
    found = joint_of(model, members)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found, found.T)
    assert np.linalg.eigvalsh(found).min() > 0
    some = [4, 1, 0]
    places = np.split(np.arange(len(found)), np.cumsum([len(member.rows) for member in members])[:-1])
    order = np.concatenate([places[number] for number in some])
    backwards = joint_of(model, [members[number] for number in some])
    np.testing.assert_allclose(backwards, found[np.ix_(order, order)], rtol=1e-8, atol=1e-11)


# Draws, scenario by scenario


@functools.cache
def drawn_members(n_each: int = 2) -> list[Member]:
    model = of_kind(DRAWS).model_
    return [
        trained_member(model, 0, some_rows(2, 32)),
        trained_member(model, 3, some_rows(3, 33)),
        new_member(model, few(1, 34), some_rows(2, 35), n_each=n_each, seed=36),
        new_member(model, few(3, 37, errors=True), some_rows(3, 38), n_each=n_each, seed=39),
    ]


@pytest.mark.parametrize("chosen", [(0, 1), (3,), (0, 2, 1)])
def test_covariances_of_draws_are_those_of_all_scenarios(chosen):
    """With at most one condition whose latents are uncertain, scenarios are those of its particles."""
    model, members = of_kind(DRAWS).model_, [drawn_members()[place] for place in chosen]
    _, expected = brute_joint(dense_ensemble(model), members)
    np.testing.assert_allclose(joint_of(model, members), expected, atol=1e-5)


@pytest.mark.parametrize("entries", [2**27, 70 * 256])
def test_covariances_of_several_uncertain_conditions_are_averages_over_scenarios(entries, monkeypatch):
    """By 512 quasi-random scenarios; by 64 for a covariance that is large."""
    monkeypatch.setattr(joint, "_ENTRIES_OF_ALL_SCENARIOS", entries)
    model, members = of_kind(DRAWS).model_, [drawn_members()[place] for place in (2, 0, 3)]
    _, expected = brute_joint(dense_ensemble(model), members)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    found = joint_of(model, members) / scale
    np.testing.assert_allclose(found, expected / scale, atol=0.03 if entries > 2**20 else 0.15)


@pytest.mark.parametrize("size", [144, 3 * 144])
def test_scenarios_whose_processes_are_made_in_parts_say_the_same(size, monkeypatch):
    model, members = of_kind(DRAWS).model_, [drawn_members()[place] for place in (0, 2, 1)]
    expected = joint_of(model, members)
    monkeypatch.setattr("lvmogp.conditions.ensemble._MOST_KEPT_ELEMENTS", size)
    little = model._replace(ensemble=dataclasses.replace(model.ensemble, processes=None))
    np.testing.assert_allclose(joint_of(little, members), expected, rtol=1e-7, atol=1e-9)


# Samples


N_DRAWS = 2_000


@pytest.mark.parametrize("kind", [FIT, DRAWS])
def test_samples_have_mean_covariance_and_noise_of_all_scenarios(kind, monkeypatch):
    monkeypatch.setattr(joint, "_DRAWS_AT_ONCE", 1_500)
    model = of_kind(kind).model_
    members = [fit_members()[place] for place in (0, 2, 3)] if kind == FIT else [drawn_members()[i] for i in (0, 2, 3)]
    if kind == FIT:
        members = [members[0]._replace(dense=members[0].dense._replace(points=few_nodes(model))), *members[1:]]
    curves, noises = draw_curves(
        model.ensemble,
        [member.condition for member in members],
        [member.rows for member in members],
        n_draws=N_DRAWS,
        rng=np.random.default_rng(44),
    )
    mean, covariance = brute_joint(dense_ensemble(model), members)
    values = np.hstack(curves)
    assert np.max(np.abs(values.mean(axis=0) - mean) / (values.std(axis=0) / np.sqrt(N_DRAWS))) < 4.5
    # A mixture has heavy tails: the standard errors are those of the products themselves.
    products = (values - mean)[:, :, None] * (values - mean)[:, None, :]
    errors = products.std(axis=0) / np.sqrt(N_DRAWS)
    assert np.max(np.abs(products.mean(axis=0) - covariance) / errors) < 4.5
    for place, drawn in enumerate(noises):
        shares = [(weight, noise[place]) for weight, _, _, noise in scenarios(dense_ensemble(model), members)]
        expected = sum(weight * noise for weight, noise in shares)
        spread = np.sqrt(sum(weight * (noise - expected) ** 2 for weight, noise in shares))
        assert abs(drawn.mean() - expected) < 4.5 * spread / np.sqrt(N_DRAWS) + 1e-9


def few_nodes(model: FittedModel) -> list[Point]:
    """Six nodes for the q(h) of a trained condition, enough for its first two moments."""
    return trained_points(dense_ensemble(model), 0, *hermite(6))


# Outputs of which a transform is modelled, y = t⁻¹(location + scale · f)


LOCATIONS, SCALE = {"log": 1.3, "sqrt": 6.0}, 0.7  # of roots far from zero, where y = g²


def centre(name: str, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return np.exp(mean + variance / 2) if name == "log" else mean**2 + variance


def brute_outputs(
    dense: DenseEnsemble, members: list[Member], name: str, *, with_noise: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of outputs, from ⟨y y'⟩ of jointly Gaussian pairs in each scenario."""
    size = sum(len(member.rows) for member in members)
    mean, second = np.zeros(size), np.zeros((size, size))
    counts = [len(member.rows) for member in members]
    for weight, process, errors, noise in scenarios(dense, members):
        given = LOCATIONS[name] + SCALE * np.concatenate([error.mean for error in errors])
        within = np.block([[between(dense, process, one, other) for other in errors] for one in errors])
        within = SCALE**2 * (within + with_noise * np.diag(np.repeat(noise, counts)))
        own = centre(name, given, np.diag(within))
        mean += weight * own
        if name == "log":
            second += weight * np.outer(own, own) * np.exp(within)
        else:
            second += weight * (np.outer(own, own) + 4 * np.outer(given, given) * within + 2 * within**2)
    return mean, second - np.outer(mean, mean)


@pytest.mark.parametrize(
    ("kind", "chosen", "name", "with_noise", "close"),
    [
        (DRAWS, (0, 2), "log", True, 1e-4),
        (DRAWS, (0, 2), "sqrt", False, 1e-4),
        (FIT, (3,), "sqrt", True, 1e-4),
        (FIT, (0, 3), "log", True, 0.05),
    ],
)
def test_outputs_of_which_a_transform_is_modelled_covary_as_all_scenarios_do(kind, chosen, name, with_noise, close):
    model = of_kind(kind).model_
    members = [(fit_members() if kind == FIT else drawn_members())[place] for place in chosen]
    mean, expected = brute_outputs(dense_ensemble(model), members, name, with_noise=with_noise)
    ends = np.cumsum([len(member.rows) for member in members])[:-1]
    scaling = Scaling(np.zeros(2), np.ones(2), LOCATIONS[name], SCALE, TRANSFORMS[name])
    output = relative_output(scaling, np.split(mean, ends), include_noise=with_noise)
    found = joint_of(model, members, output) * np.outer(mean, mean)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, atol=close)


# The estimator's face


@pytest.mark.parametrize("transform", [None, "log"])
@pytest.mark.parametrize("kind", [FIT, DRAWS])
def test_joint_answers_have_the_variances_of_the_predictions(kind, transform):
    """Samples have their correlations; noise is on the diagonal alone."""
    model = with_made(of_kind(kind, transform=transform), "f", X_FEW, np.array([3.1, 4.9]), np.zeros(2))
    X = np.array([[0.3, 0.2], [1.1, 2.1], [1.15, 2.5], [1.9, -3.0], [0.7, -2.8]])
    names = ["a", "f", "c", "f", "a"]
    covariances = []
    for include_noise in (True, False):
        mean, covariance = model.predict(X, names, return_cov=True, include_noise=include_noise)
        _, std = model.predict(X, names, return_std=True, include_noise=include_noise)
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-9)
        assert np.linalg.eigvalsh(covariance).min() > 0
        covariances.append(covariance)
    values, again = (model.sample(X, names, 4_000, random_state=3) for _ in range(2))
    np.testing.assert_array_equal(values, again)  # of the same seed
    np.testing.assert_allclose(np.corrcoef(values.T), covariance / np.outer(std, std), atol=0.15)
    assert np.all(np.abs(values.mean(axis=0) - mean) < 0.1 * std + 4 * std / np.sqrt(4_000))
    noisy = model.sample(X, names, 4_000, include_noise=True, random_state=3)
    assert np.all(np.abs(noisy - values) > 0)
    if transform is None:
        np.testing.assert_allclose((covariances[0] - covariances[1])[~np.eye(5, dtype=bool)], 0.0, atol=1e-9)
    assert model.predict(np.empty((0, 2)), [], return_cov=True)[1].shape == (0, 0)
    assert model.sample(np.empty((0, 2)), [], 3).shape == (3, 0)
