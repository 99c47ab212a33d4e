"""Data that do not fit into memory or into one machine: from observations to a posterior by minibatches."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.compiling import compiled
from lvmogp.inference.choices import chosen, search
from lvmogp.inference.minibatch.bound import Shared
from lvmogp.inference.minibatch.descent import Finished, Running, begin, run
from lvmogp.inference.minibatch.distributed import (
    first_bytes,
    gathered_documents,
    gathered_rows,
    merged_moments,
    summed,
)
from lvmogp.inference.minibatch.prefetch import Feed
from lvmogp.inference.minibatch.resuming import Start, load_running, save_running
from lvmogp.inference.minibatch.schedule import STEPS_PER_WINDOW, begin_course
from lvmogp.inference.minibatch.start import Pilot, pilot, placed, points_per_condition
from lvmogp.inference.options import Options, pilot_options, stochastic_sizes, stochastic_steps
from lvmogp.inference.restarts import MINIBATCHES, Outcome, Progress, Restart, jitters
from lvmogp.inference.starts import representatives
from lvmogp.model.posterior import Posterior, posterior
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.codec import decode_id, encode_id
from lvmogp.storage.tensor_file import from_bytes, to_bytes
from lvmogp.tables.ids import Id, distinct_ids, numbers_of
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.sources import Rows, Source, column_moments, sample, scaling_from, source_of
from lvmogp.tables.stores import ObservationStore
from lvmogp.tables.transforms import Transform
from lvmogp.typing import HostInt

_posterior = compiled(posterior)
# Seconds between two checkpoints, unless the user says otherwise.
CHECKPOINT_SECONDS = 60.0


class Shards(NamedTuple):
    """The part of the observations that this process reads, and how many of each condition there are in all."""

    sources: tuple[Source, ...]
    counts: HostInt
    scaling: Scaling
    n_shards: int
    first_shard: int


def shards_of(store: ObservationStore, *, transform: Transform | None) -> tuple[Shards, tuple[Id, ...]]:
    """A process's observations as a part of those of all processes, with the ids of all conditions."""
    own_ids = store.ids or ()
    everyones = [decode_id(each) for ids in gathered_documents([encode_id(each) for each in own_ids]) for each in ids]
    ids = distinct_ids(everyones)
    source = source_of(store.rows, len(ids), numbers_of(own_ids, ids).astype(np.int32))
    moments = merged_moments(column_moments(source, transform=transform))
    scaling = scaling_from(moments, transform=transform)
    counts = summed(source.counts)
    return Shards((source,), counts, scaling, jax.process_count(), jax.process_index()), ids


class Fitted(NamedTuple):
    """What came out, and how."""

    posterior: Posterior
    outcome: Outcome


def fit_large(
    shards: Shards,
    options: Options,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    checkpoints: Checkpoints | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Fitted:
    """Fit by minibatches, from a pilot or from where a checkpoint left off."""
    began = time.perf_counter()
    n_observations = int(shards.counts.sum())
    steps = stochastic_steps(options, n_observations)
    resumed = None if checkpoints is None else load_running(checkpoints)
    if resumed is None:
        start = _started(shards, options, on_progress)
        state = begin(start.shared, start.table)
        running = Running(state, state, 0, 0, begin_course(n_observations, steps.batch_size), ())
    else:
        start, running = resumed
    finished = run(
        running,
        start.shared,
        shards.counts,
        Feed(
            shards.sources,
            shards.scaling,
            shards.n_shards,
            shards.first_shard,
            jax.local_device_count(),
            steps.batch_size,
            options.dtype,
            options.seed,
        ),
        most_steps=steps.most_steps,
        least_gain=steps.least_gain,
        on_window=partial(
            _after_window,
            keeper=_Keeper(checkpoints, start, checkpoint_seconds),
            report=on_progress,
            most_steps=steps.most_steps,
        ),
    )
    return Fitted(finished.posterior, _outcome(finished, time.perf_counter() - began))


def _started(shards: Shards, options: Options, on_progress: Callable[[Progress], None] | None) -> Start:
    n_conditions = len(shards.counts)
    per_condition = points_per_condition(n_conditions)
    parts = [
        sample(source, shards.counts, per_condition, options.seed + shards.first_shard + place)
        for place, source in enumerate(shards.sources)
    ]
    drawn = gathered_rows(Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))
    rows = Rows(shards.scaling.inputs(drawn.inputs), shards.scaling.outputs(drawn.outputs), drawn.conditions)
    if jax.process_index() > 0:
        return from_bytes(first_bytes(b""), Start)
    start = _from_pilot(
        pilot(rows, n_conditions, options.seed), rows, n_conditions, shards.scaling, options, on_progress
    )
    return start if jax.process_count() == 1 else from_bytes(first_bytes(to_bytes(start, Start)), Start)


