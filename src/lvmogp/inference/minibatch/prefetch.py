"""Minibatches made ahead, while the device works."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from lvmogp.inference.minibatch.minibatches import HostMinibatch, blocks, hash_of, rows_of_step
from lvmogp.tables.observations import Observations, joined
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import HostInt

_WORKERS = 4
_AHEAD = 8


class Shards(NamedTuple):
    """The parts of the observations that this process reads, numbered among all ``n_shards`` by ``first_shard``.

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
    """Where this process's part of each minibatch comes from.

    Every shard of the data gives the same number of observations to each minibatch. ``n_devices`` counts the devices of
    this process.
    """

    shards: Shards
    n_devices: int
    batch_size: int
    dtype: str
    seed: int

    @property
    def per_shard(self) -> int:
        """Observations of each shard in a minibatch: its share, rounded up so that all devices have the same."""
        return -(-self.batch_size // (self.shards.n_shards * self.n_devices)) * self.n_devices


def minibatch(feed: Feed, number: int) -> HostMinibatch:
    """A process's part of a minibatch: a function of its number alone."""
    per_shard, shards = feed.per_shard, feed.shards
    some, weights = [], []
    for place, part in enumerate(shards.parts):
        rows = rows_of_step(number, per_shard, part.n_rows, hash_of(feed.seed, shards.first_shard + place))
        some.append(part.some(np.sort(rows)))  # in the order of the file, which reads faster
        weights.append(np.full(per_shard, part.n_rows / per_shard))
    found = shards.joined(some)
    places, block_condition = _blocks_of_devices(found.conditions, feed)
    return HostMinibatch(
        inputs=shards.scaling.inputs(found.inputs).astype(feed.dtype),
        outputs=shards.scaling.outputs(found.outputs).astype(feed.dtype),
        weights=np.concatenate(weights).astype(feed.dtype),
        places=places,
        block_condition=block_condition,
    )


def _blocks_of_devices(conditions: HostInt, feed: Feed) -> tuple[HostInt, HostInt]:
    # Each device has consecutive observations, and places that count from its own first one.
    pieces = [blocks(piece, len(feed.shards.counts)) for piece in np.split(conditions, feed.n_devices)]
    places, block_condition = zip(*pieces, strict=True)
    return np.concatenate(places), np.concatenate(block_condition)


def ahead(make: Callable[[int], HostMinibatch], first: int) -> Generator[HostMinibatch, None, None]:
    """Minibatches from the ``first`` on, for ever, some of them in the making while one is used."""
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="minibatch") as workers:
        waiting: deque[Future[HostMinibatch]] = deque(workers.submit(make, first + place) for place in range(_AHEAD))
        number = first + _AHEAD
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(workers.submit(make, number))
                number += 1
        finally:
            for each in waiting:
                each.cancel()
