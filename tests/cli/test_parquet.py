"""Parquet files read in pieces: the values, ids and dates that pandas reads, and words for what cannot be read."""

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lvmogp import open_parquet
from lvmogp.cli.files.roles import Roles, complete_rows
from lvmogp.cli.files.tables import read_table
from lvmogp.errors import DataError, SettingError

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
ROLES = {"output": "y", "condition": "site"}
LARGE = 2**53 + 1  # no float


def frame(n_rows: int = 50, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": [f"s{each}" for each in rng.integers(0, 4, n_rows)],
            "when": pd.Timestamp("2024-03-01 06:00") + pd.to_timedelta(rng.integers(0, 500, n_rows), unit="h"),
            "speed": rng.normal(size=n_rows).astype(np.float32),
            "count": rng.integers(0, 9, n_rows),
            "y": rng.normal(size=n_rows),
        }
    )


@pytest.fixture
def file(tmp_path) -> Path:
    frame().to_parquet(tmp_path / "a.parquet", row_group_size=12)
    return tmp_path / "a.parquet"


@pytest.fixture
def pieces(monkeypatch):
    """Set how many rows are read at once."""
    return lambda n_rows: monkeypatch.setattr("lvmogp.cli.files.parquet._ROWS_AT_ONCE", n_rows)


def test_values_are_those_that_pandas_reads(file, pieces, tmp_path):
    pieces(10)
    wanted, seen = pd.read_parquet(file), []
    place = tmp_path / "place"
    place.mkdir()
    with open_parquet(file, **ROLES, folder=place, on_progress=lambda *counts: seen.append(counts)) as store:
        assert list(place.iterdir()) == []  # files without names: a process that is killed leaves nothing behind
        assert store.columns == ("when", "speed", "count")
        assert (store.date_columns, store.output_name) == (("when",), "y")
        assert store.ids == tuple(dict.fromkeys(wanted["site"]))  # in the order in which they come
        days = (wanted["when"] - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        np.testing.assert_array_equal(store.inputs, np.column_stack([days, wanted["speed"], wanted["count"]]))
        np.testing.assert_array_equal(store.outputs, wanted["y"])
        assert [store.ids[each] for each in store.conditions] == list(wanted["site"])
        assert all(isinstance(column, np.memmap) for column in store[:3])
    # Row groups of twelve in batches of ten.
    assert seen == [(rows, 50) for rows in (10, 12, 22, 24, 34, 36, 46, 48, 50)]
    with open_parquet(file, **ROLES, inputs=["count", "speed"]) as store:
        assert store.columns == ("count", "speed")
        np.testing.assert_array_equal(store.inputs, wanted[["count", "speed"]].to_numpy())


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        (pd.Series([7, 3, 7, 3], dtype="int8"), [7, 3, 7, 3]),
        (pd.array([LARGE, None, LARGE + 1, 7], dtype="Int64"), [LARGE, LARGE + 1, 7]),
        (["7", " 3", "7 ", " "], ["7", "3", "7"]),
        (pd.Categorical(["b", "a", "b", None]), ["b", "a", "b"]),
        (pd.Series([7, 3, 7, 3], dtype="category"), [7, 3, 7, 3]),
        ([7.0, np.nan, 3.0, 7.0], ["7", "3", "7"]),
    ],
    ids=["int8", "whole with gaps", "text", "categories", "whole categories", "floats"],
)
@pytest.mark.parametrize("foreign", [False, True])
def test_the_types_of_a_file_say_whether_ids_are_whole_numbers_or_text(tmp_path, pieces, ids, wanted, foreign):
    """Whether it is read in pieces, some of which have gaps and others none, or at once, and whoever wrote it."""
    pieces(2)
    table = pyarrow.Table.from_pandas(pd.DataFrame({"x": np.arange(4.5, 8), "site": ids, "y": np.arange(4.0)}))
    # Another program writes no notes from which pandas knows its own types again.
    pyarrow.parquet.write_table(table.replace_schema_metadata() if foreign else table, tmp_path / "a.parquet")
    with open_parquet(tmp_path / "a.parquet", **ROLES) as store:
        found = [store.ids[number] for number in store.conditions]
    rows = complete_rows(read_table(tmp_path / "a.parquet", ids=["site"]), Roles(condition="site", output="y"))
    for each in (found, rows.ids):
        assert each == wanted
        assert [type(name) for name in each] == [type(name) for name in wanted]
    assert rows.left_out == ({"site": 1} if len(wanted) == 3 else {})


