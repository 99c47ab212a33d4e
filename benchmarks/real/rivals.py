"""Exact Gaussian processes and a mixed model, each given a fair chance: maximum likelihood from several starts.

Every one takes training rows and the few rows of new conditions, and returns mean and variance of *observations* at
the rows to predict, in standardised units.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.stats import qmc

from benchmarks.real.problems import GroupedRows, Task
from lvmogp.typing import HostFloat

_N_STARTS = 4
_MOST_ITERATIONS = 300
_ROUNDED_TO = 32  # rows, so that splits share programs
_JITTER = 1e-8
_RANK = 2
_SMALLEST_NOISE = 1e-3  # as a share of the variance of the outputs

Moments = tuple[HostFloat, HostFloat]


class Padded(NamedTuple):
    """Rows, padded to few numbers of them; ``present`` is 0 where there is none."""

    inputs: jax.Array
    outputs: jax.Array
    conditions: jax.Array
    present: jax.Array


Covariance = Callable[[dict[str, jax.Array], Padded, Padded], jax.Array]


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
    def covariance(free: dict[str, jax.Array], rows: Padded, others: Padded) -> jax.Array:
        common = _correlation(rows.inputs, others.inputs, free["common"], smooth=smooth)
        own = _correlation(rows.inputs, others.inputs, free["own"], smooth=smooth)
        variances = jnp.exp(free["variances"])
        shared = variances[0] * common + variances[1]
        return shared + _same(rows, others) * (variances[2] * own + variances[3])

    return covariance


def _coregionalised(smooth: bool) -> Covariance:
    # k(x, x') (WWᵀ + diag κ), and a level of each condition's own.
    def covariance(free: dict[str, jax.Array], rows: Padded, others: Padded) -> jax.Array:
        alike = _correlation(rows.inputs, others.inputs, free["common"], smooth=smooth)
        loadings = free["loadings"]
        between = loadings @ loadings.T + jnp.diag(jnp.exp(free["own_variances"]))
        return alike * between[rows.conditions][:, others.conditions] + jnp.exp(free["variances"][0])

    return covariance


def _alone(smooth: bool) -> Covariance:
    # Curves that know nothing of each other but share their hyperparameters.
    def covariance(free: dict[str, jax.Array], rows: Padded, others: Padded) -> jax.Array:
        own = _correlation(rows.inputs, others.inputs, free["own"], smooth=smooth)
        variances = jnp.exp(free["variances"])
        return _same(rows, others) * (variances[0] * own + variances[1])

    return covariance


def _padded(rows: GroupedRows) -> Padded:
    n_rows = len(rows.outputs)
    more = -n_rows % _ROUNDED_TO
    inputs = np.pad(rows.inputs, ((0, more), (0, 0)))
    outputs, conditions = np.pad(rows.outputs, (0, more)), np.pad(rows.conditions, (0, more))
    present = np.pad(np.ones(n_rows), (0, more))
    return Padded(*map(jnp.asarray, (inputs, outputs, conditions, present)))


def _noise(free: dict[str, jax.Array], rows: Padded) -> jax.Array:
    return (_SMALLEST_NOISE + jnp.exp(free["noise"]))[rows.conditions if free["noise"].size > 1 else 0]


def _factor(covariance: Covariance, free: dict[str, jax.Array], rows: Padded) -> jax.Array:
    matrix = covariance(free, rows, rows) * rows.present[:, None] * rows.present
    return jnp.linalg.cholesky(matrix + jnp.diag(jnp.where(rows.present > 0, _noise(free, rows) + _JITTER, 1.0)))


def _loss(covariance: Covariance, free: dict[str, jax.Array], rows: Padded) -> jax.Array:
    # −log N(y; 0, K + Σ), with weak normal priors that keep logarithms from running away.
    factor = _factor(covariance, free, rows)
    whitened = jax.scipy.linalg.solve_triangular(factor, rows.outputs, lower=True)
    prior = sum(jnp.sum((leaf / 3.0) ** 2) for leaf in jax.tree.leaves(free)) / 2
    return jnp.sum(jnp.log(jnp.diagonal(factor))) + whitened @ whitened / 2 + prior


def _moments(
    covariance: Covariance, free: dict[str, jax.Array], rows: Padded, asked: Padded
) -> tuple[jax.Array, jax.Array]:
    factor = _factor(covariance, free, rows)
    between = covariance(free, rows, asked) * rows.present[:, None]
    projected = jax.scipy.linalg.solve_triangular(factor, between, lower=True)
    whitened = jax.scipy.linalg.solve_triangular(factor, rows.outputs, lower=True)
    prior = jnp.diagonal(covariance(free, asked, asked)) + _noise(free, asked)
    return projected.T @ whitened, prior - jnp.sum(projected**2, axis=0)


class _Kind(NamedTuple):
    # A covariance with the sizes of its free values; by_condition says whether it has some for each condition, so
    # that a new one needs a fit of its own.
    covariance: Callable[[bool], Covariance]
    sizes: Callable[[int, int], dict[str, tuple[int, ...]]]
    by_condition: bool


_KINDS = {
    "hierarchical GP": _Kind(
        _hierarchical,
        lambda n_columns, n_conditions: {"common": (n_columns,), "own": (n_columns,), "variances": (4,)},
        False,
    ),
    "coregionalisation": _Kind(
        _coregionalised,
        lambda n_columns, n_conditions: {
            "common": (n_columns,),
            "loadings": (n_conditions, _RANK),
            "own_variances": (n_conditions,),
            "variances": (1,),
        },
        True,
    ),
    "GPs alone": _Kind(_alone, lambda n_columns, n_conditions: {"own": (n_columns,), "variances": (2,)}, False),
}


_COMPILED: dict[
    tuple[str, bool], tuple[Callable[..., tuple[jax.Array, jax.Array]], Callable[..., tuple[jax.Array, jax.Array]]]
] = {}


def _programs(name: str, *, smooth: bool) -> tuple[Callable[..., tuple[jax.Array, jax.Array]], ...]:
    if (name, smooth) not in _COMPILED:
        covariance = _KINDS[name].covariance(smooth)
        loss = jax.jit(jax.value_and_grad(lambda free, rows: _loss(covariance, free, rows)))
        moments = jax.jit(lambda free, rows, asked: _moments(covariance, free, rows, asked))
        _COMPILED[name, smooth] = loss, moments
    return _COMPILED[name, smooth]


def exact_gp(name: str, task: Task, *, own_noise: bool = False) -> Moments:
    """Fit an exact GP by maximum likelihood, the better of two smoothnesses, and predict.

    Where nothing belongs to a single condition, training rows alone decide the fit, as for a trained model that is
    given a new condition; else the few rows of new conditions take part in it.
    """
    kind, together = _KINDS[name], task.train.and_then(task.few)
    learnt_from = _padded(together if kind.by_condition else task.train)
    n_conditions = int(max(together.conditions.max(), task.test.conditions.max())) + 1
    sizes = kind.sizes(together.inputs.shape[1], n_conditions) | {"noise": (n_conditions if own_noise else 1,)}
    best = min((_fitted(name, smooth, sizes, learnt_from) for smooth in (True, False)), key=lambda found: found[0])
    _, smooth, free = best
    _, moments = _programs(name, smooth=smooth)
    mean, variance = moments(free, _padded(together), _padded(task.test))
    n_test = len(task.test.outputs)
    return np.asarray(mean)[:n_test], np.asarray(variance)[:n_test]


def _fitted(
    name: str, smooth: bool, sizes: dict[str, tuple[int, ...]], rows: Padded
) -> tuple[float, bool, dict[str, jax.Array]]:
    loss, _ = _programs(name, smooth=smooth)
    names, n_free = list(sizes), [int(np.prod(size)) for size in sizes.values()]
    ends = np.cumsum(n_free)

    def tree(values: HostFloat) -> dict[str, jax.Array]:
        parts = np.split(values, ends[:-1])
        return {each: jnp.asarray(part.reshape(sizes[each])) for each, part in zip(names, parts, strict=True)}

    def objective(values: HostFloat) -> tuple[float, HostFloat]:
        value, gradient = loss(tree(values), rows)
        flat = np.concatenate([np.ravel(gradient[each]) for each in names])
        return (float(value), flat) if np.isfinite(value) and np.all(np.isfinite(flat)) else (1e10, np.zeros(ends[-1]))

    spread = qmc.Sobol(int(ends[-1]), seed=0).random(_N_STARTS)
    found = [
        minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_ITERATIONS})
        for start in 3 * spread - 2  # between e⁻² and e
    ]
    best = min(found, key=lambda result: result.fun)
    return float(best.fun), smooth, tree(best.x)


def mixed_model(task: Task) -> Moments:
    """Fit a linear mixed model: a cubic spline for all and random polynomials of each condition, chosen by AIC.

    Predictions of conditions, new ones too, are the best linear unbiased ones, with the variance components fixed.
    """
    import statsmodels.api as sm  # an extra, of the rivals
    from patsy import dmatrix

    train, together = task.train, task.train.and_then(task.few)
    lowest, highest = train.inputs.min(), train.inputs.max()
    n_distinct = len(np.unique(train.inputs))

    def fixed(inputs: HostFloat) -> HostFloat:
        inside = np.clip(inputs[:, 0], lowest, highest)
        size = f"df={min(5, n_distinct - 1)}, degree={min(3, n_distinct - 2)}"
        design = f"bs(x, {size}, lower_bound={float(lowest)!r}, upper_bound={float(highest)!r})"
        return np.asarray(dmatrix(design, {"x": inside}))

    def random(inputs: HostFloat, degree: int) -> HostFloat:
        return inputs[:, :1] ** np.arange(degree + 1)

    fits = []
    for degree in range(3):
        try:
            model = sm.MixedLM(train.outputs, fixed(train.inputs), train.conditions, random(train.inputs, degree))
            result = model.fit(reml=False, method=["lbfgs", "powell"])
        except np.linalg.LinAlgError:
            continue
        n_values = result.fe_params.size + (degree + 1) * (degree + 2) / 2 + 1
        if np.isfinite(result.llf):
            fits.append((2 * n_values - 2 * result.llf, degree, result))
    _, degree, result = min(fits, key=lambda fit: fit[0])
    between, noise = np.asarray(result.cov_re), float(result.scale)
    uncertainty = np.asarray(result.cov_params())[: result.fe_params.size, : result.fe_params.size]
    mean, variance = np.empty(len(task.test.outputs)), np.empty(len(task.test.outputs))
    for number in np.unique(task.test.conditions):
        known, asked = together.conditions == number, task.test.conditions == number
        effects, wanted = random(together.inputs[known], degree), random(task.test.inputs[asked], degree)
        fixed_known, fixed_asked = fixed(together.inputs[known]), fixed(task.test.inputs[asked])
        covariance = effects @ between @ effects.T + noise * np.eye(int(known.sum()))
        gain = np.linalg.solve(covariance, effects @ between @ wanted.T).T
        mean[asked] = fixed_asked @ result.fe_params + gain @ (together.outputs[known] - fixed_known @ result.fe_params)
        left = wanted @ between @ wanted.T - gain @ effects @ between @ wanted.T
        design = fixed_asked - gain @ fixed_known
        variance[asked] = np.diag(left + design @ uncertainty @ design.T) + noise
    return mean, variance
