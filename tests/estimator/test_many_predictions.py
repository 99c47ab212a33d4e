"""Predictions of many rows and conditions at once equal those of a loop over conditions and rows."""

import equinox as eqx
import numpy as np
import pytest
from numpy.testing import assert_allclose

from lvmogp import ConvergenceWarning, LVMOGPRegressor

X = np.linspace(0, 10, 12)[:, None]
POINTS = np.random.default_rng(1).uniform(-1, 11, (9, 1))
POOL = ["a", "c", "b", "new"]


@pytest.fixture(scope="module", params=["plain", "log", "lazy"])
def model(request):
    names = ["b", "a", "c"]
    y = np.exp(np.sin(X + np.arange(3) / 2) / 3)
    found = LVMOGPRegressor(
        n_latent=1,
        n_inducing_inputs=5,
        n_inducing_latents=3,
        max_iter=5,
        n_restarts=1,
        noise="per-condition",
        output_transform="log" if request.param == "log" else None,
    )
    with pytest.warns(ConvergenceWarning):
        found.fit(X, y, conditions=names)
    found.add_condition("new", [[1.0]], [1.2])
    if request.param == "lazy":
        ensemble = eqx.tree_at(lambda tree: tree.fit.curves, found.model_.ensemble, None)
        found.model_ = found.model_._replace(ensemble=ensemble)
    return found


@pytest.mark.parametrize("include_noise", [True, False])
def test_all_conditions_at_once_equal_each_by_itself(model, include_noise):
    mean, deviation = model.predict(POINTS, return_std=True, include_noise=include_noise)
    for column, name in enumerate(["b", "a", "c"]):
        own = model.predict(POINTS, name, return_std=True, include_noise=include_noise)
        assert_allclose([mean[:, column], deviation[:, column]], own, rtol=1e-10)
    assert_allclose(model.predict(POINTS, include_noise=include_noise), mean, rtol=1e-12)


def test_rows_of_many_conditions_equal_each_by_itself(model):
    ids = np.random.default_rng(2).choice(POOL, len(POINTS))
    y = np.linspace(0.5, 2.0, len(POINTS))
    found = np.stack(
        [
            *model.predict(POINTS, ids, return_std=True),
            *model.predict_interval(POINTS, ids),
            model.log_predictive_density(POINTS, y, ids),
            model.predictive_cdf(POINTS, y, ids),
        ]
    )
    for row, name in enumerate(ids.tolist()):
        point, output = POINTS[row : row + 1], y[row : row + 1]
        one = [
            *model.predict(point, name, return_std=True),
            *model.predict_interval(point, name),
            model.log_predictive_density(point, output, name),
            model.predictive_cdf(point, output, name),
        ]
        assert_allclose(found[:, row], np.ravel(one), rtol=1e-9)
