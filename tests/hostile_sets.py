"""Data sets that no one would wish for: a recipe that follows from a number, and what is made of it.

Programs are compiled for every new shape, so sizes come from a few layouts; everything else is free.
"""

import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

LEAST_DISTINCT = 5


class Layout(NamedTuple):
    """Observations of each condition, columns of inputs, and the settings that go with these sizes."""

    counts: tuple[int, ...]
    n_columns: int = 1
    shared_inputs: bool = False
    settings: dict[str, Any] | None = None


LAYOUTS = (
    Layout((3, 1, 6, 2)),
    Layout((7,) * 3, shared_inputs=True),
    Layout((1,)),
    Layout((2, 1), settings={"noise": "per-condition"}),
    Layout((12,), n_columns=2),
    Layout((1,) * 7, settings={"n_latent": 2}),
    Layout((40, 1, 2, 9, 1), n_columns=3, settings={"noise": "per-condition"}),
    Layout((8,) * 20, settings={"inference": "kronecker"}),
    Layout((25,) * 20, n_columns=2, shared_inputs=True, settings={"n_latent": 2}),
    Layout((1,) * 60),
    Layout((441, *(1,) * 59), n_columns=2),
    Layout((8,) * 60, shared_inputs=True, settings={"noise": "per-condition"}),
    Layout((250, 250), settings={"input_kernel": "matern52"}),
    Layout((500,), settings={"input_kernel": "matern32"}),
    Layout((60, 30, 10), n_columns=2, settings={"inference": "full"}),
)


def _some(x, rng):
    return x[rng.integers(0, LEAST_DISTINCT, len(x)) % len(x)]


# From uniform points, inputs about as large as one; their size comes afterwards.
INPUTS = {
    "uniform": lambda x, rng: x,
    "normal": lambda x, rng: rng.normal(size=x.shape),
    "duplicated": _some,
    "nearly duplicated": lambda x, rng: _some(x, rng) + 1e-13 * rng.normal(size=x.shape),
    "constant": lambda x, rng: np.full_like(x, 0.1),
    "collinear": lambda x, rng: x[:, :1] * np.arange(1, x.shape[1] + 1) - 1.0,
    "whole numbers": lambda x, rng: np.round(5 * x),
    "heavy tails": lambda x, rng: rng.standard_cauchy(x.shape),
    "far outlier": lambda x, rng: np.vstack([np.full_like(x[:1], 1e6), x[1:]]),
    "clustered": lambda x, rng: np.round(x) + 1e-5 * rng.normal(size=x.shape),
}


def _curves(x, own):
    return (1 + 0.3 * own) * np.sin(2 * x[:, 0] + 0.5 * own) + 0.1 * x.sum(axis=1)


def _noisy(x, own, rng):
    return _curves(x, own) + 0.1 * rng.normal(size=len(x))


# From inputs and the factor that each row's condition has of its own.
OUTPUTS = {
    "curves": _noisy,
    "noise alone": lambda x, own, rng: rng.normal(size=len(x)),
    "constant": lambda x, own, rng: np.full(len(x), 0.7),
    "constant in each condition": lambda x, own, rng: own,
    "two values": lambda x, own, rng: (_curves(x, own) > 0).astype(float),
    "heavy tails": lambda x, own, rng: rng.standard_t(1, size=len(x)),
    "far outlier": lambda x, own, rng: np.r_[1e8, _noisy(x, own, rng)[1:]],
    "exact": lambda x, own, rng: _curves(x, own),
    "copies": lambda x, own, rng: _curves(x, np.ones_like(own)),
    "steps": lambda x, own, rng: np.sign(x[:, 0] - 1.0) * own,
    "one condition apart": lambda x, own, rng: _noisy(x, np.where(own == own[0], 30.0, own), rng),
}


_NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)


