"""Work on several threads."""

import threading
from functools import partial

import jax
import pytest

from lvmogp.inference.optimise import StopFit, n_threads, side_by_side

ONE_AND_MANY = pytest.mark.parametrize("threads", [1, 2, 5])


def nothing(number, content):
    """Take no notice."""


def counting(upto):
    def work(report):
        for number in range(upto):
            report(number)
        return upto**2

    return work


@ONE_AND_MANY
def test_all_work_is_done_with_all_its_reports_in_the_thread_that_asked(threads):
    reports, results, where = [], {}, set()

    def take(number, content):
        reports.append((number, content))
        where.add(threading.get_ident())

    side_by_side({upto: counting(upto) for upto in (5, 0, 9)}, take, results.__setitem__, threads=threads)
    assert results == {5: 25, 0: 0, 9: 81}
    assert where == {threading.get_ident()}
    for upto in (5, 9):
        assert [content for each, content in reports if each == upto] == list(range(upto))
    if threads > 1:
        meeting = threading.Barrier(2, timeout=30)  # which nobody passes alone
        side_by_side(dict.fromkeys((0, 1), lambda report: meeting.wait()), nothing, results.__setitem__, threads=2)
        assert (results[0], results[1]) in ((0, 1), (1, 0))


@ONE_AND_MANY
def test_a_request_to_stop_reaches_all_and_what_has_not_begun_never_does(threads):
    begun, results = [], {}

    def work(number, report):
        begun.append(number)
        try:
            for step in range(10_000):
                report(step)
        except StopFit:
            return "stopped"
        return "ended"

    def take(number, content):
        if content == 3:
            raise StopFit

    works = {number: partial(work, number) for number in range(12)}
    side_by_side(works, take, results.__setitem__, threads=threads)
    assert set(results.values()) == {"stopped"}
    assert sorted(results) == sorted(begun)
    assert len(begun) <= threads


@ONE_AND_MANY
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_report_or_work_raises_is_raised_to_who_asked(threads, error):
    def fail(*_):
        raise error("no more")

    for works, take in (((counting(10_000),) * 3, fail), ((counting(3), fail), nothing)):
        with pytest.raises(error, match="no more"):
            side_by_side(dict(enumerate(works)), take, nothing, threads=threads)
    assert threading.active_count() < 20


@ONE_AND_MANY
def test_work_is_done_with_the_precision_of_who_asked(threads):
    results = {}
    found = lambda report: (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)  # noqa: E731
    for double in (True, False):
        with jax.enable_x64(double), jax.default_matmul_precision("highest"):
            side_by_side(dict.fromkeys((0, 1), found), nothing, results.__setitem__, threads=threads)
        assert results == {0: (double, "highest"), 1: (double, "highest")}


def test_threads_are_no_more_than_a_share_of_the_cores(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert n_threads() == 8
    for given, expected in (("3", 3), ("16", 8), ("0", 8), ("4,2", 4), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert n_threads() == expected
