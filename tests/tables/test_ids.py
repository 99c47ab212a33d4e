"""Ids of conditions are told apart by one rule, whatever their types and however they come."""

import dataclasses
import datetime
import decimal
import enum

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lvmogp.errors import DataError, UnknownConditionError
from lvmogp.tables.features import read_features
from lvmogp.tables.ids import distinct_ids, listed, numbers_of, read_ids, row_conditions, row_ids, unknown_condition
from lvmogp.tables.observations import ObservationStore
from lvmogp.tables.reading import read_training

DATE, LATER = datetime.date(2021, 3, 4), datetime.datetime(2021, 3, 4, 5, 6, 7, 8)
MIDNIGHT = datetime.datetime(2021, 3, 4)
MIXED = "condition ids mix True/False with numbers, which compare equal; use strings instead"
MISSING = r"a condition id is missing \(None or NaN\); drop those rows or give them an id"


class Colour(enum.StrEnum):
    RED = "red"


class Grade(enum.IntEnum):
    FIRST = 1


# Each id as users may hold it, with the plain value that it stands for.
SIMPLE = [
    *[(value, value) for value in ("1", "a", "", "1٣", "13", 1, 0, -7, 2**70, 1.0, 2.5, -0.0, True, False)],
    *[(value, value) for value in (DATE, MIDNIGHT, LATER, LATER.replace(tzinfo=datetime.UTC))],
    (np.str_("a"), "a"),
    (Colour.RED, "red"),
    *[(kind(1), 1) for kind in (np.int8, np.uint64, Grade)],
    *[(kind(2.5), 2.5) for kind in (np.float16, np.float32, np.float64)],
    (np.bool_(True), True),
    (np.datetime64("2021-03-04"), MIDNIGHT),
    (pd.Timestamp(LATER), LATER),
]
simple = st.sampled_from(SIMPLE)
pairs = st.tuples(simple, simple).map(lambda each: (tuple(part[0] for part in each), tuple(part[1] for part in each)))
one_id = st.one_of(simple, pairs)


def kind(value):
    """What can be equal to what: booleans, numbers, and everything else by its type; of tuples by place."""
    if isinstance(value, tuple):
        return tuple(map(kind, value))
    return bool if isinstance(value, bool) else float if isinstance(value, int | float) else type(value)


def clash(values):
    """Whether True/False stands beside a number, alone or at one place of two tuples."""
    alone = {kind(value) for value in values if not isinstance(value, tuple)}
    tuples = [value for value in values if isinstance(value, tuple)]
    places = zip(*tuples, strict=True) if tuples else ()
    return {bool, float} <= alone or any(clash(place) for place in places)


def of_rows(found):
    """The id of each row."""
    return [found.distinct[number] for number in found.numbers]


@given(ids=st.lists(one_id, min_size=1, max_size=6))
@example(ids=[(True, True), (1, 1)])
@example(ids=[(1, 1), (1.0, 1.0), (Grade.FIRST, 1)])
@example(ids=[(("a", True), ("a", True)), (("a", 1), ("a", 1))])
@settings(deadline=None, max_examples=300, derandomize=True)
def test_every_way_in_tells_ids_apart_by_one_rule(ids):
    raw, plain = [each[0] for each in ids], [each[1] for each in ids]
    ways = [
        lambda: of_rows(row_ids(raw)),
        lambda: of_rows(row_conditions(iter(raw), len(raw))),
        lambda: [found.ids[number] for found in [fitted(raw)] for number in found.conditions],
        lambda: read_ids(raw),
    ]
    if clash(plain):
        for way in [*ways, lambda: distinct_ids(plain)]:
            with pytest.raises(DataError, match=MIXED):
                way()
        return
    for way in ways:
        found = way()
        assert found == plain
        assert list(map(kind, found)) == list(map(kind, plain))
    assert len(row_ids(raw).distinct) == len(set(plain))
    different = [value for place, value in enumerate(raw) if plain[place] not in plain[:place]]
    store = ObservationStore(np.zeros((1, 1)), np.zeros(1), np.zeros(1, int), tuple(different)).as_store()
    assert set(store.ids) == set(plain)
    features = {value: [float(number)] for number, value in enumerate(different)}
    if len(different) > 1:
        assert set(read_features(features, distinct_ids(plain), None).ids) == set(plain)


def fitted(ids):
    """Training data that name these conditions."""
    return read_training(np.arange(float(len(ids)))[:, None], np.arange(float(len(ids))), ids)


def test_features_of_true_are_not_those_of_one():
    with pytest.raises(DataError, match=MIXED):
        read_features({True: [1.0], False: [2.0]}, (0, 1), None)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([30, 4, 100, 4, 2.5], (2.5, 4, 30, 100)),
        (["b", "a10", "a9"], ("a10", "a9", "b")),
        ([(2, "b"), (10, "a"), (2, "a")], ((2, "a"), (2, "b"), (10, "a"))),
        (["1", 1, "True", (1,), DATE, MIDNIGHT], (DATE, MIDNIGHT, 1, "1", "True", (1,))),
        ([True, False, True], (False, True)),
    ],
)
def test_distinct_ids_are_sorted_whatever_their_order(ids, expected):
    assert distinct_ids(ids) == distinct_ids(ids[::-1]) == expected


