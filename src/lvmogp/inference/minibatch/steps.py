"""One step of stochastic inference: natural gradients for q(v), Adam for everything else.

Given kernels and latents the bound is a quadratic in v with precision I + G. The partial traces of G, averaged over
minibatches, give A_H ⊗ A_X ≈ G, which is exact on a grid; the covariance of q(v) is (I + A_H ⊗ A_X)⁻¹, and the mean
moves along the gradient times this covariance. Latents are rows of a table, of which a step touches those of the
conditions in its minibatch only.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.constraints import FreeStructure, join
from lvmogp.algebra.evidence import kronecker_shrinkage
from lvmogp.algebra.gaussians import kl_to_standard_normal
from lvmogp.inference.minibatch.bound import Grams, expected_log_likelihood
from lvmogp.inference.minibatch.minibatches import Minibatch
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import KroneckerCovariance
from lvmogp.typing import Array, Float, Int, Scalar

# Adam averages over about ten steps, and squares over about a hundred.
_FIRST_MOMENT, _SECOND_MOMENT = 0.9, 0.99
# Keeps quotients of zeros finite.
_SMALL = 1e-30
# The n-th step of q(v) has at least the size 1/(n + 4), and hyperparameters stand still for as many steps as this.
_FIRST_STEPS, _WARM_UP = 4, 25


class AdamMoments(eqx.Module):
    """Running averages of gradients and of their squares, as Adam keeps them."""

    first: Float[Array, "..."]
    second: Float[Array, "..."]


class State(eqx.Module):
    """Everything that a step changes.

    A row of ``table`` holds μ_d, log s_d and, where each condition has its own, log σ_d². ``visits`` counts the steps
    that touched it.
    """

    vector: Float[Array, " free"]
    table: Float[Array, "rows K"]
    mean: Float[Array, "M_X M_H"]
    grams: Grams
    covariance: KroneckerCovariance
    vector_moments: AdamMoments
    table_moments: AdamMoments
    n_steps: Int[Array, ""]
    visits: Int[Array, " rows"]


class Rates(eqx.Module):
    """Step sizes: of the free vector, entry by entry, of the table, and of q(v)."""

    vector: Float[Array, " free"]
    table: Scalar
    natural: Scalar


class Problem(eqx.Module):
    """What no step changes."""

    fixed_leaves: tuple[Array, ...]
    counts: Float[Array, " rows"]
    structure: FreeStructure = eqx.field(static=True)


def with_conditions(shared: Parameters, rows: Float[Array, "B K"]) -> Parameters:
    """Return the parameters of conditions with these rows of the table, from those of none, which all share."""
    n_latent = shared.latent_mean.shape[1]
    own_noise = rows.shape[1] > 2 * n_latent
    return dataclasses.replace(
        shared,
        latent_mean=rows[:, :n_latent],
        latent_variance=jnp.exp(rows[:, n_latent : 2 * n_latent]),
        noise_variance=jnp.exp(rows[:, -1]) if own_noise else shared.noise_variance,
    )


def covariance_of(grams: Grams) -> KroneckerCovariance:
    """(I + A_H ⊗ A_X)⁻¹ with A_H ⊗ A_X the product of both partial traces over the trace that they share."""
    input_values, input_basis = jnp.linalg.eigh(grams.inputs)
    latent_values, latent_basis = jnp.linalg.eigh(grams.latents)
    trace = jnp.maximum(jnp.trace(grams.latents), _SMALL)
    return KroneckerCovariance(input_basis, latent_basis, kronecker_shrinkage(input_values, latent_values / trace))


def step(state: State, batch: Minibatch, problem: Problem, rates: Rates, axis: str) -> tuple[State, Scalar]:
    """The state after one minibatch, and the minibatch's estimate of the bound before it.

    Runs on every device of the mesh axis ``axis``, each of which has its part of the minibatch and the whole state.
    """
    rows = batch.block_condition
    counts = problem.counts[rows]

    def objective(vector: Array, values: Array, mean: Array) -> tuple[Scalar, Grams]:
        parameters = with_conditions(join(vector, problem.fixed_leaves, problem.structure), values)
        return expected_log_likelihood(parameters, counts, mean, state.covariance, batch)

    (expected, grams), (by_vector, by_values, by_mean) = jax.value_and_grad(objective, argnums=(0, 1, 2), has_aux=True)(
        state.vector, state.table[rows], state.mean
    )
    expected, grams, by_vector, by_mean = jax.lax.psum((expected, grams, by_vector, by_mean), axis)
    bound = expected - kl_to_standard_normal(state.mean, state.covariance.variances)

    # The first steps average their minibatches, from which q(v) is as good as new.
    natural = jnp.where(rates.natural > 0, jnp.maximum(rates.natural, 1 / (state.n_steps + _FIRST_STEPS)), 0.0)
    grams = jax.tree.map(lambda old, new: old + natural * (new - old), state.grams, grams)
    covariance = covariance_of(grams)
    mean = state.mean + natural * covariance.apply(by_mean - state.mean)
    n_steps = state.n_steps + 1
    # Gradients mean little before q(v) has found its place.
    warm = jnp.clip(n_steps / _WARM_UP - 1, 0.0, 1.0)
    vector, vector_moments = _adam(state.vector, state.vector_moments, by_vector, warm * rates.vector, n_steps)
    table, table_moments, visits = _touched(state, batch, by_values, warm * rates.table, axis)
    return State(vector, table, mean, grams, covariance, vector_moments, table_moments, n_steps, visits), bound


def _touched(
    state: State, batch: Minibatch, by_values: Float[Array, "B K"], rate: Scalar, axis: str
) -> tuple[Float[Array, "rows K"], AdamMoments, Int[Array, " rows"]]:
    # Adam on the rows of the conditions in the batch. Blocks of one condition come to the same values, so it does not
    # matter which of them writes last; empty blocks write nothing.
    n_conditions = state.table.shape[0]
    rows = jnp.where(batch.places[:, 0] < batch.outputs.shape[0], batch.block_condition, n_conditions)
    rows, by_values = jax.lax.all_gather((rows, by_values), axis, tiled=True)
    gradients = jnp.zeros_like(state.table).at[rows].add(by_values, mode="drop")[rows]
    visits = state.visits[rows] + 1
    moments = jax.tree.map(lambda leaf: leaf[rows], state.table_moments)
    values, moments = _adam(state.table[rows], moments, gradients, rate, visits[:, None])

    def put(table: Array, new: Array) -> Array:
        return table.at[rows].set(new, mode="drop")

    return put(state.table, values), jax.tree.map(put, state.table_moments, moments), put(state.visits, visits)


def _adam(
    values: Array, moments: AdamMoments, gradient: Array, rate: Array, count: Int[Array, "..."]
) -> tuple[Array, AdamMoments]:
    # One step uphill: m/(1 − β₁ᵗ) over √(v/(1 − β₂ᵗ)).
    first = _FIRST_MOMENT * moments.first + (1 - _FIRST_MOMENT) * gradient
    second = _SECOND_MOMENT * moments.second + (1 - _SECOND_MOMENT) * gradient**2
    mean = first / (1 - _FIRST_MOMENT**count)
    size = jnp.sqrt(second / (1 - _SECOND_MOMENT**count))
    return values + rate * mean / (size + _SMALL), AdamMoments(first, second)
