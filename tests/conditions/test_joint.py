"""Joint covariances and samples against loops over all pairs of latents."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import INDUCING_INPUTS, Q_X, SHARED, DenseProcess, Observed, small_model

from lvmogp.conditions.evidence import evidence
from lvmogp.conditions.joint import Draw, sample_curves
from lvmogp.conditions.new_condition import ConditionPosterior, condition_on
from lvmogp.conditions.predictions import (
    Condition,
    draw_curves,
    gaussian_moments,
    joint_covariance,
    mixture,
    output_covariance,
    trained_condition,
)
from lvmogp.conditions.transformed import relative_output
from lvmogp.ground.compiling import compiled
from lvmogp.model.posterior import trained_curves
from lvmogp.tables.transforms import TRANSFORMS

N_PARTICLES = 12
NODES, MASSES = np.polynomial.hermite_e.hermegauss(30)
NOTHING = Observed(np.empty((0, Q_X)), np.empty(0))

compiled_trained_curves = compiled(trained_curves)


class Member(NamedTuple):
    """One condition for the library and, as weighted latents with noise and observations, for loops over them."""

    condition: Condition
    latents: np.ndarray
    weights: np.ndarray
    noise: np.ndarray
    seen: Observed
    rows: np.ndarray


def some_rows(n_rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, (n_rows, Q_X))


def trained_member(place: int, rows: np.ndarray) -> Member:
    """A trained condition, whose q(h) becomes the nodes of a quadrature."""
    model = small_model(1)
    condition = trained_condition(model, compiled_trained_curves(model), place, place)
    mean, variance = float(condition.latents.mean[0, 0]), float(condition.latents.variance[0, 0])
    latents = (mean + np.sqrt(variance) * NODES)[:, None]
    return Member(condition, latents, MASSES / MASSES.sum(), np.full(len(NODES), SHARED[0]), NOTHING, rows)


def new_member(inputs: np.ndarray, rows: np.ndarray, seed: int) -> Member:
    """A new condition of few particles with uneven weights and noise."""
    rng = np.random.default_rng(seed)
    seen = Observed(inputs, rng.normal(size=len(inputs)) / 2)
    latents, weights = rng.normal(size=(N_PARTICLES, 1)), rng.dirichlet(np.ones(N_PARTICLES))
    noise = rng.uniform(0.02, 0.2, N_PARTICLES)
    values = (jnp.asarray(part) for part in (latents, noise, np.log(weights)))
    condition = condition_on(small_model(1), evidence(small_model(1), *seen), *values)
    return Member(condition, latents, weights, noise, seen, rows)


@functools.cache
def members() -> list[Member]:
    """Two trained conditions, then new ones with one, three, no and many points."""
    many = np.tile(INDUCING_INPUTS, (20, 1))  # compressed, which is exact at the inducing inputs
    return [
        trained_member(0, some_rows(4, 32)),
        trained_member(2, some_rows(2, 33)),
        new_member(some_rows(1, 34), some_rows(3, 35), 36),
        new_member(some_rows(3, 37), some_rows(4, 38), 39),
        new_member(NOTHING.inputs, some_rows(2, 40), 41),
        new_member(many, some_rows(2, 42), 43),
    ]


def joint_blocks(chosen: list[Member]) -> list[list[np.ndarray]]:
    return joint_covariance(small_model(1), [member.condition for member in chosen], [member.rows for member in chosen])


@functools.cache
def all_blocks() -> list[list[np.ndarray]]:
    return joint_blocks(members())


@functools.cache
def process() -> DenseProcess:
    return DenseProcess(small_model(1).parameters)


# Covariances of prediction errors e = f(x, h) − W f(X, h) − Wε, one pair of latents after the other.


def functional(member: Member, latent: np.ndarray, noise: float) -> np.ndarray:
    """[I, −W] over the rows and the observations."""
    gain = process().given(member.seen, noise, member.rows, latent).gain
    return np.hstack([np.eye(len(member.rows)), -gain])


def error_covariance(
    first: Member, latent: np.ndarray, noise: float, second: Member, other_latent: np.ndarray, other_noise: float
) -> np.ndarray:
    """Covariance of the errors of two conditions with given latents."""
    points, other_points = (np.vstack([member.rows, member.seen.inputs]) for member in (first, second))
    latents, other_latents = np.tile(latent, (len(points), 1)), np.tile(other_latent, (len(other_points), 1))
    between = process().covariance(points, latents, other_points, other_latents)
    return functional(first, latent, noise) @ between @ functional(second, other_latent, other_noise).T


def within(member: Member, latent: np.ndarray, noise: float) -> np.ndarray:
    """Covariance of the errors of one condition with given latents; its observations carry noise."""
    gain = -functional(member, latent, noise)[:, len(member.rows) :]
    return error_covariance(member, latent, noise, member, latent, noise) + noise * gain @ gain.T


def particles(member: Member):
    return zip(member.weights, member.latents, member.noise, strict=True)


def brute_between(first: Member, second: Member) -> np.ndarray:
    """All pairs of latents of two conditions."""
    total = np.zeros((len(first.rows), len(second.rows)))
    for (weight, *one), (other_weight, *other) in itertools.product(particles(first), particles(second)):
        total += weight * other_weight * error_covariance(first, *one, second, *other)
    return total


def brute_moments(member: Member) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the mixture over the latents of one condition."""
    means = [process().given(member.seen, noise, member.rows, h).mean for _, h, noise in particles(member)]
    mean = member.weights @ np.array(means)
    covariance = np.zeros((len(mean), len(mean)))
    for (weight, latent, noise), value in zip(particles(member), means, strict=True):
        covariance += weight * (within(member, latent, noise) + np.outer(value - mean, value - mean))
    return mean, covariance


