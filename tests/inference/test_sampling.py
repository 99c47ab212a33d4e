"""Chains find posteriors that are known: the prior where nothing is observed, quadrature where little is unknown."""

from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from small_models import MISSING, PER_CONDITION, D, described_parameters, long_case, number, rbf, replace

from benchmarks import simulation_based_calibration as calibration
from lvmogp.algebra.constraints import split
from lvmogp.inference.nuts.chains import SamplerSettings, Target, log_posterior, run_chains
from lvmogp.inference.nuts.likelihoods import log_likelihood, redrawn_latents
from lvmogp.inference.nuts.parameters import ChainParameters, OwnNoise, Priors, SharedNoise, chain_parameters, log_prior
from lvmogp.inference.nuts.sampling import sample_posterior
from lvmogp.inference.optimise import StopFit
from lvmogp.kernels.covariances import RBF, Linear, Periodic, RationalQuadratic
from lvmogp.model.layouts import GridData, scattered
from lvmogp.model.parameters import plain_kernels

PRIORS = Priors().checked()
# Enough for cooling. One number for all chains of the two conditions below, which then share a program.
N_WARMUP = 110


def random_point(rng):
    positive = lambda *shape: jnp.asarray(np.exp(rng.normal(size=shape)))  # noqa: E731
    kernel = (
        RationalQuadratic(positive(2), number(1.3), shape=positive(), fixed="variance")
        + Periodic(number(2.0), positive(1), positive(), columns=1)
        + Linear(positive(2))
    )
    latents = jnp.asarray(rng.normal(size=(D, 3)))
    noise = OwnNoise(jnp.asarray(rng.normal(size=D)), positive(), positive())
    return ChainParameters(plain_kernels(kernel, RBF(positive(3), positive())), latents, noise)


def written_out(point, priors):
    """The prior of such a point, one hyperparameter after the other."""
    rational, periodic, linear = point.kernels.of_inputs[0].terms
    latent, noise = point.kernels.of_latents[0], point.noise
    normals = (
        (rational.lengthscale, (priors.input_lengthscale[0] * np.sqrt(2), priors.input_lengthscale[1])),
        (rational.shape, priors.other),
        (periodic.lengthscale, priors.other),
        (periodic.variance, priors.variance),
        (linear.variance, priors.variance),
        (latent.lengthscale, (priors.latent_lengthscale[0] * np.sqrt(3), priors.latent_lengthscale[1])),
        (latent.variance, priors.variance),
        (noise.variance, (float(noise.median), float(noise.spread))),
        (noise.median, priors.noise_variance),
        (noise.spread, priors.noise_spread),
    )
    total = sum(np.sum(norm.logpdf(np.log(value), np.log(median), spread)) for value, (median, spread) in normals)
    return total + np.sum(norm.logpdf(point.latents)) + D * np.log(noise.spread)


def test_priors_are_products_of_log_normal_densities(rng):
    priors = Priors((0.7, 0.9), (1.4, 0.6), variance=(2.0, 1.1), other=(0.8, 0.5)).checked()
    priors = priors._replace(noise_variance=(0.2, 0.7), noise_spread=(0.4, 0.3))
    first, second = random_point(rng), random_point(rng)
    difference = log_prior(first, priors) - log_prior(second, priors)
    np.testing.assert_allclose(difference, written_out(first, priors) - written_out(second, priors), rtol=1e-10)


def target_of(point, data, priors=PRIORS):
    vector, fixed_leaves, structure = split(point)
    return Target(data, fixed_leaves, structure, priors), vector


def run(target, vector, settings, report=lambda *_: None, *, tempered=(), variance=1.0):
    starts = jnp.tile(vector, (settings.n_chains, 1))
    return run_chains(target, starts, jnp.full_like(starts, variance), settings, report, tempered=tempered)


# A wide prior of the spread of noise variances: where nothing is known of it, chains must not get lost in a funnel.
WIDE = PRIORS._replace(noise_spread=(0.5, 2.0))


