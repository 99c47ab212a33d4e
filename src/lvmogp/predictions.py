"""Predictions for conditions of any kind, from the trained model to the user's units.

A condition is Gaussian in its latents (the trained ones, and new ones by the paper's method) or a set of
weighted particles. Its predictive distribution at an input is a mixture of Gaussians over latents, from which
moments, quantiles and densities follow; Gaussian conditions have closed-form moments.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from lvmogp.compiling import compiled
from lvmogp.data import block_layout
from lvmogp.evidence import evidence
from lvmogp.gaussians import mixture_log_density, mixture_quantile
from lvmogp.joint import Draw, cross_covariance, new_functional, sample_curves, trained_functional
from lvmogp.new_condition import ConditionPosterior, block_components, components, condition_on, in_blocks, normal_nodes
from lvmogp.posterior import Curves, Posterior, marginals
from lvmogp.psi_statistics import LatentGaussians
from lvmogp.scaling import Scaling
from lvmogp.typing import Array, Float, HostFloat, HostInt, Scalar
from lvmogp.variational_condition import GaussianCondition

Condition = GaussianCondition | ConditionPosterior
_marginals = compiled(marginals)
N_NODES = 128


class Moments(NamedTuple):
    """Mean and variance of f, and the noise variance of an observation, at each row, in standardised units."""

    mean: HostFloat
    variance: HostFloat
    noise: HostFloat


def trained_condition(model: Posterior, shapes: Curves, number: int, place: int) -> GaussianCondition:
    """One of the trained conditions, whose curve is at ``place`` of ``shapes``."""
    parameters = model.parameters
    one, there = slice(number, number + 1), slice(place, place + 1)
    latents = LatentGaussians(parameters.latent_mean[one], parameters.latent_variance[one])
    curve = jax.tree.map(lambda leaf: leaf[there], shapes)
    return GaussianCondition(latents, parameters.noise_per_condition[number], curve)


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


class Mixture(eqx.Module):
    """Predictive mixtures Σ_p w_p N(mean_p, variance_p) of n rows, in standardised units."""

    weights: Float[Array, " P"]
    means: Float[Array, "P n"]
    variances: Float[Array, "P n"]

    @property
    def moments(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of each row's mixture."""
        mean = self.weights @ self.means
        return mean, self.weights @ (self.variances + (self.means - mean) ** 2)


def gaussian_rows(mean: HostFloat, variance: HostFloat) -> Mixture:
    """Rows that are Gaussian: mixtures of one component."""
    return Mixture(jnp.asarray(np.ones(1)), jnp.asarray(mean[None]), jnp.asarray(variance[None]))


def mixture(model: Posterior, particles: ConditionPosterior, inputs: HostFloat, *, include_noise: bool) -> Mixture:
    """Predictive mixtures at rows of one condition, of f or of a new observation."""
    blocks = jnp.asarray(in_blocks(inputs), model.mean.dtype)
    means, variances = components(model.input_basis, particles, blocks)

    def by_row(values: Float[Array, "B P b"]) -> Float[Array, "P n"]:
        n_particles = values.shape[1]
        return jnp.swapaxes(values, 0, 1).reshape(n_particles, -1)[:, : len(inputs)]

    noise = particles.noise[:, None] if include_noise else 0.0
    return Mixture(particles.weights, by_row(means), by_row(variances) + noise)


def output_moments(rows: Mixture, scaling: Scaling) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Mean and variance of the output in the user's units.

    Under a logarithm each component is log-normal: ⟨y⟩ = exp(m + v/2), ⟨y²⟩ = exp(2m + 2v).
    """
    means = scaling.location(rows.means)
    variances = scaling.variance(rows.variances)
    if not scaling.log_output:
        return Mixture(rows.weights, means, variances).moments
    first = rows.weights @ jnp.exp(means + variances / 2)
    second = rows.weights @ jnp.exp(2 * means + 2 * variances)
    return first, jnp.maximum(second - first**2, 0.0)


def moments_in_units(rows: Mixture, scaling: Scaling) -> tuple[HostFloat, HostFloat]:
    """The same outside of compiled programs."""
    factors = _output_factors(scaling)
    mean, variance = _moments_in_units(rows, factors, scaling.log_output)
    return np.asarray(mean), np.asarray(variance)


@compiled
def _moments_in_units(
    rows: Mixture, factors: tuple[Scalar, Scalar], log_output: bool
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    return output_moments(rows, _output_scaling(factors, log_output))


def _output_factors(scaling: Scaling) -> tuple[Scalar, Scalar]:
    # As arrays, so that one program serves models of all scales.
    return jnp.asarray(np.asarray(scaling.output_mean)), jnp.asarray(np.asarray(scaling.output_scale))


def _output_scaling(factors: tuple[Any, Any], log_output: bool) -> Scaling:
    location, scale = factors
    return Scaling(np.empty(0), np.empty(0), location, scale, log_output)


def quantile(rows: Mixture, scaling: Scaling, probability: float) -> HostFloat:
    """Quantile of the output in the user's units."""
    level = jnp.asarray(np.asarray(probability, rows.means.dtype))
    return scaling.quantity(np.asarray(_quantile(rows, level)))


