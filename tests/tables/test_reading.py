"""What users hand in is read as they mean it, or refused in words."""

import datetime
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal

from lvmogp.errors import DataError, LVMOGPWarning
from lvmogp.tables.reading import read_errors, read_inputs, read_outputs, read_training

nan = np.nan
X2 = [[1.0], [2.0]]


def as_triples(observations):
    """Observations as a sorted list of (id, inputs, output), the same for every form and order."""
    rows = zip(observations.conditions, observations.inputs, observations.outputs, strict=True)
    return sorted((str(observations.ids[number]), tuple(x), float(y)) for number, x, y in rows)


def refused(words, read, *given, **options):
    with pytest.raises(DataError, match=words):
        read(*given, **options)


# The three forms


def test_grid_form_gives_every_observed_cell_once_and_keeps_all_conditions():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_training(X2, [[10.0, nan, 30.0, nan], [40.0, 50.0, nan, nan]], None)
    assert (read.ids, read.is_grid) == ((0, 1, 2, 3), True)
    assert as_triples(read) == [("0", (1.0,), 10.0), ("0", (2.0,), 40.0), ("1", (2.0,), 50.0), ("2", (1.0,), 30.0)]


def test_the_three_forms_describe_the_same_observations():
    y = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    names = ["c", "a", "b"]
    x, ids = np.tile(X2, (3, 1)), np.repeat(names, 2)
    frame = pd.DataFrame({"speed": x[:, 0], "tyre": ids, "load": 5})
    column = read_training(frame, pd.Series(y.T.ravel(), name="grip"), None, condition="tyre")
    assert (column.columns, column.ids, column.output_name) == (("speed", "load"), ("a", "b", "c"), "grip")
    triples = as_triples(column._replace(inputs=column.inputs[:, :1]))
    assert triples == as_triples(read_training(x, y.T.ravel(), ids))
    for grid in (read_training(X2, y, names), read_training(X2, pd.DataFrame(y, columns=names), None)):
        assert (grid.ids, grid.output_name) == (tuple(names), None)  # in their own order
        assert as_triples(grid) == triples


def test_rows_have_one_condition_or_their_own_in_sorted_order():
    for given, ids, numbers in ((None, (0,), [0, 0]), ("a", ("a",), [0, 0]), (["b", "a"], ("a", "b"), [1, 0])):
        read = read_training(X2, [3.0, 4.0], given)
        assert (read.ids, read.is_grid, read.columns, read.output_name) == (ids, False, None, None)
        assert_array_equal(read.conditions, numbers)
        assert_array_equal(read.inputs, X2)
        assert_array_equal(read.outputs, [3.0, 4.0])


@pytest.mark.parametrize("y", [[[3.0], [4.0]], pd.DataFrame({"y": [3.0, 4.0]})])
@pytest.mark.parametrize("container", [list, iter])
def test_a_single_column_of_outputs_is_long_form_where_rows_name_their_condition(y, container):
    read = read_training(X2, y, container(["a", "b"]))
    assert as_triples(read) == [("a", (1.0,), 3.0), ("b", (2.0,), 4.0)]
    assert read.output_name == ("y" if isinstance(y, pd.DataFrame) else None)


@pytest.mark.parametrize("conditions", [None, "dry", ["dry"]])
def test_a_single_column_of_a_frame_is_a_grid_of_one_named_condition(conditions):
    read = read_training(X2, pd.DataFrame({"wet": [3.0, 4.0]}), conditions)
    assert (read.ids, read.is_grid) == (("wet" if conditions is None else "dry",), True)


def test_polars_tables_are_read_like_those_of_pandas():
    columns = {"x": [1.0, 2.0, 3.0], "tyre": ["a", "b", "a"]}
    with pytest.warns(LVMOGPWarning, match="1 of 3 rows have no output"):
        ours = read_training(pl.DataFrame(columns), pl.Series("grip", [4.0, None, 6.0]), None, condition="tyre")
    assert as_triples(ours) == [("a", (1.0,), 4.0), ("a", (3.0,), 6.0)]
    assert (ours.columns, ours.output_name, ours.ids) == (("x",), "grip", ("a", "b"))
    grid = read_training(pl.DataFrame({"x": [1.0, 2.0]}), pl.DataFrame({"a": [3.0, None], "b": [5.0, 6.0]}), None)
    assert as_triples(grid) == [("a", (1.0,), 3.0), ("b", (1.0,), 5.0), ("b", (2.0,), 6.0)]
    assert read_training(X2, pl.Series([1.0, 2.0]), pl.Series(["u", "v"])).ids == ("u", "v")


