"""What all tests share: double precision, shapes in signatures checked by machine, seeded randomness."""

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
# Before the first import of lvmogp. As for pyright, an int will do where a float is asked for.
install_import_hook("lvmogp", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.fixture
def rng():
    return np.random.default_rng(20170)
