"""The paper's two real data sets: from a folder, from the cache, or from where they were published."""

import hashlib
import io
import os
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lvmogp.errors import DataError
from lvmogp.ground.compiling import cache_folder
from lvmogp.ground.writing import replace_file

FOLDER_VARIABLE = "LVMOGP_DATA"
_TIMEOUT = 60
_LARGEST_DOWNLOAD = 20_000_000


class PublishedFile(NamedTuple):
    """A file as published: where it lies in an archive on the net, and its checksum."""

    folder: str
    name: str
    address: str
    sha256: str


SERVO = PublishedFile(
    "servo",
    "servo.data",
    "https://archive.ics.uci.edu/static/public/87/servo.zip",
    "f1d383dbb72bafd82df227483f7de3dd0a06cbd6a6329f91d656babe400f4acf",
)
SML2010 = PublishedFile(
    "sml2010",
    "NEW-DATA-1.T15.txt",
    "https://archive.ics.uci.edu/static/public/274/sml2010.zip",
    "bd5a4c4f1f6a0652258179c9963fb5c90885eedee4a981617898c18d6b5c4541",
)
_SERVO_COLUMNS = ["motor", "screw", "pgain", "vgain", "rise_time"]
# Three motors that never ran, and the day of the week, are no sensors.
_NO_SENSORS = ["Exterior_Entalpic_1", "Exterior_Entalpic_2", "Exterior_Entalpic_turbo", "Day_Of_Week"]


def servo(data_dir: Path | None = None) -> pd.DataFrame:
    """Rise times of 167 servomechanisms: columns motor, screw (A to E each), pgain, vgain, rise_time."""
    table = pd.read_csv(find(SERVO, data_dir), header=None, names=_SERVO_COLUMNS, skipinitialspace=True)
    return table.astype({"pgain": float, "vgain": float})


def sml2010(data_dir: Path | None = None) -> pd.DataFrame:
    """A month of 18 sensors of a house, means over 15 minutes: one column per sensor, by days since its start."""
    path = find(SML2010, data_dir)
    with path.open(encoding="utf-8") as lines:
        names = [token.split(":")[1] for token in lines.readline().split()[1:]]
    table = pd.read_csv(path, sep=r"\s+", skiprows=1, header=None, names=names)
    moments = pd.to_datetime(table["Date"] + " " + table["Time"], format="%d/%m/%Y %H:%M")
    sensors = table.drop(columns=["Date", "Time", *_NO_SENSORS]).astype(float)
    sensors.index = pd.Index((moments - moments.iloc[0]) / pd.Timedelta(days=1), name="day")
    return sensors


def find(file: PublishedFile, data_dir: Path | None = None) -> Path:
    """Path of a published file whose content is the one that was published."""
    given = data_dir or os.environ.get(FOLDER_VARIABLE)
    if given:
        return _in_folder(file, Path(given))
    cached = cache_folder() / file.folder / file.name
    if not cached.exists():
        _download(file, cached)
    return _checked(file, cached)


def _in_folder(file: PublishedFile, folder: Path) -> Path:
    for path in (folder / file.folder / file.name, folder / file.name):
        if path.exists():
            return _checked(file, path)
    raise DataError(
        f"{file.name} is not in {folder}; put it there or into {folder / file.folder}. It is in the archive "
        f"{file.address}"
    )


def _checked(file: PublishedFile, path: Path) -> Path:
    if hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
        raise DataError(
            f"{path} is not the file that was published (its checksum differs); delete it, and take {file.name} "
            f"from {file.address}"
        )
    return path


def _download(file: PublishedFile, path: Path) -> None:
    try:
        with urllib.request.urlopen(file.address, timeout=_TIMEOUT) as answer:
            archive = answer.read(_LARGEST_DOWNLOAD)
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            content = members.read(next(name for name in members.namelist() if Path(name).name == file.name))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise DataError(
            f"{file.name} could not be fetched from {file.address} ({error or 'it is not in the archive'}); download "
            f"and unpack it yourself, then name its folder with --data-dir, data_dir= or the environment variable "
            f"{FOLDER_VARIABLE}"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
