"""Processes of fits and of draws against Gaussian processes over rows (x, h) with full covariance matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from drawn_models import KINDS, dense_ensemble, fitted, flat, of_kind
from references import with_optimal_inducing

from lvmogp.ground.compiling import compiled
from lvmogp.model.layouts import SparseData, long_data
from lvmogp.model.process import Process, process_of_draw

RNG = np.random.default_rng(61)
X, OTHER_X = RNG.uniform(-2, 2, (4, 2)), RNG.uniform(-2, 2, (3, 2))
H, OTHER_H = RNG.normal(size=(2, 2)), RNG.normal(size=(2, 2))
WEIGHTS = np.array([0.7, -0.4])


@compiled
def views(process: Process, x, other_x, h, other_h) -> dict[str, jax.Array]:
    """All that a process says, at rows of one latent each or of sums over two."""
    explained, one = process.explained, jnp.ones(1)
    a, b = process.inputs(x), process.inputs(other_x)
    c, d = process.latents(h), process.latents(other_h)
    here = explained.at_latent(c[0])
    there, rows = explained.at_inputs(jnp.concatenate([a, b]))
    left = jnp.einsum("k,nr,kc->nrc", jnp.asarray(WEIGHTS), a, c)
    right = jnp.einsum("k,nr,kc->nrc", jnp.asarray(WEIGHTS), b, d)
    return {
        "mean": explained.mean(a, c[0]),
        "covariance": explained.covariance(a, c[0], b, d[0]),
        "variance": explained.variance(a, c[0]),
        "bilinear": explained.bilinear(left, right),
        "mean at latent": here.mean(a, one),
        "covariance at latent": here.covariance(a, one, b, one),
        "variance at latent": here.variance(a, one),
        "mean at inputs": there.mean(rows, c[0])[:4],
        "covariance at inputs": there.covariance(rows, c[0], rows, d[0])[:4, 4:],
        "variance at inputs": there.variance(rows, c[0])[:4],
    }


def dense_views(process: references.DenseProcess) -> dict[str, np.ndarray]:
    def rows(points: np.ndarray, latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return points, np.tile(latent, (len(points), 1))

    mean = process.mean(*rows(X, H[0]))
    between = process.explained(*rows(X, H[0]), *rows(OTHER_X, OTHER_H[0]))
    within = process.explained(*rows(X, H[0]), *rows(OTHER_X, H[0]))
    own = np.diag(process.explained(*rows(X, H[0]), *rows(X, H[0])))
    summed = sum(
        weight * other * process.explained(*rows(X, h), *rows(OTHER_X, k))
        for weight, h in zip(WEIGHTS, H, strict=True)
        for other, k in zip(WEIGHTS, OTHER_H, strict=True)
    )
    means = {f"mean{where}": mean for where in ("", " at latent", " at inputs")}
    variances = {f"variance{where}": own for where in ("", " at latent", " at inputs")}
    covariances = {"covariance": between, "covariance at inputs": between, "covariance at latent": within}
    return {**means, **variances, **covariances, "bilinear": summed}


def assert_same_views(found: dict[str, jax.Array], expected: dict[str, np.ndarray], **close: float):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, err_msg=name, **close)


CASES = [*((kind, None) for kind in KINDS), ("draws on a grid", 0.3), ("draws on scattered data", 0.3)]


@pytest.mark.parametrize(("kind", "error"), CASES)
def test_a_process_is_that_of_full_covariance_matrices(kind, error):
    model = of_kind(kind, n_latent=2, noise="per-condition", error=error).model_
    dense = dense_ensemble(model)
    for number in (0, len(dense.processes) - 1):
        process = jax.tree.map(lambda leaf, number=number: leaf[number], model.ensemble.processes)
        assert_same_views(
            views(process, X, OTHER_X, H, OTHER_H), dense_views(dense.processes[number]), rtol=1e-6, atol=1e-7
        )
        np.testing.assert_allclose(process.inputs.kernel.variance, dense.processes[number].input_kernel.variance)
        np.testing.assert_allclose(process.latents.kernel.variance, dense.processes[number].latent_kernel.variance)


def test_the_sparse_form_with_all_points_inducing_is_exact():
    model = fitted("long", n_latent=2, n_columns=2).model_
    inputs, outputs = model.scaling.inputs(model.observations.inputs), model.scaling.outputs(model.observations.outputs)
    data = SparseData(long_data(inputs, outputs, model.observations.conditions, 5), jnp.asarray(inputs), jnp.arange(5))
    draw = jax.tree.map(lambda leaf: leaf[0], model.draws)
    process = compiled(process_of_draw)(draw, data)
    # what the jitter on two gram matrices leaves
    assert_same_views(
        views(process, X, OTHER_X, H, OTHER_H), dense_views(dense_ensemble(model).processes[0]), rtol=0, atol=2e-5
    )


def test_mean_features_of_uncertain_latents_are_averages():
    model = of_kind("fit on a grid", n_latent=2, noise="per-condition").model_
    features = jax.tree.map(lambda leaf: leaf[0], model.ensemble.processes).latents
    own = model.posterior.parameters.latents
    unit, weights = references.hermite(20, 2)
    for number, found in enumerate(np.asarray(features.expected(own))):
        points = np.asarray(own.mean[number]) + np.sqrt(own.variance[number]) * unit
        np.testing.assert_allclose(found, weights @ np.asarray(features(jnp.asarray(points))), rtol=1e-9, atol=1e-11)


def test_features_of_conditions_are_coordinates_like_others():
    model = fitted("grid", answers="fit", features=True, n_columns=2).model_
    parameters = model.posterior.parameters
    assert np.asarray(parameters.latents.mean).shape == (5, 2)
    x, y = (model.scaling.inputs(model.observations.inputs), model.scaling.outputs(model.observations.outputs))
    rows = [(x[7 * d : 7 * d + 7], y[7 * d : 7 * d + 7]) for d in range(5)]
    dense = references.process_of_fit(with_optimal_inducing(flat(parameters), rows))
    process = jax.tree.map(lambda leaf: leaf[0], model.ensemble.processes)
    assert_same_views(views(process, X, OTHER_X, H, OTHER_H), dense_views(dense), rtol=1e-6, atol=1e-7)
