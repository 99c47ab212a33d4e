"""Independent pieces of work on several threads, whose reports are taken in the thread that asked for the work."""

import os
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import joblib

from lvmogp.ground.precision import in_current_precision
from lvmogp.inference.optimise import StopFit

# A piece of work is given the function that takes its reports, and returns its result.
Work = Callable[[Callable[[Any], None]], Any]
# What takes a report or a result, with the number of the work that it comes from.
Take = Callable[[int, Any], None]


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
    stopped = False

    def report(number: int, content: Any) -> None:
        nonlocal stopped
        try:
            on_report(number, content)
        except StopFit:
            stopped = True
            raise

    for number, work in works.items():
        if not stopped:
            on_end(number, work(partial(report, number)))
