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
from lvmogp.storage.codec import decode_id, encode_id
from lvmogp.tables.ids import Id, distinct_ids, numbers_of
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import scaling_from
from lvmogp.tables.transforms import Transform

# Seconds between two checkpoints, unless the user says otherwise.
CHECKPOINT_SECONDS = 60.0


def shards_of(observations: Observations, *, transform: Transform | None) -> tuple[Shards, tuple[Id, ...]]:
    """Return a process's observations as a part of those of all processes, and the ids of all conditions."""
    documents = gathered_documents([encode_id(each) for each in observations.ids])
    ids = distinct_ids([decode_id(each) for document in documents for each in document])
    numbers = numbers_of(observations.ids, ids).astype(np.int32)
    scaling = scaling_from(merged_moments(observations.moments(transform)), transform=transform)
    counts = np.zeros(len(ids), dtype=np.int64)
    counts[numbers] = observations.counts
    shards = Shards((observations,), (numbers,), summed(counts), scaling, jax.process_count(), jax.process_index())
    return shards, ids


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
    # About as many observations of each condition, all of those that have fewer.
    chances = np.minimum(points_per_condition(n_conditions) / np.maximum(shards.counts, 1), 1.0)
    some = [
        part.sample(chances[own], options.seed + shards.first_shard + place)
        for place, (part, own) in enumerate(zip(shards.parts, shards.numbers, strict=True))
    ]
    drawn = gathered_rows(shards.joined(some))
    if jax.process_index() > 0:
        return of_first_process(None)
    rows = drawn._replace(inputs=scaling.inputs(drawn.inputs), outputs=scaling.outputs(drawn.outputs))
    start = start_from(rows, n_conditions, scaling.input_scale, options, on_progress)
    return start if jax.process_count() == 1 else of_first_process(start)


def _outcome(finished: Finished, seconds: float) -> Outcome:
    parameters, bound, status = finished.posterior.parameters, finished.bound.mean, finished.status
    jitter_inputs, jitter_latents = jitters(parameters)
    history = tuple(each.mean for each in finished.history)
    restart = Restart(MINIBATCHES, bound, status, history, finished.n_steps, seconds, STEPS_PER_WINDOW)
    return Outcome(parameters, bound, status, (restart,), float(jitter_inputs), float(jitter_latents), seconds)
