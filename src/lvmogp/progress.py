"""Progress bars for what takes longer than a few seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lvmogp.inference.restarts import MINIBATCHES, SAMPLING
from lvmogp.inference.restarts import Progress as FitProgress

# Iterations a start is expected to need before any has ended; braking needs 60, sensors 400.
_TYPICAL_ITERATIONS = 150


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Callable[[FitProgress], None] | None]:
    """Yield a callback that draws progress with an estimate of the time left, or ``None`` if not shown."""
    console = Console(stderr=True)
    if not shown or not (console.is_terminal or console.is_jupyter):  # elsewhere a bar is only noise
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[bound]}{task.fields[left]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing the starts", total=None, bound="", left="")
        estimate = time_left()

        def report(progress: FitProgress) -> None:
            share, seconds = estimate(progress, time.perf_counter())
            bar.update(
                task,
                description=_where(progress),
                total=1.0,
                completed=share,
                bound=f"{'log posterior' if progress.recipe == SAMPLING else 'bound'} {progress.bound:.1f}, ",
                left=f"about {in_words(seconds)} left",
            )

        yield report


def time_left() -> Callable[[FitProgress, float], tuple[float, float]]:
    """A function that estimates the share of a fit that is done and the seconds left, from its reports in order.

    Nobody knows beforehand how many iterations a start will need: it is expected to need as many as the earlier
    ones did on average, and the first one some more in any case.
    """
    began = 0.0
    reached: dict[int, int] = {}  # iterations of each start
    last: FitProgress | None = None

    def estimate(progress: FitProgress, now: float) -> tuple[float, float]:
        nonlocal began, reached, last
        if last is None or _begins_anew(progress, last, reached):
            began, reached = now, {}
        reached[progress.restart] = progress.iteration
        last = progress
        ended = [reached[start] for start in progress.ended if start in reached]
        expected = sum(ended) / len(ended) if ended else _TYPICAL_ITERATIONS
        running = [count for start, count in reached.items() if start not in progress.ended]
        shares = [count / (count + max(expected - count, expected / 5)) for count in running]
        share = (len(progress.ended) + sum(shares)) / progress.n_restarts
        if progress.share is not None:
            share = max(progress.share, 0.01)
        return share, (now - began) * (1 - share) / share

    return estimate


def _begins_anew(progress: FitProgress, last: FitProgress, reached: dict[int, int]) -> bool:
    # Another fit, with more latents or another kernel, or chains after a fit.
    another_kind = progress.n_latent != last.n_latent or (progress.recipe == SAMPLING) != (last.recipe == SAMPLING)
    return another_kind or progress.iteration <= reached.get(progress.restart, 0) or not last.ended <= progress.ended


def in_words(seconds: float) -> str:
    """A duration to the precision an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _where(progress: FitProgress) -> str:
    if progress.recipe == MINIBATCHES:
        return f"{_latents(progress.n_latent)}, minibatch {progress.iteration}"
    if progress.recipe == SAMPLING:
        return f"{_latents(progress.n_latent)}, {progress.n_restarts} chains, step {progress.iteration}"
    starts = f"{len(progress.ended)} of {progress.n_restarts} starts done"
    return f"{_latents(progress.n_latent)}, {starts}, iteration {progress.iteration}"


def _latents(count: int) -> str:
    return "1 latent" if count == 1 else f"{count} latents"


@contextmanager
def job_progress(description: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that takes how many jobs are done of how many, and draws them with the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("gone:"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600, disable=not shown
    ) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
