"""What measurements not yet made are expected to tell about a condition.

A condition is a mixture of particles, so that an outcome y of a measurement at x changes the curve of each particle
and the weights of all (docs/mathematics.md, equations 28 to 30). What is to be known better are its curve over a
region, or its latents: *targets* t with mean and variance under each particle. By the law of total variance

    ⟨Var(t | y)⟩_y = Var(t) − Var_y(⟨t | y⟩),

and the last term, the expected reduction, is averaged over quasi-random outcomes. Measurements already decided on,
whose outcomes are not known yet, are imagined in several equally likely scenarios. Everything is deterministic.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jax.scipy.special import ndtri

from lvmogp.compiling import compiled
from lvmogp.linalg import cholesky, whiten
from lvmogp.particle_curves import ParticleCurves
from lvmogp.typing import Array, Float, Int, Scalar

# None stands for the latents.
Region = Float[Array, "R Q_X"] | None


class Scenarios(eqx.Module):
    """Measurements decided on, in b places of which some may be free, with S imagined outcomes of all of them.

    ``log_weights`` are those of the particles after the outcomes of a scenario.
    """

    points: Float[Array, "b Q_X"]
    present: Float[Array, " b"]
    outcomes: Float[Array, "S b"]
    log_weights: Float[Array, "S P"]


def nothing_decided(curves: ParticleCurves, *, n_columns: int, n_places: int, n_scenarios: int) -> Scenarios:
    """Scenarios before any measurement is decided on."""
    dtype = curves.log_weights.dtype
    return Scenarios(
        points=jnp.zeros((n_places, n_columns), dtype),
        present=jnp.zeros(n_places, dtype),
        outcomes=jnp.zeros((n_scenarios, n_places), dtype),
        log_weights=jnp.tile(curves.log_weights, (n_scenarios, 1)),
    )


class _Given(NamedTuple):
    # What the measurements decided on do to each particle: factor of K_BB + σ²I, and its solution for each scenario.
    factor: Float[Array, "P b b"]
    solution: Float[Array, "P S b"]


class _Rows(NamedTuple):
    # Means of some quantities in each scenario, and L⁻¹ cov(B, quantities) under each particle.
    means: Float[Array, "P S n"]
    variances: Float[Array, "P n"]
    whitened: Float[Array, "P b n"]


def _given(curves: ParticleCurves, decided: Scenarios) -> _Given:
    means, _ = curves.moments(decided.points)
    present = decided.present
    within = curves.covariance(decided.points, decided.points) * present[:, None] * present
    noise = jnp.where(present > 0, curves.noise[:, None], 1.0)  # a free place is a measurement of nothing
    factor = jax.vmap(lambda covariance, own: cholesky(covariance + jnp.diag(own)))(within, noise)
    residual = (decided.outcomes - means[:, None, :]) * present
    solution = jax.vmap(lambda lower, values: cho_solve((lower, True), values.T).T)(factor, residual)
    return _Given(factor, solution)


def _conditioned(
    given: _Given, means: Float[Array, "P n"], variances: Float[Array, "P n"], to_decided: Float[Array, "P n b"]
) -> _Rows:
    """Means and variances given the outcomes: m + K_xB (K_BB + σ²I)⁻¹(y − m_B), and v − |L⁻¹K_Bx|²."""
    whitened = jax.vmap(lambda lower, covariance: whiten(lower, covariance.T))(given.factor, to_decided)
    shifted = means[:, None, :] + jnp.einsum("pnb,psb->psn", to_decided, given.solution)
    return _Rows(shifted, jnp.maximum(variances - jnp.sum(whitened**2, axis=1), 0.0), whitened)


def _rows_at(curves: ParticleCurves, decided: Scenarios, given: _Given, points: Float[Array, "n Q_X"]) -> _Rows:
    to_decided = curves.covariance(points, decided.points) * decided.present
    return _conditioned(given, *curves.moments(points), to_decided)


def _targets(curves: ParticleCurves, decided: Scenarios, given: _Given, region: Region) -> _Rows:
    if region is not None:
        return _rows_at(curves, decided, given, region)
    latents = curves.latents  # known exactly under each particle
    nothing = jnp.zeros((*latents.shape, decided.points.shape[0]), latents.dtype)
    return _conditioned(given, latents, jnp.zeros_like(latents), nothing)


@compiled
def expected_variance(curves: ParticleCurves, decided: Scenarios, region: Region) -> Scalar:
    """Variance of the targets, averaged over them and over the scenarios."""
    targets = _targets(curves, decided, _given(curves, decided), region)
    weights = jnp.exp(decided.log_weights)
    means = jnp.einsum("sp,pst->st", weights, targets.means)
    between = jnp.einsum("sp,pst->st", weights, (targets.means - means) ** 2)
    return jnp.mean(weights @ targets.variances + between)


@compiled
def expected_reductions(
    curves: ParticleCurves,
    decided: Scenarios,
    region: Region,
    candidates: Float[Array, "B c Q_X"],
    nodes: Float[Array, "S K 2"],
) -> Float[Array, "B c"]:
    """Var_y(⟨t | y⟩) of a measurement at each candidate, averaged over targets and scenarios (equation 30)."""
    given = _given(curves, decided)
    targets = _targets(curves, decided, given, region)
    centre = jnp.einsum("sp,pst->st", jnp.exp(decided.log_weights), targets.means)

    def one_block(points: Float[Array, "c Q_X"]) -> Float[Array, " c"]:
        rows = _rows_at(curves, decided, given, points)
        # cov(f(x), t | B); nothing for latents, which are fixed under a particle
        shared = jnp.zeros((*rows.variances.shape, targets.means.shape[2]), points.dtype)
        if region is not None:
            shared = curves.covariance(points, region) - jnp.einsum("pbn,pbt->pnt", rows.whitened, targets.whitened)
        variances = rows.variances + curves.noise[:, None]
        gains = shared / variances[:, :, None]

        def one_candidate(mean: Float[Array, "P S"], variance: Float[Array, " P"], gain: Float[Array, "P T"]) -> Scalar:
            def one_scenario(own_mean: Array, log_weights: Array, target_means: Array, own: Array, at: Array) -> Array:
                outcomes = _outcomes(log_weights, own_mean, variance, at)
                surprises = outcomes[:, None] - own_mean
                weights = jax.nn.softmax(log_weights + _log_likelihood(surprises, variance), axis=1)
                expected = weights @ target_means + (weights * surprises) @ gain  # ⟨t | y⟩
                return jnp.mean((expected - own) ** 2)

            by_scenario = jax.vmap(one_scenario, in_axes=(1, 0, 1, 0, 0))
            return jnp.mean(by_scenario(mean, decided.log_weights, targets.means, centre, nodes))

        return jax.vmap(one_candidate, in_axes=(2, 1, 1))(rows.means, variances, gains)

    return jax.lax.map(one_block, candidates)


@compiled
def with_measurement(
    curves: ParticleCurves,
    decided: Scenarios,
    place: Int[Array, ""],
    point: Float[Array, " Q_X"],
    nodes: Float[Array, "S 2"],
) -> Scenarios:
    """A measurement decided on as well, in a free place, with an outcome for each scenario."""
    rows = _rows_at(curves, decided, _given(curves, decided), point[None])
    means, variances = rows.means[:, :, 0].T, rows.variances[:, 0] + curves.noise

    def one_scenario(log_weights: Array, own_means: Array, node: Array) -> tuple[Array, Array]:
        outcome = _outcomes(log_weights, own_means, variances, node[None])[0]
        return outcome, jax.nn.log_softmax(log_weights + _log_likelihood(outcome - own_means, variances))

    outcomes, log_weights = jax.vmap(one_scenario)(decided.log_weights, means, nodes)
    return Scenarios(
        points=decided.points.at[place].set(point),
        present=decided.present.at[place].set(1.0),
        outcomes=decided.outcomes.at[:, place].set(outcomes),
        log_weights=log_weights,
    )


def _outcomes(
    log_weights: Float[Array, " P"],
    means: Float[Array, " P"],
    variances: Float[Array, " P"],
    nodes: Float[Array, "K 2"],
) -> Float[Array, " K"]:
    """Points of the unit square pushed through a mixture: the first coordinate picks the particle, in order of mean."""
    # Neighbours in the first coordinate are alike only if the particles are in order.
    order = jnp.argsort(means)
    ends = jnp.cumsum(jnp.exp(log_weights)[order])
    chosen = order[jnp.minimum(jnp.searchsorted(ends, nodes[:, 0] * ends[-1]), len(order) - 1)]
    return means[chosen] + jnp.sqrt(variances[chosen]) * ndtri(nodes[:, 1])


def _log_likelihood(surprises: Float[Array, "*K P"], variances: Float[Array, " P"]) -> Float[Array, "*K P"]:
    # log N(y; m_p, v_p) up to a constant
    return -(jnp.log(variances) + surprises**2 / variances) / 2
