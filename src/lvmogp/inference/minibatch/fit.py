"""Data that do not fit into memory or into one machine: from observations to a posterior by minibatches.

A small fit to some conditions comes first, and all others are placed in its latent space. Minibatches go on from there,
or from a checkpoint.
"""

import dataclasses
import time
from functools import reduce

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.errors import warn
from lvmogp.ground.compiling import compiled
from lvmogp.inference.minibatch.descent import STAGES, STEPS_PER_WINDOW, Running, begin, begin_schedule, run
from lvmogp.inference.minibatch.distributed import gathered
from lvmogp.inference.minibatch.minibatches import Feed, Shards, ranks
from lvmogp.inference.minibatch.settings import inducing_numbers, start_options, step_settings
from lvmogp.inference.options import Options
from lvmogp.inference.restarts import MINIBATCHES, Outcome, Progress, Report, Restart, chosen, jitters, search
from lvmogp.inference.starts import representatives
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.layouts import long_data
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import Posterior, posterior
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.tables.ids import Id, distinct_ids, numbers_of
from lvmogp.tables.observations import Observations, joined
from lvmogp.tables.scaling import ColumnMoments, Transform, scaling_from
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

# Seconds between two checkpoints, unless the user says otherwise.
CHECKPOINT_SECONDS = 60.0
_SERIES = "steps"
# Conditions and observations of the small fit, which takes seconds, and observations by which others are placed.
_MOST_CONDITIONS, _MOST_OBSERVATIONS = 300, 3_000
_POINTS_PER_CONDITION = 32
_CONDITIONS_AT_ONCE = 1_024
# Levenberg and Marquardt's steps: the damping goes down by 4 or up by 8, from little.
_NEWTON_STEPS, _FIRST_DAMPING = 10, 1e-2
# The curves of the small fit are themselves uncertain, by about as much as an observation.
_EXCESS_VARIANCE = 2.0
_posterior = compiled(posterior)
# What processes tell each other: ids, counts and moments of a shard; inputs, outputs and conditions of some rows; what
# conditions share where minibatches start, and the table of what is their own.
_Share = tuple[tuple[Id, ...], Int[np.ndarray, " _"], ColumnMoments]
_Rows = tuple[Float[np.ndarray, "_ _"], Float[np.ndarray, " _"], Int[np.ndarray, " _"]]
_Start = tuple[Parameters, Float[np.ndarray, "_ _"]] | None


def shards_of(
    observations: Observations, *, transform: Transform | None = None, log_columns: tuple[int, ...] = ()
) -> tuple[Shards, tuple[Id, ...]]:
    """Return a process's observations as a part of those of all processes, and the ids of all conditions."""
    own = observations.ids, observations.counts, observations.moments(transform, log_columns)
    everyone = gathered(own, _Share)
    ids = distinct_ids([each for own_ids, _, _ in everyone for each in own_ids])
    counts = np.zeros(len(ids), dtype=np.int64)
    for own_ids, own_counts, _ in everyone:
        counts[numbers_of(own_ids, ids)] += own_counts
    moments = reduce(ColumnMoments.merged, [moments for _, _, moments in everyone])
    scaling = scaling_from(moments, transform=transform, log_columns=log_columns)
    numbers = numbers_of(observations.ids, ids).astype(np.int32)
    return Shards((observations,), (numbers,), counts, scaling, len(everyone), jax.process_index()), ids


