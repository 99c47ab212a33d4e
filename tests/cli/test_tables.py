"""Users' files: what is found by itself, and the words for what is wrong."""

import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from lvmogp import open_parquet
from lvmogp.cli.files.columns import looks_like_key, read_column, readable
from lvmogp.cli.files.ids import id_texts, ids_of_texts, known_ids, new_ids
from lvmogp.cli.files.roles import Roles, complete_rows, wide_rows
from lvmogp.cli.files.tables import read_table, table_bytes
from lvmogp.errors import DataError, SettingError, UnknownConditionError

HEADER = ["Größe", "tyre", "distance"]
ROWS = [[1.5, "A", 10.25], [2.5, "B", 20.5], [3.0, "A", 11.0]]


def written(tmp_path, text, name="data.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def as_text(delimiter, decimal):
    lines = [HEADER, *[[str(value).replace(".", decimal) for value in row] for row in ROWS]]
    return "\n".join(delimiter.join(line) for line in lines) + "\n"


def read(tmp_path, text, ids=("tyre",), **options):
    return read_table(written(tmp_path, text, **options), ids=ids)


# What is found by itself


@pytest.mark.parametrize(
    ("encoding", "words"),
    [("utf-8", "UTF-8"), ("utf-8-sig", "UTF-8"), ("cp1252", "Windows-1252"), ("utf-16", "UTF-16")],
)
@pytest.mark.parametrize(
    ("delimiter", "decimal", "name"),
    [(",", ".", "comma"), (";", ",", "semicolon"), (";", ".", "semicolon"), ("\t", ",", "tab"), ("\t", ".", "tab")],
)
def test_the_same_table_is_read_however_it_is_written(tmp_path, delimiter, decimal, name, encoding, words):
    table = read(tmp_path, as_text(delimiter, decimal), encoding=encoding)
    assert list(table.frame.columns) == HEADER
    assert table.frame["Größe"].tolist() == [1.5, 2.5, 3.0]
    assert table.frame["tyre"].tolist() == ["A", "B", "A"]
    assert table.frame["distance"].tolist() == [10.25, 20.5, 11.0]
    mark = {".": "point", ",": "comma"}[decimal]
    assert table.written == f"{name}-separated, decimal {mark}, {words}"


def test_bytes_that_no_other_encoding_knows_are_latin_1(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b\n1,\x81\xe4\n")
    table = read_table(path, ids=["b"])
    assert table.written.endswith("latin-1")
    assert table.frame["b"].tolist() == ["\x81ä"]


@pytest.mark.parametrize(
    ("text", "column", "values", "words"),
    [
        ("speed, m/s;y, m;tyre\n12,5;30,1;A\n13,5;31,1;B\n", "speed, m/s", [12.5, 13.5], "semicolon-separated"),
        ('x,y,tyre\n"1,5","2,25",A\n"2,5","3,75",B\n', "y", [2.25, 3.75], "comma-separated, decimal comma"),
        ("speed\n1,5\n2,5\n", "speed", [1.5, 2.5], "one column, decimal comma, UTF-8"),
        ("a,b\n1,x\n2,\u0663.\u0665\n3,\n", "a", [1, 2, 3], "comma-separated, decimal point, UTF-8"),
    ],
    ids=["commas in the header", "quoted decimals", "one column", "digits of another script"],
)
def test_delimiters_and_decimal_marks_are_told_apart(tmp_path, text, column, values, words):
    table = read(tmp_path, text)
    assert table.frame[column].tolist() == values
    assert table.written.startswith(words)


def test_blank_lines_blank_fields_and_a_delimiter_at_the_end_of_each_line(tmp_path):
    table = read(tmp_path, "\nx , y,tyre,\n\n1, 2,A,\n\n3,NA,B,\n4,-,C,\n\n")
    assert list(table.frame.columns) == ["x", "y", "tyre"]
    assert table.frame["x"].tolist() == [1, 3, 4]
    assert table.frame["y"].isna().tolist() == [False, True, True]


def test_excel_and_parquet_say_the_same_as_csv(tmp_path):
    frame = pd.DataFrame(ROWS, columns=HEADER)
    frame.to_excel(tmp_path / "data.xlsx", index=False)
    frame.to_parquet(tmp_path / "data.parquet")
    for name, words in (("data.xlsx", "Excel"), ("data.parquet", "Parquet")):
        table = read_table(tmp_path / name)
        assert table.frame["Größe"].tolist() == [1.5, 2.5, 3.0]
        assert table.frame["tyre"].tolist() == ["A", "B", "A"]
        assert table.written == words


def test_excel_with_several_sheets_and_rows_above_the_header(tmp_path):
    with pd.ExcelWriter(tmp_path / "data.xlsx") as book:
        frame = pd.DataFrame({"when": pd.to_datetime(["2024-01-02", "2024-01-03"]), "y": [1.5, "bad"]})
        frame.to_excel(book, sheet_name="Runs", index=False, startrow=2)
        frame.to_excel(book, sheet_name="Other")
    table = read_table(tmp_path / "data.xlsx")
    assert table.written == "Excel, first of 2 sheets: Runs"
    assert read_column(table, "when").kind == "date"
    with pytest.raises(DataError, match="'bad' in row 5"):
        readable(table, "y", dates=False)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".xlsx", ".parquet"])
