"""Observations drawn at random, each standing for many.

Epoch after epoch goes through all observations in another order, which costs no memory: the place of an observation is
computed from its number by a keyed permutation.
"""

import math
from typing import NamedTuple

import numpy as np

from lvmogp.typing import Array, Float, HostInt, Int

# Two rounds of the network pass for random in the tests, and are the fewest that mix both digits.
_ROUNDS = 2
_BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)


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
    """Number and size of blocks that hold any minibatch; a block costs about as much as eight observations."""

    def number(size: int) -> int:
        return min(batch_size, batch_size // size + min(n_conditions, batch_size))

    size = min(_BLOCK_SIZES, key=lambda size: number(size) * (size + 8))
    return number(size), size


def blocks(conditions: HostInt, n_conditions: int) -> tuple[HostInt, HostInt]:
    """Places of observations in blocks of one condition each, and the condition of each block."""
    batch_size = len(conditions)
    n_blocks, size = block_shape(batch_size, n_conditions)
    order = np.argsort(conditions, kind="stable")
    ordered = conditions[order]
    begins = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    n_before = np.cumsum(np.r_[0, -(-np.diff(np.r_[first, batch_size]) // size)])  # blocks of the groups before
    rank = np.arange(batch_size) - first[group]
    block = n_before[group] + rank // size
    places = np.full((n_blocks, size), batch_size, dtype=np.int32)
    places[block, rank % size] = order
    block_condition = np.zeros(n_blocks, dtype=np.int32)
    block_condition[block] = ordered
    return places, block_condition


def shuffled(places: HostInt, n_rows: int, key: int) -> HostInt:
    """The rows at these places of a random order of ``n_rows`` rows; each key has an order of its own.

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
    """The rows of one minibatch: a function of its number alone, so that a fit can be taken up at any step."""
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs = places // n_rows
    rows = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        now = epochs == epoch
        rows[now] = shuffled(places[now] % n_rows, n_rows, hash_of(seed, int(epoch)))
    return rows


def hash_of(seed: int, number: int) -> int:
    """A seed for each number, from one seed."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
