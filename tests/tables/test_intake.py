"""What users hand in is read as they mean it, or refused in words."""

import datetime
import decimal
import enum
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal

from lvmogp import LVMOGPRegressor
from lvmogp.errors import DataError, LVMOGPWarning, UnknownConditionError
from lvmogp.inference.options import Options, is_stochastic
from lvmogp.model.layouts import GridData, LongData, grid_as_long, standardised
from lvmogp.tables.ids import distinct_ids, is_single_id, numbers_of, read_ids, row_conditions, unknown_condition
from lvmogp.tables.observations import Observations
from lvmogp.tables.reading import read_inputs, read_outputs, read_training
from lvmogp.tables.scaling import scaling_of

nan = np.nan
DATE, LATER = datetime.date(2021, 3, 4), datetime.datetime(2021, 3, 4, 5, 6, 7, 8)


def as_triples(observations):
    """Observations as a sorted list of (id, inputs, output), the same for every form and order."""
    rows = zip(observations.conditions, observations.inputs, observations.outputs, strict=True)
    return sorted((str(observations.ids[number]), tuple(x), float(y)) for number, x, y in rows)


# The three forms


def test_long_form_numbers_the_conditions_in_sorted_order():
    read = read_training([[1.0], [2.0], [3.0]], [10.0, 20.0, 30.0], ["b", "a", "b"])
    assert read.ids == ("a", "b")
    assert_array_equal(read.conditions, [1, 0, 1])
    assert_array_equal(read.inputs, [[1.0], [2.0], [3.0]])
    assert_array_equal(read.outputs, [10.0, 20.0, 30.0])
    assert not read.is_grid
    assert read.columns is None


def test_grid_form_gives_every_observed_cell_once():
    read = read_training([[1.0], [2.0]], [[10.0, nan, 30.0], [40.0, 50.0, nan]], None)
    assert read.ids == (0, 1, 2)
    assert read.is_grid
    assert as_triples(read) == [("0", (1.0,), 10.0), ("0", (2.0,), 40.0), ("1", (2.0,), 50.0), ("2", (1.0,), 30.0)]


def test_missing_cells_of_a_grid_need_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_training([[1.0], [2.0]], [[1.0, nan], [2.0, 3.0]], None)
    assert_array_equal(np.sort(read.outputs), [1.0, 2.0, 3.0])


def test_a_condition_never_observed_keeps_its_place():
    read = read_training([[1.0], [2.0]], [[1.0, nan, 2.0], [3.0, nan, 4.0]], ["a", "b", "c"])
    assert read.ids == ("a", "b", "c")
    assert_array_equal(np.bincount(read.conditions, minlength=3), [2, 0, 2])


def test_columns_of_a_frame_name_the_conditions_of_a_grid_in_their_own_order():
    y = pd.DataFrame({"z": [1.0, 2.0], "a": [3.0, 4.0]})
    read = read_training([[1.0], [2.0]], y, None)
    assert read.ids == ("z", "a")
    assert as_triples(read) == [("a", (1.0,), 3.0), ("a", (2.0,), 4.0), ("z", (1.0,), 1.0), ("z", (2.0,), 2.0)]


def test_conditions_name_the_columns_of_a_grid():
    read = read_training([[1.0], [2.0]], [[1.0, 2.0], [3.0, 4.0]], [7, "x"])
    assert as_triples(read) == [("7", (1.0,), 1.0), ("7", (2.0,), 3.0), ("x", (1.0,), 2.0), ("x", (2.0,), 4.0)]


def test_a_condition_column_is_taken_out_of_the_inputs():
    frame = pd.DataFrame({"speed": [1.0, 2.0], "tyre": ["wet", "dry"], "load": [5, 6]})
    read = read_training(frame, [1.0, 2.0], None, condition="tyre")
    assert read.columns == ("speed", "load")
    assert read.ids == ("dry", "wet")
    assert as_triples(read) == [("dry", (2.0, 6.0), 2.0), ("wet", (1.0, 5.0), 1.0)]


def test_the_three_forms_describe_the_same_observations():
    y = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    grid = read_training([[0.5], [1.5]], y, ["a", "b", "c"])
    x, ids = np.tile([[0.5], [1.5]], (3, 1)), np.repeat(["a", "b", "c"], 2)
    long = read_training(x, y.T.ravel(), ids)
    frame = read_training(pd.DataFrame({"x": x[:, 0], "c": ids}), y.T.ravel(), None, condition="c")
    assert as_triples(grid) == as_triples(long) == as_triples(frame)


def test_without_conditions_all_rows_belong_to_one():
    read = read_training([[1.0], [2.0]], [3.0, 4.0], None)
    assert read.ids == (0,)
    assert_array_equal(read.conditions, [0, 0])


