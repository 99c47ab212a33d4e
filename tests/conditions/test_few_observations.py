"""Observations of a new condition against dense Gaussians: how likely they are, and what they say of its curve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from drawn_models import KINDS, dense_ensemble, made_condition, of_kind
from references import Seen

from lvmogp.conditions.condition import KnownLatents, all_particles, known_latents
from lvmogp.conditions.curves import (
    FewObservations,
    Gaussians,
    Particles,
    at_points,
    compressed,
    covariances,
    few_observations,
    moments,
    no_observations,
    stacked,
)
from lvmogp.conditions.ensemble import Ensemble, NoisePrior
from lvmogp.conditions.infer import log_posterior
from lvmogp.ground.compiling import compiled
from lvmogp.model.process import Process

RNG = np.random.default_rng(71)
SEEN = Seen(RNG.uniform(-1.5, 1.5, (3, 2)), np.array([0.6, -0.9, 0.4]), np.array([0.0, 0.2, 0.7]))
POINTS, OTHERS = RNG.uniform(-1.5, 1.5, (4, 2)), RNG.uniform(-1.5, 1.5, (3, 2))
THETAS = np.array([[0.4, 0.3], [-1.3, -1.2], [2.1, 0.9]])  # latent, and log noise in deviations
LOG_2PI = np.log(2 * np.pi)


@compiled
def heights(
    processes: Process, seen: FewObservations, known: KnownLatents, prior: NoisePrior, thetas: jax.Array
) -> jax.Array:
    """The log posterior of many θ under each process."""
    return jax.lax.map(
        lambda given: jax.vmap(log_posterior(given[0], seen, known, given[1]))(thetas), (processes, prior)
    )


def heights_of(ensemble: Ensemble, seen: FewObservations, thetas: np.ndarray = THETAS) -> np.ndarray:
    known = known_latents(ensemble, 1)
    return np.asarray(heights(ensemble.processes, seen, known, ensemble.noise_prior, jnp.asarray(thetas)))


def dense_heights(kind: str, seen: Seen, thetas: np.ndarray = THETAS, noise: str = "per-condition") -> np.ndarray:
    dense = dense_ensemble(of_kind(kind, noise=noise).model_)
    return np.array(
        [
            [
                process.log_likelihood(theta[:1], seen, np.exp(mean + deviation * theta[-1])) - theta @ theta / 2
                for theta in thetas
            ]
            for process, (mean, deviation) in zip(dense.processes, dense.log_noise, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("kind", "noise"), [*((kind, "per-condition") for kind in KINDS), ("draws on a grid", "shared")]
)
def test_the_log_posterior_is_that_of_a_dense_gaussian(kind, noise):
    """Empty places are observations of nothing, with the density of a standard normal number at zero.

    A noise that is shared is no part of what is sought.
    """
    thetas = THETAS if noise == "per-condition" else THETAS[:, :1]
    found = heights_of(of_kind(kind, noise=noise).model_.ensemble, few_observations(*SEEN), thetas) + LOG_2PI / 2
    np.testing.assert_allclose(found, dense_heights(kind, SEEN, thetas, noise), rtol=1e-5, atol=1e-5)


def test_neither_padding_nor_order_changes_the_log_posterior():
    ensemble = of_kind("fit on a grid", noise="per-condition").model_.ensemble
    seen, expected = few_observations(*SEEN), heights_of(ensemble, few_observations(*SEEN))
    longer = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 4), *[(0, 0)] * (leaf.ndim - 1))), seen)
    np.testing.assert_allclose(heights_of(ensemble, longer) + 4 * LOG_2PI / 2, expected, atol=1e-6)
    turned = few_observations(*(part[[2, 0, 1]] for part in SEEN))
    np.testing.assert_allclose(heights_of(ensemble, turned), expected, rtol=1e-7)


def test_observations_have_few_numbers_of_places():
    def places(count: int) -> int:
        return len(few_observations(np.zeros((count, 2)), np.zeros(count)).values)

    counts = (0, 1, 4, 5, 8, 9, 16, 17, 32, 33)
    assert [places(count) for count in counts] == [4, 4, 4, 8, 8, 16, 16, 32, 32, 40]
    assert few_observations(*SEEN).n_present == 3
    assert no_observations(2).n_present == 0
    assert no_observations(2).inputs.shape == (4, 2)
    assert few_observations(*SEEN, dtype="float32").values.dtype == jnp.float32


# Curves of particles


@compiled
def curves_of(particles: Particles, points: jax.Array, others: jax.Array) -> tuple[Gaussians, jax.Array]:
    return moments(particles, points), covariances(particles, points, others)


@pytest.mark.parametrize("kind", KINDS)
def test_curves_of_particles_are_conditioned_on_the_observations(kind):
    model = of_kind(kind, noise="per-condition").model_
    condition = made_condition(model.ensemble, few_observations(*SEEN))
    assert (condition.prepared is not None) == (model.ensemble.fit is not None)
    particles = all_particles(model.ensemble, condition)
    (means, variances), between = curves_of(particles, jnp.asarray(POINTS), jnp.asarray(OTHERS))
    dense = dense_ensemble(model)
    for place, number in enumerate(np.asarray(particles.process)):
        latent, noise = np.asarray(particles.latents[place]), float(particles.noise[place])
        expected = dense.processes[number].given(np.vstack([POINTS, OTHERS]), latent, SEEN, noise)
        np.testing.assert_allclose(means[place], expected.mean[:4], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(variances[place], np.diag(expected.covariance)[:4], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(between[place], expected.covariance[:4, 4:], rtol=1e-4, atol=1e-5)


# Many observations, compressed


def many(kind: str, *, everywhere: bool) -> Seen:
    """At inducing inputs, where compression loses nothing, or anywhere."""
    rng = np.random.default_rng(73)
    inducing = np.asarray(of_kind(kind, noise="per-condition").model_.posterior.parameters.inducing_inputs)
    inputs = rng.uniform(-1.5, 1.5, (36, 2)) if everywhere else np.tile(inducing, (9, 1))
    return Seen(inputs, rng.normal(size=36))


def compressed_of(ensemble: Ensemble, seen: Seen, typical_noise: float) -> FewObservations:
    errors = np.broadcast_to(seen.errors, len(seen.values))
    return compressed(
        ensemble.processes, few_observations(seen.inputs, seen.values, errors), jnp.asarray(typical_noise)
    )


def through_inducing(model, seen: Seen) -> tuple[references.DenseProcess, np.ndarray]:
    """What inducing inputs leave out of the prior covariance of the observed inputs, K − K_fu K_uu⁻¹ K_uf."""
    parameters = model.posterior.parameters
    cross = references.covariance(parameters.kernels.of_inputs[0], seen.inputs, np.asarray(parameters.inducing_inputs))
    exact = references.covariance(parameters.kernels.of_inputs[0], seen.inputs, seen.inputs)
    input_gram = references.jittered_gram(parameters.kernels.of_inputs[0], np.asarray(parameters.inducing_inputs))
    return dense_ensemble(model).processes[0], exact - cross @ np.linalg.solve(input_gram, cross.T)


@pytest.mark.parametrize("kind", ["fit on a grid", "fit on long data"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_the_compressed_log_posterior_is_the_sparse_bound(kind, everywhere):
    model = of_kind(kind, noise="per-condition").model_
    seen = many(kind, everywhere=everywhere)
    found = heights_of(model.ensemble, compressed_of(model.ensemble, seen, 0.02))[0]
    process, left_out = through_inducing(model, seen)
    mean, deviation = dense_ensemble(model).log_noise[0]
    expected, exact = [], dense_heights(kind, seen)[0]
    for theta in THETAS:
        noise = np.exp(mean + deviation * theta[1])
        scale = float(references.kernel_values(process.latent_kernel, theta[:1], theta[:1]))
        centre, covariance = process.curve(seen.inputs, theta[:1])
        within = covariance - scale * left_out + noise * np.eye(36)
        bound = references.log_normal(seen.values - centre, within) - scale * np.trace(left_out) / (2 * noise)
        expected.append(bound - theta @ theta / 2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if everywhere:
        assert np.all(found < exact)
    else:
        np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_compressed_observations_weigh_as_their_errors_say():
    """Exact at inducing inputs where the noise is the typical one."""
    kind = "fit on a grid"
    model, rng = of_kind(kind).model_, np.random.default_rng(74)
    seen = many(kind, everywhere=False)._replace(errors=rng.uniform(0, 0.8, 36) ** 2)
    found = heights_of(model.ensemble, compressed_of(model.ensemble, seen, 0.03), THETAS[:, :1])[0]
    expected = dense_heights(kind, seen, THETAS[:, :1], noise="shared")[0]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-4)


def test_curves_given_compressed_observations_are_those_of_the_sparse_model():
    kind = "fit on a grid"
    model, seen = of_kind(kind, noise="per-condition").model_, many(kind, everywhere=True)
    condition = made_condition(model.ensemble, compressed_of(model.ensemble, seen, 0.02))
    particles = all_particles(model.ensemble, condition)
    (means, variances), _ = curves_of(particles, jnp.asarray(POINTS), jnp.asarray(OTHERS))
    together = Seen(np.vstack([seen.inputs, POINTS]), np.empty(0))
    process, left_out = through_inducing(model, together)
    for place in range(3):
        latent, noise = np.asarray(particles.latents[place]), float(particles.noise[place])
        scale = float(references.kernel_values(process.latent_kernel, latent, latent))
        mean, exact = process.curve(together.inputs, latent)
        sparse = exact - scale * left_out
        gain = np.linalg.solve(sparse[:36, :36] + noise * np.eye(36), sparse[:36, 36:]).T
        np.testing.assert_allclose(means[place], mean[36:] + gain @ (seen.values - mean[:36]), atol=1e-4)
        variance = np.diag(exact[36:, 36:] - gain @ sparse[:36, 36:])
        np.testing.assert_allclose(variances[place], variance, rtol=1e-4, atol=1e-5)


# Observations of several conditions


def test_observations_of_several_conditions_stand_beside_one_another():
    model = of_kind("fit on a grid", noise="per-condition").model_
    process = jax.tree.map(lambda leaf: leaf[0], model.ensemble.processes)
    few, none = few_observations(*SEEN), no_observations(2)
    many_seen = compressed_of(model.ensemble, many("fit on a grid", everywhere=True), 0.02)
    long = few_observations(np.tile(SEEN.inputs, (2, 1)), np.tile(SEEN.values, 2))
    assert stacked([none, none]) is None
    together = stacked([few, none, long])
    assert together.values.shape == (3, 8)
    assert together.compressed is None
    both = stacked([few, many_seen, long])
    assert both.values.shape == (3, 8)
    np.testing.assert_array_equal(both.compressed.is_used, [False, True, False])
    apart = [jax.tree.map(lambda leaf, place=place: leaf[place], both) for place in range(3)]
    for alone, beside in zip((few, many_seen, long), apart, strict=True):
        size = len(alone.values)
        features, gram = alone.features(process), alone.gram_with(process, alone)[0]
        np.testing.assert_allclose(beside.features(process)[:size], features, atol=1e-14)
        np.testing.assert_allclose(beside.features(process)[size:], 0.0, atol=0)
        np.testing.assert_allclose(beside.gram_with(process, beside)[0][:size, :size], gram, atol=1e-14)
        points = at_points(jnp.asarray(POINTS))
        expected = points.gram_with(process, alone)[0]
        np.testing.assert_allclose(points.gram_with(process, beside)[0][:, :size], expected, atol=1e-14)
    kernel = model.posterior.parameters.kernels.of_inputs[0]
    exact = references.covariance(kernel, SEEN.inputs, np.tile(SEEN.inputs, (2, 1)))
    np.testing.assert_allclose(apart[0].gram_with(process, apart[2])[0][:3, :6], exact, rtol=1e-12)
    through = many_seen.features(process) @ few.features(process).T
    np.testing.assert_allclose(apart[1].gram_with(process, apart[0])[0][:4, :4], through, atol=1e-13)
    np.testing.assert_allclose(apart[0].gram_with(process, apart[1])[0][:4, :4], through.T, atol=1e-13)
