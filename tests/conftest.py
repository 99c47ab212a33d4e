"""What all tests share: double precision, shapes in signatures checked by machine, seeded randomness."""

import importlib.util
import os
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

# Programs are compiled once for all workers and the processes that tests start, and kept for the next run.
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# Tests compile much and compute little: programs of the same mathematics, made quickly rather than to be quick. From
# 0.10 on there is one way only to write loops, and XLA ends at the flag; with 0.8 the two flags together change last
# digits between a model and its copy.
UNOPTIMISED, OLDER_LOOPS = "--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"
FLAGS = {"0.8": OLDER_LOOPS, "0.9": f"{UNOPTIMISED} {OLDER_LOOPS}"}
os.environ.setdefault("XLA_FLAGS", FLAGS.get(version("jaxlib").rpartition(".")[0], UNOPTIMISED))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA names harmless differences of CPU features

import beartype
import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# Must come before the first import of lvmogp. Left out: the estimator, since beartype knows no typing.Self in methods,
# its options, which are checked in words, and the command line, whose functions typer calls in its own way.
PACKAGE = Path(importlib.util.find_spec("lvmogp").origin).parent
NAMES = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]
CHECKED = [name for name in NAMES if name.split(".")[-1] not in ("__init__", "estimator", "options", "app")]
# Where a container is made, beartype looks at its hints and catches warnings meanwhile. Threads that do so at the same
# time restore what another has put there, and warnings of a fit are lost.
for module in [each for name, each in sys.modules.items() if name.startswith(f"{beartype.__name__}.")]:
    if hasattr(module, "catch_warnings"):
        module.catch_warnings = lambda *args, **kwargs: nullcontext([])
# As for pyright, an int will do where a float is asked for.
install_import_hook(CHECKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.fixture
def rng():
    return np.random.default_rng(20170)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    # Each compiled program holds mappings of memory, of which a process may have 65 000; beyond, the compiler crashes.
    from lvmogp.ground.compiling import forget_all_programs

    yield
    forget_all_programs()
