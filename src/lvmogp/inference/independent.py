"""Sparse Gaussian processes that treat the conditions as independent and share their hyperparameters."""

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg

from lvmogp.algebra.constraints import positive
from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.kernels.covariances import Kernel, diagonal
from lvmogp.model.expected_likelihood import Basis, basis, condition_sums, nan_if_unsound
from lvmogp.model.layouts import Data, GridData
from lvmogp.typing import Array, Float, Scalar


class IndependentParameters(eqx.Module):
    """One kernel and one noise variance for all conditions; the inducing inputs are given."""

    kernel: Kernel
    inducing_inputs: Float[Array, "M_X Q_X"]
    noise_variance: Scalar = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=("inducing_inputs",))


class _Statistics(eqx.Module):
    # Sums over observations, weighted by their precisions; one gram matrix serves all conditions of a grid.
    grams: Float[Array, "G M_X M_X"]
    projections: Float[Array, "D M_X"]
    squares: Scalar
    residual: Scalar
    log_precision: Scalar


def _statistics(input_basis: Basis, data: Data, noise: Scalar) -> _Statistics:
    if isinstance(data, GridData):
        precision = 1 / data.noise(noise)
        features = input_basis.features(data.inputs)
        gram = features.T @ features * precision
        prior = jnp.sum(diagonal(input_basis.kernel, data.inputs)) * precision
        residual = data.n_conditions * (prior - jnp.trace(gram))
        squares = jnp.sum(data.squares) * precision
        projections = data.outputs.T @ features * precision
        return _Statistics(gram[None], projections, squares, residual, jnp.sum(data.counts) * jnp.log(precision))
    sums = condition_sums(input_basis, data, jnp.broadcast_to(noise, data.counts.shape))
    residual = jnp.sum(sums.prior_variances) - jnp.sum(jnp.trace(sums.grams, axis1=1, axis2=2))
    return _Statistics(sums.grams, sums.projections, jnp.sum(sums.squares), residual, jnp.sum(sums.log_precisions))


def _whitened_solve(statistics: _Statistics) -> tuple[Float[Array, "G M_X M_X"], Float[Array, "G M_X K"]]:
    # chol(I + A_d) and its solve of Σ p y v; the conditions of a grid are columns of one right-hand side.
    identity = jnp.eye(statistics.grams.shape[-1], dtype=statistics.grams.dtype)
    factors = jnp.linalg.cholesky(identity + statistics.grams)
    shared = statistics.grams.shape[0] == 1
    right = statistics.projections.T[None] if shared else statistics.projections[:, :, None]
    return factors, jax.scipy.linalg.solve_triangular(factors, right, lower=True)


def independent_bound(parameters: IndependentParameters, data: Data) -> Scalar:
    """Σ_d of Titsias' collapsed bound of each condition (equation 13)."""
    input_basis = basis(parameters.kernel, parameters.inducing_inputs)
    statistics = _statistics(input_basis, data, parameters.noise_variance)
    factors, solved = _whitened_solve(statistics)
    repeats = data.n_conditions / statistics.grams.shape[0]
    log_det = 2 * repeats * jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)))
    # −½ [Σ log 2π/p + log|I + A_d| + Σ p y² − ‖L⁻¹Σ p y v‖² + Σ p k(x, x) − tr A_d], p = 1/σ² but for known errors
    misfit, count = statistics.squares - jnp.sum(solved**2), jnp.sum(data.counts)
    bound = -(count * LOG_2PI - statistics.log_precision + log_det + misfit + statistics.residual) / 2
    return nan_if_unsound(bound, count, misfit, statistics.residual)


def independent_curves(
    parameters: IndependentParameters, data: Data, points: Float[Array, "G Q_X"]
) -> Float[Array, "D G"]:
    """Posterior mean of each condition's own curve at common points."""
    input_basis = basis(parameters.kernel, parameters.inducing_inputs)
    factors, solved = _whitened_solve(_statistics(input_basis, data, parameters.noise_variance))
    weights = jax.scipy.linalg.solve_triangular(factors, solved, lower=True, trans=1)  # (G, M_X, K)
    by_condition = weights[0].T if weights.shape[0] == 1 else weights[:, :, 0]
    return by_condition @ input_basis.features(points).T
