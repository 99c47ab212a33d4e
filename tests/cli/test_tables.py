"""Users' files: what is found by itself, and the words for what is wrong."""

import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from lvmogp.cli.files.roles import Roles, complete_rows, id_texts, ids_of_texts, model_ids, read_column, wide_rows
from lvmogp.cli.files.tables import read_table, table_bytes
from lvmogp.errors import DataError, SettingError

HEADER = ["Größe", "tyre", "distance"]
ROWS = [[1.5, "A", 10.25], [2.5, "B", 20.5], [3.0, "A", 11.0]]
LARGE = 2**53 + 1  # no float


def written(tmp_path, text, name="data.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


def as_text(delimiter, decimal):
    lines = [HEADER, *[[str(value).replace(".", decimal) for value in row] for row in ROWS]]
    return "\n".join(delimiter.join(line) for line in lines) + "\n"


def read(tmp_path, text, **options):
    return read_table(written(tmp_path, text, **options), ids=["tyre"])


def refused(message):
    return pytest.raises(DataError, match=message)


@pytest.mark.parametrize(
    ("encoding", "words"),
    [("utf-8", "UTF-8"), ("utf-8-sig", "UTF-8"), ("cp1252", "Windows-1252"), ("utf-16", "UTF-16")],
)
@pytest.mark.parametrize(
    ("delimiter", "decimal", "name"),
    [(",", ".", "comma"), (";", ",", "semicolon"), (";", ".", "semicolon"), ("\t", ",", "tab"), ("\t", ".", "tab")],
)
def test_one_table_is_read_however_it_is_written(tmp_path, delimiter, decimal, name, encoding, words):
    table = read(tmp_path, as_text(delimiter, decimal), encoding=encoding)
    assert list(table.frame.columns) == HEADER
    assert table.frame.to_numpy().tolist() == ROWS
    mark = {".": "point", ",": "comma"}[decimal]
    assert table.written == f"{name}-separated, decimal {mark}, {words}"


@pytest.mark.parametrize(
    ("text", "column", "values", "words"),
    [
        ("speed, m/s;y, m;tyre\n12,5;30,1;A\n13,5;31,1;B\n", "speed, m/s", [12.5, 13.5], "semicolon-separated"),
        ('x,y,tyre\n"1,5","2,25",A\n"2,5","3,75",B\n', "y", [2.25, 3.75], "comma-separated, decimal comma"),
        ("speed\n1,5\n2,5\n", "speed", [1.5, 2.5], "one column, decimal comma, UTF-8"),
        ("a,b\n1,x\n2,\u0663.\u0665\n3,\n", "a", [1, 2, 3], "comma-separated, decimal point, UTF-8"),
        (b"a,tyre\n1,\x81\xe4\n", "tyre", ["\x81ä"], "comma-separated, decimal point, latin-1"),
    ],
    ids=["commas in the header", "quoted decimals", "one column", "digits of another script", "no other encoding"],
)
def test_delimiters_decimal_marks_and_encodings_are_told_apart(tmp_path, text, column, values, words):
    table = read(tmp_path, text)
    assert table.frame[column].tolist() == values
    assert table.written.startswith(words)


def test_blank_lines_blank_fields_and_a_delimiter_at_the_end_of_each_line(tmp_path):
    table = read(tmp_path, "\nx , y,tyre,\n\n1, 2,A,\n\n3,NA,B,\n4,-,C,\n\n")
    assert list(table.frame.columns) == ["x", "y", "tyre"]
    assert table.frame["x"].tolist() == [1, 3, 4]
    assert table.frame["y"].isna().tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("suffix", "words"), [(".csv", "comma-"), (".tsv", "tab-"), (".xlsx", "Excel"), (".parquet", "Parquet")]
)
def test_tables_written_are_read_again(tmp_path, suffix, words):
    table = read(tmp_path, table_bytes(pd.DataFrame(ROWS, columns=HEADER), suffix), name=f"out{suffix}")
    assert table.frame.to_numpy().tolist() == ROWS
    assert table.written.startswith(words)


