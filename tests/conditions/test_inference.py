"""New conditions inferred from a few observations, against integration over fine grids of latents and noise."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scipy.optimize
from drawn_models import (
    DenseCondition,
    Point,
    dense_ensemble,
    flat,
    forgetting,
    grid_points,
    hermite,
    made_condition,
    mixed,
    nothing_seen,
    of_kind,
    with_draws,
)
from references import Seen
from scipy.stats import multivariate_normal, norm

import lvmogp.conditions.condition as condition_module
import lvmogp.conditions.infer as infer_module
from lvmogp.conditions.condition import (
    MOST_PARTICLES,
    N_NODES,
    Condition,
    aligned_latents,
    chosen_particles,
    known_latents,
    latent_gaussian,
    mean_noise,
    particles_in_chunks,
)
from lvmogp.conditions.curves import MOST_EXACT, few_observations, no_observations
from lvmogp.conditions.infer import infer, starting_points, summarised
from lvmogp.conditions.search import Search, chosen_starts, normal_nodes, shifted, unit_nodes, weighted_points
from lvmogp.ground.compiling import compiled

# Points in the user's units that a condition of these models might show.
X_FEW = np.array([[0.2, 1.6], [0.9, -0.6], [1.6, -0.4]])
Y_FEW = np.array([0.1, 0.9, -0.4])
X_NEW = np.array([[0.3, 0.2], [1.1, 2.1], [1.9, -3.0], [0.7, -2.8]])
GRID = np.linspace(-4.5, 4.5, 121)[:, None]


def seen_by(model, x: np.ndarray, y: np.ndarray, errors: np.ndarray | None = None) -> Seen:
    scaling = model.model_.scaling
    variances = 0.0 if errors is None else scaling.error_variances(errors, y)
    return Seen(scaling.inputs(x), scaling.outputs(y), variances)


def brute_force(model, seen: Seen, latents: np.ndarray = GRID, log_prior: np.ndarray | None = None) -> DenseCondition:
    log_prior = -np.sum(latents**2, axis=1) / 2 if log_prior is None else log_prior
    return DenseCondition(grid_points(dense_ensemble(model.model_), seen, latents, log_prior), seen)


def assert_predicted_as(model, name: str, expected: DenseCondition, *, share: float = 0.03):
    """Mean and standard deviation agree up to a share of the latter, that of a sum over few particles."""
    scaling = model.model_.scaling
    mean, variance = mixed(dense_ensemble(model.model_), expected, scaling.inputs(X_NEW)).moments(include_noise=True)
    deviation = np.sqrt(scaling.variance(variance))
    found = model.predict(X_NEW, name, return_std=True)
    np.testing.assert_allclose(found[0], scaling.location(mean), atol=share * deviation.max())
    np.testing.assert_allclose(found[1], deviation, rtol=2 * share)


@pytest.mark.parametrize(
    ("kind", "noise", "n_few"),
    [
        ("fit on a grid", "per-condition", 3),
        ("draws on a grid", "per-condition", 3),
        ("draws on a grid", "shared", 0),
        pytest.param("fit on long data", "shared", 3, marks=pytest.mark.long),
        pytest.param("draws on scattered data", "shared", 1, marks=pytest.mark.long),
    ],
)
def test_a_new_condition_is_that_of_brute_force(kind, noise, n_few):
    model = forgetting(of_kind(kind, noise=noise))
    model.add_condition("f", X_FEW[:n_few], Y_FEW[:n_few])
    expected = brute_force(model, seen_by(model, X_FEW[:n_few], Y_FEW[:n_few]))
    assert_predicted_as(model, "f", expected)
    condition, ensemble = model.model_.added["f"].condition, model.model_.ensemble
    weights, latents, noises = (np.array([point[place] for point in expected.points]) for place in (0, 2, 3))
    owner = np.array([point.process for point in expected.points])
    shares = np.bincount(owner, weights, minlength=ensemble.n_processes)
    np.testing.assert_allclose(condition.weights.sum(axis=1), shares, atol=0.02)
    assert condition.weights.sum() == pytest.approx(1, rel=1e-12)
    # Latents as they compare between processes, in which mirrored draws agree.
    aligned = np.einsum("pq,pqr->pr", latents, np.asarray(ensemble.rotations)[owner])[:, 0]
    mean = weights @ aligned
    deviation = np.sqrt(weights @ (aligned - mean) ** 2)
    found = latent_gaussian(ensemble, condition)
    assert float(found.mean[0, 0]) == pytest.approx(mean, abs=0.04 * deviation)
    # One point leaves tails in which few particles lie.
    assert float(found.variance[0, 0]) ** 0.5 == pytest.approx(deviation, rel=0.12 if n_few == 1 else 0.03)
    particles = np.asarray(aligned_latents(ensemble, condition))[..., 0]
    for level in (0.1, 0.5, 0.9):
        threshold = np.sort(aligned)[np.searchsorted(np.cumsum(weights[np.argsort(aligned)]), level)]
        # Of what lies on the threshold, half is below.
        below = weights @ (aligned < threshold - 1e-9) / 2 + weights @ (aligned < threshold + 1e-9) / 2
        assert condition.weights[particles < threshold].sum() == pytest.approx(below, abs=0.03)
    logs = weights @ np.log(noises)
    spread = np.sqrt(weights @ (np.log(noises) - logs) ** 2)
    found_logs = np.sum(condition.weights * np.log(np.asarray(condition.noise)))
    assert found_logs == pytest.approx(logs, abs=max(0.05 * spread, 1e-9))
    assert mean_noise(ensemble, condition) == pytest.approx(weights @ noises, rel=0.05)


def test_many_observations_are_inferred_as_brute_force_does():
    """At inducing inputs, where compression loses nothing; draws keep all of them."""
    model = forgetting(of_kind("fit on a grid", noise="per-condition"))
    inducing = np.asarray(model.model_.posterior.parameters.inducing_inputs)
    scaling, rng = model.model_.scaling, np.random.default_rng(81)
    X = np.tile(scaling.input_mean + scaling.input_scale * inducing, (9, 1))[:33]
    y = np.tile(model.predict(X[:4], "b"), 9)[:33] + 0.3 * rng.standard_normal(33)
    model.add_condition("f", X, y)
    assert model.model_.added["f"].condition.seen.compressed is not None
    assert_predicted_as(model, "f", brute_force(model, seen_by(model, X, y)))
    for kind, n_many, is_compressed in (("fit on a grid", 32, False), ("draws on a grid", 33, False)):
        seen = summarised(of_kind(kind).model_.ensemble, few_observations(X[:n_many], y[:n_many]))
        assert (seen.compressed is not None) == is_compressed


def test_known_features_stay_and_the_rest_is_integrated():
    model = forgetting(of_kind("fit on a grid", noise="per-condition", features=True))
    x, y = X_FEW[:2], Y_FEW[:2]
    model.add_condition("known", x, y, features={"load": 0.4})
    feature = float(model.model_.condition_features.standardised(np.array([0.4]))[0])
    latents = np.column_stack([GRID, np.full(len(GRID), feature)])
    expected = brute_force(model, seen_by(model, x, y), latents, -(latents[:, 0] ** 2) / 2)
    assert_predicted_as(model, "known", expected)
    found = latent_gaussian(model.model_.ensemble, model.model_.added["known"].condition)
    assert float(found.mean[0, 1]) == pytest.approx(feature, rel=1e-12)
    assert float(found.variance[0, 1]) == pytest.approx(0.0, abs=1e-20)
    table = model.latents_.set_index("condition")
    assert table.loc["known", "mean_1"] == pytest.approx(float(found.mean[0, 0]))


@pytest.mark.long
def test_unknown_features_are_integrated_as_latents_are():
    model = forgetting(of_kind("fit on a grid", features=True)).add_condition("unknown", X_FEW[:2], Y_FEW[:2])
    both = np.array(list(itertools.product(np.linspace(-4, 4, 33), repeat=2)))
    expected = brute_force(model, seen_by(model, X_FEW[:2], Y_FEW[:2]), both)
    assert_predicted_as(model, "unknown", expected, share=0.04)


@pytest.mark.parametrize("kind", ["fit on a grid", "draws on a grid"])
def test_where_all_is_known_observations_still_tell_processes_apart(kind):
    model = forgetting(of_kind(kind, features=True, n_latent=0))
    model.add_condition("f", X_FEW, Y_FEW, features={"load": 0.4})
    model.add_condition("g", [], [], features={"load": 0.4})
    feature = model.model_.condition_features.standardised(np.array([[0.4]]))
    for name, n_few in (("f", 3), ("g", 0)):
        seen = seen_by(model, X_FEW[:n_few], Y_FEW[:n_few])
        expected = brute_force(model, seen, feature, np.zeros(1))
        assert_predicted_as(model, name, expected, share=1e-4)
        condition = model.model_.added[name].condition
        assert condition.noise.shape[1] == 1
        np.testing.assert_allclose(condition.weights[:, 0], [point.weight for point in expected.points], atol=1e-5)


# The search itself


def two_peaks(theta: jax.Array) -> jax.Array:
    """A quarter and three quarters of a thousand, in two narrow Gaussians; nothing can be said of some places."""
    peaks = [
        (0.25, jnp.array([2.5, 0.0]), jnp.array([0.2, 0.6])),
        (0.75, jnp.array([-1.0, 1.0]), jnp.array([0.5, 0.1])),
    ]
    logs = [
        jnp.log(share) + jnp.sum(jax.scipy.stats.norm.logpdf(theta, mean, deviation))
        for share, mean, deviation in peaks
    ]
    return jnp.where(theta[1] > -1.6, jax.scipy.special.logsumexp(jnp.stack(logs)) + jnp.log(1e3), jnp.nan)


@compiled
def searched(starts: jax.Array, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
    return weighted_points(two_peaks, chosen_starts(two_peaks, starts, 8), nodes, Search())


def test_weighted_points_have_mass_and_moments_of_the_density():
    starts = jnp.asarray(normal_nodes(32, 2))
    starts = starts[starts[:, 1] > -1.4]
    points, log_weights = searched(starts, jnp.asarray(unit_nodes(1024, 3)))
    weights = np.exp(np.asarray(log_weights))
    assert np.mean(weights) == pytest.approx(1e3, rel=0.02)
    shares = weights / weights.sum()
    right = np.asarray(points)[:, 0] > 1
    assert shares[right].sum() == pytest.approx(0.25, abs=0.01)
    for side, mean, deviation in ((right, [2.5, 0.0], [0.2, 0.6]), (~right, [-1.0, 1.0], [0.5, 0.1])):
        own = shares[side] / shares[side].sum()
        centre = own @ np.asarray(points)[side]
        np.testing.assert_allclose(centre, mean, atol=0.03)
        np.testing.assert_allclose(np.sqrt(own @ (np.asarray(points)[side] - centre) ** 2), deviation, rtol=0.08)
    # A tenth belongs to the prior; the rest is as wide as the peaks and half as wide again.
    assert 1 / np.sum(shares**2) > 0.55 * 512


@compiled
def searched_from(start: jax.Array, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
    def beyond_a_gap(theta: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(theta[0] - 1) < 0.1, jnp.nan, -50 * (theta[0] - 2) ** 2)

    return weighted_points(beyond_a_gap, start, nodes, Search())


def test_a_step_to_where_nothing_can_be_said_is_not_taken():
    """A full step leads there; shorter ones lead on, to a peak that points of the prior would hardly find."""
    _, log_weights = searched_from(jnp.zeros((1, 1)), jnp.asarray(unit_nodes(512, 2)))
    weights = np.exp(np.asarray(log_weights))
    assert weights.sum() ** 2 / np.sum(weights**2) > 100


def test_starts_are_the_best_and_some_of_the_rest():
    starts = jnp.linspace(-3, 3, 31)[:, None]
    found = np.asarray(chosen_starts(lambda theta: -((theta[0] - 1) ** 2), starts, 8))[:, 0]
    assert np.all(np.abs(found[:4] - 1.0) < 0.5)
    assert found[0] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(-3.0)  # the worst
    assert len(found) == 8
    assert len(chosen_starts(lambda theta: theta[0], starts[:3], 8)) == 3  # none twice where there are few


def test_starts_of_a_search_are_trained_latents_and_the_prior():
    ensemble = of_kind("draws on a grid", noise="per-condition").model_.ensemble
    search = Search(n_prior_starts=4, most_trained_starts=2)
    found = np.asarray(starting_points(ensemble, known_latents(ensemble, 1), search))
    assert found.shape == (6, 2 + 4, 2)  # every third of five, four of the prior; a latent and the noise
    np.testing.assert_array_equal(found[:, :2, 0], np.asarray(ensemble.latents)[:, ::3, 0])
    np.testing.assert_array_equal(found[:, 2:, 0], np.tile(normal_nodes(4, 1)[:, 0], (6, 1)))
    np.testing.assert_array_equal(found[:, :, 1], 0.0)


def test_how_thoroughly_latents_are_looked_for():
    """Part of every answer, and what the page of a model does in the same way; of many processes less each."""
    lengths = (1.0, 0.3, 0.1, 0.01)
    assert Search() == (512, 1024, 32, 12, 8, 64, 128, 20, lengths, 1.5, 0.1)
    assert (512, 0, 6, 12, 8, 32, 32, 8, lengths, 1.5, 0.1) == infer_module._BRIEF_SEARCH
    assert [infer_module._particles_each(count) for count in (6, 33, 100, 600)] == [512, 256, 128, 32]
    assert (MOST_EXACT, N_NODES, MOST_PARTICLES) == (32, 128, 512)


def test_nodes_are_spread_evenly():
    nodes = normal_nodes(128, 2)
    np.testing.assert_allclose(nodes.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(nodes.T), np.eye(2), atol=0.05)
    assert unit_nodes(4, 0).shape == (4, 0)
    moved = np.asarray(shifted(jnp.array([[0.2], [0.9], [0.5]]), jnp.array([0.3])))
    np.testing.assert_allclose(moved, [[0.5], [0.2], [0.8]], atol=1e-12)
    edge = np.asarray(shifted(jnp.array([[0.5]]), jnp.array([0.5])))
    assert 0 < edge[0, 0] < 1e-9


# Particles that stand for all


def many_particles(ensemble, n_each: int, *, n_seen: int = 0) -> Condition:
    rng = np.random.default_rng(82)
    seen = few_observations(rng.normal(size=(n_seen, 2)), rng.normal(size=n_seen))
    return made_condition(ensemble, seen, n_each=n_each, noise=(0.1, 0.2))


@pytest.mark.parametrize("n_latent", [1, 2])
def test_chosen_particles_are_few_and_keep_what_all_say(n_latent):
    ensemble = of_kind("draws on a grid", n_latent=n_latent).model_.ensemble
    condition = many_particles(ensemble, 400)
    chosen = chosen_particles(ensemble, condition)
    assert len(chosen.weights) <= 512
    assert chosen.weights.sum() == pytest.approx(1, rel=1e-12)
    assert set(chosen.process) == set(range(6))
    aligned = np.asarray(aligned_latents(ensemble, condition))
    values, weights = aligned[chosen.process, chosen.place], condition.weights[..., None]
    mean = np.sum(weights * aligned, axis=(0, 1))
    spread = np.sqrt(np.sum(weights * (aligned - mean) ** 2, axis=(0, 1)))
    # Neighbours stand for one another, so that errors are far below those of drawing at random (0.044).
    np.testing.assert_allclose(chosen.weights @ values, mean, atol=(0.01 if n_latent == 1 else 0.02) * spread.max())
    assert mean_noise(ensemble, condition) == pytest.approx(
        np.sum(condition.weights * np.asarray(condition.noise)), rel=0.02
    )


@pytest.mark.parametrize(("n_seen", "expected"), [(0, 512), (64, 512), (128, 256), (2_000, 64)])
def test_conditions_with_many_observations_have_fewer_particles(n_seen, expected):
    ensemble = of_kind("draws on a grid").model_.ensemble
    condition = many_particles(ensemble, 100, n_seen=n_seen)
    even = dataclasses.replace(condition, log_weights=jnp.full_like(condition.log_weights, -np.log(600)))
    # Of 600 particles with the same weight, none is chosen twice.
    assert np.sum(chosen_particles(ensemble, even).weights > 0) == expected
    assert np.sum(chosen_particles(ensemble, even, 33).weights > 0) == 33


def test_few_particles_stand_for_themselves():
    ensemble = of_kind("draws on a grid").model_.ensemble
    condition = many_particles(ensemble, 7)
    chosen = chosen_particles(ensemble, condition)
    kept = chosen.weights > 0
    assert len(chosen.weights) == 48  # of 42, padded
    np.testing.assert_allclose(chosen.weights[kept], condition.weights[chosen.process, chosen.place][kept], rtol=1e-12)
    assert kept.sum() == 42
    without = np.log(np.where(np.arange(7) < 3, condition.weights, 0.0) + 1e-300)
    without[:, 3:] = -np.inf
    without -= np.log(np.exp(without).sum())
    fewer = chosen_particles(ensemble, dataclasses.replace(condition, log_weights=jnp.asarray(without)))
    assert np.all(fewer.place < 3)
    assert fewer.weights.sum() == pytest.approx(1, rel=1e-12)


def test_particles_in_the_order_of_their_neighbourhood():
    order = condition_module._by_neighbourhood
    latents = np.random.default_rng(83).normal(size=(300, 1))
    along = latents[order(latents, 128), 0]
    assert np.all(np.diff(np.floor(256 * norm.cdf(along))) >= 0)  # sorted, but for those in the same cell
    plane = np.random.default_rng(84).normal(size=(1_000, 2))
    apart = np.linalg.norm(np.diff(plane[order(plane, 512)], axis=0), axis=1)
    assert np.mean(apart) < 0.25 * np.mean(np.linalg.norm(np.diff(plane, axis=0), axis=1))
    # What does not vary has no say, and where nothing varies the order stays.
    np.testing.assert_array_equal(order(np.column_stack([np.full(300, 2.0), latents]), 64), order(latents, 64))
    np.testing.assert_array_equal(order(np.zeros((5, 2)), 8), np.arange(5))


# The paper's single Gaussian


def dense_bound(model, seen: Seen, mean: np.ndarray, variance: np.ndarray, noise: float) -> float:
    """The bound of that condition alone, less the divergence of the inducing variables."""
    trained, scaling = model.model_.observations, model.model_.scaling
    x, y = scaling.inputs(trained.inputs), scaling.outputs(trained.outputs)
    rows = [(x[trained.conditions == d], y[trained.conditions == d]) for d in range(5)]
    parameters = references.with_optimal_inducing(flat(model.model_.posterior.parameters), rows)
    own = {"latent_mean": mean[None], "latent_variance": variance[None], "noise_variance": np.array([noise])}
    alone = dataclasses.replace(parameters, **{name: jnp.asarray(part) for name, part in own.items()})
    gram = np.kron(*references.grams(alone)[::-1])
    bound = references.missing_data_formulation(alone, [(seen.inputs, seen.values)], n_nodes=30)
    return bound + references.gaussian_kl(*references.unwhitened(alone), gram)


def test_the_single_gaussian_maximises_the_bound():
    """With a noise of its own, errors of measurements and a known feature."""
    model = forgetting(of_kind("fit on a grid", noise="per-condition", features=True))
    model.add_condition("f", X_FEW, Y_FEW, method="gaussian", y_std=0.4, features={"load": 0.4})
    seen, found = seen_by(model, X_FEW, Y_FEW), model.model_.added["f"].condition
    prior, deviation = dense_ensemble(model.model_).log_noise[0]
    error = (0.4 / model.model_.scaling.output_scale) ** 2
    feature = float(model.model_.condition_features.standardised(np.array([0.4]))[0])
    noise, (mean, known), (variance, nothing) = (
        float(found.noise[0, 0]),
        *(np.asarray(part[0]) for part in (found.gaussian.mean, found.gaussian.variance)),
    )
    assert (known, nothing, found.gaussian.n_uncertain) == (pytest.approx(feature), 0.0, 1)

    def loss(free: np.ndarray) -> float:
        # Known coordinates have no variance, and of their own divergence no more than a constant.
        own = np.exp(prior + deviation * free[2]) + error
        at, spread = np.array([free[0], feature]), np.array([np.exp(free[1]), 1e-300])
        return free[2] ** 2 / 2 - dense_bound(model, seen, at, spread, own)

    best = np.array([mean, np.log(variance), (np.log(noise) - prior) / deviation])
    assert np.max(np.abs(scipy.optimize.approx_fprime(best, loss, 1e-6))) < 2e-2
    assert loss(best) < min(loss(np.array([at, -1.0, 0.0])) for at in np.linspace(-3, 3, 7))
    # As its predictions have it, and the points that stand for it.
    nodes, masses = hermite(30)
    points = [
        Point(mass, 0, np.array([mean + np.sqrt(variance) * node, feature]), noise)
        for (node,), mass in zip(nodes, masses, strict=True)
    ]
    assert_predicted_as(model, "f", DenseCondition(points, nothing_seen(2)), share=1e-6)
    np.testing.assert_allclose(found.latents[0, :, 0], mean + np.sqrt(variance) * normal_nodes(128, 2)[:, 0])
    np.testing.assert_allclose(found.weights, 1 / 128)
    # Without points it is the prior.
    found = model.add_condition("g", [], [], method="gaussian", features={"load": 0.4}).model_.added["g"].condition
    assert float(found.gaussian.mean[0, 0]) == pytest.approx(0, abs=1e-3)
    assert float(found.gaussian.variance[0, 0]) == pytest.approx(1, abs=1e-2)
    assert float(found.noise[0, 0]) == pytest.approx(np.exp(prior), rel=1e-3)


# Chunks of processes


def test_particles_come_in_chunks_of_processes(monkeypatch):
    """What is too large to keep is made in parts, and says the same."""
    model = forgetting(of_kind("draws on a grid", noise="per-condition"))
    model.add_condition("f", X_FEW, Y_FEW)
    expected = model.model_.added["f"].condition
    monkeypatch.setattr("lvmogp.conditions.ensemble._MOST_KEPT_ELEMENTS", 2 * (7 + 5) ** 2)
    model.model_ = with_draws(model.model_, model.model_.draws)
    ensemble = model.model_.ensemble
    assert ensemble.processes is None
    model.add_condition("f", X_FEW, Y_FEW)
    found = model.model_.added["f"].condition
    np.testing.assert_allclose(found.latents, expected.latents, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-5, atol=1e-12)
    chosen, parts = chosen_particles(ensemble, found), list(particles_in_chunks(ensemble, found))
    assert len(parts) == 3
    noise, weights = (np.concatenate([getattr(part, name) for part in parts]) for name in ("noise", "log_weights"))
    counted = np.exp(weights) > 0  # what is padded is not
    expected = np.asarray(found.noise)[chosen.process, chosen.place][chosen.weights > 0]
    np.testing.assert_allclose(np.sort(noise[counted]), np.sort(expected), rtol=1e-12)
    assert np.exp(weights) @ noise == pytest.approx(mean_noise(ensemble, found), rel=1e-9)


def test_prior_points_of_all_processes_together_are_standard_normal():
    ensemble = of_kind("draws on a grid", noise="per-condition").model_.ensemble
    found = infer(ensemble, no_observations(2), known_latents(ensemble, 1))
    assert found.noise.shape == (6, 86)  # 512 in all
    values, weights = np.asarray(found.latents)[..., 0], found.weights
    np.testing.assert_allclose(weights, np.tile(ensemble.weights[:, None] / 86, (1, 86)), rtol=1e-12)
    for level in (0.025, 0.25, 0.5, 0.9):
        assert weights[values < norm.ppf(level)].sum() == pytest.approx(level, abs=0.01)
    logs = np.log(np.asarray(found.noise))
    prior = ensemble.noise_prior
    scores = (logs - np.asarray(prior.mean)[:, None]) / np.asarray(prior.deviation)[:, None]
    both = np.stack([values.ravel(), scores.ravel()])
    np.testing.assert_allclose(np.cov(both, aweights=weights.ravel()), np.eye(2), atol=0.08)
    assert multivariate_normal(np.zeros(2)).cdf([0, 0]) == pytest.approx(
        weights[(values < 0) & (scores < 0)].sum(), abs=0.02
    )
