"""Parquet files read in pieces: the values, ids and dates that pandas reads, and words for what cannot be read."""

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lvmogp import LVMOGPRegressor, open_parquet
from lvmogp.cli.files.parquet import Part
from lvmogp.errors import DataError, SettingError

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")


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


def days(column: pd.Series) -> np.ndarray:
    return ((column - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)).to_numpy()


def test_values_are_those_that_pandas_reads(file, monkeypatch):
    monkeypatch.setattr("lvmogp.cli.files.parquet._ROWS_AT_ONCE", 5)
    wanted = pd.read_parquet(file)
    with open_parquet(file, output="y", condition="site") as store:
        assert store.columns == ("when", "speed", "count")
        assert store.date_columns == ("when",)
        assert store.output_name == "y"
        assert store.ids == tuple(dict.fromkeys(wanted["site"]))  # in the order in which they come
        inputs = np.column_stack([days(wanted["when"]), wanted["speed"], wanted["count"]])
        np.testing.assert_array_equal(store.inputs, inputs)
        np.testing.assert_array_equal(store.outputs, wanted["y"])
        assert [store.ids[each] for each in store.conditions] == list(wanted["site"])
        assert all(isinstance(column, np.memmap) for column in store[:3])


def test_inputs_are_those_named_in_their_order(file):
    with open_parquet(file, output="y", condition="site", inputs=["count", "speed"]) as store:
        assert store.columns == ("count", "speed")
        np.testing.assert_array_equal(store.inputs, pd.read_parquet(file)[["count", "speed"]].to_numpy())


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        (pd.Series([7, 3, 7, 3]), (7, 3)),
        (pd.Series([7, 3, 7, 3], dtype="int8"), (7, 3)),
        (pd.Series(["7", " 3", "7 ", "3"]), ("7", "3")),
        (pd.Series(["b", "a", "b", "a"], dtype="category"), ("b", "a")),
        (pd.Series([7, 3, 7, 3], dtype="category"), (7, 3)),
        (pd.Series([7.0, 3.0, 7.0, 3.0]), ("7", "3")),
    ],
    ids=["int64", "int8", "text", "categories", "whole categories", "floats"],
)
def test_ids_are_whole_numbers_or_text(tmp_path, ids, wanted):
    pd.DataFrame({"x": np.arange(4.0), "id": ids, "y": np.arange(4.0)}).to_parquet(tmp_path / "a.parquet")
    with open_parquet(tmp_path / "a.parquet", output="y", condition="id") as store:
        assert store.ids == wanted
        assert [type(each) for each in store.ids] == [type(each) for each in wanted]
        np.testing.assert_array_equal(store.conditions, [0, 1, 0, 1])


def test_rows_with_something_missing_are_left_out(tmp_path, monkeypatch):
    # In pieces, some of which have gaps and others none: an id is the same in all of them.
    monkeypatch.setattr("lvmogp.cli.files.parquet._ROWS_AT_ONCE", 3)
    large = 2**53 + 1  # no float
    table = pd.DataFrame(
        {
            "x": [0.0, 1.0, np.nan, 3.0, np.inf, 5.0, 6.0, 7.0],
            "day": [datetime.date(2024, 1, 1), None, *[datetime.date(2024, 1, 2)] * 6],
            "flag": pd.array([True, False, True, None, True, True, False, True], dtype="boolean"),
            "price": [Decimal("1.5"), *[Decimal("2.5")] * 6, None],
            "id": pd.array([large, 2, 2, 2, 2, None, large, 2], dtype="Int64"),
            "y": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5],
        }
    )
    table.to_parquet(tmp_path / "a.parquet")
    with open_parquet(tmp_path / "a.parquet", output="y", condition="id") as store:
        np.testing.assert_array_equal(store.outputs, [0.5, 6.5])
        np.testing.assert_array_equal(store.inputs, [[0, 19723, 1, 1.5], [6, 19724, 0, 2.5]])
        assert store.ids == (large,)
        assert store.date_columns == ("day",)


def test_an_id_is_the_same_beside_gaps_and_without(tmp_path, monkeypatch):
    monkeypatch.setattr("lvmogp.cli.files.parquet._ROWS_AT_ONCE", 2)
    # Written by another program, without the notes from which pandas knows its own types again.
    for ids, wanted in (([1, 2, 1, None, 1, 2], (1, 2)), (["1", "2", " 1", " ", "1", "2 "], ("1", "2"))):
        table = pyarrow.table({"x": np.arange(6.0), "id": ids, "y": np.arange(6.0)})
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
        with open_parquet(tmp_path / "a.parquet", output="y", condition="id") as store:
            assert store.ids == wanted
            np.testing.assert_array_equal(store.conditions, [0, 1, 0, 0, 1])
            np.testing.assert_array_equal(store.outputs, [0, 1, 2, 4, 5])


def test_several_files_and_a_folder_follow_each_other(tmp_path):
    tables = [frame(20, seed) for seed in range(3)]
    paths = [tmp_path / f"{name}.parquet" for name in "abc"]
    for path, table in zip(paths, tables, strict=True):
        table.to_parquet(path)
    (tmp_path / "notes.txt").write_text("no table")
    for given, order in ((tmp_path, (0, 1, 2)), (str(tmp_path), (0, 1, 2)), ([paths[2], str(paths[0])], (2, 0))):
        wanted = pd.concat([tables[place] for place in order])
        with open_parquet(given, output="y", condition="site") as store:
            np.testing.assert_array_equal(store.outputs, wanted["y"])
            assert [store.ids[each] for each in store.conditions] == list(wanted["site"])


