"""Maximising a bound over the free values of a tree by L-BFGS."""

# The types of JAX and SciPy leave some arguments open.
# pyright: reportUnknownMemberType=false

import enum
import math
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
import scipy.optimize

from lvmogp.algebra.constraints import FreeStructure, join, natural_steps, search_box, split
from lvmogp.ground.compiling import jitted
from lvmogp.typing import Array, Float, HostFloat, Scalar

Objective = Callable[[Any, Any], Scalar]
_MEMORY = 50
_WINDOW = 20


class Status(enum.Enum):
    """How an optimisation ended."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "stopped at the iteration limit"
    INTERRUPTED = "interrupted"
    NOT_FINITE = "failed: the bound is not finite at the start"


class StopFit(Exception):  # noqa: N818 - like StopIteration, a request rather than an error
    """Raised by a progress callback to end a fit with the best parameters found so far."""


@runtime_checkable
class _AfterIteration(Protocol):
    # SciPy goes by the name of the argument.
    def __call__(self, intermediate_result: scipy.optimize.OptimizeResult) -> None: ...


class Run(NamedTuple):
    """One run of the optimiser: the best tree found with the bound after each iteration."""

    tree: Any
    bound: float
    status: Status
    history: tuple[float, ...]
    n_evaluations: int
    seconds: float


def _negative_value_and_gradient(
    vector: Float[Array, " free"],
    fixed_leaves: tuple[Array, ...],
    data: Any,
    *,
    objective: Objective,
    structure: FreeStructure,
) -> tuple[Scalar, Float[Array, " free"]]:
    # The only minus sign: optimisers minimise, bounds are maximised.
    def loss(vector: Float[Array, " free"]) -> Scalar:
        return -objective(join(vector, fixed_leaves, structure), data)

    return jax.value_and_grad(loss)(vector)


@cache  # made when first called: until then nobody need know what they will run on
def value_and_gradient(*, one_thread: bool) -> Callable[..., tuple[Scalar, Float[Array, " free"]]]:
    """The compiled function that :func:`maximise` evaluates: the negative objective with its gradient."""
    return jitted(_negative_value_and_gradient, static_argnames=("objective", "structure"), one_thread=one_thread)


@cache
def _joining() -> Callable[..., Any]:
    return jitted(join, static_argnames=("structure",))


class _Search:
    """A search from a starting tree: its best point so far, and the bound after each iteration.

    Optimisers minimise, so it speaks of losses, and they move in units of the natural steps.
    """

    def __init__(self, objective: Objective, start: Any, data: Any, *, one_thread: bool) -> None:
        vector, self._fixed_leaves, self._structure = split(start)
        self._evaluate = partial(
            value_and_gradient(one_thread=one_thread), objective=objective, structure=self._structure
        )
        self._data = data
        self._steps = natural_steps(vector, self._structure)
        self._box = search_box(self._structure)
        self._dtype = vector.dtype
        self.loss, self._point = math.inf, np.asarray(vector)
        self.history: list[float] = []
        self.n_evaluations = 0
        first = np.clip(np.asarray(vector, dtype=float), *self._box)
        self._loss_and_gradient(first / self._steps)

    @property
    def tree(self) -> Any:
        """The tree at the best point."""
        return _joining()(self._point.astype(self._dtype), self._fixed_leaves, structure=self._structure)

    def gained_less_than(self, tolerance: float) -> bool:
        """Whether the bound has gained less than that over the last iterations."""
        return len(self.history) > _WINDOW and self.history[-1] - self.history[-1 - _WINDOW] < tolerance

    def _loss_and_gradient(self, scaled: HostFloat) -> tuple[float, HostFloat]:
        candidate = scaled * self._steps
        self.n_evaluations += 1
        loss, gradient = self._evaluate(candidate.astype(self._dtype), self._fixed_leaves, self._data)
        loss, gradient = float(loss), np.asarray(gradient, dtype=float)
        if not (math.isfinite(loss) and np.all(np.isfinite(gradient))):
            # A wall that the line search backs away from.
            return max(abs(self.loss), 1.0) * 1e6, np.zeros_like(gradient)
        if loss < self.loss:
            self.loss, self._point = loss, candidate
        return loss, gradient * self._steps

    def descend(self, max_iterations: int, after_iteration: _AfterIteration) -> scipy.optimize.OptimizeResult:
        """Go down from the best point until L-BFGS stops by itself, or until as many iterations in all."""
        lower, upper = self._box
        return scipy.optimize.minimize(
            self._loss_and_gradient,
            self._point / self._steps,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(lower / self._steps, upper / self._steps, strict=True)),
            callback=after_iteration,
            options={
                "maxiter": max(max_iterations - len(self.history), 1),
                "maxfun": 20 * max_iterations,
                "maxcor": _MEMORY,
                "ftol": 1e-15,
                "gtol": 1e-7,
            },
        )


def maximise(
    objective: Objective,
    start: Any,
    data: Any,
    on_iteration: Callable[[float], None] | None = None,
    *,
    max_iterations: int,
    tolerance: float,
    one_thread: bool = True,
) -> Run:
    """Maximise ``objective(tree, data)`` from a starting tree.

    Stops when the bound has gained less than ``tolerance`` over the last twenty iterations, or when
    ``on_iteration`` raises :class:`StopFit`.
    """
    began = time.perf_counter()
    search = _Search(objective, start, data, one_thread=one_thread)
    status = _searched(search, max_iterations, tolerance, on_iteration)
    tree = search.tree
    seconds = time.perf_counter() - began
    return Run(tree, -search.loss, status, tuple(search.history), search.n_evaluations, seconds)


def _searched(
    search: _Search, max_iterations: int, tolerance: float, on_iteration: Callable[[float], None] | None
) -> Status:
    # How the search ended, once it has.
    def after_iteration(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        search.history.append(-float(intermediate_result.fun))
        if on_iteration is not None:
            on_iteration(search.history[-1])
        if search.gained_less_than(tolerance):
            raise StopIteration

    if not math.isfinite(search.loss):
        return Status.NOT_FINITE
    while True:
        before = search.loss
        try:
            result = search.descend(max_iterations, after_iteration)
        except StopFit:
            return Status.INTERRUPTED
        # A line search that fails twice running, the second time with its memory cleared, is at the
        # rounding error of the bound.
        at_rounding_error = result.status == 2 and before - search.loss < tolerance
        if result.success or search.gained_less_than(tolerance) or at_rounding_error:
            return Status.CONVERGED
        if result.status != 2 or len(search.history) >= max_iterations:
            return Status.ITERATION_LIMIT
