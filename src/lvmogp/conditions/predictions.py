"""Predictions for conditions of any kind, from the trained model to the user's units.

A condition is Gaussian in its latents (the trained ones, and new ones by the paper's method) or a set of
weighted particles. Its predictive distribution at an input is a mixture of Gaussians over latents, from which
moments, quantiles and densities follow; Gaussian conditions have closed-form moments.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.conditions.evidence import Evidence, evidence
from lvmogp.conditions.joint import (
    Draw,
    cross_covariance,
    new_functional,
    relative_sums,
    sample_curves,
    trained_functional,
)
from lvmogp.conditions.mixtures import Mixture, Statistic, output_moments, output_scaling
from lvmogp.conditions.new_condition import (
    ConditionPosterior,
    block_components,
    components,
    condition_on,
    in_blocks,
    normal_nodes,
    unit_nodes,
)
from lvmogp.conditions.stacking import in_pairs
from lvmogp.conditions.transformed import RelativeOutput, relative_covariance
from lvmogp.conditions.variational_condition import GaussianCondition
from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import block_layout, rounded_up, stacked_rows
from lvmogp.model.posterior import Curves, Posterior, components_at, grid_marginals, grid_means, marginals
from lvmogp.tables.scaling import Scaling
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

Condition = GaussianCondition | ConditionPosterior
_marginals, _grid_means, _grid_marginals = compiled(marginals), compiled(grid_means), compiled(grid_marginals)
N_NODES = 128
_POINTS_AT_ONCE = 4_096
_DRAWS_AT_ONCE = 1_024
# Scenarios of the latents of several conditions: the fewer, the larger the covariance that is averaged over them.
_MOST_SCENARIOS, _FEWEST_SCENARIOS, _ENTRIES_OF_ALL_SCENARIOS = 512, 64, 2**27
# Blocks of rows whose mixtures are made in one call, and the rows that the particles of a block cost as much as.
_BLOCKS_AT_ONCE, _PARTICLES_COST = 64, 32


class Moments(NamedTuple):
    """Mean and variance of f, and the noise variance of an observation, at each row, in standardised units."""

    mean: HostFloat
    variance: HostFloat
    noise: HostFloat


def trained_condition(model: Posterior, shapes: Curves, number: int, place: int) -> GaussianCondition:
    """One of the trained conditions, whose curve is at ``place`` of ``shapes``."""
    latents, curve = (
        jax.tree.map(lambda leaf, at=at: leaf[at : at + 1], tree)
        for tree, at in ((model.parameters.latents, number), (shapes, place))
    )
    return GaussianCondition(latents, model.parameters.noise_per_condition[number], curve)


def gaussian_moments(
    model: Posterior, shapes: Curves, noise: HostFloat, inputs: HostFloat, numbers: HostInt
) -> Moments:
    """Closed-form moments at rows of conditions that are Gaussian in their latents.

    ``shapes`` and ``noise`` hold all the conditions that ``numbers`` refers to.
    """
    layout = block_layout(numbers, len(noise))
    blocks = jnp.asarray(inputs[layout.row], model.mean.dtype)
    mean, variance = _marginals(model.input_basis, shapes, blocks, jnp.asarray(layout.block_condition))
    present = layout.present > 0
    rows = layout.row[present]
    ordered_mean, ordered_variance = np.empty(len(inputs)), np.empty(len(inputs))
    ordered_mean[rows] = np.asarray(mean)[present]
    ordered_variance[rows] = np.asarray(variance)[present]
    return Moments(ordered_mean, ordered_variance, np.asarray(noise, dtype=float)[numbers])


def grid_moments(
    model: Posterior, shapes: Curves, inputs: HostFloat, *, with_variance: bool
) -> tuple[HostFloat, HostFloat | None]:
    """Closed-form mean of f, and its variance on request, of all conditions of ``shapes`` at all inputs: (n, D)."""
    found = np.empty((1 + with_variance, len(inputs), len(shapes.weights)))
    for start in range(0, len(inputs), _POINTS_AT_ONCE):
        some = slice(start, min(start + _POINTS_AT_ONCE, len(inputs)))
        n_points = some.stop - start
        padded = np.pad(inputs[some], ((0, rounded_up(n_points) - n_points), (0, 0)), mode="edge")
        points = jnp.asarray(padded, model.mean.dtype)
        if with_variance:
            parts = _grid_marginals(model.input_basis, shapes, points)
        else:
            parts = (_grid_means(model.input_basis, shapes, points),)
        for whole, part in zip(found, parts, strict=True):
            whole[some] = np.asarray(part)[:n_points]
    return found[0], found[1] if with_variance else None


def as_particles(model: Posterior, condition: Condition) -> ConditionPosterior:
    """A condition as weighted latents; a Gaussian one by quasi-random points of its q(h)."""
    if isinstance(condition, ConditionPosterior):
        return condition
    dtype = model.mean.dtype
    n_latent = condition.latents.mean.shape[1]
    nodes = jnp.asarray(normal_nodes(N_NODES, n_latent), dtype)
    latents = condition.latents.mean + jnp.sqrt(condition.latents.variance) * nodes
    nothing = evidence(model, np.empty((0, model.input_basis.points.shape[1])), np.empty(0))
    uniform = jnp.full(N_NODES, -np.log(N_NODES), dtype)
    return condition_on(model, nothing, latents, jnp.full(N_NODES, condition.noise, dtype), uniform)


def mixture(model: Posterior, particles: ConditionPosterior, inputs: HostFloat, *, include_noise: bool) -> Mixture:
    """Predictive mixtures at rows of one condition, of f or of a new observation."""
    blocks = jnp.asarray(in_blocks(inputs), model.mean.dtype)
    means, variances = components(model.input_basis, particles, blocks)

    def by_row(values: Float[Array, "B P b"]) -> Float[Array, "P n"]:
        n_particles = values.shape[1]
        return jnp.swapaxes(values, 0, 1).reshape(n_particles, -1)[:, : len(inputs)]

    noise = particles.noise[:, None] if include_noise else 0.0
    return Mixture(particles.weights, by_row(means), by_row(variances) + noise)


def trained_statistic(
    model: Posterior,
    inputs: HostFloat,
    numbers: HostInt,
    values: HostFloat,
    statistic: Statistic,
    *,
    include_noise: bool,
) -> HostFloat:
    """A statistic of the predictive mixtures of rows of trained conditions, many conditions in one call."""
    parameters, dtype = model.parameters, model.mean.dtype
    nodes = jnp.asarray(normal_nodes(N_NODES, model.latent_basis.points.shape[1]), dtype)
    layout = block_layout(numbers, len(parameters.latent_mean), block_cost=_PARTICLES_COST)
    present = layout.present > 0
    noise = parameters.host_noise * include_noise
    found: list[HostFloat] = []
    n_used = int(present.any(axis=1).sum())
    for start in range(0, n_used, _BLOCKS_AT_ONCE):
        n_blocks = min(_BLOCKS_AT_ONCE, n_used - start)
        blocks = np.resize(np.arange(start, start + n_blocks), rounded_up(n_blocks))
        conditions, rows = layout.block_condition[blocks], layout.row[blocks]
        some = _statistic_of_blocks(
            model,
            nodes,
            jnp.asarray(conditions),
            jnp.asarray(inputs[rows], dtype),
            jnp.asarray(values[rows]),
            jnp.asarray(noise[conditions], dtype),
            statistic,
        )
        found.append(np.asarray(some)[:n_blocks])
    ordered = np.empty((len(inputs), found[0].shape[2] if found else 1))
    ordered[layout.row[:n_used][present[:n_used]]] = np.concatenate(found)[present[:n_used]] if found else 0.0
    return ordered


@compiled
def _statistic_of_blocks(
    model: Posterior,
    nodes: Float[Array, "P Q_H"],
    conditions: Int[Array, " B"],
    inputs: Float[Array, "B b Q_X"],
    values: Float[Array, "B b k"],
    noise: Float[Array, " B"],
    statistic: Statistic,
) -> Float[Array, "B b m"]:
    latents = model.parameters.latents
    weights = jnp.full(nodes.shape[0], 1 / nodes.shape[0], nodes.dtype)

    def one_block(block: tuple[Array, Array, Array, Array]) -> Array:
        condition, points, given, variance = block
        particles = latents.mean[condition] + jnp.sqrt(latents.variance[condition]) * nodes
        means, variances = components_at(model, particles, points)
        return statistic(Mixture(weights, means, variances + variance), given)

    return jax.lax.map(one_block, (conditions, inputs, values, noise))


def _output_factors(scaling: Scaling) -> tuple[Scalar, Scalar]:
    # As arrays, so that one program serves models of all scales.
    return jnp.asarray(np.asarray(scaling.output_mean)), jnp.asarray(np.asarray(scaling.output_scale))


def gradients(
    model: Posterior,
    particles: ConditionPosterior | GaussianCondition,
    scaling: Scaling,
    inputs: HostFloat,
    *,
    include_noise: bool,
) -> tuple[HostFloat, HostFloat]:
    """Derivatives of the output's mean and variance in the inputs, in the user's units."""
    points = jnp.asarray(inputs, model.mean.dtype)
    factors = _output_factors(scaling)
    mean, variance = _gradients(model, particles, points, factors, scaling.transform, include_noise)
    return np.asarray(mean) / scaling.input_scale, np.asarray(variance) / scaling.input_scale


@compiled
def _gradients(
    model: Posterior,
    condition: ConditionPosterior | GaussianCondition,
    points: Float[Array, "n Q_X"],
    factors: tuple[Scalar, Scalar],
    transform: Transform | None,
    include_noise: bool,
) -> tuple[Float[Array, "n Q_X"], Float[Array, "n Q_X"]]:
    scaling = output_scaling(factors, transform)

    def at(point: Float[Array, " Q_X"]) -> tuple[Scalar, Scalar]:
        block = point[None, None]
        if isinstance(condition, GaussianCondition):
            first = jnp.zeros(1, int)
            mean, variance = marginals(model.input_basis, condition.curves, block, first)
            return scaling.location(mean[0, 0]), scaling.variance(variance[0, 0])
        means, variances = block_components(model.input_basis, condition, block)
        noise = condition.noise[:, None] if include_noise else 0.0
        mean, variance = output_moments(Mixture(condition.weights, means[0], variances[0] + noise), scaling)
        return mean[0], variance[0]

    return jax.vmap(jax.jacfwd(at))(points)


def joint_covariance(model: Posterior, conditions: list[Condition], rows: list[HostFloat]) -> list[list[HostFloat]]:
    """Covariance of f between the rows of each pair of conditions, in standardised units, as blocks."""
    functionals = []
    for condition, points in zip(conditions, stacked_rows(rows), strict=True):
        padded = jnp.asarray(points, model.mean.dtype)
        if isinstance(condition, GaussianCondition):
            functionals.append(trained_functional(model, condition.curves, condition.latents, padded))
        else:
            functionals.append(new_functional(model, condition, padded))
    blocks: list[list[HostFloat]] = [[np.empty(0)] * len(rows) for _ in rows]
    for i, first in enumerate(functionals):
        blocks[i][i] = np.asarray(first.covariance)[: len(rows[i]), : len(rows[i])]
        for j in range(i):
            block = np.asarray(cross_covariance(model, first, functionals[j]))[: len(rows[i]), : len(rows[j])]
            blocks[i][j], blocks[j][i] = block, block.T
    return blocks


def draw_curves(
    model: Posterior,
    conditions: list[Condition],
    rows: list[HostFloat],
    *,
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[list[HostFloat], list[HostFloat]]:
    """Joint draws of f at the rows of several conditions, with the noise variance of each draw.

    Returns, for each condition, draws of shape (n_draws, rows) and noise variances of shape (n_draws,).
    """
    dtype = model.mean.dtype
    padded, stacked = stacked_rows(rows), _stacked_evidence(model, conditions)
    size = padded.shape[1]
    drawn = [_draw_latents(condition, n_draws, rng) for condition in conditions]
    latents, noises = (np.stack(parts, axis=1) for parts in zip(*drawn, strict=True))
    values = rng.standard_normal((n_draws, len(rows), size))
    for start in range(0, n_draws, _DRAWS_AT_ONCE):
        some = np.arange(start, min(start + _DRAWS_AT_ONCE, n_draws))
        places = np.resize(some, rounded_up(len(some)))
        draws = Draw(jnp.asarray(latents[places], dtype), jnp.asarray(noises[places], dtype), stacked)
        found = sample_curves(model, draws, jnp.asarray(padded, dtype), jnp.asarray(values[places], dtype))
        values[some] = np.asarray(found)[: len(some)]
    curves = [values[:, place, : len(points)] for place, points in enumerate(rows)]
    return curves, list(noises.T)


def output_covariance(
    model: Posterior, conditions: list[Condition], rows: list[HostFloat], output: RelativeOutput
) -> list[list[HostFloat]]:
    """Covariance of outputs of which a transform is modelled, relative to their means, in blocks as above (eq. 52)."""
    dtype, stacked = model.mean.dtype, stacked_rows(rows)
    latents, noise, weights = _weighted_latents(model, conditions, n_rows=stacked.shape[0] * stacked.shape[1])
    draws = Draw(jnp.asarray(latents, dtype), jnp.asarray(noise, dtype), _stacked_evidence(model, conditions))
    output = jax.tree.map(lambda leaf: leaf.astype(dtype), output)
    sums = relative_sums(model, draws, jnp.asarray(weights, dtype), jnp.asarray(stacked, dtype), output)
    return in_pairs(relative_covariance(*(np.asarray(part, dtype=float) for part in sums)), rows)


def _weighted_latents(
    model: Posterior, conditions: list[Condition], *, n_rows: int
) -> tuple[HostFloat, HostFloat, HostFloat]:
    # Latents and noise of all conditions in each of some scenarios, with weights: of a single condition, its particles.
    particles = [as_particles(model, condition) for condition in conditions]
    weights = [np.asarray(each.weights, dtype=float) for each in particles]
    if len(particles) == 1:
        chosen, of_scenarios = [np.arange(len(weights[0]))], weights[0] / weights[0].sum()
    else:
        n_scenarios = int(np.clip(_ENTRIES_OF_ALL_SCENARIOS // n_rows**2, _FEWEST_SCENARIOS, _MOST_SCENARIOS))
        uniforms = unit_nodes(1 << (n_scenarios.bit_length() - 1), len(particles))
        ends = [np.cumsum(own) for own in weights]
        chosen = [
            np.minimum(np.searchsorted(own, nodes * own[-1], side="right"), len(own) - 1)
            for own, nodes in zip(ends, uniforms.T, strict=True)
        ]
        of_scenarios = np.full(len(uniforms), 1 / len(uniforms))
    latents = [np.asarray(each.latents)[places] for each, places in zip(particles, chosen, strict=True)]
    noise = [np.asarray(each.noise)[places] for each, places in zip(particles, chosen, strict=True)]
    return np.stack(latents, axis=1), np.stack(noise, axis=1), of_scenarios


def _stacked_evidence(model: Posterior, conditions: list[Condition]) -> Evidence:
    # Trained conditions have none of their own.
    nothing = evidence(model, np.empty((0, model.input_basis.points.shape[1])), np.empty(0))
    seen = [condition.evidence if isinstance(condition, ConditionPosterior) else nothing for condition in conditions]
    most = max(item.values.shape[0] for item in seen)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[item.padded(most) for item in seen])


def _draw_latents(condition: Condition, n_draws: int, rng: np.random.Generator) -> tuple[HostFloat, HostFloat]:
    if isinstance(condition, ConditionPosterior):
        weights = np.asarray(condition.weights, dtype=float)
        chosen = rng.choice(len(weights), size=n_draws, p=weights / weights.sum())
        return np.asarray(condition.latents)[chosen], np.asarray(condition.noise)[chosen]
    mean, variance = np.asarray(condition.latents.mean[0]), np.asarray(condition.latents.variance[0])
    latents = mean + np.sqrt(variance) * rng.standard_normal((n_draws, len(mean)))
    return latents, np.full(n_draws, float(condition.noise))
