"""Progress bars for what takes longer than a few seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lvmogp.fit import Progress as FitProgress


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Callable[[FitProgress], None] | None]:
    """Yield a callback that draws progress with an estimate of the time left, or ``None`` if not shown."""
    if not shown:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("bound {task.fields[bound]}  {task.fields[left]}"),
        TimeElapsedColumn(),
    )
    began = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=1, bound="…", left="")

        def report(progress: FitProgress) -> None:
            done = progress.restart - 1
            elapsed = time.perf_counter() - began
            left = f"about {elapsed / done * (progress.n_restarts - done):.0f} s left" if done else ""
            bar.update(
                task,
                description=f"start {progress.restart} of {progress.n_restarts}, iteration {progress.iteration}",
                total=progress.n_restarts,
                completed=done,
                bound=f"{progress.bound:.1f}",
                left=left,
            )

        yield report


@contextmanager
def job_progress(description: str) -> Iterator[Callable[[int, int], None]]:
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
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
