"""Chains find posteriors that are known: the prior where nothing is observed, quadrature where little is unknown."""

from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from drawn_models import with_draws
from scipy.stats import norm
from small_models import MISSING, PER_CONDITION, D, described_parameters, long_case, number, replace

from benchmarks import simulation_based_calibration as calibration
from lvmogp import LVMOGPRegressor
from lvmogp.algebra.constraints import split
from lvmogp.inference.nuts.chains import SamplerSettings, Target, log_posterior, run_chains
from lvmogp.inference.nuts.likelihoods import log_likelihood, redrawn_latents
from lvmogp.inference.nuts.parameters import (
    ChainParameters,
    OwnNoise,
    Priors,
    SharedNoise,
    chain_parameters,
    log_prior,
)
from lvmogp.inference.nuts.sampling import sample_posterior
from lvmogp.inference.optimise import StopFit
from lvmogp.kernels.covariances import RBF, Linear, Periodic, RationalQuadratic
from lvmogp.model.layouts import GridData, scattered, standardised

PRIORS = Priors().checked()
# Enough for cooling. One number for all chains of the two conditions below, which then share a program.
N_WARMUP = 110


# Priors


def log_normal(value, median, spread):
    return np.sum(norm.logpdf(np.log(np.asarray(value)), np.log(median), spread))


def written_out(point, priors):
    """The prior of the point below, one hyperparameter after the other."""
    rational, periodic, linear = point.input_kernel.terms
    latent, noise = point.latent_kernel, point.noise
    return (
        log_normal(rational.lengthscale, priors.input_lengthscale[0] * np.sqrt(2), priors.input_lengthscale[1])
        + log_normal(rational.shape, *priors.other)
        + log_normal(periodic.lengthscale, *priors.other)
        + log_normal(periodic.variance, *priors.variance)
        + log_normal(linear.variance, *priors.variance)
        + log_normal(latent.lengthscale, priors.latent_lengthscale[0] * np.sqrt(3), priors.latent_lengthscale[1])
        + log_normal(latent.variance, *priors.variance)
        + np.sum(norm.logpdf(np.asarray(point.latents)))
        + log_normal(noise.variance, float(noise.median), float(noise.spread))
        + D * np.log(float(noise.spread))
        + log_normal(noise.median, *priors.noise_variance)
        + log_normal(noise.spread, *priors.noise_spread)
    )


def random_point(rng):
    positive = lambda *shape: jnp.asarray(np.exp(rng.normal(size=shape)))  # noqa: E731
    kernel = (
        RationalQuadratic(positive(2), number(1.3), shape=positive(), fixed="variance")
        + Periodic(number(2.0), positive(1), positive(), columns=1)
        + Linear(positive(2))
    )
    latents = jnp.asarray(rng.normal(size=(D, 3)))
    noise = OwnNoise(jnp.asarray(rng.normal(size=D)), positive(), positive())
    return ChainParameters(kernel, RBF(positive(3), positive()), latents, noise)


def test_priors_are_products_of_log_normal_densities(rng):
    priors = Priors(
        input_lengthscale=(0.7, 0.9),
        latent_lengthscale=(1.4, 0.6),
        variance=(2.0, 1.1),
        other=(0.8, 0.5),
        noise_variance=(0.2, 0.7),
        noise_spread=(0.4, 0.3),
    )
    first, second = random_point(rng), random_point(rng)
    difference = log_prior(first, priors) - log_prior(second, priors)
    np.testing.assert_allclose(difference, written_out(first, priors) - written_out(second, priors), rtol=1e-10)


# Chains


def target_of(point, data, priors=PRIORS):
    vector, fixed_leaves, structure = split(point)
    return Target(data, fixed_leaves, structure, priors), vector


def run(target, vector, settings, report=None, *, tempered=()):
    starts = jnp.tile(vector, (settings.n_chains, 1))
    return run_chains(target, starts, jnp.ones_like(starts), settings, report, tempered=tempered)


# A wide prior of the spread of noise variances: where nothing is known of it, chains must not get lost in a funnel.
WIDE = PRIORS._replace(noise_spread=(0.5, 2.0))


