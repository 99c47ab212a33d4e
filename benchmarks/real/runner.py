"""Measure methods on splits of real data, and go on from what is on disk: one line per task, method and split."""

import itertools
import json
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np

from benchmarks.real.methods import RIVALS, SETTINGS, can_take, ours
from benchmarks.real.problems import MAP, OURS, set_and_kind, tasks
from lvmogp.ground.precision import double_precision
from lvmogp.ground.writing import replace_file
from lvmogp.insight.validation import scores, tallied

N_SPLITS = 20
# The task of the literature has one split, which ours are fitted to from several seeds.
_N_SEEDS = 5
_PIECES_TOGETHER = 20
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

Line = dict[str, Any]


class Piece(NamedTuple):
    """What one line of the results is about."""

    task: str
    method: str
    split: int


def measured(folder: Path, piece: Piece, settings: Mapping[str, Any]) -> Line | None:
    """Return how well a method predicts the test rows of one split; ``None`` where it cannot be asked or fails."""
    given = tasks(folder)[piece.task](piece.split)
    if piece.task == MAP:
        settings = {**settings, "random_state": piece.split}
    if not can_take(piece.method, given):
        return None
    began = time.perf_counter()
    try:
        with double_precision():
            if piece.method in RIVALS:
                found = RIVALS[piece.method](given)
                seconds = time.perf_counter() - began
            else:
                found, seconds = ours(given, settings)
    except Exception:  # the other pieces have their answers all the same, and this one is tried again next time
        traceback.print_exc()
        return None
    _, tallies = tallied(found, given.test.outputs, np.zeros(len(given.test.outputs), dtype=int))
    pooled = scores(tallies)
    return {
        **piece._asdict(),
        "n_test": len(given.test.outputs),
        "squared_error": _rounded(tallies.squared_error[0]),
        "absolute_error": _rounded(given.unit * np.mean(np.abs(found.mean - given.test.outputs))),
        "log_density": _rounded(pooled.log_density.value),
        "coverage": _rounded(pooled.coverage.value),
        "width": _rounded(pooled.width.value),
        "seconds": round(seconds, 2),
    }


def run(
    folder: Path,
    out: Path,
    *,
    some_tasks: Sequence[str] | None = None,
    methods: Mapping[str, Mapping[str, Any]] | None = None,
    n_splits: int = N_SPLITS,
    n_jobs: int = 1,
) -> None:
    """Measure what is not on file yet; the file is in order at the end, and whole lines are there at any time.

    Methods come with their settings, which rivals have none of.
    """
    methods = methods or {OURS: SETTINGS[OURS], **{name: {} for name in RIVALS}}
    known = {piece_of(line) for line in lines_of([out])}
    work: list[Any] = []
    by_set: dict[str, list[str]] = {}
    for task in some_tasks or tasks(folder):
        by_set.setdefault(set_and_kind(task)[0], []).append(task)
    for (name, same_set), method in itertools.product(by_set.items(), methods):
        splits = range(n_splits if name != MAP else min(n_splits, _N_SEEDS) if method not in RIVALS else 1)
        pieces = [Piece(task, method, split) for split in splits for task in same_set]
        left = [each for each in pieces if each not in known]
        # Tasks of a split share a fit, and splits of a set compiled programs, so one process does some of them, one
        # after the other.
        for some in (left[first : first + _PIECES_TOGETHER] for first in range(0, len(left), _PIECES_TOGETHER)):
            work.append(joblib.delayed(_all_measured)(folder, some, methods[method]))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        for lines in _results(work, n_jobs):
            for line in lines:
                print(json.dumps(line), file=file, flush=True)
                print(f"{line['task']}, {line['method']}, split {line['split']}: {line['seconds']} s", flush=True)
    rewrite(out, lines_of([out]))


def _all_measured(folder: Path, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> list[Line]:
    found = [measured(folder, each, settings) for each in pieces]
    return [line for line in found if line is not None]


def _results(work: list[Any], n_jobs: int) -> Iterator[list[Line]]:
    # One thread each: the pieces themselves fill the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if n_jobs > 1:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # where there is an accelerator, it is not shared by all of them
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD}"
    return joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(work)


def lines_of(paths: Iterable[Path]) -> list[Line]:
    """Read files of results; of lines about the same piece the last counts."""
    texts = [text for path in paths if path.exists() for text in path.read_text().splitlines()]
    return list({piece_of(line): line for line in map(json.loads, texts)}.values())


def piece_of(line: Mapping[str, Any]) -> Piece:
    """Return what a line is about."""
    return Piece(line["task"], line["method"], line["split"])


def rewrite(out: Path, lines: Iterable[Line]) -> None:
    """Write lines in order."""
    text = "".join(json.dumps(line) + "\n" for line in sorted(lines, key=piece_of))
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, text.encode())


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
