"""The two forms of data, in standardised units: a complete grid, and long form with uneven conditions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.padding import BlockLayout, block_layout
from lvmogp.tables.reading import Observations
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import Array, Float, HostFloat, HostInt, Int, Scalar

# What the matrix of a block costs in bounds, in places: 5 with 10 inducing inputs, 40 with 50.
_MATRIX_COST = 16


class GridData(eqx.Module):
    """Every condition observed at every input; ``squares`` are ‖y_d‖², which no parameter changes.

    ``error_variance`` is the known variance s² of all measurements, which adds to their noise.
    """

    inputs: Float[Array, "N Q_X"]
    outputs: Float[Array, "N D"]
    squares: Float[Array, " D"]
    error_variance: Scalar | None

    def __init__(
        self, inputs: Float[Array, "N Q_X"], outputs: Float[Array, "N D"], error_variance: Scalar | None = None
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.squares = jnp.einsum("nd,nd->d", outputs, outputs)  # one program, where a sum of squares is two
        self.error_variance = error_variance

    def noise(self, of_conditions: Float[Array, "*S"]) -> Float[Array, "*S"]:
        """σ² + s², the noise variance of an observation, given that of its condition."""
        return of_conditions if self.error_variance is None else of_conditions + self.error_variance

    @property
    def counts(self) -> Float[Array, " D"]:
        """Observations of each condition, N_d = N."""
        n_inputs, n_conditions = self.outputs.shape
        return jnp.full(n_conditions, n_inputs, self.outputs.dtype)

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

    inputs: Float[Array, "B b Q_X"]
    outputs: Float[Array, "B b"]
    present: Float[Array, "B b"]
    block_condition: Int[Array, " B"]
    counts: Float[Array, " D"]
    error_variances: Float[Array, "B b"] | None = None

    @property
    def n_conditions(self) -> int:
        """D."""
        return self.counts.shape[0]

    @property
    def n_observations(self) -> int:
        """Observations of all conditions together; a value, so not to be asked for in traced code."""
        return int(np.sum(np.asarray(self.counts)))

    def noise(self, of_conditions: Float[Array, " D"]) -> Float[Array, "B *b"]:
        """σ_d² + s², the noise variance of every observation or, where s² is zero, of every block."""
        of_blocks = of_conditions[self.block_condition][:, None]
        return of_blocks if self.error_variances is None else of_blocks + self.error_variances

    def sum_by_condition(self, block_values: Float[Array, "B *S"]) -> Float[Array, "D *S"]:
        """Sum over the blocks of each condition."""
        return jax.ops.segment_sum(block_values, self.block_condition, self.n_conditions)


Data = GridData | LongData


def layout_for_bounds(conditions: HostInt, n_conditions: int) -> BlockLayout:
    """Blocks as they are laid out in :class:`LongData`, where each has a matrix to compute."""
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
    """The observations in standardised units: a grid if every condition was observed once at every input.

    A grid whose measurements have different errors has the long form, since they do not weigh the same.
    """
    errors = observations.errors
    if errors is not None:
        errors = scaling.error_variances(errors, observations.outputs)
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
    """Blocks drawn at random that hold about this many observations, with the conditions they belong to."""
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


def grid_as_long(data: GridData) -> LongData:
    """The same observations in long form."""
    n_inputs, n_conditions = data.outputs.shape
    return long_data(
        np.tile(np.asarray(data.inputs), (n_conditions, 1)),
        np.asarray(data.outputs).T.ravel(),
        np.repeat(np.arange(n_conditions), n_inputs),
        n_conditions,
        str(data.outputs.dtype),
        error_variances=None if data.error_variance is None else np.full(data.outputs.size, data.error_variance),
    )
