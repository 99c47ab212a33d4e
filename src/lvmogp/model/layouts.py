"""Data on the device, in standardised units: a complete grid, or rows by condition.

Markov chains have a likelihood of their own, for which rows by condition are laid out one by one: blocks would pad the
matrix over all observations, which costs the cube of its size.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.padding import BlockLayout, block_layout, repeated, rounded_up
from lvmogp.kernels.covariances import gram
from lvmogp.model.draws import covering_subset
from lvmogp.model.parameters import Kernels, Parameters
from lvmogp.tables.observations import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

# What the matrix of a block costs in bounds, in places: 5 with 10 inducing inputs, 40 with 50.
_MATRIX_COST = 16
# Beyond these sizes an exact likelihood takes longer than the sparse one.
_MOST_ON_A_SIDE = 600
_MOST_SCATTERED = 1_000
# Inputs of a grid up to which the products of all outputs are kept.
_MOST_OUTER = 2_000
# Observations of a condition up to which its likelihood at many latents is cheap.
_MOST_PLACES = 64


class GridData(eqx.Module):
    """Every condition observed at every input; ``squares`` are ‖y_d‖², which no parameter changes.

    Neither does one change ``outer``, YYᵀ, which is there unless it is much larger than Y. ``error_variance`` is the
    known variance s² of all measurements, which adds to their noise.
    """

    inputs: Float[Array, "N Q_X"]
    outputs: Float[Array, "N D"]
    squares: Float[Array, " D"]
    outer: Float[Array, "N N"] | None
    error_variance: Scalar | None

    def __init__(
        self, inputs: Float[Array, "N Q_X"], outputs: Float[Array, "N D"], error_variance: Scalar | None = None
    ) -> None:
        self.inputs, self.outputs, self.error_variance = inputs, outputs, error_variance
        self.squares = jnp.einsum("nd,nd->d", outputs, outputs)  # one program, where a sum of squares is two
        # A product with YYᵀ spares one with Y and one with Yᵀ, and takes as long as both where N = 2D.
        self.outer = outputs @ outputs.T if outputs.shape[0] <= min(2 * outputs.shape[1], _MOST_OUTER) else None

    def noise(self, of_conditions: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return σ² + s², the noise variance of an observation, given that of its condition."""
        return of_conditions if self.error_variance is None else of_conditions + self.error_variance

    def as_long(self) -> "LongData":
        """Return the same observations by condition, one block each."""
        shape = (self.n_conditions, len(self.inputs))
        errors = None if self.error_variance is None else jnp.broadcast_to(self.error_variance, shape)
        return LongData(
            inputs=jnp.broadcast_to(self.inputs, (shape[0], *self.inputs.shape)),
            outputs=self.outputs.T,
            present=jnp.ones(shape, self.outputs.dtype),
            block_condition=jnp.arange(shape[0]),
            counts=self.counts,
            error_variances=errors,
        )

    @property
    def counts(self) -> Float[Array, " D"]:
        """Observations of each condition, N_d = N."""
        return jnp.full(self.n_conditions, len(self.inputs), self.outputs.dtype)

    @property
    def n_conditions(self) -> int:
        """D."""
        return self.outputs.shape[1]

    @property
    def n_observations(self) -> int:
        """N · D."""
        return self.outputs.size


class LongData(eqx.Module):
    """Any number of observations of each condition, laid out in blocks of one condition each.

    A condition with many observations fills many blocks, one with few leaves its only block partly empty
    (``present`` is 0 there), so very uneven conditions cost no more than even ones. ``error_variances`` are the known
    variances s² of the measurements, which add to their noise.
    """

    inputs: Float[Array, "blocks places Q_X"]
    outputs: Float[Array, "blocks places"]
    present: Float[Array, "blocks places"]
    block_condition: Int[Array, " blocks"]
    counts: Float[Array, " D"]
    error_variances: Float[Array, "blocks places"] | None = None

    @property
    def n_conditions(self) -> int:
        """D."""
        return self.counts.shape[0]

    @property
    def n_observations(self) -> int:
        """Observations of all conditions together; a value, so not to be asked for in traced code."""
        return int(np.sum(np.asarray(self.counts)))

    def noise(self, of_conditions: Float[Array, " D"]) -> Float[Array, "blocks *places"]:
        """Return σ_d² + s², the noise variance of every observation or, where s² is zero, of every block."""
        of_blocks = of_conditions[self.block_condition][:, None]
        return of_blocks if self.error_variances is None else of_blocks + self.error_variances

    def sum_by_condition(self, block_values: Float[Array, "blocks *shape"]) -> Float[Array, "D *shape"]:
        """Return sums over the blocks of each condition."""
        return jax.ops.segment_sum(block_values, self.block_condition, self.n_conditions)