def test_one_id_serves_all_rows():
    assert read_training([[1.0], [2.0]], [3.0, 4.0], "a").ids == ("a",)


@pytest.mark.parametrize("y", [[[3.0], [4.0]], pd.DataFrame({"y": [3.0, 4.0]})])
def test_a_single_column_of_outputs_is_long_form_where_rows_name_their_condition(y):
    read = read_training([[1.0], [2.0]], y, ["a", "b"])
    assert as_triples(read) == [("a", (1.0,), 3.0), ("b", (2.0,), 4.0)]


def test_a_single_column_of_a_frame_is_a_grid_of_one_named_condition():
    read = read_training([[1.0], [2.0]], pd.DataFrame({"wet": [3.0, 4.0]}), None)
    assert read.ids == ("wet",)
    assert read.is_grid


def test_an_iterator_of_ids_will_do_beside_a_frame_of_one_column():
    read = read_training([[1.0], [2.0]], pd.DataFrame({"y": [3.0, 4.0]}), iter(["a", "b"]))
    assert read.ids == ("a", "b")


# Ids

IDS = {
    "str": ["tyre-B", "", "Ünïcode ✓"],
    "int": [30, -7, 2**70],
    "float": [2.5, -1.0, 1e300],
    "bool": [True, False],
    "date": [datetime.date(2024, 2, 29), DATE],
    "datetime": [LATER, datetime.datetime(1999, 1, 1, tzinfo=datetime.UTC)],
    "tuple": [("b", 2), ("a", 10), ("a", ("nested", 1.5, DATE))],
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_ids_of_every_type_come_back_as_they_are(ids):
    read = read_training(np.arange(float(len(ids)))[:, None], np.arange(float(len(ids))), ids)
    assert set(read.ids) == set(ids)
    assert [read.ids[number] for number in read.conditions] == ids
    assert [type(read.ids[number]) for number in read.conditions] == [type(value) for value in ids]


def test_ids_of_all_types_may_stand_side_by_side():
    mixed = ["a", 3, 2.5, DATE, LATER, ("a", 1)]
    assert distinct_ids(mixed) == distinct_ids(mixed[::-1])
    assert set(distinct_ids(mixed)) == set(mixed)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([30, 4, 100, 4], (4, 30, 100)), (["b", "a10", "a9"], ("a10", "a9", "b")), ([(2, "b"), (10, "a"), (2, "a")],) * 2],
)
def test_distinct_ids_are_sorted_whatever_their_order(ids, expected):
    assert distinct_ids(ids) == tuple(sorted(set(expected)))
    assert distinct_ids(ids[::-1]) == tuple(sorted(set(expected)))


PLAIN = [
    (np.str_("a"), "a", str),
    (np.int32(7), 7, int),
    (np.uint8(7), 7, int),
    (np.float64(0.5), 0.5, float),
    (np.float32(0.5), 0.5, float),
    (np.bool_(True), True, bool),
    (np.datetime64("2021-03-04"), datetime.datetime(2021, 3, 4), datetime.datetime),
    (np.datetime64("2021-03-04T05:06:07.000008"), LATER, datetime.datetime),
    (pd.Timestamp(LATER), LATER, datetime.datetime),
    ((np.int64(1), np.str_("a")), (1, "a"), tuple),
]


@pytest.mark.parametrize(("given", "plain", "kind"), PLAIN, ids=[repr(case[0]) for case in PLAIN])
def test_numpy_and_pandas_scalars_become_plain(given, plain, kind):
    (read,) = read_ids([given])
    assert read == plain
    assert type(read) is kind
    assert row_conditions([given, given], 2).listed == row_conditions(given, 2).listed == [plain, plain]


def test_parts_of_tuples_become_plain():
    ((number, name),) = read_ids([(np.int64(1), np.str_("a"))])
    assert (type(number), type(name)) == (int, str)


@pytest.mark.parametrize(
    "container",
    [list, np.array, pd.Series, pd.Index, pd.Categorical, lambda ids: pd.Series(ids, dtype="category"), iter],
    ids=["list", "array", "series", "index", "categorical", "categorical series", "iterator"],
)
def test_ids_come_in_any_container(container):
    assert row_conditions(container(["b", "a", "b"]), 3).listed == ["b", "a", "b"]


def test_an_index_of_several_levels_gives_tuples():
    index = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])
    assert row_conditions(index, 2).listed == [("a", 1), ("b", 2)]


def test_a_condition_column_may_be_categorical_or_of_dates():
    stamps = pd.to_datetime(["2024-01-02", "2023-01-02"])
    frame = pd.DataFrame({"x": [1.0, 2.0], "kind": pd.Categorical(["v", "u"]), "day": stamps})
    assert read_inputs(frame[["x", "kind"]], condition="kind").row_ids.listed == ["v", "u"]
    days = read_inputs(frame[["x", "day"]], condition="day").row_ids.listed
    assert days == [datetime.datetime(2024, 1, 2), datetime.datetime(2023, 1, 2)]


