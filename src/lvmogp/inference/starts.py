"""Named recipes for where a fit starts.

Every recipe begins with sparse GPs that treat the conditions independently and share their hyperparameters: their
kernel and noise are where the joint model starts, and their curves say how the conditions differ.
"""

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import Isomap

from lvmogp.algebra.constraints import positive
from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.inference.optimise import maximise
from lvmogp.inference.options import DescribedKernels, Settings
from lvmogp.kernels.covariances import Kernel, Stationary, Sum, complete, diagonal, plain_kernel, scaled_kernel
from lvmogp.model.expected_likelihood import ConstantTerm, condition_sums, quadratic
from lvmogp.model.features import Basis, basis
from lvmogp.model.layouts import Data, GridData, some_blocks
from lvmogp.model.parameters import (
    SPREAD_PRIOR,
    FullInducing,
    Kernels,
    KroneckerInducing,
    Parameters,
    Term,
    known_coordinates,
    plain_kernels,
)
from lvmogp.model.posterior import optimal_inducing
from lvmogp.tables.features import FeatureCoordinates
from lvmogp.typing import Array, Float, HostFloat, Scalar

# Where each condition starts in the latent space, and how fast curves change along each dimension.
Embedding = tuple[HostFloat, HostFloat]
# Lengthscales from short to long in standardised units, of which the best is gone on from, and noise beside them.
_FIRST_LENGTHSCALES, _FIRST_NOISE = (0.15, 0.5, 1.5), 0.2
# Small, so that each condition starts where its curve puts it.
_LATENT_VARIANCE = 0.05
# The joint model starts with this much at least: where data have next to none, rounding errors would count for more.
_LEAST_NOISE = 1e-3
# Least and most of the variance that a term starts with.
_SHARES = (0.02, 1.0)
# Nothing says yet where a missing coordinate is.
_MISSING_VARIANCE = 0.5
# Noise of a regression of curves on features, as a share of their variance.
_REGRESSION_NOISE = 0.1
# What twice as many inducing inputs must gain, in all and for each observation.
_LEAST_GAIN, _LEAST_GAIN_PER_POINT = 5.0, 0.02
# Points at which curves are compared, and points that are clustered: more take long and change little.
_MOST_CURVE_POINTS, _MOST_CLUSTERED = 200, 10_000
# Hyperparameters shared by all conditions are well known from this many observations.
_MOST_FOR_HYPERPARAMETERS = 20_000
# Isomap's shortest paths take the cube of the number of conditions.
_MOST_FOR_ISOMAP = 2_000


class IndependentParameters(eqx.Module):
    """One kernel and one noise variance for all conditions; the inducing inputs are given."""

    kernel: Kernel
    inducing_inputs: Float[Array, "M_X Q_X"]
    noise_variance: Scalar = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=("inducing_inputs",))


def _solved(
    parameters: IndependentParameters, data: Data
) -> tuple[Basis, ConstantTerm, Float[Array, "G M_X M_X"], Float[Array, "G M_X K"]]:
    # The inducing inputs, what they leave open, chol(I + A_d) and its solve of Σ p y a with the precisions p. One gram
    # matrix serves all conditions of a grid, which are columns of one right-hand side.
    noise, counts = parameters.noise_variance, data.counts
    input_basis = basis((parameters.kernel,), parameters.inducing_inputs)
    if isinstance(data, GridData):
        precision = 1 / data.noise(noise)
        features = input_basis.features(data.inputs)
        grams, right = (features.T @ features * precision)[None], (data.outputs.T @ features * precision).T[None]
        signal = data.n_conditions * jnp.sum(diagonal(parameters.kernel, data.inputs)) * precision
        squares, logs = data.squares * precision, counts * jnp.log(precision)
    else:
        sums = condition_sums(input_basis, data, jnp.broadcast_to(noise, counts.shape))
        grams, right = sums.grams, sums.projections[:, :, None]
        signal, squares, logs = jnp.sum(sums.prior_variances), sums.squares, sums.log_precisions
    residual = signal - data.n_conditions / len(grams) * jnp.sum(jnp.trace(grams, axis1=1, axis2=2))
    constant = ConstantTerm(jnp.sum(counts), jnp.sum(logs), jnp.sum(squares), signal, residual)
    factors = jnp.linalg.cholesky(jnp.eye(grams.shape[-1]) + grams)
    return input_basis, constant, factors, jax.scipy.linalg.solve_triangular(factors, right, lower=True)


