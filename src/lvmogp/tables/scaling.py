"""Standardising inputs and outputs, after transforms of theirs if there are any, and undoing it.

A model of g = t(y) takes g for Gaussian given all latents. For each t here, mean and covariance of y = t⁻¹(g) follow in
closed form (docs/mathematics.md, equation 54). Each says in words what it demands of outputs and what is wrong with
those that it cannot take, and which output, if there is one, all smaller g stand for as well (``lowest``).
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from lvmogp.algebra.gaussians import normal_distribution
from lvmogp.errors import DataError
from lvmogp.ground.rules import ANY_VALUE, POSITIVE, Below
from lvmogp.typing import Array, Float, HostFloat

# Terms of a series whose rest is below a thousandth where it matters most, at a mean of zero.
_N_SLOPES = 8
# Squares of what lies beyond are infinite or zero in double precision.
LARGEST, SMALLEST = 1e140, 1e-140
# Equal values can have a standard deviation of this size, relative to theirs; that is not a scale.
_ROUNDING = 8 * np.finfo(float).eps
# Bands around a constant should hold thousands of floats, also where the next one is far away.
_RESOLVED = 2.0**-40
# Quartiles that are this far apart suggest a logarithm.
_MANY_FOLD = 6.0
AnyArray = TypeVar("AnyArray", np.ndarray, Array)


class Logarithm(eqx.Module):
    """The logarithm g = log y of a positive output."""

    name: ClassVar[str] = "log"
    demand: ClassVar[str] = "positive outputs"
    fault: ClassVar[str] = "zero or negative"
    lowest: ClassVar[float | None] = None

    def forward(self, outputs: HostFloat) -> HostFloat:
        """t(y) = log y."""
        return np.log(outputs)

    def backward(self, values: HostFloat) -> HostFloat:
        """t⁻¹(g) = exp g."""
        return np.exp(values)

    def takes(self, outputs: HostFloat) -> np.ndarray:
        """Whether there is a t(y), y > 0; what is missing may be anything."""
        return ~(outputs <= 0)

    def log_slope(self, outputs: HostFloat) -> HostFloat:
        """Return log t'(y) = −log y, since d log y = dy/y."""
        return -np.log(outputs)

    def errors(self, errors: HostFloat, outputs: HostFloat) -> HostFloat:
        """Standard deviations of t(y) that follow from those of y: s/y, to first order."""
        return errors / outputs

    def mean(self, mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """⟨y⟩ = exp(m + v/2) of a Gaussian g."""
        return jnp.exp(mean + variance / 2)

    def excess(self, mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """⟨y⟩ − 1 = exp(m + v/2) − 1, with all its digits where ⟨y⟩ is near one."""
        return jnp.expm1(mean + variance / 2)

    def variance(self, mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Var y = (exp v − 1) ⟨y⟩²."""
        return jnp.expm1(variance) * self.mean(mean, variance) ** 2

    def covariance(self, mean: Float[Array, " n"], covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """cov(y, y') = (exp c − 1) ⟨y⟩⟨y'⟩ of jointly Gaussian g."""
        centre = self.mean(mean, jnp.diag(covariance))
        return jnp.expm1(covariance) * jnp.outer(centre, centre)

    def divided(self, location: float, scale: float, outputs: HostFloat) -> tuple[HostFloat, HostFloat]:
        """Location and scale of t⁻¹(l + sf) divided by outputs: exp(l + sf)/y = exp(l − log y + sf)."""
        return location - np.log(outputs), np.full_like(outputs, scale)


class SquareRoot(eqx.Module):
    """The root g = √y of an output that is not negative; y = max(g, 0)², so that zero stands for all g ≤ 0."""

    name: ClassVar[str] = "sqrt"
    demand: ClassVar[str] = "outputs of zero or more"
    fault: ClassVar[str] = "negative"
    lowest: ClassVar[float | None] = 0.0

    def forward(self, outputs: HostFloat) -> HostFloat:
        """√y."""
        return np.sqrt(outputs)

    def backward(self, values: HostFloat) -> HostFloat:
        """max(g, 0)²."""
        return np.maximum(values, 0.0) ** 2

    def takes(self, outputs: HostFloat) -> np.ndarray:
        """Whether y ≥ 0."""
        return ~(outputs < 0)

    def log_slope(self, outputs: HostFloat) -> HostFloat:
        """−log 2√y, since d√y = dy/2√y; infinite where y is zero."""
        with np.errstate(divide="ignore"):
            return -np.log(2 * np.sqrt(outputs))

    def errors(self, errors: HostFloat, outputs: HostFloat) -> HostFloat:
        """½(√(y + s) − √(y − s)), which is s/2√y to first order and holds where y < s, at √(y + s)/2."""
        return (np.sqrt(outputs + errors) - np.sqrt(np.maximum(outputs - errors, 0))) / 2

    def mean(self, mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """⟨max(g, 0)²⟩, which is m² + v less the part below zero."""
        below, _, above, _ = _parts_of_powers(mean, variance)
        return jnp.where(mean > 0, mean**2 + variance - below, above)

    def excess(self, mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """(m − 1)(m + 1) + v less the part below zero."""
        below, _, above, _ = _parts_of_powers(mean, variance)
        return jnp.where(mean > 0, (mean - 1) * (mean + 1) + variance - below, above - 1)

    def variance(self, mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """4m²v + 2v² of g², less what the parts below zero have in it; each form where it loses no digits."""
        below, fourth_below, above, fourth_above = _parts_of_powers(mean, variance)
        lost = fourth_below + below**2 - 2 * (mean**2 + variance) * below
        return jnp.where(mean > 0, 4 * mean**2 * variance + 2 * variance**2 - lost, fourth_above - above**2)

    def covariance(self, mean: Float[Array, " n"], covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """Σ_k cᵏ/k! ⟨t⁽ᵏ⁾(g)⟩⟨t⁽ᵏ⁾(g')⟩ with t = max(g, 0)², on the diagonal what it adds up to."""
        variance = jnp.diag(covariance)
        deviation = jnp.sqrt(variance)
        correlation = covariance / jnp.outer(deviation, deviation)
        total, power = jnp.zeros_like(covariance), jnp.ones_like(covariance)
        for slope in _slopes_of_square(mean, deviation):
            power = power * correlation
            total = total + power * jnp.outer(slope, slope)
        return total - jnp.diag(jnp.diag(total)) + jnp.diag(self.variance(mean, variance))

    def divided(self, location: float, scale: float, outputs: HostFloat) -> tuple[HostFloat, HostFloat]:
        """max(l + sf, 0)²/y = max(l/√y + sf/√y, 0)²."""
        root = np.sqrt(outputs)
        return location / root, scale / root


def _parts_of_powers(mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> tuple[Array, Array, Array, Array]:
    """⟨g²⟩ and ⟨g⁴⟩ over g < 0, then over g > 0.

    With a = m/√v, those over g < 0 are v [(a² + 1) Φ(−a) − aφ(a)] and v² [(a⁴ + 6a² + 3) Φ(−a) − (a³ + 5a) φ(a)].
    """
    score = mean / jnp.sqrt(variance)
    density = norm.pdf(score)

    def above(score: Array) -> tuple[Array, Array]:
        whole = normal_distribution(score)
        square = (score**2 + 1) * whole + score * density
        fourth = (score**4 + 6 * score**2 + 3) * whole + (score**3 + 5 * score) * density
        return variance * jnp.maximum(square, 0), variance**2 * jnp.maximum(fourth, 0)

    return *above(-score), *above(score)


def _slopes_of_square(mean: Float[Array, " n"], deviation: Float[Array, " n"]) -> list[Float[Array, " n"]]:
    """sᵏ⟨t⁽ᵏ⁾(g)⟩/√k! of t = max(g, 0)² for k = 1 … N_SLOPES, s being the deviation of g.

    ⟨t'⟩ = 2(mΦ(a) + sφ(a)), ⟨t''⟩ = 2Φ(a), and from there on 2(−1)ᵏ⁻³ He_{k−3}(a) φ(a)/sᵏ⁻².
    """
    score = mean / deviation
    density = norm.pdf(score)
    slopes = [score * normal_distribution(score) + density, normal_distribution(score)]
    lower, hermite = jnp.zeros_like(score), jnp.ones_like(score)
    for order in range(_N_SLOPES - len(slopes)):
        slopes.append((-1) ** order * hermite * density)
        lower, hermite = hermite, score * hermite - order * lower  # He_{k+1} = a He_k − k He_{k−1}
    return [2 * deviation**2 * slope / math.factorial(k) ** 0.5 for k, slope in enumerate(slopes, start=1)]


Transform = Logarithm | SquareRoot
# By the names that users give; with None the output itself is modelled.
TRANSFORMS: dict[str | None, Transform | None] = {None: None, "log": Logarithm(), "sqrt": SquareRoot()}


# Logarithms of inputs


def with_logarithms(inputs: HostFloat, columns: tuple[int, ...]) -> HostFloat:
    """Return inputs with the logarithms of some columns in their place."""
    return _mapped_columns(np.log, inputs, columns)


def _mapped_columns(function: Callable[[HostFloat], HostFloat], values: HostFloat, columns: Sequence[int]) -> HostFloat:
    if not columns:
        return values
    mapped, places = np.array(values, dtype=float), list(columns)
    mapped[..., places] = function(mapped[..., places])
    return mapped


def check_positive(inputs: HostFloat, columns: tuple[int, ...], names: Sequence[str | int], advice: str = "") -> None:
    """Refuse inputs without a logarithm in columns of which it is taken."""
    for column in columns:
        values = inputs[:, column]
        if n_wrong := int(np.sum(values <= 0)):
            raise DataError(
                f"column {names[column]!r} of X must be positive, since its logarithm is modelled (input_transform), "
                f"but {n_wrong} of {len(values)} values are not, the lowest {values.min():g}{advice}"
            )


def spans_a_magnitude(values: HostFloat) -> bool:
    """Whether a logarithm is worth trying: values are positive, and the largest is ten times the smallest."""
    return bool(np.min(values) > 0 and np.max(values) >= 10 * np.min(values))


def is_spread_over_magnitudes(values: HostFloat) -> bool:
    """Whether values are positive and span orders of magnitude, more than a few near zero or far out would make them.

    Of values spread evenly from nearly zero on, the quartiles are apart by a factor of three, by five of exponential
    ones; of those spread evenly over two orders of magnitude, by ten.
    """
    if not np.min(values) > 0:
        return False
    lower, upper = np.quantile(values, [0.25, 0.75])
    return bool(upper >= _MANY_FOLD * lower)


# Shifts and scales


class Scaling(NamedTuple):
    """Shift and scale of each input column and of the output, after a transform of the output if there is one.

    ``log_columns`` are the numbers of those input columns whose logarithms stand for them.
    """

    input_mean: Float[np.ndarray, " Q_X"]
    input_scale: Annotated[Float[np.ndarray, " Q_X"], POSITIVE]
    output_mean: float
    output_scale: Annotated[float, POSITIVE]
    transform: Transform | None = None
    log_columns: tuple[Annotated[int, Below("Q_X")], ...] = ()

    def inputs(self, inputs: HostFloat) -> HostFloat:
        """Inputs in standardised units."""
        return (self.transformed_inputs(inputs) - self.input_mean) / self.input_scale

    def transformed_inputs(self, inputs: HostFloat) -> HostFloat:
        """Inputs with the logarithms of those columns that have them, not standardised yet."""
        return with_logarithms(inputs, self.log_columns)

    def restored_inputs(self, values: HostFloat) -> HostFloat:
        """Inputs in the user's units, from those with logarithms."""
        return _mapped_columns(np.exp, values, self.log_columns)

    def input_slopes(self, inputs: HostFloat) -> HostFloat:
        """How much standardised inputs change with the user's: 1/s, and 1/(xs) of a logarithm, since d log x = dx/x."""
        units = np.broadcast_to(self.input_scale, inputs.shape).copy()
        columns = list(self.log_columns)
        units[..., columns] *= inputs[..., columns]
        return 1 / units

    def input_labels(self, names: Sequence[str]) -> list[str]:
        """What is modelled, for inputs of these names."""
        return [f"log {name}" if column in self.log_columns else name for column, name in enumerate(names)]

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
    mean: Annotated[Float[np.ndarray, " _"], ANY_VALUE]
    squares: Annotated[Float[np.ndarray, " _"], ANY_VALUE]
    largest: Annotated[Float[np.ndarray, " _"], ANY_VALUE]

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


def column_moments(
    inputs: HostFloat, outputs: HostFloat, *, transform: Transform | None = None, log_columns: tuple[int, ...] = ()
) -> ColumnMoments:
    """Return the moments of the inputs and of the outputs, after transforms of theirs if there are any."""
    if transform is not None and (n_bad := int(np.sum(~transform.takes(outputs)))):
        raise DataError(
            f'output_transform="{transform.name}" needs {transform.demand}, but {n_bad} of {len(outputs)} are '
            f"{transform.fault}; leave it out, or shift the outputs"
        )
    inputs = with_logarithms(inputs.astype(float, copy=False), log_columns)
    outputs = outputs.astype(float, copy=False)
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


def scaling_from(
    moments: ColumnMoments, *, transform: Transform | None = None, log_columns: tuple[int, ...] = ()
) -> Scaling:
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
    return Scaling(moments.mean[:-1], scale[:-1], float(moments.mean[-1]), float(scale[-1]), transform, log_columns)


def scaling_of(
    inputs: HostFloat, outputs: HostFloat, *, transform: Transform | None = None, log_columns: tuple[int, ...] = ()
) -> Scaling:
    """Return shifts and scales of training data; what does not vary is shifted only."""
    moments = column_moments(inputs, outputs, transform=transform, log_columns=log_columns)
    return scaling_from(moments, transform=transform, log_columns=log_columns)


def differs_in_last_digits_only(values: HostFloat) -> np.ndarray:
    """Whether each column varies, but so little that it counts as constant."""
    return (np.ptp(values, axis=0) > 0) & (values.std(axis=0) <= _ROUNDING * np.abs(values).max(axis=0))


def positive_scale(deviation: HostFloat, largest: HostFloat) -> HostFloat:
    """Return standard deviations to divide by: of what does not vary one, or what floats of its size can still tell."""
    return np.where(deviation > _ROUNDING * largest, deviation, np.maximum(1.0, _RESOLVED * largest))