TYRES = pd.DataFrame({"x": [1.0, 2.0], "tyre": ["a", "b"]})
FORMS_REFUSED = [
    ("conditions has 3 entries for 2 rows of X; give one id, or one per row", X2, [1.0, 2.0], list("abc"), {}),
    ("conditions has 3 entries for 2 columns of y; give one per column", X2, [[1.0, 2.0]] * 2, list("abc"), {}),
    ("two columns of y have the same name; each condition needs", X2, [[1.0, 2.0]] * 2, ["a", "a"], {}),
    ("two columns of y have the same name", X2, pd.DataFrame([[1.0, 2.0]] * 2, columns=["a", "a"]), None, {}),
    ("mix True/False with numbers", X2, [[1.0, 2.0]] * 2, [True, 2], {}),
    ("conditions must be one id, or one id per row, got set", X2, [[1.0, 2.0]] * 2, {"a", "b"}, {}),
    ("conditions were given twice: in the column 'tyre' and as", TYRES, [1.0, 2.0], ["a"], {"condition": "tyre"}),
    ("y must have one dimension when each row of X names", TYRES, [[1.0, 2.0]] * 2, None, {"condition": "tyre"}),
    (r"fit\(X, y, conditions=…\) requires y to be passed, but the target y is None", X2, None, None, {}),
    ("X has no rows; at least one observation is needed", np.empty((0, 2)), [], [], {}),
    ("every output is NaN; at least one observation is needed", X2, [nan, nan], None, {}),
    ("every output is NaN; at least one observation is needed", X2, [[nan, nan]] * 2, None, {}),
]


@pytest.mark.parametrize(("words", "X", "y", "conditions", "options"), FORMS_REFUSED)
def test_data_that_do_not_fit_together_fail_in_words(words, X, y, conditions, options):
    refused(words, read_training, X, y, conditions, **options)


# Outputs and their errors


def test_rows_without_output_are_dropped_and_counted_and_their_conditions_kept():
    with pytest.warns(LVMOGPWarning, match="^2 of 5 rows have no output .NaN. and count as not observed$"):
        read = read_training(
            np.arange(5.0)[:, None], [1.0, nan, 3.0, nan, 5.0], list("abcdb"), y_std=[0.1, nan, 0.3, -1, 0.5]
        )
    assert as_triples(read) == [("a", (0.0,), 1.0), ("b", (4.0,), 5.0), ("c", (2.0,), 3.0)]
    assert read.ids == tuple("abcd")
    assert_array_equal(read.errors, [0.1, 0.3, 0.5])


@pytest.mark.parametrize(
    "y",
    [
        [1.0, None],
        np.array([1.0, None], dtype=object),
        pd.Series([1.0, nan]),
        pd.Series([1, pd.NA], dtype="Int64"),
        *[np.ma.masked_array(np.array([1, 999], dtype), [False, True]) for dtype in (float, int, object)],
    ],
)
def test_missing_outputs_come_in_many_guises(y):
    assert_array_equal(read_outputs(y, 2), [1.0, nan])
    if isinstance(y, pd.Series):
        assert_array_equal(read_outputs(pd.DataFrame({"a": y, "b": [3, 4]}), 2), [[1.0, 3], [nan, 4]])
    assert_array_equal(read_outputs(np.ma.masked_array([1.0, 2.0], [False, False]), 2), [1, 2])