def independent_bound(parameters: IndependentParameters, data: Data) -> Scalar:
    """Return Σ_d of Titsias' collapsed bound of each condition (equation 13)."""
    _, constant, factors, solved = _solved(parameters, data)
    log_det = 2 * data.n_conditions / len(factors) * jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)))
    explained = jnp.sum(solved**2)
    # −½ [Σ log 2π/p + Σ p y² + Σ p k(x, x) − tr A_d + log|I + A_d| − ‖L⁻¹Σ p y a‖²], p = 1/σ² but for known errors
    return constant.log_likelihood(explained) - log_det / 2


@compiled
def independent_curves(
    parameters: IndependentParameters, data: Data, points: Float[Array, "G Q_X"]
) -> Float[Array, "D G"]:
    """Return the posterior mean of each condition's own curve at common points."""
    input_basis, _, factors, solved = _solved(parameters, data)
    weights = jax.scipy.linalg.solve_triangular(factors, solved, lower=True, trans=1)  # (G, M_X, K)
    return jnp.moveaxis(weights, 1, 2).reshape(data.n_conditions, -1) @ input_basis.features(points).T


def independent_start(
    data: Data, inputs: HostFloat, input_scale: HostFloat, settings: Settings
) -> tuple[IndependentParameters, HostFloat]:
    """Fit independent sparse GPs from several lengthscales; return the best, and their curves at common points.

    The number of inducing inputs doubles while that pays, as far as the settings allow. Of very many observations some
    find the hyperparameters; the curves are those of all.
    """
    few, seed = data, settings.seed
    if not isinstance(data, GridData) and data.n_observations > _MOST_FOR_HYPERPARAMETERS:
        few = some_blocks(data, _MOST_FOR_HYPERPARAMETERS, seed)

    def covering(n_points: int) -> Array:
        return jnp.asarray(representatives(inputs, n_points, seed))

    maximised = partial(maximise, independent_bound, data=few, max_iterations=50, tolerance=0.1)
    n_inducing = settings.n_inducing_inputs
    inducing, noise = covering(n_inducing), jnp.asarray(_FIRST_NOISE)
    runs = []
    for lengthscale in _FIRST_LENGTHSCALES:
        kernel = complete(settings.kernels.together, input_scale, lengthscale * inputs.shape[1] ** 0.5)
        runs.append(maximised(start=IndependentParameters(in_precision(kernel, "float64"), inducing, noise)))
    best = max(runs, key=lambda run: run.bound)
    while len(best.tree.inducing_inputs) == n_inducing and 2 * n_inducing <= settings.most_at_start:
        n_inducing *= 2
        run = maximised(start=eqx.tree_at(lambda tree: tree.inducing_inputs, best.tree, covering(n_inducing)))
        if run.bound - best.bound < max(_LEAST_GAIN, _LEAST_GAIN_PER_POINT * few.n_observations):
            break
        best = run
    reachable = _within_reach(best.tree.kernel, np.asarray(best.tree.inducing_inputs))
    parameters = eqx.tree_at(lambda tree: tree.kernel, best.tree, reachable)
    values = np.asarray(independent_curves(parameters, data, covering(_MOST_CURVE_POINTS)), dtype=float)
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            "no start gives finite curves; look for outputs or inputs of extreme size, or try another input kernel"
        )
    return parameters, values


