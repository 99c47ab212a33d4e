"""Data sets that no one would wish for: a recipe drawn at random, and what is made of it.

Programs are compiled for every new shape, so sizes come from a few layouts; everything else is free.
"""

import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hypothesis import strategies as st

LEAST_DISTINCT = 5


class Layout(NamedTuple):
    """Observations of each condition, columns of inputs, and the settings that go with these sizes."""

    counts: tuple[int, ...]
    n_columns: int = 1
    shared_inputs: bool = False
    settings: tuple[tuple[str, Any], ...] = ()


LAYOUTS = (
    Layout((3, 1, 6, 2)),
    Layout((7,) * 3, shared_inputs=True),
    Layout((1,)),
    Layout((2, 1), settings=(("noise", "per-condition"),)),
    Layout((12,), n_columns=2),
    Layout((1,) * 7, settings=(("n_latent", 2),)),
    Layout((40, 1, 2, 9, 1), n_columns=3, settings=(("noise", "per-condition"),)),
    Layout((8,) * 20, settings=(("inference", "kronecker"),)),
    Layout((25,) * 20, n_columns=2, shared_inputs=True, settings=(("n_latent", 2),)),
    Layout((1,) * 60),
    Layout((441, *(1,) * 59), n_columns=2),
    Layout((8,) * 60, shared_inputs=True, settings=(("noise", "per-condition"),)),
    Layout((250, 250), settings=(("input_kernel", "matern52"),)),
    Layout((500,), settings=(("input_kernel", "matern32"),)),
    Layout((60, 30, 10), n_columns=2, settings=(("inference", "full"),)),
)
INPUTS = (
    "uniform",
    "normal",
    "duplicated",
    "nearly duplicated",
    "constant",
    "collinear",
    "whole numbers",
    "heavy tails",
    "far outlier",
    "clustered",
)
OUTPUTS = (
    "curves",
    "noise alone",
    "constant",
    "constant in each condition",
    "two values",
    "heavy tails",
    "far outlier",
    "exact",
    "copies",
    "steps",
    "one condition apart",
)
IDS = (
    "words",
    "whole numbers",
    "numbers",
    "tuples",
    "dates",
    "times",
    "characters of the world",
    "empty and very long",
    "truth values",
    "of all kinds",
    "categories",
    "missing",
    "none",
)
CONTAINERS = (
    "arrays",
    "lists",
    "single precision",
    "Fortran order",
    "every other row",
    "backwards",
    "read-only",
    "objects",
    "other byte order",
    "table",
    "table with conditions",
    "table of nullable numbers",
)
SIZES = (1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12)
OFFSETS = (0.0, 0.0, -3.0, 1e9)


class Recipe(NamedTuple):
    """All that decides a data set; enough to make it again."""

    layout: int
    inputs: str
    outputs: str
    ids: str
    container: str
    input_size: float
    output_size: float
    offset: float
    transform: str | None
    seed: int


class HostileSet(NamedTuple):
    """What is handed to ``fit``: arguments by name, and settings of the estimator."""

    data: dict[str, Any]
    settings: dict[str, Any]


def recipes(layouts: tuple[int, ...] = tuple(range(len(LAYOUTS)))) -> st.SearchStrategy[Recipe]:
    """Recipes of given layouts."""
    return st.builds(
        Recipe,
        layout=st.sampled_from(layouts),
        inputs=st.sampled_from(INPUTS),
        outputs=st.sampled_from(OUTPUTS),
        ids=st.sampled_from(IDS),
        container=st.sampled_from(CONTAINERS),
        input_size=st.sampled_from(SIZES),
        output_size=st.sampled_from(SIZES),
        offset=st.sampled_from(OFFSETS),
        transform=st.sampled_from((None, None, None, None, None, None, "log", "sqrt")),
        seed=st.integers(0, 2**31 - 1),
    )


def made(recipe: Recipe) -> HostileSet:
    """The data set of a recipe."""
    rng = np.random.default_rng(recipe.seed)
    layout = LAYOUTS[recipe.layout]
    conditions = np.repeat(np.arange(len(layout.counts)), layout.counts)
    x = _inputs(recipe.inputs, rng, layout)
    y = _outputs(recipe.outputs, rng, x, conditions)
    x = x * recipe.input_size
    y = y * recipe.output_size + recipe.offset
    order = rng.permutation(len(y))
    names = _ids(recipe.ids, rng, len(layout.counts))
    settings = {"n_latent": 1, "n_restarts": 1, "max_iter": 15, "random_state": 0, "unseen": "prior"}
    settings |= {"n_inducing_inputs": "auto" if len(y) < LEAST_DISTINCT else LEAST_DISTINCT}
    settings |= {"n_inducing_latents": min(3, len(layout.counts)), **dict(layout.settings)}
    settings["output_transform"] = recipe.transform
    data = _contained(recipe.container, x[order], y[order], [names[number] for number in conditions[order]])
    if recipe.ids == "categories" and "conditions" in data:
        data["conditions"] = pd.Categorical(data["conditions"])
    if recipe.container == "table with conditions":
        settings["condition"] = "condition"
    return HostileSet(data, settings)


