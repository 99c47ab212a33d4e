"""Measurements in fresh processes: one that answers when it is done, or two that take turns."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rivals.environments import ROOT, worker

# Python keeps its bytecode, whatever the shell of the suite says.
_AS_USERS_HAVE_IT = {"PYTHONDONTWRITEBYTECODE": ""}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OURS = "ours"


def command_of(who: str) -> list[str]:
    """The command that starts a worker: ours, or a rival's by the name of its environment."""
    return [sys.executable, "-m", "benchmarks.suite.our_worker"] if who == OURS else worker(who)


def environment_of(who: str, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """GPy gets one thread; torch and we choose for ourselves. No one's compiled programs are kept unless asked for."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    if who == "gpy":
        environment |= dict.fromkeys(_THREADS, "1")
    return {**environment, **_AS_USERS_HAVE_IT, "TF_CPP_MIN_LOG_LEVEL": "3", **(changes or {})}


def answer_of(who: str, settings: Mapping[str, Any], changes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a worker to its end; adds the seconds of the whole process to its answer."""
    with tempfile.TemporaryDirectory() as name:
        asked, answered = Path(name) / "settings.json", Path(name) / "answer.json"
        asked.write_text(json.dumps(dict(settings)))
        began = time.perf_counter()
        subprocess.run(
            [*command_of(who), asked, answered], cwd=ROOT, env=environment_of(who, changes), check=True, stdout=2
        )
        return {**json.loads(answered.read_text()), "process_seconds": time.perf_counter() - began}


class Turns:
    """A worker that evaluates something a few times whenever it is told to."""

    def __init__(self, who: str, settings: Mapping[str, Any], folder: Path) -> None:
        self._answered = folder / f"{who}-{id(self)}-answer.json"
        asked = folder / f"{who}-{id(self)}.json"
        asked.write_text(json.dumps(dict(settings)))
        self._process = subprocess.Popen(
            [*command_of(who), asked, self._answered],
            cwd=ROOT,
            env=environment_of(who),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self._read()
        self.seconds: list[float] = []

    def take(self, n_evaluations: int) -> None:
        """Evaluate this many times while everyone else waits."""
        self._write(f"{n_evaluations}\n")
        self.seconds += self._read()

    def end(self) -> dict[str, Any]:
        """Let the worker go; returns what it has to say."""
        self._write("\n")
        if self._process.wait():
            raise RuntimeError("a worker failed; its messages are above")
        return json.loads(self._answered.read_text())

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended before its time; its messages are above")
        return json.loads(line)


def in_turns(workers: Mapping[str, tuple[str, Mapping[str, Any]]], seconds: float) -> dict[str, dict[str, Any]]:
    """Let workers take turns for about this long: what each says, with the seconds of its evaluations.

    Each turn of each worker takes about as long, so that what else happens on the machine hits all of them.
    """
    n_rounds = 5
    with tempfile.TemporaryDirectory() as name:
        turns = {label: Turns(who, settings, Path(name)) for label, (who, settings) in workers.items()}
        share = seconds / n_rounds / len(turns)
        for turn in turns.values():
            turn.take(5)
        counts = {label: max(round(share / median(turn.seconds)), 1) for label, turn in turns.items()}
        for _ in range(n_rounds):
            for label, turn in turns.items():
                turn.take(counts[label])
        return {label: {**turn.about, **turn.end(), "seconds": turn.seconds} for label, turn in turns.items()}


def seconds_of(command: list[str], folder: Path, changes: Mapping[str, str]) -> float:
    """Seconds of a command that must succeed, its process from beginning to end."""
    began = time.perf_counter()
    environment = {**os.environ, **_AS_USERS_HAVE_IT, **changes}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began