N_MEMBERS = 6
PAIRS = list(itertools.combinations(range(N_MEMBERS), 2))


@pytest.mark.parametrize("place", range(N_MEMBERS))
def test_covariance_within_a_condition_is_that_of_its_mixture(place: int):
    _, expected = brute_moments(members()[place])
    np.testing.assert_allclose(all_blocks()[place][place], expected, atol=1e-5)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_covariance_between_conditions_is_that_of_all_pairs_of_latents(first: int, second: int):
    expected = brute_between(members()[first], members()[second])
    assert np.max(np.abs(expected)) > 1e-3
    np.testing.assert_allclose(all_blocks()[first][second], expected, atol=1e-5)
    np.testing.assert_array_equal(all_blocks()[second][first], all_blocks()[first][second].T)


def test_order_of_conditions_does_not_matter():
    backwards = joint_blocks(members()[::-1])
    for first, second in itertools.product(range(N_MEMBERS), repeat=2):
        found = backwards[N_MEMBERS - 1 - first][N_MEMBERS - 1 - second]
        np.testing.assert_allclose(found, all_blocks()[first][second], rtol=1e-9, atol=1e-12)


def test_joint_covariance_is_positive():
    joint = np.block(all_blocks())
    np.testing.assert_allclose(joint, joint.T, rtol=1e-12, atol=1e-14)
    assert np.linalg.eigvalsh(joint).min() > 0


