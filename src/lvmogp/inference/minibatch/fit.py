"""Data that do not fit into memory or into one machine: from observations to a posterior by minibatches."""

import time

import jax
import numpy as np

from lvmogp.inference.minibatch.descent import Finished, Running, begin, run
from lvmogp.inference.minibatch.distributed import gathered_documents, gathered_rows, merged_moments, summed
from lvmogp.inference.minibatch.prefetch import Feed, Shards
from lvmogp.inference.minibatch.resuming import load_running, of_first_process, save_running
from lvmogp.inference.minibatch.schedule import STEPS_PER_WINDOW, begin_schedule
from lvmogp.inference.minibatch.start import Start, points_per_condition, start_from
from lvmogp.inference.options import Options, minibatch_limits, minibatch_size
from lvmogp.inference.restarts import MINIBATCHES, Outcome, Progress, Report, Restart, jitters
from lvmogp.model.posterior import Posterior
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.tensor_file import decode_id, encode_id
from lvmogp.tables.ids import Id, distinct_ids, numbers_of
from lvmogp.tables.sources import Rows, column_moments, sample, scaling_from, source_of
from lvmogp.tables.stores import ObservationStore
from lvmogp.tables.transforms import Transform

# Seconds between two checkpoints, unless the user says otherwise.
CHECKPOINT_SECONDS = 60.0


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
    n_observations, batch_size = int(shards.counts.sum()), minibatch_size(options)
    most_steps, least_gain = minibatch_limits(options, n_observations)
    resumed = None if checkpoints is None else load_running(checkpoints)
    if resumed is None:
        start = _started(shards, options, on_progress)
        state = begin(start.shared, start.table)
        running = Running(state, state, 0, 0, begin_schedule(n_observations, batch_size), ())
    else:
        start, running = resumed

    def after_window(running: Running) -> None:
        nonlocal last_written
        due = running.schedule.ended or time.perf_counter() - last_written >= checkpoint_seconds
        if checkpoints is not None and due and jax.process_index() == 0:  # the states of others are the same
            save_running(checkpoints, start, running)
            last_written = time.perf_counter()
        if on_progress is not None and running.history:
            n_latent = running.state.table.shape[1] // 2
            share = max(running.schedule.share, running.step / most_steps)
            on_progress(Progress(n_latent, 1, 1, MINIBATCHES, running.step, running.history[-1].mean, share))

    feed = Feed(shards, batch_size, jax.local_device_count(), options.dtype, options.seed)
    finished = run(running, start.shared, feed, most_steps=most_steps, least_gain=least_gain, on_window=after_window)
    return finished.posterior, _outcome(finished, time.perf_counter() - began)


def _started(shards: Shards, options: Options, on_progress: Report) -> Start:
    n_conditions, scaling = len(shards.counts), shards.scaling
    per_condition = points_per_condition(n_conditions)
    parts = [
        sample(source, shards.counts, per_condition, options.seed + place)
        for place, source in enumerate(shards.sources, shards.first_shard)
    ]
    drawn = gathered_rows(Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))
    if jax.process_index() > 0:
        return of_first_process(None)
    rows = Rows(scaling.inputs(drawn.inputs), scaling.outputs(drawn.outputs), drawn.conditions)
    start = start_from(rows, n_conditions, scaling.input_scale, options, on_progress)
    return start if jax.process_count() == 1 else of_first_process(start)


def _outcome(finished: Finished, seconds: float) -> Outcome:
    parameters, bound, status = finished.posterior.parameters, finished.bound.mean, finished.status
    jitter_inputs, jitter_latents = jitters(parameters)
    history = tuple(each.mean for each in finished.history)
    restart = Restart(MINIBATCHES, bound, status, history, finished.n_steps, seconds, STEPS_PER_WINDOW)
    return Outcome(parameters, bound, status, (restart,), float(jitter_inputs), float(jitter_latents), seconds)
