"""Standardising inputs and outputs, and undoing it."""

from typing import Annotated, NamedTuple, TypeVar

import numpy as np

from lvmogp.errors import DataError
from lvmogp.ground.rules import POSITIVE
from lvmogp.tables.transforms import Transform, check_outputs
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
        return (self._transformed(outputs) - self.output_mean) / self.output_scale

    def _transformed(self, outputs: HostFloat) -> HostFloat:
        return outputs if self.transform is None else self.transform.forward(outputs)

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


def scaling_of(inputs: HostFloat, outputs: HostFloat, *, transform: Transform | None = None) -> Scaling:
    """Shifts and scales of the training data; what does not vary is shifted only."""
    check_outputs(transform, outputs)
    values = outputs if transform is None else transform.forward(outputs)
    check_sizes(np.append(_largest(inputs), _largest(outputs)))
    return Scaling(
        input_mean=inputs.mean(axis=0),
        input_scale=_scale(inputs),
        output_mean=float(values.mean()),
        output_scale=float(_scale(values)),
        transform=transform,
    )


def check_sizes(largest: HostFloat) -> None:
    """Refuse columns whose largest sizes are these, the output being the last, where their squares cannot be held."""
    bad = np.flatnonzero((largest > LARGEST) | ((largest > 0) & (largest < SMALLEST)))
    if len(bad):
        name = "the output" if bad[0] == len(largest) - 1 else f"input column {bad[0]}"
        raise DataError(
            f"{name} has values of the size of {largest[bad[0]]:.3g}, too extreme to compute with; change its unit so "
            f"that the largest lies between {SMALLEST:g} and {LARGEST:g}"
        )


def differs_in_last_digits_only(values: HostFloat) -> np.ndarray:
    """Whether each column varies, but so little that it counts as constant."""
    largest = _largest(values)
    return (np.ptp(values, axis=0) > 0) & (values.std(axis=0) <= _ROUNDING * largest)


def _largest(values: HostFloat) -> HostFloat:
    return np.asarray(np.abs(values).max(axis=0))


def _scale(values: HostFloat) -> HostFloat:
    return positive_scale(np.asarray(values.std(axis=0)), _largest(values))


def positive_scale(deviation: HostFloat | np.floating, largest: HostFloat | np.floating) -> HostFloat:
    """Standard deviations to divide by: where a column does not vary one, or what floats of its size can still tell."""
    return np.where(deviation > _ROUNDING * largest, deviation, np.maximum(1.0, _RESOLVED * largest))
