"""Baselines against SciPy's Gaussian densities, scikit-learn, and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import kernels as sk
from small_models import rbf

from lvmogp.inference.optimise import maximise
from lvmogp.kernels.covariances import cross
from lvmogp.model.layouts import GridData
from paper.baselines import apart, bilinear, coregionalised
from paper.baselines.apart import Apart, stacked
from paper.baselines.coregionalised import Coregionalised, FullRank, LowRank, Observed, OneHot, Together

N, D = 12, 3


@pytest.fixture
def rows(rng):
    inputs, conditions = rng.normal(size=(N, 2)), rng.integers(0, D, N)
    return inputs, rng.normal(size=N), conditions


RELATIONS = {
    "together": Together(D),
    "one-hot": OneHot(jnp.arange(D)[:, None], jnp.asarray([0.8, 1.1, 1.7])),
    "full rank": FullRank(jnp.asarray([[0.9, 0, 0], [0.4, 1.1, 0], [-0.3, 0.2, 0.7]])),
    "low rank": LowRank(jnp.asarray([[0.5, 1.0], [0.2, -0.4], [1.1, 0.3]]), jnp.asarray([0.1, 0.2, 0.3])),
}


def coregionalised_by(name, noise):
    return Coregionalised(rbf([0.9, 1.4], 1.3), RELATIONS[name], jnp.asarray(noise))


def dense(parameters, inputs, conditions, others, other_conditions):
    between = np.asarray(parameters.relation.matrix())[np.ix_(conditions, other_conditions)]
    return np.asarray(cross(parameters.kernel, jnp.asarray(inputs), jnp.asarray(others))) * between


def observed(rows):
    return Observed(*map(jnp.asarray, rows))


@pytest.mark.parametrize(("name", "noise"), [*((name, [0.3]) for name in RELATIONS), ("low rank", [0.3, 0.1, 0.6])])
def test_evidence_and_predictions_are_those_of_the_dense_gaussian(rows, rng, name, noise):
    inputs, outputs, conditions = rows
    parameters = coregionalised_by(name, noise)
    covariance = dense(parameters, inputs, conditions, inputs, conditions)
    covariance += np.diag(np.broadcast_to(noise, D)[conditions])
    expected = multivariate_normal(np.zeros(N), covariance).logpdf(outputs)
    assert_allclose(coregionalised.log_evidence(parameters, observed(rows)), expected, rtol=1e-10)
    new, new_conditions = rng.normal(size=(5, 2)), np.asarray([0, 2, 1, 1, 0])
    moments = coregionalised.predict(parameters, observed(rows), new, new_conditions)
    from_new = dense(parameters, new, new_conditions, inputs, conditions)
    own = np.diag(dense(parameters, new, new_conditions, new, new_conditions))
    assert_allclose(moments.mean, from_new @ np.linalg.solve(covariance, outputs), rtol=1e-9)
    explained = np.sum(from_new * np.linalg.solve(covariance, from_new.T).T, axis=1)
    assert_allclose(moments.variance, own - explained, rtol=1e-8)


@pytest.mark.parametrize("name", RELATIONS)
def test_a_grid_gives_what_its_rows_give(rng, name):
    inputs, outputs, new = rng.normal(size=(4, 2)), rng.normal(size=(4, D)), rng.normal(size=(5, 2))
    grid = GridData(jnp.asarray(inputs), jnp.asarray(outputs))
    data = observed((np.repeat(inputs, D, axis=0), outputs.ravel(), np.tile(np.arange(D), 4)))
    one, other = (
        jax.value_and_grad(lambda noise, f=f, d=d: f(coregionalised_by(name, noise), d))(jnp.asarray([0.2]))
        for f, d in ((coregionalised.grid_log_evidence, grid), (coregionalised.log_evidence, data))
    )
    assert_allclose(one[0], other[0], rtol=1e-10)
    assert_allclose(one[1], other[1], rtol=1e-8)
    parameters = coregionalised_by(name, [0.2])
    mean, variance = coregionalised.grid_predict(parameters, grid, jnp.asarray(new))
    moments = coregionalised.predict(parameters, data, np.repeat(new, D, axis=0), np.tile(np.arange(D), 5))
    assert_allclose(np.ravel(mean), moments.mean, rtol=1e-8, atol=1e-10)
    assert_allclose(np.ravel(variance), moments.variance, rtol=1e-7, atol=1e-10)


def test_one_hot_ids_and_factors_are_an_rbf_over_their_columns():
    ids = RELATIONS["one-hot"]
    assert_allclose(ids.matrix(), sk.RBF(np.asarray(ids.lengthscale))(np.eye(D)), rtol=1e-12)
    factors = np.asarray([[0, 0], [0, 1], [1, 0], [1, 1]])
    lengthscale = np.asarray([0.7, 1.2, 0.9, 1.5])
    columns = np.hstack([np.eye(2)[factors[:, 0]], np.eye(2)[factors[:, 1]]])
    found = OneHot(jnp.asarray(factors + np.asarray([0, 2])), jnp.asarray(lengthscale)).matrix()
    assert_allclose(found, sk.RBF(lengthscale)(columns), rtol=1e-12)


def test_independent_gps_are_a_diagonal_relation(rows, rng):
    inputs, outputs, conditions = rows
    noise = jnp.asarray([0.3, 0.1, 0.6, 0.1])
    kernel = rbf([0.9, 1.4], 1.3)
    joint = Coregionalised(kernel, FullRank(jnp.eye(D)), noise[:D])
    evidence = apart.log_evidence(Apart(kernel, noise[:D]), stacked(inputs, outputs, conditions, D))
    assert_allclose(evidence, coregionalised.log_evidence(joint, observed(rows)), rtol=1e-10)
    new, new_conditions = rng.normal(size=(6, 2)), np.asarray([0, 2, 1, 1, 0, 2])
    own, data = [Apart(kernel, noise[d : d + 1]) for d in range(D + 1)], stacked(inputs, outputs, conditions, D + 1)
    found = apart.predict(own, data, new, new_conditions)
    expected = coregionalised.predict(joint, observed(rows), new, new_conditions)
    assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-12)
    assert_allclose(found.variance, expected.variance, rtol=1e-9)
    without_rows = apart.predict(own, data, new, np.full(6, D))
    assert_allclose(without_rows.mean, 0.0, atol=1e-12)
    assert_allclose(without_rows.variance, 1.3, rtol=1e-9)


@pytest.mark.long
def test_the_bilinear_model_finds_two_contents(rng):
    inputs, new = rng.uniform(-1, 1, (40, 1)), rng.uniform(-0.9, 0.9, (10, 1))
    styles = rng.normal(size=(2, 8))

    def curves(points):
        return np.hstack([np.sin(3 * points), np.cos(3 * points)]) @ styles

    outputs = curves(inputs) + 0.01 * rng.normal(size=(40, 8))
    start = Apart(rbf([0.5], 1.3), jnp.asarray([0.01]))

    limits = {"max_iterations": 200, "tolerance": 0.02}
    model = bilinear.fit(inputs, outputs, lambda data: maximise(apart.log_evidence, start, data, **limits).tree)
    assert len(model.scales) == 2
    moments = bilinear.predict(model, new)
    assert_allclose(moments.mean, curves(new), atol=0.03)
    assert np.all(moments.variance > 0)
    assert model.noise_variance == pytest.approx(1e-4, rel=0.3)