def test_excel_with_several_sheets_and_rows_above_the_header(tmp_path):
    with pd.ExcelWriter(tmp_path / "data.xlsx") as book:
        frame = pd.DataFrame({"when": pd.to_datetime(["2024-01-02", "2024-01-03"]), "y": [1.5, "bad"]})
        frame.to_excel(book, sheet_name="Runs", index=False, startrow=2)
        frame.to_excel(book, sheet_name="Other")
    table = read_table(tmp_path / "data.xlsx")
    assert table.written == "Excel, first of 2 sheets: Runs"
    assert read_column(table, "when").kind == "date"
    with refused("'bad' in row 5"):
        read_column(table, "y").checked(dates=False)


@pytest.mark.parametrize(
    ("texts", "time"),
    [
        (["2024-04-03", "2024-04-14"], ""),
        (["2024-04-03T12:30", "2024-04-14T12:30"], "12:30"),
        (["2024-04-03 12:30:00+02:00", "2024-04-14 10:30:00Z"], "10:30"),
        (["03.04.2024", "14.04.2024"], ""),
        (["03.04.2024 12:30", "14.04.2024 12:30"], "12:30"),
        (["2024/04/03", "2024/04/14"], ""),
        (["03/04/2024", "14/04/2024"], ""),
        (["04/03/2024", "04/14/2024"], ""),
        (["03-Apr-2024", "14-Apr-2024"], ""),
        (["3 April 2024", "14 April 2024"], ""),
    ],
)
def test_dates_of_common_formats_in_utc(tmp_path, texts, time):
    table = read(tmp_path, "when;y\n" + "\n".join(f"{text};1" for text in texts) + "\n")
    column = read_column(table, "when").checked(dates=True)
    assert column.kind == "date"
    assert column.values.tolist() == [pd.Timestamp(f"{day} {time}") for day in ("2024-04-03", "2024-04-14")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv is empty; it needs a line of column names"),
        ("\n \n\n", "data.csv is empty; it needs a line of column names"),
        ('""\n""\n', "data.csv is empty; it needs a line of column names"),
        ("a,b\n", "has column names but no rows of data below them"),
        ("a,b,a\n1,2,3\n", "two columns of .*data.csv have the same name 'a'; rename one"),
        ("column 2,\n1,2\n", "have the same name 'column 2'; rename one of them"),
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 fields where the header has 2; put values that hold the delimiter in"),
        ("a,b\n1,2,3\n1,2,3\n", "some have more fields where the header has 2"),
        (as_text(";", ",").encode("utf-16")[:-1], r"data\.csv begins as UTF-16 text but does not go on so"),
        (table_bytes(pd.DataFrame({"a": [1]}), ".xlsx"), "is not a text file; give Excel and Parquet files their own"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, message):
    with refused(message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("break.csv", r"there is no file .*break.csv \(did you mean 'brakes.csv'\?\)"),
        ("", "is a folder; give the path of a file"),
        ("data.json", r"unknown ending; give a table as CSV \(.csv, .tsv, .txt\), Excel"),
        ("text.xlsx", "cannot be read as an Excel file"),
        ("text.parquet", "cannot be read as a Parquet file"),
    ],
)
def test_paths_that_are_no_tables_or_other_ones_than_their_ending_says(tmp_path, name, message):
    for there in ("brakes.csv", "data.json", "text.xlsx", "text.parquet"):
        written(tmp_path, "a,b\n1,2\n", name=there)
    with refused(message):
        read_table(tmp_path / name)


def test_an_excel_file_that_would_fill_the_memory_is_not_unpacked(tmp_path):
    path = written(tmp_path, table_bytes(pd.DataFrame({"a": [1]}), ".xlsx"), name="bomb.xlsx")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("xl/more.xml", b"")
        archive.infolist()[-1].file_size = 1_100_000_000  # so says the list of what is in the archive
    with refused(r"bomb\.xlsx would take 1\.1 GB once unpacked; save the table as CSV"):
        read_table(path)