def test_tables_written_are_read_again(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    frame = pd.DataFrame(ROWS, columns=HEADER)
    path.write_bytes(table_bytes(frame, suffix))
    assert read_table(path, ids=["tyre"]).frame.to_numpy().tolist() == ROWS


# Dates


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-04-03", "2024-04-14"],
        ["2024-04-03T12:30", "2024-04-14T12:30"],
        ["2024-04-03 12:30:00+02:00", "2024-04-14 10:30:00Z"],
        ["03.04.2024", "14.04.2024"],
        ["03.04.2024 12:30", "14.04.2024 12:30"],
        ["2024/04/03", "2024/04/14"],
        ["03/04/2024", "14/04/2024"],
        ["04/03/2024", "04/14/2024"],
        ["03-Apr-2024", "14-Apr-2024"],
        ["3 April 2024", "14 April 2024"],
    ],
)
def test_dates_of_common_formats(tmp_path, texts):
    table = read(tmp_path, "when;y\n" + "\n".join(f"{text};1" for text in texts) + "\n")
    column = readable(table, "when", dates=True)
    assert column.kind == "date"
    assert [(when.year, when.month, when.day) for when in column.values] == [(2024, 4, 3), (2024, 4, 14)]
    assert column.values.dt.tz is None


def test_offsets_count_in_utc(tmp_path):
    table = read(tmp_path, "when,y\n2024-04-03 12:30:00+02:00,1\n2024-04-03 10:30:00Z,1\n")
    assert readable(table, "when", dates=True).values.dt.hour.tolist() == [10, 10]


# Words for what is wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv is empty; it needs a line of column names"),
        ("\n \n\n", "data.csv is empty; it needs a line of column names"),
        ('""\n""\n', "data.csv is empty; it needs a line of column names"),
        ("a,b\n", "has column names but no rows of data below them"),
        ("a,b,a\n1,2,3\n", "has two columns called 'a'; rename one of them"),
        (
            "a,b\n1,2\n1,2,3\n",
            "line 3 has 3 fields where the header has 2; put values that hold the delimiter in quotes",
        ),
        ("a,b\n1,2,3\n1,2,3\n", "some have more fields where the header has 2"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)