def with_features_and_own_noise():
    return replace(described_parameters(), noise_variance=jnp.asarray(PER_CONDITION))


def test_without_observations_draws_come_from_the_prior_and_known_features_stay():
    priors, parameters, data = WIDE, with_features_and_own_noise(), scattered(long_case().data)
    nothing = eqx.tree_at(
        lambda tree: (tree.outputs, tree.present), data, (jnp.zeros_like(data.outputs), jnp.zeros_like(data.present))
    )
    target, vector = target_of(chain_parameters(parameters, parameters.latent_mean), nothing, priors)
    chains, ended = run(target, vector, SamplerSettings(2, 200, 800, 0))
    assert ended
    points = jax.vmap(target.parameters)(jnp.concatenate([chain.trace.position for chain in chains.values()]))
    noise = points.noise
    shares = norm.cdf((np.log(noise.spread) - np.log(0.5)) / 2.0)
    np.testing.assert_allclose(np.quantile(shares, [0.05, 0.25, 0.5, 0.75]), [0.05, 0.25, 0.5, 0.75], atol=0.04)
    scores = [points.latents.reshape(len(shares), -1), noise.deviations, points.known.missing_mean]
    for values, (median, spread) in (
        (points.input_kernel.lengthscale, (np.sqrt(2) * priors.input_lengthscale[0], priors.input_lengthscale[1])),
        (points.latent_kernel.lengthscale, (np.sqrt(3) * priors.latent_lengthscale[0], priors.latent_lengthscale[1])),
        (points.input_kernel.variance, priors.variance),
        (noise.median, priors.noise_variance),
        (noise.spread, priors.noise_spread),
    ):
        scores.append((np.log(np.asarray(values)) - np.log(median)) / spread)
    for each in scores:  # standard errors: about 1000 of the draws count
        np.testing.assert_allclose(each.mean(axis=0), 0, atol=0.15)
        np.testing.assert_allclose(each.std(axis=0), 1, atol=0.12)
    known = np.ones(points.known.values.shape[1:], dtype=bool)
    known[MISSING] = False
    coordinates = np.asarray(jax.vmap(lambda point: point.known.gaussians.mean)(points))
    np.testing.assert_array_equal(np.ptp(coordinates[:, known], axis=0), 0.0)


def test_draws_start_from_a_fit_with_features_and_keep_those_that_are_known():
    reports, parameters = [], with_features_and_own_noise()
    settings = SamplerSettings(2, 200, 4, 0)
    draws, account = sample_posterior([parameters], long_case().data, WIDE, settings, reports.append)
    assert account.completed
    assert [chain.n_draws for chain in account.chains] == [4, 4]
    np.testing.assert_array_equal(draws.chain, np.repeat([0, 1], 4))
    np.testing.assert_allclose(np.exp(draws.log_weight).sum(), 1)
    features, values = np.asarray(draws.latents)[:, :, 1:], np.asarray(parameters.known.values)
    known = np.ones(values.shape, dtype=bool)
    known[MISSING] = False
    np.testing.assert_array_equal(features[:, known], np.tile(values[known], (8, 1)))
    assert np.all(np.ptp(features[:, ~known], axis=0) > 0.01)  # the missing ones were drawn
    assert np.all(np.ptp(np.asarray(draws.latents)[:, :, 0], axis=0) > 0.01)
    last = reports[-1]
    assert (last.n_latent, last.n_restarts, last.recipe, last.iteration, last.share) == (1, 2, "nuts", 408, 1.0)