def test_categories_without_rows_are_no_conditions():
    ids = pd.Categorical(["b", "a"], categories=["a", "b", "unused"])
    assert read_training([[1.0], [2.0]], [1.0, 2.0], ids).ids == ("a", "b")


@pytest.mark.parametrize("single", ["a", 3, 2.5, True, DATE, LATER, ("a", 1), np.int64(3), pd.Timestamp(LATER)])
def test_one_id_is_told_from_many(single):
    assert is_single_id(single)
    assert not is_single_id([single])
    assert not is_single_id(pd.Series([single]))


@pytest.mark.parametrize("missing", [None, nan, np.float32("nan"), pd.NA, ("a", None), ("a", nan)])
def test_a_missing_id_fails_in_words(missing):
    with pytest.raises(DataError, match=r"a condition id is missing \(None or NaN\); drop those rows or give"):
        row_conditions(["a", missing], 2)


@pytest.mark.parametrize("missing", [pd.NaT, np.datetime64("NaT")])
def test_a_missing_date_fails_in_words(missing):
    with pytest.raises(DataError, match="a condition id is missing"):
        row_conditions([DATE, missing], 2)


@pytest.mark.parametrize("bad", [b"a", 1j, decimal.Decimal(1), pd.Period("2020"), ["a"], {"a"}, datetime.time(1)])
def test_an_id_of_another_type_fails_in_words(bad):
    text = f"a condition id must be str, int, float, bool, date, datetime, or tuples of these, got {type(bad).__name__}"
    with pytest.raises(DataError, match=text):
        read_training([[1.0], [2.0]], [1.0, 2.0], ["a", bad])
    with pytest.raises(DataError, match=text):
        read_ids([("a", bad)])


def test_conditions_that_are_neither_an_id_nor_a_sequence_fail_in_words():
    with pytest.raises(DataError, match="Decimal"):
        row_conditions(decimal.Decimal(1), 2)


class Colour(enum.StrEnum):
    RED = "red"


class Grade(enum.IntEnum):
    FIRST = 1


@pytest.mark.parametrize(("member", "kind"), [(Colour.RED, str), (Grade.FIRST, int)])
def test_members_of_enumerations_become_plain_or_fail(member, kind):
    (read,) = read_ids([member])
    assert type(read) is kind


@pytest.mark.parametrize("ids", [[True, 2], [0.5, False], [True, False, 3]])
def test_booleans_beside_numbers_fail_in_words(ids):
    with pytest.raises(DataError, match="condition ids mix True/False with numbers, which compare equal; use strings"):
        distinct_ids(ids)


@pytest.mark.parametrize("ids", [[True, 1], [0, False], [("a", True), ("a", 1)]])
def test_booleans_equal_to_numbers_fail_in_words(ids):
    with pytest.raises(DataError, match="condition ids mix True/False with numbers"):
        distinct_ids(ids)


def test_booleans_beside_numbers_fail_as_names_of_columns_too():
    with pytest.raises(DataError, match="condition ids mix True/False with numbers"):
        read_training([[1.0]], [[1.0, 2.0]], [True, 2])


def test_a_boolean_and_a_number_may_stand_in_different_places_of_a_tuple():
    ids = [(True, 3), (False, 5), (True, 1)]
    assert distinct_ids(ids) == ((False, 5), (True, 1), (True, 3))


def test_booleans_equal_to_numbers_fail_in_words_within_nested_tuples():
    with pytest.raises(DataError, match="condition ids mix True/False with numbers"):
        distinct_ids([("a", (True,)), ("a", (1,))])


def test_booleans_alone_and_strings_of_numbers_are_fine():
    assert distinct_ids([True, False, True]) == (False, True)
    assert distinct_ids(["1", 1, "True"]) == (1, "1", "True")


def test_numbers_of_conditions():
    assert_array_equal(numbers_of(["b", "x", "a"], ("a", "b")), [1, -1, 0])


def test_an_unknown_condition_is_told_of_the_closest():
    error = unknown_condition("tyre-a", ["tyre-A", "road", 3])
    assert isinstance(error, UnknownConditionError)
    assert str(error) == (
        "condition 'tyre-a' is not known to the model (did you mean 'tyre-A'?); add it with add_condition(name, X, y), "
        'or create the estimator with unseen="prior" to predict it from the prior'
    )


def test_an_unknown_condition_like_no_other_gets_no_hint():
    assert "did you mean" not in str(unknown_condition("x", ["tyre-A", 17]))
    assert "condition 110 is not known to the model (did you mean 109?)" in str(unknown_condition(110, [100, 109]))


