"""Processes of fits and of draws against Gaussian processes over rows (x, h) with full covariance matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from drawn_models import KINDS, dense_ensemble, of_kind
from numpy.testing import assert_allclose

from lvmogp.ground.compiling import compiled
from lvmogp.model.process import DenseExplained, Process, at_inputs, explained_of_sums

RNG = np.random.default_rng(61)
X, OTHER_X = RNG.uniform(-2, 2, (4, 2)), RNG.uniform(-2, 2, (3, 2))
H, OTHER_H = RNG.normal(size=(2, 2)), RNG.normal(size=(2, 2))
WEIGHTS = np.array([0.7, -0.4])


@compiled
def views(process: Process, x, other_x, h, other_h) -> dict[str, jax.Array]:
    """All that a process says, at rows of one latent each or of sums over two."""
    explained, new = process.explained, -1
    a, b = process.inputs(x), process.inputs(other_x)
    c, d = process.latents(h), process.latents(other_h)
    here = explained.at_latent(c[0], new)
    there, rows = at_inputs(explained, jnp.concatenate([a, b]))
    left, right = (jnp.einsum("k,nr,kc->nrc", WEIGHTS, *pair) for pair in ((a, c), (b, d)))
    of_fit = {} if isinstance(explained, DenseExplained) else {"sums": explained_of_sums(process, left, right)}
    return {
        **of_fit,
        "mean": explained.mean(a, c[0]),
        "covariance": explained.covariance(a, c[0], b, d[0], (new, new)),
        "mean at latent": here.mean(a),
        "covariance at latent": here.covariance(a, b),
        "variance at latent": here.variance(a),
        "mean at inputs": there.mean(rows, c[0])[:4],
        "covariance at inputs": there.covariance(rows, c[0], rows, d[0], (new, new))[:4, 4:],
        "variance at inputs": there.at_latent(c[0], new).variance(rows)[:4],
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
    variances = {f"variance{where}": own for where in (" at latent", " at inputs")}
    covariances = {"covariance": between, "covariance at inputs": between, "covariance at latent": within}
    return {**means, **variances, **covariances, "sums": summed}


CASES = {
    **{kind: (kind, {}) for kind in KINDS},
    "draws on a grid, errors": ("draws on a grid", {"error": 0.3}),
    "draws on scattered data, errors": ("draws on scattered data", {"error": 0.3}),
    "features": ("fit on a grid", {"features": True, "n_latent": 1, "noise": "shared"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_is_that_of_full_covariance_matrices(case):
    kind, options = CASES[case]
    model = of_kind(kind, **{"n_latent": 2, "noise": "per-condition", **options}).model_
    dense = dense_ensemble(model).processes
    for number in (0, len(dense) - 1):
        process = jax.tree.map(lambda leaf, number=number: leaf[number], model.ensemble.processes)
        found, expected = views(process, X, OTHER_X, H, OTHER_H), dense_views(dense[number])
        assert found.keys() == expected.keys() - ({"sums"} if kind == "draws on scattered data" else set())
        for name, values in found.items():
            assert_allclose(values, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
        assert_allclose(process.inputs.kernels[0].variance, dense[number].input_kernel.variance)
        assert_allclose(process.latents.kernels[0].variance, dense[number].latent_kernel.variance)


def test_mean_features_of_uncertain_latents_are_averages():
    model = of_kind("fit on a grid", n_latent=2, noise="per-condition").model_
    features = jax.tree.map(lambda leaf: leaf[0], model.ensemble.processes).latents
    own = model.posterior.parameters.latents
    unit, weights = references.hermite(20, 2)
    points = np.asarray(own.mean)[:, None] + np.sqrt(own.variance)[:, None] * unit
    expected = jax.vmap(lambda nodes: weights @ features(nodes))(jnp.asarray(points))
    assert_allclose(features.expected(own), expected, rtol=1e-9, atol=1e-11)
