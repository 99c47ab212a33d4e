"""The documentation builds without warnings, its links lead somewhere, its examples run, and it names what there is."""

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest

import lvmogp
import lvmogp.errors
from lvmogp.simulate import braking

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
    return build(ROOT / "mkdocs.yml", tmp_path_factory.mktemp("site"))


def build(config, target):
    """Build a site, or fail with what mkdocs says."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", target]
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


def target_of(page, link):
    """The file a relative link leads to, and the anchor in it."""
    parts = urlsplit(link)
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return path / "index.html" if path.is_dir() else path, unquote(parts.fragment)


def test_internal_links_lead_somewhere(pages):
    broken = []
    for page, links in pages.items():
        for link in links.leads_to + links.loads:
            if urlsplit(link).scheme:
                continue
            target, anchor = target_of(page, link)
            known = not anchor or (target in pages and anchor in pages[target].anchors)
            if not target.exists() or not known:
                broken.append((page.name, link))
    assert len(pages) > 15
    assert broken == []


def test_pages_load_nothing_from_elsewhere(pages):
    assert [link for links in pages.values() for link in links.loads if urlsplit(link).netloc] == []


@pytest.mark.parametrize("name", lvmogp.__all__)
def test_public_names_are_in_the_reference(pages, name):
    anchors = {anchor for links in pages.values() for anchor in links.anchors}
    assert f"lvmogp.{name}" in anchors


def test_commands_are_on_their_page(site):
    from lvmogp.cli.app import app

    page = (site / "command-line" / "index.html").read_text()
    names = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands]
    assert "demo" in names
    assert [name for name in names if f"<code>lvmogp {name}</code>" not in page] == []


@pytest.mark.parametrize("page", ["quickstart.md", "command-line.md", "next-measurement.md", "calibration.md"])
def test_commands_are_written_as_the_command_line_takes_them(site, page):
    from typer.main import get_command

    from lvmogp.cli.app import app

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


def test_the_example_files_are_fifty_braking_tests():
    drawn = braking(np.random.default_rng(1))
    table = pd.read_csv(DOCS / "data" / "braking.csv")
    np.testing.assert_allclose(table["speed"], drawn.speed, atol=0.05)
    np.testing.assert_allclose(table["distance"], drawn.distance, atol=0.05 + 1e-9)
    assert table["tyre"].nunique() == 10
    assert not pd.read_csv(DOCS / "data" / "new-tyre.csv")["tyre"].isin(table["tyre"]).any()


PAGES = ("next-measurement.md", "calibration.md")
LONG_PAGES = (
    "condition-features.md",
    "fully-bayesian.md",
    "large-data.md",
    "troubleshooting.md",
    *(f"reference/{name}.md" for name in REFERENCE),
)


@pytest.mark.parametrize("pages", [PAGES, pytest.param(LONG_PAGES, marks=pytest.mark.long)], ids=["short", "long"])
def test_examples_run_in_the_order_of_reading(tmp_path, pages):
    blocks = [block for page in ("quickstart.md", *pages) for block in python_blocks(page)]
    script = "\n".join([ONE_START, *blocks, CHECKS if pages == PAGES else CHECKS_OF_LONG_PAGES])
    for file in (DOCS / "data").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    # In a process of its own, as a user would run it, with no checks of shapes to wait for.
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCE.parent),
        "MPLBACKEND": "agg",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling is most of the time
    }
    command = [sys.executable, "-W", "error", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "tyre-K.png").exists()


ONE_START = """
import lvmogp.inference.options
lvmogp.inference.options._RESTARTS_BY_COST = ((float("inf"), 1),)
"""
CHECKS_OF_LONG_PAGES = """
assert resumed.outcome_.converged
assert np.array_equal(resumed.predict(asked, "site-3"), large.predict(asked, "site-3"))
np.testing.assert_allclose(large.predict(asked, "site-3"), np.sin(3 * asked["hour"]) + 0.3, atol=0.1)
"""
CHECKS = """
assert mean.shape == (3,)
np.testing.assert_allclose(grown.predict(days)[5:, 1], 1.5 * np.sqrt([5, 6, 7]), rtol=0.05)
"""


# Troubleshooting


def spoken(paths):
    """Every message of an error with the error's name, and every warning, with what varies replaced by …."""
    errors, warned = [], []
    for path in paths:
        tree = ast.parse(path.read_text())
        constants = {ast.unparse(line.targets[0]): line.value for line in tree.body if isinstance(line, ast.Assign)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = ast.unparse(node.func)
            text = constants.get(ast.unparse(node.args[0]), node.args[0])
            if called in ("warnings.warn", "warn"):
                warned.append(template(text))
            elif called in vars(lvmogp.errors) and not isinstance(text, ast.Name):  # one of a table of faults
                errors.append((called, template(text)))
    return errors, warned


def template(text):
    """A text with … for what varies."""
    if isinstance(text, ast.Constant):
        return text.value
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in text.values)


