"""Observations in an order of their own, so that a fit knows neither the order they came in nor any name."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lvmogp.tables.features import FeatureCoordinates
from lvmogp.tables.observations import Observations
from lvmogp.typing import HostFloat, HostInt


class Order(NamedTuple):
    """Which row, and which condition, comes at each place."""

    rows: HostInt
    conditions: HostInt

    @property
    def places(self) -> HostInt:
        """Where each condition went."""
        return np.argsort(self.conditions)


def canonical_order(observations: Observations, coordinates: FeatureCoordinates | None = None) -> Order:
    """Order rows of each condition by input, then output; conditions by their rows, then by what is known of them.

    Sums round by the order of their terms, and a search for an optimum can come to a fork by rounding. Comparisons of
    values survive another unit of measurement, so the order does too. Conditions that are copies of each other stay in
    the order in which they are.
    """
    columns = [*observations.inputs.T, observations.outputs]
    ranks = _ranks(columns if observations.errors is None else [*columns, observations.errors])
    n_conditions = len(observations.ids)
    described = np.zeros(n_conditions, dtype=int)
    if coordinates is not None:
        described = _ranks([*np.nan_to_num(coordinates.values, nan=np.inf).T])
    by_condition = np.lexsort((ranks, observations.conditions))
    ends = np.cumsum(np.bincount(observations.conditions, minlength=n_conditions))
    # Bytes of whole numbers that begin with the largest digit compare as the lists of numbers do.
    sequences = np.split(ranks[by_condition].astype(">i8"), ends[:-1])
    keys = [(sequence.tobytes(), rank) for sequence, rank in zip(sequences, described, strict=True)]
    conditions = np.asarray(sorted(range(n_conditions), key=keys.__getitem__))
    rows = np.lexsort((ranks, np.argsort(conditions)[observations.conditions]))
    return Order(rows, conditions)


def _ranks(columns: Sequence[HostFloat]) -> HostInt:
    # The place of each row among all different rows, compared column by column.
    order = np.lexsort(columns[::-1])
    is_next = np.zeros(len(order), dtype=bool)
    for column in columns:
        is_next[1:] |= column[order][1:] != column[order][:-1]
    ranks = np.empty(len(order), dtype=int)
    ranks[order] = np.cumsum(is_next)
    return ranks


def in_order(observations: Observations, order: Order) -> Observations:
    """Return the observations with rows and conditions in that order."""
    return observations.some(order.rows)._replace(
        conditions=order.places[observations.conditions][order.rows],
        ids=tuple(observations.ids[number] for number in order.conditions),
    )
