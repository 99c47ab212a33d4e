"""One step of stochastic inference: natural gradients for q(v), Adam for everything else.

The explicit bound of a minibatch is an unbiased estimate of that of all. q(v) = N(vec M, (I + A_H ⊗ A_X)⁻¹)
has the form that is optimal on a complete grid, whatever the data. With A_X = U_X Λ_X U_Xᵀ, A_H = U_H Λ_H U_Hᵀ and
W_ij = 1/(1 + λ^X_i λ^H_j), an observation y at x of condition d has the expected log-likelihood
(docs/mathematics.md, equation 26)

−½ log 2πσ_d² − ½/σ_d² [y² − 2 y aᵀM⟨c_d⟩ + tr(T_d R) + ψ_d k_X(x, x)],
R = MᵀaaᵀM + U_H diag((U_Xᵀa)²ᵀW) U_Hᵀ − aᵀa I.

Since tr(T_d R) = tr(Φ_d L_H⁻ᵀRL_H⁻¹), only R is whitened, once for each block of observations of one condition.

Minibatches may be in single precision. Then so is what has the size of observations × M_X, where rounding is harmless;
what meets K_H⁻¹, which magnifies it beyond measure, stays in double precision.

Given kernels and latents the bound is a quadratic in v with precision I + G. The partial traces of G, averaged over
minibatches, give A_H ⊗ A_X ≈ G, which is exact on a grid, and the mean moves along the gradient times the covariance.
Latents are rows of a table, of which a step touches those of the conditions in its minibatch only.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import FreeStructure, join
from lvmogp.algebra.evidence import kronecker_shrinkage
from lvmogp.algebra.gaussians import LOG_2PI, kl_to_standard_normal
from lvmogp.algebra.linalg import packed_counts, quadratic_forms, triangular_inverse, unpack_symmetric
from lvmogp.inference.minibatch.minibatches import Minibatch
from lvmogp.kernels.covariances import cross, diagonal
from lvmogp.kernels.psi_statistics import packed_psi2, psi0, psi1
from lvmogp.model.features import basis
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import KroneckerCovariance
from lvmogp.typing import Array, Float, Int, Scalar

# Adam averages over about ten steps, and squares over about a hundred.
_FIRST_MOMENT, _SECOND_MOMENT = 0.9, 0.99
# Keeps quotients of zeros finite.
_SMALL = 1e-30
# The n-th step of q(v) has at least the size 1/(n + 4), and hyperparameters stand still for as many steps as this.
_FIRST_STEPS, _WARM_UP = 4, 25


# The bound of a minibatch


@jax.custom_jvp
def inverse_with_quick_derivative(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """L⁻¹, whose derivatives are products instead of solves.

    For programs that run by themselves: the compiler joins products with others around them, so that two programs
    need not agree to the last bit, as those of a model and of its copy from a file must.
    """
    return triangular_inverse(lower)


@inverse_with_quick_derivative.defjvp
def _inverse_jvp(primals, tangents):
    inverse = inverse_with_quick_derivative(*primals)
    return inverse, -inverse @ jnp.tril(tangents[0]) @ inverse  # dL⁻¹ = −L⁻¹ dL L⁻¹


class Grams(eqx.Module):
    """Σ tr(T_d) aaᵀ/σ_d² and Σ aᵀa T_d/σ_d², the partial traces of G = Σ T_d ⊗ aaᵀ/σ_d²."""

    inputs: Float[Array, "M_X M_X"]
    latents: Float[Array, "M_H M_H"]


def expected_log_likelihood(
    parameters: Parameters,
    counts: Float[Array, " B"],
    mean: Array,
    covariance: KroneckerCovariance,
    batch: Minibatch,
    median_noise: Float[Array, " 1"] | None = None,
) -> tuple[Scalar, Grams]:
    """Estimate ⟨log p(Y|F)⟩ − KL(q(H) ‖ p(H)) with q(v) = N(vec M, S), and the grams that S follows.

    The conditions of the parameters are those of the blocks, which have N_d observations in all (``counts``). With the
    median of their noise, what that of a condition tells among those of all is counted too (equation 62).
    """
    kernel, points, latents = parameters.kernels.of_latents[0], parameters.inducing_latents, parameters.latents
    n_latents = points.shape[0]
    inverse_latents = inverse_with_quick_derivative(basis((kernel,), points).factors[0])  # L_H⁻¹
    # L_H⁻ᵀ u_j u_jᵀ L_H⁻¹ and K_H⁻¹, packed so that a product with a packed Φ_d is the trace of theirs.
    pair_rows, pair_columns = np.triu_indices(n_latents)
    pair_counts = packed_counts(n_latents).astype(inverse_latents.dtype)
    rotated = inverse_latents.T @ covariance.latent_basis  # L_H⁻ᵀU_H
    basis_pairs = rotated[pair_rows] * rotated[pair_columns] * pair_counts[:, None]
    inverse_gram = jnp.sum(inverse_latents[:, pair_rows] * inverse_latents[:, pair_columns], axis=0) * pair_counts
    features, means, spreads, squares, priors = _at_inputs(parameters, mean, covariance, batch)

    def in_blocks(values: Float[Array, "n ..."]) -> Float[Array, "B b ..."]:
        return jnp.take(values, batch.places, axis=0, mode="fill", fill_value=0)

    precisions = 1 / parameters.noise_per_condition  # 1/σ_d²
    outputs, all_weights = batch.outputs.astype(precisions.dtype), batch.weights.astype(precisions.dtype)
    weights = in_blocks(all_weights)
    stands_for = jnp.sum(weights, axis=1)

    # Sums over the observations of each block, of what R is made of.
    projected = in_blocks(means @ inverse_latents)  # (L_H⁻ᵀMᵀa)ᵀ
    numbers = jnp.concatenate([spreads, jnp.stack([outputs**2, squares, priors], axis=1)], axis=1)
    sums = jnp.sum(in_blocks(numbers) * weights[..., None], axis=1)
    spread, (outputs_squared, features_squared, prior) = sums[:, :n_latents], sums[:, n_latents:].T

    psi_two = packed_psi2(kernel, points, latents)
    traces = psi_two @ inverse_gram  # tr T_d = tr(Φ_d K_H⁻¹)
    # Σ tr(T_d R): of MᵀaaᵀM, of U_H diag((U_Xᵀa)²ᵀW) U_Hᵀ and of aᵀa I
    quadratic = (
        quadratic_forms(psi_two, projected, weights)
        + jnp.sum((psi_two @ basis_pairs) * spread, axis=1)
        - features_squared * traces
    )
    pulled = jnp.sum(projected * (weights * in_blocks(outputs))[..., None], axis=1)
    linear = jnp.sum(pulled * psi1(kernel, points, latents), axis=1)  # Σ y aᵀM⟨c_d⟩, ⟨c_d⟩ = L_H⁻¹Ψ_dᵀ
    misfit = (outputs_squared - 2 * linear + quadratic + psi0(kernel, latents) * prior) @ precisions
    # Each observation carries its share 1/N_d of the divergence of its condition's latents.
    divergence = jnp.sum(latents.mean**2 + latents.variance - jnp.log(latents.variance) - 1, axis=1)
    if median_noise is not None and parameters.noise_spread is not None:
        # −½ [(log σ_d² − log m)²/τ² + log(1 + τ²N_d/2)]
        spread, deviations = parameters.noise_spread**2, jnp.log(parameters.noise_variance / median_noise)
        divergence += deviations**2 / spread + jnp.log1p(spread * counts / 2)
    per_observation = LOG_2PI - jnp.log(precisions) + divergence / counts
    value = -(stands_for @ per_observation + misfit) / 2

    by_place = jnp.zeros_like(all_weights).at[batch.places].set((traces * precisions)[:, None], mode="drop")
    weighted = features * (all_weights * by_place)[:, None].astype(features.dtype)
    input_gram = (weighted.T @ features).astype(precisions.dtype)
    packed = (features_squared * precisions) @ psi_two
    latent_gram = inverse_latents @ unpack_symmetric(packed) @ inverse_latents.T
    return value, Grams(input_gram, latent_gram)


def _at_inputs(
    parameters: Parameters, mean: Array, covariance: KroneckerCovariance, batch: Minibatch
) -> tuple[Array, ...]:
    # What the inputs of the observations come to: aᵀ in the precision of the batch; aᵀM, (U_Xᵀa)²ᵀW, aᵀa and k(x, x).
    kernel, points = parameters.kernels.of_inputs[0], parameters.inducing_inputs
    inverse = inverse_with_quick_derivative(basis((kernel,), points).factors[0])  # L_X⁻¹
    kernel, points, whitening, mean, covariance = jax.tree.map(
        lambda leaf: leaf.astype(batch.outputs.dtype), (kernel, points, inverse, mean, covariance)
    )
    features = cross(kernel, batch.inputs, points) @ whitening.T
    spreads = jnp.square(features @ covariance.input_basis) @ covariance.variances
    found = (features @ mean, spreads, jnp.sum(features**2, axis=1), diagonal(kernel, batch.inputs))
    return features, *(each.astype(inverse.dtype) for each in found)


# Steps


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


class Problem(eqx.Module):
    """What no step changes; ``unit_steps`` are the sizes of sensible steps of the free vector, entry by entry."""

    unit_steps: Float[Array, " free"]
    fixed_leaves: tuple[Array, ...]
    counts: Float[Array, " rows"]
    structure: FreeStructure = eqx.field(static=True)


def with_conditions(shared: Parameters, rows: Float[Array, "B K"]) -> Parameters:
    """Return the parameters of conditions with these rows of the table, from those of none, which all share.

    Where conditions have a noise of their own, what they share is its median.
    """
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


def step(
    state: State, batch: Minibatch, problem: Problem, rates: Float[Array, " 3"], axis: str
) -> tuple[State, Scalar]:
    """The state after one minibatch, and the minibatch's estimate of the bound before it.

    ``rates`` are step sizes of the hyperparameters, of the table, and of q(v).
    Runs on every device of the mesh axis ``axis``, each of which has its part of the minibatch and the whole state.
    """
    rows = batch.block_condition
    counts = problem.counts[rows]

    def objective(vector: Array, values: Array, mean: Array) -> tuple[Scalar, Grams]:
        shared = join(vector, problem.fixed_leaves, problem.structure)
        median = shared.noise_variance if shared.noise_spread is not None else None
        return expected_log_likelihood(
            with_conditions(shared, values), counts, mean, state.covariance, batch, median_noise=median
        )

    (expected, grams), (by_vector, by_values, by_mean) = jax.value_and_grad(objective, argnums=(0, 1, 2), has_aux=True)(
        state.vector, state.table[rows], state.mean
    )
    expected, grams, by_vector, by_mean = jax.lax.psum((expected, grams, by_vector, by_mean), axis)
    bound = expected - kl_to_standard_normal(state.mean, state.covariance.variances)

    # The first steps average their minibatches, from which q(v) is as good as new.
    free_rate, table_rate, natural_rate = rates
    natural = jnp.where(natural_rate > 0, jnp.maximum(natural_rate, 1 / (state.n_steps + _FIRST_STEPS)), 0.0)
    grams = jax.tree.map(lambda old, new: old + natural * (new - old), state.grams, grams)
    covariance = covariance_of(grams)
    mean = state.mean + natural * covariance.apply(by_mean - state.mean)
    n_steps = state.n_steps + 1
    # Gradients mean little before q(v) has found its place.
    warm = jnp.clip(n_steps / _WARM_UP - 1, 0.0, 1.0)
    vector, vector_moments = _adam(
        state.vector, state.vector_moments, by_vector, warm * (free_rate * problem.unit_steps), n_steps
    )
    table, table_moments, visits = _touched(state, batch, by_values, warm * table_rate, axis)
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
