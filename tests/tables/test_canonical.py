"""A fit knows neither the order of rows nor the names of conditions."""

import numpy as np
import pandas as pd
import pytest
from small_models import COUNTS, PER_CONDITION, D, as_long, described_parameters, long_case, small_parameters

from lvmogp import LVMOGPRegressor
from lvmogp.model.bounds import collapsed
from lvmogp.model.parameters import Parameters, of_conditions
from lvmogp.tables.features import FeatureCoordinates
from lvmogp.tables.observations import Observations
from lvmogp.tables.ordering import canonical_order, in_order

SETTINGS = {"n_latent": 1, "n_restarts": 2, "max_iter": 30, "n_inducing_inputs": 5, "n_inducing_latents": 3}
COUNTS_OF_ROWS = (1, 4, 4, 2, 1, 6)


def uneven(rng: np.random.Generator) -> Observations:
    """Six conditions, two of them copies, with inputs and outputs that are the same here and there."""
    conditions = np.repeat(np.arange(6), COUNTS_OF_ROWS)
    inputs = rng.integers(0, 3, (len(conditions), 2)).astype(float)
    outputs = rng.integers(0, 2, len(conditions)).astype(float)
    inputs[5:9], outputs[5:9] = inputs[1:5], outputs[1:5]
    return Observations(inputs, outputs, conditions, tuple("abcdef"), None, is_grid=False)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_errors", [False, True])
def test_order_is_that_of_sorted_lists(seed, with_errors):
    rng = np.random.default_rng(seed)
    seen = uneven(rng)
    if with_errors:
        seen = seen._replace(errors=rng.integers(1, 3, len(seen.outputs)).astype(float))
    found = in_order(seen, canonical_order(seen))
    columns = [seen.inputs, seen.outputs] + ([seen.errors] if with_errors else [])
    rows = [tuple(map(float, row)) for row in np.column_stack(columns)]
    lists = {
        name: sorted(rows[place] for place in np.flatnonzero(seen.conditions == number))
        for number, name in enumerate(seen.ids)
    }
    assert found.ids == tuple(sorted(seen.ids, key=lists.__getitem__))
    columns = [found.inputs, found.outputs] + ([found.errors] if with_errors else [])
    assert [tuple(map(float, row)) for row in np.column_stack(columns)] == [
        row for name in found.ids for row in lists[name]
    ]
    np.testing.assert_array_equal(found.conditions, np.repeat(np.arange(6), [len(lists[name]) for name in found.ids]))


def test_features_tell_copies_apart():
    seen = uneven(np.random.default_rng(0))
    for known in ([3.0, 1.0], [1.0, np.nan]):
        values = np.zeros((6, 1))
        values[1:3, 0] = known
        order = canonical_order(seen, FeatureCoordinates(values, np.ones(1), np.ones(1)))
        first, second = (int(np.flatnonzero(order.conditions == number)[0]) for number in (1, 2))
        assert (first < second) == (known[0] < known[1] or np.isnan(known[1]))


def test_conditions_without_rows_come_first():
    seen = uneven(np.random.default_rng(0))._replace(ids=tuple("abcdefg"))
    assert canonical_order(seen).conditions[0] == 6


@pytest.mark.parametrize(
    "parameters",
    [small_parameters(), small_parameters(2, noise=PER_CONDITION), described_parameters()],
    ids=["shared noise", "noise per condition", "features"],
)
def test_bound_does_not_depend_on_order_of_conditions(parameters: Parameters):
    numbers = np.array([2, 0, 3, 1])
    assert len(numbers) == D == len(COUNTS)
    observations = long_case().observations
    before = collapsed(parameters, long_case().data).total
    after = collapsed(of_conditions(parameters, numbers), as_long([observations[number] for number in numbers])).total
    np.testing.assert_allclose(after, before, rtol=1e-12)
    moved = collapsed(parameters, as_long([observations[number] for number in numbers])).total
    assert abs(moved - before) > 1e-3


def told(kind: str) -> dict:
    """Observations of five conditions and what else goes into a fit, as columns of one table."""
    rng = np.random.default_rng(7)
    counts = (8,) * 5 if kind == "grid" else (9, 1, 4, 7, 5)
    conditions = np.repeat(np.arange(5), counts)
    x = np.tile(np.linspace(0, 1, 8), 5) if kind == "grid" else rng.uniform(0, 1, len(conditions))
    y = np.sin(5 * x + conditions) + 0.1 * rng.normal(size=len(x))
    return {"x": x, "y": y, "number": conditions, "error": rng.uniform(0.05, 0.2, len(x))}


def fitted(table: pd.DataFrame, names: list, kind: str) -> LVMOGPRegressor:
    """The model of the rows as they come, conditions under the given names."""
    features = pd.DataFrame({"size": [1.0, 2.0, np.nan, 4.0, 7.0]}, index=names)
    beyond = {
        "features": {"condition_features": features},
        "measurement errors": {"y_std": table["error"].to_numpy()},
    }
    settings = SETTINGS | ({"noise": "per-condition"} if kind == "noise per condition" else {})
    ids = [names[number] for number in table["number"]]
    return LVMOGPRegressor(**settings).fit(table[["x"]].to_numpy(), table["y"].to_numpy(), ids, **beyond.get(kind, {}))


@pytest.mark.parametrize("kind", ["grid", "uneven", "noise per condition", "features", "measurement errors"])
@pytest.mark.filterwarnings("ignore::lvmogp.LVMOGPWarning")
def test_fit_is_the_same_however_it_is_told(kind):
    table = pd.DataFrame(told(kind))
    first, second = ["a", "b", "c", "d", "e"], [9, 2, 5, 7, 1]
    before = fitted(table, first, kind)
    after = fitted(table.sample(frac=1, random_state=3), second, kind)
    assert after.outcome_.bound == before.outcome_.bound
    points = np.linspace(-0.2, 1.2, 6)[:, None]
    for one, other in zip(first, second, strict=True):
        for found, expected in zip(
            after.predict(points, other, return_std=True), before.predict(points, one, return_std=True), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
