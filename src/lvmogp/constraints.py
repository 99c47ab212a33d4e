"""Maps between constrained values and the free vector that optimisers move in.

A container declares how each field is constrained where it declares the field (:func:`positive`,
:func:`lower_triangular`), and which of its fields are held fixed in a static field named ``fixed``.
Unconstrained values exist only inside ``fit``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from lvmogp.typing import Array, Float

_KEY = "constraint"


class Constraint(NamedTuple):
    """A map from unconstrained to constrained values with its inverse and the range worth searching."""

    constrain: Callable[[Array], Array]
    unconstrain: Callable[[Array], Array]
    lower: float
    upper: float


def _pack_triangular(factor: Float[Array, "M M"]) -> Float[Array, " packed"]:
    size = factor.shape[0]
    with_log_diagonal = jnp.tril(factor, -1) + jnp.diag(jnp.log(jnp.diagonal(factor)))
    return with_log_diagonal[jnp.tril_indices(size)]


def _unpack_triangular(packed: Float[Array, " packed"]) -> Float[Array, "M M"]:
    size = int((2 * packed.shape[0]) ** 0.5)
    square = jnp.zeros((size, size), packed.dtype).at[jnp.tril_indices(size)].set(packed)
    return jnp.tril(square, -1) + jnp.diag(jnp.exp(jnp.diagonal(square)))


_REAL = Constraint(lambda value: value, lambda value: value, -jnp.inf, jnp.inf)
# In standardised units nothing sensible lies beyond e^±16; the box keeps line searches from overflowing.
_POSITIVE = Constraint(jnp.exp, jnp.log, -16.0, 16.0)
_LOWER_TRIANGULAR = Constraint(_unpack_triangular, _pack_triangular, -jnp.inf, jnp.inf)


def positive(**field_options: Any) -> Any:
    """Declare a field of positive numbers."""
    return eqx.field(metadata={_KEY: _POSITIVE}, **field_options)


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


class FreeVector(NamedTuple):
    """The free part of a tree as one vector, and the way back."""

    vector: Float[Array, " free"]
    rebuild: Callable[[Float[Array, " free"]], Any]
    lower: Float[Array, " free"]
    upper: Float[Array, " free"]


def free_vector(tree: Any) -> FreeVector:
    """Split a tree into a vector of unconstrained free values and a function that rebuilds the tree from it."""
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    declarations = [_declaration(tree, path) for path, _ in paths_and_leaves]
    leaves = [leaf for _, leaf in paths_and_leaves]
    free = [
        constraint.unconstrain(leaf)
        for leaf, (constraint, fixed) in zip(leaves, declarations, strict=True)
        if not fixed
    ]
    vector, unravel = ravel_pytree(free)

    def bound(side: str) -> Float[Array, " free"]:
        constraints = [constraint for constraint, fixed in declarations if not fixed]
        filled = [
            jnp.full(value.shape, getattr(constraint, side), value.dtype)
            for value, constraint in zip(free, constraints, strict=True)
        ]
        return ravel_pytree(filled)[0]

    def rebuild(vector: Float[Array, " free"]) -> Any:
        values = iter(unravel(vector))
        rebuilt = [
            leaf if fixed else constraint.constrain(next(values))
            for leaf, (constraint, fixed) in zip(leaves, declarations, strict=True)
        ]
        return jax.tree_util.tree_unflatten(structure, rebuilt)

    return FreeVector(vector, rebuild, bound("lower"), bound("upper"))
