"""Independent pieces of work on several threads, whose reports are taken in the thread that asked for the work."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import joblib

from lvmogp.inference.optimise import StopFit

_Report = TypeVar("_Report")
_Result = TypeVar("_Result")
# A piece of work is given the function that takes its reports.
Work = Callable[[Callable[[_Report], None]], _Result]
Taker = Callable[[int, _Report], None]
_NEVER_BEGUN: Any = object()


class _Reported(NamedTuple):
    number: int
    content: Any
    taken: threading.Event


class _Ended(NamedTuple):
    number: int
    result: Any
    error: BaseException | None = None


def n_threads() -> int:
    """How much work may go on at once: the cores of this process, or fewer if OMP_NUM_THREADS says so.

    That is how those who run many processes, joblib among them, tell each of these its share of the cores.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # numbers for nested threads may follow
    cores = joblib.cpu_count()
    return min(cores, int(given)) if given.isdecimal() and int(given) > 0 else cores


def side_by_side(
    works: Sequence[Work[_Report, _Result]],
    on_report: Taker[_Report] | None,
    on_end: Callable[[int, _Result], None],
    *,
    threads: int,
) -> None:
    """Do all pieces of work, at most ``threads`` at a time; their reports and results come with their numbers.

    If ``on_report`` raises :class:`lvmogp.StopFit`, so does the next report of every piece of work, and what has not
    begun never does. Any other exception does the same and is raised here once all work has ended.
    """
    take = on_report or _take_no_notice
    if threads == 1 or len(works) == 1:
        _one_by_one(works, take, on_end)
    else:
        _on_threads(works, take, on_end, threads=threads)


def _take_no_notice(number: int, content: Any) -> None:
    pass


def _one_by_one(
    works: Sequence[Work[_Report, _Result]], on_report: Taker[_Report], on_end: Callable[[int, _Result], None]
) -> None:
    stopped = False

    def report(number: int, content: _Report) -> None:
        nonlocal stopped
        try:
            on_report(number, content)
        except StopFit:
            stopped = True
            raise

    for number, work in enumerate(works):
        on_end(number, work(partial(report, number)))
        if stopped:
            return


class _Crew(NamedTuple):
    # What the threads share with the one that asked for the work.
    inbox: queue.SimpleQueue[_Reported | _Ended]
    stop: threading.Event

    def report(self, number: int, content: Any) -> None:
        reported = _Reported(number, content, threading.Event())
        self.inbox.put(reported)
        reported.taken.wait()
        if self.stop.is_set():
            raise StopFit

    def do(self, number: int, work: Work[Any, Any]) -> None:
        if self.stop.is_set():
            self.inbox.put(_Ended(number, _NEVER_BEGUN))
            return
        try:
            self.inbox.put(_Ended(number, work(partial(self.report, number))))
        except BaseException as error:  # raised again in the thread that asked for the work
            self.inbox.put(_Ended(number, _NEVER_BEGUN, error))


def _on_threads(
    works: Sequence[Work[_Report, _Result]],
    on_report: Taker[_Report],
    on_end: Callable[[int, _Result], None],
    *,
    threads: int,
) -> None:
    crew = _Crew(queue.SimpleQueue(), threading.Event())
    do = _in_the_same_precision(crew.do)
    n_running = len(works)
    failure: BaseException | None = None
    with ThreadPoolExecutor(threads) as pool:
        for number, work in enumerate(works):
            pool.submit(do, number, work)
        while n_running > 0:
            message: _Reported | _Ended | None = None
            try:
                message = crew.inbox.get()
                _take(message, _take_no_notice if crew.stop.is_set() else on_report, on_end)
            except BaseException as error:  # Ctrl-C among them; work ends at its next report
                crew.stop.set()
                failure = failure or (None if isinstance(error, StopFit) else error)
            if isinstance(message, _Reported):
                message.taken.set()
            elif message is not None:
                n_running -= 1
    if failure is not None:
        raise failure


def _take(message: _Reported | _Ended, on_report: Taker[Any], on_end: Callable[[int, Any], None]) -> None:
    if isinstance(message, _Reported):
        on_report(message.number, message.content)
    elif message.error is not None:
        raise message.error
    elif message.result is not _NEVER_BEGUN:
        on_end(message.number, message.result)


def _in_the_same_precision(function: Callable[..., None]) -> Callable[..., None]:
    # Settings of JAX belong to a thread; work is done with those of the thread that asked for it.
    config: Any = jax.config  # whose attributes are made at run time
    double, products = config.jax_enable_x64, config.jax_default_matmul_precision

    def in_another_thread(*arguments: Any) -> None:
        with jax.enable_x64(double), jax.default_matmul_precision(products):
            function(*arguments)

    return in_another_thread
