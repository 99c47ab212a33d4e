"""Covariance functions on points.

A kernel says how two points covary (:meth:`Kernel.evaluate`); :func:`gram`, :func:`cross` and
:func:`diagonal` do the rest. Hyperparameters left at ``None`` are chosen from the data before a fit.
"""

import dataclasses
import functools
import itertools
import math
from abc import abstractmethod
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import positive
from lvmogp.errors import SettingError
from lvmogp.kernels.distances import weighted_distances
from lvmogp.typing import Array, Float, HostFloat, Scalar

# A hyperparameter: a number or an array in a kernel as described, ``None`` where left open, a JAX array once completed.
# What is noted is the type that it has in a file.
Values = Annotated[Any, Float[Array, "..."]]


def _positive(name: str, *, per_column: bool = False, optional: bool = False) -> Any:
    # Numbers a user gives stay NumPy arrays, so that describing a kernel starts no backend.
    more = " or one positive number per column" if per_column else ""

    def convert(value: Any) -> Any:
        if isinstance(value, jax.Array) or (optional and value is None):
            return value
        try:
            array = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        if array.ndim > int(per_column) or not np.all(np.isfinite(array) & (array > 0)):
            raise SettingError(f"{name} must be a positive number{more}, got {value!r}")
        return array

    return convert


