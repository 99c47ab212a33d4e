"""New conditions against dense Gaussians and integration on fine grids."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scipy.optimize
import scipy.stats
from small_models import (
    INDUCING_INPUTS,
    M_X,
    PER_CONDITION,
    Q_X,
    SHARED,
    DenseProcess,
    Observed,
    as_long,
    number,
    replace,
    small_model,
    two_sided_model,
)

from lvmogp.conditions.evidence import Evidence, evidence
from lvmogp.conditions.known_latents import known_latents
from lvmogp.conditions.new_condition import (
    ConditionPosterior,
    components,
    infer,
    log_posterior,
    noise_prior,
    normal_nodes,
)
from lvmogp.conditions.predictions import gaussian_moments, mixture
from lvmogp.conditions.variational_condition import _bound, _Setting, _Variational, infer_gaussian
from lvmogp.ground.compiling import compiled
from lvmogp.model.bounds import explicit, kl_inducing
from lvmogp.model.layouts import Data
from lvmogp.model.posterior import Posterior

SIZE = 4  # places of evidence, padded or compressed
POINTS = np.random.default_rng(21).uniform(-2, 2, (4, Q_X))

compiled_bound = compiled(_bound)
compiled_explicit = compiled(explicit)
compiled_kl = compiled(kl_inducing)


@compiled
def heights_at(thetas: jax.Array, model: Posterior, seen: Evidence) -> jax.Array:
    """log_posterior of many θ."""
    projected, prior = model.covariance.projection(seen.features), noise_prior(model)
    return jax.lax.map(lambda theta: log_posterior(theta, model, seen, projected, prior), thetas, batch_size=4096)


def heights(model: Posterior, seen: Evidence, thetas: np.ndarray) -> np.ndarray:
    return np.asarray(heights_at(jnp.asarray(thetas), model, seen))


def drawn(model: Posterior, latent: list[float], n_points: int, seed: int = 24) -> Observed:
    """Observations that the model itself would make of a condition with these latents."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-2, 2, (n_points, Q_X))
    mean, variance = DenseProcess(model.parameters).at(inputs, np.array(latent))
    noise = float(jnp.exp(noise_prior(model).mean))
    factor = np.linalg.cholesky(variance + noise * np.eye(n_points))
    return Observed(inputs, mean + factor @ rng.normal(size=n_points))


NOTHING = Observed(np.empty((0, Q_X)), np.empty(0))


# The log posterior against dense Gaussians.


