"""Maps between constrained values and the free vector that optimisers move in.

A container declares how each field is constrained where it declares the field (:func:`positive`, ``POINTS``,
``LOWER_TRIANGULAR``), and which of its fields are held fixed in a static field named ``fixed``.
Unconstrained values exist only inside ``fit``.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist

from lvmogp.ground.rules import POSITIVE, RULE
from lvmogp.typing import Array, Float, HostFloat

_KEY = "constraint"
_SMALLEST_STEP = 1e-3


class Constraint(NamedTuple):
    """A map from unconstrained to constrained values with its inverse and the unconstrained range worth searching."""

    constrain: Callable[[Array], Array] = lambda values: values
    unconstrain: Callable[[HostFloat], HostFloat] = lambda values: values  # on the host: no program for each shape
    limits: tuple[float, float] = (-math.inf, math.inf)
    are_points: bool = False


def _pack_triangular(factor: HostFloat) -> HostFloat:
    with_log_diagonal = np.tril(factor, -1) + np.diag(np.log(np.diagonal(factor)))
    return with_log_diagonal[np.tril_indices(len(factor))]


def _unpack_triangular(packed: Float[Array, " packed"]) -> Float[Array, "m m"]:
    size = int((2 * packed.shape[0]) ** 0.5)
    square = jnp.zeros((size, size), packed.dtype).at[np.tril_indices(size)].set(packed)
    return jnp.tril(square, -1) + jnp.diag(jnp.exp(jnp.diagonal(square)))


_REAL = Constraint()
# In standardised units nothing sensible lies beyond e^±16; the box keeps line searches from overflowing.
_POSITIVE = Constraint(jnp.exp, np.log, limits=(-16.0, 16.0))
# Metadata of a field of points in space, one per row, that move in steps of the distance between neighbours.
POINTS = {_KEY: Constraint(are_points=True)}
# Metadata of a field holding a lower triangular matrix with a positive diagonal.
LOWER_TRIANGULAR = {_KEY: Constraint(_unpack_triangular, _pack_triangular)}


def positive(**field_options: Any) -> Any:
    """Declare a field of positive numbers."""
    return eqx.field(metadata={_KEY: _POSITIVE, RULE: POSITIVE}, **field_options)


def _declaration(root: Any, path: tuple[Any, ...]) -> tuple[Constraint, bool]:
    # Follows a leaf's path from the root; the last dataclass field on it declares the constraint.
    constraint, fixed, node = _REAL, False, root
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            field = next(field for field in dataclasses.fields(node) if field.name == key.name)
            constraint = field.metadata.get(_KEY, _REAL)
            fixed = fixed or key.name in getattr(node, "fixed", ())
            node = getattr(node, key.name)
        else:
            node = node[key.idx]  # of a tuple
    return constraint, fixed


class FreeStructure(NamedTuple):
    """How a tree is split into free and fixed leaves; hashable, so that compiled programs are keyed by it."""

    structure: Any
    declarations: tuple[tuple[Constraint, bool], ...]
    free_shapes: tuple[tuple[int, ...], ...]

    @property
    def pieces(self) -> Iterator[tuple[Constraint, slice, tuple[int, ...]]]:
        """Constraint, place in the vector and shape of each free leaf."""
        constraints = [constraint for constraint, fixed in self.declarations if not fixed]
        end = 0
        for constraint, shape in zip(constraints, self.free_shapes, strict=True):
            begin, end = end, end + math.prod(shape)
            yield constraint, slice(begin, end), shape


def split(tree: Any) -> tuple[Float[Array, " free"], tuple[Array, ...], FreeStructure]:
    """A tree as one vector of unconstrained free values, its fixed leaves, and how to put it together again."""
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    declarations = tuple(_declaration(tree, path) for path, _ in paths_and_leaves)
    free, fixed_leaves = [], []
    for (_, leaf), (constraint, fixed) in zip(paths_and_leaves, declarations, strict=True):
        if fixed:
            fixed_leaves.append(leaf)
        else:
            free.append(constraint.unconstrain(np.asarray(leaf)))
    vector = jnp.asarray(np.concatenate([value.reshape(-1) for value in free]))
    shapes = tuple(value.shape for value in free)
    return vector, tuple(fixed_leaves), FreeStructure(structure, declarations, shapes)


def join(vector: Float[Array, " free"], fixed_leaves: tuple[Array, ...], structure: FreeStructure) -> Any:
    """Inverse of :func:`split` for any free vector."""
    free = (constraint.constrain(vector[place].reshape(shape)) for constraint, place, shape in structure.pieces)
    kept = iter(fixed_leaves)
    leaves = [next(kept if fixed else free) for _, fixed in structure.declarations]
    return jax.tree_util.tree_unflatten(structure.structure, leaves)


def search_box(structure: FreeStructure) -> tuple[HostFloat, HostFloat]:
    """Lowest and highest value worth trying of each entry of the free vector."""
    limits = [np.full((math.prod(shape), 2), constraint.limits) for constraint, _, shape in structure.pieces]
    lower, upper = np.concatenate(limits).T
    return lower, upper


def natural_steps(vector: Float[Array, " free"], structure: FreeStructure) -> HostFloat:
    """Size of a sensible step of each entry of the free vector: one, or the distance between neighbouring points.

    An optimiser that knows nothing yet of curvature takes steps of the same size in all directions, far too long
    for a hundred points within a few units.
    """
    steps, values = np.ones(vector.shape), np.asarray(vector)
    for constraint, place, shape in structure.pieces:
        if constraint.are_points:
            # The median distance to the nearest other point, at most a unit; coincident points do not count.
            points = values[place].reshape(shape)
            distances = cdist(points, points)
            nearest = np.min(np.where(distances > 0, distances, np.inf), axis=1)
            nearest = nearest[np.isfinite(nearest)]
            steps[place] = np.clip(np.median(nearest), _SMALLEST_STEP, 1.0) if len(nearest) else 1.0
    return steps