def test_paths_that_are_no_tables(tmp_path):
    (tmp_path / "brakes.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"there is no file .*break.csv \(did you mean 'brakes.csv'\?\)"):
        read_table(tmp_path / "break.csv")
    with pytest.raises(DataError, match="is a folder; give the path of a file"):
        read_table(tmp_path)
    with pytest.raises(DataError, match=r"unknown ending; give a table as CSV \(.csv, .tsv, .txt\), Excel"):
        read_table(written(tmp_path, "a,b\n1,2\n", name="data.json"))


def test_files_that_are_not_what_their_ending_says(tmp_path):
    pd.DataFrame({"a": [1]}).to_excel(tmp_path / "book.xlsx")
    (tmp_path / "book.csv").write_bytes((tmp_path / "book.xlsx").read_bytes())
    with pytest.raises(DataError, match=r"is not a text file; give Excel and Parquet files their own endings"):
        read_table(tmp_path / "book.csv")
    for name in ("text.xlsx", "text.parquet"):
        with pytest.raises(DataError, match="cannot be read as"):
            read_table(written(tmp_path, "a,b\n1,2\n", name=name))
    path = written(tmp_path, as_text(";", ","), encoding="utf-16")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data\.csv begins as UTF-16 text but does not go on so; it is damaged"):
        read_table(path)


# Excel files that would do harm


def test_an_excel_file_that_would_fill_the_memory_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.xlsx"
    path.write_bytes(table_bytes(pd.DataFrame({"a": [1]}), ".xlsx"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("xl/more.xml", b"")
        archive.infolist()[-1].file_size = 1_100_000_000  # so says the list of what is in the archive
    with pytest.raises(DataError, match=r"bomb\.xlsx would take 1\.1 GB once unpacked; save the table as CSV"):
        read_table(path)


def test_a_cell_far_from_the_table_is_told_of_before_memory_is_taken(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active["A1"], book.active["XFD1048576"] = "x", 1
    book.save(tmp_path / "far.xlsx")
    words = r"far\.xlsx reaches to row 1048576 and column 16384, mostly empty; delete the cells that stand far"
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "far.xlsx")


def test_text_that_begins_like_a_formula_is_text_in_an_excel_file(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"=A1": ["=1+1", '=HYPERLINK("http://a")', "plain"], "n": [1, 2, 3]})
    (tmp_path / "out.xlsx").write_bytes(table_bytes(frame, ".xlsx"))
    cells = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    assert {cell.data_type for row in cells.iter_rows() for cell in row} == {"s", "n"}
    pd.testing.assert_frame_equal(read_table(tmp_path / "out.xlsx").frame, frame, check_dtype=False)
    with pytest.raises(DataError, match="holds a control character, which Excel cannot"):
        table_bytes(pd.DataFrame({"a": ["\x1b[2J"]}), ".xlsx")


@pytest.mark.parametrize(("suffix", "library"), [(".xlsx", "openpyxl"), (".parquet", "pyarrow")])
def test_what_to_install_is_said(tmp_path, monkeypatch, suffix, library):
    path = tmp_path / f"data{suffix}"
    path.write_bytes(table_bytes(pd.DataFrame({"a": [1]}), suffix))
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingError, match=rf'{suffix} files need {library}.*pip install "lvmogp\[files\]"'):
        read_table(path)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (
            "Speed,tyre,y\n1,A,2\n",
            "tire",
            r"no column 'tire' \(did you mean 'tyre'\?\); its columns are: Speed, tyre, y",
        ),
        ("Speed,tyre,y\n1,A,2\n", "speed", r"no column 'speed' \(did you mean 'Speed'\?\)"),
        ("speed|tyre|y\n1|A|2\n", "speed", r"only one column, 'speed\|tyre\|y', was found; separate columns by"),
    ],
)
def test_missing_columns(tmp_path, text, name, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text).check_columns([name])


DATES = "when,y\n2024-04-03,1\n2024-04-04,1\n"


@pytest.mark.parametrize(
    ("text", "name", "dates", "message"),
    [
        (
            'x,comment\n1,"two\nlines"\n\n2,\nfast,\n3,\nslow,\n4,\n',  # lines count after quoted line breaks too
            "x",
            False,
            r"must hold numbers, got 'fast' in line 6 \(and 1 more\); correct it, or leave",
        ),
        (
            'x,y\n1,"1,250"\n2.5,900\n3.5,800\n',
            "y",
            False,
            "'1,250' in line 2; numbers are read here with a decimal point",
        ),
        ('x,y\n1,"1,250"\n2,900\n3,800\n', "y", False, "a decimal point: leave out separators of thousands"),
        ("x;y\n1,5;1.250,5\n2,5;900\n3,5;800\n", "y", False, "numbers are read here with a decimal comma"),
        ("x,y\n1,\n2,NA\n", "y", False, "column 'y' of .* holds no values"),
        (DATES + "2024-04-31,1\n", "when", True, "must hold numbers or dates, got '2024-04-31' in line 4; correct it"),
        (DATES, "when", False, "'when' of .* must hold numbers, got '2024-04-03' in line 2; choose another"),
        (
            "when,y\n03/04/2024,1\n05/06/2024,2\n",
            "when",
            True,
            "'03/04/2024' that may begin with the day or with the month; write them as",
        ),
    ],
)
def test_columns_that_cannot_be_read(tmp_path, text, name, dates, message):
    with pytest.raises(DataError, match=message):
        readable(read(tmp_path, text), name, dates=dates)