OUTPUTS_REFUSED = [
    (["1.0", "two"], "y must hold numbers, got .*'1.0'.* in row 0"),
    (np.array([1.0, "two"], dtype=object), "y must hold numbers, got 'two' in row 1"),
    (pd.Series(["u", "v"]), "y must hold numbers, got 'u' in row 0"),
    (pd.Series(["u", "v"], dtype="category"), "y must hold numbers, got 'u' in row 0"),
    (pd.Series(pd.to_datetime(["2020-01-01"] * 2)), "y must hold numbers, got .*2020-01-01"),
    ([1, 10**400], "y must hold numbers, got a number of 1329 bits in row 1"),
    ([1 + 2j, 1.0], "Complex data not supported: y must hold real numbers"),
    (pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}), "column 'b' of y must hold numbers, got"),
    (pd.DataFrame({"x": [1 + 2j, 2.0]}), "Complex data not supported: column 'x' of y must hold real numbers"),
    (np.array([1, 2], dtype="M8[ns]"), "y must hold numbers, got dates or durations"),
    (np.array([1, 2], dtype="m8[ns]"), "y must hold numbers, got dates or durations"),
    ([[1.0, 2.0], [3.0]], "y must hold numbers in a rectangular array, got rows of different lengths"),
    ([1.0, np.inf], "y is infinite in row 1; outputs must be finite, or NaN where not observed"),
    ([[1.0, 2.0], [nan, -np.inf]], "y is infinite in row 1"),
    (3.0, r"y must have one dimension \(long form\) or two \(inputs × conditions\), got shape \(\)"),
    (np.zeros((2, 2, 2)), r"y must have one dimension .*, got shape \(2, 2, 2\)"),
    ([1.0, 2.0, 3.0], "X has 2 rows but y has 3; each row of X needs its output"),
    ([[1.0, 2.0]], "X has 2 rows but y has 1"),
]


@pytest.mark.parametrize(("y", "words"), OUTPUTS_REFUSED, ids=range(len(OUTPUTS_REFUSED)))
def test_outputs_that_cannot_be_fail_in_words(y, words):
    refused(words, read_outputs, y, 2)


def test_errors_of_outputs_are_one_number_or_one_for_each():
    y = np.array([[1.0, nan], [3.0, 4.0]])
    assert read_errors(None, y, y) is None
    assert_array_equal(read_errors(0.5, y, y), np.full((2, 2), 0.5))
    assert_array_equal(read_errors([[0.1], [0.2]], y[:, 0], None), [0.1, 0.2])
    own = pd.DataFrame({"b": [0.3, 0.4], "a": [0.1, 0.2]})
    outputs = pd.DataFrame(y, columns=["a", "b"])
    assert_array_equal(read_errors(own, y, outputs), [[0.1, 0.3], [0.2, 0.4]])
    assert_array_equal(read_training(X2, outputs, None, y_std=own).errors, [0.1, 0.2, 0.4])
    refused("y_std has a column 'c' that y has not", read_errors, own.rename(columns={"b": "c"}), y, outputs)
    refused(r"y_std must be one number or have the shape of y, \(2, 2\), got shape \(2,\)", read_errors, [1, 2], y, y)
    for bad in (-1e-9, np.inf, nan, 1e141):
        refused("y_std must hold .*deviations, finite and not negative, got", read_errors, [[1, 1], [bad, 1]], y, y)
    assert read_errors([[0, nan], [1e140, 1]], y, y).shape == (2, 2)  # where nothing was observed, anything will do


# Inputs


INPUTS_REFUSED = [
    (np.empty((3, 0)), r"X has 0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is required"),
    (pd.DataFrame(index=range(3)), r"X has 0 feature\(s\) \(shape=\(3, 0\)\)"),
    *[
        (X, r"X must be two-dimensional \(rows × columns\), got shape \(.*\). Reshape your data: a single column")
        for X in (5.0, [1.0, 2.0], np.zeros((2, 2, 2)), [], None, pd.Series([1.0, 2.0]))
    ],
    ([[0, 0], [0, nan], [np.inf, 0]], "X holds 2 NaN or infinite values, the first in row 1, column 1; inputs must be"),
    (pd.DataFrame({"u": [0, 1.0], "v": [0, -np.inf]}), "X holds 1 NaN or infinite .*, the first in row 1, column 'v'"),
    (pd.DataFrame({"x": pd.Series([1, pd.NA], dtype="Int64")}), "the first in row 1, column 'x'"),
    (pd.DataFrame({"when": pd.to_datetime(["2020-01-01", None])}), "the first in row 1, column 'when'"),
    (np.ma.masked_array([[1.0], [999.0]], [[False], [True]]), "X holds 1 NaN .*, the first in row 1, column 0"),
    *[
        (pd.DataFrame({"x": [1.0, 2.0], "kind": column}), f"'kind' of X must hold numbers or dates, got {shown};")
        for column, shown in [(["u", "v"], "'u'"), (pd.Categorical(["u", "v"]), "'u'"), ([1.0, [2.0]], r"\[2.0\]")]
    ],
    (pd.DataFrame({"x": [1, 10**400]}), "column 'x' of X must hold numbers or dates"),
    ([[1], [10**400]], "X must hold real numbers in a rectangular array, got list"),
    ([["u"], ["v"]], "X must hold real numbers in a rectangular array, got list"),
    ([[1.0], [2.0, 3.0]], "X must hold real numbers in a rectangular array, got list"),
    (np.array([[1]], dtype="m8[ns]"), "X must hold real numbers in a rectangular array, got ndarray of timedelta64"),
    ([[1j], [2.0]], "Complex data not supported: X must hold real numbers"),
    (pd.DataFrame({"x": [1 + 2j, 2.0]}), "Complex data not supported: column 'x' of X must hold real numbers"),
    (scipy.sparse.csr_array(np.eye(2)), r"X is sparse, which is not supported; pass a dense array, X.toarray\(\)"),
    (pd.DataFrame([[1.0, 2.0]], columns=pd.Index([1, "1"], dtype=object)), "two columns of X have the same name '1'"),
]


