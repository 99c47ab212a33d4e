"""Data in the forms whose likelihood is known once latents and hyperparameters are given."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.padding import rounded_up
from lvmogp.model.draws import covering_subset
from lvmogp.model.layouts import Data, GridData, LongData
from lvmogp.model.parameters import Parameters
from lvmogp.typing import Array, Float, HostInt, Int

# Beyond these sizes an exact likelihood takes longer than the sparse one.
_MOST_ON_A_SIDE = 600
_MOST_SCATTERED = 1_000
# Observations of a condition up to which its likelihood at many latents is cheap.
_MOST_PLACES = 64


class ScatteredData(eqx.Module):
    """Observations one by one, of any conditions in any order; ``present`` is 0 where a row is left empty.

    ``places`` are the rows of each condition, the number of all rows where there are none left. Conditions with very
    many have no places. ``error_variances`` of the measurements, where known, add to their noise; else they are zero.
    """

    inputs: Float[Array, "n Q_X"]
    outputs: Float[Array, " n"]
    conditions: Int[Array, " n"]
    present: Float[Array, " n"]
    places: Int[Array, "D b"]
    error_variances: Float[Array, " n"]

    def noise(self, of_conditions: Float[Array, " D"]) -> Float[Array, " n"]:
        """Noise variance of every observation, given that of every condition."""
        return of_conditions[self.conditions] + self.error_variances


class SparseData(eqx.Module):
    """Data with the inducing inputs of a variational fit, and the conditions whose latents are the inducing latents."""

    observed: Data
    inducing_inputs: Float[Array, "M_X Q_X"]
    inducing_conditions: Int[Array, " M_H"]


Observed = GridData | ScatteredData | SparseData


def observed(data: Data, parameters: Parameters) -> Observed:
    """Data in the form whose likelihood is exact while that is affordable, else sparse, by the points of a fit."""
    if isinstance(data, GridData):
        if max(data.outputs.shape) <= _MOST_ON_A_SIDE:
            return data
    elif data.n_observations <= _MOST_SCATTERED:
        return scattered(data)
    latents = np.asarray(parameters.latents.mean, dtype=float)
    subset = covering_subset(latents, parameters.inducing_latents.shape[0])
    return SparseData(data, parameters.inducing_inputs, jnp.asarray(subset))


def scattered(data: LongData) -> ScatteredData:
    """The observations of long data without their blocks."""
    present = np.asarray(data.present) > 0
    n_observations = int(present.sum())
    row = np.resize(np.flatnonzero(present), rounded_up(max(n_observations, 1)))
    filled = np.arange(len(row)) < n_observations
    condition = np.repeat(np.asarray(data.block_condition), present.shape[1])[row]
    errors = np.zeros(present.shape) if data.error_variances is None else np.asarray(data.error_variances)
    return ScatteredData(
        inputs=data.inputs.reshape(-1, data.inputs.shape[-1])[row],
        outputs=jnp.asarray(np.asarray(data.outputs).reshape(-1)[row] * filled),
        conditions=jnp.asarray(condition),
        present=jnp.asarray(filled.astype(float)),
        places=jnp.asarray(_places(np.where(filled, condition, -1), data.n_conditions)),
        error_variances=jnp.asarray(errors.reshape(-1)[row] * filled),
    )


def _places(conditions: HostInt, n_conditions: int) -> HostInt:
    counts = np.bincount(conditions[conditions >= 0], minlength=n_conditions)
    few = counts[counts <= _MOST_PLACES]
    places = np.full((n_conditions, max([1, *few])), len(conditions))
    for number in np.flatnonzero(counts <= _MOST_PLACES):
        places[number, : counts[number]] = np.flatnonzero(conditions == number)
    return places