def with_features_and_own_noise():
    """Parameters, and where their features are known."""
    parameters = replace(described_parameters(), noise_variance=jnp.asarray(PER_CONDITION))
    known = np.ones(parameters.known.values.shape, dtype=bool)
    known[MISSING] = False
    return parameters, known


def test_without_observations_draws_come_from_the_prior_and_known_features_stay():
    priors, data = WIDE, scattered(long_case().data)
    parameters, known = with_features_and_own_noise()
    nothing = eqx.tree_at(
        lambda tree: (tree.outputs, tree.present), data, (jnp.zeros_like(data.outputs), jnp.zeros_like(data.present))
    )
    target, vector = target_of(chain_parameters(parameters, parameters.latent_mean), nothing, priors)
    chains, ended = run(target, vector, SamplerSettings(2, 200, 800, 0))
    assert ended
    points = jax.vmap(target.parameters)(jnp.concatenate([chain.positions for chain in chains.values()]))
    noise = points.noise
    shares = norm.cdf((np.log(noise.spread) - np.log(0.5)) / 2.0)
    np.testing.assert_allclose(np.quantile(shares, [0.05, 0.25, 0.5, 0.75]), [0.05, 0.25, 0.5, 0.75], atol=0.04)
    scores = [points.latents.reshape(len(shares), -1), noise.deviations, points.known.missing_mean]
    for values, (median, spread) in (
        (
            points.kernels.of_inputs[0].lengthscale,
            (np.sqrt(2) * priors.input_lengthscale[0], priors.input_lengthscale[1]),
        ),
        (
            points.kernels.of_latents[0].lengthscale,
            (np.sqrt(3) * priors.latent_lengthscale[0], priors.latent_lengthscale[1]),
        ),
        (points.kernels.of_inputs[0].variance, priors.variance),
        (noise.median, priors.noise_variance),
        (noise.spread, priors.noise_spread),
    ):
        scores.append((np.log(np.asarray(values)) - np.log(median)) / spread)
    for each in scores:  # standard errors: about 1000 of the draws count
        np.testing.assert_allclose(each.mean(axis=0), 0, atol=0.15)
        np.testing.assert_allclose(each.std(axis=0), 1, atol=0.12)
    coordinates = np.asarray(jax.vmap(lambda point: point.known.gaussians.mean)(points))
    np.testing.assert_array_equal(np.ptp(coordinates[:, known], axis=0), 0.0)


def test_draws_start_from_a_fit_with_features_and_keep_those_that_are_known():
    reports, settings = [], SamplerSettings(2, 200, 4, 0)
    parameters, known = with_features_and_own_noise()
    draws, account = sample_posterior([parameters], long_case().data, WIDE, settings, reports.append)
    assert account.completed
    assert [chain.n_draws for chain in account.chains] == [4, 4]
    np.testing.assert_array_equal(draws.chain, np.repeat([0, 1], 4))
    np.testing.assert_allclose(np.exp(draws.log_weight).sum(), 1)
    features, values = np.asarray(draws.latents)[:, :, 1:], np.asarray(parameters.known.values)
    np.testing.assert_array_equal(features[:, known], np.tile(values[known], (8, 1)))
    assert np.all(np.ptp(features[:, ~known], axis=0) > 0.01)  # the missing ones were drawn
    assert np.all(np.ptp(np.asarray(draws.latents)[:, :, 0], axis=0) > 0.01)
    last = reports[-1]
    assert (last.n_latent, last.n_restarts, last.recipe, last.iteration, last.share) == (1, 2, "nuts", 408, 1.0)


@pytest.mark.long
def test_without_latents_hyperparameters_and_missing_features_are_drawn():
    parameters, known = with_features_and_own_noise()
    parameters = replace(
        parameters,
        kernels=plain_kernels(parameters.kernels.of_inputs[0], rbf([1.3, 1.5], 0.9)),
        inducing_latents=parameters.inducing_latents[:, 1:],
        latent_mean=parameters.latent_mean[:, :0],
        latent_variance=parameters.latent_variance[:, :0],
    )
    draws, account = sample_posterior([parameters], long_case().data, PRIORS, SamplerSettings(2, 30, 5, 0))
    assert account.completed
    np.testing.assert_array_equal(np.ptp(np.asarray(draws.latents), axis=0) > 0, ~known)
    assert np.ptp(np.asarray(draws.noise_variance)) > 0


