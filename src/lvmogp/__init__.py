"""Gaussian processes for data from many conditions, with new conditions learnt from a few points."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lvmogp.__about__ import __version__
from lvmogp.errors import (
    ConvergenceWarning,
    DataError,
    LVMOGPError,
    LVMOGPWarning,
    ModelFileError,
    NumericalError,
    SettingError,
    UnknownConditionError,
)

if TYPE_CHECKING:
    from lvmogp.cli.files.parquet import open_parquet
    from lvmogp.estimator import LVMOGPRegressor
    from lvmogp.inference.nuts.parameters import Priors
    from lvmogp.inference.optimise import StopFit
    from lvmogp.inference.options import PAPERS_MODEL
    from lvmogp.inference.restarts import Progress
    from lvmogp.kernels.covariances import (
        RBF,
        Constant,
        Kernel,
        Linear,
        Matern12,
        Matern32,
        Matern52,
        Periodic,
        RationalQuadratic,
    )
    from lvmogp.tables.observations import ObservationStore

__all__ = [
    "PAPERS_MODEL",
    "RBF",
    "Constant",
    "ConvergenceWarning",
    "DataError",
    "Kernel",
    "LVMOGPError",
    "LVMOGPRegressor",
    "LVMOGPWarning",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "ModelFileError",
    "NumericalError",
    "ObservationStore",
    "Periodic",
    "Priors",
    "Progress",
    "RationalQuadratic",
    "SettingError",
    "StopFit",
    "UnknownConditionError",
    "__version__",
    "open_parquet",
]


# XLA has a harmless remark for each program that it reads from a cache, and can be silenced before JAX is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What needs JAX is imported when first asked for, so that the command line can show its help at once.
_HOMES = {
    "LVMOGPRegressor": "lvmogp.estimator",
    "PAPERS_MODEL": "lvmogp.inference.options",
    "ObservationStore": "lvmogp.tables.observations",
    "Priors": "lvmogp.inference.nuts.parameters",
    "Progress": "lvmogp.inference.restarts",
    "StopFit": "lvmogp.inference.optimise",
    "open_parquet": "lvmogp.cli.files.parquet",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "lvmogp.kernels.covariances")), name)


def __dir__() -> list[str]:
    return __all__
