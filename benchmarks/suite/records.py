"""One line of a table of results: what was measured, against whom, and whether a bar was reached."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Record = dict[str, Any]
Trace = dict[str, Any]


class Found(NamedTuple):
    """What a question found: lines of its table, and test errors against time where fits were watched."""

    records: list[Record]
    traces: tuple[Trace, ...] = ()


class Bar(NamedTuple):
    """What a ratio or a figure is to be: at least or at most a number."""

    number: float
    at_least: bool = True

    def reached(self, value: float) -> bool:
        """Whether a value is on the right side."""
        return value >= self.number if self.at_least else value <= self.number

    def __str__(self) -> str:
        """As it stands in the table."""
        return f"{'≥' if self.at_least else '≤'} {self.number:g}"


def timing(seconds: Sequence[float]) -> dict[str, float]:
    """Least and median of repeated measurements, and their number."""
    return {"minimum": float(np.min(seconds)), "median": float(np.median(seconds)), "repeats": len(seconds)}


def record(
    what: str,
    *,
    ours: Any = None,
    rival: Any = None,
    against: str = "",
    figures_in: str = "s",
    measured: float | None = None,
    unit: str = "×",
    bar: Bar | None = None,
    passed: bool = True,
    **more: Any,
) -> Record:
    """A line: our figure and the rival's, and what the bar is about, mostly their ratio.

    ``passed`` is whatever else the bar asks for.
    """
    line: Record = {"what": what, "ours": ours, "rival": rival, "against": against, "figures_in": figures_in}
    line |= {"measured": measured, "unit": unit}
    if bar is not None:
        line |= {"bar": str(bar), "reached": measured is not None and bar.reached(measured) and passed}
    return {**line, **more}


def quicker(
    what: str, ours: Sequence[float], rival: Sequence[float], against: str, *, bar: Bar | None = None, **more: Any
) -> Record:
    """How many times less time we take: the ratio of the minima, whatever else ran on the machine."""
    ratio = min(rival) / min(ours)
    return record(what, ours=timing(ours), rival=timing(rival), against=against, measured=ratio, bar=bar, **more)


def dearer(
    what: str, ours: Sequence[float], rival: Sequence[float], against: str, *, bar: Bar | None = None, **more: Any
) -> Record:
    """How many times more time we take."""
    ratio = min(ours) / min(rival)
    return record(what, ours=timing(ours), rival=timing(rival), against=against, measured=ratio, bar=bar, **more)


def not_available(what: str, why: str) -> Record:
    """A line that says why there is no figure."""
    return record(what, note=f"not available: {why}")
