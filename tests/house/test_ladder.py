"""The modules form a ladder: imports point to earlier rungs only, and importing is free."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lvmogp

# A module imports only from modules named before it.
LADDER = [
    "__about__",
    "errors",
    "writing",
    "caches",
    "forking",
    "typing",
    "module_texts",
    "programs",
    "compiling",
    "linalg",
    "kronecker",
    "products",
    "gaussians",
    "transforms",
    "constraints",
    "optimise",
    "side_by_side",
    "distances",
    "kernels",
    "psi_statistics",
    "feature_covariances",
    "data",
    "stacking",
    "transformed",
    "parameters",
    "whitening",
    "quadratics",
    "bounds",
    "posterior",
    "draws",
    "observed",
    "conditionals",
    "minibatches",
    "minibatch_bound",
    "stochastic_steps",
    "evidence",
    "known_latents",
    "new_condition",
    "variational_condition",
    "joint",
    "unknowns",
    "priors",
    "likelihoods",
    "redrawing",
    "drawn_model",
    "drawn_curves",
    "drawn_condition",
    "drawn_joint",
    "drawn_latents",
    "particle_curves",
    "outlook",
    "scaling",
    "sources",
    "mixtures",
    "predictions",
    "ids",
    "tabular",
    "descriptions",
    "description_tables",
    "intake",
    "canonical",
    "stores",
    "independent",
    "initialise",
    "storage",
    "checkpoints",
    "distributed",
    "feeding",
    "course",
    "stochastic_fit",
    "fit",
    "nuts",
    "mcmc_diagnostics",
    "sampling",
    "origins",
    "trained",
    "answers_from_fit",
    "answers_from_draws",
    "answers",
    "suggestions",
    "calibration",
    "absorb",
    "arviz_export",
    "sampling_account",
    "file_checks",
    "model_file",
    "options",
    "resuming",
    "selection",
    "pilot",
    "large",
    "training",
    "asking",
    "adding",
    "condition_tables",
    "progress",
    "estimator",
    "relevance",
    "leave_out",
    "diagnostics",
    "plots.style",
    "plots.labels",
    "plots.slices",
    "plots.curves",
    "plots.latent_space",
    "plots.latent_density",
    "plots.new_condition",
    "plots.surfaces",
    "plots.checks",
    "plots.saving",
    "plots",
    "page_data",
    "report",
    "demo",
    "files",
    "files.delimited",
    "files.excel",
    "files.tables",
    "files.parquet",
    "files.columns",
    "files.roles",
    "files.features",
    "command_line",
    "command_line.printing",
    "command_line.interrupts",
    "command_line.supervision",
    "command_line.large_work",
    "command_line.table_work",
    "command_line.telling",
    "command_line.commands",
    "command_line.measuring",
    "command_line.showcase",
    "cli",
    "__main__",
]
# Asides may import anything; of the ladder, only what people see may import asides.
ASIDES = ["simulate", "metrics", "baselines", "datasets", "experiments"]
MAY_IMPORT_ASIDES = ["plots", "demo", "command_line.showcase"]


def is_aside(module):
    """Whether a module is an aside, or a part of one."""
    return module.split(".")[0] in ASIDES


ROOT = Path(lvmogp.__file__).parent
PATHS = sorted(ROOT.rglob("*.py"))
# A package is the module of its __init__.py.
SOURCES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}
MODULES = [name for name in SOURCES if name != "__init__"]
PLACED = [name for name in MODULES if name in LADDER or is_aside(name)]


def imported_modules(tree):
    """Names of the package's own modules that a syntax tree imports anywhere; "" is the package itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno} imports relatively; name the defining module in full"
            names = [node.module]
        else:
            continue
        found |= {name.partition(".")[2] for name in names if name.partition(".")[0] == "lvmogp"}
    return found


def may_import(module, name):
    if is_aside(module):
        return name in LADDER or is_aside(name)
    earlier = LADDER[: LADDER.index(module)]
    return name in earlier or (module in MAY_IMPORT_ASIDES and is_aside(name))


def test_every_module_has_its_place():
    assert sorted(set(MODULES) - set(PLACED)) == []
    assert len({*LADDER, *ASIDES}) == len(LADDER) + len(ASIDES)


def test_contributors_read_the_modules_in_the_order_of_the_ladder():
    table = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("| modules | know |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in cells for name in re.findall("`([a-z_]+)`", cell)]
    assert [name for name in named if name not in ASIDES] == [
        name for name in LADDER if "." not in name and name != "__about__"
    ]
    assert sorted(name for name in named if name in ASIDES) == sorted(ASIDES)


@pytest.mark.parametrize("module", PLACED)
def test_imports_point_up_the_ladder(module):
    found = imported_modules(ast.parse(SOURCES[module].read_text()))
    assert "" not in found, f"{module} imports the package itself; import from the defining module"
    assert [name for name in sorted(found) if not may_import(module, name)] == [], (
        f"{module} imports from a rung not above it"
    )


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import lvmogp", {""}),
        ("from lvmogp import kernels", {""}),
        ("import numpy, lvmogp.inference.restarts as fit", {"fit"}),
        ("def f():\n    from lvmogp.model.layouts import GridData", {"data"}),
        ("import lvmogp_extras", set()),
    ],
)
def test_all_ways_to_import_are_seen(statement, expected):
    assert imported_modules(ast.parse(statement)) == expected


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_says_in_one_sentence_what_it_knows(module):
    docstring = ast.get_docstring(ast.parse(SOURCES[module].read_text()))
    assert docstring, f"{module} has no docstring"
    opening = docstring.split("\n\n")[0]
    assert opening.endswith("."), f"{module} opens with: {opening}"
    assert not re.search(r"[.!?]\s", opening), f"{module} opens with more than one sentence: {opening}"


def backend_started_by(code):
    """Whether a fresh process that runs the code has a JAX backend at the end."""
    ask = "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    process = subprocess.run([sys.executable, "-c", f"{code}\n{ask}"], check=True, stdout=subprocess.PIPE, text=True)
    return process.stdout.split()[-1] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import lvmogp",
        "\n".join(f"import lvmogp.{module}" for module in PLACED),
        "from lvmogp.kernels.covariances import RBF, Periodic\nRBF(lengthscale=0.5) + RBF([1, 2]) * Periodic(period=7)",
    ],
    ids=["the package", "every module", "describing a kernel"],
)
def test_importing_starts_no_backend(code):
    assert not backend_started_by(code)


def test_a_started_backend_is_seen():
    assert backend_started_by("import jax; jax.numpy.ones(1)")
