"""The likelihood of data once latents and hyperparameters are given, with the function behind them integrated out."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.bounds import collapsed
from lvmogp.data import Data, GridData, LongData, rounded_up
from lvmogp.draws import covering_subset
from lvmogp.gaussians import LOG_2PI
from lvmogp.kernels import gram
from lvmogp.kronecker import kronecker_evidence
from lvmogp.linalg import dense_evidence
from lvmogp.parameters import Parameters
from lvmogp.typing import Array, Float, Int, Scalar
from lvmogp.unknowns import Unknowns

# Beyond these sizes an exact likelihood takes longer than the sparse one.
_MOST_ON_A_SIDE = 600
_MOST_SCATTERED = 1_000


class ScatteredData(eqx.Module):
    """Observations one by one, of any conditions in any order; ``present`` is 0 where a place is left empty."""

    inputs: Float[Array, "n Q_X"]
    outputs: Float[Array, " n"]
    condition: Int[Array, " n"]
    present: Float[Array, " n"]


class SparseData(eqx.Module):
    """Data with the inducing inputs of a variational fit, and the conditions whose latents are the inducing latents."""

    data: Data
    inducing_inputs: Float[Array, "M_X Q_X"]
    subset: Int[Array, " M_H"]


Observed = GridData | ScatteredData | SparseData


def observed(data: Data, parameters: Parameters) -> Observed:
    """Data in the form whose likelihood is exact while that is affordable, else sparse, by the points of a fit."""
    if isinstance(data, GridData):
        if max(data.outputs.shape) <= _MOST_ON_A_SIDE:
            return data
    elif data.n_observations <= _MOST_SCATTERED:
        return scattered(data)
    subset = covering_subset(np.asarray(parameters.latent_mean), parameters.inducing_latents.shape[0])
    return SparseData(data, parameters.inducing_inputs, jnp.asarray(subset))


def scattered(data: LongData) -> ScatteredData:
    """The observations of long data without their blocks."""
    present = np.asarray(data.present) > 0
    n_observations = int(present.sum())
    row = np.resize(np.flatnonzero(present), rounded_up(max(n_observations, 1)))
    filled = (np.arange(len(row)) < n_observations).astype(float)
    condition = np.repeat(np.asarray(data.block_condition), present.shape[1])
    return ScatteredData(
        inputs=data.inputs.reshape(-1, data.inputs.shape[-1])[row],
        outputs=jnp.asarray(np.asarray(data.outputs).reshape(-1)[row] * filled),
        condition=jnp.asarray(condition[row]),
        present=jnp.asarray(filled),
    )


def log_likelihood(unknowns: Unknowns, data: Observed) -> Scalar:
    """Log p(Y | H, θ) (equations 30 and 31), of sparse data its bound (10) for latents that are known."""
    if isinstance(data, GridData):
        return _grid_log_likelihood(unknowns, data)
    if isinstance(data, ScatteredData):
        return _scattered_log_likelihood(unknowns, data)
    return _sparse_log_likelihood(unknowns, data)


def _grid_log_likelihood(unknowns: Unknowns, data: GridData) -> Scalar:
    # Divided by the noise of their condition, outputs have the covariance I + K_H/(σσᵀ) ⊗ K_X.
    noise = unknowns.noise_per_condition
    deviation = jnp.sqrt(noise)
    latent_gram = gram(unknowns.latent_kernel, unknowns.latents) / (deviation[:, None] * deviation)
    input_gram = gram(unknowns.input_kernel, data.inputs)
    log_det, misfit = kronecker_evidence(input_gram, latent_gram, data.outputs / deviation)
    # −½ [N Σ_d log 2πσ_d² + log|I + K_H/(σσᵀ) ⊗ K_X| + misfit]
    return -(data.inputs.shape[0] * jnp.sum(LOG_2PI + jnp.log(noise)) + log_det + misfit) / 2


def _scattered_log_likelihood(unknowns: Unknowns, data: ScatteredData) -> Scalar:
    noise = unknowns.noise_per_condition[data.condition]
    precision = data.present / jnp.sqrt(noise)
    # Gathered by rows, twice: backwards, rows are added up, which is many times faster than entries.
    among = gram(unknowns.latent_kernel, unknowns.latents)[data.condition].T[data.condition]
    # G = k_H(h_d, h_d') k_X(x, x')/(σ_d σ_d'), zero in empty places
    scaled = among * gram(unknowns.input_kernel, data.inputs) * precision[:, None] * precision
    log_det, misfit = dense_evidence(scaled, data.outputs * precision)
    return -(data.present @ (LOG_2PI + jnp.log(noise)) + log_det + misfit) / 2


def _sparse_log_likelihood(unknowns: Unknowns, data: SparseData) -> Scalar:
    known = Parameters(
        input_kernel=unknowns.input_kernel,
        latent_kernel=unknowns.latent_kernel,
        inducing_inputs=data.inducing_inputs,
        inducing_latents=unknowns.latents[data.subset],
        latent_mean=unknowns.latents,
        latent_variance=jnp.zeros_like(unknowns.latents),
        noise_variance=unknowns.noise_variance,
    )
    return collapsed(known, data.data).fit


def fitted_values(unknowns: Unknowns, data: Observed) -> Float[Array, "*S"]:
    """Posterior mean of the function at each observation, in the layout of the outputs (equation 32)."""
    layout = data.data if isinstance(data, SparseData) else data
    slope = jax.grad(lambda outputs: log_likelihood(unknowns, _with_outputs(data, outputs)))(layout.outputs)
    noise = unknowns.noise_per_condition
    if isinstance(layout, ScatteredData):
        noise = noise[layout.condition]
    elif isinstance(layout, LongData):
        noise = noise[layout.block_condition][:, None]
    # ⟨f⟩ = y + σ² ∂log p(y)/∂y, since the slope is −(K + Σ)⁻¹y
    return layout.outputs + noise * slope


def _with_outputs(data: Any, outputs: Array) -> Any:
    # The same form of data with other outputs.
    if isinstance(data, SparseData):
        return eqx.tree_at(lambda tree: tree.data, data, _with_outputs(data.data, outputs))
    if isinstance(data, GridData):
        return GridData(data.inputs, outputs)  # which knows the squares of its outputs
    return eqx.tree_at(lambda tree: tree.outputs, data, outputs)
