"""A fit knows neither the order of rows nor the names of conditions."""

import numpy as np
import pandas as pd
import pytest
from papers_model import PapersModel

from lvmogp import LVMOGPRegressor


def fitted(table: pd.DataFrame, names: list, kind: str) -> LVMOGPRegressor:
    """The model of the rows as they come, conditions under the given names."""
    settings = {"n_latent": 1, "n_restarts": 1, "max_iter": 8, "n_inducing_inputs": 4, "n_inducing_latents": 3}
    beyond = {
        "features": {"condition_features": pd.DataFrame({"size": [1.0, 2.0, np.nan, 4.0]}, index=names)},
        "measurement errors": {"y_std": table["error"].to_numpy()},
    }
    if kind == "measurement errors":
        settings["noise"] = "per-condition"
    ids = [names[number] for number in table["number"]]
    return PapersModel(**settings).fit(table[["x"]].to_numpy(), table["y"].to_numpy(), ids, **beyond.get(kind, {}))


@pytest.mark.parametrize("kind", ["grid", "features", pytest.param("measurement errors", marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore::lvmogp.LVMOGPWarning")
def test_fit_is_the_same_however_it_is_told(kind):
    rng = np.random.default_rng(7)
    conditions = np.repeat(np.arange(4), 6 if kind == "grid" else (9, 1, 4, 7))
    x = np.tile(np.linspace(0, 1, 6), 4) if kind == "grid" else rng.uniform(0, 1, len(conditions))
    y = np.sin(5 * x + conditions) + 0.1 * rng.normal(size=len(x))
    table = pd.DataFrame({"x": x, "y": y, "number": conditions, "error": rng.uniform(0.05, 0.2, len(x))})
    first, second = ["a", "b", "c", "d"], [9, 2, 5, 7]
    before, after = fitted(table, first, kind), fitted(table.sample(frac=1, random_state=3), second, kind)
    assert after.outcome_.bound == before.outcome_.bound
    points = np.linspace(-0.2, 1.2, 6)[:, None]
    for one, other in zip(first, second, strict=True):
        found = after.predict(points, other, return_std=True)
        np.testing.assert_allclose(found, before.predict(points, one, return_std=True), rtol=1e-12, atol=1e-13)