def _from_pilot(
    flight: Pilot,
    rows: Rows,
    n_conditions: int,
    scaling: Scaling,
    options: Options,
    on_progress: Callable[[Progress], None] | None,
) -> Start:
    reduced = pilot_options(options, flight.data, flight.rows.inputs)
    found = chosen(search(reduced, flight.data, flight.rows.inputs, scaling, on_progress)).parameters
    latents = placed(_posterior(found, flight.data), rows, n_conditions, flight.conditions)
    means = np.asarray(latents.mean)
    sizes = stochastic_sizes(options, n_conditions, n_latent=means.shape[1], latent_kernel=found.latent_kernel)
    own_noise = options.noise == "per-condition"
    shared = Shared(
        input_kernel=found.input_kernel,
        latent_kernel=found.latent_kernel,
        inducing_inputs=jnp.asarray(representatives(rows.inputs, sizes.n_inducing_inputs, options.seed)),
        inducing_latents=jnp.asarray(representatives(means, sizes.n_inducing_latents, options.seed)),
        noise_variance=jnp.zeros(0) if own_noise else found.noise_variance,
    )
    columns = [means, np.log(np.asarray(latents.variance))]
    if own_noise:
        noise = np.full((n_conditions, 1), np.mean(np.log(found.noise_variance)))
        noise[flight.conditions, 0] = np.log(found.noise_variance)
        columns.append(noise)
    return Start(shared, np.concatenate(columns, axis=1))


class _Keeper:
    # Writes checkpoints at intervals; by the first process only, the others' states being the same.
    def __init__(self, checkpoints: Checkpoints | None, start: Start, seconds: float) -> None:
        self.checkpoints, self.start, self.seconds = checkpoints, start, seconds
        self.last = time.perf_counter()

    def keep(self, running: Running) -> None:
        due = running.course.ended or time.perf_counter() - self.last >= self.seconds
        if self.checkpoints is None or not due or jax.process_index() > 0:
            return
        save_running(self.checkpoints, self.start, running)
        self.last = time.perf_counter()


def _after_window(
    running: Running, *, keeper: _Keeper, report: Callable[[Progress], None] | None, most_steps: int
) -> None:
    keeper.keep(running)
    if report is not None and running.history:
        n_latent = running.state.table.shape[1] // 2
        share = max(running.course.share, running.step / most_steps)
        report(Progress(n_latent, 1, 1, MINIBATCHES, running.step, running.history[-1].mean, share))


def _outcome(finished: Finished, seconds: float) -> Outcome:
    parameters = finished.posterior.parameters
    jitter_inputs, jitter_latents = jitters(parameters)
    history = tuple(each.mean for each in finished.history)
    restart = Restart(
        MINIBATCHES, finished.bound.mean, finished.status, history, finished.n_steps, seconds, STEPS_PER_WINDOW
    )
    return Outcome(
        parameters=parameters,
        bound=finished.bound.mean,
        status=finished.status,
        restarts=(restart,),
        jitter_inputs=float(jitter_inputs),
        jitter_latents=float(jitter_latents),
        seconds=seconds,
    )
