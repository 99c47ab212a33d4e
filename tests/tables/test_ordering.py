"""Observations have an order of their own, which knows neither the order of rows nor the names of conditions."""

import numpy as np
import pytest

from lvmogp.tables.features import FeatureCoordinates
from lvmogp.tables.observations import Observations, canonical_order, in_order


def uneven(rng: np.random.Generator) -> Observations:
    """Six conditions, two of them copies, with inputs and outputs that are the same here and there."""
    conditions = np.repeat(np.arange(6), (1, 4, 4, 2, 1, 6))
    inputs = rng.integers(0, 3, (len(conditions), 2)).astype(float)
    outputs = rng.integers(0, 2, len(conditions)).astype(float)
    inputs[5:9], outputs[5:9] = inputs[1:5], outputs[1:5]
    return Observations(inputs, outputs, conditions, tuple("abcdef"))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_errors", [False, True])
def test_order_is_that_of_sorted_lists(seed, with_errors):
    rng = np.random.default_rng(seed)
    seen = uneven(rng)
    if with_errors:
        seen = seen._replace(errors=rng.integers(1, 3, seen.n_rows).astype(float))

    def listed(observations):
        columns = [observations.inputs, observations.outputs] + ([observations.errors] if with_errors else [])
        return [tuple(map(float, row)) for row in np.column_stack(columns)]

    rows = listed(seen)
    lists = {
        name: sorted(rows[place] for place in np.flatnonzero(seen.conditions == number))
        for number, name in enumerate(seen.ids)
    }
    found = in_order(seen, canonical_order(seen))
    assert found.ids == tuple(sorted(seen.ids, key=lists.__getitem__))
    assert listed(found) == [row for name in found.ids for row in lists[name]]
    np.testing.assert_array_equal(found.conditions, np.repeat(np.arange(6), [len(lists[name]) for name in found.ids]))


@pytest.mark.parametrize("known", [[3.0, 1.0], [1.0, np.nan], [1.0, 2.0]])
def test_features_tell_copies_apart(known):
    values = np.zeros((6, 1))
    values[1:3, 0] = known
    order = canonical_order(uneven(np.random.default_rng(0)), FeatureCoordinates(values, np.ones(1), np.ones(1)))
    assert (order.places[1] < order.places[2]) == (known != [3.0, 1.0])


def test_conditions_without_rows_come_first():
    seen = uneven(np.random.default_rng(0))._replace(ids=tuple("abcdefg"))
    assert canonical_order(seen).conditions[0] == 6
