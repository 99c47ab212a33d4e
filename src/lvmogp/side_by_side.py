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

from lvmogp.optimise import StopFit

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
    if threads == 1 or len(works) == 1:
        _one_by_one(works, on_report, on_end)
    else:
        _on_threads(works, on_report, on_end, threads=threads)


def _one_by_one(
    works: Sequence[Work[_Report, _Result]], on_report: Taker[_Report] | None, on_end: Callable[[int, _Result], None]
) -> None:
    stopped = False

    def report(number: int, content: _Report) -> None:
        nonlocal stopped
        try:
            if on_report is not None:
                on_report(number, content)
        except StopFit:
            stopped = True
            raise

    for number, work in enumerate(works):
        on_end(number, work(partial(report, number)))
        if stopped:
            return


def _on_threads(
    works: Sequence[Work[_Report, _Result]],
    on_report: Taker[_Report] | None,
    on_end: Callable[[int, _Result], None],
    *,
    threads: int,
) -> None:
    inbox: queue.SimpleQueue[_Reported | _Ended] = queue.SimpleQueue()
    stop = threading.Event()
    # Settings of JAX belong to a thread; work is done with those of the thread that asked for it.
    config: Any = jax.config  # whose attributes are made at run time
    double, products = config.jax_enable_x64, config.jax_default_matmul_precision

    def report(number: int, content: _Report) -> None:
        if on_report is not None:
            reported = _Reported(number, content, threading.Event())
            inbox.put(reported)
            reported.taken.wait()
        if stop.is_set():
            raise StopFit

    def do(number: int, work: Work[_Report, _Result]) -> None:
        if stop.is_set():
            inbox.put(_Ended(number, _NEVER_BEGUN))
            return
        try:
            with jax.enable_x64(double), jax.default_matmul_precision(products):
                inbox.put(_Ended(number, work(partial(report, number))))
        except BaseException as error:  # raised again in the thread that asked for the work
            inbox.put(_Ended(number, _NEVER_BEGUN, error))

    def take(message: _Reported | _Ended) -> None:
        if isinstance(message, _Reported):
            assert on_report is not None
            on_report(message.number, message.content)
        elif message.error is not None:
            raise message.error
        elif message.result is not _NEVER_BEGUN:
            on_end(message.number, message.result)

    n_running = len(works)
    failure: BaseException | None = None
    with ThreadPoolExecutor(threads) as pool:
        for number, work in enumerate(works):
            pool.submit(do, number, work)
        while n_running > 0:
            message: _Reported | _Ended | None = None
            try:
                message = inbox.get()
                take(message)
            except StopFit:
                stop.set()
            except BaseException as error:  # Ctrl-C among them; work ends at its next report
                stop.set()
                failure = failure or error
            if isinstance(message, _Reported):
                message.taken.set()
            elif message is not None:
                n_running -= 1
    if failure is not None:
        raise failure
