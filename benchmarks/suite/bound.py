"""What one bound with its gradient costs: against GPy, and against a sparse GP with independent outputs."""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.suite import problems
from benchmarks.suite.floors import grid_floor, independent_floor, long_floor
from benchmarks.suite.processes import OURS, in_turns
from benchmarks.suite.records import Bar, Found, dearer, quicker

_N_LATENT = 2


class Size(NamedTuple):
    """Numbers of inputs (of a grid) or rows, of conditions, columns and inducing points."""

    is_grid: bool
    n: int
    n_conditions: int
    n_columns: int
    m_x: int
    m_h: int

    def __str__(self) -> str:
        """As it stands in the table."""
        numbers = f"{self.n} × {self.n_conditions}" if self.is_grid else f"{self.n} rows / {self.n_conditions}"
        return f"{'grid' if self.is_grid else 'long'} {numbers} ({self.m_x}/{self.m_h})"

    @property
    def data(self) -> Path:
        """The data of this size."""
        make = problems.grid if self.is_grid else problems.rows
        return make(self.n, self.n_conditions, self.n_columns)

    @property
    def floor(self) -> dict[str, float]:
        """The least that must be done."""
        count = grid_floor if self.is_grid else long_floor
        return count(self.n, self.n_conditions, self.m_x, self.m_h, _N_LATENT)


def asked(size: Size, bound: str, *, one_thread: bool = False) -> tuple[str, dict[str, Any]]:
    """Our worker with what it needs to know; it takes the better of one and of all threads if it may."""
    settings = {
        "task": "bound",
        "bound": bound,
        "data": str(size.data),
        "n_inducing": [size.m_x, size.m_h],
        "n_latent": _N_LATENT,
        "one_thread": one_thread,
    }
    return OURS, settings


def _gpy(size: Size) -> tuple[str, dict[str, Any]]:
    _, settings = asked(size, "explicit")
    return "gpy", settings


_AGAINST_GPY = {
    Size(True, 50, 40, 1, 10, 30): Bar(3),
    Size(True, 1000, 1000, 2, 50, 20): Bar(10),
    Size(False, 2000, 40, 1, 10, 30): Bar(10),
    Size(False, 20_000, 100, 2, 50, 20): Bar(50),
}
_QUICK_AGAINST_GPY = {size: bar for size, bar in _AGAINST_GPY.items() if size.n < 1000}


def against_gpy(*, quick: bool) -> Found:
    """Explicit Kronecker like for like, and the collapsed bound, which GPy does not have, beside it."""
    records = []
    for size, bar in (_QUICK_AGAINST_GPY if quick else _AGAINST_GPY).items():
        ours = {name: asked(size, name, one_thread=quick) for name in ("explicit", "collapsed")}
        found = in_turns({"GPy": _gpy(size), **ours}, 3 if quick else 45)
        for name in ours:
            records.append(
                quicker(
                    f"{size}, {name}",
                    found[name]["seconds"],
                    found["GPy"]["seconds"],
                    f"GPy {found['GPy']['version']}, explicit",
                    bar=bar if name == "explicit" else None,
                    floor=size.floor if name == "explicit" or size.is_grid else None,
                    threads=found[name]["threads"],
                )
            )
    return Found(records)


_AGAINST_INDEPENDENT = (
    Size(True, 50, 40, 1, 10, 30),
    Size(True, 200, 200, 2, 30, 30),
    Size(True, 1000, 100, 2, 50, 20),
    Size(True, 1000, 1000, 2, 50, 20),
    Size(True, 4000, 1000, 2, 100, 30),
)


def against_independent(*, quick: bool) -> Found:
    """The paper's claim: the same cost as a sparse GP with independent outputs of the same N, D and M_X."""
    records = []
    for size in _AGAINST_INDEPENDENT[:1] if quick else _AGAINST_INDEPENDENT:
        workers = {name: asked(size, name, one_thread=quick) for name in ("collapsed", "explicit", "independent")}
        found = in_turns(workers, 3 if quick else 15)
        for name in ("collapsed", "explicit"):
            records.append(
                dearer(
                    f"{size}, {name}",
                    found[name]["seconds"],
                    found["independent"]["seconds"],
                    "independent outputs, ours",
                    bar=Bar(2, at_least=False),
                    floor=size.floor,
                    rival_floor=independent_floor(size.n, size.n_conditions, size.m_x),
                    threads=found[name]["threads"],
                )
            )
    return Found(records)
