"""Stochastic inference: steps, stages, the start, and what comes of it in the end."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from papers_model import PapersModel
from small_models import long_case, replace, small_parameters
from test_minibatches import all_rows, batch_of, dense, estimate, kl_of, some_inducing

from lvmogp import LVMOGPRegressor, ObservationStore
from lvmogp.algebra.constraints import split
from lvmogp.errors import ConvergenceWarning, DataError, SettingError
from lvmogp.ground.compiling import compiled
from lvmogp.inference.minibatch.descent import STAGES, Schedule, Window, after, begin, begin_schedule, window
from lvmogp.inference.minibatch.distributed import AXIS, mesh
from lvmogp.inference.minibatch.fit import placed, some_conditions
from lvmogp.inference.minibatch.minibatches import Feed, Shards, ahead, minibatch
from lvmogp.inference.minibatch.steps import Problem, State, step
from lvmogp.model.layouts import long_data
from lvmogp.model.posterior import posterior
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling

WHOLE, PART = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(AXIS)
SPECS = {"in_specs": (WHOLE, PART, WHOLE, WHOLE), "out_specs": WHOLE, "check_vma": False}
compiled_step = jax.jit(jax.shard_map(partial(step, axis=AXIS), mesh=mesh(), **SPECS))
OBSERVATIONS = long_case().observations
COUNTS = np.asarray([len(values) for _, values in OBSERVATIONS])


# Steps.


def small_problem(counts: np.ndarray = COUNTS) -> tuple[State, Problem]:
    parameters = small_parameters(1)
    shared = replace(parameters, latent_mean=jnp.zeros((0, 1)), latent_variance=jnp.zeros((0, 1)))
    table = np.concatenate([parameters.latent_mean, np.log(parameters.latent_variance)], axis=1)
    vector, fixed_leaves, structure = split(shared)
    problem = Problem(jnp.ones_like(vector), fixed_leaves, jnp.asarray(counts, float), structure)
    return begin(shared, jnp.asarray(table), Schedule()).state, problem


def test_on_a_grid_natural_steps_lead_to_the_optimal_q(rng):
    inputs = rng.uniform(-2, 2, (7, 2))
    observations = [(inputs, rng.normal(size=7)) for _ in range(4)]
    state, problem = small_problem(np.full(4, 7))
    batch = batch_of(observations, np.arange(28))
    for _ in range(50):
        state, _ = compiled_step(state, batch, problem, jnp.array([0.0, 0.0, 0.5]))
    mean, covariance = references.optimal_inducing(small_parameters(1), observations)
    np.testing.assert_allclose(state.mean, mean, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(dense(state.covariance), covariance, rtol=1e-6, atol=1e-10)


def test_a_step_touches_only_the_conditions_of_its_minibatch_and_estimates_the_bound():
    state, problem = small_problem()
    inducing = some_inducing(small_parameters(1))
    state = eqx.tree_at(lambda tree: (tree.mean, tree.covariance), state, inducing)
    state = eqx.tree_at(lambda tree: tree.n_steps, state, jnp.asarray(1000))  # past the first steps
    _, _, conditions = all_rows(OBSERVATIONS)
    rows = np.flatnonzero(conditions == 1)[:4]
    moved, bound = compiled_step(state, batch_of(OBSERVATIONS, rows), problem, jnp.array([0.01, 0.01, 0.1]))
    np.testing.assert_allclose(bound, estimate(small_parameters(1), inducing, rows) - kl_of(inducing), rtol=1e-11)
    changed = np.any(np.asarray(moved.table) != np.asarray(state.table), axis=1)
    np.testing.assert_array_equal(changed, [False, True, False, False])
    np.testing.assert_array_equal(moved.visits, [0, 1, 0, 0])
    # The first step of Adam has the size of the rate, in the direction of the gradient.
    np.testing.assert_allclose(np.abs(moved.table[1] - state.table[1]), 0.01, rtol=1e-6)
    # Steps of size zero change nothing but their count.
    still, _ = compiled_step(state, batch_of(OBSERVATIONS, rows), problem, jnp.zeros(3))
    for name in ("vector", "table", "mean", "grams"):
        assert eqx.tree_equal(getattr(still, name), getattr(state, name))


# Stages.


@pytest.mark.parametrize(
    ("rise", "swing", "error", "least_gain", "stage"),
    [(20.0, 0.0, 5.0, 1.0, 0), (0.0, 3.0, 5.0, 1.0, 1), (1.0, 0.0, 50.0, 0.1, 1), (1e-3, 0.0, 1e-6, 0.1, 1)],
    ids=["rising", "settled", "rise hidden by noise", "small rise"],
)
def test_a_stage_ends_where_a_rise_is_not_worth_it(rise, swing, error, least_gain, stage):
    schedule = Schedule()
    for number in range(10):
        schedule = after(schedule, Window(-1000.0 + rise * number + swing * (-1) ** number, error), least_gain)
    assert schedule.stage == stage
    assert schedule.steps == STAGES[stage]


@pytest.mark.parametrize(("n_observations", "n_windows"), [(2_000, 10), (1_024_000, 20), (10**8, 40)])
def test_a_trend_is_looked_for_over_a_pass_through_the_data_and_the_last_stage_ends_whatever_it_is(
    n_observations, n_windows
):
    schedule = begin_schedule(n_observations, batch_size=1024)
    for stage, rise in ((0, 0.0), (len(STAGES) - 1, 100.0)):
        schedule = schedule._replace(stage=stage)
        for number in range(n_windows):
            assert (schedule.stage, schedule.averages, schedule.ended) == (stage, stage > 0, False)
            estimate = -1000.0 + rise * number + 3 * (-1) ** number
            schedule = after(schedule, Window(estimate, 5.0), least_gain=1.0)
        assert schedule.stage == stage + 1
    assert schedule.ended


def test_a_bound_that_is_not_finite_shrinks_the_steps(rng):
    schedule = after(Schedule(), Window(np.nan, np.nan), least_gain=1.0)
    assert schedule.n_failures == 1
    np.testing.assert_allclose(schedule.steps, np.asarray(STAGES[0]) / 2)
    values = rng.normal(size=50)  # a window knows the error of its mean
    np.testing.assert_allclose(window(values), (values.mean(), values.std(ddof=1) / 50**0.5))


# Feeds and starts.


def feed_of(n_shards: int) -> Feed:
    inputs, outputs, conditions = all_rows(OBSERVATIONS)
    pieces = np.array_split(np.arange(18), n_shards)
    parts = [Observations(inputs[rows], outputs[rows], conditions[rows]) for rows in pieces]
    scaling = Scaling(np.zeros(2), np.ones(2), 0.0, 1.0, None)
    shards = Shards(parts, [np.arange(4)] * n_shards, np.bincount(conditions), scaling, n_shards, 0)
    return Feed(shards, 8, 1, "float64", seed=0)


def test_every_shard_gives_its_share_to_each_minibatch():
    inputs, _, _ = all_rows(OBSERVATIONS)
    found = minibatch(feed_of(2), 3)
    places = [int(np.flatnonzero((inputs == row).all(axis=1))[0]) for row in found.inputs]
    assert all(place < 9 for place in places[:4])
    assert all(place >= 9 for place in places[4:])
    np.testing.assert_allclose(found.weights, 9 / 4)


@pytest.mark.parametrize(("batch_size", "n_shards", "n_devices"), [(64, 2, 1), (10, 1, 4), (2, 3, 2), (100, 3, 8)])
def test_every_device_has_the_same_number_of_observations(batch_size, n_shards, n_devices):
    feed = feed_of(1)._replace(batch_size=batch_size, n_devices=n_devices)
    found = minibatch(feed._replace(shards=feed.shards._replace(n_shards=n_shards)), 0)
    assert len(found.outputs) % n_devices == 0
    assert len(found.outputs) * n_shards >= batch_size
    np.testing.assert_allclose(found.weights.sum(), 18)  # this shard's observations


def test_minibatches_made_ahead_come_in_order_and_errors_are_not_swallowed():
    feed = feed_of(1)
    batches = ahead(lambda number: minibatch(feed, number), first=5)
    for number in range(5, 25):
        for found, wanted in zip(next(batches), minibatch(feed, number), strict=True):
            np.testing.assert_array_equal(found, wanted)
    batches.close()

    def make(number):
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead(make, 0))


def curves(inputs: np.ndarray, latents: np.ndarray) -> np.ndarray:
    return np.sin(2 * inputs[:, 0] + latents[:, 0]) + 0.5 * latents[:, 1]


def many_conditions(n_rows: int = 2000, n_conditions: int = 20, seed: int = 0):
    rng = np.random.default_rng(seed)
    latents = rng.normal(size=(n_conditions, 2))
    inputs = rng.uniform(-1.5, 1.5, (n_rows, 1))
    conditions = rng.integers(0, n_conditions, n_rows)
    outputs = curves(inputs, latents[conditions]) + 0.1 * rng.normal(size=n_rows)
    return inputs, outputs, conditions, latents


SIZES = {"n_latent": 2, "n_inducing_inputs": 10, "n_inducing_latents": 10}
MINIBATCHES = {"inference": "stochastic", "batch_size": 256, "max_iter": 500, **SIZES}


def by_minibatches(*data, **settings) -> LVMOGPRegressor:
    with pytest.warns(ConvergenceWarning):
        return PapersModel(**(MINIBATCHES | settings)).fit(*data)


@pytest.fixture(scope="module")
def fitted() -> LVMOGPRegressor:
    return by_minibatches(*many_conditions()[:3])


def test_minibatches_recover_the_curves_behind_the_data(fitted):
    _, _, _, latents = many_conditions()
    rng = np.random.default_rng(1)
    inputs, conditions = rng.uniform(-1.5, 1.5, (500, 1)), rng.integers(0, 20, 500)
    mean, deviation = fitted.predict(inputs, conditions, return_std=True, include_noise=False)
    errors = mean - curves(inputs, latents[conditions])
    assert np.sqrt(np.mean(errors**2)) < 0.035  # a hundred observations a condition, noise of .1
    assert 0.85 < np.mean(np.abs(errors) < 2 * deviation) <= 1
    noise = np.sqrt(fitted.model_.posterior.parameters.noise_variance[0]) * fitted.model_.scaling.output_scale
    np.testing.assert_allclose(noise, 0.1, rtol=0.05)


@pytest.mark.long
def test_conditions_outside_the_small_fit_are_placed_where_their_observations_put_them(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.minibatch.fit._MOST_CONDITIONS", 10)
    inputs, outputs, conditions, latents = many_conditions()
    rows = Observations(inputs, outputs, conditions)
    few, chosen = some_conditions(rows, 20, seed=0)
    assert len(chosen) == 10
    with pytest.warns(ConvergenceWarning):
        model = PapersModel(**SIZES, n_restarts=1, max_iter=80).fit(few.inputs, few.outputs, few.conditions)
    scaling = model.model_.scaling
    scaled = Observations(scaling.inputs(inputs), scaling.outputs(outputs), conditions)
    found = placed(model.model_.posterior, scaled, 20, chosen)
    np.testing.assert_array_equal(found.mean[chosen], model.model_.posterior.parameters.latent_mean)
    others = np.setdiff1d(np.arange(20), chosen)
    asked = np.linspace(-1.5, 1.5, 20)[:, None]
    errors = [
        model.predict_at_latent(asked, found.mean[other]) - curves(asked, np.repeat(latents[[other]], 20, axis=0))
        for other in others
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 0.12
    assert np.all(found.variance > 0)


@pytest.mark.long
def test_a_store_of_arrays_is_fitted_and_not_kept(fitted):
    inputs, outputs, conditions, _ = many_conditions()
    store = ObservationStore(inputs.astype(np.float32), outputs.astype(np.float32), conditions)
    model = by_minibatches(store)
    assert model.model_.observations is None
    asked = inputs[:50]
    np.testing.assert_allclose(model.predict(asked, conditions[:50]), fitted.predict(asked, conditions[:50]), atol=0.03)


@pytest.mark.long
def test_noise_per_condition_is_learnt_by_minibatches():
    rng = np.random.default_rng(5)
    deviations = np.array([0.05, 0.3, 0.1, 0.2])
    conditions = rng.integers(0, 4, 4000)
    inputs = rng.uniform(-1.5, 1.5, (4000, 1))
    outputs = np.sin(2 * inputs[:, 0] + conditions) + deviations[conditions] * rng.normal(size=4000)
    settings = {"n_inducing_latents": 4, "max_iter": 1000, "noise": "per-condition"}
    model = by_minibatches(inputs, outputs, conditions, **settings).model_
    found = np.sqrt(model.scaling.variance(np.asarray(model.posterior.parameters.noise_variance)))
    np.testing.assert_allclose(found, deviations, rtol=0.12)


def test_a_store_cannot_be_fitted_in_other_ways():
    store = ObservationStore(np.zeros((3, 1)), np.zeros(3), np.array([0, 1, 0]))
    with pytest.raises(SettingError, match="fitted by minibatches"):
        PapersModel(inference="collapsed").fit(store)
    with pytest.raises(DataError, match="pass nothing beside it"):
        PapersModel().fit(store, np.zeros(3))
    with pytest.raises(DataError, match="NaN or infinite"):
        PapersModel().fit(store._replace(outputs=np.array([0, np.nan, 1])))


def test_the_posterior_of_a_fit_by_minibatches_is_what_its_parameters_say(fitted):
    # q(v) near the optimum for these parameters: predictions differ by little of their standard deviation.
    inputs, outputs, conditions, _ = many_conditions()
    model = fitted.model_
    data = long_data(model.scaling.inputs(inputs), model.scaling.outputs(outputs), conditions, 20)
    best = compiled(posterior)(model.posterior.parameters, data)
    features = model.posterior.input_basis.features(jnp.asarray(model.scaling.inputs(inputs[:200])))
    apart = (
        features
        @ (best.mean - model.posterior.mean)
        @ model.posterior.latent_basis.features(model.posterior.parameters.latent_mean).T
    )
    assert np.sqrt(np.mean(np.asarray(apart) ** 2)) < 0.03
