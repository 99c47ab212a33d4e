"""Features of conditions are read from tables of all forms, made coordinates, and given back."""

import datetime

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lvmogp.errors import DataError, LVMOGPWarning
from lvmogp.tables.features import read_feature_row, read_features, read_later_features

nan = np.nan
ROWS = [[1.0, "x"], [2.5, "y"], [4.0, "x"]]
NAMES = tuple("abc")
FRAME = pd.DataFrame(ROWS, columns=["size", "kind"], index=list(NAMES))


@pytest.mark.parametrize(
    "table",
    [
        FRAME,
        FRAME[::-1],
        FRAME.reset_index(names="tyre"),
        {name: {"size": size, "kind": kind} for name, (size, kind) in zip(NAMES, ROWS, strict=True)},
        dict(zip(NAMES, ROWS, strict=True)),
        ROWS,
        np.array(ROWS, dtype=object),
    ],
)
def test_tables_of_all_forms_say_the_same(table):
    found = read_features(table, NAMES, "tyre")
    expected = np.array([[1.0, 1, 0], [2.5, 0, 1], [4.0, 1, 0]])
    assert_array_equal(found.values, expected)
    standardised = (expected - expected.mean(0)) / expected.std(0)
    assert_allclose(found.standardised(found.values), standardised)
    assert [(each.kind, each.levels) for each in found.features] == [("number", ()), ("category", ("x", "y"))]
    assert (found.ids, found.n_coordinates) == (NAMES, 3)
    known = found.coordinates(2)
    assert_allclose(known.values, standardised[:2])
    # A standard deviation of a number, the whole way between two levels; √2 since there are two features.
    assert_allclose(known.lengthscales, np.sqrt(2) / [1, expected[:, 1].std(), expected[:, 2].std()])
    assert_allclose(known.scale, expected.std(0))


def test_a_series_and_plain_values_are_one_feature():
    series = pd.Series([1.0, 2.0, 4.0], index=list(NAMES))
    for table, name in [(series, "feature"), (series.rename("size"), "size"), (series.tolist(), "feature 1")]:
        found = read_features(table, NAMES, None)
        assert [feature.name for feature in found.features] == [name]
        assert_array_equal(found.values, [[1], [2], [4]])


def test_missing_values_dates_and_rows_for_later():
    table = pd.DataFrame(
        {
            "made": [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 11), datetime.date(2021, 1, 1)],
            "wet": [True, False, None, True],
            "kind": pd.Categorical([3, 7, None, 9]),
        },
        index=["a", "b", "c", "later"],
    )
    with pytest.warns(LVMOGPWarning, match="no trained condition has the level '9' of the feature 'kind', so nothing"):
        found = read_features(table, NAMES, None)
    first = 18262.0
    expected = np.array(
        [[first, 0, 1, 1, 0], [nan, 1, 0, 0, 1], [first + 10, *[nan] * 4], [first + 366, 0, 1, nan, nan]]
    )
    assert_array_equal(found.values, expected)
    assert_allclose(found.mean, [first + 5, 0.5, 0.5, 0.5, 0.5])  # of the trained ones
    assert found.decoded(found.values) == {
        "made": [pd.Timestamp("2020-01-01"), None, pd.Timestamp("2020-01-11"), pd.Timestamp("2021-01-01")],
        "wet": [True, False, None, True],
        "kind": [3, 7, None, None],  # a level that was never trained counts as missing
    }
    assert_array_equal(found.row("later"), expected[3])
    assert found.row("never") is None
    assert found.coordinate_names == ("made", "wet = False", "wet = True", "kind = 3", "kind = 7")
    moved = found.with_trained({"a": found.row("a"), "later": found.row("later"), "new": None})
    assert moved.ids == ("a", "later", "new", "b", "c")
    assert_array_equal(moved.values, [*expected[[0, 3]], [nan] * 5, *expected[[1, 2]]])


