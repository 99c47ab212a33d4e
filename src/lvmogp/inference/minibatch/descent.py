"""Stochastic inference from its start to an averaged final iterate.

Estimates of the bound are noisy. They are gathered in windows of steps, and a stage ends once the trend over the last
windows cannot be told from noise, or gains too little; the next takes smaller steps. The last stage averages what it
goes through.
"""

import math
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
from lvmogp.ground.rules import AnyFloat
from lvmogp.inference.minibatch.distributed import AXIS, mesh, on_devices
from lvmogp.inference.minibatch.minibatches import Feed, Minibatch, ahead, minibatch
from lvmogp.inference.minibatch.steps import AdamMoments, Grams, Problem, State, covariance_of, step, with_conditions
from lvmogp.inference.optimise import Status, StopFit
from lvmogp.model.features import bases
from lvmogp.model.parameters import Information, Parameters, pooled_deviations
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, Float, Scalar

STEPS_PER_WINDOW = 50
# Step sizes of the hyperparameters, the latents and q(v) in each stage.
STAGES = ((0.03, 0.02, 0.05), (0.01, 0.01, 0.02), (0.002, 0.005, 0.01))
# Windows over which a trend is looked for: at least as many as a pass through the data has, within these limits.
_FEWEST_WINDOWS, _MOST_WINDOWS = 10, 40
# A slope of fewer standard errors cannot be told from noise.
_SIGNIFICANT = 2.0
# Steps are halved where the bound is not finite, at most to a sixty-fourth.
_SHRINK_AFTER_FAILURE, _MOST_FAILURES = 0.5, 6
# Neighbouring steps hardly differ, so that every fifth is averaged; fifty estimate the bound of the average.
_STEPS_PER_AVERAGE, _STEPS_TO_JUDGE = 5, 50
# Operations of one step below which threads cost more than they give.
_LARGE = 5e8


# The step schedule


class Window(NamedTuple):
    """Mean of the estimates of the bound in a window of steps, with its standard error."""

    mean: AnyFloat
    error: AnyFloat


class Schedule(NamedTuple):
    """Where a run stands: its stage, the windows of that stage, and how often it had to step back."""

    stage: int = 0
    windows: tuple[Window, ...] = ()
    n_failures: int = 0
    n_windows: int = _FEWEST_WINDOWS

    @property
    def averages(self) -> bool:
        """Whether this is the stage that is averaged."""
        return self.stage == len(STAGES) - 1

    @property
    def ended(self) -> bool:
        """Whether all stages are over."""
        return self.stage == len(STAGES)

    @property
    def share(self) -> float:
        """About how much of the run is over; nobody knows how long a stage will take."""
        of_stage = min(len(self.windows) / (2 * self.n_windows), 0.95)
        return min((self.stage + of_stage) / len(STAGES), 1.0)

    @property
    def steps(self) -> tuple[float, ...]:
        """Step sizes now."""
        return tuple(_SHRINK_AFTER_FAILURE**self.n_failures * size for size in STAGES[self.stage])


def begin_schedule(n_observations: int, batch_size: int) -> Schedule:
    """Return the schedule of a run; the more observations, the slower and the surer a trend must be."""
    in_a_pass = round(n_observations / batch_size / STEPS_PER_WINDOW)
    return Schedule(n_windows=min(max(in_a_pass, _FEWEST_WINDOWS), _MOST_WINDOWS))


def window(estimates: np.ndarray) -> Window:
    """Return the mean and standard error of the estimates in a window."""
    return Window(float(np.mean(estimates)), float(np.std(estimates, ddof=1) / math.sqrt(len(estimates))))


def after(schedule: Schedule, latest: Window, least_gain: float) -> Schedule:
    """Return the schedule after another window; ``least_gain`` is what the windows looked at must gain together."""
    if not math.isfinite(latest.mean):
        return schedule._replace(n_failures=schedule.n_failures + 1)
    windows, n_windows = (*schedule.windows, latest), schedule.n_windows
    if len(windows) < n_windows:
        return schedule._replace(windows=windows)
    # The slope of a straight line through the latest means, Σ w_j m_j, has the standard error √Σ w_j² e_j².
    means, errors = np.transpose(windows[-n_windows:])
    place = np.arange(n_windows) - (n_windows - 1) / 2
    slope_weights = place / np.sum(place**2)
    slope, error = slope_weights @ means, math.sqrt(np.sum(slope_weights**2 * errors**2))
    if schedule.averages or slope < _SIGNIFICANT * error or slope * n_windows < least_gain:
        return schedule._replace(stage=schedule.stage + 1, windows=())
    return schedule._replace(windows=windows)


# Runs


class Running(NamedTuple):
    """A run between two windows, all that is needed to go on from there; ``shared`` are parameters of no condition."""

    shared: Parameters
    state: State
    average: State
    schedule: Schedule
    n_averaged: int = 0
    step: int = 0
    history: tuple[Window, ...] = ()