@pytest.mark.parametrize(("X", "words"), INPUTS_REFUSED, ids=range(len(INPUTS_REFUSED)))
def test_inputs_that_cannot_be_fail_in_words(X, words):
    refused(words, read_inputs, X)


def test_condition_columns_that_cannot_be_fail_in_words():
    refused(r"X has 0 feature\(s\)", read_inputs, TYRES[["tyre"]], condition="tyre")
    refused(r"column 'road' is not among the columns \['x', 'tyre'\]", read_inputs, TYRES, condition="road")
    words = "condition='tyre' names a column, so X must be a pandas or polars DataFrame, got ndarray; or pass cond"
    refused(words, read_inputs, np.zeros((2, 2)), condition="tyre")


NOON = [datetime.datetime(1970, 1, 3, 12), datetime.datetime(1969, 12, 31)]


@pytest.mark.parametrize(
    "column",
    [
        pd.to_datetime(NOON),
        pd.to_datetime(NOON).as_unit("s"),
        pd.Series(NOON, dtype=object),
        pd.to_datetime(NOON).tz_localize("UTC").tz_convert("Asia/Tokyo"),
        pd.to_timedelta(["2.5D", "-1D"]),
        pl.Series(NOON),
    ],
    ids=["nanoseconds", "seconds", "objects", "with a time zone", "durations", "polars"],
)
def test_dates_and_durations_become_days(column):
    table = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    inputs = read_inputs(table({"when": column, "x": [1.0, 2.0]}))
    assert_allclose(inputs.values, [[2.5, 1.0], [-1.0, 2.0]], rtol=0, atol=1e-12)
    assert inputs.date_columns == ("when",)


def test_columns_of_whole_numbers_booleans_and_plain_dates_are_inputs():
    days = [datetime.date(1970, 1, 11), datetime.date(1970, 2, 1)]
    frame = pd.DataFrame({"n": [1, 2], "on": [True, False], "m": pd.Series([3, 4], dtype="Int64"), "d": days})
    assert_array_equal(read_inputs(frame).values, [[1, 1, 3, 10], [2, 0, 4, 31]])


def test_new_inputs_are_matched_to_the_training_columns_by_name():
    schema = read_training(pd.DataFrame({"a": [0.0], "b": [0.0]}), [0.0], None)
    read = read_inputs(pd.DataFrame({"b": [2.0], "a": [1.0]}), schema=schema)
    assert_array_equal(read.values, [[1.0, 2.0]])
    assert read.columns == ("a", "b")
    assert_array_equal(read_inputs([[1.0, 2.0]], schema=schema._replace(date_columns=("a",))).values, [[1.0, 2.0]])
    for columns in (["a", "c"], ["a"], ["a", "b", "c"]):
        frame = pd.DataFrame(np.ones((1, len(columns))), columns=columns)
        refused(r"X must have the columns \['a', 'b'\], got \['a'", read_inputs, frame, schema=schema)
    words = "X has 3 features, but LVMOGPRegressor is expecting 2 features as input, as it was fitted with"
    refused(words, read_inputs, np.zeros((1, 3)), schema=schema)


def test_dates_in_the_place_of_numbers_fail_in_words():
    numbers, dates = (pd.DataFrame({"when": column}) for column in ([1.0], pd.to_datetime(["2020-01-01"])))
    for new, trained, words in (
        (numbers, dates, "held dates when the model was fitted, but holds numbers now"),
        (dates, numbers, "held numbers when the model was fitted, but holds dates now"),
    ):
        refused(words, read_inputs, new, schema=read_training(trained, [0.0], None))
