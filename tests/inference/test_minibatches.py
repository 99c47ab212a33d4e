"""Minibatches: which observations they hold, and that their bounds average to the bound of all."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from small_models import PER_CONDITION, as_long, long_case, replace, small_parameters

from lvmogp.ground.compiling import compiled
from lvmogp.inference.minibatch.minibatches import Minibatch, block_shape, blocks, rows_of_step, shuffled
from lvmogp.inference.minibatch.steps import Grams, covariance_of, expected_log_likelihood
from lvmogp.kernels.covariances import Matern52
from lvmogp.model.bounds import explicit
from lvmogp.model.expected_likelihood import quadratic
from lvmogp.model.parameters import FullInducing, Parameters, of_conditions, plain_kernels
from lvmogp.model.posterior import KroneckerCovariance

compiled_expected = compiled(expected_log_likelihood)
compiled_explicit = compiled(explicit)


# Which observations.


@pytest.mark.parametrize("n_rows", [1, 2, 3, 10, 997, 1024, 1025])
def test_an_order_holds_every_row_once_and_a_part_of_it_is_that_part(n_rows):
    whole = shuffled(np.arange(n_rows), n_rows, key=5)
    assert sorted(whole) == list(range(n_rows))
    np.testing.assert_array_equal(shuffled(np.arange(n_rows // 3, n_rows), n_rows, key=5), whole[n_rows // 3 :])


def test_orders_look_random_and_differ():
    n_rows = 20_000
    first, second = (shuffled(np.arange(n_rows), n_rows, key) for key in (1, 2))
    # Pairs of neighbours fall into the cells of a 10 × 10 table about equally often: χ² of 99 degrees of freedom.
    counts, _, _ = np.histogram2d(first[::2], first[1::2], bins=10)
    expected = n_rows / 2 / 100
    assert 50 < np.sum((counts - expected) ** 2 / expected) < 160
    assert np.mean(first == second) < 0.001
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_minibatches_of_an_epoch_hold_every_row_once_and_epochs_differ():
    steps = [rows_of_step(step, 8, 30, seed=0) for step in range(15)]  # four epochs of thirty rows
    epochs = np.concatenate(steps).reshape(4, 30)
    for epoch in epochs:
        assert sorted(epoch) == list(range(30))
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(rows_of_step(7, 8, 30, seed=0), steps[7])
    assert not np.array_equal(rows_of_step(7, 8, 30, seed=1), steps[7])


@pytest.mark.parametrize("n_conditions", [1, 3, 40, 1000])
@pytest.mark.parametrize("spread", ["even", "uneven"])
def test_blocks_hold_each_observation_once_with_its_condition(rng, n_conditions, spread):
    size = 128
    chances = np.ones(n_conditions) if spread == "even" else 1 / np.arange(1, n_conditions + 1) ** 2
    conditions = rng.choice(n_conditions, size, p=chances / chances.sum())
    places, block_condition = blocks(conditions, n_conditions)
    assert places.shape == block_shape(size, n_conditions)
    filled = places < size
    assert sorted(places[filled]) == list(range(size))
    owners = np.broadcast_to(block_condition[:, None], places.shape)[filled]
    np.testing.assert_array_equal(owners, conditions[places[filled]])
    # An empty block has no first observation, by which it is known.
    np.testing.assert_array_equal(filled[:, 0], filled.any(axis=1))


# Their bounds.


def all_rows(observations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    inputs, outputs = (np.concatenate(parts) for parts in zip(*observations, strict=True))
    return inputs, outputs, np.repeat(np.arange(len(observations)), [len(values) for _, values in observations])


def batch_of(observations, rows: np.ndarray, dtype=float) -> Minibatch:
    inputs, outputs, conditions = all_rows(observations)
    places, block_condition = blocks(conditions[rows], len(observations))
    return Minibatch(
        jnp.asarray(inputs[rows], dtype),
        jnp.asarray(outputs[rows], dtype),
        jnp.full(len(rows), len(outputs) / len(rows), dtype),
        jnp.asarray(places),
        jnp.asarray(block_condition),
    )


def expected_and_grams(parameters: Parameters, observations, inducing, batch: Minibatch) -> tuple[float, Grams]:
    """The library's estimate for a minibatch of these observations."""
    counts, blocks_of = np.asarray([len(values) for _, values in observations]), np.asarray(batch.block_condition)
    own = of_conditions(parameters, blocks_of)
    expected, found = compiled_expected(own, jnp.asarray(counts[blocks_of], float), *inducing, batch)
    return float(expected), found


def some_inducing(parameters: Parameters, seed: int = 6) -> tuple[jax.Array, KroneckerCovariance]:
    rng = np.random.default_rng(seed)
    shape = (parameters.inducing_inputs.shape[0], parameters.inducing_latents.shape[0])
    roots = [rng.normal(size=(size, size)) for size in shape]
    grams = Grams(*(jnp.asarray(root @ root.T) for root in roots))
    return jnp.asarray(rng.normal(size=shape)), covariance_of(grams)


