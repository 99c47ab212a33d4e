"""Named recipes for where a fit starts.

Every recipe begins with sparse GPs that treat the conditions independently: their kernel and noise are where
the joint model starts, and their curves say how the conditions differ.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import Isomap

from lvmogp.errors import NumericalError
from lvmogp.ground.compiling import compiled
from lvmogp.inference.independent import IndependentParameters, independent_bound, independent_curves
from lvmogp.inference.optimise import Run, maximise
from lvmogp.kernels.covariances import Kernel, Stationary, complete
from lvmogp.model.layouts import Data, GridData, some_blocks
from lvmogp.model.parameters import Parameters, known_coordinates
from lvmogp.tables.features import FeatureCoordinates
from lvmogp.typing import HostFloat

_independent_curves = compiled(independent_curves)
# Lengthscales from short to long in standardised units, of which the best is gone on from, and noise beside them.
_FIRST_LENGTHSCALES, _FIRST_NOISE = (0.15, 0.5, 1.5), 0.2
# Small, so that each condition starts where its curve puts it.
_LATENT_VARIANCE = 0.05
# The joint model starts with this much at least: where data have next to none, rounding errors would count for more.
_LEAST_NOISE = 1e-3
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


class IndependentCurves(NamedTuple):
    """Independent GPs fitted to the conditions, with the mean curve of each at common points."""

    parameters: IndependentParameters
    values: HostFloat


class Embedding(NamedTuple):
    """Where each condition starts in the latent space, and how fast curves change along each dimension."""

    means: HostFloat
    lengthscales: HostFloat


def representatives(points: HostFloat, n_wanted: int, seed: int) -> HostFloat:
    """At most ``n_wanted`` points that cover a set of points: the points themselves, or cluster centres."""
    distinct = np.unique(points, axis=0)
    if len(distinct) <= n_wanted:
        return distinct
    if len(distinct) > _MOST_CLUSTERED:
        chosen = np.random.default_rng(seed).choice(len(distinct), _MOST_CLUSTERED, replace=False)
        distinct = distinct[chosen]
    with warnings.catch_warnings():
        # Points that differ by rounding can make fewer clusters than asked for; then some centres coincide.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(n_wanted, n_init="auto", random_state=seed).fit(distinct).cluster_centers_


def independent_start(
    kernel: Kernel,
    data: Data,
    inputs: HostFloat,
    *,
    input_scale: HostFloat,
    n_inducing: int,
    most_inducing: int,
    seed: int,
) -> IndependentCurves:
    """Fit independent sparse GPs from several lengthscales and keep the best.

    The number of inducing inputs doubles from ``n_inducing`` up to ``most_inducing`` while that pays. Of very many
    observations some find the hyperparameters; the curves are those of all.
    """
    few = data
    if not isinstance(data, GridData) and data.n_observations > _MOST_FOR_HYPERPARAMETERS:
        few = some_blocks(data, _MOST_FOR_HYPERPARAMETERS, seed)
    dtype = data.outputs.dtype
    inducing = jnp.asarray(representatives(inputs, n_inducing, seed), dtype)
    dimension_factor = inputs.shape[1] ** 0.5
    runs = []
    for lengthscale in _FIRST_LENGTHSCALES:
        completed = complete(kernel, input_scale, lengthscale * dimension_factor)
        begin = IndependentParameters(
            _as_dtype(completed, dtype), inducing, jnp.asarray(np.asarray(_FIRST_NOISE, dtype))
        )
        runs.append(_maximise_independent(begin, few))
    best = max(runs, key=lambda run: run.bound)
    while len(best.tree.inducing_inputs) == n_inducing and 2 * n_inducing <= most_inducing:
        n_inducing *= 2
        finer = jnp.asarray(representatives(inputs, n_inducing, seed), dtype)
        run = _maximise_independent(eqx.tree_at(lambda tree: tree.inducing_inputs, best.tree, finer), few)
        if run.bound - best.bound < max(_LEAST_GAIN, _LEAST_GAIN_PER_POINT * few.n_observations):
            break
        best = run
    parameters = best.tree
    reachable = _within_reach(parameters.kernel, np.asarray(parameters.inducing_inputs))
    parameters = eqx.tree_at(lambda tree: tree.kernel, parameters, reachable)
    points = jnp.asarray(representatives(inputs, _MOST_CURVE_POINTS, seed), dtype)
    values = np.asarray(_independent_curves(parameters, data, points), dtype=float)
    if not np.all(np.isfinite(values)):
        raise NumericalError(
            "no start gives finite curves; look for outputs or inputs of extreme size, or try another input kernel"
        )
    return IndependentCurves(parameters, values)


def _maximise_independent(begin: IndependentParameters, data: Data) -> Run:
    return maximise(independent_bound, begin, data, max_iterations=50, tolerance=0.1)


def _within_reach(kernel: Kernel, inducing: HostFloat) -> Kernel:
    # A few points a condition often say nothing about lengthscales, which then run away. Below the distance
    # of neighbouring inducing inputs a lengthscale cannot be represented, and beyond a few standard
    # deviations it makes no difference: start inside.
    distances = np.linalg.norm(inducing[:, None] - inducing[None], axis=-1)
    spacing = np.median(np.partition(distances, 1, axis=1)[:, 1]) if len(inducing) > 1 else 1.0
    lowest, highest = min(spacing, 1.0), max(3.0, 3 * spacing)

    def clipped(leaf: Any) -> Any:
        if not isinstance(leaf, Stationary) or "lengthscale" in leaf.fixed:
            return leaf
        return eqx.tree_at(lambda tree: tree.lengthscale, leaf, jnp.asarray(np.clip(leaf.lengthscale, lowest, highest)))

    return jax.tree.map(clipped, kernel, is_leaf=lambda node: isinstance(node, Stationary))


def _as_dtype(kernel: Kernel, dtype: jnp.dtype) -> Kernel:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), kernel)


def principal_components(values: HostFloat, n_latent: int, rng: np.random.Generator) -> Embedding:
    """Scores of the curves on their first principal components, scaled to the prior's unit variance."""
    left, singular, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    n_useful = min(n_latent, int(np.sum(singular > 1e-8 * max(singular[0], 1e-300))))
    means = rng.standard_normal((len(values), n_latent)) * 0.1
    lengthscales = np.full(n_latent, 3.0)
    means[:, :n_useful] = left[:, :n_useful] * np.sqrt(len(values))
    lengthscales[:n_useful] = np.clip(singular[0] / singular[:n_useful], 1.0, 5.0)
    return Embedding(means, lengthscales)


