"""The documentation builds without warnings, its links lead somewhere, its examples run, and it names what there is."""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

import lvmogp
import lvmogp.errors
from lvmogp.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "lvmogp"
REFERENCE = ("estimator", "kernels", "diagnostics", "report", "errors")
# Errors about files are met on the command line. Those of pictures are about one argument, and say all there is to say.
ABOUT_FILES = sorted((SOURCE / "cli").rglob("*.py"))
OF_THE_LIBRARY = [
    path for path in sorted(SOURCE.rglob("*.py")) if not {"cli", "plots", "page"} & {*path.relative_to(SOURCE).parts}
]
# Where what is remarked about a model is written.
REMARKS = ("insight/summary", "inference/nuts/diagnostics", "fitted/calibration")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built into a temporary folder with warnings as errors."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the documentation needs pip install -e '.[docs]'")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return target


class Links(HTMLParser):
    """Where a page leads to, what it loads and which anchors it has."""

    def __init__(self, text):
        super().__init__()
        self.leads_to, self.loads, self.anchors = [], [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and "href" in attributes:
            self.leads_to.append(attributes["href"])
        if tag in ("img", "script", "source") and "src" in attributes:
            self.loads.append(attributes["src"])
        if tag == "link" and attributes.get("rel") in ("stylesheet", "icon"):
            self.loads.append(attributes["href"])


@pytest.fixture(scope="module")
def pages(site):
    """Links of every page; the page for what is not found is written for the root of a server."""
    return {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_internal_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(pages):
    broken = []
    for page, links in pages.items():
        for link in links.leads_to + links.loads:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target, anchor = target / "index.html" if target.is_dir() else target, unquote(parts.fragment)
            known = not anchor or (target in pages and anchor in pages[target].anchors)
            if not target.exists() or not known:
                broken.append((page.name, link))
    assert len(pages) > 15
    assert broken == []
    assert [link for links in pages.values() for link in links.loads if urlsplit(link).netloc] == []


def test_public_names_and_commands_are_on_their_pages(pages, site):
    anchors = {anchor for links in pages.values() for anchor in links.anchors}
    assert [name for name in lvmogp.__all__ if f"lvmogp.{name}" not in anchors] == []
    page = (site / "command-line" / "index.html").read_text()
    names = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands]
    assert "demo" in names
    assert [name for name in names if f"<code>lvmogp {name}</code>" not in page] == []


@pytest.mark.parametrize(
    "page", ["quickstart.md", "command-line.md", "next-measurement.md", "calibration.md", "scales.md"]
)
def test_commands_are_written_as_the_command_line_takes_them(site, page):
    shown = unescape(re.sub(r"<[^>]*>", "", (site / page.removesuffix(".md") / "index.html").read_text()))
    lines = re.findall(r"^(?:\$ )?lvmogp ([a-z-]+) ((?!\[OPTIONS\]).*)$", shown, flags=re.MULTILINE)
    assert len(lines) >= (5 if page in ("quickstart.md", "command-line.md") else 1)
    for name, arguments in lines:
        command = get_command(app).get_command(None, name)
        assert command is not None, f"there is no command {name!r}"
        command.make_context(name, arguments.split())  # parses without running


# Examples


def python_blocks(page):
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)


LONG_PAGES = ("next-measurement", "condition-features", "scales", "fully-bayesian", "large-data", "troubleshooting")
PAGES = {
    "short": ("calibration.md",),
    "long": (*(f"{name}.md" for name in LONG_PAGES), *(f"reference/{name}.md" for name in REFERENCE)),
}
ONE_START = """
import lvmogp.inference.options
lvmogp.inference.options._RESTARTS_BY_COST = ((float("inf"), 1),)
"""
CHECKS = {
    "short": """
assert mean.shape == (3,)
np.testing.assert_allclose(grown.predict(days)[5:, 1], 1.5 * np.sqrt([5, 6, 7]), rtol=0.05)
""",
    "long": """
assert resumed.outcome_.converged
assert np.array_equal(resumed.predict(asked, "site-3"), large.predict(asked, "site-3"))
np.testing.assert_allclose(large.predict(asked, "site-3"), np.sin(3 * asked["hour"]) + 0.3, atol=0.1)
np.testing.assert_allclose(judged(as_they_are), [4.57, 0.87], atol=0.3)
np.testing.assert_allclose(judged(logarithms), [1.88, 0.95], atol=0.2)
assert (chosen.input_transform_, chosen.output_transform_) == ({"substrate": "log"}, "log")
""",
}


@pytest.mark.parametrize("pages", ["short", pytest.param("long", marks=pytest.mark.long)])
def test_examples_run_in_the_order_of_reading(tmp_path, pages):
    blocks = [block for page in ("quickstart.md", *PAGES[pages]) for block in python_blocks(page)]
    script = "\n".join([ONE_START, *blocks, CHECKS[pages]])
    shutil.copytree(DOCS / "data", tmp_path, dirs_exist_ok=True)
    # In a process of its own, as a user would run it, with no checks of shapes to wait for; compiling is most of it.
    settings = {"PYTHONPATH": str(SOURCE.parent), "MPLBACKEND": "agg", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-W", "error", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "tyre-K.png").exists()


# Troubleshooting


def template(text):
    """A text with … for what varies."""
    if isinstance(text, ast.Constant):
        return str(text.value)
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in text.values)


