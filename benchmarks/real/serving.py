"""Rivals that live in environments of their own: a process each, which answers task after task."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).parents[2]
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_DONE = "done"

Arrays = Mapping[str, np.ndarray]


def answer(python: Path, module: str, question: Arrays) -> dict[str, np.ndarray]:
    """Ask a worker, which is started when first asked and ends with this process."""
    worker = _worker(python, module)
    assert worker.stdin is not None
    assert worker.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.npz", Path(folder) / "answered.npz"
        np.savez(asked, **question)
        print(asked, answered, sep="\t", file=worker.stdin, flush=True)
        said = worker.stdout.readline().strip()
        if said != _DONE:
            raise RuntimeError(said or f"{module} ended; its messages are above")
        with np.load(answered) as values:
            return dict(values)


@cache
def _worker(python: Path, module: str) -> "subprocess.Popen[str]":
    command = [python, "-m", module]
    environment = os.environ | _ONE_THREAD
    # Its own packages only, not those of this process.
    environment.pop("PYTHONPATH", None)
    return subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def serve(work: Callable[[Arrays], Arrays]) -> None:
    """Answer one question after another, until nobody asks; what fails is said and the next is waited for."""
    for line in sys.stdin:
        asked, answered = line.strip().split("\t")
        try:
            with np.load(asked) as question:
                np.savez(answered, **work(dict(question)))
            said = _DONE
        except Exception as error:  # whatever it is, the other tasks have their answers
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(said, flush=True)
