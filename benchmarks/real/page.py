"""Tables of what was found on real data, and the page of the documentation that holds them.

    python -m benchmarks.real.page                       write docs/real-data.md from results/real/real.jsonl
    python -m benchmarks.real.page --print FILE FILE     print the tables of some files, to compare settings

Of lines for the same task, method and split, in one file or several, the last counts.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.pages import with_part
from benchmarks.real.problems import KINDS, MAP, OURS, TABLES, set_and_kind
from benchmarks.real.runner import lines_of
from benchmarks.rivals.environments import ROOT
from lvmogp.insight.validation import Figure, PooledScores, Tallies, log_relative_error, scores

RESULTS, PAGE = ROOT / "results" / "real" / "real.jsonl", ROOT / "docs" / "real-data.md"
BEGIN, END = "<!-- made by benchmarks/real/page.py, do not edit -->", "<!-- end of what it made -->"
_NOTHING = "Nothing has been measured yet."

Line = Mapping[str, Any]
Runs = dict[str, dict[str, dict[int, Line]]]  # lines by task, method and split


class OnSet(NamedTuple):
    """How well a method does on one task: its scores, its error beside others' (logarithms of ratios), and its time."""

    scores: PooledScores
    beside_rival: Figure
    beside_ours: Figure
    n_splits: int
    seconds: float


def read(paths: Iterable[Path]) -> Runs:
    """Read files of results."""
    runs: Runs = {}
    for line in lines_of(paths):
        runs.setdefault(line["task"], {}).setdefault(line["method"], {})[line["split"]] = line
    return runs


def is_ours(method: str) -> bool:
    """Whether a method is one of ours; their names begin alike."""
    return method.startswith(OURS)


def by_task(runs: Runs) -> dict[str, dict[str, OnSet]]:
    """Compare the methods on each task.

    Errors are compared on the splits that both methods have. The best rival of a task has the least error beside ours,
    of those with at least half as many splits as the rival that has most.
    """
    found: dict[str, dict[str, OnSet]] = {}
    for task, lines in runs.items():
        own = {method: scores(_tallies(some, sorted(some))) for method, some in lines.items()}
        most = max((len(some) for method, some in lines.items() if not is_ours(method)), default=0)
        many = [method for method, some in lines.items() if not is_ours(method) and 2 * len(some) >= most]
        errors = {method: _beside(lines[method], lines.get(OURS, lines[method])).value for method in many}
        best = min(many, key=lambda method: (errors[method], own[method].rmse.value), default=None)
        found[task] = {
            method: OnSet(
                own[method],
                _beside(some, lines.get(best or "", {})),
                _beside(some, lines.get(OURS, {})),
                len(some),
                float(np.median([line["seconds"] for line in some.values()])),
            )
            for method, some in lines.items()
        }
    return found


def by_kind(runs: Runs) -> dict[str, dict[str, dict[str, OnSet]]]:
    """Return the comparisons by kind of task, set and method; what was not measured is left out."""
    found, order = by_task(runs), [*TABLES, MAP]
    named = sorted((order.index(name), kind, task) for task in found for name, kind in [set_and_kind(task)])
    kinds = {kind: {order[place]: found[task] for place, own, task in named if own == kind} for kind in KINDS}
    return {kind: sets for kind, sets in kinds.items() if sets}


def _tallies(lines: Mapping[int, Line], splits: Sequence[int]) -> Tallies:
    # A split is a group: its conditions were predicted by one fit.
    chosen = [lines[split] for split in splits]
    n_rows = np.array([line["n_test"] for line in chosen], dtype=float)
    means = (np.array([line[name] for line in chosen]) for name in ("log_density", "coverage", "width"))
    squared_error = np.array([line["squared_error"] for line in chosen])
    return Tallies(n_rows, squared_error, *(n_rows * mean for mean in means))


def _beside(lines: Mapping[int, Line], others: Mapping[int, Line]) -> Figure:
    shared = sorted(set(lines) & set(others))
    if not shared:
        return Figure(float("nan"), float("nan"))
    return log_relative_error(_tallies(lines, shared), _tallies(others, shared))


# Tables


def tables(runs: Runs) -> str:
    """All tables: for each kind of task all sets together, then each set by itself."""
    if not runs:
        return _NOTHING
    kinds = by_kind(runs)
    parts = ["## All sets together"]
    parts += [f"### {title(kind)}\n\n{_together(sets)}" for kind, sets in kinds.items()]
    parts += _absolute_errors(runs.get(MAP, {}))
    parts += ["## Each set by itself"]
    parts += [f"### {title(kind)}, by set\n\n{_one_by_one(sets)}" for kind, sets in kinds.items()]
    return "\n\n".join(parts)