def test_a_cell_far_from_the_table_is_told_of_before_memory_is_taken(tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    book.active["A1"], book.active["XFD1048576"] = "x", 1
    book.save(tmp_path / "far.xlsx")
    with refused(r"far\.xlsx reaches to row 1048576 and column 16384, mostly empty; delete the cells that stand far"):
        read_table(tmp_path / "far.xlsx")


def test_text_that_begins_like_a_formula_is_text_in_an_excel_file(tmp_path):
    frame = pd.DataFrame({"=A1": ["=1+1", '=HYPERLINK("http://a")', "plain"], "n": [1, 2, 3]})
    path = written(tmp_path, table_bytes(frame, ".xlsx"), name="out.xlsx")
    cells = pytest.importorskip("openpyxl").load_workbook(path).active
    assert {cell.data_type for row in cells.iter_rows() for cell in row} == {"s", "n"}
    pd.testing.assert_frame_equal(read_table(path).frame, frame, check_dtype=False)
    with refused("holds a control character, which Excel cannot"):
        table_bytes(pd.DataFrame({"a": ["\x1b[2J"]}), ".xlsx")


@pytest.mark.parametrize(("suffix", "library"), [(".xlsx", "openpyxl"), (".parquet", "pyarrow")])
def test_what_to_install_is_said(tmp_path, monkeypatch, suffix, library):
    path = written(tmp_path, table_bytes(pd.DataFrame({"a": [1]}), suffix), name=f"data{suffix}")
    for name in [library, *(name for name in sys.modules if name.partition(".")[0] == library)]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingError, match=rf'{suffix} files need {library}.*pip install "lvmogp\[files\]"'):
        read_table(path)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "12", "-3", "0"], [1, 12, -3, 0]),
        (["007", "8"], ["007", "8"]),
        (["1", "1.0"], ["1", "1.0"]),
        (["1e5"], ["1e5"]),
        (["A", "1"], ["A", "1"]),
        (["1\u0663", "13"], ["1\u0663", "13"]),  # a digit of another script
        ([str(LARGE)], [LARGE]),
    ],
)
def test_ids_are_numbers_only_if_their_text_says_exactly_that(texts, expected):
    assert ids_of_texts(texts) == expected


def test_ids_of_any_make_are_the_text_they_are_written_as(tmp_path):
    assert id_texts(pd.Series([1.0, np.nan, 3.0])).tolist() == ["1", None, "3"]
    assert id_texts(pd.Series([True, None, 2.5])).tolist() == ["True", None, "2.5"]
    table = read(tmp_path, "tyre,y\n007,1\nNA,2\n,3\n 8 ,4\n")
    assert id_texts(table.frame["tyre"]).tolist() == ["007", "NA", None, "8"]


def test_ids_given_as_text_find_those_of_the_model():
    assert model_ids(["3", "1"], [1, 3], may_be_new=False) == [3, 1]
    assert model_ids(["2.5"], [2.5, "a"], may_be_new=False) == [2.5]
    assert model_ids([5, 1], [1, 3]) == [5, 1]
    assert model_ids(["x", "1"], [1, 3]) == ["x", 1]
    assert model_ids([5], ["A", "B"]) == ["5"]
    assert model_ids([5], [1, "B"]) == ["5"]


ROLES = Roles((), "tyre", "distance")
LONG = """speed,when,tyre,comment,distance
1.5,2024-01-02,A,x,3
2.5,2024-01-03,B,,4
3.5,2024-01-04,A,y,
,2024-01-05,B,y,5
2,2024-01-06,,,6
2,2024-01-07,B,,6
"""


def test_inputs_are_all_other_numbers_and_dates_unless_named(tmp_path):
    table = read(tmp_path, LONG)
    found = complete_rows(table, ROLES)
    assert found.ignored == ("comment",)
    assert found.left_out == {"distance": 1, "tyre": 1, "speed": 1}
    assert found.X["speed"].tolist() == [1.5, 2.5, 2.0]
    assert found.X["when"].dt.day.tolist() == [2, 3, 7]
    assert (found.ids, found.y.tolist(), found.y.name) == (["A", "B", "B"], [3.0, 4.0, 6.0], "distance")
    named = complete_rows(table, ROLES._replace(inputs=("speed",)), dates=[])
    assert (list(named.X.columns), named.ids, named.y_std) == (["speed"], ["A", "B", "B"], None)
    only = complete_rows(table, Roles(("when",), errors="speed"), dates=["when"])
    assert (list(only.X.columns), len(only.X), only.y, only.ids) == (["when"], 5, None, None)
    assert only.y_std.tolist() == [1.5, 2.5, 3.5, 2.0, 2.0]