def dense(covariance: KroneckerCovariance) -> np.ndarray:
    return np.linalg.inv(np.asarray(covariance.precision()))


def kl_of(inducing) -> float:
    """KL(q(v) ‖ N(0, I)) with the covariance as one matrix."""
    mean, variance = np.asarray(inducing[0]).ravel(), dense(inducing[1])
    return references.gaussian_kl(mean, variance, np.eye(len(mean)))


def estimate(parameters: Parameters, inducing, rows: np.ndarray, dtype=float) -> float:
    """⟨log p(Y|F)⟩ − KL(q(H) ‖ p(H)) by a minibatch."""
    observations = long_case().observations
    return expected_and_grams(parameters, observations, inducing, batch_of(observations, rows, dtype))[0]


def whole(parameters: Parameters, inducing) -> float:
    """The same of all observations, from the explicit bound."""
    mean, covariance = inducing
    factor = jnp.asarray(np.linalg.cholesky(dense(covariance)))
    explicit_form = replace(parameters, inducing=FullInducing(mean, factor))
    return float(compiled_explicit(explicit_form, long_case().data).total) + kl_of(inducing)


def test_bounds_of_a_partition_average_to_the_bound_of_all(rng):
    parameters = small_parameters(2, noise=PER_CONDITION)
    inducing = some_inducing(parameters)
    parts = np.split(rng.permutation(18), 6)  # six minibatches of three
    found = [estimate(parameters, inducing, rows) for rows in parts]
    assert np.ptp(found) > 1  # each is another estimate
    np.testing.assert_allclose(np.mean(found), whole(parameters, inducing), rtol=1e-11)


def test_a_latent_kernel_without_closed_forms_works_too_and_single_precision_agrees_to_its_own_tolerance():
    matern = small_parameters(1)
    latent_kernel = Matern52(jnp.array([1.1]), jnp.array(0.9))
    matern = replace(matern, kernels=plain_kernels(matern.kernels.of_inputs[0], latent_kernel))
    for parameters, dtype, rtol in ((matern, float, 1e-11), (small_parameters(2), np.float32, 2e-5)):
        inducing = some_inducing(parameters)
        found = estimate(parameters, inducing, np.arange(18), dtype)
        np.testing.assert_allclose(found, whole(parameters, inducing), rtol=rtol)


def test_conditions_weighted_by_their_shards_stay_unbiased():
    # Two shards of six and twelve rows, each giving two rows to every minibatch of four.
    parameters, observations, found = small_parameters(1), long_case().observations, []
    inducing = some_inducing(parameters)
    for first, second in itertools.product(range(0, 6, 2), range(6, 18, 2)):
        rows = np.r_[first : first + 2, second : second + 2]
        batch = batch_of(observations, rows)._replace(weights=jnp.array([3.0, 3, 6, 6]))
        found.append(expected_and_grams(parameters, observations, inducing, batch)[0])
    np.testing.assert_allclose(np.mean(found), whole(parameters, inducing), rtol=1e-11)


def test_grams_are_the_partial_traces_of_the_quadratic_form():
    parameters = small_parameters(2, noise=PER_CONDITION)
    observations = long_case().observations
    batch = batch_of(observations, np.arange(18))
    _, found = expected_and_grams(parameters, observations, some_inducing(parameters), batch)
    gram = np.asarray(compiled(quadratic)(parameters, as_long(observations)).dense_gram()).reshape(3, 4, 3, 4)
    np.testing.assert_allclose(found.inputs, np.einsum("hxhy->xy", gram), rtol=1e-10)
    np.testing.assert_allclose(found.latents, np.einsum("hxkx->hk", gram), rtol=1e-10)


def test_each_observation_carries_its_share_of_what_is_pooled(rng):
    """−½ Σ_d [(log σ_d² − log m)²/τ² + log(1 + τ²N_d/2)] on average over a partition."""
    parameters = replace(small_parameters(2, noise=PER_CONDITION), noise_spread=jnp.asarray(0.4))
    observations, inducing, median = long_case().observations, some_inducing(parameters), jnp.array([0.07])
    counts = np.array([len(values) for _, values in observations])

    def estimated(rows: np.ndarray) -> float:
        batch = batch_of(observations, rows)
        own = of_conditions(parameters, np.asarray(batch.block_condition))
        of_blocks = jnp.asarray(counts[np.asarray(batch.block_condition)], float)
        return float(compiled_expected(own, of_blocks, *inducing, batch, median)[0])

    deviations = np.log(np.asarray(PER_CONDITION) / 0.07)
    pooled = -np.sum((deviations / 0.4) ** 2 + np.log(1 + 0.16 * counts / 2)) / 2
    parts = np.split(rng.permutation(18), 6)
    found = np.mean([estimated(rows) for rows in parts])
    np.testing.assert_allclose(found, whole(parameters, inducing) + pooled, rtol=1e-11)
