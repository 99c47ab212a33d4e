"""The results page and the README's table, made from the files that ``python -m paper`` wrote."""

import os
from collections.abc import Mapping
from pathlib import Path

from lvmogp.ground.writing import replace_file
from paper import report
from paper.plan import COMPARED, GP_IND, GPY, LMC, OURS, experiments
from paper.records import results_in, summary_path

BEGIN, END = "<!-- results: made by `make results`, do not edit -->", "<!-- end of results -->"
_OPENING = """# The paper's experiments

Every table here is made by `make results` from the files in [results](../results), which hold all repeats and which
`python -m paper all` makes anew. Repeats differ in their data only; all methods see the same data, standardised in
the same way, with the same kernel over inputs and the same noise option; "plain RBF" marks exceptions. NLPD is the mean
negative log density of what is tested; lower is better for it and for the RMSE. Densities and intervals are those of
normal predictions, under NUTS those of the mixture that the draws make.

LVMOGP is the paper's model with the paper's numbers of inducing points, *own settings* the same model with settings of
our own, and *lvmogp, defaults* the library as it comes, with shared and own curves and pooled noise. GP-WO is one
Gaussian process without conditions; GP-ind one for each condition, with hyperparameters shared by all or its own;
GP-OH one with the condition, or the factors that make it up, as one-hot inputs; LMC the linear model of
coregionalisation.
"""


def build(results: Path, page: Path, readme: Path) -> None:
    """Write the page and the README's table."""
    known = {
        name: _results(name, results) for name in experiments() if summary_path(name, results, quick=False).exists()
    }
    replace_file(page, page_text(known, results, os.path.relpath(results, page.parent)).encode())
    replace_file(readme, with_table(readme.read_text(), summary_table(known)).encode())


def _results(name: str, folder: Path) -> list[report.Result]:
    return results_in(summary_path(name, folder, quick=False))


def page_text(known: Mapping[str, list[report.Result]], results: Path, link: str) -> str:
    """A section for each experiment: its table, then its figures."""
    sections = [_OPENING]
    for name, found in known.items():
        experiment = experiments()[name]
        pictures = [path for path in sorted(results.glob("*.png")) if _experiment_of(path) == name]
        pictures += sorted(results.glob(f"{name}-figures/{name}.png"))
        shown = "\n\n".join(
            f"![{experiment.title}: {_words(path, name)}]({link}/{path.relative_to(results).as_posix()})"
            for path in pictures
        )
        sections.append(report.markdown(name, experiment, found) + (f"\n{shown}\n" if shown else ""))
    return "\n".join(sections)


def _experiment_of(picture: Path) -> str:
    # The longest name that fits: synthetic-missing-errors.png is not of "synthetic".
    return max((name for name in experiments() if picture.stem.startswith(f"{name}-")), key=len, default="")


def _words(picture: Path, name: str) -> str:
    return picture.stem.removeprefix(name).strip("-").replace("-", " ") or "all figures"


def summary_table(known: Mapping[str, list[report.Result]]) -> str:
    """RMSE of the main methods in all experiments, the paper's LVMOGP beside."""
    columns = (*COMPARED, GP_IND, LMC, GPY)
    lines = [
        "| RMSE | paper's LVMOGP | " + " | ".join(columns) + " |",
        "| --- " * (len(columns) + 2) + "|",
    ]
    for name, found in known.items():
        experiment = experiments()[name]
        lines.append(f"| {experiment.title} | {experiment.paper.get(OURS, '')} | {_cells(found, columns)} |")
    return "\n".join(lines)


def _cells(found: list[report.Result], columns: tuple[str, ...]) -> str:
    methods = report.by_method(found)
    most = max(map(len, methods.values()))
    return " | ".join(_cell(methods[name], most) if name in methods else "" for name in columns)


def _cell(repeats: Mapping[int, report.Result], most: int) -> str:
    short = "" if len(repeats) == most else f" ({len(repeats)} of {most} repeats)"
    return f"{report.spread(repeats, 'rmse')}{short}"


def with_table(text: str, table: str) -> str:
    """A text with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> None:
    """Build from the top of the repository."""
    build(Path("results"), Path("docs/results.md"), Path("README.md"))


if __name__ == "__main__":
    main()