def predicted(member: Member) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance at the rows from the predictions of single rows."""
    model, condition = small_model(1), member.condition
    if isinstance(condition, ConditionPosterior):
        mean, variance = mixture(model, condition, member.rows, include_noise=False).moments
        return np.asarray(mean), np.asarray(variance)
    numbers = np.zeros(len(member.rows), int)
    moments = gaussian_moments(model, condition.curves, np.array([float(condition.noise)]), member.rows, numbers)
    return moments.mean, moments.variance


@pytest.mark.parametrize("place", range(N_MEMBERS))
def test_variances_are_those_of_the_predictions(place: int):
    _, variance = predicted(members()[place])
    np.testing.assert_allclose(np.diag(all_blocks()[place][place]), variance, rtol=1e-9)


# Samples.


DRAWN = (0, 2, 3)  # a trained condition, and new ones with one and three points


def stacked_draw(chosen: list[Member], place: int) -> Draw:
    """The same particle of each condition."""
    draws = [
        Draw(
            jnp.asarray(member.latents[place]),
            jnp.asarray(member.noise[place]),
            evidence(small_model(1), *member.seen),
        )
        for member in chosen
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)


def test_curves_drawn_at_given_latents_have_the_dense_mean_and_covariance():
    chosen = [members()[place]._replace(rows=some_rows(4, 50 + place)) for place in DRAWN]
    points = jnp.asarray(np.stack([member.rows for member in chosen]))
    size = points.shape[0] * points.shape[1]
    for place in (1, 7):
        draw = stacked_draw(chosen, place)
        # No normal numbers give the mean, and each of them alone a column of the factor.
        normals = np.vstack([np.zeros((1, size)), np.eye(size)]).reshape(-1, *points.shape[:2])
        repeated = [jnp.broadcast_to(part, (len(normals), *part.shape)) for part in (draw.latent, draw.noise)]
        draws = Draw(*repeated, draw.evidence)
        mean, *curves = np.asarray(sample_curves(small_model(1), draws, points, jnp.asarray(normals)))
        factor = (np.array(curves) - mean).reshape(size, size)
        for i, first in enumerate(chosen):
            latent, noise = first.latents[place], first.noise[place]
            expected = process().given(first.seen, noise, first.rows, latent)
            np.testing.assert_allclose(mean[i], expected.mean, atol=1e-5)
            for j, second in enumerate(chosen):
                found = (factor.T @ factor)[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
                block = (
                    expected.covariance
                    if i == j
                    else error_covariance(first, latent, noise, second, second.latents[place], second.noise[place])
                )
                np.testing.assert_allclose(found, block, atol=1e-5)


N_DRAWS = 2_500


@functools.cache
def draws() -> tuple[list[np.ndarray], list[np.ndarray]]:
    chosen = [members()[place] for place in DRAWN]
    return draw_curves(
        small_model(1),
        [member.condition for member in chosen],
        [member.rows for member in chosen],
        n_draws=N_DRAWS,
        rng=np.random.default_rng(44),
    )


def test_draws_have_the_predicted_mean_and_joint_covariance():
    curves = np.hstack(draws()[0])
    mean = np.concatenate([predicted(members()[place])[0] for place in DRAWN])
    joint = np.block([[all_blocks()[first][second] for second in DRAWN] for first in DRAWN])
    error = curves.std(axis=0) / np.sqrt(N_DRAWS)
    assert np.max(np.abs(curves.mean(axis=0) - mean) / error) < 4
    # A mixture has heavy tails: the standard errors are those of the products themselves.
    products = (curves - mean)[:, :, None] * (curves - mean)[:, None, :]
    errors = products.std(axis=0) / np.sqrt(N_DRAWS)
    assert np.max(np.abs(products.mean(axis=0) - joint) / errors) < 4


def test_draws_have_the_noise_of_their_particles():
    trained, *new = zip((members()[place] for place in DRAWN), draws()[1], strict=True)
    np.testing.assert_allclose(trained[1], SHARED[0], rtol=1e-14)
    for member, noises in new:
        for weight, noise in zip(member.weights, member.noise, strict=True):
            share = np.mean(np.abs(noises - noise) < 1e-12)
            assert abs(share - weight) < 4 * np.sqrt(weight * (1 - weight) / N_DRAWS)


def test_draws_are_the_same_for_the_same_seed():
    member = members()[2]
    first, second = (
        draw_curves(small_model(1), [member.condition], [member.rows], n_draws=3, rng=np.random.default_rng(45))
        for _ in range(2)
    )
    np.testing.assert_array_equal(first[0][0], second[0][0])
    np.testing.assert_array_equal(first[1][0], second[1][0])


def test_every_draw_passes_through_a_point_without_noise():
    member = members()[2]
    exact = condition_on(
        small_model(1),
        evidence(small_model(1), *member.seen),
        jnp.asarray(member.latents),
        jnp.full(N_PARTICLES, 1e-9, float),
        jnp.log(jnp.asarray(member.weights)),
    )
    points = np.vstack([member.rows[:2], member.seen.inputs])
    (curves,), _ = draw_curves(small_model(1), [exact], [points], n_draws=30, rng=np.random.default_rng(46))
    # The jitter of two factorisations, 1e-7 of the variances, leaves a deviation of some 1e-3.
    np.testing.assert_allclose(curves[:, 2], member.seen.values[0], atol=3e-3)
    assert np.all(curves[:, :2].std(axis=0) > 0.05)


# Outputs of which a transform is modelled, y = t⁻¹(location + scale · f)


SCALE = 0.7


LOCATIONS = {"log": 1.3, "sqrt": 6.0}  # of roots that are far from zero, where y = g²


def centre(name: str, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return np.exp(mean + variance / 2) if name == "log" else mean**2 + variance


def given_pair(name: str, first: Member, one: tuple, second: Member, other: tuple, with_noise: bool) -> np.ndarray:
    """⟨y y'⟩ at the rows of two conditions, or of one with itself, with given latents and noise."""
    means, centres = [], []
    for member, (latent, noise) in ((first, one), (second, other)):
        variance = np.diag(within(member, latent, noise)) + noise * with_noise
        means.append(LOCATIONS[name] + SCALE * process().given(member.seen, noise, member.rows, latent).mean)
        centres.append(centre(name, means[-1], SCALE**2 * variance))
    if first is second:
        covariance = within(first, *one) + np.eye(len(first.rows)) * one[1] * with_noise
    else:
        covariance = error_covariance(first, *one, second, *other)
    covariance = SCALE**2 * covariance
    if name == "log":
        return np.outer(*centres) * np.exp(covariance)
    return np.outer(*centres) + 4 * np.outer(*means) * covariance + 2 * covariance**2