@pytest.mark.long
def test_without_latents_only_hyperparameters_are_drawn():
    rng, ids = np.random.default_rng(42), np.repeat(np.arange(6), 5)
    slope = pd.DataFrame({"slope": np.linspace(-1, 1, 6)})
    X, errors = rng.uniform(-1, 1, (30, 1)), rng.uniform(0.02, 0.3, 30)
    y = slope["slope"].to_numpy()[ids] * X[:, 0] + errors * rng.standard_normal(30)
    model = LVMOGPRegressor(0, n_restarts=1, n_inducing_inputs=5, n_inducing_latents=6)
    model.fit(X, y, conditions=ids, condition_features=slope, y_std=errors)
    trained = model.model_
    data = standardised(trained.observations, trained.scaling)
    draws, account = sample_posterior([trained.fit.outcome.parameters], data, PRIORS, SamplerSettings(2, 30, 5, 0))
    assert account.completed
    assert np.ptp(np.asarray(draws.latents), axis=0).max() == 0.0
    assert np.ptp(np.asarray(draws.noise_variance)) > 0
    model.model_ = with_draws(trained, draws)
    assert np.all(np.isfinite(model.predict(X, "new", condition_features={"new": {"slope": 0.4}})))
    like = model.predict(X, "like 2", condition_features={"like 2": slope.loc[2]})
    np.testing.assert_allclose(model.predict(X, 2), like, rtol=1e-9)


def two_conditions():
    """Two conditions with everything known but their latents and the noise: three unknown numbers."""
    rng = np.random.default_rng(5)
    inputs = np.linspace(-1.5, 1.5, 5)[:, None]
    curve = np.sin(2 * inputs[:, 0])
    outputs = np.stack([curve, 0.2 * curve], axis=1) + 0.2 * rng.normal(size=(5, 2))
    fixed = ("lengthscale", "variance")
    point = ChainParameters(
        RBF(jnp.ones(1), number(1.0), fixed=fixed),
        RBF(jnp.ones(1), number(1.0), fixed=fixed),
        jnp.asarray([[-0.5], [0.5]]),
        SharedNoise(jnp.asarray([0.1])),
    )
    return point, GridData(jnp.asarray(inputs), jnp.asarray(outputs))


@pytest.mark.parametrize("tempered", [(), (0, 1)], ids=["cold", "tempered"])
def test_draws_have_the_moments_of_quadrature(tempered):
    point, data = two_conditions()
    target, vector = target_of(point, data)
    axes = [np.linspace(-4, 4, 49), np.linspace(-4, 4, 49), np.linspace(-8, 2, 61)]  # h_1, h_2, log σ²
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    log_density = jax.jit(lambda rows: jax.lax.map(lambda row: log_posterior(target, row), rows, batch_size=500))
    density = np.exp(np.asarray(log_density(jnp.asarray(points))) - 20)
    density /= density.sum()

    def numbers(rows):
        distance = np.abs(rows[:, 0] - rows[:, 1])
        return np.stack([rows[:, 2], rows[:, 2] ** 2, distance, distance**2, rows[:, 0] ** 2], axis=1)

    chains, _ = run(target, vector, SamplerSettings(2, N_WARMUP, 1500, 1), tempered=tempered)
    drawn = numbers(np.concatenate([chain.trace.position for chain in chains.values()]))
    expected = density @ numbers(points)
    spread = np.sqrt(density @ (numbers(points) - expected) ** 2)
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - expected), 0.12 * spread)
    # The log posterior that chains report is that of their draws.
    trace = chains[0].trace
    np.testing.assert_allclose(
        trace.log_posterior[:5], [log_posterior(target, jnp.asarray(row)) for row in trace.position[:5]]
    )


def test_at_a_temperature_the_likelihood_has_a_power():
    point, data = two_conditions()
    target, vector = target_of(point, data)
    expected = 0.3 * log_likelihood(point, data) + log_prior(point, PRIORS)
    np.testing.assert_allclose(log_posterior(target, vector, 0.3), expected, rtol=1e-12)
    assert abs(log_posterior(target, vector) - expected) > 0.1


