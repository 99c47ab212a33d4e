"""Checkpoints of a long fit: written whole or not at all, the last few kept, taken up again where they fit the data."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lvmogp.errors import ModelFileError, SettingError, warn
from lvmogp.storage.codec import Content, encode, planned
from lvmogp.storage.tensor_file import CHECKPOINT, digest_of_arrays, digest_of_header, opened, write

_KEPT = 3
_ENDING = ".checkpoint"
# What a killed process was writing and did not finish has a name of its own; see lvmogp.ground.writing.
_FINISHED, _UNFINISHED = f"*-*{_ENDING}", f".*{_ENDING}.*"


class Checkpoints(NamedTuple):
    """A folder of checkpoints; ``fingerprint`` tells the data and settings that they belong to."""

    folder: Path
    fingerprint: str
    resume: bool

    def save(self, series: str, number: int, value: Any, kind: Any, *, keep_all: bool = False) -> None:
        """Write a checkpoint and forget all but the last three of its series.

        Where it cannot be written, a warning says so and the fit goes on: that is no reason to lose it.
        """
        try:
            tensors, document = encode(value, kind)
            content = Content(tensors, {"fingerprint": self.fingerprint, "value": document})
            write(self._path(series, number), content, CHECKPOINT)
        except (OSError, ModelFileError) as error:
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            warn(f"a checkpoint could not be written ({reason}); the fit goes on, and those written before it are kept")
            return
        if not keep_all:
            for _, path in self._found(series)[:-_KEPT]:
                path.unlink(missing_ok=True)

    def latest(self, series: str, kind: Any) -> tuple[int, Any] | None:
        """Return the newest checkpoint that can be read; damaged ones are named in a warning and passed over."""
        for number, path in reversed(self._found(series)) if self.resume else ():
            value = self._read(path, kind)
            if value is not None:
                return number, value
        return None

    def one_of(self, series: str, number: int, kind: Any) -> Any | None:
        """Return a checkpoint of a series, if it is there and can be read."""
        path = self._path(series, number)
        return self._read(path, kind) if self.resume and path.exists() else None

    def _read(self, path: Path, kind: Any) -> Any | None:
        try:
            with opened(path, CHECKPOINT) as file:
                document = file.document if isinstance(file.document, dict) else {}
                if document.get("fingerprint") != self.fingerprint:
                    raise SettingError(
                        f"the checkpoints in {self.folder} belong to other data or settings; resume with those they "
                        "were written for, or name another folder"
                    )
                return planned(file.sizes, document.get("value"), kind)(file.tensors())
        except ModelFileError as error:
            warn(f"a damaged checkpoint is passed over, and the fit goes on from what came before it: {error}")
            return None

    def _path(self, series: str, number: int) -> Path:
        return self.folder / f"{series}-{number:09d}{_ENDING}"

    def _found(self, series: str) -> list[tuple[int, Path]]:
        paths = self.folder.glob(f"{series}-*{_ENDING}")
        numbers = [(path.name.removeprefix(f"{series}-").removesuffix(_ENDING), path) for path in paths]
        return sorted((int(number), path) for number, path in numbers if number.isdecimal())


def checkpoints(folder: str | os.PathLike[str], fingerprint: str, *, resume: bool) -> Checkpoints:
    """Return the checkpoints in a folder, which is made if need be."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"the folder for checkpoints {place} cannot be made: {error.strerror}") from error
    if not os.access(place, os.W_OK):
        raise SettingError(f"the folder for checkpoints {place} cannot be written to; name another one")
    for path in place.glob(_UNFINISHED):
        path.unlink(missing_ok=True)
    if not resume and any(place.glob(_FINISHED)):
        raise SettingError(
            f"{place} holds checkpoints of an earlier fit; resume that fit, name another folder, or delete them"
        )
    return Checkpoints(place, fingerprint, resume)


def clear_checkpoints(folder: Path) -> None:
    """Forget all checkpoints in a folder, once what they led to is safe."""
    for path in (*folder.glob(_FINISHED), *folder.glob(_UNFINISHED)):
        path.unlink(missing_ok=True)


def fingerprint(settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Return a digest of settings and arrays that tells one fit from another."""
    plain = json.dumps(settings, sort_keys=True, default=str)
    return digest_of_header(plain, arrays) + digest_of_arrays(arrays)
