"""Standardising inputs and outputs, and undoing it."""

from typing import Annotated, NamedTuple, TypeVar

import numpy as np

from lvmogp.errors import DataError
from lvmogp.ground.rules import POSITIVE
from lvmogp.tables.transforms import Transform
from lvmogp.typing import Array, Float, HostFloat

# Squares of what lies beyond are infinite or zero in double precision.
LARGEST, SMALLEST = 1e140, 1e-140
# Equal values can have a standard deviation of this size, relative to theirs; that is not a scale.
_ROUNDING = 8 * np.finfo(float).eps
# Bands around a constant should hold thousands of floats, also where the next one is far away.
_RESOLVED = 2.0**-40
AnyArray = TypeVar("AnyArray", np.ndarray, Array)


class Scaling(NamedTuple):
    """Shift and scale of each input column and of the output, after a transform of the output if there is one."""

    input_mean: Float[np.ndarray, " Q_X"]
    input_scale: Annotated[Float[np.ndarray, " Q_X"], POSITIVE]
    output_mean: float
    output_scale: Annotated[float, POSITIVE]
    transform: Transform | None = None

    def inputs(self, inputs: HostFloat) -> HostFloat:
        """Inputs in standardised units."""
        return (inputs - self.input_mean) / self.input_scale

    def outputs(self, outputs: HostFloat) -> HostFloat:
        """Outputs in standardised units."""
        modelled = outputs if self.transform is None else self.transform.forward(outputs)
        return (modelled - self.output_mean) / self.output_scale

    def takes(self, outputs: HostFloat) -> np.ndarray:
        """Whether outputs can be standardised, as those without a logarithm cannot."""
        return np.ones(outputs.shape, dtype=bool) if self.transform is None else self.transform.takes(outputs)

    def are_lowest(self, outputs: HostFloat) -> np.ndarray:
        """Whether outputs are the one that all smaller values stand for as well."""
        lowest = None if self.transform is None else self.transform.lowest
        return np.zeros(outputs.shape, dtype=bool) if lowest is None else outputs == lowest

    def log_slopes(self, outputs: HostFloat) -> HostFloat:
        """Logarithms of how much standardised outputs change with the user's: log dz/dy."""
        own = np.zeros(outputs.shape) if self.transform is None else self.transform.log_slope(outputs)
        return own - np.log(self.output_scale)

    def error_variances(self, errors: HostFloat, outputs: HostFloat) -> HostFloat:
        """Variances of measurements in standardised units."""
        own = errors if self.transform is None else self.transform.errors(errors, outputs)
        return (own / self.output_scale) ** 2

    def location(self, values: AnyArray) -> AnyArray:
        """Standardised values of what is modelled (the output, or its transform) in its own units."""
        return values * self.output_scale + self.output_mean

    def variance(self, variances: AnyArray) -> AnyArray:
        """Standardised variances of what is modelled in its own units."""
        return variances * self.output_scale**2

    def quantity(self, values: HostFloat) -> HostFloat:
        """Standardised values as outputs in the user's units; right for quantiles and samples."""
        located = self.location(values)
        return located if self.transform is None else self.transform.backward(located)

    @property
    def transform_name(self) -> str | None:
        """The transform as users name it."""
        return None if self.transform is None else self.transform.name

    def label(self, output: str) -> str:
        """What is modelled, for an output of this name."""
        return output if self.transform is None else f"{self.transform.name} {output}"


class ColumnMoments(NamedTuple):
    """Count, mean and sum of squared deviations of each column, what is modelled being the last.

    ``largest`` is the largest size of each column, followed by that of the outputs before their transform.
    """

    n_rows: float
    mean: HostFloat
    squares: HostFloat
    largest: HostFloat

    def merged(self, other: "ColumnMoments") -> "ColumnMoments":
        """Return the moments of both sets of rows together."""
        total = self.n_rows + other.n_rows
        apart = other.mean - self.mean
        return ColumnMoments(
            total,
            self.mean + apart * (other.n_rows / total),
            self.squares + other.squares + apart**2 * (self.n_rows * other.n_rows / total),
            np.maximum(self.largest, other.largest),
        )


def column_moments(inputs: HostFloat, outputs: HostFloat, *, transform: Transform | None = None) -> ColumnMoments:
    """Return the moments of the inputs and of the outputs, after their transform if there is one."""
    if transform is not None and (n_bad := int(np.sum(~transform.takes(outputs)))):
        raise DataError(
            f'output_transform="{transform.name}" needs {transform.demand}, but {n_bad} of {len(outputs)} are '
            f"{transform.fault}; leave it out, or shift the outputs"
        )
    inputs, outputs = inputs.astype(float, copy=False), outputs.astype(float, copy=False)
    values = outputs if transform is None else transform.forward(outputs)
    means, squares = [], []
    with np.errstate(over="ignore", invalid="ignore"):  # too large a column is refused later, in words
        for columns in (inputs, values):
            # From the first row on: sums over many equal values round, and would make a scale of what is constant.
            apart = columns - columns[0]
            means.append(columns[0] + apart.mean(axis=0))
            squares.append(np.sum((apart - apart.mean(axis=0)) ** 2, axis=0))
    largest = [np.abs(columns).max(axis=0) for columns in (inputs, values, outputs)]
    return ColumnMoments(float(len(outputs)), np.hstack(means), np.hstack(squares), np.hstack(largest))


def scaling_from(moments: ColumnMoments, *, transform: Transform | None = None) -> Scaling:
    """Return shifts and scales of columns with these moments; what does not vary is shifted only."""
    *inputs, modelled, outputs = moments.largest
    largest = np.asarray([*inputs, outputs])
    bad = np.flatnonzero((largest > LARGEST) | ((largest > 0) & (largest < SMALLEST)))
    if len(bad):
        name = "the output" if bad[0] == len(inputs) else f"input column {bad[0]}"
        raise DataError(
            f"{name} has values of the size of {largest[bad[0]]:.3g}, too extreme to compute with; change its unit so "
            f"that the largest lies between {SMALLEST:g} and {LARGEST:g}"
        )
    scale = positive_scale(np.sqrt(moments.squares / moments.n_rows), np.asarray([*inputs, modelled]))
    return Scaling(moments.mean[:-1], scale[:-1], float(moments.mean[-1]), float(scale[-1]), transform)


def scaling_of(inputs: HostFloat, outputs: HostFloat, *, transform: Transform | None = None) -> Scaling:
    """Return shifts and scales of training data; what does not vary is shifted only."""
    return scaling_from(column_moments(inputs, outputs, transform=transform), transform=transform)


def differs_in_last_digits_only(values: HostFloat) -> np.ndarray:
    """Whether each column varies, but so little that it counts as constant."""
    return (np.ptp(values, axis=0) > 0) & (values.std(axis=0) <= _ROUNDING * np.abs(values).max(axis=0))


def positive_scale(deviation: HostFloat, largest: HostFloat) -> HostFloat:
    """Return standard deviations to divide by: of what does not vary one, or what floats of its size can still tell."""
    return np.where(deviation > _ROUNDING * largest, deviation, np.maximum(1.0, _RESOLVED * largest))
