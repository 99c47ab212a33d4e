"""Observations drawn at random, each standing for many, in minibatches that are made ahead while the device works.

Epoch after epoch goes through all observations in another order, which costs no memory: the place of an observation is
computed from its number by a keyed permutation.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from lvmogp.tables.observations import Observations, joined
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import Array, Float, HostInt, Int

# Two rounds of the network pass for random in the tests, and are the fewest that mix both digits.
_ROUNDS = 2
_BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Threads that read, and minibatches that wait: enough for a disk to keep up with a device, and small in memory.
_WORKERS, _AHEAD = 4, 8


class Minibatch(NamedTuple):
    """Observations in standardised units, arrays of the host until they are handed to devices.

    ``weights`` say how many of all observations each stands for. ``places`` gathers them in blocks of one condition
    each; a place as large as the number of observations is empty.
    """

    inputs: Float[Array, "n Q_X"]
    outputs: Float[Array, " n"]
    weights: Float[Array, " n"]
    places: Int[Array, "B b"]
    block_condition: Int[Array, " B"]


def block_shape(batch_size: int, n_conditions: int) -> tuple[int, int]:
    """Return number and size of blocks that hold any minibatch; a block costs about as much as eight observations."""

    def number(size: int) -> int:
        return min(batch_size, batch_size // size + min(n_conditions, batch_size))

    size = min(_BLOCK_SIZES, key=lambda size: number(size) * (size + 8))
    return number(size), size


def ranks(conditions: HostInt) -> HostInt:
    """Return how many rows of the same condition come before each row."""
    order = np.argsort(conditions, kind="stable")
    ordered = conditions[order]
    found = np.empty(len(conditions), dtype=int)
    found[order] = np.arange(len(conditions)) - np.searchsorted(ordered, ordered)
    return found


def blocks(conditions: HostInt, n_conditions: int) -> tuple[HostInt, HostInt]:
    """Return the places of observations in blocks of one condition each, and the condition of each block."""
    n_blocks, size = block_shape(len(conditions), n_conditions)
    present, number, counts = np.unique(conditions, return_inverse=True, return_counts=True)
    n_own = -(-counts // size)  # blocks of each condition that is there
    rank = ranks(conditions)
    places = np.full((n_blocks, size), len(conditions), dtype=np.int32)
    places[(np.cumsum(n_own) - n_own)[number] + rank // size, rank % size] = np.arange(len(conditions))
    block_condition = np.zeros(n_blocks, dtype=np.int32)
    block_condition[: n_own.sum()] = np.repeat(present, n_own)
    return places, block_condition


def shuffled(places: HostInt, n_rows: int, key: int) -> HostInt:
    """Return the rows at these places of a random order of ``n_rows`` rows; each key has an order of its own.

    A Feistel network: a number is split into two digits, each of which is shifted in turn by a hash of the other. The
    digits span hardly more numbers than there are rows; those beyond the last are permuted again until they are not.
    """
    n_high = np.uint32(math.isqrt(n_rows - 1) + 1)
    n_low = np.uint32(-(-n_rows // int(n_high)))
    keys = np.random.default_rng(key).integers(0, 2**32, (_ROUNDS, 2), dtype=np.uint32)

    def permuted(numbers: HostInt) -> HostInt:
        high, low = (digit.astype(np.uint32) for digit in np.divmod(numbers, int(n_low)))
        for high_key, low_key in keys:
            high = (high + _mixed(low ^ high_key) % n_high) % n_high
            low = (low + _mixed(high ^ low_key) % n_low) % n_low
        return high.astype(np.int64) * int(n_low) + low

    rows = permuted(places)
    while (outside := rows >= n_rows).any():
        rows[outside] = permuted(rows[outside])
    return rows


def _mixed(values: np.ndarray) -> np.ndarray:
    # The finaliser of MurmurHash3: every bit of the result depends on every bit of the value.
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))


def rows_of_step(step: int, batch_size: int, n_rows: int, seed: int) -> HostInt:
    """Return the rows of one minibatch: a function of its number alone, so that a fit can be taken up at any step."""
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs = places // n_rows
    rows = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        now = epochs == epoch
        rows[now] = shuffled(places[now] % n_rows, n_rows, hash_of(seed, int(epoch)))
    return rows


def hash_of(seed: int, number: int) -> int:
    """Return a seed for each number, from one seed."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])


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
    """How this process, with so many devices, makes its part of each minibatch; every shard gives as many rows."""

    shards: Shards
    batch_size: int
    n_devices: int
    dtype: str
    seed: int


def minibatch(feed: Feed, number: int) -> Minibatch:
    """Make a process's part of a minibatch: a function of its number alone."""
    shards, n_devices = feed.shards, feed.n_devices
    per_shard = -(-feed.batch_size // (shards.n_shards * n_devices)) * n_devices  # the same for all devices
    parts, weights = [], []
    for place, part in enumerate(shards.parts, shards.first_shard):
        rows = rows_of_step(number, per_shard, part.n_rows, hash_of(feed.seed, place))
        parts.append(part.some(np.sort(rows)))  # in the order of the file, which reads faster
        weights.append(np.full(per_shard, part.n_rows / per_shard))
    found = shards.joined(parts)
    # Each device has consecutive observations, and places that count from its own first one.
    pieces = [blocks(piece, len(shards.counts)) for piece in np.split(found.conditions, n_devices)]
    places, block_condition = (np.concatenate(each) for each in zip(*pieces, strict=True))
    numbers = (shards.scaling.inputs(found.inputs), shards.scaling.outputs(found.outputs), np.concatenate(weights))
    arrays: Any = (*(each.astype(feed.dtype) for each in numbers), places, block_condition)
    return Minibatch(*arrays)


def ahead(make: Callable[[int], Minibatch], first: int) -> Generator[Minibatch, None, None]:
    """Yield minibatches from the ``first`` on, for ever, some of them in the making while one is used."""
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="minibatch") as workers:
        made = (workers.submit(make, number) for number in itertools.count(first))
        waiting = deque(itertools.islice(made, _AHEAD))
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(next(made))
        finally:
            workers.shutdown(cancel_futures=True)
