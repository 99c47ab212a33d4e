"""The house stands on floors: a module imports from its own floor or from those below, and never in a circle."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import lvmogp

# From the ground up: packages, and the modules at the top of lvmogp.
FLOORS = [
    "__about__", "typing", "errors", "ground", "algebra", "kernels", "tables", "storage", "model", "inference",
    "conditions", "fitted", "progress", "pipeline", "estimator", "metrics", "simulate", "insight", "plots", "demo",
    "page", "cli", "__main__",
]  # fmt: skip
ROOT = Path(lvmogp.__file__).parent
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def imported(text):
    """Modules of lvmogp that a text imports, also inside of functions; "lvmogp" is the package itself."""
    nodes = list(ast.walk(ast.parse(text)))
    relative = [node.lineno for node in nodes if isinstance(node, ast.ImportFrom) and node.level]
    assert not relative, f"lines {relative} import relatively; name the defining module in full"
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name for name in names if name.split(".")[0] == "lvmogp"}


# Nothing is asked of the package itself, which hands out names from all floors.
PATHS = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]
NAMES = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__") for path in PATHS]
IMPORTS = {name: imported(path.read_text()) for name, path in zip(NAMES, PATHS, strict=True)}


def rank(name):
    """The number of a module's floor; the package itself is above all, as nothing inside imports it."""
    return FLOORS.index(name.split(".")[1]) if "." in name else len(FLOORS)


def test_every_module_stands_on_a_floor_and_no_floor_is_empty():
    assert {name.split(".")[1] for name in NAMES} == set(FLOORS)


def test_imports_point_downwards():
    assert [(name, each) for name in NAMES for each in IMPORTS[name] if rank(each) > rank(name)] == []


def test_no_imports_run_in_a_circle():
    TopologicalSorter(IMPORTS).prepare()


def test_contributors_read_of_the_floors_from_the_ground_up():
    table = CONTRIBUTING.read_text().split("| floor | knows |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    named = [name for cell in cells for name in re.findall("[a-z]+", cell)]
    assert named == [name for name in FLOORS if not name.startswith("__")]