def test_features_of_new_conditions_are_read_by_name_or_in_order():
    known = read_features(FRAME.rename(columns={"size": 0}), NAMES, None)
    later = pd.DataFrame([[3.0, "y"], [None, "x"]], columns=[0, "kind"], index=["d", "e"])
    for table in (later, {"d": {0: 3.0, "kind": "y"}, "e": {"kind": "x"}}, {"d": [3.0, "y"], "e": [None, "x"]}):
        found = read_later_features(known, table, None)
        assert_array_equal(found["d"], [3.0, 0, 1])
        assert_array_equal(found["e"], [nan, 1, 0])
    for row in (later.loc["d"], later.loc[["d"]], {"0": 3.0, "kind": "y"}, [3.0, "y"], np.array([3.0, "y"], object)):
        assert_array_equal(read_feature_row(known, row), [3.0, 0, 1])
    one = read_features({"a": ["x"], "b": ["y"]}, ("a", "b"), None)
    assert_array_equal(read_feature_row(one, "y"), [0, 1])


def test_levels_that_are_whole_numbers_are_known_beside_gaps():
    known = read_features(pd.DataFrame({"kind": pd.Categorical([3, 7, 3])}, index=NAMES), NAMES, None)
    later = pd.DataFrame({"kind": [7, None]}, index=["d", "e"])  # which pandas makes floats
    found = read_later_features(known, later, None)
    assert_array_equal([found["d"], found["e"]], [[0, 1], [nan, nan]])
    with pytest.raises(DataError, match="no trained condition has the level '7.5'"):
        read_feature_row(known, [7.5])
    with pytest.raises(DataError, match="got 2 values"):
        read_later_features(known, {"d": [3, 7]}, None)


def test_a_feature_that_is_always_the_same_is_told_of():
    with pytest.warns(LVMOGPWarning, match="'feature 1' is the same for all trained conditions") as caught:
        read_features([[5, 1], [5, 2], [None, 1]], NAMES, None)
    assert len(caught) == 1
    read_features([[5, "x"]], ("a",), None)  # of one condition there is nothing else to say


WRONG_TABLES = {
    "has no row for condition 'b'; every trained condition needs one": {"a": [1], "c": [2]},
    "has 2 rows for 3 conditions": [[1], [2]],
    "more than one row for condition 'a'": pd.DataFrame({"v": [1, 2, 3, 4]}, index=["a", "a", "b", "c"]),
    "missing for all trained conditions": {"a": [None], "b": [None], "c": [None], "d": [1]},
    r"must hold numbers, dates, or categories .* throughout, got 1, 'x', 2": {"a": [1], "b": ["x"], "c": [2]},
    "must hold numbers, dates, or categories": {"a": [1j], "b": [1j], "c": [2j]},
    "different lengths": {"a": [1], "b": [1, 2], "c": [2]},
    "has no columns": pd.DataFrame(index=list("abc")),
    "is infinite for a condition": {"a": [1], "b": [np.inf], "c": [2]},
    "or beyond 1e\\+140; pass None": {"a": [1], "b": [1e200], "c": [2]},
    "is infinite for a condition, or beyond": {"a": [1], "b": [10**400], "c": [2]},
    "two columns of condition_features": pd.DataFrame([[1, 2]] * 3, columns=["v", "v"], index=list("abc")),
    "or an array with a row for each condition, got str": "abc",
    "or an array with a row for each condition, got set": {1.0, 2.0, 3.0},
    "or an array with a row for each condition, got float": 3.0,
}


@pytest.mark.parametrize("words", WRONG_TABLES)
def test_tables_that_cannot_be_are_refused_in_words(words):
    with pytest.raises(DataError, match=words):
        read_features(WRONG_TABLES[words], NAMES, None)


WRONG_ROWS = {
    "knows no feature 'colour'": {"colour": "red"},
    "no trained condition has the level 'z'": {"kind": "z"},
    "holds numbers, got 'tall'": {"size": "tall"},
    "has the 2 features": [1.0],
    "one row, got a table of 2 rows": pd.DataFrame({"size": [1.0, 2.0]}),
}


@pytest.mark.parametrize("words", WRONG_ROWS)
def test_rows_of_new_conditions_are_checked(words):
    known = read_features(FRAME, NAMES, None)
    with pytest.raises(DataError, match=words):
        read_feature_row(known, WRONG_ROWS[words])
    with pytest.raises(DataError, match="must say which condition each row belongs to"):
        read_later_features(known, [[1.0, "x"]], None)
