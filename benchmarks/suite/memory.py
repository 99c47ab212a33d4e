"""Peak memory: of one bound with its gradient against GPy's, and of minibatches."""

from benchmarks.suite.bound import Size, asked
from benchmarks.suite.minibatches import memory_of_minibatches
from benchmarks.suite.processes import OURS, answer_of
from benchmarks.suite.records import Found, record

_SIZES = (Size(True, 1000, 1000, 2, 50, 20), Size(False, 20_000, 100, 2, 50, 20))
_QUICK = (Size(True, 50, 40, 1, 10, 30),)


def memory(*, quick: bool) -> Found:
    """What each process had at most, above what it had once its imports and the data were there."""
    records = []
    for size in _QUICK if quick else _SIZES:
        settings = {**asked(size, "explicit", one_thread=True)[1], "task": "peak"}
        ours, theirs = answer_of(OURS, settings), answer_of("gpy", settings)
        used = [found["peak_mb"] - found["before_mb"] for found in (ours, theirs)]
        records.append(
            record(
                f"{size}, explicit: one bound with gradient",
                ours=used[0],
                rival=used[1],
                against=f"GPy {theirs['version']}",
                figures_in="MB above imports and data",
                measured=used[1] / max(used[0], 1.0),
                before_mb=ours["before_mb"],
                rival_before_mb=theirs["before_mb"],
                note="ours includes the compiler",
            )
        )
    return Found(records + memory_of_minibatches(quick=quick))
