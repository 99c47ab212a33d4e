"""Tutorial scripts in percent format become pages of the site when it is built.

A script is a tutorial if it lies in ``docs/tutorials``. Its markdown cells become text, its code cells Python blocks,
and each figure ``images/<script>-<n>.png`` stands below the cell that saves it, unless the text shows it.
"""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FOLDER = "tutorials"
INDEX = f"{FOLDER}/index.md"
LIST_HERE = "<!-- list of tutorials -->"
ORDER = ("new_machine", "sensors", "growth_curves", "simulator_grid")  # others follow by name
_LOG = logging.getLogger("mkdocs.hooks.tutorials")
_CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)


class Cell(NamedTuple):
    """A piece of a script: text in Markdown, or code."""

    is_text: bool
    source: str


def cells(script: str) -> Iterator[Cell]:
    """The cells of a script in percent format; what stands before the first is code, unless it is a docstring."""
    preamble, *rest = _CELL.split(script)
    if _does_something(preamble):
        yield Cell(is_text=False, source=preamble.strip())
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        is_text = "[markdown]" in title
        source = _uncommented(body) if is_text else body.strip()
        if source:
            yield Cell(is_text, source)


def _does_something(code: str) -> bool:
    return any(not _is_string(node) for node in ast.parse(code).body)


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _uncommented(body: str) -> str:
    return "\n".join(re.sub(r"^# ?", "", line) for line in body.strip().splitlines())


def page(script: str, name: str) -> str:
    """A script as a page in Markdown."""
    parts = []
    for cell in cells(script):
        if cell.is_text:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        unseen = [figure for figure in figures(cell.source, name) if f"](images/{figure})" not in script]
        parts += [f"![{caption(figure)}](images/{figure})" for figure in unseen]
    parts.append(f"*This page is the script `docs/{FOLDER}/{name}.py`; running it draws the figures.*")
    return "\n\n".join(parts) + "\n"


def figures(code: str, name: str) -> list[str]:
    """File names of the figures that a code cell saves, each once: ``save…`` is called with the name or the number."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    saving = [call for call in calls if ast.unparse(call.func).rpartition(".")[2].startswith("save")]
    numbers = [number for call in saving for argument in call.args for number in _number(argument)]
    return list(dict.fromkeys(f"{name}-{number}.png" for number in numbers))


def _number(argument: ast.expr) -> list[str]:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, int):
        return [str(argument.value)]
    return re.findall(r"-(\d+)\.png", ast.unparse(argument))


def caption(figure: str) -> str:
    """What a reader hears who cannot see the figure."""
    name, _, number = figure.removesuffix(".png").rpartition("-")
    return f"Figure {number} of the tutorial {name.replace('_', ' ')}"


def scripts(docs: Path) -> list[Path]:
    """The tutorial scripts that are there, in the order of the site."""
    places = {name: place for place, name in enumerate(ORDER)}
    return sorted((docs / FOLDER).glob("*.py"), key=lambda path: (places.get(path.stem, len(ORDER)), path.stem))


def on_config(config: MkDocsConfig) -> None:
    """Add the pages to the navigation, after the index of tutorials."""
    names = [f"{FOLDER}/{script.stem}.md" for script in scripts(Path(config.docs_dir))]
    for entry in config.nav or []:
        for children in entry.values() if isinstance(entry, dict) else []:
            if INDEX in children:
                children += names


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for each script."""
    for script in scripts(Path(config.docs_dir)):
        content = page(script.read_text(), script.stem)
        for figure in sorted((script.parent / "images").glob(f"{script.stem}-*.png")):
            if figure.name not in content:
                _LOG.warning("no cell of %s saves the figure %s", script.name, figure.name)
        files.append(File.generated(config, f"{FOLDER}/{script.stem}.md", content=content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """List the tutorials on their index, each with its opening words."""
    if page.file.src_uri != INDEX:
        return markdown
    entries = (f"- {_opening(script)}" for script in scripts(Path(config.docs_dir)))
    return markdown.replace(LIST_HERE, "\n".join(entries) or "*None yet.*")


def _opening(script: Path) -> str:
    # "# Title", an empty line, then the paragraph that says what it is about.
    title, _, rest = next(cell for cell in cells(script.read_text()) if cell.is_text).source.partition("\n")
    words = " ".join(rest.strip().split("\n\n")[0].split())
    return f"[{title.lstrip('# ')}]({script.stem}.md): {words}"
