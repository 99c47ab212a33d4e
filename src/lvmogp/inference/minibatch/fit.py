"""Data that do not fit into memory or into one machine: from observations to a posterior by minibatches."""

import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from lvmogp.errors import warn
from lvmogp.inference.minibatch.descent import STAGES, STEPS_PER_WINDOW, Running, begin, begin_schedule, run
from lvmogp.inference.minibatch.distributed import gathered_documents, gathered_rows, merged_moments, of_first, summed
from lvmogp.inference.minibatch.minibatches import Feed, Shards
from lvmogp.inference.minibatch.start import Start, points_per_condition, start_from
from lvmogp.inference.options import Options, minibatch_settings
from lvmogp.inference.restarts import MINIBATCHES, Outcome, Progress, Report, Restart, jitters
from lvmogp.model.posterior import Posterior
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.storage.codec import decode_id, encode_id
from lvmogp.storage.tensor_file import from_bytes, to_bytes
from lvmogp.tables.ids import Id, distinct_ids, numbers_of
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import scaling_from
from lvmogp.tables.transforms import Transform

# Seconds between two checkpoints, unless the user says otherwise.
CHECKPOINT_SECONDS = 60.0
_SERIES = "steps"


class Interrupted(NamedTuple):
    """A run between two windows, and where it started, as a checkpoint keeps them."""

    start: Start
    running: Running


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
    n_observations = int(shards.counts.sum())
    batch_size, most_steps, least_gain = minibatch_settings(options, n_observations)
    interrupted = None if checkpoints is None else _interrupted(checkpoints)
    if interrupted is None:
        start = _started(shards, options, on_progress)
        state = begin(start.shared, start.table)
        interrupted = Interrupted(start, Running(state, state, 0, 0, begin_schedule(n_observations, batch_size), ()))
    start, running = interrupted

    def after_window(running: Running) -> None:
        nonlocal last_written
        due = running.schedule.ended or time.perf_counter() - last_written >= checkpoint_seconds
        if checkpoints is not None and due and jax.process_index() == 0:  # the states of others are the same
            checkpoints.save(_SERIES, running.step, Interrupted(start, running), Interrupted)
            last_written = time.perf_counter()
        if on_progress is not None and running.history:
            n_latent = running.state.table.shape[1] // 2
            share = max(running.schedule.share, running.step / most_steps)
            on_progress(Progress(n_latent, 1, 1, MINIBATCHES, running.step, running.history[-1].mean, share))

    feed = Feed(shards, batch_size, jax.local_device_count(), options.dtype, options.random_state)
    running, posterior, bound, status = run(
        running, start.shared, feed, most_steps=most_steps, least_gain=least_gain, on_window=after_window
    )
    jitter_inputs, jitter_latents = map(float, jitters(posterior.parameters))
    seconds = time.perf_counter() - began
    history = tuple(each.mean for each in running.history)
    restart = Restart(MINIBATCHES, bound.mean, status, history, running.step, seconds, STEPS_PER_WINDOW)
    return posterior, Outcome(
        posterior.parameters, bound.mean, status, (restart,), jitter_inputs, jitter_latents, seconds
    )


def _started(shards: Shards, options: Options, on_progress: Report) -> Start:
    n_conditions, scaling = len(shards.counts), shards.scaling
    # About as many observations of each condition, all of those that have fewer.
    chances = np.minimum(points_per_condition(n_conditions) / np.maximum(shards.counts, 1), 1.0)
    some = [
        part.sample(chances[own], options.random_state + shards.first_shard + place)
        for place, (part, own) in enumerate(zip(shards.parts, shards.numbers, strict=True))
    ]
    drawn = gathered_rows(shards.joined(some))
    start = None
    if jax.process_index() == 0:
        rows = drawn._replace(inputs=scaling.inputs(drawn.inputs), outputs=scaling.outputs(drawn.outputs))
        start = start_from(rows, n_conditions, scaling.input_scale, options, on_progress)
    return _of_first_process(start, Start)


def _interrupted(checkpoints: Checkpoints) -> Interrupted | None:
    # The newest run that can be read.
    newest = checkpoints.latest(_SERIES, Interrupted) if jax.process_index() == 0 else None
    kept: Interrupted | None = _of_first_process(None if newest is None else newest[1], Interrupted)
    if kept is None:
        return None
    running = kept.running
    found = (running.state, running.average, begin(kept.start.shared, kept.start.table))
    sizes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) for state in found]
    if not eqx.tree_equal(*sizes) or running.schedule.stage not in range(len(STAGES) + 1):
        warn(f"the checkpoints in {checkpoints.folder} do not fit where they started; the fit begins anew")
        return None
    return kept


def _of_first_process(value: Any | None, kind: Any) -> Any:
    # What the first process has, for all processes.
    if jax.process_count() == 1:
        return value
    payload = of_first(b"" if value is None else to_bytes(value, kind))
    return from_bytes(payload, kind) if payload else None