def _absolute_errors(methods: Mapping[str, Mapping[int, Line]]) -> list[str]:
    # What the literature reports of the map; in several runs of one method seeds differ, of which the median counts.
    errors = {
        method: [line["absolute_error"] for line in lines.values() if "absolute_error" in line]
        for method, lines in methods.items()
    }
    found = {method: values for method, values in errors.items() if values}
    if not found:
        return []
    rows = [
        [method, f"{len(found[method])}", *(f"{at(found[method]):.3f}" for at in (np.median, np.min, np.max))]
        for method in sorted(found, key=lambda method: not is_ours(method))
    ]
    head = ["method", "seeds", "mean absolute error, median", "least", "most"]
    return [f"In mg of cadmium per kg, as the literature has it:\n\n{_table(head, rows)}"]


def title(kind: str) -> str:
    """Return what a kind of task is called in headings."""
    words = {"1": "one point", "3": "three points", "5": "five points"}
    first, _, last = kind.rpartition(" ")
    return f"New conditions from {words[last]}" if last in words else f"{first} {last}".strip().capitalize()


def _together(sets: Mapping[str, Mapping[str, OnSet]]) -> str:
    head = ["method", "sets", "RMSE / best rival's", "RMSE / ours", "log density", "coverage", "width", "seconds"]
    rows = []
    for method in _methods(sets):
        some = [methods[method] for methods in sets.values() if method in methods]
        rows.append(
            [
                method,
                f"{len(some)}",
                _ratio(geometric_mean([each.beside_rival for each in some])),
                _ratio(geometric_mean([each.beside_ours for each in some])),
                *_rest(
                    [mean_figure([each.scores[place] for each in some]) for place in (1, 2, 3)],
                    float(np.mean([each.seconds for each in some])),
                ),
            ]
        )
    return _table(head, rows)


def _one_by_one(sets: Mapping[str, Mapping[str, OnSet]]) -> str:
    head = ["set", "method", "splits", "RMSE", "/ best rival's", "log density", "coverage", "width", "seconds"]
    rows = [
        [
            name,
            method,
            f"{each.n_splits}",
            _plain(each.scores.rmse),
            _ratio(each.beside_rival),
            *_rest(each.scores[1:], each.seconds),
        ]
        for name, methods in sets.items()
        for method, each in ((method, methods[method]) for method in _methods({name: methods}))
    ]
    return _table(head, rows)


def _methods(sets: Mapping[str, Mapping[str, OnSet]]) -> list[str]:
    # Ours first, then the rivals, each in the order of the file.
    named = dict.fromkeys(method for methods in sets.values() for method in methods)
    return sorted(named, key=lambda method: not is_ours(method))


def mean_figure(figures: Sequence[Figure]) -> Figure:
    """Return the mean of independent figures."""
    values, errors = np.transpose(figures)
    return Figure(float(values.mean()), float(np.sqrt(np.sum(errors**2)) / len(values)))


def geometric_mean(logarithms: Sequence[Figure]) -> Figure:
    """Return the mean of the logarithms that there are: some methods have no split in common."""
    there = [figure for figure in logarithms if np.isfinite(figure.value)]
    return mean_figure(there) if there else Figure(float("nan"), float("nan"))


def _rest(figures: Sequence[Figure], seconds: float) -> list[str]:
    density, coverage, width = figures
    return [_plain(density), f"{100 * coverage.value:.1f} %", f"{width.value:.3f}", f"{seconds:.3g}"]


def _ratio(logarithm: Figure) -> str:
    # exp(l) changes by exp(l) times what l changes by.
    if np.isnan(logarithm.value):
        return ""
    return _plain(Figure(float(np.exp(logarithm.value)), float(np.exp(logarithm.value) * logarithm.standard_error)))


def _plain(figure: Figure) -> str:
    known = np.isfinite(figure.standard_error)
    return f"{figure.value:.3f} ± {figure.standard_error:.3f}" if known else f"{figure.value:.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (head, ["-" * width for width in widths], *rows)
    return "\n".join(f"| {' | '.join(map(str.ljust, cells, widths))} |" for cells in lines)


def page_text(text: str, paths: Iterable[Path]) -> str:
    """The page with the tables that follow from the files."""
    return with_part(text, BEGIN, END, tables(read(paths)))


def build() -> None:
    """Write the page."""
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8"), [RESULTS]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", nargs="+", type=Path, metavar="FILE", help="print the tables of these files")
    given = parser.parse_args()
    if given.print:
        print(tables(read(given.print)))
    else:
        build()


if __name__ == "__main__":
    main()
