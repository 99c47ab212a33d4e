"""What every worker does, ours and the rivals': read settings, keep time, answer in JSON. Standard library only."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_FIRST_MARK = 0.25
_NEXT_MARK = 1.35


def settings() -> dict[str, Any]:
    """The settings that the suite wrote."""
    return json.loads(Path(sys.argv[1]).read_text())


def answer(result: dict[str, Any]) -> None:
    """Hand the result back, with the most memory the process ever had."""
    Path(sys.argv[2]).write_text(json.dumps({**result, "peak_mb": peak_mb()}))


def peak_mb() -> float:
    """The most memory that this process had so far, in MB.

    From Linux's own account: what ``getrusage`` says counts the process that started this one, too.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


class Clock:
    """Seconds since the start, without those during which it was paused."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds on the clock."""
        return time.perf_counter() - self._began

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock for what is none of the fit's business."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began


class Trace:
    """Test error against time, at marks that grow geometrically so that errors are evaluated a few times only."""

    def __init__(self, clock: Clock, error: Callable[[], float]) -> None:
        self.points: list[dict[str, float]] = []
        self._clock = clock
        self._error = error
        self._next = _FIRST_MARK
        self._best = float("inf")

    def after(self, loss: float) -> None:
        """Note the error if it is time to, at the best point so far of an optimisation."""
        if loss <= self._best:
            self._best = loss
            if self._clock.seconds >= self._next:
                self.note()

    def note(self) -> None:
        """Note the error now."""
        seconds = self._clock.seconds
        with self._clock.paused():
            self.points.append({"seconds": seconds, "rmse": float(self._error())})
        self._next = max(_NEXT_MARK * seconds, _FIRST_MARK)


def take_turns(evaluate: Callable[[], Any], **about: Any) -> None:
    """Time evaluations in turns with another process: a number comes in, the seconds of that many go out.

    The first line out says that the worker has warmed up; an empty line in ends it.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not come between
    evaluate()
    print(json.dumps({"ready": True, **about}), file=channel, flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        seconds = []
        for _ in range(int(line)):
            began = time.perf_counter()
            evaluate()
            seconds.append(time.perf_counter() - began)
        print(json.dumps(seconds), file=channel, flush=True)
    answer(about)


def repeated(function: Callable[[], Any], n_repeats: int) -> list[float]:
    """Seconds of each call, after one to warm up."""
    function()
    seconds = []
    for _ in range(n_repeats):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return seconds
