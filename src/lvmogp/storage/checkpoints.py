"""Checkpoints of a long fit: written whole or not at all, the last few kept, taken up again where they fit the data."""

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lvmogp.errors import LVMOGPWarning, ModelFileError, SettingError
from lvmogp.storage.tensor_file import CHECKPOINT, ModelFile, read, write

_KEPT = 3
_ENDING = ".checkpoint"


class Checkpoints(NamedTuple):
    """A folder of checkpoints; ``fingerprint`` tells the data and settings that they belong to."""

    folder: Path
    fingerprint: str
    resume: bool

    def save(self, series: str, number: int, content: ModelFile, *, keep_all: bool = False) -> None:
        """Write a checkpoint and forget all but the last three of its series.

        Where it cannot be written, a warning says so and the fit goes on: that is no reason to lose it.
        """
        document = {**content.document, "fingerprint": self.fingerprint}
        try:
            write(self._path(series, number), ModelFile(content.tensors, document), CHECKPOINT)
        except OSError as error:
            warnings.warn(
                f"a checkpoint could not be written ({error.strerror}: {error.filename}); the fit goes on, and those "
                "written before it are kept",
                LVMOGPWarning,
                stacklevel=2,
            )
            return
        if not keep_all:
            for _, path in self._found(series)[:-_KEPT]:
                path.unlink(missing_ok=True)

    def latest(self, series: str) -> tuple[int, ModelFile] | None:
        """The newest checkpoint that can be read; damaged ones are named in a warning and passed over."""
        if not self.resume:
            return None
        for number, path in reversed(self._found(series)):
            content = self._read(path)
            if content is not None:
                return number, content
        return None

    def one_of(self, series: str, number: int) -> ModelFile | None:
        """A checkpoint of a series, if it is there and can be read."""
        path = self._path(series, number)
        return self._read(path) if self.resume and path.exists() else None

    def _read(self, path: Path) -> ModelFile | None:
        try:
            content = read(path, CHECKPOINT)
        except ModelFileError as error:
            warnings.warn(
                f"a damaged checkpoint is passed over, and the fit goes on from what came before it: {error}",
                LVMOGPWarning,
                stacklevel=2,
            )
            return None
        if content.document.get("fingerprint") != self.fingerprint:
            raise SettingError(
                f"the checkpoints in {self.folder} belong to other data or settings; resume with those they were "
                "written for, or name another folder"
            )
        return content

    def _path(self, series: str, number: int) -> Path:
        return self.folder / f"{series}-{number:09d}{_ENDING}"

    def _found(self, series: str) -> list[tuple[int, Path]]:
        paths = self.folder.glob(f"{series}-*{_ENDING}")
        numbers = [(path.name.removeprefix(f"{series}-").removesuffix(_ENDING), path) for path in paths]
        return sorted((int(number), path) for number, path in numbers if number.isdecimal())


def checkpoints(folder: str | os.PathLike[str], fingerprint: str, *, resume: bool) -> Checkpoints:
    """The checkpoints in a folder, which is made if need be."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"the folder for checkpoints {place} cannot be made: {error.strerror}") from error
    if not os.access(place, os.W_OK):
        raise SettingError(f"the folder for checkpoints {place} cannot be written to; name another one")
    found = Checkpoints(place, fingerprint, resume)
    _clear_unfinished(place)
    if not resume and any(place.glob(f"*-*{_ENDING}")):
        raise SettingError(
            f"{place} holds checkpoints of an earlier fit; resume that fit, name another folder, or delete them"
        )
    return found


def clear_checkpoints(folder: Path) -> None:
    """Forget all checkpoints in a folder, once what they led to is safe."""
    for path in folder.glob(f"*-*{_ENDING}"):
        path.unlink(missing_ok=True)
    _clear_unfinished(folder)


def _clear_unfinished(folder: Path) -> None:
    # What a killed process was writing and did not finish; see storage.replace_file.
    for path in folder.glob(f".*{_ENDING}.*"):
        path.unlink(missing_ok=True)


def fingerprint(settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """A digest of settings and arrays that tells one fit from another."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"|{name}|{values.dtype.str}|{values.shape}|".encode())
        digest.update(values.data)
    return digest.hexdigest()
