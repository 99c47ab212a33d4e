"""Real grouped data sets, and the tasks made from them.

The sets lie in a folder (``--data`` or the variable ``LVMOGP_REAL_DATA``): growth curves, kinetics and trials, one
CSV file each with one row per observation, and a map of three metals.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError
from lvmogp.insight.validation import Split, new_conditions, rows_removed
from lvmogp.typing import HostFloat, HostInt

FOLDER_VARIABLE = "LVMOGP_REAL_DATA"
OURS = "lvmogp"  # names of our own methods begin with it
FEW = (1, 3, 5)
NEW, REMOVED, ON_A_MAP = "new from", "rows removed", "the map"
KINDS = (*(f"{NEW} {n_points}" for n_points in FEW), REMOVED, ON_A_MAP)


class Table(NamedTuple):
    """Where the columns of a data set are, and whether its output is taken as a logarithm, by every method."""

    condition: str
    input: str
    output: str
    takes_logarithm: bool = False


TABLES = {
    "sleepstudy": Table("Subject", "Days", "Reaction"),
    "Orthodont": Table("Subject", "age", "distance"),
    "ChickWeight": Table("Chick", "Time", "weight", takes_logarithm=True),  # noise grows with the weight
    "Orange": Table("Tree", "age", "circumference"),
    "Loblolly": Table("Seed", "age", "height"),
    "Indometh": Table("Subject", "time", "conc", takes_logarithm=True),  # decays over two orders of magnitude
    "Soybean": Table("Plot", "Time", "weight", takes_logarithm=True),  # grows over two orders of magnitude
}
MAP = "Jura"
_METALS = ("Cd", "Ni", "Zn")


class GroupedRows(NamedTuple):
    """Observations with the number of the condition of each."""

    inputs: HostFloat
    outputs: HostFloat
    conditions: HostInt

    def at(self, places: HostInt) -> "GroupedRows":
        """Return some of the rows."""
        return GroupedRows(self.inputs[places], self.outputs[places], self.conditions[places])

    def and_then(self, others: "GroupedRows") -> "GroupedRows":
        """Return these rows and others."""
        return GroupedRows(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


class Task(NamedTuple):
    """Rows to learn from, the few rows of conditions that come later (often none), and rows to predict.

    ``unit`` is that of the outputs to predict, where the literature reports errors in another.
    """

    train: GroupedRows
    few: GroupedRows
    test: GroupedRows
    unit: float = 1.0


def grouped(folder: Path, name: str) -> GroupedRows:
    """Read a data set; conditions are numbered in the order of their first rows.

    Inputs and outputs come in units of their standard deviation over the whole set, for every method.
    """
    table, rows = TABLES[name], _read(folder / f"{name}.csv")
    outputs = rows[table.output].to_numpy(dtype=float)
    conditions, _ = pd.factorize(rows[table.condition])
    inputs = rows[[table.input]].to_numpy(dtype=float)
    return GroupedRows(
        _standardised(inputs), _standardised(np.log(outputs) if table.takes_logarithm else outputs), conditions
    )


def split(rows: GroupedRows, places: Split) -> Task:
    """Take rows apart."""
    return Task(*(rows.at(some) for some in places))


def new_from(rows: GroupedRows, number: int, n_points: int) -> Task:
    """Make a numbered task of predicting new conditions from so many of their points.

    The conditions are the same ones for every number of points, and the points of a smaller number among those of a
    larger.
    """
    return split(rows, new_conditions(rows.conditions, np.random.default_rng([number, 1]), n_points=n_points))


def without(rows: GroupedRows, number: int) -> Task:
    """Make a numbered task of predicting removed rows."""
    return split(rows, rows_removed(rows.conditions, np.random.default_rng([number, 0])))


def metals(folder: Path) -> Task:
    """Predict cadmium at 100 places from cadmium at 259 others, and nickel and zinc at all of them.

    The task of the literature, which has one split.
    """
    known, hidden = _read(folder / "jura-prediction.csv"), _read(folder / "jura-validation.csv")
    tables = [known, hidden]
    everywhere = pd.concat(tables, ignore_index=True)
    scale = {metal: (known[metal].mean(), known[metal].std(ddof=0)) for metal in _METALS}

    def rows(table: pd.DataFrame, chosen: list[int]) -> GroupedRows:
        places = table[["Xloc", "Yloc"]].to_numpy(dtype=float)
        values = [
            (table[_METALS[number]].to_numpy() - scale[_METALS[number]][0]) / scale[_METALS[number]][1]
            for number in chosen
        ]
        return GroupedRows(np.tile(places, (len(chosen), 1)), np.concatenate(values), np.repeat(chosen, len(table)))

    train = rows(known, [0]).and_then(rows(everywhere, [1, 2]))
    return Task(train, train.at(np.zeros(0, dtype=int)), rows(hidden, [0]), unit=float(scale[_METALS[0]][1]))


def tasks(folder: Path) -> dict[str, Callable[[int], Task]]:
    """All tasks by name, each a function of the number of the split."""
    found: dict[str, Callable[[int], Task]] = {}
    for name in TABLES:
        rows = grouped(folder, name)
        most = int(np.bincount(rows.conditions).max())
        for n_points in FEW:
            if n_points < most:
                found[f"{name}, {NEW} {n_points}"] = partial(new_from, rows, n_points=n_points)
        found[f"{name}, {REMOVED}"] = partial(without, rows)
    found[MAP] = lambda number: metals(folder)
    return found


def set_and_kind(task: str) -> tuple[str, str]:
    """Return the data set of a task, and which kind of task it is."""
    name, _, kind = task.partition(", ")
    return name, kind or ON_A_MAP


def _standardised(values: HostFloat) -> HostFloat:
    return (values - values.mean(axis=0)) / values.std(axis=0)


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataError(f"{path} is not there; name the folder of the real data with --data or {FOLDER_VARIABLE}")
    return pd.read_csv(path)
