"""The likelihood of data once latents and hyperparameters are given, with the function behind them integrated out."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.evidence import dense_evidence, kronecker_evidence
from lvmogp.algebra.gaussians import LOG_2PI
from lvmogp.inference.nuts.parameters import ChainParameters
from lvmogp.kernels.covariances import gram
from lvmogp.model.bounds import collapsed
from lvmogp.model.layouts import GridData, LikelihoodData, ScatteredData, SparseData
from lvmogp.model.parameters import Parameters
from lvmogp.typing import Array, Float, Scalar


def log_likelihood(point: ChainParameters, data: LikelihoodData) -> Scalar:
    """Log p(Y | H, θ) (equations 30 and 31), of sparse data its bound (10) for latents that are known."""
    if isinstance(data, GridData):
        return _grid_log_likelihood(point, data)
    if isinstance(data, ScatteredData):
        return _scattered_log_likelihood(point, data)
    return _sparse_log_likelihood(point, data)


def _grid_log_likelihood(point: ChainParameters, data: GridData) -> Scalar:
    # Divided by the noise of their condition, outputs have the covariance I + K_H/(σσᵀ) ⊗ K_X.
    noise = data.noise(point.noise_per_condition)
    deviation = jnp.sqrt(noise)
    latent_gram = gram(point.latent_kernel, point.coordinates) / (deviation[:, None] * deviation)
    input_gram = gram(point.input_kernel, data.inputs)
    log_det, misfit = kronecker_evidence(input_gram, latent_gram, data.outputs / deviation)
    # −½ [N Σ_d log 2πσ_d² + log|I + K_H/(σσᵀ) ⊗ K_X| + misfit]
    return -(data.inputs.shape[0] * jnp.sum(LOG_2PI + jnp.log(noise)) + log_det + misfit) / 2


def _scattered_log_likelihood(point: ChainParameters, data: ScatteredData) -> Scalar:
    noise = data.noise(point.noise_per_condition)
    precision = data.present / jnp.sqrt(noise)
    # Gathered by rows, twice: backwards, rows are added up, which is many times faster than entries.
    among = gram(point.latent_kernel, point.coordinates)[data.conditions].T[data.conditions]
    # G = k_H(h_d, h_d') k_X(x, x')/(σ_d σ_d'), zero in empty places
    scaled = among * gram(point.input_kernel, data.inputs) * precision[:, None] * precision
    log_det, misfit = dense_evidence(scaled, data.outputs * precision)
    return -(data.present @ (LOG_2PI + jnp.log(noise)) + log_det + misfit) / 2


def _sparse_log_likelihood(point: ChainParameters, data: SparseData) -> Scalar:
    coordinates = point.coordinates
    known = Parameters(
        input_kernel=point.input_kernel,
        latent_kernel=point.latent_kernel,
        inducing_inputs=data.inducing_inputs,
        inducing_latents=coordinates[data.inducing_conditions],
        latent_mean=coordinates,
        latent_variance=jnp.zeros_like(coordinates),
        noise_variance=point.noise.variance,
    )
    return collapsed(known, data.observed).fit


def fitted_values(point: ChainParameters, data: LikelihoodData) -> Float[Array, "*shape"]:
    """Posterior mean of the function at each observation, in the layout of the outputs (equation 32)."""
    layout = data.observed if isinstance(data, SparseData) else data
    slope = jax.grad(lambda outputs: log_likelihood(point, _with_outputs(data, outputs)))(layout.outputs)
    # ⟨f⟩ = y + σ² ∂log p(y)/∂y, since the slope is −(K + Σ)⁻¹y
    return layout.outputs + layout.noise(point.noise_per_condition) * slope


def _with_outputs(data: Any, outputs: Array) -> Any:
    if isinstance(data, SparseData):
        return eqx.tree_at(lambda tree: tree.observed, data, _with_outputs(data.observed, outputs))
    if isinstance(data, GridData):
        return GridData(data.inputs, outputs, data.error_variance)  # which knows the squares of its outputs
    return eqx.tree_at(lambda tree: tree.outputs, data, outputs)
