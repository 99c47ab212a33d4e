"""Maximising a bound over the free values of a tree by L-BFGS."""

import enum
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from lvmogp.compiling import ONE_THREAD, counted
from lvmogp.constraints import FreeStructure, join, natural_steps, search_box, split
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


_compile = partial(jax.jit, counted(_negative_value_and_gradient), static_argnames=("objective", "structure"))
# XLA's thread pool costs more than it gives on small problems.
_on_one_thread = _compile(compiler_options=ONE_THREAD)
_on_all_threads = _compile()
_join = jax.jit(counted(join), static_argnames="structure", compiler_options=ONE_THREAD)


def value_and_gradient(*, one_thread: bool) -> Callable[..., tuple[Scalar, Float[Array, " free"]]]:
    """The compiled function that :func:`maximise` evaluates: the negative objective with its gradient."""
    return _on_one_thread if one_thread else _on_all_threads


def maximise(
    objective: Objective,
    start: Any,
    data: Any,
    *,
    max_iterations: int,
    tolerance: float,
    one_thread: bool = True,
    on_iteration: Callable[[float], None] | None = None,
) -> Run:
    """Maximise ``objective(tree, data)`` from a starting tree.

    Stops when the bound has gained less than ``tolerance`` over the last twenty iterations, or when
    ``on_iteration`` raises :class:`StopFit`.
    """
    began = time.perf_counter()
    vector, fixed_leaves, structure = split(start)
    evaluate = value_and_gradient(one_thread=one_thread)
    steps = natural_steps(vector, structure)  # the optimiser moves in units of these
    history: list[float] = []
    best: tuple[float, HostFloat] = (math.inf, np.asarray(vector))
    n_evaluations = 0

    def loss_and_gradient(scaled: HostFloat) -> tuple[float, HostFloat]:
        nonlocal best, n_evaluations
        candidate = scaled * steps
        n_evaluations += 1
        loss, gradient = evaluate(
            candidate.astype(vector.dtype), fixed_leaves, data, objective=objective, structure=structure
        )
        loss, gradient = float(loss), np.asarray(gradient, dtype=float)
        if not (math.isfinite(loss) and np.all(np.isfinite(gradient))):
            # A wall that the line search backs away from.
            return max(abs(best[0]), 1.0) * 1e6, np.zeros_like(gradient)
        if loss < best[0]:
            best = (loss, candidate)
        return loss, gradient * steps

    def after_iteration(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        history.append(-float(intermediate_result.fun))
        if on_iteration is not None:
            on_iteration(history[-1])
        if len(history) > _WINDOW and history[-1] - history[-1 - _WINDOW] < tolerance:
            raise StopIteration

    def finish(status: Status) -> Run:
        tree = _join(best[1].astype(vector.dtype), fixed_leaves, structure=structure)
        return Run(tree, -best[0], status, tuple(history), n_evaluations, time.perf_counter() - began)

    def descend(first: HostFloat) -> scipy.optimize.OptimizeResult:
        return scipy.optimize.minimize(
            loss_and_gradient,
            first / steps,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(lower / steps, upper / steps, strict=True)),
            callback=after_iteration,
            options={
                "maxiter": max(max_iterations - len(history), 1),
                "maxfun": 20 * max_iterations,
                "maxcor": _MEMORY,
                "ftol": 1e-15,
                "gtol": 1e-7,
            },
        )

    lower, upper = search_box(structure)
    first = np.clip(np.asarray(vector, dtype=float), lower, upper)
    loss_and_gradient(first / steps)
    if not math.isfinite(best[0]):
        return finish(Status.NOT_FINITE)
    while True:
        before = best[0]
        try:
            result = descend(best[1])
        except StopFit:
            return finish(Status.INTERRUPTED)
        gained_little = len(history) > _WINDOW and history[-1] - history[-1 - _WINDOW] < tolerance
        # A line search that fails twice running, the second time with its memory cleared, is at the
        # rounding error of the bound.
        if result.success or gained_little or (result.status == 2 and before - best[0] < tolerance):
            return finish(Status.CONVERGED)
        if result.status != 2 or len(history) >= max_iterations:
            return finish(Status.ITERATION_LIMIT)