def test_each_part_has_its_own_row_groups(file, monkeypatch):
    asked = []
    original = pyarrow.parquet.ParquetFile.iter_batches

    def noted(self, *arguments, row_groups, **more):
        asked.extend(row_groups)
        return original(self, *arguments, row_groups=row_groups, **more)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", noted)
    wanted = pd.read_parquet(file)["y"].to_numpy()
    groups = np.split(wanted, [12, 24, 36, 48])
    for first, expected in ((0, [0, 2, 4]), (1, [1, 3])):
        asked.clear()
        with open_parquet(file, output="y", condition="site", part=Part(first, 2)) as store:
            np.testing.assert_array_equal(store.outputs, np.concatenate([groups[each] for each in expected]))
        assert asked == expected


def test_progress_counts_all_rows(file, monkeypatch):
    monkeypatch.setattr("lvmogp.cli.files.parquet._ROWS_AT_ONCE", 10)
    seen = []
    with open_parquet(file, output="y", condition="site", on_progress=lambda *counts: seen.append(counts)):
        pass
    # Row groups of twelve in batches of ten.
    assert seen == [(rows, 50) for rows in (10, 12, 22, 24, 34, 36, 46, 48, 50)]


def test_the_arrays_have_no_names_and_are_gone_afterwards(file, tmp_path):
    """So that even a process that is killed leaves nothing behind."""
    place = tmp_path / "place"
    place.mkdir()
    with open_parquet(file, output="y", condition="site", folder=place) as store:
        assert [path.name[:7] for path in place.rglob("*")] == ["lvmogp-"]
        np.testing.assert_array_equal(store.outputs, pd.read_parquet(file)["y"])
    assert list(place.iterdir()) == []
    with pytest.raises(ZeroDivisionError), open_parquet(file, output="y", condition="site", folder=place):
        _ = 1 / 0
    assert list(place.iterdir()) == []


@pytest.mark.long
def test_a_model_is_fitted_to_what_was_read(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(-1, 1, 400), "id": rng.integers(0, 4, 400)})
    table["y"] = np.sin(3 * table["x"]) + table["id"] + 0.1 * rng.normal(size=400)
    table.to_parquet(tmp_path / "a.parquet", row_group_size=90)
    model = LVMOGPRegressor(
        n_latent=1, inference="stochastic", n_inducing_inputs=6, n_inducing_latents=4, batch_size=64, max_iter=200
    )
    with (
        open_parquet(tmp_path / "a.parquet", output="y", condition="id") as store,
        pytest.warns(UserWarning, match="did not converge"),
    ):
        model.fit(store)
    # The file is no longer needed.
    assert model.conditions_ == (0, 1, 2, 3)
    asked = pd.DataFrame({"x": np.linspace(-0.9, 0.9, 9)})
    np.testing.assert_allclose(model.predict(asked, 2), np.sin(3 * asked["x"]) + 2, atol=0.25)
    assert model.model_.observations is None


# What cannot be read


def refused(paths, **roles) -> str:
    with pytest.raises((DataError, SettingError)) as error, open_parquet(paths, **roles):
        pass
    return str(error.value)


ROLES = {"output": "y", "condition": "site"}


def test_a_file_that_is_not_there_or_not_parquet_is_named(tmp_path):
    assert refused(tmp_path / "b.parquet", **ROLES) == f"there is no file {tmp_path / 'b.parquet'}"
    assert "there are no Parquet files (*.parquet) in" in refused(tmp_path, **ROLES)
    (tmp_path / "b.parquet").write_text("x,y\n1,2\n")
    assert f"{tmp_path / 'b.parquet'} cannot be read as a Parquet file: " in refused(tmp_path, **ROLES)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"output": "z"}, "has no column 'z'; its columns are: site, when, speed, count, y"),
        ({"condition": "z"}, "has no column 'z'"),
        ({"inputs": ["z"]}, "has no column 'z'"),
        ({"output": "site", "condition": "count"}, "column 'site' of"),
        ({"output": "when"}, "must hold numbers, it holds timestamp"),
        ({"inputs": ["site"], "condition": "count"}, "must hold numbers or dates, it holds"),
    ],
)
def test_columns_that_do_not_serve_are_named(file, roles, words):
    assert words in refused(file, **(ROLES | roles))


def test_a_file_without_inputs_or_whole_rows_is_refused(tmp_path):
    pd.DataFrame({"site": ["a"], "y": [1.0]}).to_parquet(tmp_path / "a.parquet")
    assert "has no column of numbers or dates left to be an input beside y and site" in refused(tmp_path, **ROLES)
    pd.DataFrame({"x": [np.nan], "site": ["a"], "y": [1.0]}).to_parquet(tmp_path / "a.parquet")
    assert refused(tmp_path, **ROLES) == "no row of the files has all of x, y, site"


def test_files_that_differ_are_refused(tmp_path):
    frame(9).to_parquet(tmp_path / "a.parquet")
    frame(9).drop(columns="speed").to_parquet(tmp_path / "b.parquet")
    assert "b.parquet has no column 'speed'" in refused(tmp_path, **ROLES)
    frame(9).assign(when=1.0).to_parquet(tmp_path / "b.parquet")
    assert "hold other kinds of values than those of" in refused(tmp_path, **ROLES)
    frame(9).assign(site=1).to_parquet(tmp_path / "b.parquet")
    assert "hold other kinds of values than those of" in refused(tmp_path, **ROLES)


def test_more_processes_than_row_groups_are_refused(file):
    words = refused(file, **ROLES, part=Part(5, 6))
    assert words.startswith("there are 5 row groups for 6 processes, so this one has nothing to read; start fewer")


def test_pyarrow_is_asked_for_by_name(file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    assert refused(file, **ROLES) == ('Parquet files need pyarrow, which is not installed: pip install "lvmogp[files]"')
