"""The paper's synthetic data sets, drawn from the model itself."""

from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from lvmogp.typing import HostFloat, HostInt


class SyntheticGrid(NamedTuple):
    """Draws from the model itself: noisy training outputs and noise-free test outputs on a grid."""

    train_inputs: HostFloat
    train_outputs: HostFloat
    test_inputs: HostFloat
    test_values: HostFloat


def synthetic_grid(seed: int) -> SyntheticGrid:
    """The paper's synthetic data without missing values: 50 + 50 inputs, 40 conditions, two latent dimensions.

    x ~ U[0, 1] with an RBF of lengthscale .1, h ~ U[0, 1]² with one of lengthscale .4, noise variance .3. The
    order of the draws is part of the definition.
    """
    rng = np.random.RandomState(seed)  # the published sets were drawn with the legacy generator
    inputs, latents = rng.rand(100, 1), rng.rand(40, 2)
    curves = rng.randn(100, 40)
    values = _factor(inputs, 0.1) @ curves @ _factor(latents, 0.4).T
    noisy = values[:50] + np.sqrt(0.3) * rng.randn(50, 40)
    return SyntheticGrid(inputs[:50], noisy, inputs[50:], values[50:])


def _rbf(points: HostFloat, lengthscale: float) -> HostFloat:
    squared = cdist(points, points, "sqeuclidean")
    return np.exp(-squared / lengthscale**2 / 2)


def _factor(points: HostFloat, lengthscale: float) -> HostFloat:
    return np.linalg.cholesky(_rbf(points, lengthscale) + 1e-8 * np.eye(len(points)))


class SyntheticRows(NamedTuple):
    """Draws from the model itself in long form: noisy training outputs, noise-free test outputs."""

    train_inputs: HostFloat
    train_outputs: HostFloat
    train_conditions: HostInt
    test_inputs: HostFloat
    test_values: HostFloat
    test_conditions: HostInt


def synthetic_uneven(seed: int, *, n_groups: int = 10, n_per_group: int = 200, n_test: int = 50) -> SyntheticRows:
    """The paper's synthetic data with uneven conditions: each has its own inputs, some have hardly any.

    Groups of four conditions share ``n_per_group`` training points by a three-step stick breaking: each of the
    first three takes a uniform share of what is left, the last the rest. Kernels and noise are those of
    :func:`synthetic_grid`. The order of the draws is part of the definition.
    """
    rng = np.random.RandomState(seed)
    latents = rng.rand(4 * n_groups, 2)
    counts = np.concatenate([_broken_stick(rng, n_per_group) for _ in range(n_groups)])
    conditions = np.repeat(np.arange(4 * n_groups), counts)
    test_conditions = np.repeat(np.arange(4 * n_groups), n_test)
    inputs, test_inputs = rng.rand(len(conditions), 1), rng.rand(len(test_conditions), 1)
    of_all = np.concatenate([conditions, test_conditions])
    # K = K_X ∘ K_H over all points, since no two conditions share their inputs
    covariance = _rbf(np.concatenate([inputs, test_inputs]), 0.1)
    covariance *= _rbf(latents, 0.4)[of_all[:, None], of_all]
    covariance.flat[:: len(of_all) + 1] += 1e-8
    values = np.linalg.cholesky(covariance) @ rng.randn(len(of_all))
    n_train = len(conditions)
    noisy = values[:n_train] + np.sqrt(0.3) * rng.randn(n_train)
    return SyntheticRows(inputs, noisy, conditions, test_inputs, values[n_train:], test_conditions)


def _broken_stick(rng: np.random.RandomState, total: int) -> list[int]:
    counts: list[int] = []
    for share in rng.rand(3):
        counts.append(round(share * (total - sum(counts))))
    return [*counts, total - sum(counts)]
