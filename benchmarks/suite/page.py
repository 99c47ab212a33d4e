"""The page of benchmarks, made from the files that the suite wrote; nothing measured is written by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals.environments import ROOT
from benchmarks.suite.floors import least_seconds
from benchmarks.suite.questions import QUESTIONS
from benchmarks.suite.records import Record

RESULTS, PAGE = ROOT / "results" / "benchmarks", ROOT / "docs" / "benchmarks.md"
_OPENING = """# Benchmarks

Made by `make benchmark-page` from the files in `results/benchmarks`, which `make benchmark` measures anew: we and the
rivals on the same data, in the same run on the same machine, taking turns where that is possible. Ratios are those of
the least times, so that whatever else ran counts least; medians stand in brackets. Compare ratios, not times.

*At least* says how long the operations and bytes that nothing avoids would take one thread of that machine, at the rate
of its matrix products in double precision and of its copies; the counts are by formula
(`benchmarks/suite/floors.py`). A *bar* is what we set out to reach.
"""
_NOTHING = "\nNothing has been measured yet.\n"
_OTHER_TITLES = {
    "gpu-grid": "A large grid on a GPU",
    "gpu-streaming": "A hundred million rows on a GPU",
    "kills": "Killed and resumed",
}
_GENERIC_COLUMNS = ("what", "bar", "measured", "unit", "reached", "device", "command")


def build(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(page_text(results))


def page_text(results: Path) -> str:
    """All bars in one table, a section for each question, then what other scripts measured on other devices."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    known = {name: files[name] for name in QUESTIONS if name in files}
    others = {name: found for name, found in files.items() if name not in QUESTIONS}
    if not known and not others:
        return _OPENING + _NOTHING
    sections = [_OPENING, _summary(known)] if known else [_OPENING]
    sections += [_section(name, found, results) for name, found in known.items()]
    sections += [_other_section(name, found) for name, found in others.items()]
    return "\n".join(sections)


def _summary(known: Mapping[str, Any]) -> str:
    lines = [
        f"| {line['what']} | {line['against']} | {line['bar']} | {_measured(line)} | {_reached(line)} |"
        for found in known.values()
        for line in found["records"]
        if "bar" in line
    ]
    head = ["## All bars", "", "| what | against | bar | measured | reached |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *lines, ""])


def _section(name: str, found: Mapping[str, Any], results: Path) -> str:
    question = QUESTIONS[name]
    parts = [f"## {question.title}", question.about, _table(found["records"], found["machine"])]
    if question.gap:
        parts.append(f"**What is left.** {question.gap}")
    if (results / f"{name}.png").exists():
        parts.append(f"![{question.title}: test error against time](../results/benchmarks/{name}.png)")
        parts.append("*Each of our marks is a fit of its own that was stopped there; rivals show theirs on the way.*")
    parts.append(f"*{_machine_words(found['machine'])}. `{found['command']}`*")
    return "\n\n".join(parts) + "\n"


def _table(records: Sequence[Record], machine: Mapping[str, Any]) -> str:
    columns: dict[str, Callable[[Record], str]] = {
        "what": lambda line: line["what"],
        "ours": lambda line: _figure(line["ours"], line["figures_in"]),
        "rival": lambda line: _figure(line["rival"], line["figures_in"]),
        "against": lambda line: line["against"],
        "our RMSE": lambda line: _number(line.get("rmse")),
        "its RMSE": lambda line: _number(line.get("rival_rmse")),
        "its best on the way": lambda line: _number(line.get("rival_best_rmse")),
        "measured": _measured,
        "the paper's formula": lambda line: _number(line.get("predicted")),
        "bar": lambda line: line.get("bar", ""),
        "reached": _reached,
        "at least": lambda line: _floor(line.get("floor"), machine),
        "its at least": lambda line: _floor(line.get("rival_floor"), machine),
        "note": _note,
    }
    cells = {name: [cell(line) for line in records] for name, cell in columns.items()}
    used = {name: column for name, column in cells.items() if any(column)}
    rows = zip(*used.values(), strict=True)
    return "\n".join([_row(used), _row(["---"] * len(used)), *map(_row, rows)])


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _figure(value: Any, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        several = f" ({_seconds(value['median'])}, {value['repeats']} times)" if value["repeats"] > 1 else ""
        return _seconds(value["minimum"]) + several
    return f"{_number(value)} {unit}".strip()


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{1e6 * value:.3g} µs"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.3g}"


def _measured(line: Record) -> str:
    return "" if line["measured"] is None else f"{_number(line['measured'])} {line['unit']}"


def _reached(line: Record) -> str:
    return ("yes" if line["reached"] else "**no**") if "reached" in line else ""


def _floor(floor: Mapping[str, float] | None, machine: Mapping[str, Any]) -> str:
    if floor is None:
        return ""
    return (
        f"{_seconds(least_seconds(floor, machine))} ({floor['operations']:.1e} operations, {floor['bytes']:.1e} bytes)"
    )


def _note(line: Record) -> str:
    threads = {1: "one thread", None: ""}.get(line.get("threads"), f"{line.get('threads')} threads")
    return "; ".join(filter(None, [threads, line.get("note", "")]))


def _machine_words(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    rates = f"{machine['gflops_one_thread']} Gflop/s on one thread, {machine['gb_per_second']} GB/s"
    parts = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}",
        versions,
        rates,
        f"{machine['date']}, load {machine['load_before']} before",
    ]
    return "; ".join(parts)


def _other_section(name: str, found: Any) -> str:
    records = found["records"] if isinstance(found, Mapping) else found
    rows = [_row([_generic(line.get(column)) for column in _GENERIC_COLUMNS]) for line in records]
    head = [f"## {_OTHER_TITLES.get(name, name)}", "", _row(_GENERIC_COLUMNS), _row(["---"] * len(_GENERIC_COLUMNS))]
    return "\n".join([*head, *rows, ""])


def _generic(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return _number(value)


if __name__ == "__main__":
    build()
