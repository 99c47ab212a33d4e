"""What all tests share: double precision, shapes in signatures checked by machine, seeded randomness."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# Must come before the first import of lvmogp. The estimator is left out: beartype knows no typing.Self in methods.
PACKAGE = Path(importlib.util.find_spec("lvmogp").origin).parent
CHECKED = [f"lvmogp.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "estimator")]
# As for pyright, an int will do where a float is asked for.
install_import_hook(CHECKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.fixture
def rng():
    return np.random.default_rng(20170)
