"""What measurements not yet made are expected to tell about a condition.

A condition is a mixture of particles, so that an outcome y of a measurement at x changes the curve of each particle
and the weights of all (docs/mathematics.md, equations 46 to 48). What is to be known better are its curve over a
region, or its latents: *targets* t with mean and variance under each particle. The variance that is left of them has a
part within particles, which no outcome changes, and one between them, which is averaged over quasi-random outcomes.
Measurements already decided on, whose outcomes are not known yet, are imagined in several equally likely scenarios.
Everything is deterministic.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jax.scipy.special import ndtri

from lvmogp.algebra.linalg import cholesky, whiten
from lvmogp.conditions.curves import Particles, covariances, moments
from lvmogp.ground.compiling import compiled
from lvmogp.typing import Array, Float, Int, Scalar

# None stands for the latents.
Region = Float[Array, "R Q_X"] | None


class Plan(eqx.Module):
    """Measurements decided on, in b places of which some may be free, with S imagined outcomes of all of them.

    ``log_weights`` are those of the particles after the outcomes of a scenario.
    """

    points: Float[Array, "b Q_X"]
    present: Float[Array, " b"]
    outcomes: Float[Array, "S b"]
    log_weights: Float[Array, "S P"]


def empty_plan(particles: Particles, *, n_columns: int, n_places: int, n_scenarios: int) -> Plan:
    """Return the plan before any measurement is decided on."""
    dtype = particles.log_weights.dtype
    return Plan(
        points=jnp.zeros((n_places, n_columns), dtype),
        present=jnp.zeros(n_places, dtype),
        outcomes=jnp.zeros((n_scenarios, n_places), dtype),
        log_weights=jnp.tile(particles.log_weights, (n_scenarios, 1)),
    )


class _Quantities(NamedTuple):
    # Means of some quantities in each scenario, and L⁻¹ cov(B, quantities) under each particle.
    means: Float[Array, "P S n"]
    variances: Float[Array, "P n"]
    whitened: Float[Array, "P b n"]


def _given_outcomes(particles: Particles, decided: Plan) -> Callable[[Region], _Quantities]:
    """Return what f at some points, or the latents, are given the outcomes of the measurements B decided on.

    Means m + K_xB (K_BB + σ²I)⁻¹(y − m_B) and variances v − |L⁻¹K_Bx|².
    """
    points, present = decided.points, decided.present
    within = covariances(particles, points, points) * present[:, None] * present
    noise = jnp.where(present > 0, particles.noise[:, None], 1.0)  # a free place is a measurement of nothing
    factor = jax.vmap(lambda covariance, own: cholesky(covariance + jnp.diag(own)))(within, noise)
    residual = (decided.outcomes - moments(particles, points)[0][:, None, :]) * present
    solution = jax.vmap(lambda lower, values: cho_solve((lower, True), values.T).T)(factor, residual)

    def conditioned(at: Region) -> _Quantities:
        if at is None:  # latents are known exactly under each particle
            means, variances = particles.aligned, jnp.zeros_like(particles.aligned)
            to_decided = jnp.zeros((*means.shape, len(points)), means.dtype)
        else:
            to_decided = covariances(particles, at, points) * present
            means, variances = moments(particles, at)
        whitened = jax.vmap(lambda lower, covariance: whiten(lower, covariance.T))(factor, to_decided)
        shifted = means[:, None, :] + jnp.einsum("pnb,psb->psn", to_decided, solution)
        return _Quantities(shifted, jnp.maximum(variances - jnp.sum(whitened**2, axis=1), 0.0), whitened)

    return conditioned


class ExpectedVariance(NamedTuple):
    """Expected variance of the targets, averaged over them: as things stand, and after measuring each candidate."""

    now: Scalar
    after: Float[Array, "B c"]


@compiled
def expected_variance(
    particles: Particles,
    decided: Plan,
    region: Region,
    candidates: Float[Array, "B c Q_X"],
    nodes: Float[Array, "S K 2"],
) -> ExpectedVariance:
    """⟨Var(t | y)⟩ of a measurement at each candidate, averaged over targets and scenarios (equation 47)."""
    given_outcomes = _given_outcomes(particles, decided)
    targets = given_outcomes(region)
    own_weights = jnp.exp(decided.log_weights)
    centred = targets.means - jnp.einsum("sp,pst->st", own_weights, targets.means)
    overall = jnp.mean(own_weights, axis=0)
    now = overall @ jnp.mean(targets.variances, axis=1) + jnp.mean(jnp.einsum("sp,pst->st", own_weights, centred**2))

    def one_block(points: Float[Array, "c Q_X"]) -> Float[Array, " c"]:
        rows = given_outcomes(points)
        # cov(f(x), t | B); nothing for latents, which are fixed under a particle
        shared = jnp.zeros((*rows.variances.shape, targets.means.shape[2]), points.dtype)
        if region is not None:
            shared = covariances(particles, points, region) - jnp.einsum(
                "pbn,pbt->pnt", rows.whitened, targets.whitened
            )
        variances = rows.variances + particles.noise[:, None]
        gains = shared / variances[:, :, None]

        def between(mean: Float[Array, "P S"], variance: Float[Array, " P"], gain: Float[Array, "P T"]) -> Scalar:
            # Variance of the means m + g(y − μ) between particles; squares are needed as averages over targets only.
            order = jnp.argsort(jnp.mean(mean, axis=1))  # one for all scenarios, which differ less than candidates do

            def one_scenario(own_mean: Array, log_weights: Array, target_means: Array, at: Array) -> Array:
                outcomes = _outcomes(log_weights, own_mean, variance, order, at)
                surprises = outcomes[:, None] - own_mean
                weights = jax.nn.softmax(log_weights + _log_likelihood(surprises, variance), axis=1)
                pushed = weights * surprises
                expected = weights @ target_means + pushed @ gain  # ⟨t | y⟩
                squares = weights @ jnp.mean(target_means**2, axis=1)
                squares += 2 * pushed @ jnp.mean(target_means * gain, axis=1)
                squares += (pushed * surprises) @ jnp.mean(gain**2, axis=1)
                return jnp.mean(squares - jnp.mean(expected**2, axis=1))

            return jnp.mean(jax.vmap(one_scenario, in_axes=(1, 0, 1, 0))(mean, decided.log_weights, centred, nodes))

        # Weights are on average what they were, and so is the variance within particles.
        within = overall @ jnp.mean(jnp.maximum(targets.variances[:, None] - gains * shared, 0.0), axis=2)
        return within + jax.vmap(between, in_axes=(2, 1, 1))(rows.means, variances, gains)

    return ExpectedVariance(now, jax.lax.map(one_block, candidates))


@compiled
def with_measurement(
    particles: Particles,
    decided: Plan,
    place: Int[Array, ""],
    point: Float[Array, " Q_X"],
    nodes: Float[Array, "S 2"],
) -> Plan:
    """A measurement decided on as well, in a free place, with an outcome for each scenario."""
    rows = _given_outcomes(particles, decided)(point[None])
    means, variances = rows.means[:, :, 0].T, rows.variances[:, 0] + particles.noise

    def one_scenario(log_weights: Array, own_means: Array, node: Array) -> tuple[Array, Array]:
        outcome = _outcomes(log_weights, own_means, variances, jnp.argsort(own_means), node[None])[0]
        return outcome, jax.nn.log_softmax(log_weights + _log_likelihood(outcome - own_means, variances))

    outcomes, log_weights = jax.vmap(one_scenario)(decided.log_weights, means, nodes)
    return Plan(
        points=decided.points.at[place].set(point),
        present=decided.present.at[place].set(1.0),
        outcomes=decided.outcomes.at[:, place].set(outcomes),
        log_weights=log_weights,
    )


def _outcomes(
    log_weights: Float[Array, " P"],
    means: Float[Array, " P"],
    variances: Float[Array, " P"],
    order: Int[Array, " P"],
    nodes: Float[Array, "K 2"],
) -> Float[Array, " K"]:
    """Points of the unit square pushed through a mixture: the first coordinate picks the particle, in a given order.

    The closer the order to that of the means, the more alike are neighbours in the first coordinate.
    """
    ends = jnp.cumsum(jnp.exp(log_weights)[order])
    chosen = order[jnp.minimum(jnp.searchsorted(ends, nodes[:, 0] * ends[-1]), len(order) - 1)]
    return means[chosen] + jnp.sqrt(variances[chosen]) * ndtri(nodes[:, 1])


def _log_likelihood(surprises: Float[Array, "*K P"], variances: Float[Array, " P"]) -> Float[Array, "*K P"]:
    # log N(y; m_p, v_p) up to a constant
    return -(jnp.log(variances) + surprises**2 / variances) / 2
