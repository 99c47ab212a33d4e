"""The published data sets: what they hold, and what happens where they cannot be found."""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lvmogp.errors import DataError
from paper import datasets
from paper.datasets import PublishedFile

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_servo_holds_what_was_published():
    table = datasets.servo(DATA)
    assert table.shape == (167, 5)
    assert table.iloc[0].tolist() == ["E", "E", 5.0, 4.0, 0.28125095]
    assert table["rise_time"].min() == pytest.approx(0.13125, abs=1e-4)
    assert table["rise_time"].max() == pytest.approx(7.1001, abs=1e-4)
    assert table.groupby(["motor", "screw"]).ngroups == 25


def test_sml2010_holds_18_sensors_of_a_month_without_gaps():
    table = datasets.sml2010(DATA)
    assert table.shape == (2764, 18)
    assert table.iloc[0, 0] == 18.1875
    np.testing.assert_allclose(np.diff(table.index.to_numpy()), 1 / 96, rtol=1e-9)
    assert table.std().min() > 0
    assert not {"Day_Of_Week", "Exterior_Entalpic_1"} & set(table.columns)


def test_files_are_found_in_a_folder_or_in_that_of_the_environment_but_no_others(monkeypatch, tmp_path):
    assert datasets.find(datasets.SERVO, DATA / "servo") == DATA / "servo" / "servo.data"
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(DATA))
    assert len(datasets.servo()) == 167
    with pytest.raises(DataError, match=r"servo\.data is not in .*; put it there or into .*servo.*servo\.zip"):
        datasets.servo(tmp_path)
    (tmp_path / "servo.data").write_text("A,A,3,1,0.5\n")
    with pytest.raises(DataError, match="is not the file that was published"):
        datasets.servo(tmp_path)


def published(tmp_path, content, *, name="toy.data", digest=None):
    """A file in an archive at an address of this machine."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr(f"deep/{name}", content)
    (tmp_path / "toy.zip").write_bytes(archive.getvalue())
    address = (tmp_path / "toy.zip").as_uri()
    return PublishedFile("toy", "toy.data", address, digest or hashlib.sha256(content).hexdigest())


def test_a_file_is_fetched_once_and_kept_unless_it_is_another(tmp_path):
    with pytest.raises(DataError, match="is not the file that was published"):
        datasets.find(published(tmp_path, b"1 2 3", digest="0" * 64))
    file = published(tmp_path, b"1 2 3")
    path = datasets.find(file)
    assert path.read_bytes() == b"1 2 3"
    assert path.is_relative_to(tmp_path / "cache")
    (tmp_path / "toy.zip").unlink()
    assert datasets.find(file) == path


@pytest.mark.parametrize("archive", ["missing", b"no archive", "without the file"])
def test_offline_the_message_says_what_to_do(tmp_path, archive):
    file = published(tmp_path, b"1", name="other.data" if archive == "without the file" else "toy.data")
    if archive == "missing":
        (tmp_path / "toy.zip").unlink()
    if isinstance(archive, bytes):
        (tmp_path / "toy.zip").write_bytes(archive)
    with pytest.raises(DataError, match=r"could not be fetched .* download and unpack it yourself.*LVMOGP_DATA"):
        datasets.find(file)
    assert not (tmp_path / "cache" / "lvmogp" / "toy" / "toy.data").exists()