# Ids of conditions


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "12", "-3", "0"], [1, 12, -3, 0]),
        (["007", "8"], ["007", "8"]),
        (["1", "1.0"], ["1", "1.0"]),
        (["1e5"], ["1e5"]),
        (["A", "1"], ["A", "1"]),
        (["1\u0663", "13"], ["1\u0663", "13"]),  # a digit of another script
        ([str(2**53 + 1)], [2**53 + 1]),
    ],
)
def test_ids_are_numbers_only_if_their_text_says_exactly_that(texts, expected):
    assert ids_of_texts(texts) == expected


def test_ids_keep_their_text_and_only_empty_ones_are_missing(tmp_path):
    table = read(tmp_path, "tyre,y\n007,1\nNA,2\n,3\n 8 ,4\n")
    assert id_texts(table.column("tyre")).tolist() == ["007", "NA", None, "8"]


LARGE = 2**53 + 1  # no float


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1.0, np.nan, 3.0], ["1", None, "3"]),
        (pd.array([LARGE, None, 3], dtype="Int64"), [str(LARGE), None, "3"]),
        (pd.Categorical(["b", None, " a "]), ["b", None, "a"]),
        ([True, None, 2.5], ["True", None, "2.5"]),
    ],
)
def test_ids_of_any_make_are_the_text_they_are_written_as(ids, expected):
    assert id_texts(pd.Series(ids)).tolist() == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pd.array([LARGE, None, LARGE + 1, 7], dtype="Int64"), [LARGE, LARGE + 1, 7]),
        (["7", None, "8", " 7"], ["7", "8", "7"]),
        ([7.0, np.nan, 8.0, 7.0], ["7", "8", "7"]),
    ],
    ids=["whole", "text", "floats"],
)
@pytest.mark.parametrize("foreign", [False, True])
def test_a_parquet_file_says_by_its_types_which_ids_are_whole_numbers(tmp_path, ids, expected, foreign):
    """Whether it is read at once or in pieces, and whoever wrote it."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pandas(pd.DataFrame({"x": np.arange(4.5, 8), "id": ids, "y": np.arange(4.0)}))
    path = tmp_path / "data.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table.replace_schema_metadata() if foreign else table, path)
    rows = complete_rows(read_table(path, ids=["id"]), Roles(condition="id", output="y"))
    assert rows.ids == expected
    assert rows.left_out == {"id": 1}
    with open_parquet(path, output="y", condition="id") as store:
        assert [store.ids[number] for number in store.conditions] == expected


def test_ids_given_as_text_find_those_of_the_model():
    assert known_ids(["3", "1"], [1, 3]) == [3, 1]
    assert known_ids(["2.5"], [2.5, "a"]) == [2.5]
    with pytest.raises(
        UnknownConditionError, match=r"no condition 'tire-A' \(did you mean 'tyre-A'\?\); add it with 'lvm"
    ):
        known_ids(["tire-A"], ["tyre-A", "tyre-B"])
    assert new_ids([5, 1], [1, 3]) == [5, 1]
    assert new_ids(["x", "1"], [1, 3]) == ["x", 1]
    assert new_ids([5], ["A", "B"]) == ["5"]
    assert new_ids([5], [1, "B"]) == ["5"]


# The parts columns play

ROLES = Roles((), "tyre", "distance")
LONG = """speed,when,tyre,comment,distance
1.5,2024-01-02,A,x,3
2.5,2024-01-03,B,,4
3.5,2024-01-04,A,y,
,2024-01-05,B,y,5
2,2024-01-06,,,6
2,2024-01-07,B,,6
"""


def test_inputs_are_all_other_numbers_and_dates(tmp_path):
    found = complete_rows(read(tmp_path, LONG), ROLES)
    assert list(found.X.columns) == ["speed", "when"]
    assert found.dates == ("when",)
    assert found.ignored == ("comment",)
    assert found.left_out == {"distance": 1, "tyre": 1, "speed": 1}
    assert (found.n_rows, found.n_points, found.conditions) == (6, 3, ["A", "B"])
    assert found.X["speed"].tolist() == [1.5, 2.5, 2.0]
    assert found.ids == ["A", "B", "B"]
    assert found.X["when"].dt.day.tolist() == [2, 3, 7]
    assert found.y.tolist() == [3.0, 4.0, 6.0]
    assert found.y.name == "distance"


def test_named_inputs_only(tmp_path):
    found = complete_rows(read(tmp_path, LONG), ROLES._replace(inputs=("when",)))
    assert list(found.X.columns) == ["when"]
    assert found.n_points == 4


@pytest.mark.parametrize(
    ("text", "roles", "message"),
    [
        (LONG, Roles(("speed",), "tyre", "speed"), "column 'speed' was named twice"),
        (
            LONG.replace("2.5,", "fast,"),
            ROLES,
            "got 'fast' in line 3; correct .*; or leave the column out by naming the inputs",
        ),
        (
            "tyre,distance,comment\nA,1,x\nB,2,y\n",
            ROLES,
            "no column of numbers or dates left to be an input beside tyre and distance",
        ),
        ("tyre,distance,x\nA,1,\n,2,3\n", ROLES, "no row of .* has all of x, tyre, distance"),
    ],
)
def test_tables_without_what_is_needed(tmp_path, text, roles, message):
    with pytest.raises(DataError, match=message):
        complete_rows(read(tmp_path, text), roles)


@pytest.mark.parametrize(
    ("name", "values", "is_key"),
    [
        ("order", range(1, 31), True),  # a row number
        ("code", [10_000_000 + 37 * place**2 for place in range(30)], True),  # a key of a database
        ("sample_id", [7 * place for place in range(30)], True),
        ("pressure", [900 + 7 * place for place in range(30)], False),  # measured in whole units
        ("order", range(1, 11), False),  # too few rows to tell
        ("speed", [place + 0.5 for place in range(30)], False),
        ("day", [place % 10 for place in range(30)], False),
    ],
)
def test_row_numbers_and_keys_are_known_when_seen(tmp_path, name, values, is_key):
    table = read(tmp_path, f"{name},y\n" + "\n".join(f"{value},1" for value in values) + "\n")
    assert looks_like_key(read_column(table, name)) is is_key


def test_a_key_is_an_input_only_if_named(tmp_path):
    lines = "\n".join(f"{8_000_000_000 + place},{place / 7},{'AB'[place % 2]},{place}" for place in range(30))
    table = read(tmp_path, f"id,x,tyre,y\n{lines}\n")
    with pytest.raises(
        DataError, match=r"'id' of .* looks like a row number or key \(30 different whole numbers in 30 r"
    ):
        complete_rows(table, Roles((), "tyre", "y"))
    assert list(complete_rows(table, Roles(("id",), "tyre", "y")).X.columns) == ["id"]


WIDE = "t,7,8,note,9\n0,1.5,2.5,x,\n1,,3.5,y,\n,1,1,z,\n2,4,5,z,\n"


def test_wide_form(tmp_path):
    found = wide_rows(read(tmp_path, WIDE), [])
    assert list(found.X.columns) == ["t"]
    assert found.ignored == ("note", "9")
    assert (found.n_points, found.conditions, found.left_out) == (5, [7, 8], {"t": 1})
    np.testing.assert_array_equal(found.y.to_numpy(), [[1.5, 2.5], [np.nan, 3.5], [4, 5]])


def test_wide_form_with_named_inputs(tmp_path):
    found = wide_rows(read(tmp_path, "a,x,b\n1,0.5,3\n2,1.5,4\n"), ["x"])
    assert list(found.X.columns) == ["x"]
    assert found.y.to_dict("list") == {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    with pytest.raises(DataError, match="column 't' was named twice"):
        wide_rows(read(tmp_path, WIDE), ["t", "t"])
    with pytest.raises(DataError, match="has no column of numbers beside t; is it in long form?"):
        wide_rows(read(tmp_path, "t,a\n0,x\n1,y\n"), [])


def test_rows_for_a_model_must_hold_what_it_knows(tmp_path):
    table = read(tmp_path, LONG)
    rows = complete_rows(table, Roles(("speed",), "tyre", "distance"), dates=[])
    assert rows.X["speed"].tolist() == [1.5, 2.5, 2.0]
    assert rows.ids == ["A", "B", "B"]
    assert rows.y_std is None
    only = complete_rows(table, Roles(("when",), errors="speed"), dates=["when"])
    assert (len(only.X), only.y, only.ids, only.dates) == (5, None, None, ("when",))
    assert only.y_std.tolist() == [1.5, 2.5, 3.5, 2.0, 2.0]
    with pytest.raises(DataError, match="column 'speed' of .* must hold dates, as those the model was fitted to"):
        complete_rows(table, Roles(("speed",)), dates=["speed"])
    with pytest.raises(DataError, match="'when' of .* must hold numbers, got '2024-01-02' in line 2"):
        complete_rows(table, Roles(("when",)), dates=[])
