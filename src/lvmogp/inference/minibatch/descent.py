"""Stochastic inference from its start to an averaged final iterate."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from threadpoolctl import threadpool_limits

from lvmogp.algebra.constraints import join, natural_steps, split
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiler_options, counted
from lvmogp.inference.minibatch.bound import Grams, Shared
from lvmogp.inference.minibatch.distributed import AXIS, mesh, replicated, spread
from lvmogp.inference.minibatch.prefetch import Feed, ahead, minibatch
from lvmogp.inference.minibatch.schedule import STEPS_PER_WINDOW, Course, Window, after, window
from lvmogp.inference.minibatch.steps import Moments, Problem, Rates, State, conditions_of, covariance_of, step
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.model.inducing_features import basis
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, HostFloat, HostInt, Scalar

_STEPS_PER_AVERAGE = 5
_STEPS_TO_JUDGE = 50
# Operations of one step below which threads cost more than they give.
_LARGE = 5e8


class Running(NamedTuple):
    """A run between two windows: all that is needed to go on from there."""

    state: State
    average: State
    n_averaged: int
    step: int
    course: Course
    history: tuple[Window, ...]


class Finished(NamedTuple):
    """The averaged state as parameters and q(v), with an estimate of its bound."""

    posterior: Posterior
    bound: Window
    status: Status
    history: tuple[Window, ...]
    n_steps: int
    seconds: float


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
        vector_moments=Moments(jnp.zeros_like(vector), jnp.zeros_like(vector)),
        table_moments=Moments(jnp.zeros_like(values), jnp.zeros_like(values)),
        n_steps=jnp.zeros((), int),
        visits=jnp.zeros(len(values), int),
    )


def run(
    running: Running,
    shared: Shared,
    counts: HostInt,
    feed: Feed,
    *,
    most_steps: int,
    least_gain: float,
    on_window: Callable[[Running], None] | None = None,
) -> Finished:
    """Go on until the last stage ends, or ``most_steps`` are over.

    ``on_window`` is called after every window; it may raise :class:`lvmogp.StopFit` to end with the average so far.
    """
    began = time.perf_counter()
    devices = mesh()
    vector, fixed_leaves, structure = split(shared)
    problem = replicated(
        Problem(fixed_leaves, jnp.maximum(jnp.asarray(counts, float), 1), structure, shared.inducing_latents.shape[1]),
        devices,
    )
    steps = natural_steps(vector, structure)
    one_thread = feed.batch_size * shared.inducing_inputs.shape[0] ** 2 < _LARGE
    stepper = _stepper(devices, one_thread=one_thread)
    running = running._replace(state=replicated(running.state, devices), average=replicated(running.average, devices))
    status = Status.ITERATION_LIMIT
    # LAPACK has threads of its own, which wait for one another longer than a small step takes.
    one_at_a_time = threadpool_limits(limits=1 if one_thread else None)
    with one_at_a_time, closing(ahead(partial(minibatch, feed), running.step)) as batches:
        try:
            while running.step < most_steps and not running.course.ended:
                running = _window(running, batches, stepper, problem, steps, devices, least_gain)
                if running.course.hopeless or (running.step >= most_steps and not running.history):
                    raise NumericalError(
                        "the bound is not finite however small the steps; look for outputs or inputs of extreme size, "
                        'or try dtype="float64", another kernel or fewer inducing points'
                    )
                if on_window is not None:
                    on_window(running)
            if running.course.ended:
                status = Status.CONVERGED
        except StopFit:
            status = Status.INTERRUPTED
    final = running.average if running.n_averaged else running.state
    return Finished(
        posterior=_posterior(final, problem),
        bound=_judged(final, feed, stepper, problem, devices, running.step),
        status=status,
        history=running.history,
        n_steps=running.step,
        seconds=time.perf_counter() - began,
    )


@cache
def _stepper(devices: Mesh, *, one_thread: bool) -> Callable[..., tuple[State, Array]]:
    # One function for each mesh, so that fits of the same shapes share one compiled program.
    whole, part = PartitionSpec(), PartitionSpec(AXIS)
    sharded = jax.shard_map(
        partial(step, axis=AXIS), mesh=devices, in_specs=(whole, part, whole, whole), out_specs=whole, check_vma=False
    )
    return jax.jit(counted(sharded), compiler_options=compiler_options(one_thread=one_thread))


def _window(
    running: Running,
    batches: Any,
    stepper: Callable[..., tuple[State, Array]],
    problem: Problem,
    steps: HostFloat,
    devices: Mesh,
    least_gain: float,
) -> Running:
    sizes = running.course.steps
    rates = replicated(
        Rates(jnp.asarray(sizes.hyperparameters * steps), jnp.asarray(sizes.latents), jnp.asarray(sizes.natural)),
        devices,
    )
    state, average, n_averaged = running.state, running.average, running.n_averaged
    estimates = []
    for number in range(STEPS_PER_WINDOW):
        state, estimate = stepper(state, spread(next(batches), devices), problem, rates)
        estimates.append(estimate)
        if running.course.averages and number % _STEPS_PER_AVERAGE == 0:
            n_averaged += 1
            average = _averaged(average, state, jnp.asarray(1 / n_averaged))
    latest = window(np.asarray(jax.device_get(estimates)))
    course = after(running.course, latest, least_gain)
    failed = course.n_failures > running.course.n_failures
    if failed:
        state, average, n_averaged = running.state, running.average, running.n_averaged
    return Running(
        state,
        average,
        n_averaged,
        running.step + STEPS_PER_WINDOW,
        course,
        running.history if failed else (*running.history, latest),
    )


@jax.jit
@counted
def _averaged(average: State, state: State, share: Scalar) -> State:
    def mixed(old: Array, new: Array) -> Array:
        return old + share * (new - old) if eqx.is_inexact_array(old) else new

    mixture = jax.tree.map(mixed, average, state)
    return eqx.tree_at(lambda tree: tree.covariance, mixture, covariance_of(mixture.grams))


def _judged(
    state: State, feed: Feed, stepper: Callable[..., Any], problem: Problem, devices: Mesh, first: int
) -> Window:
    # Steps of size zero estimate the bound and change nothing.
    still = replicated(Rates(jnp.zeros_like(state.vector), jnp.zeros(()), jnp.zeros(())), devices)
    estimates = []
    for number in range(first, first + _STEPS_TO_JUDGE):
        _, estimate = stepper(state, spread(minibatch(feed, number), devices), problem, still)
        estimates.append(estimate)
    return window(np.asarray(jax.device_get(estimates)))


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