def fit_minibatches(
    shards: Shards,
    options: Options,
    *,
    on_progress: Report = None,
    checkpoints: Checkpoints | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> tuple[Posterior, Outcome]:
    """Fit by minibatches, from a small fit or from where a checkpoint left off."""
    began = last_written = time.perf_counter()
    n_observations = int(shards.counts.sum())
    batch_size, most_steps, least_gain = step_settings(options, n_observations)
    running = None if checkpoints is None else _resumed(checkpoints)
    if running is None:
        shared, table = _started(shards, options, on_progress)
        running = begin(shared, jnp.asarray(table), begin_schedule(n_observations, batch_size))

    def after_window(running: Running) -> None:
        nonlocal last_written
        due = running.schedule.ended or time.perf_counter() - last_written >= checkpoint_seconds
        if checkpoints is not None and due and jax.process_index() == 0:  # the states of others are the same
            checkpoints.save(_SERIES, running.step, running, Running)
            last_written = time.perf_counter()
        if on_progress is not None and running.history:
            n_latent = running.shared.latent_mean.shape[1]
            share = max(running.schedule.share, running.step / most_steps)
            on_progress(Progress(n_latent, 1, 1, MINIBATCHES, running.step, running.history[-1].mean, share))

    feed = Feed(shards, batch_size, jax.local_device_count(), options.dtype, options.random_state)
    running, posterior, bound, status = run(
        running, feed, most_steps=most_steps, least_gain=least_gain, on_window=after_window
    )
    seconds = time.perf_counter() - began
    history = tuple(each.mean for each in running.history)
    restart = Restart(MINIBATCHES, bound.mean, status, history, running.step, seconds, STEPS_PER_WINDOW)
    on_inputs, on_latents = map(float, jitters(posterior.parameters))
    return posterior, Outcome(posterior.parameters, bound.mean, status, (restart,), on_inputs, on_latents, seconds)


def _resumed(checkpoints: Checkpoints) -> Running | None:
    # The newest run that can be read, by the first process for all.
    newest = checkpoints.latest(_SERIES, Running) if jax.process_index() == 0 else None
    kept: Running | None = gathered(newest and newest[1], Running | None)[0]
    if kept is None:
        return None
    states = (kept.state, kept.average, begin(kept.shared, kept.state.table, kept.schedule).state)
    sizes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) for state in states]
    if not eqx.tree_equal(*sizes) or kept.schedule.stage not in range(len(STAGES) + 1):
        warn(f"the checkpoints in {checkpoints.folder} do not fit where they started; the fit begins anew")
        return None
    return kept


# Where minibatches start