Data = GridData | LongData


class ScatteredData(eqx.Module):
    """Observations one by one, of any conditions in any order; ``present`` is 0 where a row is left empty.

    ``places`` are the rows of each condition, the number of all rows where there are none left. Conditions with very
    many have no places. ``error_variances`` of the measurements, where known, add to their noise; else they are zero.
    """

    inputs: Float[Array, "n Q_X"]
    outputs: Float[Array, " n"]
    conditions: Int[Array, " n"]
    present: Float[Array, " n"]
    places: Int[Array, "D places"]
    error_variances: Float[Array, " n"]

    def noise(self, of_conditions: Float[Array, " D"]) -> Float[Array, " n"]:
        """Return the noise variance of every observation, given that of every condition."""
        return of_conditions[self.conditions] + self.error_variances

    def gram(
        self, kernels: Kernels, latents: Float[Array, "D Q_H"], own: Float[Array, " D"], scale: Float[Array, " n"]
    ) -> Float[Array, "n n"]:
        """Return the covariance of the function between all observations, times the scales of both (equation 31)."""
        total = jnp.zeros((len(scale), len(scale)), scale.dtype)
        for term in kernels.terms:
            among = gram(term.input_kernel, self.inputs)
            if term.latent_kernel is not None:
                # Gathered by rows, twice: backwards, rows are added up, which is many times faster than entries.
                among = among * gram(term.latent_kernel, latents)[self.conditions].T[self.conditions]
            total = total + among
        if kernels.own is not None:
            same = self.conditions[:, None] == self.conditions
            total = total + jnp.where(same, own[self.conditions] * gram(kernels.own, self.inputs), 0.0)
        return total * scale[:, None] * scale


class SparseData(eqx.Module):
    """Data with the inducing inputs of a variational fit, and the conditions whose latents are the inducing latents."""

    observed: Data
    inducing_inputs: Float[Array, "M_X Q_X"]
    inducing_conditions: Int[Array, " M_H"]

    def parameters(
        self, kernels: Kernels, latents: Float[Array, "D Q_H"], noise: Float[Array, " noise"], own: Float[Array, " D"]
    ) -> Parameters:
        """Return the parameters of a sparse model whose latents are known."""
        return Parameters(
            kernels=kernels,
            inducing_inputs=self.inducing_inputs,
            inducing_latents=latents[self.inducing_conditions],
            latent_mean=latents,
            latent_variance=jnp.zeros_like(latents),
            noise_variance=noise,
            own_scale=None if kernels.own is None else own,
        )


LikelihoodData = GridData | ScatteredData | SparseData


def layout_for_bounds(conditions: HostInt, n_conditions: int) -> BlockLayout:
    """Lay rows out in the blocks of :class:`LongData`, each of which has a matrix to compute."""
    return block_layout(conditions, n_conditions, block_cost=_MATRIX_COST)


def long_data(
    inputs: HostFloat,
    outputs: HostFloat,
    conditions: HostInt,
    n_conditions: int,
    dtype: str = "float64",
    *,
    error_variances: HostFloat | None = None,
) -> LongData:
    """Lay out rows of (input, output, condition number) in blocks, with the variance of each measurement if known."""
    layout = layout_for_bounds(conditions, n_conditions)
    present = layout.present.astype(dtype)
    return LongData(
        inputs=jnp.asarray(inputs[layout.row], dtype),
        outputs=jnp.asarray(outputs[layout.row] * present, dtype),
        present=jnp.asarray(present),
        block_condition=jnp.asarray(layout.block_condition),
        counts=jnp.asarray(np.bincount(conditions, minlength=n_conditions).astype(dtype)),
        error_variances=None if error_variances is None else jnp.asarray(error_variances[layout.row], dtype),
    )