# Inputs, about as large as one; their size comes afterwards.


def _inputs(kind: str, rng: np.random.Generator, layout: Layout) -> np.ndarray:
    n_rows = layout.counts[0] if layout.shared_inputs else sum(layout.counts)
    x = _points(kind, rng, n_rows, layout.n_columns)
    return np.tile(x, (len(layout.counts), 1)) if layout.shared_inputs else x


def _points(kind: str, rng: np.random.Generator, n_rows: int, n_columns: int) -> np.ndarray:
    x = rng.uniform(0, 3, (n_rows, n_columns))
    some = rng.integers(0, LEAST_DISTINCT, n_rows)
    if kind == "normal":
        return rng.normal(size=x.shape)
    if kind == "duplicated":
        return x[some % n_rows]
    if kind == "nearly duplicated":
        return x[some % n_rows] + 1e-13 * rng.normal(size=x.shape)
    if kind == "constant":
        return np.full_like(x, 0.1)
    if kind == "collinear":
        return x[:, :1] * np.arange(1, n_columns + 1) - 1.0
    if kind == "whole numbers":
        return np.round(5 * x)
    if kind == "heavy tails":
        return rng.standard_cauchy(x.shape)
    if kind == "far outlier":
        x[0] = 1e6
    if kind == "clustered":
        return np.round(x) + 1e-5 * rng.normal(size=x.shape)
    return x


def _outputs(kind: str, rng: np.random.Generator, x: np.ndarray, conditions: np.ndarray) -> np.ndarray:
    n_conditions = conditions.max() + 1
    factor = rng.normal(size=n_conditions)
    if kind == "copies":
        factor[:] = 1.0
    if kind == "one condition apart":
        factor[0] = 30.0
    own = factor[conditions]
    curves = (1 + 0.3 * own) * np.sin(2 * x[:, 0] + 0.5 * own) + 0.1 * x.sum(axis=1)
    others = {
        "noise alone": rng.normal(size=len(x)),
        "constant": np.full(len(x), 0.7),
        "constant in each condition": own,
        "two values": (curves > 0).astype(float),
        "heavy tails": rng.standard_t(1, size=len(x)),
        "exact": curves,
        "copies": curves,
        "steps": np.sign(x[:, 0] - 1.0) * own,
    }
    y = others.get(kind, curves + 0.1 * rng.normal(size=len(x)))
    if kind == "far outlier":
        y[0] = 1e8
    return y


# Ids and containers.


def _ids(kind: str, rng: np.random.Generator, count: int) -> list[Any]:
    numbers = [int(number) for number in rng.permutation(count)]
    day = datetime.date(2024, 1, 1)
    names: dict[str, list[Any]] = {
        "whole numbers": [7 * number - 20 for number in numbers],
        "numbers": [number / 3 for number in numbers],
        "tuples": [(number % 3, f"lane {number}") for number in numbers],
        "dates": [day + datetime.timedelta(days=number) for number in numbers],
        "times": [_time(number) for number in numbers],
        "characters of the world": [f"{'äß漢字🙂ñ'[number % 6]}\u0000{number}\n" for number in numbers],
        "empty and very long": ["" if number == 0 else "x" * 20_000 + str(number) for number in numbers],
        "of all kinds": [
            (f"s{number}", number, number + 0.5, (number,), day + datetime.timedelta(days=number))[number % 5]
            for number in numbers
        ],
        "missing": [float("nan") if number == 0 else float(number) for number in numbers],
        "none": [None if number == 0 else str(number) for number in numbers],
    }
    if kind == "truth values" and count <= 2:
        return [bool(number) for number in numbers]
    return names.get(kind, [f"tyre {number}" for number in numbers])


def _time(number: int) -> datetime.datetime:
    return datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=number)


def _contained(kind: str, x: np.ndarray, y: np.ndarray, ids: list[Any]) -> dict[str, Any]:
    column = pd.Series(ids, dtype=object)
    if kind.startswith("table"):
        table = pd.DataFrame(x, columns=[f"x{column}" for column in range(x.shape[1])])
        if kind == "table of nullable numbers":
            table, y = table.astype("Float64"), pd.array(y, dtype="Float64")
        if kind == "table with conditions":
            return {"X": table.assign(condition=column), "y": pd.Series(y)}
        return {"X": table, "y": pd.Series(y), "conditions": column}
    ways = {
        "lists": (x.tolist(), y.tolist()),
        "single precision": (x.astype(np.float32), y.astype(np.float32)),
        "Fortran order": (np.asfortranarray(x), y),
        "every other row": (np.repeat(x, 2, axis=0)[::2], np.repeat(y, 2)[::2]),
        "backwards": (x[::-1].copy()[::-1], y[::-1].copy()[::-1]),
        "objects": (x.astype(object), y.astype(object)),
        "other byte order": (x.astype(x.dtype.newbyteorder()), y.astype(y.dtype.newbyteorder())),
    }
    x, y = ways.get(kind, (x, y))
    if kind == "read-only":
        x.setflags(write=False)
        y.setflags(write=False)
    return {"X": x, "y": y, "conditions": ids}