def remarked():
    """Every remark of the diagnostics, of chains and of calibration, with what varies replaced by …."""
    found = []
    trees = [ast.parse((SOURCE / f"{module}.py").read_text()) for module in REMARKS]
    for function in (node for tree in trees for node in tree.body):
        if isinstance(function, ast.FunctionDef) and function.name.startswith(("_about", "_remarks")):
            texts = [node for node in ast.walk(function) if isinstance(node, ast.JoinedStr | ast.Constant)]
            parts = {part for text in texts if isinstance(text, ast.JoinedStr) for part in text.values}
            found += [str(template(text)) for text in texts if text not in parts]
    return [text for text in found if text.endswith(".")]


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
    said, _ = spoken(paths)
    # All that can be wrong inside of a model file has one remedy.
    messages = [message for error, message in said if error != "ModelFileError"]
    assert len(messages) > least
    silent, _ = unexplained(messages, first_cells(title))
    _, stale = unexplained([message for _, message in said], first_cells(title))
    assert (silent, stale) == ([], [])


def test_every_remark_is_explained():
    assert len(remarked()) > 10
    assert unexplained(remarked(), first_cells("Remarks")) == ([], [])


def test_every_warning_is_quoted():
    _, messages = spoken(OF_THE_LIBRARY)
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

SCRIPT = '''"""A docstring is not part of the page."""

# %% [markdown]
# # Cooling
#
# How cups of tea cool.
# Two lines of one paragraph.
#
# | cup | lid |
# | --- | --- |

# %%
import numpy as np

times = np.arange(3)

# %% [markdown]
# The curves:
# %%
figure.savefig(IMAGES / "cooling-1.png")
figure.savefig(IMAGES / "cooling-2.png")
'''


@pytest.fixture(scope="module")
def tutorials():
    """The hook that turns scripts into pages."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("tutorials", DOCS / "hooks" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_script_becomes_a_page(tutorials):
    expected = """# Cooling

How cups of tea cool.
Two lines of one paragraph.

| cup | lid |
| --- | --- |

```python
import numpy as np

times = np.arange(3)
```

The curves:

```python
figure.savefig(IMAGES / "cooling-1.png")
figure.savefig(IMAGES / "cooling-2.png")
```

![Figure 1 of the tutorial cooling](images/cooling-1.png)

![Figure 2 of the tutorial cooling](images/cooling-2.png)
"""
    assert tutorials.page(SCRIPT, "cooling").startswith(expected)


def test_code_before_the_first_cell_is_kept(tutorials):
    cells = list(tutorials.cells("import numpy\n# %% [markdown]\n# Text"))
    assert cells == [(False, "import numpy"), (True, "Text")]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("save(figure, 3)", ["tea-3.png"]),
        ('figure.savefig(f"{HERE}/tea-1.png", dpi=150)', ["tea-1.png"]),
        ("axes.plot(3)\nprint('tea-2.png')", []),
        ("save(first, 1)\nsave(again, 1)\nsave(second, 2)", ["tea-1.png", "tea-2.png"]),
    ],
)
def test_figures_are_those_a_cell_saves(tutorials, code, expected):
    assert tutorials.figures(code, "tea") == expected


def test_tutorials_enter_the_site_by_themselves(tutorials, site, tmp_path):
    docs = tmp_path / "docs"
    (docs / "tutorials" / "images").mkdir(parents=True)
    (docs / "tutorials" / "cooling.py").write_text(SCRIPT)
    for number in (1, 2):
        (docs / "tutorials" / "images" / f"cooling-{number}.png").write_bytes(b"")
    (docs / "tutorials" / "index.md").write_text(f"# Tutorials\n\n{tutorials.LIST_HERE}\n")
    (docs / "index.md").write_text("# Home\n")
    hook = DOCS / "hooks" / "tutorials.py"
    stray = docs / "tutorials" / "images" / "cooling-3.png"
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: small\nnav: [index.md, {Tutorials: [tutorials/index.md]}]\n"
        f'exclude_docs: "*.py"\nplugins: []\nhooks: ["{hook}"]\n'
    )
    stray.write_bytes(b"")
    with pytest.raises(AssertionError, match=r"no cell of cooling\.py saves the figure cooling-3\.png"):
        build(tmp_path / "mkdocs.yml", tmp_path / "site")
    stray.unlink()
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert "times = np.arange(3)" in (built / "tutorials" / "cooling" / "index.html").read_text()
    index = (built / "tutorials" / "index.html").read_text()
    assert '<a href="cooling/">Cooling</a>: How cups of tea cool. Two lines of one paragraph.' in index