CONTAINERS = [list, np.array, pd.Series, pd.Index, pd.Categorical, lambda ids: pd.Series(ids, dtype="category"), iter]
COLUMNS = [["b", "a", "b"], [3, 1, 3], [0.5, -1.0, 0.5], [True, False, True], [MIDNIGHT, LATER, MIDNIGHT]]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("ids", COLUMNS, ids=["text", "whole", "float", "bool", "date"])
def test_ids_come_in_any_container(container, ids):
    found = row_conditions(container(ids), 3)
    assert of_rows(found) == ids
    assert found.distinct == tuple(ids[:2])
    assert [type(value) for value in of_rows(found)] == [type(value) for value in ids]
    assert {name: rows.tolist() for name, rows in found.rows().items()} == {ids[0]: [0, 2], ids[1]: [1]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]), [("a", 1), ("b", 2)]),
        (np.array([1.5, 2.5], dtype=np.float16), [1.5, 2.5]),
        (np.array([7, 3], dtype=">i4"), [7, 3]),
        (np.array(["2021-03-04", "2021-03-05"], "M8[D]")[:1], [MIDNIGHT]),
        (pd.Series([1, 2], dtype="Int64"), [1, 2]),
        (np.array(["a", 1], dtype=object), ["a", 1]),
    ],
    ids=str,
)
def test_columns_of_rarer_types(values, expected):
    assert of_rows(row_ids(values)) == expected
    assert [type(value) for value in of_rows(row_ids(values))] == [type(value) for value in expected]


@pytest.mark.parametrize("single", ["a", 3, 2.5, True, DATE, LATER, ("a", 1), np.int64(3), pd.Timestamp(LATER)])
def test_one_id_is_told_from_many(single):
    assert of_rows(row_conditions(single, 2)) == [single, single]
    for many in ([single], pd.Series([single])):
        with pytest.raises(DataError, match="conditions has 1 entries for 2 rows of X"):
            row_conditions(many, 2)


GAPS = [None, np.nan, np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), ("a", None), ("a", ("b", np.nan))]


def test_a_missing_id_fails_in_words():
    columns = [pd.Series(["a", None], dtype="category"), pd.Series([1, None], dtype="Int64")]
    for gap in GAPS:
        columns += [["a", gap], [gap], pd.Series(["a", gap], dtype=object)]
    for ids in columns:
        with pytest.raises(DataError, match=MISSING):
            row_ids(ids)
    with pytest.raises(DataError, match="got MaskedConstant masked"):
        row_ids(np.ma.masked_array([1, 2], [False, True]))


@pytest.mark.parametrize("bad", [b"a", 1j, decimal.Decimal(1), pd.Period("2020"), ["a"], {"a"}, datetime.time(1)])
def test_an_id_of_another_type_fails_in_words(bad):
    text = f"a condition id must be str, int, float, bool, date, datetime, or tuples of these, got {type(bad).__name__}"
    for ids in (["a", bad], [("a", bad)]):
        with pytest.raises(DataError, match=text):
            row_ids(ids)


@pytest.mark.parametrize("bad", [decimal.Decimal(1), {"a", "b"}, {"a": 1, "b": 2}, pd.DataFrame({"a": [1, 2]}), b"ab"])
def test_conditions_without_an_id_for_each_row_fail_in_words(bad):
    matrix = np.array([["a"], ["b"]])
    for conditions, shown in ((bad, type(bad).__name__), (matrix, r"an array of shape \(2, 1\)")):
        with pytest.raises(DataError, match=f"must be one id, or one id per row, got {shown}"):
            row_conditions(conditions, 2)


def test_numbers_of_conditions_and_rows_of_those_that_have_any():
    assert_array_equal(numbers_of(["b", "x", "a"], ("a", "b")), [1, -1, 0])
    assert_array_equal(row_ids(["b", "x", "b"]).numbers_in(("a", "b")), [1, -1, 1])
    assert list(dataclasses.replace(row_ids(list("abc")), numbers=np.array([2, 0, 2])).rows()) == ["a", "c"]
    assert row_ids([]).rows() == {}


def test_an_unknown_condition_is_told_of_the_closest_and_many_are_listed():
    error = unknown_condition("tyre-a", ["tyre-A", "road", 3])
    assert isinstance(error, UnknownConditionError)
    assert str(error) == (
        "condition 'tyre-a' is not known to the model (did you mean 'tyre-A'?); add it with add_condition(name, X, y), "
        'or create the estimator with unseen="prior" to predict it from the prior'
    )
    assert "did you mean" not in str(unknown_condition("x", ["tyre-A", 17]))
    assert "condition 110 is not known to the model (did you mean 109?)" in str(unknown_condition(110, [100, 109]))
    very_long = str(unknown_condition("a" + "x" * 10**6, ["b" + "x" * 10**6, "c"]))
    assert f"condition 'a{'x' * 98} is not known to the model (did you mean 'b{'x' * 98}?)" in very_long
    assert listed(["a", "b", "c"]) == "condition 'a', 'b', 'c'"
    assert listed(["a", "b", "c", "d"]) == "4 conditions ('a', 'b', 'c', …)"
