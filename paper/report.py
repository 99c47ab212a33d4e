"""Tables of an experiment: every method's mean and spread, the paper's numbers beside, and paired comparisons."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lvmogp.ground.writing import replace_file
from paper.plan import COMPARED, GP_IND, Experiment
from paper.records import Result, sealed, summary_path

_MEASURES = ("rmse", "nlpd", "coverage", "seconds")
_SHARED = "several repeats ran at a time and shared the machine"


class Spread(NamedTuple):
    """Mean and standard deviation over repeats."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        digits = 3 if abs(self.mean) < 10 else 1
        if abs(self.mean) >= 1000:
            return f"{self.mean:.1e} ± {self.deviation:.1e}"
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


class Comparison(NamedTuple):
    """One method against another on the same repeats."""

    ratio: Spread
    wins: int
    n_repeats: int


def by_method(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Results by method and repeat."""
    found: dict[str, dict[int, Result]] = {}
    for result in results:
        found.setdefault(result["method"], {})[result["repeat"]] = result
    return found


def spread(results: Mapping[int, Result], measure: str) -> Spread:
    """Mean and standard deviation of a measure over a method's repeats."""
    values = [result[measure] for result in results.values()]
    return Spread(float(np.mean(values)), float(np.std(values)))


def compared(ours: Mapping[int, Result], theirs: Mapping[int, Result]) -> Comparison:
    """Ratios of errors on the repeats that both have."""
    common = sorted(set(ours) & set(theirs))
    ratios = np.asarray([ours[repeat]["rmse"] / theirs[repeat]["rmse"] for repeat in common])
    return Comparison(Spread(float(ratios.mean()), float(ratios.std())), int(np.sum(ratios < 1)), len(common))


def summary(results: Sequence[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and spread of each measure of each method."""
    methods = by_method(results)
    return {
        method: {measure: spread(repeats, measure)._asdict() for measure in _MEASURES}
        for method, repeats in methods.items()
    }


def markdown(name: str, experiment: Experiment, results: Sequence[Result]) -> str:
    """The experiment's section of the results page."""
    methods = by_method(results)
    n_repeats = max(len(repeats) for repeats in methods.values())
    lines = [
        f"## {experiment.title}",
        "",
        f"`python -m paper {name}`, {n_repeats} repeats, mean ± standard deviation. Tested: {experiment.tested}.",
        "",
        "| method | RMSE | paper's RMSE | NLPD | 95 % intervals cover | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in experiment.entries:
        if method in methods:
            repeats = methods[method]
            cells = [str(spread(repeats, measure)) for measure in _MEASURES]
            short = "" if len(repeats) == n_repeats else f" ({len(repeats)} of {n_repeats} repeats)"
            lines.append(
                f"| {method}{short} | {cells[0]} | {experiment.paper.get(method, '')} | {cells[1]} | {cells[2]} "
                f"| {cells[3]} |"
            )
    lines += [
        "",
        *_settings(experiment, methods),
        _devices(experiment, methods),
        "",
        *_comparisons(experiment, methods),
    ]
    if any("r_squared" in result for result in results):
        lines += ["", *_latents(methods)]
    return "\n".join(lines).rstrip() + "\n"


def _settings(experiment: Experiment, methods: Mapping[str, Any]) -> list[str]:
    said = [
        f"{name}: {entry.settings}" for name, entry in experiment.entries.items() if entry.settings and name in methods
    ]
    return ["Settings. " + "; ".join(said) + "."] if said else []


def _devices(experiment: Experiment, methods: Mapping[str, Mapping[int, Result]]) -> str:
    found: dict[str, list[str]] = {}
    for method in experiment.entries:
        for kind in sorted({result["device"] for result in methods.get(method, {}).values()}):
            found.setdefault(kind, []).append(method)
    if len(found) == 1:
        return f"Seconds are those of one fit on one {next(iter(found))}, compilation included; {_SHARED}."
    where = "; ".join(f"on one {kind}: {' / '.join(names)}" for kind, names in found.items())
    return f"Seconds are those of one fit, compilation included; {_SHARED}; {where}."


def _comparisons(experiment: Experiment, methods: Mapping[str, Mapping[int, Result]]) -> list[str]:
    lines = ["| on the same repeats | ratio of RMSE | ahead in |", "| --- | --- | --- |"]
    for ours in COMPARED:
        for other in experiment.entries:
            if ours in methods and other in methods and other not in COMPARED:
                found = compared(methods[ours], methods[other])
                lines.append(f"| {ours} / {other} | {found.ratio} | {found.wins} of {found.n_repeats} |")
    pooled = [
        f"{ours} {ratio_of_means(methods[ours], methods[GP_IND]):.3f}"
        for ours in COMPARED
        if ours in methods and GP_IND in methods
    ]
    if pooled:
        lines += ["", f"Ratio of mean RMSE to that of {GP_IND}: {'; '.join(pooled)}."]
    return lines


def ratio_of_means(ours: Mapping[int, Result], theirs: Mapping[int, Result]) -> float:
    """Ratio of mean errors over the repeats that both have."""
    common = set(ours) & set(theirs)
    return sum(ours[repeat]["rmse"] for repeat in common) / sum(theirs[repeat]["rmse"] for repeat in common)


def _latents(methods: Mapping[str, Mapping[int, Result]]) -> list[str]:
    said = []
    for method, repeats in methods.items():
        values = [result["r_squared"] for result in repeats.values() if "r_squared" in result]
        if values:
            said.append(f"{method} {np.mean(values):.4f} on average, {min(values):.4f} at least")
    return ["R² of the inverse friction on the latent: " + "; ".join(said) + "."]


def write(folder: Path, name: str, experiment: Experiment, results: Sequence[Result], *, quick: bool) -> list[Path]:
    """Write all repeats with their summary as JSON, and the table as Markdown."""
    ordered = sorted(results, key=lambda result: (list(experiment.entries).index(result["method"]), result["repeat"]))
    data = summary_path(name, folder, quick=quick)
    table = data.with_suffix(".md")
    replace_file(data, _document(name, ordered).encode())
    replace_file(table, markdown(name, experiment, ordered).encode())
    return [data, table]


def _document(name: str, results: Sequence[Result]) -> str:
    # One line per repeat, so that differences between versions can be read.
    lines = ",\n".join("  " + json.dumps(sealed(_rounded(result))) for result in results)
    head = json.dumps({"experiment": name, "summary": summary(results)}, indent=1)
    return head[: head.rindex("\n}")] + f',\n "repeats": [\n{lines}\n ]\n}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return {key: _rounded(entry) for key, entry in value.items()} if isinstance(value, dict) else value