@compiled
def _quantile(rows: Mixture, level: Float[Array, ""]) -> Float[Array, " n"]:
    weights = jnp.broadcast_to(rows.weights[:, None], rows.means.shape)
    return mixture_quantile(level, rows.means, rows.variances, weights)


def log_density(rows: Mixture, scaling: Scaling, outputs: HostFloat) -> HostFloat:
    """Log predictive density of outputs, per unit of the output; none where a logarithm cannot be taken."""
    if scaling.log_output:
        positive = np.where(outputs > 0, outputs, 1.0)
        return np.where(outputs > 0, _log_density(rows, scaling, positive), -np.inf)
    return _log_density(rows, scaling, outputs)


def _log_density(rows: Mixture, scaling: Scaling, outputs: HostFloat) -> HostFloat:
    value = np.asarray(_standardised_log_density(rows, jnp.asarray(scaling.outputs(outputs).astype(rows.means.dtype))))
    # dy = scale · dz, and d log y = dy/y
    return value - np.log(scaling.output_scale) - (np.log(outputs) if scaling.log_output else 0.0)


@compiled
def _standardised_log_density(rows: Mixture, values: Float[Array, " n"]) -> Float[Array, " n"]:
    log_weights = jnp.broadcast_to(jnp.log(rows.weights)[:, None], rows.means.shape)
    return mixture_log_density(values, rows.means, rows.variances, log_weights)


def probability_below(rows: Mixture, scaling: Scaling, outputs: HostFloat) -> HostFloat:
    """Probability of an output no larger than each given one, Σ_p w_p Φ((y − m_p)/√v_p)."""
    possible = outputs > 0 if scaling.log_output else np.ones(len(outputs), dtype=bool)
    standardised = scaling.outputs(np.where(possible, outputs, 1.0))
    scores = (standardised - np.asarray(rows.means)) / np.sqrt(np.asarray(rows.variances))
    return np.where(possible, np.asarray(rows.weights) @ ndtr(scores), 0.0)


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
    mean, variance = _gradients(model, particles, points, factors, scaling.log_output, include_noise)
    return np.asarray(mean) / scaling.input_scale, np.asarray(variance) / scaling.input_scale


@compiled
def _gradients(
    model: Posterior,
    condition: ConditionPosterior | GaussianCondition,
    points: Float[Array, "n Q_X"],
    factors: tuple[Scalar, Scalar],
    log_output: bool,
    include_noise: bool,
) -> tuple[Float[Array, "n Q_X"], Float[Array, "n Q_X"]]:
    scaling = _output_scaling(factors, log_output)

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
    size = 1 << (max(len(points) for points in rows) - 1).bit_length()  # few different shapes
    functionals = []
    for condition, points in zip(conditions, rows, strict=True):
        padded = jnp.asarray(np.pad(points, ((0, size - len(points)), (0, 0)), mode="edge"), model.mean.dtype)
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
    size = 1 << (max(len(points) for points in rows) - 1).bit_length()
    dtype = model.mean.dtype
    padded = np.stack([np.pad(points, ((0, size - len(points)), (0, 0)), mode="edge") for points in rows])
    nothing = evidence(model, np.empty((0, padded.shape[2])), np.empty(0))
    seen = [condition.evidence if isinstance(condition, ConditionPosterior) else nothing for condition in conditions]
    most = max(item.values.shape[0] for item in seen)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[item.padded(most) for item in seen])
    values = np.empty((n_draws, len(rows), size))
    noises = np.empty((n_draws, len(rows)))
    for number in range(n_draws):
        drawn = [_draw_latent(condition, rng) for condition in conditions]
        latents = jnp.asarray(np.stack([latent for latent, _ in drawn]), dtype)
        noises[number] = [noise for _, noise in drawn]
        draw = Draw(latents, jnp.asarray(noises[number], dtype), stacked)
        normals = jnp.asarray(rng.standard_normal((len(rows), size)), dtype)
        values[number] = sample_curves(model, draw, jnp.asarray(padded, dtype), normals)
    curves = [values[:, place, : len(points)] for place, points in enumerate(rows)]
    return curves, list(noises.T)


def _draw_latent(condition: Condition, rng: np.random.Generator) -> tuple[HostFloat, float]:
    if isinstance(condition, ConditionPosterior):
        weights = np.asarray(condition.weights, dtype=float)
        chosen = rng.choice(len(weights), p=weights / weights.sum())
        return np.asarray(condition.latents[chosen]), float(condition.noise[chosen])
    mean, variance = np.asarray(condition.latents.mean[0]), np.asarray(condition.latents.variance[0])
    return mean + np.sqrt(variance) * rng.standard_normal(len(mean)), float(condition.noise)