def three_groups_in_the_wrong_order():
    """Eight conditions each of two curves and of their mean, which starts beside both instead of between them."""
    inputs = np.linspace(-2, 2, 8)[:, None]
    one, other = np.sin(1.5 * inputs[:, 0]), np.cos(1.5 * inputs[:, 0])
    curves = np.repeat(np.stack([one, (one + other) / np.sqrt(2), other], axis=1), 8, axis=1)
    outputs = curves + np.sqrt(0.005) * np.random.default_rng(1).normal(size=curves.shape)
    fixed = ("lengthscale", "variance")
    point = ChainParameters(
        RBF(jnp.ones(1), number(1.0), fixed=fixed),
        RBF(jnp.full(1, 0.8), number(1.0), fixed=fixed),
        jnp.repeat(jnp.asarray([0.0, -1.0, 1.0]), 8)[:, None],
        SharedNoise(jnp.asarray([0.005])),
    )
    return point, GridData(jnp.asarray(inputs), jnp.asarray(outputs))


def test_tempered_chains_leave_a_lesser_mode():
    target, vector = target_of(*three_groups_in_the_wrong_order())
    starts = jnp.tile(vector, (6, 1))
    settings = SamplerSettings(6, 160, 120, 0)  # fewer draws leave an error of several units in the levels below
    chains, _ = run_chains(target, starts, jnp.full_like(starts, 0.1), settings, tempered=(1, 3, 5))
    groups = np.stack([chain.trace.position[:, :24].reshape(-1, 3, 8).mean(axis=2) for chain in chains.values()])
    in_order = np.mean((groups[..., 1] - groups[..., 0]) * (groups[..., 2] - groups[..., 1]) > 0, axis=1)
    np.testing.assert_array_equal(in_order[::2], 0)
    assert np.sum(in_order[1::2] == 1) >= 2  # most of them, by hand seven of nine
    levels = np.asarray([chain.trace.log_posterior.mean() for chain in chains.values()])
    assert np.min(levels[in_order == 1]) > np.max(levels[::2]) + 2


def test_a_short_warmup_leaves_no_time_for_cooling():
    short, enough, longer = (SamplerSettings(1, n_warmup, 5, 0) for n_warmup in (106, 107, 160))
    assert short.stretches(tempered=True) == short.stretches(tempered=False) == [(106, 1.0), (5, 1.0)]
    assert enough.stretches(tempered=False) == [(107, 1.0), (5, 1.0)]
    *cooling, warm, draws = enough.stretches(tempered=True)
    np.testing.assert_allclose(cooling, [(8, 0.1 ** (1 - place / 8)) for place in range(8)])
    assert (warm, draws) == ((107 - 64, 1.0), (5, 1.0))
    assert len(longer.stretches(tempered=True)) == 12 + 2


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_in_tempered_chains_latents_are_redrawn_at_the_temperature(beta):
    point, data = two_conditions()
    candidates = jnp.linspace(-3, 3, 601)[:, None]

    def log_density(place):
        moved = eqx.tree_at(lambda tree: tree.latents, point, point.latents.at[1].set(place))
        return beta * log_likelihood(moved, data) - place[0] ** 2 / 2

    density = np.exp(np.asarray(jax.lax.map(log_density, candidates)))
    density /= density.sum()
    redraw = jax.vmap(lambda key: redrawn_latents(point, data, jnp.ones(8, int), key, beta)[1, 0])
    drawn = np.asarray(redraw(jax.random.split(jax.random.key(0), 1000)))
    places = np.asarray(candidates[:, 0])
    mean, square = density @ places, density @ places**2
    np.testing.assert_allclose([drawn.mean(), np.mean(drawn**2)], [mean, square], atol=0.1)


def test_the_same_seed_gives_the_same_draws_in_pieces_of_any_length(monkeypatch):
    target, vector = target_of(*two_conditions())
    settings = SamplerSettings(2, N_WARMUP, 12, 3)
    first, _ = run(target, vector, settings, tempered=(1,))
    cold, _ = run(target, vector, settings)
    np.testing.assert_array_equal(first[0].trace.position, cold[0].trace.position)
    assert np.all(first[1].trace.position[:, 2] != cold[1].trace.position[:, 2])
    monkeypatch.setattr("lvmogp.inference.nuts.chains._PIECE_SECONDS", 1e-9)  # one step a piece
    second, _ = run(target, vector, settings, tempered=(1,))
    for one, other in zip(first.values(), second.values(), strict=True):
        np.testing.assert_array_equal(one.trace.position, other.trace.position)
    assert first[0].trace.position[0, 0] != first[1].trace.position[0, 0]  # chains differ
    third, _ = run(target, vector, settings._replace(seed=4))
    assert np.all(third[0].trace.position != first[0].trace.position)


