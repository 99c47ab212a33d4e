"""Maps between constrained values and the free vector that optimisers move in.

A container declares how each field is constrained where it declares the field (:func:`positive`, ``POINTS``,
:func:`lower_triangular`), and which of its fields are held fixed in a static field named ``fixed``.
Unconstrained values exist only inside ``fit``.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist

from lvmogp.ground.rules import POSITIVE, RULE
from lvmogp.typing import Array, Float, HostFloat

_KEY = "constraint"
_SMALLEST_STEP = 1e-3
_Values = TypeVar("_Values")


class Constraint(NamedTuple):
    """A map from unconstrained to constrained values with its inverse and the range worth searching."""

    constrain: Callable[[Array], Array]
    unconstrain: Callable[[HostFloat], HostFloat]  # once a fit and never traced, so without a program for each shape
    lower: float
    upper: float
    are_points: bool = False


def _pack_triangular(factor: HostFloat) -> HostFloat:
    size = factor.shape[0]
    with_log_diagonal = np.tril(factor, -1) + np.diag(np.log(np.diagonal(factor)))
    return with_log_diagonal[np.tril_indices(size)]


def _unpack_triangular(packed: Float[Array, " packed"]) -> Float[Array, "M M"]:
    size = int((2 * packed.shape[0]) ** 0.5)
    square = jnp.zeros((size, size), packed.dtype).at[np.tril_indices(size)].set(packed)
    return jnp.tril(square, -1) + jnp.diag(jnp.exp(jnp.diagonal(square)))


def _identity(value: _Values) -> _Values:
    return value


_REAL = Constraint(_identity, _identity, -math.inf, math.inf)
# In standardised units nothing sensible lies beyond e^±16; the box keeps line searches from overflowing.
_POSITIVE = Constraint(jnp.exp, np.log, -16.0, 16.0)
# Metadata of a field of points in space, one a row, that move in steps of the distance between neighbours.
POINTS = {_KEY: _REAL._replace(are_points=True)}
_LOWER_TRIANGULAR = Constraint(_unpack_triangular, _pack_triangular, -math.inf, math.inf)


def positive(**field_options: Any) -> Any:
    """Declare a field of positive numbers."""
    return eqx.field(metadata={_KEY: _POSITIVE, RULE: POSITIVE}, **field_options)


def lower_triangular(**field_options: Any) -> Any:
    """Declare a field holding a lower triangular matrix with a positive diagonal."""
    return eqx.field(metadata={_KEY: _LOWER_TRIANGULAR}, **field_options)


def _declaration(root: Any, path: tuple[Any, ...]) -> tuple[Constraint, bool]:
    # Follows a leaf's path from the root; the last dataclass field on it declares the constraint.
    constraint, fixed, node = _REAL, False, root
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            field = next(field for field in dataclasses.fields(node) if field.name == key.name)
            constraint = field.metadata.get(_KEY, _REAL)
            fixed = fixed or key.name in getattr(node, "fixed", ())
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        else:
            raise TypeError(f"parameters are built of modules and tuples only, not of {type(key).__name__}")
    return constraint, fixed


class FreeStructure(NamedTuple):
    """How a tree is split into free and fixed leaves; hashable, so that compiled programs are keyed by it."""

    structure: Any
    declarations: tuple[tuple[Constraint, bool], ...]
    free_shapes: tuple[tuple[int, ...], ...]

    @property
    def free_constraints(self) -> tuple[Constraint, ...]:
        """Constraints of the free leaves, in the order of the vector."""
        return tuple(constraint for constraint, fixed in self.declarations if not fixed)


def split(tree: Any) -> tuple[Float[Array, " free"], tuple[Array, ...], FreeStructure]:
    """A tree as one vector of unconstrained free values, its fixed leaves, and how to put it together again."""
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    declarations = tuple(_declaration(tree, path) for path, _ in paths_and_leaves)
    leaves = [leaf for _, leaf in paths_and_leaves]
    free, fixed_leaves = [], []
    for leaf, (constraint, fixed) in zip(leaves, declarations, strict=True):
        if fixed:
            fixed_leaves.append(leaf)
        else:
            free.append(constraint.unconstrain(np.asarray(leaf)))
    vector = jnp.asarray(np.concatenate([value.reshape(-1) for value in free]))
    shapes = tuple(value.shape for value in free)
    return vector, tuple(fixed_leaves), FreeStructure(structure, declarations, shapes)


def join(vector: Float[Array, " free"], fixed_leaves: tuple[Array, ...], structure: FreeStructure) -> Any:
    """Inverse of :func:`split` for any free vector."""
    ends = np.cumsum([math.prod(shape) for shape in structure.free_shapes])
    pieces = jnp.split(vector, ends[:-1])
    free = (piece.reshape(shape) for piece, shape in zip(pieces, structure.free_shapes, strict=True))
    kept = iter(fixed_leaves)
    leaves = [next(kept) if fixed else constraint.constrain(next(free)) for constraint, fixed in structure.declarations]
    return jax.tree_util.tree_unflatten(structure.structure, leaves)


def search_box(structure: FreeStructure) -> tuple[HostFloat, HostFloat]:
    """Lowest and highest value worth trying of each entry of the free vector."""
    sizes = [math.prod(shape) for shape in structure.free_shapes]
    lower = np.repeat([constraint.lower for constraint in structure.free_constraints], sizes)
    upper = np.repeat([constraint.upper for constraint in structure.free_constraints], sizes)
    return lower, upper


def natural_steps(vector: Float[Array, " free"], structure: FreeStructure) -> HostFloat:
    """Size of a sensible step of each entry of the free vector: one, or the distance between neighbouring points.

    An optimiser that knows nothing yet of curvature takes steps of the same size in all directions, far too long
    for a hundred points within a few units.
    """
    ends = np.cumsum([math.prod(shape) for shape in structure.free_shapes])
    steps = []
    for piece, shape, constraint in zip(
        np.split(np.asarray(vector), ends[:-1]), structure.free_shapes, structure.free_constraints, strict=True
    ):
        steps.append(np.full(piece.size, _spacing(piece.reshape(shape)) if constraint.are_points else 1.0))
    return np.concatenate(steps)


def _spacing(rows: HostFloat) -> float:
    # Median distance to the nearest other point, at most a unit; coincident points do not count.
    distances = cdist(rows, rows)
    nearest = np.min(np.where(distances > 0, distances, np.inf), axis=1)
    nearest = nearest[np.isfinite(nearest)]
    return float(np.clip(np.median(nearest), _SMALLEST_STEP, 1.0)) if len(nearest) else 1.0