IDS = {
    "words": lambda number: f"tyre {number}",
    "whole numbers": lambda number: 7 * number - 20,
    "numbers": lambda number: number / 3,
    "tuples": lambda number: (number % 3, f"lane {number}"),
    "dates": lambda number: datetime.date(2024, 1, 1) + datetime.timedelta(days=number),
    "times": lambda number: _NOON + datetime.timedelta(microseconds=number),
    "characters of the world": lambda number: f"{'äß漢字🙂ñ'[number % 6]}\u0000{number}\n",
    "empty and very long": lambda number: "x" * 20_000 + str(number) if number else "",
    "truth values": lambda number: bool(number) if number < 2 else f"tyre {number}",
    "of all kinds": lambda number: (f"s{number}", number, number + 0.5, (number,), IDS["dates"](number))[number % 5],
    "categories": lambda number: f"tyre {number}",
    "missing": lambda number: float(number) if number else float("nan"),
    "none": lambda number: str(number) if number else None,
}


# Arrays, each in its own way; tables are made of them as they are.
ARRAYS = {
    "arrays": np.asarray,
    "lists": np.ndarray.tolist,
    "single precision": np.float32,
    "Fortran order": np.asfortranarray,
    "every other row": lambda values: np.repeat(values, 2, axis=0)[::2],
    "backwards": lambda values: values[::-1].copy()[::-1],
    "read-only": lambda values: np.broadcast_to(values, values.shape),
    "objects": lambda values: values.astype(object),
    "other byte order": lambda values: values.astype(values.dtype.newbyteorder()),
}
TABLES = ("table", "table with conditions", "table of nullable numbers")
CONTAINERS = (*ARRAYS, *TABLES)
SIZES = (1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12)
OFFSETS = (0.0, 0.0, -3.0, 1e9)
TRANSFORMS = (None, None, None, None, None, None, "log", "sqrt")


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


def recipe(number: int, layout: int) -> Recipe:
    """The recipe of a number."""
    rng = np.random.default_rng(number)
    choices = (INPUTS, OUTPUTS, IDS, CONTAINERS, SIZES, SIZES, OFFSETS, TRANSFORMS)
    return Recipe(layout, *(list(each)[rng.integers(len(each))] for each in choices), seed=number)


def made(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is handed to ``fit``, arguments by name, and settings of the estimator."""
    rng, layout = np.random.default_rng(recipe.seed), LAYOUTS[recipe.layout]
    n_conditions = len(layout.counts)
    conditions = np.repeat(np.arange(n_conditions), layout.counts)
    n_points = layout.counts[0] if layout.shared_inputs else len(conditions)
    x = INPUTS[recipe.inputs](rng.uniform(0, 3, (n_points, layout.n_columns)), rng)
    x = np.tile(x, (n_conditions, 1)) if layout.shared_inputs else x
    y = OUTPUTS[recipe.outputs](x, rng.normal(size=n_conditions)[conditions], rng)
    names = [IDS[recipe.ids](int(number)) for number in rng.permutation(n_conditions)]
    order = rng.permutation(len(y))
    x, y = x[order] * recipe.input_size, y[order] * recipe.output_size + recipe.offset
    settings = {"n_latent": 1, "n_restarts": 1, "max_iter": 15, "random_state": 0, "unseen": "prior"}
    settings |= {"n_inducing_inputs": "auto" if len(y) < LEAST_DISTINCT else LEAST_DISTINCT}
    settings |= {
        "n_inducing_latents": min(3, n_conditions),
        "output_transform": recipe.transform,
        **(layout.settings or {}),
    }
    settings |= {"condition": "condition"} if recipe.container == "table with conditions" else {}
    return _contained(recipe, x, y, [names[number] for number in conditions[order]]), settings


def _contained(recipe: Recipe, x: np.ndarray, y: np.ndarray, ids: list[Any]) -> dict[str, Any]:
    if recipe.container in ARRAYS:
        way = ARRAYS[recipe.container]
        return {"X": way(x), "y": way(y), "conditions": pd.Categorical(ids) if recipe.ids == "categories" else ids}
    table = pd.DataFrame(x, columns=[f"x{column}" for column in range(x.shape[1])])
    if recipe.container == "table of nullable numbers":
        table, y = table.astype("Float64"), pd.array(y, dtype="Float64")
    column = pd.Series(ids, dtype="category" if recipe.ids == "categories" else object)
    if recipe.container == "table with conditions":
        return {"X": table.assign(condition=column), "y": pd.Series(y)}
    return {"X": table, "y": pd.Series(y), "conditions": column}
