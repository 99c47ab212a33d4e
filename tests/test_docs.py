"""The documentation builds without warnings, its links lead somewhere, its examples run, and it names what there is."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest

import lvmogp
import lvmogp.errors
from lvmogp.simulate import braking

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "lvmogp"
# Modules whose errors and warnings a user of the library can meet.
MODULES_THAT_SPEAK = (
    "estimator",
    "fit",
    "initialise",
    "intake",
    "kernels",
    "model_file",
    "options",
    "psi_statistics",
    "scaling",
    "storage",
    "trained",
)


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
    from lvmogp.cli import app

    page = (site / "command-line" / "index.html").read_text()
    names = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands]
    assert "demo" in names
    assert [name for name in names if f"<code>lvmogp {name}</code>" not in page] == []


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


def test_examples_run_in_the_order_of_reading(tmp_path):
    pages = ("quickstart.md", "troubleshooting.md", "reference/estimator.md", "reference/kernels.md")
    script = "\n".join([ONE_START, *(block for page in pages for block in python_blocks(page)), CHECKS])
    for file in (DOCS / "data").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    # In a process of its own, as a user would run it, with no checks of shapes to wait for.
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "MPLBACKEND": "agg"}
    command = [sys.executable, "-W", "error", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "tyre-K.png").exists()


ONE_START = """
import lvmogp.options
lvmogp.options._RESTARTS_BY_COST = ((float("inf"), 1),)
"""
CHECKS = """
assert mean.shape == (3,)
np.testing.assert_allclose(grown.predict(days)[5:, 1], 1.5 * np.sqrt([5, 6, 7]), rtol=0.05)
"""


# Troubleshooting


def spoken():
    """Pattern of every message of an error, and of every warning, with what varies replaced by …."""
    errors, warned = [], []
    for module in MODULES_THAT_SPEAK:
        for node in ast.walk(ast.parse((SOURCE / f"{module}.py").read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = ast.unparse(node.func)
            if called == "warnings.warn":
                warned.append(template(node.args[0]))
            elif called in vars(lvmogp.errors):
                errors.append(template(node.args[0]))
    return errors, warned


def template(message):
    """A message with … for what varies."""
    if isinstance(message, ast.Constant):
        return message.value
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in message.values)


def documented():
    """Phrases in the tables of errors, and quoted warnings."""
    warnings_part, errors_part = (DOCS / "troubleshooting.md").read_text().split("## Errors\n")
    phrases = re.findall(r"^\| (?!message|---)(.*?) \|", errors_part, flags=re.MULTILINE)
    quotes = re.findall(r"^> .*(?:\n> .*)*", warnings_part, flags=re.MULTILINE)
    return phrases, [re.sub(r"\n> ", " ", quote)[2:] for quote in quotes]


def test_every_error_is_explained():
    messages, phrases = spoken()[0], documented()[0]
    patterns = [re.escape(phrase).replace("…", ".*") for phrase in phrases]
    assert len(messages) > 60
    assert [message for message in messages if not any(re.search(pattern, message) for pattern in patterns)] == []
    stale = [pattern for pattern in patterns if not any(re.search(pattern, message) for message in messages)]
    assert stale == []


def test_every_warning_is_explained():
    messages, quotes = spoken()[1], documented()[1]
    patterns = [re.escape(message).replace("…", ".+") for message in messages]
    assert len(messages) == 5
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, quote) for quote in quotes)] == []
    assert [quote for quote in quotes if not any(re.fullmatch(pattern, quote) for pattern in patterns)] == []


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


def test_tutorials_enter_the_site_by_themselves(tutorials, site, tmp_path):
    docs = tmp_path / "docs"
    (docs / "tutorials" / "images").mkdir(parents=True)
    (docs / "tutorials" / "cooling.py").write_text(SCRIPT)
    for number in (1, 2):
        (docs / "tutorials" / "images" / f"cooling-{number}.png").write_bytes(b"")
    (docs / "tutorials" / "index.md").write_text(f"# Tutorials\n\n{tutorials.LIST_HERE}\n")
    (docs / "index.md").write_text("# Home\n")
    hook = DOCS / "hooks" / "tutorials.py"
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: small\nnav: [index.md, {Tutorials: [tutorials/index.md]}]\n"
        f'exclude_docs: "*.py"\nplugins: []\nhooks: ["{hook}"]\n'
    )
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert "times = np.arange(3)" in (built / "tutorials" / "cooling" / "index.html").read_text()
    index = (built / "tutorials" / "index.html").read_text()
    assert '<a href="cooling/">Cooling</a>: How cups of tea cool. Two lines of one paragraph.' in index
