"""Stochastic inference from its start to an averaged final iterate."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from threadpoolctl import threadpool_limits

from lvmogp.algebra.constraints import join, natural_steps, split
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled, jitted
from lvmogp.inference.minibatch.bound import Grams, Shared
from lvmogp.inference.minibatch.distributed import AXIS, mesh, replicated, spread
from lvmogp.inference.minibatch.minibatches import Minibatch
from lvmogp.inference.minibatch.prefetch import Feed, ahead, minibatch
from lvmogp.inference.minibatch.schedule import STEPS_PER_WINDOW, Schedule, Window, after, window
from lvmogp.inference.minibatch.steps import AdamMoments, Problem, Rates, State, conditions_of, covariance_of, step
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.model.expected_likelihood import basis
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, HostFloat, Scalar

# Neighbouring steps hardly differ, so that every fifth is averaged; fifty estimate the bound of the average.
_STEPS_PER_AVERAGE, _STEPS_TO_JUDGE = 5, 50
# Operations of one step below which threads cost more than they give.
_LARGE = 5e8
# The state after a minibatch at the given rates, and an estimate of the bound before it.
_Step = Callable[[State, Minibatch, Rates], tuple[State, Array]]


class Running(NamedTuple):
    """A run between two windows: all that is needed to go on from there."""

    state: State
    average: State
    n_averaged: int
    step: int
    schedule: Schedule
    history: tuple[Window, ...]


class Finished(NamedTuple):
    """The averaged state as parameters and q(v), with an estimate of its bound."""

    posterior: Posterior
    bound: Window
    status: Status
    history: tuple[Window, ...]
    n_steps: int


def begin(shared: Shared, table: HostFloat) -> State:
    """The state before the first step: kernels, inducing points and latents as given, q(v) the prior."""
    vector, _, _ = split(shared)
    values = jnp.asarray(table)
    n_inputs, n_latents = shared.inducing_inputs.shape[0], shared.inducing_latents.shape[0]
    grams = Grams(jnp.zeros((n_inputs, n_inputs)), jnp.zeros((n_latents, n_latents)))
    return State(
        vector=vector,
        table=values,
        mean=jnp.zeros((n_inputs, n_latents)),
        grams=grams,
        covariance=covariance_of(grams),
        vector_moments=AdamMoments(jnp.zeros_like(vector), jnp.zeros_like(vector)),
        table_moments=AdamMoments(jnp.zeros_like(values), jnp.zeros_like(values)),
        n_steps=jnp.zeros((), int),
        visits=jnp.zeros(len(values), int),
    )


def run(
    running: Running,
    shared: Shared,
    feed: Feed,
    *,
    most_steps: int,
    least_gain: float,
    on_window: Callable[[Running], None] | None = None,
) -> Finished:
    """Go on until the last stage ends, or ``most_steps`` are over.

    ``on_window`` is called after every window; it may raise :class:`lvmogp.StopFit` to end with the average so far.
    """
    devices = mesh()
    vector, fixed_leaves, structure = split(shared)
    counts = jnp.maximum(jnp.asarray(feed.shards.counts, float), 1)
    problem = replicated(Problem(fixed_leaves, counts, structure, shared.inducing_latents.shape[1]), devices)
    one_thread = feed.batch_size * shared.inducing_inputs.shape[0] ** 2 < _LARGE
    stepper = _stepper(devices, one_thread=one_thread)

    def take_step(state: State, batch: Minibatch, rates: Rates) -> tuple[State, Array]:
        return stepper(state, spread(batch, devices), problem, rates)

    def rates_of(schedule: Schedule) -> Rates:
        sizes = schedule.steps
        free = jnp.asarray(sizes.hyperparameters * natural_steps(vector, structure))
        return replicated(Rates(free, jnp.asarray(sizes.latents), jnp.asarray(sizes.natural)), devices)

    running = running._replace(state=replicated(running.state, devices), average=replicated(running.average, devices))
    status = Status.ITERATION_LIMIT
    # LAPACK has threads of its own, which wait for one another longer than a small step takes.
    one_at_a_time = threadpool_limits(limits=1 if one_thread else None)
    with one_at_a_time, closing(ahead(partial(minibatch, feed), running.step)) as batches:
        try:
            while running.step < most_steps and not running.schedule.ended:
                running = _window(running, batches, take_step, rates_of(running.schedule), least_gain)
                if running.schedule.hopeless or (running.step >= most_steps and not running.history):
                    raise NumericalError(
                        "the bound is not finite however small the steps; look for outputs or inputs of extreme size, "
                        'or try dtype="float64", another kernel or fewer inducing points'
                    )
                if on_window is not None:
                    on_window(running)
            if running.schedule.ended:
                status = Status.CONVERGED
        except StopFit:
            status = Status.INTERRUPTED
    final = running.average if running.n_averaged else running.state
    # Steps of size zero estimate the bound and change nothing.
    still = replicated(Rates(jnp.zeros_like(vector), jnp.zeros(()), jnp.zeros(())), devices)
    numbers = range(running.step, running.step + _STEPS_TO_JUDGE)
    estimates = [take_step(final, minibatch(feed, number), still)[1] for number in numbers]
    bound = window(np.asarray(jax.device_get(estimates)))
    return Finished(_posterior(final, problem), bound, status, running.history, running.step)


@cache
def _stepper(devices: Mesh, *, one_thread: bool) -> Callable[..., tuple[State, Array]]:
    # One function for each mesh, so that fits of the same shapes share one compiled program.
    whole, part = PartitionSpec(), PartitionSpec(AXIS)
    sharded = jax.shard_map(
        partial(step, axis=AXIS), mesh=devices, in_specs=(whole, part, whole, whole), out_specs=whole, check_vma=False
    )
    return jitted(sharded, one_thread=one_thread)


def _window(
    running: Running, batches: Iterator[Minibatch], take_step: _Step, rates: Rates, least_gain: float
) -> Running:
    state, average, n_averaged = running.state, running.average, running.n_averaged
    estimates = []
    for number in range(STEPS_PER_WINDOW):
        state, estimate = take_step(state, next(batches), rates)
        estimates.append(estimate)
        if running.schedule.averages and number % _STEPS_PER_AVERAGE == 0:
            n_averaged += 1
            average = _averaged(average, state, jnp.asarray(1 / n_averaged))
    latest = window(np.asarray(jax.device_get(estimates)))
    schedule = after(running.schedule, latest, least_gain)
    later = running._replace(step=running.step + STEPS_PER_WINDOW, schedule=schedule)
    if schedule.n_failures > running.schedule.n_failures:
        return later
    history = (*running.history, latest)
    return later._replace(state=state, average=average, n_averaged=n_averaged, history=history)


@compiled
def _averaged(average: State, state: State, share: Scalar) -> State:
    def mixed(old: Array, new: Array) -> Array:
        return old + share * (new - old) if eqx.is_inexact_array(old) else new

    mixture = jax.tree.map(mixed, average, state)
    return eqx.tree_at(lambda tree: tree.covariance, mixture, covariance_of(mixture.grams))


def _posterior(state: State, problem: Problem) -> Posterior:
    state, problem = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), (state, problem))
    shared: Shared = join(state.vector, problem.fixed_leaves, problem.structure)
    conditions = conditions_of(problem, shared, state.table, problem.counts)
    own_noise = shared.noise_variance.shape[0] == 0
    parameters = Parameters(
        input_kernel=shared.input_kernel,
        latent_kernel=shared.latent_kernel,
        inducing_inputs=shared.inducing_inputs,
        inducing_latents=shared.inducing_latents,
        latent_mean=conditions.latents.mean,
        latent_variance=conditions.latents.variance,
        noise_variance=conditions.noise_variance if own_noise else shared.noise_variance,
    )
    return Posterior(
        parameters=parameters,
        input_basis=basis(shared.input_kernel, shared.inducing_inputs),
        latent_basis=basis(shared.latent_kernel, shared.inducing_latents),
        mean=state.mean,
        covariance=state.covariance,
    )