def test_very_long_ids_are_not_compared_letter_by_letter():
    error = str(unknown_condition("a" + "x" * 10**6, ["b" + "x" * 10**6, "c"]))
    assert "did you mean 'bxxx" in error
    assert len(error) < 800


# Missing and bad outputs


@pytest.mark.parametrize("dtype", [float, int, object])
def test_masked_outputs_are_missing_whatever_lies_below_the_mask(dtype):
    y = np.ma.masked_array(np.array([1, 999, 3], dtype), [False, True, False])
    assert_array_equal(read_outputs(y, 3), [1, nan, 3])


def test_a_mask_that_hides_nothing_changes_nothing():
    assert_array_equal(read_outputs(np.ma.masked_array([1.0, 2.0], [False, False]), 2), [1, 2])


def test_a_whole_number_beyond_all_floats_fails_in_words():
    with pytest.raises(DataError, match="y must hold numbers, got a number of 1329 bits in row 1"):
        read_outputs([1, 10**400], 2)
    with pytest.raises(DataError, match="X must hold real numbers in a rectangular array, got list"):
        read_inputs([[1], [10**400]])
    with pytest.raises(DataError, match="column 'x' of X must hold numbers or dates"):
        read_inputs(pd.DataFrame({"x": [1, 10**400]}))


def test_complex_columns_of_tables_fail_in_words():
    table = pd.DataFrame({"x": [1 + 2j, 2.0]})
    with pytest.raises(DataError, match="Complex data not supported: column 'x' of X must hold real numbers"):
        read_inputs(table)
    with pytest.raises(DataError, match="Complex data not supported: column 'x' of y must hold real numbers"):
        read_outputs(table, 2)


def test_rows_without_output_are_dropped_and_counted():
    with pytest.warns(LVMOGPWarning, match="^2 of 5 rows have no output .NaN. and count as not observed$"):
        read = read_training(np.arange(5.0)[:, None], [1.0, nan, 3.0, nan, 5.0], list("abcab"))
    assert as_triples(read) == [("a", (0.0,), 1.0), ("b", (4.0,), 5.0), ("c", (2.0,), 3.0)]


def test_a_condition_whose_rows_all_lack_outputs_is_kept():
    with pytest.warns(LVMOGPWarning, match="1 of 2 rows"):
        read = read_training([[1.0], [2.0]], [1.0, nan], ["a", "b"])
    assert read.ids == ("a", "b")
    assert_array_equal(read.conditions, [0])


@pytest.mark.parametrize(
    "y",
    [
        [1.0, None],
        np.array([1.0, None], dtype=object),
        pd.Series([1.0, nan]),
        pd.Series([1, pd.NA], dtype="Int64"),
        pd.Series([1.0, None], dtype=object),
    ],
)
def test_missing_outputs_come_in_many_guises(y):
    assert_array_equal(read_outputs(y, 2), [1.0, nan])


def test_missing_cells_of_a_frame_come_in_many_guises():
    y = pd.DataFrame({"a": [1.0, nan], "b": pd.Series([pd.NA, 2], dtype="Int64")})
    assert_array_equal(read_outputs(y, 2), [[1.0, nan], [nan, 2.0]])


@pytest.mark.parametrize("y", [[nan, nan], [[nan, nan], [nan, nan]]])
def test_no_output_at_all_fails_in_words(y):
    with pytest.raises(DataError, match="every output is NaN; at least one observation is needed"):
        read_training([[1.0], [2.0]], y, None)


@pytest.mark.parametrize("y", [[1.0, np.inf], [1.0, -np.inf], [[1.0, 2.0], [nan, np.inf]]])
def test_an_infinite_output_fails_in_words(y):
    with pytest.raises(DataError, match="y is infinite in row 1; outputs must be finite, or NaN where not observed"):
        read_training([[1.0], [2.0]], y, None)


NOT_NUMBERS = [
    (["1.0", "two"], "y must hold numbers, got .*'1.0'.* in row 0"),
    ([1.0, "two"], "y must hold numbers, got .*'1.0'.* in row 0"),
    (np.array([1.0, "two"], dtype=object), "y must hold numbers, got 'two' in row 1"),
    (pd.Series(["u", "v"]), "y must hold numbers, got 'u' in row 0"),
    (pd.Series(["u", "v"], dtype="category"), "y must hold numbers, got 'u' in row 0"),
    (pd.Series(["u", "v"], dtype="string"), "y must hold numbers, got 'u' in row 0"),
    (pd.Series(pd.to_datetime(["2020-01-01"] * 2)), "y must hold numbers, got .*2020-01-01"),
    ([1 + 2j, 1.0], "Complex data not supported: y must hold real numbers"),
    (pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}), "column 'b' of y must hold numbers, got"),
]


