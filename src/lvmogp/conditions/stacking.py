"""Rows of several conditions as one array, and matrices between such rows as blocks."""

from collections.abc import Sequence

import numpy as np

from lvmogp.typing import HostFloat


def stacked_rows(rows: Sequence[HostFloat]) -> HostFloat:
    """Rows of several conditions as one array (conditions, rows, columns), padded by repeating the last of each."""
    size = 1 << (max(len(points) for points in rows) - 1).bit_length()  # few different shapes
    return np.stack([np.pad(points, ((0, size - len(points)), (0, 0)), mode="edge") for points in rows])


def in_pairs(joint: HostFloat, rows: Sequence[HostFloat]) -> list[list[HostFloat]]:
    """A matrix between stacked rows as blocks, one for each pair of conditions, without what was padded."""
    size = len(joint) // len(rows)
    apart = joint.reshape(len(rows), size, len(rows), size)
    return [[apart[i, : len(first), j, : len(second)] for j, second in enumerate(rows)] for i, first in enumerate(rows)]
