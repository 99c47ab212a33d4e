"""Exact Gaussian processes, each given a fair chance: maximum likelihood of all rows from several starts.

Weak priors keep what the data leave open from running away.

Every one takes the training rows together with the few rows of new conditions, and returns mean and variance of
*observations* at the rows to predict.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from benchmarks.real.problems import GroupedRows, Task
from lvmogp.ground.compiling import jitted
from lvmogp.typing import HostFloat

_N_STARTS = 3
_MOST_ITERATIONS = 300
_ROUNDED_TO = 32  # rows, so that splits share programs
_SMALLEST_NOISE = 1e-6  # as a share of the variance of the outputs
_RANK = 2
# Deviations of what is a condition's own about what all have in common; the likelihood chooses.
_OWN_DEVIATIONS = (1.0, 0.3, 0.1)

Moments = tuple[HostFloat, HostFloat]
Free = Mapping[str, jax.Array]


class Padded(NamedTuple):
    """Rows, padded to few numbers of them; ``present`` is 0 where there is none."""

    inputs: jax.Array
    outputs: jax.Array
    conditions: jax.Array
    present: jax.Array


class Values(NamedTuple):
    """Free values of one name: their shape, the box that starts are drawn from, the deviation of a prior about 0."""

    shape: tuple[int, ...]
    lowest: float
    highest: float
    deviation: float = 3.0


Covariance = Callable[[Free, Padded, Padded], jax.Array]


class Kind(NamedTuple):
    """A covariance, given whether it is smooth, and its free values for columns, conditions and a deviation.

    The deviations to choose from are those of values that each condition has of its own.
    """

    covariance: Callable[[bool], Covariance]
    values: Callable[[int, int, float], dict[str, Values]]
    own_deviations: tuple[float, ...] = (1.0,)


def _correlation(inputs: jax.Array, others: jax.Array, log_lengthscales: jax.Array, *, smooth: bool) -> jax.Array:
    apart = (inputs[:, None] - others[None]) / jnp.exp(log_lengthscales)
    squared = jnp.sum(apart**2, axis=-1)
    if smooth:
        return jnp.exp(-squared / 2)
    distance = jnp.sqrt(5 * squared + 1e-12)  # Matérn 5/2
    return (1 + distance + distance**2 / 3) * jnp.exp(-distance)


def _same(rows: Padded, others: Padded) -> jax.Array:
    return (rows.conditions[:, None] == others.conditions).astype(float)


def _hierarchical(smooth: bool) -> Covariance:
    # A common curve with a level, and a curve with a level of each condition's own.
    def covariance(free: Free, rows: Padded, others: Padded) -> jax.Array:
        common = _correlation(rows.inputs, others.inputs, free["common"], smooth=smooth)
        own = _correlation(rows.inputs, others.inputs, free["own"], smooth=smooth)
        variances = jnp.exp(free["variances"])
        shared = variances[0] * common + variances[1]
        return shared + _same(rows, others) * (variances[2] * own + variances[3])

    return covariance


def _coregionalised(smooth: bool) -> Covariance:
    # (k(x, x') + c) (WWᵀ + diag κ): loadings and own variances of a condition are those of all, changed by its own, so
    # that a condition with few rows is taken to be like the others.
    def covariance(free: Free, rows: Padded, others: Padded) -> jax.Array:
        alike = _correlation(rows.inputs, others.inputs, free["common"], smooth=smooth) + jnp.exp(free["level"])
        loadings = free["mean_loading"] + free["loadings"]
        own = jnp.diag(jnp.exp(free["mean_own_variance"] + free["own_variances"]))
        between = loadings @ loadings.T + own
        return alike * between[rows.conditions][:, others.conditions]

    return covariance


def _alone(smooth: bool) -> Covariance:
    # Curves that know nothing of each other but share their hyperparameters.
    def covariance(free: Free, rows: Padded, others: Padded) -> jax.Array:
        own = _correlation(rows.inputs, others.inputs, free["own"], smooth=smooth)
        variances = jnp.exp(free["variances"])
        return _same(rows, others) * (variances[0] * own + variances[1])

    return covariance


KINDS = {
    "hierarchical GP": Kind(
        _hierarchical,
        lambda n_columns, n_conditions, deviation: {
            "common": Values((n_columns,), -1.5, 1),
            "own": Values((n_columns,), -1.5, 1),
            "variances": Values((4,), -4, 1),
        },
    ),
    "coregionalisation": Kind(
        _coregionalised,
        lambda n_columns, n_conditions, deviation: {
            "common": Values((n_columns,), -1.5, 1),
            "level": Values((1,), -3, 0),
            "mean_loading": Values((_RANK,), -1, 1),
            "loadings": Values((n_conditions, _RANK), -0.2, 0.2, deviation),
            "mean_own_variance": Values((1,), -6, -1),
            "own_variances": Values((n_conditions,), -0.2, 0.2, deviation),
        },
        _OWN_DEVIATIONS,
    ),
    "GPs alone": Kind(
        _alone,
        lambda n_columns, n_conditions, deviation: {
            "own": Values((n_columns,), -1.5, 1),
            "variances": Values((2,), -4, 1),
        },
    ),
}
_NOISE = {"noise": Values((1,), -7, -1)}


def exact_gp(name: str, task: Task) -> Moments:
    """Fit an exact GP, squared exponential or Matérn 5/2, whichever is likelier, and predict."""
    together = task.train.and_then(task.few)
    n_conditions = int(max(together.conditions.max(), task.test.conditions.max())) + 1
    kind, rows = KINDS[name], _padded(together)
    fits = [
        (*_fitted(name, smooth, kind.values(together.inputs.shape[1], n_conditions, deviation) | _NOISE, rows), smooth)
        for smooth, deviation in product((True, False), kind.own_deviations)
    ]
    _, free, smooth = min(fits, key=lambda fit: fit[0])
    mean, variance = _programs(name, smooth).moments(free, rows, _padded(task.test))
    n_test = len(task.test.outputs)
    return np.asarray(mean)[:n_test], np.asarray(variance)[:n_test]


def _fitted(name: str, smooth: bool, values: Mapping[str, Values], rows: Padded) -> tuple[float, dict[str, jax.Array]]:
    ends = np.cumsum([int(np.prod(each.shape)) for each in values.values()])
    # −log p(y | θ) − log p(θ), up to a constant
    deviations = np.concatenate([np.full(int(np.prod(each.shape)), each.deviation) for each in values.values()])

    def tree(flat: HostFloat) -> dict[str, jax.Array]:
        parts = zip(values.items(), np.split(flat, ends[:-1]), strict=True)
        return {each: jnp.asarray(part.reshape(about.shape)) for (each, about), part in parts}

    def objective(flat: HostFloat) -> tuple[float, HostFloat]:
        value, gradient = _programs(name, smooth).loss(tree(flat), rows)
        slope = np.concatenate([np.ravel(gradient[each]) for each in values]) + flat / deviations**2
        if not (np.isfinite(value) and np.all(np.isfinite(slope))):
            return 1e10, np.zeros(len(flat))  # the line search turns back
        return float(value + np.sum((flat / deviations) ** 2 / 2 + np.log(deviations))), slope

    rng = np.random.default_rng(0)
    starts = [
        np.concatenate([rng.uniform(each.lowest, each.highest, each.shape).ravel() for each in values.values()])
        for _ in range(_N_STARTS)
    ]
    options = {"maxiter": _MOST_ITERATIONS}
    found = [minimize(objective, start, jac=True, method="L-BFGS-B", options=options) for start in starts]
    best = min(found, key=lambda result: result.fun)
    return float(best.fun), tree(best.x)


# Compiled


class Programs(NamedTuple):
    """What is compiled of one kind."""

    loss: Callable[[Free, Padded], tuple[jax.Array, dict[str, jax.Array]]]
    moments: Callable[[Free, Padded, Padded], tuple[jax.Array, jax.Array]]


@cache
def _programs(name: str, smooth: bool) -> Programs:
    covariance = KINDS[name].covariance(smooth)
    return Programs(
        jitted(
            jax.value_and_grad(lambda free, rows: negative_log_density(_matrix(covariance, free, rows), rows.outputs))
        ),
        jitted(lambda free, rows, asked: _moments(covariance, free, rows, asked)),
    )


def _padded(rows: GroupedRows) -> Padded:
    n_rows = len(rows.outputs)
    more = -n_rows % _ROUNDED_TO
    inputs = np.pad(rows.inputs, ((0, more), (0, 0)))
    outputs, conditions = np.pad(rows.outputs, (0, more)), np.pad(rows.conditions, (0, more))
    present = np.pad(np.ones(n_rows), (0, more))
    return Padded(*map(jnp.asarray, (inputs, outputs, conditions, present)))


def _noise(free: Free) -> jax.Array:
    return _SMALLEST_NOISE + jnp.exp(free["noise"][0])


def _matrix(covariance: Covariance, free: Free, rows: Padded) -> jax.Array:
    matrix = covariance(free, rows, rows) * rows.present[:, None] * rows.present
    return matrix + jnp.diag(jnp.where(rows.present > 0, _noise(free), 1.0))


@jax.custom_vjp
def negative_log_density(matrix: jax.Array, outputs: jax.Array) -> jax.Array:
    """−log N(y; 0, K), up to a constant, with a gradient that forms K⁻¹ once: quicker than back through a factor."""
    return _density_and_parts(matrix, outputs)[0]


def _density_and_parts(matrix: jax.Array, outputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    factor = jnp.linalg.cholesky(matrix)
    whitened = jax.scipy.linalg.solve_triangular(factor, outputs, lower=True)
    return jnp.sum(jnp.log(jnp.diagonal(factor))) + whitened @ whitened / 2, (factor, whitened)


def _gradient(parts: tuple[jax.Array, jax.Array], upstream: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor, whitened = parts
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(whitened)), lower=True)
    solved = inverse.T @ whitened
    # ∂/∂K = ½ (K⁻¹ − K⁻¹ y yᵀ K⁻¹), ∂/∂y = K⁻¹ y
    return upstream * (inverse.T @ inverse - jnp.outer(solved, solved)) / 2, upstream * solved


negative_log_density.defvjp(_density_and_parts, _gradient)


def _moments(covariance: Covariance, free: Free, rows: Padded, asked: Padded) -> tuple[jax.Array, jax.Array]:
    factor = jnp.linalg.cholesky(_matrix(covariance, free, rows))
    between = covariance(free, rows, asked) * rows.present[:, None]
    projected = jax.scipy.linalg.solve_triangular(factor, between, lower=True)
    whitened = jax.scipy.linalg.solve_triangular(factor, rows.outputs, lower=True)
    prior = jnp.diagonal(covariance(free, asked, asked)) + _noise(free)
    return projected.T @ whitened, prior - jnp.sum(projected**2, axis=0)
