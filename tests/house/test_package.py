"""What is in the package, what importing it costs, and what it asks for."""

import ast
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest

import lvmogp

PACKAGE = Path(lvmogp.__file__).parent
ROOT = Path(__file__).parents[2]
# 450 kB when this was written, a fifth of it the drawing library of the page.
MOST_KILOBYTES = 600
# What the estimator cannot do without, and what these import themselves.
NEEDED = {"equinox", "jax", "jaxtyping", "joblib", "numpy", "pandas", "safetensors", "scipy", "sklearn"}
HEAVY = ["arviz", "matplotlib", "numpyro", "openpyxl", "playwright", "polars", "torch", "typer"]
OPTIONAL = ["pyarrow", "torch", "arviz", "polars", "openpyxl"]


def printed_by(code):
    """What a fresh process prints last that runs the code."""
    process = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return process.stdout.splitlines()[-1]


def imported_by(code):
    """Top-level packages, other than Python's own, that a fresh process has once it has run the code."""
    ask = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    return set(printed_by(f"{code}\n{ask}").split())


def test_importing_the_package_imports_nothing_else():
    assert imported_by("import lvmogp") - imported_by("") == {"lvmogp"}


def test_the_estimator_imports_what_it_needs_and_nothing_for_pictures_or_files():
    found = imported_by("from lvmogp import LVMOGPRegressor")
    assert found >= NEEDED
    assert [name for name in HEAVY if name in found] == []


def test_what_is_optional_is_never_imported_at_the_top_of_a_module():
    optional = tuple(f"{word} {name}" for word in ("import", "from") for name in OPTIONAL)
    lines = [line for path in PACKAGE.rglob("*.py") for line in path.read_text().splitlines()]
    assert [line for line in lines if line.startswith(optional)] == []


def test_importing_every_module_and_describing_a_kernel_start_no_backend():
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]
    imports = [f"import {name.removesuffix('.__init__')}" for name in names]
    described = "lvmogp.RBF(lengthscale=0.5) + lvmogp.RBF([1, 2]) * lvmogp.Periodic(period=7)"
    ask = "from jax._src import xla_bridge\nprint(xla_bridge.backends_are_initialized())"
    assert printed_by("\n".join([*imports, described, ask])) == "False"


def test_a_module_says_in_one_sentence_what_it_knows():
    for path in PACKAGE.rglob("*.py"):
        opening = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        assert opening.endswith("."), f"{path} opens with: {opening!r}"
        assert not re.search(r"[.!?]\s", opening), f"{path} opens with more than one sentence: {opening}"


@pytest.mark.skipif("LVMOGP_WHEEL" not in os.environ, reason="there is a wheel in make test-package only")
def test_the_wheel_is_small_and_holds_the_package_and_nothing_else():
    assert os.path.getsize(os.environ["LVMOGP_WHEEL"]) < 1_000 * MOST_KILOBYTES
    with zipfile.ZipFile(os.environ["LVMOGP_WHEEL"]) as wheel:
        names = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    own = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    assert names == {name for name in own if "__pycache__" not in name}
    assert {"lvmogp/py.typed", "lvmogp/cli/app.py"} <= names
    assert any(name.startswith("lvmogp/page/") for name in names)


@pytest.mark.skipif(not (ROOT / "src").is_dir(), reason="needs the source tree")
def test_every_module_with_a_public_name_is_type_checked_strictly():
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    names = {f"lvmogp.{name}" for name in lvmogp.__all__}
    named = names.union(*(re.findall(r"^::: (lvmogp[\w.]*)", page, re.MULTILINE) for page in pages))
    public = [pkgutil.resolve_name(name) for name in named]
    public += [getattr(each, name) for each in public for name in getattr(each, "__all__", ())]
    homes = {Path(inspect.getfile(inspect.getmodule(each))) for each in public if inspect.getmodule(each)}
    strict = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["strict"])
    assert {f"src/{home.relative_to(PACKAGE.parent)}" for home in homes if PACKAGE in home.parents} - strict == set()
    assert [path for path in strict if not (ROOT / path).is_file()] == []


STATED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_a_lower_bound_and_none_an_upper_one_but_where_it_is_known_to_break():
    optional = [line for group in STATED["optional-dependencies"].values() for line in group]
    assert [line for line in [*STATED["dependencies"], *optional] if ">=" not in line] == []
    assert [line for line in STATED["dependencies"] if "<" in line] == []
    assert len(requires("lvmogp")) >= len(STATED["dependencies"])


def test_the_page_about_versions_names_the_lower_bounds():
    page = (ROOT / "docs" / "trust-package.md").read_text()
    bounds = [line.split(",")[0].split(">=") for line in STATED["dependencies"]]
    assert [name for name, lowest in bounds if f"| {name} | {lowest} |" not in page] == []
