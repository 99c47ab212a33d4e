"""Real grouped data sets, and the tasks made from them.

The sets lie in a folder (``--data`` or the variable ``LVMOGP_REAL_DATA``): growth curves, kinetics and trials, one
CSV file each with one row per observation, and a map of three metals.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lvmogp.errors import DataError
from lvmogp.typing import HostFloat, HostInt

FOLDER_VARIABLE = "LVMOGP_REAL_DATA"
FEW = (1, 3, 5)
_NEW_SHARE = 0.25
_REMOVED_SHARE = 0.3


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
    """Rows to learn from, the few rows of conditions that come later (often none), and rows to predict."""

    train: GroupedRows
    few: GroupedRows
    test: GroupedRows


def grouped(folder: Path, name: str) -> GroupedRows:
    """Read a data set; conditions are numbered in the order of their first rows, inputs and outputs standardised."""
    table, rows = TABLES[name], _read(folder / f"{name}.csv")
    outputs = rows[table.output].to_numpy(dtype=float)
    conditions, _ = pd.factorize(rows[table.condition])
    inputs = rows[[table.input]].to_numpy(dtype=float)
    return GroupedRows(
        _standardised(inputs), _standardised(np.log(outputs) if table.takes_logarithm else outputs), conditions
    )


def new_conditions(rows: GroupedRows, split: int, n_points: int) -> Task:
    """Train on three quarters of the conditions; predict the others from so many of their points, chosen at random.

    At least one point of each is left to predict: a condition with too few has fewer to learn from.
    """
    rng = np.random.default_rng([split, n_points])
    n_conditions = int(rows.conditions.max()) + 1
    new = rng.permutation(n_conditions)[: max(round(_NEW_SHARE * n_conditions), 1)]
    few, test = [], []
    for number in np.sort(new):
        places = rng.permutation(np.flatnonzero(rows.conditions == number))
        n_few = min(n_points, len(places) - 1)
        few.extend(places[:n_few])
        test.extend(places[n_few:])
    trained = np.flatnonzero(~np.isin(rows.conditions, new))
    return Task(rows.at(trained), rows.at(np.asarray(few, dtype=int)), rows.at(np.asarray(test, dtype=int)))


def rows_removed(rows: GroupedRows, split: int) -> Task:
    """Remove a random 30 % of the rows, but never the last of a condition, and predict them."""
    rng = np.random.default_rng([split, 0])
    order = rng.permutation(len(rows.outputs))
    kept_one = np.zeros(int(rows.conditions.max()) + 1, dtype=bool)
    removed: list[int] = []
    kept: list[int] = []
    for place in order[::-1]:  # the first row of a condition that comes up stays
        number = rows.conditions[place]
        can_go = kept_one[number] and len(removed) < round(_REMOVED_SHARE * len(order))
        (removed if can_go else kept).append(int(place))
        kept_one[number] = True
    return Task(rows.at(np.sort(kept)), rows.at(np.zeros(0, dtype=int)), rows.at(np.sort(removed)))


def metals(folder: Path, split: int) -> Task:
    """Predict cadmium at 100 places from cadmium at 259 others, and nickel and zinc at all of them."""
    del split  # the task of the literature has one split
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
    return Task(train, train.at(np.zeros(0, dtype=int)), rows(hidden, [0]))


def tasks(folder: Path) -> dict[str, Callable[[int], Task]]:
    """All tasks by name, each a function of the split."""
    found: dict[str, Callable[[int], Task]] = {}
    for name in TABLES:
        rows = grouped(folder, name)
        most = int(np.bincount(rows.conditions).max())
        for n_points in FEW:
            if n_points < most:
                found[f"{name}, new from {n_points}"] = lambda split, rows=rows, n=n_points: new_conditions(
                    rows, split, n
                )
        found[f"{name}, rows removed"] = lambda split, rows=rows: rows_removed(rows, split)
    found[MAP] = lambda split: metals(folder, split)
    return found


def _standardised(values: HostFloat) -> HostFloat:
    return (values - values.mean(axis=0)) / values.std(axis=0)


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataError(f"{path} is not there; name the folder of the real data with --data or {FOLDER_VARIABLE}")
    return pd.read_csv(path)
