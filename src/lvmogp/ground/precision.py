"""The one place where double precision is switched on, for our own computations and for nothing else."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from lvmogp.typing import Array

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Tree = TypeVar("_Tree")


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute in float64, and multiply float32 as float32 where a GPU would rather use ten bits."""
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield


def in_double_precision(function: _Function) -> _Function:
    """Switch double precision on for the time of a call; the rest of the user's program is left as it is."""

    @functools.wraps(function)  # a frame of our own, by which warnings find the user's code
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with double_precision():
            return function(*args, **kwargs)

    return cast(_Function, wrapped)


def in_current_precision(function: _Function) -> _Function:
    """Keep the precision of the thread that asks for work: settings of JAX belong to a thread."""
    config: Any = jax.config  # whose attributes are made at run time
    double, products = config.jax_enable_x64, config.jax_default_matmul_precision

    def call(*args: Any) -> Any:
        with jax.enable_x64(double), jax.default_matmul_precision(products):
            return function(*args)

    return cast(_Function, call)


def in_precision(tree: _Tree, dtype: str | jnp.dtype) -> _Tree:
    """Return a tree with all its real numbers in the given precision; whole numbers stay as they are."""

    def converted(leaf: Array) -> Array:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.asarray(leaf)

    return jax.tree.map(converted, tree)
