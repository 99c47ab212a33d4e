"""Observations in parts are those of the whole, in memory as in files."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import lvmogp.tables.observations as observations_module
from lvmogp.errors import DataError
from lvmogp.tables.observations import Observations, ObservationStore, canonical_order, in_order, joined
from lvmogp.tables.reading import read_training
from lvmogp.tables.scaling import TRANSFORMS, scaling_from, scaling_of

N = 50


@pytest.fixture(autouse=True)
def _few_rows_at_once(monkeypatch):
    monkeypatch.setattr(observations_module, "_ROWS_AT_ONCE", 7)


@pytest.fixture(params=["memory", "file"])
def seen(request, rng, tmp_path):
    columns = rng.normal(3, 2, (N, 2)), np.exp(rng.normal(size=N)), rng.permutation(np.repeat([0, 1, 3], [30, 5, 15]))
    if request.param == "file":
        for name, values in zip("xyc", columns, strict=True):
            np.save(tmp_path / f"{name}.npy", values)
        columns = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xyc"]
    return Observations(*columns, tuple("abcd"), errors=np.arange(float(N)))


def test_chunks_and_some_rows_are_those_of_the_arrays(seen):
    rows = np.array([4, 2, 40])
    some = seen.some(rows)
    for found, whole in zip((*some[:3], some.errors), (*seen[:3], seen.errors), strict=True):
        assert type(found) is np.ndarray
        assert_array_equal(found, whole[rows])
    assert (some.ids, some.n_rows) == (seen.ids, 3)
    assert [chunk.n_rows for chunk in seen.chunks()] == [7] * 7 + [1]
    assert_array_equal(joined(list(seen.chunks())).inputs, seen.inputs)
    assert_array_equal(joined(list(seen.chunks())).errors, seen.errors)
    assert joined(list(seen._replace(errors=None).chunks())).errors is None
    assert_array_equal(seen.counts, [30, 5, 0, 15])


@pytest.mark.parametrize("transform", TRANSFORMS.values())
def test_moments_in_one_pass_are_those_of_the_whole(seen, transform):
    found = scaling_from(seen.moments(transform), transform=transform)
    at_once = scaling_of(seen.inputs, seen.outputs, transform=transform)
    assert_allclose(np.hstack(found[:4]), np.hstack(at_once[:4]), rtol=1e-12)
    assert found.transform is transform


def test_logarithms_are_taken_in_each_part(seen):
    columns = (seen.n_columns - 1,)
    positive = seen._replace(inputs=np.abs(seen.inputs) + 0.1)
    found = scaling_from(positive.moments(log_columns=columns), log_columns=columns)
    at_once = scaling_of(positive.inputs, positive.outputs, log_columns=columns)
    assert_allclose(np.hstack(found[:4]), np.hstack(at_once[:4]), rtol=1e-12)
    assert found.log_columns == columns
    with pytest.raises(DataError, match="of X must be positive, since its logarithm is modelled"):
        positive._replace(inputs=-positive.inputs).moments(log_columns=columns)


def test_moments_in_single_precision_are_added_up_in_double():
    outputs = np.array([1e4, 1e4 + 1, 1e4 + 2], np.float32)
    moments = Observations(outputs[:, None], outputs, np.zeros(3, int)).moments()
    assert_array_equal(moments.mean, [10001, 10001])
    assert_array_equal(moments.squares, [2, 2])
    assert_array_equal(moments.largest, [10002] * 3)


@pytest.mark.parametrize("place", ["inputs", "outputs"])
def test_values_that_are_not_finite_or_none_at_all_fail_in_words(seen, place):
    bad = np.array(getattr(seen, place))
    bad[-1] = np.nan
    with pytest.raises(DataError, match="inputs or outputs hold NaN or infinite values; leave those rows out of the"):
        seen._replace(**{place: bad}).moments()
    with pytest.raises(DataError, match="there are no observations; at least one is needed"):
        seen.some(slice(0, 0)).moments()


def test_a_sample_takes_each_row_with_the_chance_of_its_condition(rng):
    conditions = np.repeat([0, 1, 2], [5, 2000, 40])
    seen = Observations(rng.normal(size=(2045, 1)), np.arange(2045.0), conditions, (0, 1, 2))
    found = seen.sample(np.array([1.0, 0.02, 0.0]), seed=0)
    counts = np.bincount(found.conditions, minlength=3)
    assert (counts[0], counts[2]) == (5, 0)
    assert 15 < counts[1] < 75
    assert_array_equal(found.conditions, conditions[found.outputs.astype(int)])
    assert_array_equal(found.outputs, seen.sample(np.array([1.0, 0.02, 0.0]), seed=0).outputs)
    assert set(found.outputs) != set(seen.sample(np.array([1.0, 0.02, 0.0]), seed=1).outputs)


GOOD = ObservationStore(np.zeros((3, 1)), np.zeros(3), np.array([0, 2, 0]))
WRONG = {
    r"inputs of shape .*, outputs .* of shape .*, got \(3,\), \(3,\) and \(3,\)": GOOD._replace(inputs=np.zeros(3)),
    r"same number of rows, at least one, got \(3, 1\), \(2,\) and \(3,\)": GOOD._replace(outputs=np.zeros(2)),
    r"same number of rows, at least one, got \(0, 1\), \(0,\) and \(0,\)": GOOD.some(slice(0, 0)),
    "whole numbers that count ids, got float64": GOOD._replace(conditions=np.zeros(3)),
    "between 0 and 0, the last of its ids; they reach from 0 to 2": GOOD._replace(ids=("a",)),
    "the last of its ids; they reach from -1 to 0": GOOD._replace(conditions=np.array([0, -1, 0]), ids=("a", "b")),
    "two ids of an ObservationStore are the same": GOOD._replace(ids=("a", "b", "a")),
    "mix True/False with numbers": GOOD._replace(ids=(1, True, 3)),
    "which cannot take errors": GOOD._replace(errors=np.ones(3)),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_a_store_needs_is_said(words):
    with pytest.raises(DataError, match=words):
        WRONG[words].as_store()


def test_a_store_has_plain_ids_or_numbers_and_is_streamed():
    assert GOOD.as_store().ids == GOOD._replace(ids=None).as_store().ids == (0, 1, 2)
    named = GOOD._replace(ids=np.array(["a", "b", "c"]), is_grid=True).as_store()
    assert (named.ids, named.is_grid, named.is_streamed) == (("a", "b", "c"), False, True)
    assert type(named.ids[0]) is str
    assert not GOOD.is_streamed


def test_a_grid_is_complete_if_it_came_as_one_without_gaps():
    X, Y = np.arange(6.0).reshape(3, 2), np.arange(12.0).reshape(3, 4)
    assert read_training(X, Y, None).is_complete_grid
    assert read_training(X, Y, None, y_std=np.ones_like(Y)).is_complete_grid
    with_gap, with_even_gaps, as_many = Y.copy(), Y.copy(), Y.copy()
    with_gap[1, 2] = np.nan
    with_even_gaps[[0, 1, 2, 0], range(4)] = np.nan  # as many left of each condition, but not the same
    as_many[[0, 1, 0, 1], [0, 0, 1, 2]] = np.nan  # a multiple of the conditions in all
    for outputs in (with_gap, with_even_gaps, as_many):
        assert not read_training(X, outputs, None).is_complete_grid
    assert not read_training(X[:2], [1.0, 2.0], ["a", "b"]).is_complete_grid


# An order of their own, which knows neither the order of rows nor the names of conditions


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
    assert_array_equal(found.conditions, np.repeat(np.arange(6), [len(lists[name]) for name in found.ids]))


@pytest.mark.parametrize("known", [[3.0, 1.0], [1.0, np.nan], [1.0, 2.0]])
def test_features_tell_copies_apart(known):
    values = np.zeros((6, 1))
    values[1:3, 0] = known
    order = canonical_order(uneven(np.random.default_rng(0)), values)
    assert (order.places[1] < order.places[2]) == (known != [3.0, 1.0])


def test_conditions_without_rows_come_first():
    seen = uneven(np.random.default_rng(0))._replace(ids=tuple("abcdefg"))
    assert canonical_order(seen).conditions[0] == 6