def _columns(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    columns = np.atleast_1d(value)
    if columns.ndim != 1 or columns.dtype.kind not in "iu" or not 0 < len(set(columns.tolist())) == len(columns):
        raise SettingError(f"columns must be different column numbers, got {value!r}")
    return tuple(columns.tolist())


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


class Kernel(eqx.Module):
    """A positive semi-definite function of two points."""

    def __check_init__(self) -> None:
        own = {field.name for field in dataclasses.fields(self)}
        unknown = [name for name in getattr(self, "fixed", ()) if name not in own]
        if unknown:
            raise SettingError(f"{type(self).__name__} has no hyperparameter {unknown[0]!r} to hold fixed")

    @abstractmethod
    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """Covariance of the values at two points."""

    def __add__(self, other: Any) -> "Kernel":
        return _together(Sum, self, other)

    def __mul__(self, other: Any) -> "Kernel":
        return _together(Product, self, other)


class Composite(Kernel):
    """Kernels put together to one."""

    terms: tuple[Kernel, ...]


def _together(kind: type[Composite], first: Kernel, second: Any) -> Kernel:
    if not isinstance(second, Kernel):
        return NotImplemented
    terms = (kernel.terms if isinstance(kernel, kind) else (kernel,) for kernel in (first, second))
    return kind(tuple(itertools.chain(*terms)))


class Sum(Composite):
    """Sum of kernels, k₁(x, y) + k₂(x, y) + …."""

    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """Sum of the terms' covariances."""
        return jnp.sum(jnp.stack([term.evaluate(first, second) for term in self.terms]))


class Product(Composite):
    """Product of kernels, k₁(x, y) · k₂(x, y) · …."""

    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """Product of the terms' covariances."""
        return jnp.prod(jnp.stack([term.evaluate(first, second) for term in self.terms]))


class Constant(Kernel):
    """σ²: a value shared by all points; on latents, a curve shared by all conditions."""

    variance: Values = positive(converter=_positive("variance"), default=1.0)
    fixed: tuple[str, ...] = eqx.field(static=True, converter=_names, default=(), kw_only=True)

    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """σ² whatever the points."""
        return jnp.asarray(self.variance)


class Linear(Kernel):
    """Σ_q σ_q² x_q y_q: straight lines through the origin, one variance a column."""

    variance: Values = positive(converter=_positive("variance", per_column=True, optional=True), default=None)
    columns: tuple[int, ...] | None = eqx.field(static=True, converter=_columns, default=None, kw_only=True)
    fixed: tuple[str, ...] = eqx.field(static=True, converter=_names, default=(), kw_only=True)

    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """Weighted inner product of the points."""
        return jnp.sum(self.variance * select(first, self.columns) * select(second, self.columns))


class Stationary(Kernel):
    """σ² κ(r²) with r² = Σ_q ((x_q − y_q)/ℓ_q)², one lengthscale a column."""

    lengthscale: Values = positive(converter=_positive("lengthscale", per_column=True, optional=True), default=None)
    variance: Values = positive(converter=_positive("variance"), default=1.0)
    columns: tuple[int, ...] | None = eqx.field(static=True, converter=_columns, default=None, kw_only=True)
    fixed: tuple[str, ...] = eqx.field(static=True, converter=_names, default=(), kw_only=True)

    @abstractmethod
    def correlation(self, squared_distance: Scalar) -> Scalar:
        """κ(r²), one at r = 0."""

    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """σ² κ(r²)."""
        difference = select(first, self.columns) - select(second, self.columns)
        return self.variance * self.correlation(jnp.sum((difference / self.lengthscale) ** 2))


class RBF(Stationary):
    """σ² exp(−r²/2): very smooth curves."""

    def correlation(self, squared_distance: Scalar) -> Scalar:
        """exp(−r²/2)."""
        return jnp.exp(-squared_distance / 2)


class Matern12(Stationary):
    """σ² exp(−r): continuous, rough curves."""

    def correlation(self, squared_distance: Scalar) -> Scalar:
        """exp(−r)."""
        return jnp.exp(-_root(squared_distance))


class Matern32(Stationary):
    """σ² (1 + √3 r) exp(−√3 r): once differentiable curves."""

    def correlation(self, squared_distance: Scalar) -> Scalar:
        """(1 + √3 r) exp(−√3 r)."""
        scaled = 3**0.5 * _root(squared_distance)
        return (1 + scaled) * jnp.exp(-scaled)


class Matern52(Stationary):
    """σ² (1 + √5 r + 5r²/3) exp(−√5 r): twice differentiable curves."""

    def correlation(self, squared_distance: Scalar) -> Scalar:
        """(1 + √5 r + 5r²/3) exp(−√5 r)."""
        scaled = 5**0.5 * _root(squared_distance)
        return (1 + scaled + 5 * squared_distance / 3) * jnp.exp(-scaled)


class RationalQuadratic(Stationary):
    """σ² (1 + r²/2α)^−α: smooth curves that vary on several lengthscales."""

    shape: Values = positive(converter=_positive("shape"), default=1.0)

    def correlation(self, squared_distance: Scalar) -> Scalar:
        """(1 + r²/2α)^−α."""
        return jnp.exp(-self.shape * jnp.log1p(squared_distance / (2 * self.shape)))


class Periodic(Kernel):
    """σ² exp(−2 Σ_q sin²(π(x_q − y_q)/p_q)/ℓ_q²): curves that repeat.

    The period is in the units of the input and held fixed unless ``fixed=()``; the lengthscale is a pure
    number (about 1: one bump a period).
    """

    period: Values = positive(converter=_positive("period", per_column=True))
    lengthscale: Values = positive(converter=_positive("lengthscale", per_column=True), default=1.0)
    variance: Values = positive(converter=_positive("variance"), default=1.0)
    columns: tuple[int, ...] | None = eqx.field(static=True, converter=_columns, default=None, kw_only=True)
    fixed: tuple[str, ...] = eqx.field(static=True, converter=_names, default=("period",), kw_only=True)

    def evaluate(self, first: Float[Array, " Q"], second: Float[Array, " Q"]) -> Scalar:
        """σ² exp(−2 Σ sin²(π(x − y)/p)/ℓ²)."""
        difference = select(first, self.columns) - select(second, self.columns)
        sines = jnp.sin(jnp.pi * difference / self.period)
        return self.variance * jnp.exp(-2 * jnp.sum((sines / self.lengthscale) ** 2))


def select(point: Float[Array, "*shape Q"], columns: tuple[int, ...] | None) -> Float[Array, "*shape q"]:
    """The columns of a point that a kernel looks at; ``None`` means all."""
    return point if columns is None else point[..., np.asarray(columns)]


def _root(squared: Scalar) -> Scalar:
    # √r² with a zero instead of an infinite derivative at r = 0.
    positive_part = jnp.where(squared > 0, squared, 1.0)
    return jnp.where(squared > 0, jnp.sqrt(positive_part), 0.0)


def cross(kernel: Kernel, first: Float[Array, "n Q"], second: Float[Array, "m Q"]) -> Float[Array, "n m"]:
    """Covariances between two sets of points."""
    # All pairs at once where that is possible, with derivatives that are matrix products.
    if isinstance(kernel, Composite):
        return _combined(kernel, [cross(term, first, second) for term in kernel.terms])
    if isinstance(kernel, RBF):
        first, second = select(first, kernel.columns), select(second, kernel.columns)
        precision = jnp.broadcast_to(1 / jnp.square(kernel.lengthscale), first.shape)
        return kernel.variance * jnp.exp(-weighted_distances(first, precision, second) / 2)
    if isinstance(kernel, Linear):
        return (select(first, kernel.columns) * kernel.variance) @ select(second, kernel.columns).T
    if isinstance(kernel, Constant):
        return jnp.broadcast_to(kernel.variance, (first.shape[0], second.shape[0]))
    to_all_of_second = jax.vmap(kernel.evaluate, in_axes=(None, 0))
    return jax.vmap(to_all_of_second, in_axes=(0, None))(first, second)


def _combined(kernel: Composite, parts: list[Array]) -> Array:
    # Sums or products of what the terms come to.
    return functools.reduce(jnp.add if isinstance(kernel, Sum) else jnp.multiply, parts)


def gram(kernel: Kernel, points: Float[Array, "n Q"]) -> Float[Array, "n n"]:
    """Covariances among a set of points."""
    return cross(kernel, points, points)


def diagonal(kernel: Kernel, points: Float[Array, "n Q"]) -> Float[Array, " n"]:
    """Variances at a set of points."""
    if isinstance(kernel, Composite):
        return _combined(kernel, [diagonal(term, points) for term in kernel.terms])
    if isinstance(kernel, Stationary | Constant):
        return jnp.broadcast_to(kernel.variance, points.shape[:1])
    return jax.vmap(kernel.evaluate)(points, points)


def stacked_diagonal(kernels: tuple[Kernel, ...], points: Float[Array, "n Q"]) -> Float[Array, "kernels n"]:
    """Variances at a set of points under each of several kernels."""
    return jnp.stack([diagonal(kernel, points) for kernel in kernels])


KERNELS: dict[str, type[Kernel]] = {
    "constant": Constant,
    "linear": Linear,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "periodic": Periodic,
    "rational-quadratic": RationalQuadratic,
    "rbf": RBF,
}
COMPOSITES: dict[str, type[Composite]] = {"sum": Sum, "product": Product}
_NAMEABLE = sorted(set(KERNELS) - {"periodic"})


def named(kernel: str | Kernel) -> Kernel:
    """A kernel from its name, or the kernel itself."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in _NAMEABLE:
        raise SettingError(f"a kernel must be a kernel object or one of {_NAMEABLE}, got {kernel!r}")
    return KERNELS[kernel]()


def plain_kernel(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel as plain values: its kind, hyperparameters (``None`` where left open), columns, fixed names."""
    known = {each: name for name, each in (KERNELS | COMPOSITES).items()}
    if type(kernel) not in known:
        raise SettingError(f"{type(kernel).__name__} is a kernel of your own, which a model file cannot hold")
    if isinstance(kernel, Composite):
        return {"kind": known[type(kernel)], "terms": [plain_kernel(term) for term in kernel.terms]}
    plain: dict[str, Any] = {"kind": known[type(kernel)]}
    for name, value in vars(kernel).items():
        is_plain = value is None or isinstance(value, tuple)
        plain[name] = value if is_plain else np.asarray(value, dtype=float).tolist()
    return plain


def leaves(kernel: Kernel) -> tuple[Kernel, ...]:
    """The simple kernels that a kernel is put together from."""
    if isinstance(kernel, Composite):
        return tuple(leaf for term in kernel.terms for leaf in leaves(term))
    return (kernel,)


def rank(kernel: Kernel, n_columns: int) -> float:
    """Most linearly independent functions that a kernel can express on points of ``n_columns`` columns."""
    if isinstance(kernel, Sum):
        return sum(rank(term, n_columns) for term in kernel.terms)
    if isinstance(kernel, Product):
        return math.prod(rank(term, n_columns) for term in kernel.terms)
    if isinstance(kernel, Constant):
        return 1
    if isinstance(kernel, Linear):
        return n_columns if kernel.columns is None else len(kernel.columns)
    return math.inf


def scaled_kernel(kernel: Any, factor: Any) -> Kernel | None:
    """The kernel times a factor, or ``None`` where the user holds its variance fixed."""
    if not isinstance(kernel, Composite):
        is_free = "variance" not in kernel.fixed
        return dataclasses.replace(kernel, variance=kernel.variance * factor) if is_free else None
    terms: list[Any] = [scaled_kernel(term, factor) for term in kernel.terms]
    free = [place for place, term in enumerate(terms) if term is not None]
    if isinstance(kernel, Sum):
        return Sum(tuple(terms)) if len(free) == len(terms) else None
    # One factor of a product is enough.
    return Product((*kernel.terms[: free[0]], terms[free[0]], *kernel.terms[free[0] + 1 :])) if free else None


def complete(kernel: Kernel, scale: HostFloat, lengthscale: float | HostFloat) -> Kernel:
    """The kernel in standardised units with every hyperparameter filled in.

    Parameters
    ----------
    kernel
        A kernel as a user describes it: lengthscales and periods in the user's units, or ``None``.
    scale
        Standard deviation of each column in the user's units, by which points have been divided.
    lengthscale
        Lengthscale in standardised units, for all columns or one per column, where none is given.
    """
    if isinstance(kernel, Composite):
        return type(kernel)(tuple(complete(term, scale, lengthscale) for term in kernel.terms))
    if isinstance(kernel, Constant):
        return Constant(jnp.asarray(kernel.variance), fixed=kernel.fixed)
    if not isinstance(kernel, Stationary | Linear | Periodic):
        raise SettingError(f"{type(kernel).__name__} is not a kernel that can be fitted here")
    columns = range(len(scale)) if kernel.columns is None else kernel.columns
    if any(not 0 <= column < len(scale) for column in columns):
        raise SettingError(f"columns {kernel.columns} of a kernel lie outside the {len(scale)} columns of the input")
    column_scale, unitless = scale[np.asarray(columns)], np.ones(len(columns))
    # The units of hyperparameters that have one value a column, and what those that are left open are without units.
    units = {"period": column_scale, "lengthscale": unitless if isinstance(kernel, Periodic) else column_scale}
    left_open: Any = np.broadcast_to(lengthscale, scale.shape)[np.asarray(columns)]
    if isinstance(kernel, Linear):
        units, left_open = {"variance": unitless}, 1.0
    completed: dict[str, Any] = {"columns": kernel.columns, "fixed": kernel.fixed}
    for name in [field.name for field in dataclasses.fields(kernel) if field.name not in completed]:
        values, unit = getattr(kernel, name), units.get(name, 1.0)
        if values is None:
            values, unit = left_open, unitless
        if np.ndim(values) == 1 and len(values) != len(columns):
            raise SettingError(
                f"{name} of {type(kernel).__name__} has {len(values)} values for {len(columns)} columns; "
                "give one number, or one per column"
            )
        completed[name] = jnp.asarray(np.asarray(values) / unit)
    return type(kernel)(**completed)