@pytest.mark.parametrize(("y", "text"), NOT_NUMBERS, ids=range(len(NOT_NUMBERS)))
def test_outputs_that_are_no_numbers_fail_in_words(y, text):
    with pytest.raises(DataError, match=text):
        read_training([[1.0], [2.0]], y, ["a", "b"])


@pytest.mark.parametrize("unit", ["M8[ns]", "m8[ns]"])
def test_dates_and_durations_fail_as_outputs(unit):
    with pytest.raises(DataError, match="y must hold numbers"):
        read_outputs(np.array([1, 2], dtype=unit), 2)


@pytest.mark.parametrize("y", [[[1.0, 2.0], [3.0]], pd.Series([1, 2], dtype="category")])
def test_ragged_and_categorical_outputs_are_read_or_fail_in_words(y):
    try:
        read_outputs(y, 2)
    except DataError as error:
        assert "y must hold" in str(error)  # noqa: PT017 - reading them would be as good


@pytest.mark.parametrize(("y", "shape"), [(3.0, r"\(\)"), (np.zeros((2, 2, 2)), r"\(2, 2, 2\)")])
def test_outputs_of_a_wrong_shape_fail_in_words(y, shape):
    text = rf"y must have one dimension \(long form\) or two \(inputs × conditions\), got shape {shape}"
    with pytest.raises(DataError, match=text):
        read_training([[1.0], [2.0]], y, None)


@pytest.mark.parametrize("y", [[1.0, 2.0, 3.0], [[1.0, 2.0]], [1.0], []])
def test_outputs_of_another_length_fail_in_words(y):
    text = f"X has 2 rows but y has {len(y)}; each row of X needs its output"
    with pytest.raises(DataError, match=text):
        read_training([[1.0], [2.0]], y, None)


def test_outputs_left_out_fail_in_words():
    with pytest.raises(DataError, match=r"fit\(X, y, conditions=…\) requires y to be passed, but the target y is None"):
        read_training([[1.0]], None, None)


# Inputs


@pytest.mark.parametrize("X", [np.empty((0, 2)), pd.DataFrame({"x": []}, dtype=float)])
def test_no_rows_fail_in_words(X):
    with pytest.raises(DataError, match="X has no rows; at least one observation is needed"):
        read_training(X, [], [])


@pytest.mark.parametrize("X", [np.empty((3, 0)), pd.DataFrame(index=range(3))])
def test_no_columns_fail_in_words(X):
    with pytest.raises(DataError, match=r"X has 0 feature\(s\) \(shape=\(\d+, 0\)\) while a minimum of 1 is required"):
        read_inputs(X)


def test_a_frame_with_nothing_but_conditions_fails_in_words():
    with pytest.raises(DataError, match=r"X has 0 feature\(s\)"):
        read_inputs(pd.DataFrame({"tyre": ["a", "b"]}), condition="tyre")


@pytest.mark.parametrize("X", [5.0, [1.0, 2.0], np.zeros((2, 2, 2)), [], None, pd.Series([1.0, 2.0])])
def test_inputs_of_a_wrong_shape_fail_in_words(X):
    text = r"X must be two-dimensional \(rows × columns\), got shape \(.*\). Reshape your data: a single column"
    with pytest.raises(DataError, match=text):
        read_inputs(X)