def begin(shared: Parameters, table: Float[Array, "rows K"], schedule: Schedule) -> Running:
    """Return a run before its first step: kernels, inducing points and latents as given, q(v) the prior."""
    vector, _, _ = split(shared)
    n_inputs, n_latents = shared.inducing_inputs.shape[0], shared.inducing_latents.shape[0]
    mean, n_steps, visits = jnp.zeros((n_inputs, n_latents)), jnp.zeros((), int), jnp.zeros(len(table), int)
    grams = Grams(jnp.zeros((n_inputs, n_inputs)), jnp.zeros((n_latents, n_latents)))
    of_vector, of_table = (AdamMoments(jnp.zeros_like(each), jnp.zeros_like(each)) for each in (vector, table))
    state = State(vector, table, mean, grams, covariance_of(grams), of_vector, of_table, n_steps, visits)
    return Running(shared, state, state, schedule)


def run(
    running: Running, feed: Feed, *, most_steps: int, least_gain: float, on_window: Callable[[Running], None]
) -> tuple[Running, Posterior, Window, Status]:
    """Go on until the last stage ends, or ``most_steps`` are over, and estimate the bound of the average.

    ``on_window`` is called after every window; it may raise :class:`lvmogp.StopFit` to end with the average so far.
    """
    devices = mesh()
    vector, fixed_leaves, structure = split(running.shared)
    counts = jnp.maximum(jnp.asarray(feed.shards.counts, float), 1)
    unit_steps = jnp.asarray(natural_steps(vector, structure))
    problem = on_devices(Problem(unit_steps, fixed_leaves, counts, structure), devices)
    one_thread = feed.batch_size * running.shared.inducing_inputs.shape[0] ** 2 < _LARGE
    stepper = _stepper(devices, one_thread=one_thread)

    def take_step(state: State, batch: Minibatch, rates: Array) -> tuple[State, Array]:
        return stepper(state, on_devices(batch, devices, spread=True), problem, rates)

    running = running._replace(state=on_devices(running.state, devices), average=on_devices(running.average, devices))
    status = Status.ITERATION_LIMIT
    # LAPACK has threads of its own, which wait for one another longer than a small step takes.
    one_at_a_time = threadpool_limits(limits=1 if one_thread else None)
    with one_at_a_time, closing(ahead(partial(minibatch, feed), running.step)) as batches:
        try:
            while running.step < most_steps and not running.schedule.ended:
                rates = on_devices(jnp.asarray(running.schedule.steps), devices)
                running = _window(running, batches, partial(take_step, rates=rates), least_gain)
                hopeless = running.schedule.n_failures > _MOST_FAILURES  # though steps are ever smaller
                if hopeless or (running.step >= most_steps and not running.history):
                    raise NumericalError(
                        "the bound is not finite however small the steps; look for outputs or inputs of extreme size, "
                        'or try dtype="float64", another kernel or fewer inducing points'
                    )
                on_window(running)
            if running.schedule.ended:
                status = Status.CONVERGED
        except StopFit:
            status = Status.INTERRUPTED
    final = running.average if running.n_averaged else running.state
    # Steps of size zero estimate the bound and change nothing.
    still, numbers = on_devices(jnp.zeros(3), devices), range(running.step, running.step + _STEPS_TO_JUDGE)
    estimates = [take_step(final, minibatch(feed, number), still)[1] for number in numbers]
    final, problem = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), (final, problem))
    parameters = with_conditions(join(final.vector, problem.fixed_leaves, problem.structure), final.table)
    inputs, latents = bases(parameters)
    nothing = jnp.zeros_like(problem.counts)
    deviations = pooled_deviations(parameters, Information(problem.counts / 2, nothing, nothing))
    found = Posterior(parameters, inputs.factors, latents.factors, final.mean, final.covariance, deviations)
    return running, found, window(np.asarray(jax.device_get(estimates))), status


@cache
def _stepper(devices: Mesh, *, one_thread: bool) -> Callable[..., tuple[State, Array]]:
    # One function for each mesh, so that fits of the same shapes share one compiled program.
    whole, part = PartitionSpec(), PartitionSpec(AXIS)
    sharded = jax.shard_map(
        partial(step, axis=AXIS), mesh=devices, in_specs=(whole, part, whole, whole), out_specs=whole, check_vma=False
    )
    return jitted(sharded, one_thread=one_thread)


def _window(
    running: Running, batches: Iterator[Minibatch], take_step: Callable[..., tuple[State, Array]], least_gain: float
) -> Running:
    state, average, n_averaged = running.state, running.average, running.n_averaged
    estimates = []
    for number in range(STEPS_PER_WINDOW):
        state, estimate = take_step(state, next(batches))
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
