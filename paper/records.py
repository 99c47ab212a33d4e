"""Results of experiments in files: each repeat with a digest, so that damage is noticed and only that one run again."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from lvmogp.__about__ import __version__
from lvmogp.errors import warn

Result = dict[str, Any]
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
_DIGEST = "digest"


class Job(NamedTuple):
    """One repeat of one method."""

    experiment: str
    method: str
    repeat: int
    quick: bool

    def path(self, folder: Path) -> Path:
        """Where its result lies."""
        name = "".join(letter if letter.isalnum() else "-" for letter in self.method.lower())
        return folder / "repeats" / self.experiment / f"{name}-{self.repeat:02d}{'-quick' if self.quick else ''}.json"


def stored(name: str, folder: Path, *, quick: bool) -> dict[Job, Result]:
    """Results of earlier runs with this version: those in the file of the experiment, and single repeats."""
    paths = [summary_path(name, folder, quick=quick), *sorted((folder / "repeats" / name).glob("*.json"))]
    return {
        Job(name, result["method"], result["repeat"], quick): result
        for path in paths
        for result in results_in(path)
        if result["version"] == __version__ and result["quick"] == quick
    }


def summary_path(name: str, folder: Path, *, quick: bool) -> Path:
    """The file that holds all repeats of an experiment."""
    return folder / f"{name}{'-quick' if quick else ''}.json"


def sealed(result: Result) -> Result:
    """A result as it is written."""
    return {**result, _DIGEST: _digest(result)}


def results_in(path: Path) -> list[Result]:
    """The results in a file of one repeat or of all; what is damaged is told of and left out."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError):
        document = None
    found = document.get("repeats", [document]) if isinstance(document, dict) else [document]
    records: list[Any] = found if isinstance(found, list) else [found]
    good = [_unsealed(record) for record in records if _is_whole(record)]
    if len(good) < len(records):
        warn(
            f"{path} is damaged or was changed by hand: {len(records) - len(good)} of its results do not count, and "
            "are to be found anew"
        )
    return good


def _is_whole(record: Any) -> bool:
    return isinstance(record, dict) and record.get(_DIGEST) == _digest(_unsealed(record))


def _unsealed(record: Result) -> Result:
    return {name: value for name, value in record.items() if name != _DIGEST}


def _digest(result: Result) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]