def _started(shards: Shards, options: Options, on_progress: Report) -> tuple[Parameters, HostFloat]:
    # What all conditions share, as the parameters of none, and the table of what is their own: some of the conditions
    # are fitted by the first process for all, the others placed.
    n_conditions, scaling = len(shards.counts), shards.scaling
    # About as many observations of each condition, all of those that have fewer.
    wanted = max(_POINTS_PER_CONDITION, -(-_MOST_OBSERVATIONS // min(n_conditions, _MOST_CONDITIONS)))
    chances = np.minimum(wanted / np.maximum(shards.counts, 1), 1.0)
    some = [
        part.sample(chances[own], options.random_state + shards.first_shard + place)
        for place, (part, own) in enumerate(zip(shards.parts, shards.numbers, strict=True))
    ]
    drawn = joined([Observations(*each) for each in gathered(shards.joined(some)[:3], _Rows)])
    if jax.process_index() > 0:
        return gathered(None, _Start)[0]
    rows = drawn._replace(inputs=scaling.inputs(drawn.inputs), outputs=scaling.outputs(drawn.outputs))
    few, fitted = some_conditions(rows, n_conditions, options.random_state)
    data = long_data(few.inputs, few.outputs, few.conditions, len(fitted))
    reduced = start_options(options, data, few.inputs)
    found = chosen(search(reduced, data, few.inputs, scaling.input_scale, on_progress)).parameters
    latents = placed(_posterior(found, data), rows, n_conditions, fitted)
    means, kernel = np.asarray(latents.mean), found.kernels.of_latents[0]
    n_latent = means.shape[1]
    n_inputs, n_latents = inducing_numbers(options, n_conditions, n_latent=n_latent, latent_kernel=kernel)
    columns, noise_variance = [means, np.log(np.asarray(latents.variance))], found.noise_variance
    if options.noise == "per-condition":
        noise = np.full((n_conditions, 1), np.mean(np.log(noise_variance)))
        noise[fitted, 0] = np.log(noise_variance)
        columns.append(noise)
        noise_variance = jnp.exp(jnp.mean(jnp.log(noise_variance)))[None]  # the median of all
    shared = dataclasses.replace(
        found,
        inducing_inputs=jnp.asarray(representatives(rows.inputs, n_inputs, options.random_state)),
        inducing_latents=jnp.asarray(representatives(means, n_latents, options.random_state)),
        latent_mean=jnp.zeros((0, n_latent)),
        latent_variance=jnp.zeros((0, n_latent)),
        noise_variance=noise_variance,
    )
    return gathered((shared, np.concatenate(columns, axis=1)), _Start)[0]


def some_conditions(rows: Observations, n_conditions: int, seed: int) -> tuple[Observations, HostInt]:
    """Return some observations of at most 300 conditions, about as many of each, and the conditions' numbers."""
    rng = np.random.default_rng(seed)
    seen = np.unique(rows.conditions)
    drawn = np.sort(rng.choice(seen, min(len(seen), _MOST_CONDITIONS), replace=False))
    numbers = np.full(n_conditions, -1)
    numbers[drawn] = np.arange(len(drawn))
    order = rng.permutation(np.flatnonzero(numbers[rows.conditions] >= 0))
    few = rows.some(order[ranks(rows.conditions[order]) < -(-_MOST_OBSERVATIONS // len(drawn))])
    return few._replace(conditions=numbers[few.conditions]), drawn


def placed(model: Posterior, rows: Observations, n_conditions: int, fitted: HostInt) -> LatentGaussians:
    """Return q(h_d) of all conditions: as fitted, and the others where their observations put them, the model fixed."""
    rank = ranks(rows.conditions)
    near = rank < _POINTS_PER_CONDITION
    place = rows.conditions[near], rank[near]
    inputs = np.zeros((n_conditions, _POINTS_PER_CONDITION, rows.inputs.shape[1]))
    outputs, present = np.zeros((2, n_conditions, _POINTS_PER_CONDITION))
    inputs[place], outputs[place], present[place] = rows.inputs[near], rows.outputs[near], 1.0
    mean, variance = map(np.array, _place(model, jnp.asarray(inputs), jnp.asarray(outputs), jnp.asarray(present)))
    mean[fitted], variance[fitted] = model.parameters.latent_mean, model.parameters.latent_variance
    return LatentGaussians(jnp.asarray(mean), jnp.asarray(variance))


@compiled
def _place(
    model: Posterior, inputs: Float[Array, "C b Q_X"], outputs: Float[Array, "C b"], present: Float[Array, "C b"]
) -> tuple[Float[Array, "C Q_H"], Float[Array, "C Q_H"]]:
    # Means and variances of Laplace's approximation, by Gauss-Newton steps from the best of the fitted latents, damped
    # as by Levenberg and Marquardt.
    noise = _EXCESS_VARIANCE * jnp.exp(jnp.mean(jnp.log(model.parameters.noise_variance)))
    candidates = model.parameters.latent_mean
    candidate_weights = model.latent_basis.features(candidates) @ model.mean.T  # w(h) = M c(h)
    identity = jnp.eye(candidates.shape[1], dtype=candidates.dtype)

    def one_condition(observed: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        points, values, weights = observed
        features, precision = model.input_basis.features(points), weights / noise

        def predicted(latent: Float[Array, " Q_H"]) -> Float[Array, " b"]:
            return features @ (model.mean @ model.latent_basis.features(latent[None])[0])

        def log_density(latent: Float[Array, " Q_H"]) -> Scalar:
            return -(weights @ (values - predicted(latent)) ** 2 / noise + latent @ latent) / 2

        def curvature(latent: Array) -> tuple[Array, Array]:
            slope = jax.jacfwd(predicted)(latent)
            gradient = slope.T @ (precision * (values - predicted(latent))) - latent
            return gradient, (slope.T * precision) @ slope + identity

        def improve(_, state: tuple[Array, Array]) -> tuple[Array, Array]:
            latent, damping = state
            gradient, precision_matrix = curvature(latent)
            step = jnp.linalg.solve(precision_matrix * (1 + damping * identity), gradient)
            better = log_density(latent + step) > log_density(latent)
            return jax.lax.select(better, latent + step, latent), jax.lax.select(better, damping / 4, damping * 8)

        errors = weights @ (values[:, None] - features @ candidate_weights.T) ** 2 / noise
        first = candidates[jnp.argmin(errors + jnp.sum(candidates**2, axis=1))]
        damping = jnp.asarray(_FIRST_DAMPING, first.dtype)
        latent, _ = jax.lax.fori_loop(0, _NEWTON_STEPS, improve, (first, damping))
        return latent, jnp.diagonal(jnp.linalg.inv(curvature(latent)[1]))

    return jax.lax.map(one_condition, (inputs, outputs, present), batch_size=min(_CONDITIONS_AT_ONCE, len(inputs)))