MODELS = {
    "one latent": lambda: small_model(1),
    "two latents": lambda: small_model(2),
    "noise per condition": lambda: small_model(1, noise=PER_CONDITION),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Posterior:
    return MODELS[request.param]()


def random_thetas(model: Posterior) -> np.ndarray:
    n_theta = model.latent_basis.points.shape[1] + (not noise_prior(model).shared)
    return np.random.default_rng(23).normal(size=(5, n_theta)) * 1.5


def split_theta(model: Posterior, theta: np.ndarray) -> tuple[np.ndarray, float]:
    """The latents and the noise that θ stands for."""
    n_latent = model.latent_basis.points.shape[1]
    log_noise = np.log(np.asarray(model.parameters.noise_variance))
    deviation = log_noise.std() * theta[n_latent] if len(log_noise) > 1 else 0.0
    return theta[:n_latent], float(np.exp(log_noise.mean() + deviation))


def dense_height(model: Posterior, seen: Observed, theta: np.ndarray, n_places: int) -> float:
    """log N(θ; 0, I) + log N(y; m(h), C(h) + σ²I), with the library's jitter on a matrix of ``n_places``."""
    latent, noise = split_theta(model, theta)
    mean, variance = DenseProcess(model.parameters).at(seen.inputs, latent)
    variance = variance + noise * np.eye(len(seen.values))
    n_padded = n_places - len(seen.values)
    jitter = references.JITTER * (np.trace(variance) + n_padded) / n_places
    variance += jitter * np.eye(len(seen.values))
    log_likelihood = scipy.stats.multivariate_normal(mean, variance).logpdf(seen.values)
    return log_likelihood + scipy.stats.norm.logpdf(theta).sum() - n_padded * np.log(1 + jitter) / 2


def constant_left_out(model: Posterior, theta: np.ndarray, n_padded: int) -> float:
    """log_posterior lacks the constant of the prior and has one for each padded place."""
    return (n_padded - len(theta)) * np.log(2 * np.pi) / 2


@pytest.mark.parametrize("n_points", [1, 3, 4])
def test_log_posterior_is_the_dense_one(model: Posterior, n_points: int):
    seen = drawn(model, [0.5] * model.latent_basis.points.shape[1], n_points)
    thetas = random_thetas(model)
    found = heights(model, evidence(model, *seen), thetas)
    for theta, height in zip(thetas, found, strict=True):
        expected = dense_height(model, seen, theta, SIZE) - constant_left_out(model, theta, SIZE - n_points)
        assert height == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_padding_does_not_change_the_log_posterior():
    model = small_model(1)
    seen, thetas = evidence(model, *drawn(model, [0.5], 3)), random_thetas(model)
    difference = heights(model, seen, thetas) - heights(model, seen.padded(8), thetas)
    np.testing.assert_allclose(difference, 4 * np.log(2 * np.pi) / 2, atol=1e-6)


def test_order_of_the_points_does_not_change_the_log_posterior():
    model = small_model(1)
    inputs, values = drawn(model, [0.5], 4)
    order, thetas = [2, 0, 3, 1], random_thetas(model)
    found = heights(model, evidence(model, inputs[order], values[order]), thetas)
    np.testing.assert_allclose(found, heights(model, evidence(model, inputs, values), thetas), rtol=1e-10)


# Many points, compressed.


def repeated(model: Posterior, n_points: int = 80) -> Observed:
    """Many observations, all of them at inducing inputs."""
    inputs = np.tile(INDUCING_INPUTS, (n_points // M_X, 1))
    return noisy(model, inputs)


def scattered(model: Posterior, n_points: int = 80) -> Observed:
    """Many observations anywhere."""
    return noisy(model, np.random.default_rng(24).uniform(-2, 2, (n_points, Q_X)))


def noisy(model: Posterior, inputs: np.ndarray, latent: float = 0.5) -> Observed:
    rng = np.random.default_rng(25)
    mean, _ = DenseProcess(model.parameters).at(inputs, np.array([latent]))
    return Observed(inputs, mean + np.sqrt(SHARED[0]) * rng.normal(size=len(inputs)))


class SparseCurve(NamedTuple):
    """Dense moments of the curve through the inducing inputs, and what they leave out of the prior variance."""

    mean: np.ndarray
    covariance: np.ndarray
    left_out: float


def sparse_curve(model: Posterior, inputs: np.ndarray, latent: np.ndarray) -> SparseCurve:
    """As DenseProcess.at, with k_X replaced by K_fu K_uu⁻¹ K_uf in the prior covariance."""
    kernel = model.parameters.input_kernel
    mean, variance = DenseProcess(model.parameters).at(inputs, latent)
    own = references.kernel_values(model.parameters.latent_kernel, latent, latent)
    exact, through = references.covariance(kernel, inputs, inputs), nystrom(model, inputs)
    return SparseCurve(mean, variance - own * (exact - through), own * np.trace(exact - through))


def nystrom(model: Posterior, inputs: np.ndarray) -> np.ndarray:
    """K_fu K_uu⁻¹ K_uf of the inputs."""
    cross = references.covariance(model.parameters.input_kernel, inputs, INDUCING_INPUTS)
    return cross @ np.linalg.solve(references.grams(model.parameters)[0], cross.T)


def dense_sparse_height(model: Posterior, seen: Observed, theta: np.ndarray) -> float:
    """The sparse GP's bound, with the library's jitter in the space of the compressed points."""
    mean, variance, left_out = sparse_curve(model, seen.inputs, theta)
    variance = variance + SHARED[0] * np.eye(len(mean))
    cross = references.covariance(model.parameters.input_kernel, seen.inputs, INDUCING_INPUTS)
    # A = K_fu L_X⁻ᵀ, whose QR decomposition compresses
    features = np.linalg.solve(np.linalg.cholesky(references.grams(model.parameters)[0]), cross.T).T
    basis = np.linalg.qr(features)[0]
    jitter = references.JITTER * np.trace(basis.T @ variance @ basis) / M_X
    likelihood = references.log_normal(seen.values - mean, variance + jitter * basis @ basis.T)
    return likelihood - left_out / (2 * SHARED[0]) - theta @ theta / 2


@pytest.mark.parametrize("observations", [repeated, scattered])
def test_compressed_log_posterior_is_the_sparse_bound(observations):
    model = small_model(1)
    seen, thetas = observations(model), random_thetas(model)
    compressed = evidence(model, *seen)
    assert compressed.values.shape == (M_X,)
    for theta, height in zip(thetas, heights(model, compressed, thetas), strict=True):
        assert height == pytest.approx(dense_sparse_height(model, seen, theta), rel=1e-9)


def test_compressed_log_posterior_at_inducing_inputs_is_exact():
    model = small_model(1)
    seen, thetas = repeated(model), random_thetas(model)
    found = heights(model, evidence(model, *seen), thetas)
    for theta, height in zip(thetas, found, strict=True):
        expected = dense_height(model, seen, theta, len(seen.values)) - constant_left_out(model, theta, 0)
        assert height == pytest.approx(expected, abs=1e-3)


def test_compressed_log_posterior_elsewhere_is_below_the_exact_one():
    model = small_model(1)
    seen, thetas = scattered(model), random_thetas(model)
    found = heights(model, evidence(model, *seen), thetas)
    for theta, height in zip(thetas, found, strict=True):
        assert height < dense_height(model, seen, theta, len(seen.values)) - constant_left_out(model, theta, 0)


# Particles against integration on a fine grid.


class Grid(NamedTuple):
    """θ on a fine grid with their posterior masses."""

    thetas: np.ndarray
    masses: np.ndarray


def on_grid(model: Posterior, seen: Evidence) -> Grid:
    n_theta = random_thetas(model).shape[1]
    axis = np.linspace(-6, 6, 2401 if n_theta == 1 else 241)
    thetas = np.stack([part.ravel() for part in np.meshgrid(*[axis] * n_theta, indexing="ij")], axis=1)
    logs = heights(model, seen, thetas)
    masses = np.exp(logs - logs.max())
    return Grid(thetas, masses / masses.sum())


def quantile(values: np.ndarray, masses: np.ndarray, level: float) -> float:
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(masses[order]), level)]


def mass_below(values: np.ndarray, masses: np.ndarray, threshold: float) -> float:
    """Mass below a threshold, with half of what lies on it."""
    return masses[values < threshold].sum() + masses[values == threshold].sum() / 2


# What 512 particles leave of sampling error, in posterior deviations.
SAMPLING_ERROR = 0.03


def assert_same_distribution(values: np.ndarray, weights: np.ndarray, expected: np.ndarray, masses: np.ndarray):
    """Means, deviations and the masses below three quantiles agree."""
    mean, found_mean = masses @ expected, weights @ values
    deviation = np.sqrt(masses @ (expected - mean) ** 2)
    found_deviation = np.sqrt(weights @ (values - found_mean) ** 2)
    assert abs(found_mean - mean) < SAMPLING_ERROR * deviation
    assert found_deviation == pytest.approx(deviation, rel=SAMPLING_ERROR)
    for level in (0.1, 0.5, 0.9):
        threshold = quantile(expected, masses, level)
        exact = mass_below(expected, masses, threshold)
        assert mass_below(values, weights, threshold) == pytest.approx(exact, abs=SAMPLING_ERROR)


def assert_latents_agree(found: ConditionPosterior, grid: Grid):
    weights, latents = np.asarray(found.weights), np.asarray(found.latents)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    for dimension in range(latents.shape[1]):
        assert_same_distribution(latents[:, dimension], weights, grid.thetas[:, dimension], grid.masses)


@pytest.mark.parametrize("n_points", [1, 2, 4])
def test_particles_have_the_posterior_of_the_latents(model: Posterior, n_points: int):
    seen = evidence(model, *drawn(model, [0.5] * model.latent_basis.points.shape[1], n_points))
    assert_latents_agree(infer(model, seen), on_grid(model, seen))


def test_particles_have_the_posterior_of_compressed_evidence():
    model = small_model(1)
    seen = evidence(model, *scattered(model))
    assert_latents_agree(infer(model, seen), on_grid(model, seen))


def test_particles_have_the_posterior_of_the_noise():
    model = small_model(1, noise=PER_CONDITION)
    log_noise = np.log(PER_CONDITION)
    for n_points in (1, 4):
        seen = evidence(model, *drawn(model, [0.5], n_points))
        found, grid = infer(model, seen), on_grid(model, seen)
        standardised = (np.log(np.asarray(found.noise)) - log_noise.mean()) / log_noise.std()
        assert_same_distribution(standardised, np.asarray(found.weights), grid.thetas[:, 1], grid.masses)


def test_shared_noise_is_that_of_every_particle():
    model = small_model(1)
    found = infer(model, evidence(model, *drawn(model, [0.5], 2)))
    np.testing.assert_allclose(found.noise, SHARED[0], rtol=1e-14)


ONE_POINT = Observed(np.array([[0.3, -0.2]]), np.array([3.0]))


def mass_on_the_right(values: np.ndarray, masses: np.ndarray) -> float:
    return masses[values > 0].sum()


@pytest.mark.parametrize("value", [2.0, 3.0, 4.0])
def test_both_sides_that_explain_a_point_equally_get_half_the_mass(value: float):
    model = two_sided_model()
    found = infer(model, evidence(model, ONE_POINT.inputs, np.array([value])))
    latents, weights = np.asarray(found.latents)[:, 0], np.asarray(found.weights)
    assert mass_on_the_right(latents, weights) == pytest.approx(0.5, abs=0.02)
    assert weights[np.abs(latents) < 0.2].sum() < 0.05  # there are two modes


@pytest.mark.parametrize("tilt", [0.0, 0.5, -1.5])
def test_modes_get_their_share_of_the_mass(tilt: float):
    model = two_sided_model(tilt)
    seen = evidence(model, *ONE_POINT)
    found, grid = infer(model, seen), on_grid(model, seen)
    share = mass_on_the_right(grid.thetas[:, 0], grid.masses)
    assert 0.05 < share < 0.95
    assert mass_on_the_right(np.asarray(found.latents)[:, 0], np.asarray(found.weights)) == pytest.approx(
        share, abs=0.02
    )
    assert_latents_agree(found, grid)


def test_without_points_the_posterior_is_the_prior(model: Posterior):
    found = infer(model, evidence(model, *NOTHING))
    weights, latents = np.asarray(found.weights), np.asarray(found.latents)
    for values in latents.T:
        assert weights @ values == pytest.approx(0, abs=0.01)
        assert weights @ values**2 == pytest.approx(1, abs=0.01)
        for level in (0.025, 0.25, 0.5, 0.9):
            below = weights[values < scipy.stats.norm.ppf(level)].sum()
            assert below == pytest.approx(level, abs=0.01)


def test_moments_of_a_condition_are_those_of_its_particles():
    model = small_model(2)
    found = infer(model, evidence(model, *drawn(model, [0.5, 0.5], 2)))
    weights, latents = np.asarray(found.weights), np.asarray(found.latents)
    mean = sum(weight * latent for weight, latent in zip(weights, latents, strict=True))
    variance = sum(weight * (latent - mean) ** 2 for weight, latent in zip(weights, latents, strict=True))
    np.testing.assert_allclose(found.latent_mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.latent_variance, variance, rtol=1e-10)
    assert float(found.effective_size) == pytest.approx(1 / sum(weight**2 for weight in weights))


def test_more_points_say_more():
    model = small_model(1)
    inputs, values = noisy(model, np.random.default_rng(26).uniform(-2, 2, (80, Q_X)))
    found = [infer(model, evidence(model, inputs[:count], values[:count])) for count in (0, 1, 4, 80)]
    deviations = [float(condition.latent_variance[0]) ** 0.5 for condition in found]
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[-1] < 0.2
    assert abs(float(found[-1].latent_mean[0]) - 0.5) < 3 * deviations[-1]


def test_two_calls_give_the_same_bits():
    model = small_model(1)
    first, second = (infer(model, evidence(model, *drawn(model, [0.5], 2))) for _ in range(2))
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(left, right)


def test_nodes_are_standard_normal():
    nodes = normal_nodes(128, 2)
    np.testing.assert_allclose(nodes.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(nodes.T), np.eye(2), atol=0.05)


# Predictions.


def by_row(model: Posterior, found: ConditionPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f under each particle, particles × points."""
    means, variances = components(model.input_basis, found, jnp.asarray(POINTS[None]))
    return np.asarray(means[0]), np.asarray(variances[0])


@pytest.mark.parametrize("n_points", [0, 1, 4])
def test_predictions_of_a_particle_are_conditioned_on_the_points(model: Posterior, n_points: int):
    process = DenseProcess(model.parameters)
    seen = drawn(model, [0.5] * model.latent_basis.points.shape[1], n_points)
    found = infer(model, evidence(model, *seen))
    means, variances = by_row(model, found)
    for place in range(0, 512, 64):
        latent, noise = np.asarray(found.latents[place]), float(found.noise[place])
        expected = process.given(seen, noise, POINTS, latent)
        np.testing.assert_allclose(means[place], expected.mean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(variances[place], np.diag(expected.covariance), rtol=1e-5)


def test_predictions_of_a_particle_are_those_of_the_sparse_model_where_evidence_is_compressed():
    model = small_model(1)
    seen = scattered(model)
    found = infer(model, evidence(model, *seen))
    means, variances = by_row(model, found)
    for place in range(0, 512, 64):
        mean, variance = sparse_prediction(model, seen, np.asarray(found.latents[place]))
        np.testing.assert_allclose(means[place], mean, atol=1e-4)
        np.testing.assert_allclose(variances[place], variance, rtol=1e-4)


def sparse_prediction(model: Posterior, seen: Observed, latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance at the points given many observations, which see the prior through inducing inputs only."""
    n_seen = len(seen.values)
    mean, variance, _ = sparse_curve(model, np.vstack([seen.inputs, POINTS]), latent)
    _, own = DenseProcess(model.parameters).at(POINTS, latent)
    within = variance[:n_seen, :n_seen] + SHARED[0] * np.eye(n_seen)
    gain = np.linalg.solve(within, variance[:n_seen, n_seen:]).T
    explained = np.sum(gain * variance[n_seen:, :n_seen], axis=1)
    return mean[n_seen:] + gain @ (seen.values - mean[:n_seen]), np.diag(own) - explained


def assert_moments_agree(found: tuple, mean: np.ndarray, variance: np.ndarray):
    deviation = np.sqrt(variance)
    assert np.all(np.abs(np.asarray(found[0]) - mean) < SAMPLING_ERROR * deviation)
    np.testing.assert_allclose(np.sqrt(found[1]), deviation, rtol=SAMPLING_ERROR)


def averaged(parts: list[tuple[np.ndarray, np.ndarray]], masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments of a mixture of Gaussians."""
    means, variances = (np.array(values) for values in zip(*parts, strict=True))
    mean = masses @ means
    return mean, masses @ (variances + means**2) - mean**2


@pytest.mark.parametrize("n_points", [1, 2, 4])
def test_predictions_are_the_integral_over_the_latents(n_points: int):
    model = small_model(1)
    process, seen = DenseProcess(model.parameters), drawn(model, [0.5], n_points)
    prepared = evidence(model, *seen)
    thetas, masses = (part[::8] for part in on_grid(model, prepared))
    parts = [process.given(seen, SHARED[0], POINTS, theta) for theta in thetas]
    expected = averaged([(part.mean, np.diag(part.covariance)) for part in parts], masses / masses.sum())
    predicted = mixture(model, infer(model, prepared), POINTS, include_noise=False)
    assert_moments_agree(predicted.moments, *expected)


def test_predictions_are_the_integral_over_latents_and_noise():
    model = small_model(1, noise=PER_CONDITION)
    process, seen = DenseProcess(model.parameters), drawn(model, [0.5], 2)
    prepared = evidence(model, *seen)
    thetas, masses = (part.reshape(241, 241, -1)[::6, ::6].reshape(1681, -1) for part in on_grid(model, prepared))
    parts = []
    for theta in thetas:
        latent, noise = split_theta(model, theta)
        part = process.given(seen, noise, POINTS, latent)
        parts.append((part.mean, np.diag(part.covariance) + noise))
    predicted = mixture(model, infer(model, prepared), POINTS, include_noise=True)
    assert_moments_agree(predicted.moments, *averaged(parts, masses[:, 0] / masses.sum()))


def test_predictions_without_points_are_the_average_over_the_prior():
    model = small_model(1)
    process = DenseProcess(model.parameters)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    parts = [process.at(POINTS, np.array([node])) for node in nodes]
    expected = averaged([(mean, np.diag(variance)) for mean, variance in parts], weights / weights.sum())
    predicted = mixture(model, infer(model, evidence(model, *NOTHING)), POINTS, include_noise=False)
    assert_moments_agree(predicted.moments, *expected)


def test_predictions_of_more_rows_than_a_block_keep_their_order():
    model = small_model(1)
    found = infer(model, evidence(model, *drawn(model, [0.5], 2)))
    rows = np.random.default_rng(27).uniform(-2, 2, (70, Q_X))
    rows[[3, 66, 69]] = POINTS[:3]
    means, variances = by_row(model, found)
    many = mixture(model, found, rows, include_noise=False)
    np.testing.assert_allclose(np.asarray(many.means)[:, [3, 66, 69]], means[:, :3], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(np.asarray(many.variances)[:, [3, 66, 69]], variances[:, :3], rtol=1e-9)


# The paper's single Gaussian.


def candidate(mean: float, variance: float, deviation: float = 0.0) -> _Variational:
    return _Variational(
        mean=jnp.array([mean]), noise_deviation=number(deviation), variance=jnp.array([variance]), fixed=()
    )


def explicit_bound(model: Posterior, data: Data, mean: float, variance: float, noise: float) -> float:
    """The explicit bound of that condition alone, less the divergence of the inducing variables."""
    parameters = replace(
        model.parameters,
        latent_mean=jnp.array([[mean]]),
        latent_variance=jnp.array([[variance]]),
        noise_variance=jnp.array([noise]),
    )
    bound = compiled_explicit(parameters, data)
    return float(bound.total) + float(compiled_kl(parameters.inducing))


@pytest.mark.parametrize("observations", [lambda model: drawn(model, [0.5], 3), scattered])
def test_bound_of_a_new_condition_is_the_explicit_bound(observations):
    model = small_model(1, noise=PER_CONDITION)
    seen, prior = observations(model), noise_prior(model)
    setting = _Setting(model, evidence(model, *seen), prior, known_latents(model, None))
    data = as_long([seen])
    for mean, variance, deviation in [(0.3, 0.2, 0.0), (-1.2, 0.05, 1.1), (2.0, 0.9, -0.7)]:
        found = float(compiled_bound(candidate(mean, variance, deviation), setting))
        _, noise = split_theta(model, np.array([mean, deviation]))
        expected = explicit_bound(model, data, mean, variance, noise) - deviation**2 / 2
        assert found == pytest.approx(expected, rel=1e-9)


@functools.cache
def gaussian_case() -> tuple[Posterior, Observed]:
    model = small_model(1, noise=PER_CONDITION)
    return model, drawn(model, [0.5], 4)


def test_gaussian_condition_maximises_the_bound():
    model, seen = gaussian_case()
    found = infer_gaussian(model, evidence(model, *seen))
    prior = noise_prior(model)
    deviation = (np.log(float(found.noise)) - float(prior.mean)) / float(prior.deviation)
    data = as_long([seen])
    best = np.array([float(found.latents.mean[0, 0]), np.log(float(found.latents.variance[0, 0])), deviation])

    def loss(free: np.ndarray) -> float:
        _, noise = split_theta(model, np.array([free[0], free[2]]))
        return free[2] ** 2 / 2 - explicit_bound(model, data, free[0], np.exp(free[1]), noise)

    assert np.max(np.abs(scipy.optimize.approx_fprime(best, loss, 1e-6))) < 1e-3
    elsewhere = [
        loss(np.array([mean, log_variance, 0.0])) for mean in np.linspace(-3, 3, 25) for log_variance in (-4, -2, 0)
    ]
    assert loss(best) < min(elsewhere)


def test_predictions_of_a_gaussian_condition_are_the_papers():
    model, seen = gaussian_case()
    found = infer_gaussian(model, evidence(model, *seen))
    parameters = replace(model.parameters, latent_mean=found.latents.mean, latent_variance=found.latents.variance)
    mean, variance = references.reference_prediction(parameters, POINTS)
    moments = gaussian_moments(model, found.curves, np.asarray(found.noise)[None], POINTS, np.zeros(4, int))
    np.testing.assert_allclose(moments.mean, mean[:, 0], rtol=1e-8)
    np.testing.assert_allclose(moments.variance, variance[:, 0], rtol=1e-8)
    np.testing.assert_allclose(moments.noise, float(found.noise), rtol=1e-14)


def test_gaussian_condition_without_points_is_the_prior():
    model, _ = gaussian_case()
    found = infer_gaussian(model, evidence(model, *NOTHING))
    assert float(found.latents.mean[0, 0]) == pytest.approx(0, abs=1e-4)
    assert float(found.latents.variance[0, 0]) == pytest.approx(1, abs=1e-4)
    assert float(found.noise) == pytest.approx(np.exp(np.mean(np.log(PER_CONDITION))), rel=1e-4)
