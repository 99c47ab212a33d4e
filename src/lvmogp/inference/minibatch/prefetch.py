"""Minibatches made ahead, while the device works."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from lvmogp.inference.minibatch.minibatches import Minibatch, blocks, hash_of, rows_of_step
from lvmogp.tables.observations import Observations, joined
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import HostInt

# Threads that read, and minibatches that wait: enough for a disk to keep up with a device, and small in memory.
_WORKERS, _AHEAD = 4, 8


class Shards(NamedTuple):
    """The parts of the observations that this process reads, numbered among all ``n_shards`` from ``first_shard`` on.

    ``numbers`` says of each part which condition among all each of its own is; ``counts`` are the observations of each
    condition in all shards, and ``scaling`` is theirs.
    """

    parts: Sequence[Observations]
    numbers: Sequence[HostInt]
    counts: HostInt
    scaling: Scaling
    n_shards: int
    first_shard: int

    def joined(self, some: Sequence[Observations]) -> Observations:
        """Return some rows of each part, one after the other, with the numbers of their conditions among all."""
        return joined(
            [rows._replace(conditions=own[rows.conditions]) for rows, own in zip(some, self.numbers, strict=True)]
        )


class Feed(NamedTuple):
    """How this process makes its part of each minibatch, to which every shard gives as many observations.

    ``n_devices`` counts the devices of this process.
    """

    shards: Shards
    batch_size: int
    n_devices: int
    dtype: str
    seed: int

    @property
    def per_shard(self) -> int:
        """Observations of each shard in a minibatch: its share, rounded up so that all devices have the same."""
        return -(-self.batch_size // (self.shards.n_shards * self.n_devices)) * self.n_devices


def minibatch(feed: Feed, number: int) -> Minibatch:
    """Make a process's part of a minibatch: a function of its number alone."""
    shards, per_shard = feed.shards, feed.per_shard
    parts, weights = [], []
    for place, part in enumerate(shards.parts, shards.first_shard):
        rows = rows_of_step(number, per_shard, part.n_rows, hash_of(feed.seed, place))
        parts.append(part.some(np.sort(rows)))  # in the order of the file, which reads faster
        weights.append(np.full(per_shard, part.n_rows / per_shard))
    found = shards.joined(parts)
    # Each device has consecutive observations, and places that count from its own first one.
    pieces = [blocks(piece, len(shards.counts)) for piece in np.split(found.conditions, feed.n_devices)]
    places, block_condition = (np.concatenate(each) for each in zip(*pieces, strict=True))
    numbers = (shards.scaling.inputs(found.inputs), shards.scaling.outputs(found.outputs), np.concatenate(weights))
    arrays: Any = (*(each.astype(feed.dtype) for each in numbers), places, block_condition)
    return Minibatch(*arrays)


def ahead(make: Callable[[int], Minibatch], first: int) -> Generator[Minibatch, None, None]:
    """Minibatches from the ``first`` on, for ever, some of them in the making while one is used."""
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="minibatch") as workers:
        waiting: deque[Future[Minibatch]] = deque(workers.submit(make, first + place) for place in range(_AHEAD))
        number = first + _AHEAD
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(workers.submit(make, number))
                number += 1
        finally:
            for each in waiting:
                each.cancel()
