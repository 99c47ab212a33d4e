"""What a fit was made with, so that it can be made again."""

import platform
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
import scipy

from lvmogp.__about__ import __version__


class Origin(NamedTuple):
    """The seed of a fit, the versions of what computed it, and the kind of machine."""

    seed: int
    versions: Mapping[str, str]
    machine: str

    def __str__(self) -> str:
        """All of it in a line."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"seed {self.seed}; {versions}; {self.machine}"


def origin_here(seed: int) -> Origin:
    """The origin of a fit with this seed that this process makes."""
    versions = {
        "lvmogp": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    return Origin(seed, versions, f"{platform.machine()} {jax.default_backend()}")
