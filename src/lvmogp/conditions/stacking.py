"""Rows of several conditions as one array, and matrices between such rows as blocks."""

from collections.abc import Sequence

from lvmogp.typing import HostFloat


def in_pairs(joint: HostFloat, rows: Sequence[HostFloat]) -> list[list[HostFloat]]:
    """A matrix between stacked rows as blocks, one for each pair of conditions, without what was padded."""
    size = len(joint) // len(rows)
    apart = joint.reshape(len(rows), size, len(rows), size)
    return [[apart[i, : len(first), j, : len(second)] for j, second in enumerate(rows)] for i, first in enumerate(rows)]