def test_a_stop_keeps_the_draws_so_far(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.nuts.chains._PIECE_SECONDS", 1e-9)
    monkeypatch.setattr("lvmogp.inference.nuts.chains.n_threads", lambda: 2)
    target, vector = target_of(*two_conditions())
    settings = SamplerSettings(2, N_WARMUP, 40, 0)
    seen = []

    def report(chain, n_steps, value):
        seen.append((chain, n_steps, value))
        if n_steps >= 240:
            raise StopFit

    chains, ended = run(target, vector, settings, report)
    whole, _ = run(target, vector, settings)
    assert not ended
    assert [n_steps for _, n_steps, _ in seen] == list(range(1, 241))
    assert {chain for chain, _, _ in seen} == {0, 1}
    steps = Counter(chain for chain, _, _ in seen)  # either may have been the quicker one
    for place, chain in chains.items():
        kept = len(chain.trace.energy)
        after_warmup = max(steps[place] - N_WARMUP, 0)
        assert after_warmup <= kept <= after_warmup + 1  # one may have been on its way
        np.testing.assert_array_equal(chain.trace.position, whole[place].trace.position[:kept])


def test_chains_that_never_began_are_left_out(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.nuts.chains.n_threads", lambda: 1)
    target, vector = target_of(*two_conditions())
    settings = SamplerSettings(3, N_WARMUP, 10, 0)

    def report(chain, n_steps, value):
        if n_steps > settings.n_steps:  # the second chain has begun
            raise StopFit

    chains, ended = run(target, vector, settings, report)
    assert not ended
    assert list(chains) == [0, 1]
    whole, ended = run(target, vector, settings)
    assert ended
    np.testing.assert_array_equal(chains[0].trace.position, whole[0].trace.position)


def test_regions_that_are_not_numbers_are_walls(monkeypatch):
    def with_a_hole(point, priors):
        return jnp.where(point.latents[0, 0] > 0.3, jnp.nan, log_prior(point, priors))

    monkeypatch.setattr("lvmogp.inference.nuts.chains.log_prior", with_a_hole)
    point, data = two_conditions()
    # One more input: a program of its own, that knows of the hole.
    data = GridData(
        jnp.concatenate([data.inputs, data.inputs[:1] + 0.1]), jnp.concatenate([data.outputs, data.outputs[:1]])
    )
    target, vector = target_of(point, data)
    chains, _ = run(target, vector, SamplerSettings(1, 100, 300, 0))
    trace = chains[0].trace
    assert np.all(np.isfinite(trace.position))
    assert np.all(trace.position[:, 0] <= 0.3)
    assert np.sum(trace.diverging) > 0
    assert np.std(trace.position[:, 0]) > 0.1


# Simulation-based calibration


@pytest.mark.parametrize(
    ("form", "n_ranked"),
    [
        ("grid", 7),
        *(
            pytest.param(form, n_ranked, marks=pytest.mark.long)
            for form, n_ranked in (("scattered", 7), ("grid, own noise", 9), ("scattered, own noise", 9))
        ),
    ],
)
def test_the_truth_ranks_evenly_among_the_draws(form, n_ranked):
    found = [calibration.ranks(number, form, SamplerSettings(2, 120, 95, 0)) for number in range(16)]
    values = calibration.p_values(found, n_bins=4)
    assert len(values) == n_ranked
    assert min(values.values()) > 0.01


def test_ranks_that_crowd_together_or_at_one_end_are_told():
    middle = [{"x": 5 + number % 5} for number in range(24)]
    high = [{"x": 10 + number % 10} for number in range(24)]
    assert calibration.p_values(middle, n_bins=4)["x"] < 1e-6
    assert calibration.p_values(high, n_bins=4)["x"] < 1e-3
