"""Maximise a bound over the free values of a tree by L-BFGS; do several pieces of such work side by side."""

# The types of JAX and SciPy leave some arguments open.
# pyright: reportUnknownMemberType=false

import enum
import math
import os
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import joblib
import numpy as np
import scipy.optimize

from lvmogp.algebra.constraints import FreeStructure, join, natural_steps, search_box, split
from lvmogp.ground.compiling import compiled, jitted
from lvmogp.ground.precision import in_current_precision
from lvmogp.typing import Array, Float, HostFloat, Scalar

Objective = Callable[[Any, Any], Scalar]
# Work is given the function that takes its reports; who asked takes these and the result, with the number of the work.
Work = Callable[[Callable[[Any], None]], Any]
Take = Callable[[int, Any], None]
# Steps that L-BFGS remembers, and iterations that must gain something together.
_MEMORY, _WINDOW = 50, 20
_join = compiled(join)


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


@cache  # made when first called: until then nobody need know what they will run on
def value_and_gradient(*, one_thread: bool) -> Callable[..., tuple[Scalar, Float[Array, " free"]]]:
    """Return the compiled function that :func:`maximise` evaluates: the negative objective with its gradient."""

    def evaluate(
        vector: Array, fixed_leaves: tuple[Array, ...], data: Any, *, objective: Objective, structure: FreeStructure
    ) -> tuple[Scalar, Float[Array, " free"]]:
        def loss(vector: Array) -> Scalar:
            return -objective(join(vector, fixed_leaves, structure), data)  # optimisers minimise

        return jax.value_and_grad(loss)(vector)

    return jitted(evaluate, static_argnames=("objective", "structure"), one_thread=one_thread)


class _Search:
    """A search for the least loss, in units of the natural steps: its best point so far, and the bounds on its way."""

    def __init__(self, objective: Objective, start: Any, data: Any, *, one_thread: bool) -> None:
        vector, self._fixed_leaves, self._structure = split(start)
        self._program = partial(value_and_gradient(one_thread=one_thread), objective=objective)
        self._data, self._dtype = data, vector.dtype
        self._steps, self._box = natural_steps(vector, self._structure), search_box(self._structure)
        self.loss, self._point = math.inf, np.asarray(vector, dtype=float)
        self.history: list[float] = []
        self.n_evaluations = 0
        self._loss_and_gradient(np.clip(self._point, *self._box) / self._steps)

    @property
    def tree(self) -> Any:
        """The tree at the best point."""
        return _join(jnp.asarray(self._point, self._dtype), self._fixed_leaves, self._structure)

    def _loss_and_gradient(self, scaled: HostFloat) -> tuple[float, HostFloat]:
        point = scaled * self._steps
        self.n_evaluations += 1
        found = self._program(point.astype(self._dtype), self._fixed_leaves, self._data, structure=self._structure)
        loss, gradient = float(found[0]), np.asarray(found[1], dtype=float)
        if not (math.isfinite(loss) and np.all(np.isfinite(gradient))):
            # A wall that the line search backs away from.
            return max(abs(self.loss), 1.0) * 1e6, np.zeros_like(gradient)
        if loss < self.loss:
            self.loss, self._point = loss, point
        return loss, gradient * self._steps

    def descend(self, max_iterations: int, after_iteration: Callable[..., None]) -> scipy.optimize.OptimizeResult:
        """Go down from the best point until L-BFGS stops by itself, or until as many iterations in all."""
        lower, upper = self._box
        n_left = max(max_iterations - len(self.history), 1)
        return scipy.optimize.minimize(
            self._loss_and_gradient,
            self._point / self._steps,
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(lower / self._steps, upper / self._steps),
            callback=after_iteration,
            options={"maxiter": n_left, "maxfun": 20 * max_iterations, "maxcor": _MEMORY, "ftol": 1e-15, "gtol": 1e-7},
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

    Stop when the bound has gained less than ``tolerance`` over the last twenty iterations, or when ``on_iteration``
    raises :class:`StopFit`.
    """
    began = time.perf_counter()
    search = _Search(objective, start, data, one_thread=one_thread)
    history = search.history

    def gains_little() -> bool:
        return len(history) > _WINDOW and history[-1] - history[-1 - _WINDOW] < tolerance

    def after_iteration(intermediate_result: scipy.optimize.OptimizeResult) -> None:  # SciPy goes by this name
        history.append(-float(intermediate_result.fun))
        if on_iteration is not None:
            on_iteration(history[-1])
        if gains_little():
            raise StopIteration

    status = None if math.isfinite(search.loss) else Status.NOT_FINITE
    while status is None:
        before = search.loss
        try:
            result = search.descend(max_iterations, after_iteration)
        except StopFit:
            status = Status.INTERRUPTED
            break
        failed = result.status == 2  # what SciPy says of a line search
        # One that fails twice running, the second time with its memory cleared, is at the rounding error of the bound.
        if result.success or gains_little() or (failed and before - search.loss < tolerance):
            status = Status.CONVERGED
        elif not failed or len(history) >= max_iterations:
            status = Status.ITERATION_LIMIT
    return Run(search.tree, -search.loss, status, tuple(history), search.n_evaluations, time.perf_counter() - began)


def n_threads() -> int:
    """Return how much work may go on at once: the cores of this process, or fewer if OMP_NUM_THREADS says so.

    That is how those who run many processes, joblib among them, tell each of these its share of the cores.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # numbers for nested threads may follow
    cores = joblib.cpu_count()
    return min(cores, int(given)) if given.isdecimal() and int(given) > 0 else cores


def side_by_side(works: Mapping[int, Work], on_report: Take, on_end: Take, *, threads: int) -> None:
    """Do all pieces of work, at most ``threads`` at a time; their reports and results come with their numbers.

    If ``on_report`` raises :class:`lvmogp.StopFit`, so does the next report of every piece of work, and what has not
    begun never does. Any other exception, Ctrl-C among them, does the same and is raised here once all work has ended.
    """
    if min(threads, len(works)) <= 1:
        _one_by_one(works, on_report, on_end)
        return
    # Reports wait for an answer in a future of their own; work that has ended is its own future.
    inbox: queue.SimpleQueue[tuple[int, Any, Future[Any]]] = queue.SimpleQueue()

    def report(number: int, content: Any) -> None:
        taken: Future[None] = Future()
        inbox.put((number, content, taken))
        taken.result()  # raises what was answered

    n_running, stopped = len(works), False
    failure: BaseException | None = None
    with ThreadPoolExecutor(threads) as pool:
        for number, work in works.items():
            running = pool.submit(in_current_precision(work), partial(report, number))
            running.add_done_callback(lambda ended, number=number: inbox.put((number, None, ended)))
        while n_running > 0:
            future: Future[Any] | None = None
            try:
                number, content, future = inbox.get()
                if future.done():
                    n_running -= 1
                    if not future.cancelled():
                        on_end(number, future.result())
                elif not stopped:
                    on_report(number, content)
                    future.set_result(None)
            except BaseException as error:
                stopped = True
                failure = failure or (None if isinstance(error, StopFit) else error)
                pool.shutdown(wait=False, cancel_futures=True)
            if stopped and future is not None and not future.done():
                future.set_exception(StopFit())
    if failure is not None:
        raise failure


def _one_by_one(works: Mapping[int, Work], on_report: Take, on_end: Take) -> None:
    waiting = dict(works)

    def report(number: int, content: Any) -> None:
        try:
            on_report(number, content)
        except StopFit:
            waiting.clear()
            raise

    while waiting:
        number = next(iter(waiting))
        on_end(number, waiting.pop(number)(partial(report, number)))