KEYS = "\n".join(f"{8_000_000_000 + place},{place / 7},{'AB'[place % 2]},{place}" for place in range(30))
DATES = "x,y\n2024-04-03,1\n2024-04-04,1\n"
X = Roles(("x",))


@pytest.mark.parametrize(
    ("text", "roles", "dates", "message"),
    [
        (LONG, Roles(("Speed",)), None, r"'Speed' \(did you mean 'speed'\?\); its columns are: speed, when, tyre, c"),
        ("x|tyre|y\n1|A|2\n", X, None, r"only one column, 'x\|tyre\|y', was found; separate columns by"),
        (LONG, Roles(("speed",), "tyre", "speed"), None, "column 'speed' was named twice"),
        (LONG.replace("2.5,", "fast,"), ROLES, None, "'fast' in line 3; correct .*; or leave the column out by naming"),
        ("tyre,distance,z\nA,1,x\nB,2,y\n", ROLES, None, "left to be an input beside tyre and distance"),
        ("tyre,distance,x\nA,1,\n,2,3\n", ROLES, None, "no row of .* has all of x, tyre, distance"),
        (LONG, Roles(("speed",)), ["speed"], "'speed' of .* must hold dates, as those the model was fitted to"),
        (f"id,x,tyre,y\n{KEYS}", Roles((), "tyre", "y"), None, r"'id' .* row number or key \(30 different whole numb"),
        # lines count after quoted line breaks too
        ('x,z\n1,"two\nlines"\n\n2,\nfast,\n3,\nslow,\n4,\n', X, [], r"'fast' in line 6 \(and 1 more\); correct it"),
        ('y,x\n1,"1,250"\n2.5,900\n3.5,800\n', X, [], "'1,250' in line 2; numbers are read here with a decimal point"),
        ('y,x\n1,"1,250"\n2,900\n3,800\n', X, [], "a decimal point: leave out separators of thousands"),
        ("y;x\n1,5;1.250,5\n2,5;900\n3,5;800\n", X, [], "numbers are read here with a decimal comma"),
        ("x,y\n,1\nNA,2\n", X, [], "column 'x' of .* holds no values"),
        (DATES + "2024-04-31,1\n", X, None, "must hold numbers or dates, got '2024-04-31' in line 4; correct it"),
        (DATES, X, [], "'x' of .* must hold numbers, got '2024-04-03' in line 2; choose another"),
        ("x,y\n03/04/2024,1\n05/06/2024,2\n", X, None, "'03/04/2024' that may begin with the day or with the month"),
    ],
)
def test_tables_without_what_is_needed(tmp_path, text, roles, dates, message):
    with refused(message):
        complete_rows(read(tmp_path, text), roles, dates=dates)


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
def test_row_numbers_and_keys_are_inputs_only_if_named(tmp_path, name, values, is_key):
    table = read(tmp_path, f"{name},y\n" + "\n".join(f"{value},1" for value in values) + "\n")
    assert read_column(table, name).looks_like_key is is_key
    assert list(complete_rows(table, Roles((name,), None, "y")).X.columns) == [name]


WIDE = "t,7,8,note,9\n0,1.5,2.5,x,\n1,,3.5,y,\n,1,1,z,\n2,4,5,z,\n"


def test_wide_form(tmp_path):
    found = wide_rows(read(tmp_path, WIDE), [])
    assert list(found.X.columns) == ["t"]
    assert found.ignored == ("note", "9")
    assert (list(found.y), found.left_out) == ([7, 8], {"t": 1})
    np.testing.assert_array_equal(found.y.to_numpy(), [[1.5, 2.5], [np.nan, 3.5], [4, 5]])
    found = wide_rows(read(tmp_path, "a,x,b\n1,0.5,3\n2,1.5,4\n"), ["x"])
    assert list(found.X.columns) == ["x"]
    assert found.y.to_dict("list") == {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    with refused("column 't' was named twice"):
        wide_rows(read(tmp_path, WIDE), ["t", "t"])
    with refused("has no column of numbers beside t; is it in long form?"):
        wide_rows(read(tmp_path, "t,a\n0,x\n1,y\n"), [])