def _within_reach(kernel: Kernel, inducing: HostFloat) -> Kernel:
    # A few points a condition often say nothing about lengthscales, which then run away. Below the distance of
    # neighbouring inducing inputs a lengthscale cannot be represented, and beyond a few standard deviations it makes no
    # difference: start inside.
    distances = np.sort(cdist(inducing, inducing), axis=1)
    spacing = np.median(distances[:, 1]) if len(inducing) > 1 else 1.0
    lowest, highest = min(spacing, 1.0), max(3.0, 3 * spacing)

    def clipped(leaf: Any) -> Any:
        if not isinstance(leaf, Stationary) or "lengthscale" in leaf.fixed:
            return leaf
        return eqx.tree_at(lambda tree: tree.lengthscale, leaf, jnp.asarray(np.clip(leaf.lengthscale, lowest, highest)))

    return jax.tree.map(clipped, kernel, is_leaf=lambda node: isinstance(node, Stationary))


def representatives(points: HostFloat, n_wanted: int, seed: int) -> HostFloat:
    """Return at most ``n_wanted`` points that cover a set of points: the points themselves, or cluster centres."""
    distinct = np.unique(points, axis=0)
    if len(distinct) <= n_wanted:
        return distinct
    if len(distinct) > _MOST_CLUSTERED:
        distinct = distinct[np.random.default_rng(seed).choice(len(distinct), _MOST_CLUSTERED, replace=False)]
    with warnings.catch_warnings():
        # Points that differ by rounding can make fewer clusters than asked for; then some centres coincide.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(n_wanted, n_init="auto", random_state=seed).fit(distinct).cluster_centers_


