"""Processes that were forked too late to compute.

A fork copies one thread and no other. JAX waits for threads of its own from its first use on, so a process that is
forked after that would wait for ever.
"""

import os

from lvmogp.errors import ForkedProcessError


class _Process:
    # Whether this process has computed, and whether it was forked from one that had.
    has_computed = False
    lost_its_threads = False


def _after_fork() -> None:
    _Process.lost_its_threads = _Process.has_computed


if hasattr(os, "register_at_fork"):  # which systems without fork do not have
    os.register_at_fork(after_in_child=_after_fork)


def can_compute() -> bool:
    """Whether this process has the threads that JAX waits for; from now on it counts as one that computes."""
    _Process.has_computed = True
    return not _Process.lost_its_threads


def check_can_compute() -> None:
    """The same; a process that cannot compute says so, rather than wait for ever."""
    if not can_compute():
        raise ForkedProcessError(
            "this process was forked after its parent had used lvmogp, and threads that JAX waits for stayed with the "
            'parent. Start workers with spawn instead of fork: multiprocessing.get_context("spawn"), '
            'joblib.Parallel(backend="loky"), DataLoader(multiprocessing_context="spawn"); or fork before the first '
            "fit, prediction or load"
        )