def texts_in(tree):
    """Every text in a tree, with what varies replaced by …."""
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Constant)]
    parts = {part for text in texts if isinstance(text, ast.JoinedStr) for part in text.values}
    return [template(text) for text in texts if text not in parts]


def said(paths, names):
    """Texts that functions or classes of these names are called with first."""
    calls = [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    first = [call.args[0] for call in calls if call.args and ast.unparse(call.func) in names]
    return [template(text) for text in first if not isinstance(text, ast.Name)]  # which is one of a table of faults


def remarked():
    """Every remark of the diagnostics, of chains and of calibration."""
    bodies = [ast.parse((SOURCE / f"{module}.py").read_text()).body for module in REMARKS]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
    remarking = [each for each in functions if each.name.startswith(("_about", "about", "_remarks"))]
    texts = [text for each in remarking for text in texts_in(each) if text != ast.get_docstring(each, clean=False)]
    return [text for text in texts if text.endswith(".")]


def section(title):
    """What stands under a heading of the page, up to the next of its rank."""
    return (DOCS / "troubleshooting.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(title):
    """The first cells of the tables in a section, without the heads of the tables."""
    return re.findall(r"^\| (?!message|remark|---)(.*?) \|", section(title), flags=re.MULTILINE)


def unexplained(messages, phrases):
    """Messages that hold none of the phrases, and phrases that no message holds."""
    patterns = {phrase: re.escape(phrase).replace("…", ".*") for phrase in phrases}
    silent = [message for message in messages if not any(re.search(pattern, message) for pattern in patterns.values())]
    stale = [phrase for phrase, pattern in patterns.items() if not any(re.search(pattern, text) for text in messages)]
    return silent, stale


@pytest.mark.parametrize(
    ("paths", "title", "least"), [(OF_THE_LIBRARY, "Errors", 60), (ABOUT_FILES, "Files on the command line", 30)]
)
def test_every_error_is_explained(paths, title, least):
    # All that can be wrong inside of a model file has one remedy.
    messages = said(paths, vars(lvmogp.errors).keys() - {"ModelFileError", "warn"})
    assert len(messages) > least
    silent, _ = unexplained(messages, first_cells(title))
    _, stale = unexplained(
        [text for path in paths for text in texts_in(ast.parse(path.read_text()))], first_cells(title)
    )
    assert (silent, stale) == ([], [])


def test_every_remark_is_explained():
    assert len(remarked()) > 10
    assert unexplained(remarked(), first_cells("Remarks")) == ([], [])


def test_every_warning_is_quoted():
    messages = said(OF_THE_LIBRARY, ["warn"])
    quotes = re.findall(r"^> .*(?:\n> .*)*", section("Warnings"), flags=re.MULTILINE)
    texts = [quote[2:].replace("\n> ", " ") for quote in quotes]
    patterns = [re.escape(message).replace("…", ".+") for message in messages]
    assert len(messages) > 10
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, text) for text in texts)] == []
    assert [text for text in texts if not any(re.fullmatch(pattern, text) for pattern in patterns)] == []


def test_signatures_of_kernels_are_as_written():
    block = re.search(r"```text\n(.*?)```", (DOCS / "reference" / "kernels.md").read_text(), flags=re.DOTALL)
    written = dict(re.findall(r"^(\w+)(\(.*\))$", block[1], flags=re.MULTILINE))
    assert len(written) == 8
    for name, signature in written.items():
        own = inspect.signature(getattr(lvmogp, name))
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in own.parameters.values()]
        assert signature == str(inspect.Signature(bare)), name


# Tutorials

TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))


def shown_by(path):
    """Figures that the text of a tutorial shows."""
    return sorted(re.findall(r"\]\(images/(.+?)\)", path.read_text()))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_script_becomes_a_page_of_the_site(path, site, pages):
    index, page = (site / "tutorials" / name / "index.html" for name in ("", path.stem))
    assert f"{path.stem}/" in pages[index].leads_to
    shown = unescape(re.sub(r"<[^>]*>", "", page.read_text()))
    _, *cells = re.split(r"^# %%", path.read_text(), flags=re.MULTILINE)
    code = [line for cell in cells for line in cell.splitlines()[1:] if line and not line.startswith("#")]
    assert [line for line in code if line not in shown] == []
    images = [Path(link) for link in pages[page].loads if f"images/{path.stem}" in link]
    assert sorted(image.name for image in images) == shown_by(path) != []
    assert max((path.parent / "images" / image.name).stat().st_size for image in images) < 150_000


@pytest.mark.long
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_draws_its_figures_and_finds_the_numbers_that_it_claims(path, tmp_path):
    settings = {**os.environ, "MPLBACKEND": "Agg", "LVMOGP_IMAGES": str(tmp_path)}
    process = subprocess.run([sys.executable, "-W", "error::UserWarning", path], env=settings, capture_output=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert sorted(image.name for image in tmp_path.iterdir()) == shown_by(path)