@pytest.mark.parametrize("bad", [nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_fail_in_words(bad):
    X = np.zeros((3, 2))
    X[1, 1] = X[2, 0] = bad
    text = "X holds 2 NaN or infinite values, the first in row 1, column 1; inputs must be finite"
    with pytest.raises(DataError, match=text):
        read_inputs(X)
    with pytest.raises(DataError, match=text.replace("column 1", "column 'load'")):
        read_inputs(pd.DataFrame(X, columns=["speed", "load"]))


def test_a_missing_value_of_a_nullable_column_fails_in_words():
    with pytest.raises(DataError, match="the first in row 1, column 'x'"):
        read_inputs(pd.DataFrame({"x": pd.Series([1, pd.NA], dtype="Int64")}))


@pytest.mark.parametrize("column", [["u", "v"], pd.Categorical(["u", "v"]), [1.0, "u"], [1.0, [2.0]]])
def test_a_column_that_holds_no_numbers_fails_in_words(column):
    text = (
        "column 'kind' of X must hold numbers or dates, got .*; drop it, encode it, or name it as the condition column"
    )
    with pytest.raises(DataError, match=text):
        read_inputs(pd.DataFrame({"x": [1.0, 2.0], "kind": column}))


NOON = [datetime.datetime(1970, 1, 3, 12), datetime.datetime(1969, 12, 31)]


@pytest.mark.parametrize(
    "column",
    [
        pd.to_datetime(NOON),
        pd.to_datetime(NOON).as_unit("s"),
        pd.Series(NOON, dtype=object),
        pd.to_datetime(NOON).tz_localize("UTC").tz_convert("Asia/Tokyo"),
        pl.Series(NOON),
    ],
    ids=["nanoseconds", "seconds", "objects", "with a time zone", "polars"],
)
def test_dates_become_days_since_1970(column):
    table = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    inputs = read_inputs(table({"when": column, "x": [1.0, 2.0]}))
    assert_allclose(inputs.values, [[2.5, 1.0], [-1.0, 2.0]], rtol=0, atol=1e-12)
    assert inputs.date_columns == ("when",)


def test_plain_dates_become_days_too():
    inputs = read_inputs(pd.DataFrame({"when": [datetime.date(1970, 1, 11), datetime.date(1970, 2, 1)]}))
    assert_array_equal(inputs.values, [[10.0], [31.0]])


def test_durations_become_days():
    inputs = read_inputs(pd.DataFrame({"lasted": pd.to_timedelta(["6h", "2D"])}))
    assert_array_equal(inputs.values, [[0.25], [2.0]])


def test_a_missing_date_among_the_inputs_fails_in_words():
    with pytest.raises(DataError, match="the first in row 1, column 'when'; inputs must be finite"):
        read_inputs(pd.DataFrame({"when": pd.to_datetime(["2020-01-01", None])}))


@pytest.mark.parametrize(
    ("trained", "now", "column"),
    [
        (("when",), "dates when the model was fitted, but holds numbers", [1.0]),
        ((), "numbers when the model was fitted, but holds dates", pd.to_datetime(["2020-01-01"])),
    ],
)
def test_dates_in_the_place_of_numbers_fail_in_words(trained, now, column):
    with pytest.raises(DataError, match=f"column 'when' of X held {now} now"):
        read_inputs(pd.DataFrame({"when": column}), columns=("when",), trained_dates=trained)


def test_polars_tables_are_read_like_those_of_pandas():
    columns = {"x": [1.0, 2.0, 3.0], "tyre": ["a", "b", "a"]}
    outputs = [4.0, None, 6.0]
    with pytest.warns(LVMOGPWarning, match="1 of 3 rows have no output"):
        ours = read_training(pl.DataFrame(columns), pl.Series("grip", outputs), None, condition="tyre")
    assert as_triples(ours) == [("a", (1.0,), 4.0), ("a", (3.0,), 6.0)]
    assert (ours.columns, ours.output_name, ours.ids) == (("x",), "grip", ("a", "b"))
    grid = read_training(pl.DataFrame({"x": [1.0, 2.0]}), pl.DataFrame({"a": [3.0, None], "b": [5.0, 6.0]}), None)
    assert as_triples(grid) == [("a", (1.0,), 3.0), ("b", (1.0,), 5.0), ("b", (2.0,), 6.0)]
    long = read_training(np.ones((2, 1)), pl.Series([1.0, 2.0]), pl.Series(["u", "v"]))
    assert long.ids == ("u", "v")


def test_masked_inputs_fail_in_words():
    with pytest.raises(DataError, match="X holds 1 NaN or infinite values, the first in row 1, column 0"):
        read_inputs(np.ma.masked_array([[1.0], [999.0]], [[False], [True]]))


def test_columns_whose_names_differ_in_kind_only_fail_in_words():
    with pytest.raises(DataError, match="two columns of X have the same name '1'; rename one of them"):
        read_inputs(pd.DataFrame([[1.0, 2.0]], columns=pd.Index([1, "1"], dtype=object)))


def test_complex_and_sparse_inputs_fail_in_words():
    with pytest.raises(DataError, match="Complex data not supported: X must hold real numbers"):
        read_inputs([[1j], [2.0]])
    with pytest.raises(DataError, match=r"X is sparse, which is not supported; pass a dense array, X.toarray\(\)"):
        read_inputs(scipy.sparse.csr_array(np.eye(2)))


@pytest.mark.parametrize("X", [[["u"], ["v"]], [[1.0], [2.0, 3.0]], [[object()]]])
def test_an_array_that_holds_no_numbers_fails_in_words(X):
    with pytest.raises(DataError, match="X must hold real numbers in a rectangular array, got list"):
        read_inputs(X)


def test_columns_of_whole_numbers_and_booleans_are_inputs():
    frame = pd.DataFrame({"n": [1, 2], "on": [True, False], "m": pd.Series([3, 4], dtype="Int64")})
    assert_array_equal(read_inputs(frame).values, [[1.0, 1.0, 3.0], [2.0, 0.0, 4.0]])


def test_a_missing_condition_column_fails_in_words():
    with pytest.raises(DataError, match=r"the condition column 'tyre' is not among the columns \['x', 'y'\]"):
        read_inputs(pd.DataFrame({"x": [1.0], "y": [2.0]}), condition="tyre")


def test_a_condition_column_of_a_plain_array_fails_in_words():
    text = (
        "condition='tyre' names a column, so X must be a pandas or polars DataFrame, got ndarray; or pass conditions="
    )
    with pytest.raises(DataError, match=text):
        read_inputs(np.zeros((2, 2)), condition="tyre")


def test_two_columns_of_one_name_are_two_inputs_or_fail_in_words():
    frame = pd.DataFrame([[1.0, 2.0]], columns=["x", "x"])
    try:
        assert_array_equal(read_inputs(frame).values, [[1.0, 2.0]])
    except DataError as error:
        assert "x" in str(error)  # noqa: PT017 - reading them would be as good


def test_two_condition_columns_of_one_name_fail_in_words():
    with pytest.raises(DataError):
        read_inputs(pd.DataFrame([[1, 2, 3.0]], columns=["tyre", "tyre", "x"]), condition="tyre")


def test_new_inputs_are_matched_to_the_training_columns_by_name():
    frame = pd.DataFrame({"b": [2.0], "a": [1.0]})
    read = read_inputs(frame, columns=("a", "b"), n_columns=2)
    assert_array_equal(read.values, [[1.0, 2.0]])
    assert read.columns == ("a", "b")


@pytest.mark.parametrize("frame", [{"a": [1.0], "c": [2.0]}, {"a": [1.0]}, {"a": [1.0], "b": [2.0], "c": [3.0]}])
def test_new_inputs_with_other_columns_fail_in_words(frame):
    with pytest.raises(DataError, match=r"X must have the columns \['a', 'b'\], got \['a'"):
        read_inputs(pd.DataFrame(frame), columns=("a", "b"), n_columns=2)


def test_new_inputs_with_another_number_of_columns_fail_in_words():
    with pytest.raises(DataError, match="X has 3 features, but LVMOGPRegressor is expecting 2 features as input"):
        read_inputs(np.zeros((1, 3)), n_columns=2)


# Conditions that do not fit


def test_conditions_of_another_length_fail_in_words():
    with pytest.raises(DataError, match="conditions has 3 entries for 2 rows of X; give one id, or one a row"):
        read_training([[1.0], [2.0]], [1.0, 2.0], ["a", "b", "c"])


def test_names_of_columns_of_another_number_fail_in_words():
    with pytest.raises(DataError, match="conditions has 3 entries for 2 columns of y; give one a column"):
        read_training([[1.0]], [[1.0, 2.0]], ["a", "b", "c"])


def test_columns_of_one_name_fail_in_words():
    text = "two columns of y have the same name; each condition needs a name of its own"
    with pytest.raises(DataError, match=text):
        read_training([[1.0]], [[1.0, 2.0]], ["a", "a"])


def test_columns_of_one_name_in_a_frame_of_outputs_fail_in_words():
    with pytest.raises(DataError, match="two columns of y have the same name"):
        read_training([[1.0]], pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), None)


def test_conditions_of_two_dimensions_fail_in_words():
    with pytest.raises(DataError, match=r"conditions must be one id, or one id a row, got an array of shape \(2, 1\)"):
        row_conditions(np.array([["a"], ["b"]]), 2)


@pytest.mark.parametrize(
    "conditions",
    [{"a", "b"}, {"a": 1, "b": 2}, pd.DataFrame({"a": [1, 2], "b": [3, 4]}), b"ab", object()],
    ids=["set", "mapping", "table", "bytes", "object"],
)
@pytest.mark.parametrize("y", [[1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], pd.DataFrame({"y": [1.0, 2.0]})])
def test_conditions_without_an_order_fail_in_words(conditions, y):
    kind = type(conditions).__name__
    with pytest.raises(DataError, match=f"conditions must be one id, or one id a row, got {kind}"):
        read_training([[1.0], [2.0]], y, conditions)


def test_conditions_given_twice_fail_in_words():
    frame = pd.DataFrame({"x": [1.0], "tyre": ["a"]})
    with pytest.raises(DataError, match="conditions were given twice: in the column 'tyre' and as conditions=; use"):
        read_training(frame, [1.0], ["a"], condition="tyre")


def test_a_grid_of_outputs_beside_a_condition_column_fails_in_words():
    frame = pd.DataFrame({"x": [1.0], "tyre": ["a"]})
    with pytest.raises(DataError, match="y must have one dimension when each row of X names its condition"):
        read_training(frame, [[1.0, 2.0]], None, condition="tyre")


# In standardised units


def observations_of(inputs, outputs, conditions, n_conditions):
    ids = tuple(range(n_conditions))
    return Observations(inputs, outputs, conditions, ids, None, is_grid=False)


def as_long_triples(data):
    """Data of either form as a sorted list of (condition, inputs, output)."""
    data = grid_as_long(data) if isinstance(data, GridData) else data
    present = np.asarray(data.present) > 0
    conditions = np.broadcast_to(np.asarray(data.block_condition)[:, None], present.shape)
    rows = zip(conditions[present], np.asarray(data.inputs)[present], np.asarray(data.outputs)[present], strict=True)
    return sorted((int(number), tuple(map(float, x)), float(y)) for number, x, y in rows)


@pytest.fixture
def complete(rng):
    x = rng.normal(size=(5, 2))
    inputs, conditions = np.tile(x, (3, 1)), np.repeat(np.arange(3), 5)
    return inputs, rng.normal(size=15), conditions


def data_of(inputs, outputs, conditions):
    scaling = scaling_of(inputs, outputs)
    return standardised(observations_of(inputs, outputs, conditions, 3), scaling), scaling


def test_a_complete_grid_is_found_in_rows_of_any_order(complete, rng):
    inputs, outputs, conditions = complete
    order = rng.permutation(15)
    data, scaling = data_of(inputs[order], outputs[order], conditions[order])
    assert isinstance(data, GridData)
    assert data.outputs.shape == (5, 3)
    for row, x in enumerate(np.asarray(data.inputs)):
        for condition in range(3):
            (place,) = np.flatnonzero((conditions == condition) & np.all(np.isclose(scaling.inputs(inputs), x), axis=1))
            assert_allclose(data.outputs[row, condition], scaling.outputs(outputs)[place], rtol=1e-12)


@pytest.mark.parametrize("change", ["missing", "duplicated", "moved", "missing and duplicated"])
def test_a_grid_with_a_cell_out_of_place_is_read_as_long_form(complete, change):
    inputs, outputs, conditions = (values.copy() for values in complete)
    keep = np.arange(15)
    if change == "moved":
        inputs[7] += 1.0
    else:
        keep = {"missing": keep[1:], "duplicated": np.r_[keep, 3]}.get(change, np.r_[keep[1:], 3])
    data, scaling = data_of(inputs[keep], outputs[keep], conditions[keep])
    assert isinstance(data, LongData)
    values = scaling.inputs(inputs[keep]), scaling.outputs(outputs[keep])
    expected = sorted((int(c), tuple(x), float(y)) for c, x, y in zip(conditions[keep], *values, strict=True))
    assert as_long_triples(data) == expected


def test_grid_and_long_form_describe_the_same_observations(complete, rng):
    inputs, outputs, conditions = complete
    scaling = scaling_of(inputs, outputs)
    order = rng.permutation(15)
    grid = standardised(observations_of(inputs, outputs, conditions, 3), scaling)
    # A fourth condition without observations leaves no complete grid.
    long = standardised(observations_of(inputs[order], outputs[order], conditions[order], 4), scaling)
    assert isinstance(grid, GridData)
    assert isinstance(long, LongData)
    assert as_long_triples(grid) == as_long_triples(long)


def test_one_condition_at_different_inputs_is_a_grid():
    data, _ = data_of(np.array([[2.0], [1.0], [3.0]]), np.array([1.0, 2.0, 3.0]), np.zeros(3, int))
    assert isinstance(data, LongData)  # of three conditions, two have no observations
    one = observations_of(np.array([[2.0], [1.0]]), np.array([1.0, 3.0]), np.zeros(2, int), 1)
    grid = standardised(one, scaling_of(one.inputs, one.outputs))
    assert isinstance(grid, GridData)
    assert_array_equal(grid.inputs, [[-1.0], [1.0]])
    assert_array_equal(grid.outputs, [[1.0], [-1.0]])


def test_a_grid_is_complete_if_it_came_as_one_without_gaps():
    X, Y = np.arange(6.0).reshape(3, 2), np.arange(12.0).reshape(3, 4)
    assert is_complete_grid(read_training(X, Y, None))
    assert is_complete_grid(read_training(X, Y, None, y_std=np.ones_like(Y)))
    with_gap, with_even_gaps = Y.copy(), Y.copy()
    with_gap[1, 2] = nan
    with_even_gaps[[0, 1, 2, 0], range(4)] = nan  # as many left of each condition, but not the same
    assert not is_complete_grid(read_training(X, with_gap, None))
    assert not is_complete_grid(read_training(X, with_even_gaps, None))
    assert not is_complete_grid(read_training(X[:2], [1.0, 2.0], ["a", "b"]))


def test_only_scattered_observations_are_many(monkeypatch):
    monkeypatch.setattr("lvmogp.inference.options._MOST_AT_ONCE", 5)
    options = Options(
        **{name: value for name, value in LVMOGPRegressor().get_params().items() if name in Options._fields}
    )
    assert is_stochastic(options, 6)
    assert not is_stochastic(options, 6, is_complete_grid=True)
    monkeypatch.setattr("lvmogp.inference.options._MOST_ON_A_GRID", 5)
    assert is_stochastic(options, 6, is_complete_grid=True)
