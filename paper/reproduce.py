"""``lvmogp reproduce``: an experiment from data to tables and figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lvmogp.errors import SettingError
from paper import figures, report, runner
from paper.baselines import gpy
from paper.plan import GPY, Experiment, experiments

REPEATS = 20


class Reproduction(NamedTuple):
    """What an experiment gave."""

    name: str
    results: list[dict[str, Any]]
    table: str
    files: list[Path]


def reproduce(
    name: str,
    folder: Path,
    *,
    repeats: int | None = None,
    quick: bool = False,
    methods: Sequence[str] | None = None,
    n_jobs: int = 1,
    data_dir: Path | None = None,
    with_figures: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reproduction:
    """Run what is not yet on disk, then write the JSON of all repeats, the table and the figures."""
    experiment = chosen(name, methods)
    n_repeats = repeats or (1 if quick else REPEATS)
    everything = runner.jobs(name, experiment, repeats=n_repeats, quick=quick)
    runner.problem_of(everything[0], experiment, data_dir)  # missing data files are told before any work
    earlier = runner.stored(name, folder, quick=quick)
    pending = [job for job in everything if job not in earlier]
    n_done = len(everything) - len(pending)

    def collect(_: dict[str, Any]) -> None:
        nonlocal n_done
        n_done += 1
        on_progress(n_done, len(everything))

    on_progress(n_done, len(everything))
    runner.run(pending, experiment, folder, data_dir=data_dir, n_jobs=n_jobs, on_result=collect)
    # Of all methods, also those that this run left alone.
    experiment = experiments()[name]
    kept = runner.stored(name, folder, quick=quick).values()
    results = [result for result in kept if result["method"] in experiment.entries]
    files = report.write(folder, name, experiment, results, quick=quick)
    if with_figures:
        files += figures.draw(folder, name, experiment, results, data_dir=data_dir, quick=quick)
    return Reproduction(name, results, report.markdown(name, experiment, results), files)


def chosen(name: str, methods: Sequence[str] | None) -> Experiment:
    """An experiment by name, with some of its methods or all."""
    table = experiments()
    if name not in table:
        raise SettingError(f"there is no experiment {name!r}; choose one of {', '.join(table)}, or all")
    experiment = table[name]
    if not methods:
        return experiment
    unknown = [method for method in methods if method not in experiment.entries]
    if unknown:
        raise SettingError(
            f"{name} has no method {unknown[0]!r}; choose among {', '.join(map(repr, experiment.entries))}"
        )
    if GPY in methods and not gpy.is_installed():
        raise SettingError("GPy is not installed; install it with: pip install GPy")
    return experiment._replace(entries={method: experiment.entries[method] for method in methods})