def with_known_kernels(latents, noise, outputs, inputs, lengthscale=1.0):
    """Everything known but latents and the noise."""
    kernels = plain_kernels(
        *(RBF(jnp.full(1, each), number(1.0), fixed=("lengthscale", "variance")) for each in (1.0, lengthscale))
    )
    noise = SharedNoise(jnp.asarray([noise]))
    point = ChainParameters(kernels, jnp.asarray(latents)[:, None], noise)
    return point, GridData(jnp.asarray(inputs), jnp.asarray(outputs))


def two_conditions():
    """Three unknown numbers: two latents and the noise."""
    inputs = np.linspace(-1.5, 1.5, 5)[:, None]
    curves = np.sin(2 * inputs) * [1.0, 0.2]
    return with_known_kernels([-0.5, 0.5], 0.1, curves + 0.2 * np.random.default_rng(5).normal(size=(5, 2)), inputs)


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
    drawn = numbers(np.concatenate([chain.positions for chain in chains.values()]))
    expected = density @ numbers(points)
    spread = np.sqrt(density @ (numbers(points) - expected) ** 2)
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - expected), 0.12 * spread)
    # The log posterior that chains report is that of their draws.
    chain = chains[0]
    expected = [log_posterior(target, jnp.asarray(row)) for row in chain.positions[:5]]
    np.testing.assert_allclose(chain.statistics.log_posterior[:5], expected)


def test_tempered_chains_leave_a_lesser_mode():
    # Eight conditions each of two curves and of their mean, which starts beside both instead of between them.
    inputs = np.linspace(-2, 2, 8)[:, None]
    one, other = np.sin(1.5 * inputs[:, 0]), np.cos(1.5 * inputs[:, 0])
    curves = np.repeat(np.stack([one, (one + other) / np.sqrt(2), other], axis=1), 8, axis=1)
    outputs = curves + np.sqrt(0.005) * np.random.default_rng(1).normal(size=curves.shape)
    known = with_known_kernels(np.repeat([0.0, -1.0, 1.0], 8), 0.005, outputs, inputs, lengthscale=0.8)
    target, vector = target_of(*known)
    settings = SamplerSettings(6, 160, 120, 0)  # fewer draws leave an error of several units in the levels below
    chains, _ = run(target, vector, settings, tempered=(1, 3, 5), variance=0.1)
    groups = np.stack([chain.positions[:, :24].reshape(-1, 3, 8).mean(axis=2) for chain in chains.values()])
    in_order = np.mean((groups[..., 1] - groups[..., 0]) * (groups[..., 2] - groups[..., 1]) > 0, axis=1)
    np.testing.assert_array_equal(in_order[::2], 0)
    assert np.sum(in_order[1::2] == 1) >= 2  # most of them, by hand seven of nine
    levels = np.asarray([chain.statistics.log_posterior.mean() for chain in chains.values()])
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
def test_at_a_temperature_the_likelihood_has_a_power(beta):
    point, data = two_conditions()
    target, vector = target_of(point, data)
    expected = beta * log_likelihood(point, data) + log_prior(point, PRIORS)
    np.testing.assert_allclose(log_posterior(target, vector, beta), expected, rtol=1e-12)
    assert abs(log_posterior(target, vector) - expected) > 0.1
    # Latents are redrawn in the same way.
    candidates = jnp.linspace(-3, 3, 601)[:, None]

    def log_density(place):
        moved = eqx.tree_at(lambda tree: tree.latents, point, point.latents.at[1].set(place))
        return beta * log_likelihood(moved, data) - place[0] ** 2 / 2

    density = np.exp(np.asarray(jax.lax.map(log_density, candidates)))
    density /= density.sum()
    redraw = jax.jit(jax.vmap(lambda key: redrawn_latents(point, data, jnp.ones(8, int), key, number(beta))[1, 0]))
    drawn = np.asarray(redraw(jax.random.split(jax.random.key(0), 1000)))
    moments = [density @ np.asarray(candidates[:, 0]) ** power for power in (1, 2)]
    np.testing.assert_allclose([drawn.mean(), np.mean(drawn**2)], moments, atol=0.1)