def isomap(values: HostFloat, n_latent: int, rng: np.random.Generator, *, n_neighbours: int) -> Embedding:
    """Isomap of the latent distances that the correlations of the curves imply.

    Under an RBF of unit lengthscale two curves correlate as ρ = exp(−r²/2), so r = √(−2 log ρ). Large
    distances drown in noise (ρ ≈ 0); Isomap rebuilds them from chains of neighbours.
    """
    n_conditions = len(values)
    if n_conditions > _MOST_FOR_ISOMAP or n_conditions < max(n_latent + 2, 4):
        return principal_components(values, n_latent, rng)
    norms = np.maximum(np.linalg.norm(values, axis=1), 1e-12)
    correlations = np.clip(values @ values.T / np.outer(norms, norms), 0.05, 1 - 1e-6)
    distances = np.sqrt(-2 * np.log(correlations))
    np.fill_diagonal(distances, 0.0)
    embedder = Isomap(
        n_neighbors=min(n_neighbours, n_conditions - 1),
        n_components=n_latent,
        eigen_solver="dense",
        metric="precomputed",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a neighbourhood graph in several pieces is joined, which is what we want
        means = embedder.fit_transform(distances)
    spread = np.maximum(means.std(axis=0), 0.2)
    return Embedding(means / spread, 1 / spread)


def random_latents(values: HostFloat, n_latent: int, rng: np.random.Generator) -> Embedding:
    """Latents drawn from the prior."""
    return Embedding(rng.standard_normal((len(values), n_latent)), np.ones(n_latent))


Recipe = Callable[[HostFloat, int, np.random.Generator], Embedding]
# In the order in which they have earned their place.
RECIPES: dict[str, Recipe] = {
    "isomap of 8 neighbours": partial(isomap, n_neighbours=8),
    "principal components": principal_components,
    "isomap of 5 neighbours": partial(isomap, n_neighbours=5),
    "isomap of 12 neighbours": partial(isomap, n_neighbours=12),
    "isomap of 3 neighbours": partial(isomap, n_neighbours=3),
    "isomap of 20 neighbours": partial(isomap, n_neighbours=20),
    "random latents": random_latents,
}


# Without latents starts differ in how far features reach.
FEATURES_ALONE = {
    "features alone": 1.0,
    "features alone, short lengthscales": 0.4,
    "features alone, long lengthscales": 2.5,
}


def recipe_names(n_restarts: int, *, n_latent: int = 1) -> list[str]:
    """Names of the recipes of the first ``n_restarts`` starts; beyond the table, random latents."""
    if n_latent == 0:
        return list(FEATURES_ALONE)[:n_restarts]
    names = list(RECIPES)
    return (names + [names[-1]] * n_restarts)[:n_restarts]


def start(
    recipe: str,
    independent: IndependentCurves,
    latent_kernel: Kernel,
    *,
    n_latent: int,
    n_inducing: int,
    noise_per_condition: bool,
    rng: np.random.Generator,
    coordinates: FeatureCoordinates | None = None,
) -> Parameters:
    """Parameters at which the joint model starts; latents start from what known ``coordinates`` leave."""
    dtype = independent.parameters.inducing_inputs.dtype
    n_conditions = len(independent.values)
    # In the order of their curves, so that it does not matter how conditions are named; without signs, since outputs
    # may be measured upwards or downwards.
    order = np.lexsort(np.abs(independent.values).T[::-1])
    in_order = None if coordinates is None else coordinates._replace(values=coordinates.values[order])
    embedding = _embedding(recipe, independent.values[order], n_latent, rng, in_order)
    # A little noise keeps conditions with equal curves apart, so that their gradients differ.
    means = np.empty_like(embedding.means)
    means[order] = embedding.means + 0.01 * rng.standard_normal(embedding.means.shape)
    points, scale, lengthscales, known = means, np.ones(n_latent), embedding.lengthscales, None
    if coordinates is not None:
        begin = jnp.zeros(coordinates.values.shape, dtype)
        known = known_coordinates(coordinates.values, begin, begin + _MISSING_VARIANCE)
        points = np.hstack([means, np.nan_to_num(coordinates.values)])
        scale = np.concatenate([scale, coordinates.scale])
        reach = FEATURES_ALONE.get(recipe, 1.0)
        lengthscales = np.concatenate([lengthscales, reach * coordinates.lengthscales])
    inducing = representatives(points, n_inducing, int(rng.integers(2**31)))
    kernel = complete(latent_kernel, scale, lengthscales)
    noise = np.maximum(np.asarray(independent.parameters.noise_variance), _LEAST_NOISE)
    return Parameters(
        input_kernel=independent.parameters.kernel,
        latent_kernel=_as_dtype(kernel, dtype),
        inducing_inputs=independent.parameters.inducing_inputs,
        inducing_latents=jnp.asarray(inducing, dtype),
        latent_mean=jnp.asarray(means, dtype),
        latent_variance=jnp.asarray(np.full(means.shape, _LATENT_VARIANCE), dtype),
        noise_variance=jnp.asarray(np.full(n_conditions if noise_per_condition else 1, noise), dtype),
        known=known,
    )


def _embedding(
    recipe: str, values: HostFloat, n_latent: int, rng: np.random.Generator, coordinates: FeatureCoordinates | None
) -> Embedding:
    if n_latent == 0:
        return Embedding(np.empty((len(values), 0)), np.empty(0))
    left = values if coordinates is None else left_by_features(values, coordinates)
    return RECIPES[recipe](left, n_latent, rng)


def left_by_features(values: HostFloat, coordinates: FeatureCoordinates) -> HostFloat:
    """Curves without what the features of the other conditions tell about them, around the mean curve (equation 44).

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