def standardised(observations: Observations, scaling: Scaling) -> Data:
    """Return the observations in standardised units: a grid if every condition was observed once at every input.

    A grid whose measurements have different errors has the long form, since they do not weigh the same.
    """
    errors = observations.errors
    errors = None if errors is None else scaling.error_variances(errors, observations.outputs)
    inputs, outputs = scaling.inputs(observations.inputs), scaling.outputs(observations.outputs)
    n_conditions = len(observations.ids)
    distinct, places = np.unique(inputs, axis=0, return_inverse=True)
    cells = places.reshape(-1) * n_conditions + observations.conditions
    is_even = errors is None or np.all(errors == errors[0])
    if is_even and len(np.unique(cells)) == len(cells) == len(distinct) * n_conditions:
        grid = np.empty(len(cells))
        grid[cells] = outputs
        error = None if errors is None else jnp.asarray(errors[0])
        return GridData(jnp.asarray(distinct), jnp.asarray(grid.reshape(len(distinct), n_conditions)), error)
    return long_data(inputs, outputs, observations.conditions, n_conditions, error_variances=errors)


def some_blocks(data: LongData, n_observations: int, seed: int) -> LongData:
    """Draw blocks at random that hold about this many observations, with the conditions they belong to."""
    filled = np.flatnonzero(np.asarray(data.present).any(axis=1))
    n_wanted = max(round(len(filled) * n_observations / data.n_observations), 1)
    chosen = np.sort(np.random.default_rng(seed).choice(filled, min(n_wanted, len(filled)), replace=False))
    _, numbers = np.unique(np.asarray(data.block_condition)[chosen], return_inverse=True)
    present = np.asarray(data.present)[chosen]
    return LongData(
        inputs=data.inputs[chosen],
        outputs=data.outputs[chosen],
        present=jnp.asarray(present),
        block_condition=jnp.asarray(numbers),
        counts=jnp.asarray(np.bincount(numbers, weights=present.sum(axis=1)), data.counts.dtype),
        error_variances=None if data.error_variances is None else data.error_variances[chosen],
    )


def likelihood_data(data: Data, parameters: Parameters) -> LikelihoodData:
    """Return data whose likelihood is exact while that is affordable, else sparse, by the points of a fit."""
    if isinstance(data, GridData) and parameters.kernels.is_plain:
        if max(data.outputs.shape) <= _MOST_ON_A_SIDE:
            return data
    elif data.n_observations <= _MOST_SCATTERED:
        return scattered(data.as_long() if isinstance(data, GridData) else data)
    subset = covering_subset(np.asarray(parameters.latents.mean, dtype=float), len(parameters.inducing_latents))
    return SparseData(data, parameters.inducing_inputs, jnp.asarray(subset))


def scattered(data: LongData) -> ScatteredData:
    """Return the observations of long data without their blocks."""
    place = np.flatnonzero(np.asarray(data.present))
    row = repeated(place, rounded_up(max(len(place), 1)))
    filled = np.arange(len(row)) < len(place)
    conditions = np.repeat(np.asarray(data.block_condition), data.present.shape[1])[row]
    errors = np.zeros(data.present.shape) if data.error_variances is None else np.asarray(data.error_variances)
    counts = np.asarray(data.counts, dtype=int)
    few = np.flatnonzero(counts <= _MOST_PLACES)
    places = np.full((len(counts), max([1, *counts[few]])), len(row))
    for number in few:
        places[number, : counts[number]] = np.flatnonzero(filled & (conditions == number))
    return ScatteredData(
        inputs=data.inputs.reshape(-1, data.inputs.shape[-1])[row],
        outputs=jnp.asarray(np.asarray(data.outputs).reshape(-1)[row] * filled),
        conditions=jnp.asarray(conditions),
        present=jnp.asarray(filled.astype(float)),
        places=jnp.asarray(places),
        error_variances=jnp.asarray(errors.reshape(-1)[row] * filled),
    )
