"""Few shapes: rows, conditions and particles are padded to few sizes, so that similar data share compiled programs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lvmogp.typing import HostFloat, HostInt

_BLOCK_SIZES = (4, 8, 16, 32, 64, 128, 256)


def rounded_up(count: int) -> int:
    """Round up to three significant binary digits: at most a quarter of the places is padding."""
    step = 1 << max(count.bit_length() - 3, 0)
    return -(-count // step) * step


def doubled(count: int, least: int = 1) -> int:
    """Round up to a power of two, at least ``least``."""
    return max(1 << max(count - 1, 0).bit_length(), least)


def repeated(places: HostInt, size: int | None = None) -> HostInt:
    """Repeat places until there are ``size`` of them, by default :func:`rounded_up`."""
    return np.resize(places, rounded_up(len(places)) if size is None else size)


def with_last_repeated(rows: HostFloat, size: int | None = None) -> HostFloat:
    """Rows followed by copies of the last one, ``size`` in all, by default :func:`rounded_up`."""
    more = (rounded_up(len(rows)) if size is None else size) - len(rows)
    return np.pad(rows, ((0, more), *[(0, 0)] * (rows.ndim - 1)), mode="edge")


def with_zeros(rows: HostFloat, size: int) -> HostFloat:
    """Rows followed by zeros, ``size`` in all."""
    return np.pad(rows, ((0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)))


def in_blocks(rows: HostFloat, most: int) -> HostFloat:
    """Rows as (B, b, columns) with b at most ``most``, copies of the last row at the end."""
    size = min(most, doubled(len(rows)))
    n_blocks = rounded_up(-(-len(rows) // size))
    return with_last_repeated(rows, n_blocks * size).reshape(n_blocks, size, *rows.shape[1:])


def stacked_rows(rows: Sequence[HostFloat]) -> HostFloat:
    """Rows of several conditions as one array (conditions, rows, columns), the last of each repeated."""
    size = doubled(max(len(points) for points in rows))
    return np.stack([with_last_repeated(points, size) for points in rows])


class BlockLayout(NamedTuple):
    """Where each row goes when rows are gathered in blocks of one condition each."""

    row: HostInt
    present: HostFloat
    block_condition: HostInt


def block_layout(conditions: HostInt, n_conditions: int, *, block_cost: int = 8) -> BlockLayout:
    """Assign rows to blocks; ``row`` is (B, b) with row 0 standing in where ``present`` is 0.

    ``block_cost`` is what a block costs beside its places, in places.
    """
    counts = np.bincount(conditions, minlength=n_conditions)

    def cost(size: int) -> int:  # padded places and blocks cost as much as others
        return rounded_up(int((-(-counts // size)).sum())) * (size + block_cost)

    size = min(_BLOCK_SIZES, key=cost)
    blocks_per_condition = -(-counts // size)
    used = int(blocks_per_condition.sum())
    n_blocks = rounded_up(max(used, 1))
    # Rows in order of condition; each takes the next free place of its condition's run of blocks.
    order = np.argsort(conditions.astype(np.uint16) if n_conditions <= 2**16 else conditions, kind="stable")
    sorted_conditions = conditions[order]
    rank = np.arange(len(order)) - (np.cumsum(counts) - counts)[sorted_conditions]
    first_block = np.cumsum(blocks_per_condition) - blocks_per_condition
    place = first_block[sorted_conditions] * size + rank
    row, present = np.zeros((n_blocks, size), dtype=int), np.zeros((n_blocks, size))
    row.reshape(-1)[place] = order
    present.reshape(-1)[place] = 1.0
    block_condition = np.zeros(n_blocks, dtype=int)
    block_condition[:used] = np.repeat(np.arange(n_conditions), blocks_per_condition)
    return BlockLayout(row, present, block_condition)