def test_rows_with_something_missing_are_left_out(tmp_path, pieces):
    # In pieces, some of which have gaps and others none: an id is the same in all of them.
    pieces(3)
    table = pd.DataFrame(
        {
            "x": [0.0, 1.0, np.nan, 3.0, np.inf, 5.0, 6.0, 7.0],
            "day": [datetime.date(2024, 1, 1), None, *[datetime.date(2024, 1, 2)] * 6],
            "flag": pd.array([True, False, True, None, True, True, False, True], dtype="boolean"),
            "price": [Decimal("1.5"), *[Decimal("2.5")] * 6, None],
            "site": pd.array([LARGE, 2, 2, 2, 2, None, LARGE, 2], dtype="Int64"),
            "y": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5],
        }
    )
    table.to_parquet(tmp_path / "a.parquet")
    with open_parquet(tmp_path / "a.parquet", **ROLES) as store:
        np.testing.assert_array_equal(store.outputs, [0.5, 6.5])
        np.testing.assert_array_equal(store.inputs, [[0, 19723, 1, 1.5], [6, 19724, 0, 2.5]])
        assert (store.ids, store.date_columns) == ((LARGE,), ("day",))


def test_several_files_and_a_folder_follow_each_other(tmp_path):
    tables = {tmp_path / f"{name}.parquet": frame(20, seed) for seed, name in enumerate("abc")}
    for path, table in tables.items():
        table.to_parquet(path)
    first, _, last = tables
    (tmp_path / "notes.txt").write_text("no table")
    for given, order in ((tmp_path, tables), (str(tmp_path), tables), ([last, str(first)], (last, first))):
        wanted = pd.concat([tables[path] for path in order])
        with open_parquet(given, **ROLES) as store:
            np.testing.assert_array_equal(store.outputs, wanted["y"])
            assert [store.ids[each] for each in store.conditions] == list(wanted["site"])


def test_each_part_has_its_own_row_groups(file):
    groups = np.split(pd.read_parquet(file)["y"].to_numpy(), [12, 24, 36, 48])
    for first, expected in ((0, [0, 2, 4]), (1, [1, 3])):
        with open_parquet(file, **ROLES, part=slice(first, None, 2)) as store:
            np.testing.assert_array_equal(store.outputs, np.concatenate([groups[each] for each in expected]))


def refused(paths, **roles) -> str:
    with pytest.raises((DataError, SettingError)) as error, open_parquet(paths, **(ROLES | roles)):
        pass
    return str(error.value)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"output": "z"}, "has no column 'z'; its columns are: site, when, speed, count, y"),
        ({"condition": "z"}, "has no column 'z'"),
        ({"inputs": ["z"]}, "has no column 'z'"),
        ({"output": "site", "condition": "count"}, "column 'site' of"),
        ({"output": "when"}, "must hold numbers, it holds timestamp"),
        ({"inputs": ["site"], "condition": "count"}, "must hold numbers or dates, it holds"),
        ({"part": slice(5, None, 6)}, "there are 5 row groups for 6 processes, so this one has nothing to read; start"),
    ],
)
def test_roles_and_parts_that_do_not_serve_are_named(file, roles, words):
    assert words in refused(file, **roles)


def test_files_that_are_not_there_not_parquet_empty_or_different_are_refused(tmp_path):
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    assert refused(b) == f"there is no file {b}"
    assert "there are no Parquet files (*.parquet) in" in refused(tmp_path)
    b.write_text("x,y\n1,2\n")
    assert f"{b} cannot be read as a Parquet file: " in refused(tmp_path)
    b.unlink()
    pd.DataFrame({"site": ["a"], "y": [1.0]}).to_parquet(a)
    assert "has no column of numbers or dates left to be an input beside y and site" in refused(tmp_path)
    for n_rows in (1, 0):
        pd.DataFrame({"x": [np.nan], "site": ["a"], "y": [1.0]})[:n_rows].to_parquet(a)
        assert refused(tmp_path) == "no row of the files has all of x, y, site"
    frame(9).to_parquet(a)
    frame(9).drop(columns="speed").to_parquet(b)
    assert "b.parquet has no column 'speed'" in refused(tmp_path)
    for other in ({"when": 1.0}, {"site": 1}):
        frame(9).assign(**other).to_parquet(b)
        assert "hold other kinds of values than those of" in refused(tmp_path)