def brute_outputs(name: str, member: Member, *, with_noise: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the outputs of one condition, by a loop over its latents."""
    mean, second = np.zeros(len(member.rows)), np.zeros((len(member.rows), len(member.rows)))
    for weight, latent, noise in particles(member):
        variance = np.diag(within(member, latent, noise)) + noise * with_noise
        given = LOCATIONS[name] + SCALE * process().given(member.seen, noise, member.rows, latent).mean
        mean += weight * centre(name, given, SCALE**2 * variance)
        second += weight * given_pair(name, member, (latent, noise), member, (latent, noise), with_noise)
    return mean, second - np.outer(mean, mean)


def output_blocks(name: str, chosen: list[Member], *, with_noise: bool) -> list[list[np.ndarray]]:
    means = [brute_outputs(name, member, with_noise=with_noise)[0] for member in chosen]
    output = relative_output(TRANSFORMS[name], LOCATIONS[name], SCALE, means, include_noise=with_noise)
    blocks = output_covariance(
        small_model(1), [member.condition for member in chosen], [member.rows for member in chosen], output
    )
    return [
        [block * np.outer(mean, other) for block, other in zip(row, means, strict=True)]
        for row, mean in zip(blocks, means, strict=True)
    ]


@pytest.mark.parametrize(("name", "with_noise"), [("log", True), ("log", False), ("sqrt", True)])
@pytest.mark.parametrize("place", range(N_MEMBERS))
def test_outputs_of_which_a_transform_is_modelled_covary_as_mixtures_do(place: int, name: str, with_noise: bool):
    """Of trained conditions up to the quasi-random points of their latents."""
    member = members()[place]
    _, expected = brute_outputs(name, member, with_noise=with_noise)
    ((found,),) = output_blocks(name, [member], with_noise=with_noise)
    tolerance = 0.02 if place < 2 else 1e-4
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("name", "with_noise"), [("log", True), ("sqrt", False)])
def test_outputs_of_several_conditions_covary_as_all_pairs_of_latents_do(name: str, with_noise: bool):
    chosen = [members()[place] for place in (0, 2, 3)]
    found = np.block(output_blocks(name, chosen, with_noise=with_noise))
    means = [brute_outputs(name, member, with_noise=with_noise)[0] for member in chosen]
    rows = []
    for first, second in itertools.product(chosen, repeat=2):
        if first is second:
            rows.append(brute_outputs(name, first, with_noise=with_noise)[1])
            continue
        block = -np.outer(*(means[[member is each for each in chosen].index(True)] for member in (first, second)))
        for (weight, *one), (other_weight, *other) in itertools.product(particles(first), particles(second)):
            block += weight * other_weight * given_pair(name, first, tuple(one), second, tuple(other), with_noise)
        rows.append(block)
    expected = np.block([rows[3 * place : 3 * place + 3] for place in range(3)])
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, atol=0.05)
    assert np.linalg.eigvalsh(found).min() > 0