def test_the_same_seed_gives_the_same_draws_in_pieces_of_any_length(monkeypatch):
    target, vector = target_of(*two_conditions())
    settings = SamplerSettings(2, N_WARMUP, 12, 3)
    first, _ = run(target, vector, settings, tempered=(1,))
    cold, _ = run(target, vector, settings)
    np.testing.assert_array_equal(first[0].positions, cold[0].positions)
    assert np.all(first[1].positions[:, 2] != cold[1].positions[:, 2])
    monkeypatch.setattr("lvmogp.inference.nuts.chains._PIECE_SECONDS", 1e-9)  # one step a piece
    second, _ = run(target, vector, settings, tempered=(1,))
    for one, other in zip(first.values(), second.values(), strict=True):
        np.testing.assert_array_equal(one.positions, other.positions)
    assert first[0].positions[0, 0] != first[1].positions[0, 0]  # chains differ
    third, _ = run(target, vector, settings._replace(seed=4))
    assert np.all(third[0].positions != first[0].positions)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stop_keeps_the_draws_so_far_and_leaves_out_chains_that_never_began(monkeypatch, threads):
    monkeypatch.setattr("lvmogp.inference.nuts.chains._PIECE_SECONDS", 1e-9)
    monkeypatch.setattr("lvmogp.inference.nuts.chains.n_threads", lambda: threads)
    target, vector = target_of(*two_conditions())
    settings, seen = SamplerSettings(3, N_WARMUP, 40, 0), []

    def report(chain, n_steps, value):
        seen.append((chain, n_steps))
        if n_steps >= 240:
            raise StopFit

    (chains, stopped), (whole, ended) = run(target, vector, settings, report), run(target, vector, settings)
    assert (stopped, ended) == (False, True)
    assert list(chains) == [0, 1]
    assert [n_steps for _, n_steps in seen] == list(range(1, 241))
    steps = Counter(chain for chain, _ in seen)  # with two threads either may have been the quicker one
    assert threads == 2 or steps == {0: N_WARMUP + 40, 1: 200 - N_WARMUP}
    for place, chain in chains.items():
        kept, after_warmup = len(chain.positions), max(steps[place] - N_WARMUP, 0)
        assert after_warmup <= kept <= after_warmup + 1  # one may have been on its way
        np.testing.assert_array_equal(chain.positions, whole[place].positions[:kept])


def test_regions_that_are_not_numbers_are_walls(monkeypatch):
    def with_a_hole(point, priors):
        return jnp.where(point.latents[0, 0] > 0.3, jnp.nan, log_prior(point, priors))

    monkeypatch.setattr("lvmogp.inference.nuts.chains.log_prior", with_a_hole)
    point, data = two_conditions()
    # One input less: a program of its own, that knows of the hole.
    target, vector = target_of(point, GridData(data.inputs[1:], data.outputs[1:]))
    chains, _ = run(target, vector, SamplerSettings(1, 100, 300, 0))
    positions = chains[0].positions
    assert np.all(np.isfinite(positions))
    assert np.all(positions[:, 0] <= 0.3)
    assert np.sum(chains[0].statistics.diverging) > 0
    assert np.std(positions[:, 0]) > 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "n_ranked"), [("grid", 7), ("scattered", 7), ("grid, own noise", 9), ("scattered, own noise", 9)]
)
def test_the_truth_ranks_evenly_among_the_draws(form, n_ranked):
    found = [calibration.ranks(number, form, SamplerSettings(2, 120, 95, 0)) for number in range(16)]
    values = calibration.p_values(found, n_bins=4)
    assert len(values) == n_ranked
    assert min(values.values()) > 0.01


def test_ranks_that_crowd_together_or_at_one_end_are_told():
    for first, n_different, most in ((5, 5, 1e-6), (10, 10, 1e-3)):
        found = [{"x": first + number % n_different} for number in range(24)]
        assert calibration.p_values(found, n_bins=4)["x"] < most
