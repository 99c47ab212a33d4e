"""Standardising inputs and outputs, and undoing it."""

from typing import NamedTuple, TypeVar

import numpy as np

from lvmogp.errors import DataError
from lvmogp.typing import Array, HostFloat

# Squares of what lies beyond are infinite or zero in double precision.
LARGEST, SMALLEST = 1e140, 1e-140
# Equal values can have a standard deviation of this size, relative to theirs; that is not a scale.
_ROUNDING = 8 * np.finfo(float).eps
# Bands around a constant should hold thousands of floats, also where the next one is far away.
_RESOLVED = 2.0**-40
AnyArray = TypeVar("AnyArray", np.ndarray, Array)


class Scaling(NamedTuple):
    """Shift and scale of each input column and of the output, with an optional logarithm of the output first."""

    input_mean: HostFloat
    input_scale: HostFloat
    output_mean: float
    output_scale: float
    log_output: bool

    def inputs(self, inputs: HostFloat) -> HostFloat:
        """Inputs in standardised units."""
        return (inputs - self.input_mean) / self.input_scale

    def outputs(self, outputs: HostFloat) -> HostFloat:
        """Outputs in standardised units."""
        values = np.log(outputs) if self.log_output else outputs
        return (values - self.output_mean) / self.output_scale

    def error_variances(self, errors: HostFloat, outputs: HostFloat) -> HostFloat:
        """Variances of measurements in standardised units; errors s of y are errors s/y of log y."""
        own = errors / outputs if self.log_output else errors
        return (own / self.output_scale) ** 2

    def location(self, values: AnyArray) -> AnyArray:
        """Standardised values of the modelled quantity (the output or its logarithm) in its own units."""
        return values * self.output_scale + self.output_mean

    def variance(self, variances: AnyArray) -> AnyArray:
        """Standardised variances of the modelled quantity in its own units."""
        return variances * self.output_scale**2

    def quantity(self, values: HostFloat) -> HostFloat:
        """Standardised values as outputs in the user's units; right for quantiles and samples."""
        located = self.location(values)
        return np.exp(located) if self.log_output else located


def scaling_of(inputs: HostFloat, outputs: HostFloat, *, log_output: bool) -> Scaling:
    """Shifts and scales of the training data; what does not vary is shifted only."""
    if log_output and np.any(outputs <= 0):
        raise DataError(
            f'output_transform="log" needs positive outputs, but {int(np.sum(outputs <= 0))} of {len(outputs)} are '
            "zero or negative; leave it out, or shift the outputs"
        )
    values = np.log(outputs) if log_output else outputs
    check_sizes(np.append(_largest(inputs), _largest(outputs)))
    return Scaling(
        input_mean=inputs.mean(axis=0),
        input_scale=_scale(inputs),
        output_mean=float(values.mean()),
        output_scale=float(_scale(values)),
        log_output=log_output,
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
