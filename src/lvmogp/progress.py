"""Progress bars for what takes longer than a few seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console

from lvmogp.inference.restarts import MINIBATCHES, SAMPLING, Progress

# Iterations a start is expected to need before any has ended; braking needs 60, sensors 400.
_TYPICAL_ITERATIONS = 150


def _bar(details: str | bars.ProgressColumn, *, shown: bool = True) -> bars.Progress:
    left, gone = bars.TimeRemainingColumn(elapsed_when_finished=False), bars.TimeElapsedColumn()
    columns = "{task.description}", bars.BarColumn(bar_width=30), details, "left:", left, "gone:", gone
    console = Console(stderr=True)
    return bars.Progress(*columns, console=console, transient=True, speed_estimate_period=3600, disable=not shown)


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a callback that draws progress with an estimate of the time left, or ``None`` if not shown."""
    console = Console(stderr=True)
    if not shown or not (console.is_terminal or console.is_jupyter):  # elsewhere a bar is only noise
        yield None
        return
    with _bar("{task.fields[bound]}") as bar:
        task = bar.add_task("preparing the starts", total=None, bound="")
        share_done = shares_done()

        def report(progress: Progress) -> None:
            bound = f"{'log posterior' if progress.recipe == SAMPLING else 'bound'} {progress.bound:.1f}"
            bar.update(task, description=_where(progress), total=1.0, completed=share_done(progress), bound=bound)

        yield report


def shares_done() -> Callable[[Progress], float]:
    """Return a function that estimates the share of a fit that is done, from its reports in order.

    Nobody knows beforehand how many iterations a start will need: it is expected to need as many as the earlier
    ones did on average, and the first one some more in any case.
    """
    reached: dict[int, int] = {}  # iterations of each start
    before: frozenset[int] = frozenset()

    def share_done(progress: Progress) -> float:
        nonlocal before
        if progress.share is not None:
            return progress.share
        if progress.iteration <= reached.get(progress.restart, 0) or not before <= progress.ended:
            reached.clear()  # another fit, with more latents or another kernel
        reached[progress.restart], before = progress.iteration, progress.ended
        ended = [reached[start] for start in progress.ended if start in reached]
        expected = sum(ended) / len(ended) if ended else _TYPICAL_ITERATIONS
        running = [count for start, count in reached.items() if start not in progress.ended]
        shares = [count / (count + max(expected - count, expected / 5)) for count in running]
        return (len(progress.ended) + sum(shares)) / progress.n_restarts

    return share_done


def in_words(seconds: float) -> str:
    """A duration to the precision an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _where(progress: Progress) -> str:
    latents = "1 latent" if progress.n_latent == 1 else f"{progress.n_latent} latents"
    if progress.recipe == MINIBATCHES:
        return f"{latents}, minibatch {progress.iteration}"
    if progress.recipe == SAMPLING:
        return f"{latents}, {progress.n_restarts} chains, step {progress.iteration}"
    return f"{latents}, {len(progress.ended)} of {progress.n_restarts} starts done, iteration {progress.iteration}"


@contextmanager
def job_progress(description: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that takes how many jobs are done of how many, and draws them with the time left."""
    with _bar(bars.MofNCompleteColumn(), shown=shown) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