def farthest(points: HostFloat, given: HostFloat, n_wanted: int) -> HostFloat:
    """Return some of the points, each as far as can be from those given and from those chosen before it."""
    chosen: list[int] = []
    distances = cdist(points, given).min(axis=1)
    for _ in range(n_wanted):
        chosen.append(int(np.argmax(distances)))
        distances = np.minimum(distances, cdist(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def principal_components(values: HostFloat, n_latent: int, rng: np.random.Generator) -> Embedding:
    """Return scores of the curves on their first principal components, scaled to the prior's unit variance."""
    left, singular, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    n_useful = min(n_latent, int(np.sum(singular > 1e-8 * max(singular[0], 1e-300))))
    means = rng.standard_normal((len(values), n_latent)) * 0.1
    lengthscales = np.full(n_latent, 3.0)
    means[:, :n_useful] = left[:, :n_useful] * np.sqrt(len(values))
    lengthscales[:n_useful] = np.clip(singular[0] / singular[:n_useful], 1.0, 5.0)
    return means, lengthscales


def isomap(values: HostFloat, n_latent: int, rng: np.random.Generator, *, n_neighbours: int) -> Embedding:
    """Embed the latent distances that the correlations of the curves imply by Isomap.

    Under an RBF of unit lengthscale, curves of latents that lie r apart have the correlation exp(−r²/2). Large
    distances drown in noise, their correlations being near zero; Isomap rebuilds them from chains of neighbours.
    """
    n_conditions = len(values)
    if n_conditions > _MOST_FOR_ISOMAP or n_conditions < max(n_latent + 2, 4):
        return principal_components(values, n_latent, rng)
    norms = np.maximum(np.linalg.norm(values, axis=1), 1e-12)
    correlations = np.clip(values @ values.T / np.outer(norms, norms), 0.05, 1 - 1e-6)
    distances = np.sqrt(-2 * np.log(correlations))
    np.fill_diagonal(distances, 0.0)
    n_neighbours = min(n_neighbours, n_conditions - 1)
    embedder = Isomap(n_neighbors=n_neighbours, n_components=n_latent, eigen_solver="dense", metric="precomputed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a neighbourhood graph in several pieces is joined, which is what we want
        means = embedder.fit_transform(distances)
    spread = np.maximum(means.std(axis=0), 0.2)
    return means / spread, 1 / spread


def random_latents(values: HostFloat, n_latent: int, rng: np.random.Generator) -> Embedding:
    """Draw latents from the prior."""
    return rng.standard_normal((len(values), n_latent)), np.ones(n_latent)


_ISOMAPS = {f"isomap of {number} neighbours": number for number in (8, 5, 12, 3, 20)}
_RANDOM = "random latents"
RECIPES: dict[str, Callable[[HostFloat, int, np.random.Generator], Embedding]] = {
    "principal components": principal_components,
    **{name: partial(isomap, n_neighbours=number) for name, number in _ISOMAPS.items()},
    _RANDOM: random_latents,
}
# In the order in which they have earned their place. Among few conditions Isomaps of many neighbours are all alike, and
# random latents often end higher: on two sets of six and five conditions in a third of the fits.
_FEW_CONDITIONS = 9
_FIRST, *_OTHER_ISOMAPS = _ISOMAPS
_ORDER = (_FIRST, "principal components", *_OTHER_ISOMAPS)
_ORDER_OF_FEW = (_FIRST, _RANDOM, "principal components", "isomap of 3 neighbours")
# Without latents starts differ in how far features reach.
FEATURES_ALONE = {
    "features alone": 1.0,
    "features alone, short lengthscales": 0.4,
    "features alone, long lengthscales": 2.5,
}


def recipe_names(settings: Settings, n_conditions: int) -> list[str]:
    """Return the names of the recipes of all starts, or the one that is asked for; beyond the table, random latents."""
    if settings.recipe is not None:
        return [settings.recipe]
    if settings.n_latent == 0:
        return [*FEATURES_ALONE][: settings.n_restarts]
    names, neighbourhoods = list[str](), set[int]()
    for name in _ORDER_OF_FEW if n_conditions <= _FEW_CONDITIONS else _ORDER:
        neighbours = min(_ISOMAPS.get(name, 0), n_conditions - 1)  # of conditions that there are
        if neighbours not in neighbourhoods:
            names.append(name)
        if name in _ISOMAPS:
            neighbourhoods.add(neighbours)
    return [*names, *[_RANDOM] * settings.n_restarts][: settings.n_restarts]


def start(
    recipe: str,
    independent: IndependentParameters,
    curves: HostFloat,
    settings: Settings,
    rng: np.random.Generator,
    coordinates: FeatureCoordinates | None = None,
) -> Parameters:
    """Return parameters at which the joint model starts; latents start from what known ``coordinates`` leave."""
    # In the order of their curves, so that it does not matter how conditions are named; without signs, since outputs
    # may be measured upwards or downwards.
    order = np.lexsort(np.abs(curves).T[::-1])
    values, n_latent = curves[order], settings.n_latent
    if coordinates is not None and n_latent > 0:
        values = left_by_features(values, coordinates._replace(values=coordinates.values[order]))
    embedded, lengthscales = RECIPES.get(recipe, random_latents)(values, n_latent, rng)
    # A little noise keeps conditions with equal curves apart, so that their gradients differ.
    means = np.empty_like(embedded)
    means[order] = embedded + 0.01 * rng.standard_normal(embedded.shape)
    points, scale, known = means, np.ones(n_latent), None
    if coordinates is not None:
        begin = jnp.zeros(coordinates.values.shape)
        known = known_coordinates(coordinates.values, begin, begin + _MISSING_VARIANCE)
        points = np.hstack([means, np.nan_to_num(coordinates.values)])
        scale = np.concatenate([scale, coordinates.scale])
        lengthscales = np.concatenate([lengthscales, FEATURES_ALONE.get(recipe, 1.0) * coordinates.lengthscales])
    inducing = representatives(points, settings.n_inducing_latents, int(rng.integers(2**31)))
    noise = np.maximum(np.asarray(independent.noise_variance), _LEAST_NOISE)
    latent_kernel = in_precision(complete(settings.kernels.of_latents, scale, lengthscales), "float64")
    own_scale, spread = None, jnp.asarray(SPREAD_PRIOR[0])
    if settings.own_variances:
        own_scale = jnp.ones(len(means))
    begin = Parameters(
        kernels=_first_kernels(independent.kernel, latent_kernel, curves, settings),
        inducing_inputs=independent.inducing_inputs,
        inducing_latents=jnp.asarray(inducing),
        latent_mean=jnp.asarray(means),
        latent_variance=jnp.asarray(np.full(means.shape, _LATENT_VARIANCE)),
        noise_variance=jnp.asarray(np.full(len(means) if settings.noise_per_condition else 1, noise)),
        own_scale=own_scale,
        noise_spread=spread if settings.noise_per_condition else None,
        own_spread=None if own_scale is None else spread,
        known=known,
    )
    return settings.with_inducing_inputs(begin, begin.inducing_inputs)


def _first_kernels(independent: Kernel, latent_kernel: Kernel, curves: HostFloat, settings: Settings) -> Kernels:
    """Return kernels whose variances are shares of that of the independent GPs, as their curves tell them.

    The mean curve is what conditions share, what few principal components explain of the rest is latent, and what they
    leave is each condition's own.
    """
    described = settings.kernels
    if described.is_plain:
        return plain_kernels(independent, latent_kernel)
    mean = curves.mean(axis=0)
    total = max(float(np.mean(curves**2)), 1e-12)
    singular = np.linalg.svd(curves - mean, compute_uv=False) ** 2
    left = float(np.sum(singular[settings.n_latent :])) / max(float(np.sum(singular)), 1e-12)
    shared = float(np.mean(mean**2)) / total if described.shared is not None else 0.0
    own = (1 - shared) * left if described.own is not None else 0.0

    def share(kernel: Kernel, amount: float) -> Kernel:
        scaled = scaled_kernel(kernel, jnp.asarray(np.clip(amount, *_SHARES)))
        return kernel if scaled is None else in_precision(scaled, "float64")

    fitted = independent.terms if len(described.of_inputs) > 1 and isinstance(independent, Sum) else (independent,)
    terms = tuple(Term(share(kernel, 1 - shared - own), latent_kernel) for kernel in fitted[: len(described.of_inputs)])
    every = independent if len(terms) <= 1 else fitted[0]
    if described.shared is not None:
        terms += (Term(share(_like(described.shared, described, every), shared)),)
    return Kernels(terms, None if described.own is None else share(_like(described.own, described, every), own))


def _like(kernel: Kernel, described: DescribedKernels, fitted: Kernel) -> Kernel:
    # A kernel that is described like that of the first term starts where the independent GPs put it.
    if plain_kernel(kernel) == plain_kernel(described.first):
        return fitted
    n_columns = len(described.scale)
    return in_precision(complete(kernel, described.scale, n_columns**0.5), "float64")


@compiled
def with_explicit_inducing(parameters: Parameters, data: Data, inference: str) -> Parameters:
    """Give parameters a q(v) of their own: the optimal one, or the nearest of Kronecker form."""
    mean, covariance = optimal_inducing(quadratic(parameters, data))
    if inference == "full":
        matrix = jnp.linalg.inv(covariance.precision())
        inducing = FullInducing(mean, jnp.linalg.cholesky((matrix + matrix.T) / 2))
    else:
        # Average the diagonal blocks of S over latents, then what is left over inputs.
        n_latents = mean.shape[1]
        over_latents = covariance.contract(jnp.eye(n_latents)[None], (n_latents,))[0] / n_latents
        over_inputs = covariance.block_traces() / jnp.trace(over_latents)
        inducing = KroneckerInducing(mean, jnp.linalg.cholesky(over_latents), jnp.linalg.cholesky(over_inputs))
    return dataclasses.replace(parameters, inducing=inducing)


def left_by_features(values: HostFloat, coordinates: FeatureCoordinates) -> HostFloat:
    """Return curves without what the features of the others tell about them, around the mean curve (equation 44).

    Leaving a condition out of the regression keeps features that explain nothing from seeming to.
    """
    if len(values) > _MOST_FOR_ISOMAP:
        return values
    mean = values.mean(axis=0)
    points = np.nan_to_num(coordinates.values) / coordinates.lengthscales
    covariance = np.exp(-cdist(points, points, "sqeuclidean") / 2)
    precision = np.linalg.inv(covariance + _REGRESSION_NOISE * np.eye(len(values)))
    residual = precision @ (values - mean) / np.diagonal(precision)[:, None]
    return mean + residual if np.var(residual) < np.var(values - mean) else values
