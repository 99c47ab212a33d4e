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
_NUMBERS = ("rmse", "nlpd", "coverage", "seconds")
_KINDS: dict[str, type] = {"method": str, "repeat": int, "quick": bool, "version": str, "device": str, "n_test": int}


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
    several = isinstance(document, dict) and "repeats" in document
    records: Any = document["repeats"] if isinstance(document, dict) and several else [document]
    if not isinstance(records, list):
        records = [None]
    # Files of all repeats were once written without digests; where one result has its own, all must.
    with_digest = not several or any(isinstance(record, dict) and _DIGEST in record for record in records)
    found = [_opened(record, with_digest=with_digest) for record in records]
    good = [result for result in found if result is not None]
    if len(good) < len(found):
        warn(
            f"{path} is damaged or was changed by hand: {len(found) - len(good)} of its results do not count, and are "
            "to be found anew"
        )
    return good


def _opened(record: Any, *, with_digest: bool) -> Result | None:
    if not isinstance(record, dict):
        return None
    result = {name: value for name, value in record.items() if name != _DIGEST}
    if with_digest and record.get(_DIGEST) != _digest(result):
        return None
    return result if _is_whole(result) else None


def _is_whole(result: Result) -> bool:
    shares = result.get("calibration")
    return (
        all(type(result.get(name)) is kind for name, kind in _KINDS.items())
        and all(_is_number(result.get(name)) for name in _NUMBERS)
        and isinstance(shares, list)
        and len(shares) == len(LEVELS)
        and all(map(_is_number, shares))
        and _is_number(result.get("r_squared", 0.0))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)  # NaN where a method failed


def _digest(result: Result) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]
